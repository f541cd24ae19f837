//! What the kernel tells: whose it is, and what follows.
//!
//! Where it stands in the life of a request: between the iothread's wait and whoever goes on, a request or a source.

use kernel_io::{BounceBuffer, EngineKernel, Event, IoFailure, Tag};

use super::{Engine, EngineEvent};
use crate::io_request::EventTarget;

impl<K: EngineKernel> Engine<K> {
    /// Works off all kernel events; what concerns the event loop goes to `signals`.
    pub fn dispatch(&mut self, signals: &mut Vec<EngineEvent>) {
        self.take_events(signals);
        while self.run_woken_lanes() {
            self.take_events(signals);
        }
        signals.extend(self.routes.drain_called().map(EngineEvent::Finished));
        if !self.timed_turns.is_empty() {
            signals.extend(self.timed_turns.take(self.clock.now()));
        }
    }

    fn take_events(&mut self, signals: &mut Vec<EngineEvent>) {
        while let Some(event) = self.kernel.next_event() {
            match event {
                Event::Finished { tag, result, bounce } => self.operation_over(tag, result, bounce),
                Event::Extent { tag, found } => self.extent_found(tag, found),
                Event::Transferred { tag, transfer } => self.transfer_over(tag, transfer),
                Event::Ready { tag } => match EventTarget::from_tag(tag) {
                    EventTarget::Kick(key) => signals.push(EngineEvent::Kicked(key)),
                    EventTarget::Bell => {
                        self.notifier.clear();
                        self.kernel.forget_files();
                        self.retry_ranges();
                        self.retry_syncs();
                        signals.push(EngineEvent::Bell);
                    }
                    EventTarget::Alarm => self.alarm_rang(),
                    EventTarget::Channel(channel) => self.lanes.channels.ready(channel),
                    EventTarget::Job(..) | EventTarget::Sync(_) | EventTarget::Transfer(..) => {
                        panic!("an operation is no descriptor")
                    }
                },
                Event::Writable { tag } => match EventTarget::from_tag(tag) {
                    EventTarget::Kick(key) => signals.push(EngineEvent::Writable(key)),
                    EventTarget::Channel(channel) => self.lanes.channels.ready(channel),
                    EventTarget::Bell
                    | EventTarget::Alarm
                    | EventTarget::Job(..)
                    | EventTarget::Sync(_)
                    | EventTarget::Transfer(..) => {
                        panic!("only kicks and channels are watched for room")
                    }
                },
                Event::PollEnded { tag } => match EventTarget::from_tag(tag) {
                    EventTarget::Kick(key) => signals.push(EngineEvent::Unwatched(key)),
                    EventTarget::Channel(channel) => self.lanes.channels.unwatched(channel),
                    EventTarget::Bell
                    | EventTarget::Alarm
                    | EventTarget::Job(..)
                    | EventTarget::Sync(_)
                    | EventTarget::Transfer(..) => {
                        panic!("only kicks and channels are unwatched")
                    }
                },
            }
        }
    }

    pub(super) fn operation_over(
        &mut self,
        tag: Tag,
        result: Result<(), IoFailure>,
        bounce: Option<BounceBuffer>,
    ) {
        let (index, piece) = match EventTarget::from_tag(tag) {
            EventTarget::Job(index, piece) => (index, piece),
            EventTarget::Sync(storage) => return self.sync_over(storage, result),
            EventTarget::Kick(_)
            | EventTarget::Bell
            | EventTarget::Alarm
            | EventTarget::Transfer(..)
            | EventTarget::Channel(_) => {
                panic!("only requests have operations")
            }
        };
        self.jobs.get(index).outstanding -= 1;
        match bounce {
            Some(buffer) => self.staged_step_over(index, result, buffer),
            None => {
                if let Err(failure) = result {
                    self.piece_failed(index, piece, failure);
                }
                self.advance(index);
            }
        }
    }
}
