//! One request that its front end does not want any more.
//!
//! Where it stands in the life of a request: anywhere between its start and its answer, on the iothread that carries it out.
//!
//! Invariants: a request has one answer, cancelled or not: its [`Ticket`](crate::completion_routes::Ticket) is used up
//! by whoever answers. After its answer nothing touches its memory: what the kernel or a channel has is waited for, and
//! what a lane holds was not begun and never is. Limits: a look at all requests of the iothread for each.

use block::{Answer, FailKind, Mapping, Outcome, SourceRequestSlot};
use kernel_io::{EngineKernel, IoFailure};

use super::Engine;
use crate::RouteIndex;
use crate::io_request::{KernelEventTarget, RequestIndex, RequestOrigin, RequestPhase};

impl Engine {
    /// Has the request of that slot end soon, if it is carried out here: with [`FailKind::Cancelled`], or as it does anyway.
    pub(crate) fn cancel(&mut self, route: RouteIndex, slot: SourceRequestSlot) {
        let Some(index) = self.jobs.of_slot(route, slot) else { return };
        match self.jobs.get(index).phase {
            RequestPhase::Held => self.cancel_held(index),
            RequestPhase::Start => {
                self.range_waiters.retain(|waiting| *waiting != index);
                self.set_cancelled(index);
                self.advance(index);
            }
            RequestPhase::Transfer => self.cancel_transferring(index),
            RequestPhase::Sync => {
                self.forget_syncs(index);
                self.set_cancelled(index);
                self.advance(index);
            }
            // It ends as it does anyway.
            RequestPhase::Completed => {}
        }
    }

    /// The answer of a lane that still holds it finds nobody: it is not carried out.
    fn cancel_held(&mut self, index: RequestIndex) {
        let owner = self.jobs.get(index).owner.replace(RequestOrigin::Cancelled);
        let Some(RequestOrigin::Ring(ticket)) = owner else {
            panic!("a slot is of a request that a source waits for")
        };
        self.cancelled += 1;
        self.routes.complete(ticket, Outcome::Failed(FailKind::Cancelled));
    }

    /// What was not begun never is; what the kernel or a channel has is waited for.
    fn cancel_transferring(&mut self, index: RequestIndex) {
        self.set_cancelled(index);
        let lane = self.jobs.get(index).lane;
        let waits_for_buffer = self.buffer_waiters.withdraw(lane.place(), |it| *it == index);
        if !waits_for_buffer.is_empty() {
            return self.advance(index);
        }
        self.kernel.withdraw(|tag| {
            matches!(KernelEventTarget::from_tag(tag), KernelEventTarget::Job(known, _) if known == index)
        });
    }

    /// Answers a request that waits for room in its lane, and was never brought there.
    pub(crate) fn cancel_unstarted(&mut self, route: RouteIndex, slot: SourceRequestSlot) {
        let ticket = self.routes.open(route, slot);
        self.routes.complete(ticket, Outcome::Failed(FailKind::Cancelled));
    }

    fn set_cancelled(&mut self, index: RequestIndex) {
        self.jobs.get(index).failure.get_or_insert(FailKind::Cancelled);
    }
}

impl<K: EngineKernel> Engine<K> {
    /// Takes out of what a lane lets go on that which was answered meanwhile.
    pub(super) fn take_cancelled(&mut self) -> Vec<Mapping> {
        if self.cancelled == 0 {
            return Vec::new();
        }
        let Self { mappings, jobs, .. } = self;
        let is_cancelled =
            |mapping: &mut Mapping| jobs.get(RequestIndex::of(mapping.token)).is_cancelled();
        let taken: Vec<_> = mappings.extract_if(.., is_cancelled).collect();
        self.cancelled -= taken.len();
        taken
    }

    /// A lane has answered such a request, whose pieces nobody wants.
    pub(super) fn skip_cancelled(&mut self, mapping: &Mapping) {
        let index = RequestIndex::of(mapping.token);
        let job = self.jobs.get(index);
        (job.phase, job.failure) = (RequestPhase::Transfer, Some(FailKind::Cancelled));
        match mapping.answer {
            Answer::Now(_) => {
                job.after = mapping.after;
                self.advance(index);
            }
            Answer::Refused(kind) => self.finish(index, Outcome::Failed(kind)),
            Answer::Held => panic!("a lane answers what it held, or does not mention it"),
        }
    }
}

/// Whether a failure is that of an operation which was taken back before it was begun, of a request with this one.
pub(super) fn is_withdrawn(request: Option<FailKind>, failure: IoFailure) -> bool {
    request == Some(FailKind::Cancelled) && kernel_io::is_withdrawn(failure)
}
