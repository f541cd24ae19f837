//! What the kernel tells: whose it is, and what follows.
//!
//! Where it stands in the life of a request: between the iothread's wait and whoever goes on, a request or a source.

use kernel_io::{BounceBuffer, EngineKernel, Event, IoFailure, Tag};

use super::{Engine, EventLoopEvent};
use crate::io_request::KernelEventTarget;

impl<K: EngineKernel> Engine<K> {
    /// Works off all kernel events; what concerns the event loop goes to `signals`.
    pub fn dispatch(&mut self, signals: &mut Vec<EventLoopEvent>) {
        self.take_events(signals);
        while self.run_woken_lanes() {
            self.take_events(signals);
        }
        signals.extend(self.routes.drain_called().map(EventLoopEvent::Finished));
        if !self.timed_turns.is_empty() {
            signals.extend(self.timed_turns.take(self.clock.now()));
        }
    }

    fn take_events(&mut self, signals: &mut Vec<EventLoopEvent>) {
        while let Some(event) = self.kernel.next_event() {
            match event {
                Event::Finished { tag, result, bounce } => self.operation_over(tag, result, bounce),
                Event::Extent { tag, found } => self.extent_found(tag, found),
                Event::Transferred { tag, transfer } => self.transfer_over(tag, transfer),
                Event::Ready { tag } => match KernelEventTarget::from_tag(tag) {
                    KernelEventTarget::Kick(key) => signals.push(EventLoopEvent::Kicked(key)),
                    KernelEventTarget::Bell => {
                        self.notifier.clear();
                        self.kernel.forget_files();
                        self.retry_ranges();
                        self.retry_syncs();
                        signals.push(EventLoopEvent::Bell);
                    }
                    KernelEventTarget::Alarm => self.alarm_rang(),
                    KernelEventTarget::Channel(channel) => self.lanes.channels.ready(channel),
                    KernelEventTarget::Job(..)
                    | KernelEventTarget::Sync(_)
                    | KernelEventTarget::Transfer(..) => {
                        panic!("an operation is no descriptor")
                    }
                },
                Event::Writable { tag } => match KernelEventTarget::from_tag(tag) {
                    KernelEventTarget::Kick(key) => signals.push(EventLoopEvent::Writable(key)),
                    KernelEventTarget::Channel(channel) => self.lanes.channels.ready(channel),
                    KernelEventTarget::Bell
                    | KernelEventTarget::Alarm
                    | KernelEventTarget::Job(..)
                    | KernelEventTarget::Sync(_)
                    | KernelEventTarget::Transfer(..) => {
                        panic!("only kicks and channels are watched for room")
                    }
                },
                Event::PollEnded { tag } => match KernelEventTarget::from_tag(tag) {
                    KernelEventTarget::Kick(key) => signals.push(EventLoopEvent::Unwatched(key)),
                    KernelEventTarget::Channel(channel) => self.lanes.channels.unwatched(channel),
                    KernelEventTarget::Bell
                    | KernelEventTarget::Alarm
                    | KernelEventTarget::Job(..)
                    | KernelEventTarget::Sync(_)
                    | KernelEventTarget::Transfer(..) => {
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
        let (index, piece) = match KernelEventTarget::from_tag(tag) {
            KernelEventTarget::Job(index, piece) => (index, piece),
            KernelEventTarget::Sync(storage) => return self.sync_over(storage, result),
            KernelEventTarget::Kick(_)
            | KernelEventTarget::Bell
            | KernelEventTarget::Alarm
            | KernelEventTarget::Transfer(..)
            | KernelEventTarget::Channel(_) => {
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
