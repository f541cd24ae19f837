//! Descriptors that are watched: those of the caller, and the notifiers of the engines.
//!
//! Where it stands in the life of a request: a kick becomes [`Event::Ready`]; an engine's notifier brings its
//! completions.
//!
//! Invariants: after [`Event::PollEnded`] nothing of a poll comes any more. One that the kernel refuses is told and stays,
//! deaf, until it is cancelled.

use std::io;
use std::os::fd::RawFd;

use crate::completion_kind::errno_of;

use super::{Event, Kernel};
use crate::in_flight::{PollOwner, PollPhase, PollState, SlotContent};
use crate::reactor::Completion;
use crate::{Interest, Tag};

impl Kernel {
    /// Watches a descriptor for its owner.
    pub(super) fn watch(&mut self, fd: RawFd, interest: Interest, owner: PollOwner) {
        let poll = PollState { owner, fd, interest, phase: PollPhase::Armed };
        let index = self.in_flight.park_poll(poll);
        self.reactor.watch(index, fd, interest);
    }

    /// Ends a poll of the caller's.
    pub(super) fn unwatch(&mut self, tag: Tag) {
        let index = self.in_flight.find_poll(tag).expect("only a running poll is cancelled");
        let Some(SlotContent::Poll(poll)) = self.in_flight.get(index) else {
            panic!("slot {} was found to be a poll", index.0)
        };
        let fd = poll.fd;
        match std::mem::replace(&mut poll.phase, PollPhase::Cancelled) {
            PollPhase::Deaf => {
                self.in_flight.forget_poll(index);
                self.events.push_back(Event::PollEnded { tag });
            }
            PollPhase::Armed | PollPhase::Cancelled => self.reactor.unwatch(index, fd),
        }
    }

    /// A descriptor is ready: that of the caller, or one of the engines' notifiers. `readiness` has the bits of poll(2).
    fn collect_completions(&mut self, owner: PollOwner, readiness: i64) -> io::Result<()> {
        let mut done = std::mem::take(&mut self.done);
        match owner {
            PollOwner::Native => {
                let native = self.native.as_mut().expect("its bell rang");
                native.take_done(&mut done)?;
            }
            PollOwner::Workers => {
                done = self.workers.take_done();
            }
            PollOwner::Caller(tag) => {
                let is_only_writable = readiness == i64::from(libc::POLLOUT);
                self.events.push_back(if is_only_writable {
                    Event::Writable { tag }
                } else {
                    Event::Ready { tag }
                });
            }
        }
        self.conclude_all(done);
        Ok(())
    }

    pub(super) fn complete_poll(
        &mut self,
        poll: PollState,
        completion: Completion,
    ) -> io::Result<()> {
        let Completion { index, result, more } = completion;
        let armed = poll.phase == PollPhase::Armed;
        if result >= 0 && armed {
            self.collect_completions(poll.owner, result)?;
        }
        if more {
            return Ok(());
        }
        if armed && result >= 0 {
            self.reactor.watch(index, poll.fd, poll.interest);
        } else if armed {
            let errno = errno_of(result);
            tracing::error!("descriptor {} cannot be polled: {errno}", poll.fd);
            if let Some(SlotContent::Poll(poll)) = self.in_flight.get(index) {
                poll.phase = PollPhase::Deaf;
            }
        } else {
            self.in_flight.forget_poll(index);
            if let PollOwner::Caller(tag) = poll.owner {
                self.events.push_back(Event::PollEnded { tag });
            }
        }
        Ok(())
    }
}
