//! What lanes do on their own account: internal I/Os, and requests that they go on with.
//!
//! Where it stands in the life of a request: after each call of a lane, its internal I/Os are begun; when one
//! is over, or another thread has woken a task of the lane, the lane is called again.
//!
//! Limits: a lane bounds its internal I/Os by its requests; they count as requests in flight.

use block::{
    AfterPiecesAction, CompletedRequest, LaneCompletionDecision, Outcome, Piece, TakeoverOwner,
};
use kernel_io::EngineKernel;

use super::Engine;
use crate::LaneIndex;
use crate::failure_reporter::StorageFailureCause;
use crate::io_request::{RequestIndex, RequestPhase};
use crate::storage_backends::FileAndChannelBackends;

impl<K: EngineKernel> Engine<K> {
    /// Goes on with lanes that have something to do, as far as this round has room; whether there was any.
    /// What is left keeps the iothread awake.
    pub(super) fn run_woken_lanes(&mut self) -> bool {
        self.notify_completed();
        if self.lane_calls_left > 0 {
            self.lanes.collect_woken();
        }
        let mut any = self.attend_channels();
        while self.lane_calls_left > 0
            && let Some(lane) = self.lanes.next_to_run()
        {
            if self.lanes.take_wakeup(lane) {
                any = true;
                self.lane_calls_left -= 1;
                self.lanes.channels.call_of(lane);
                self.resume_lane(lane, self.clock.now());
            }
            let mut internal_ios = std::mem::take(&mut self.internal_ios);
            self.lanes.take_internal_io(lane, &mut internal_ios);
            any |= !internal_ios.is_empty();
            for internal_io in internal_ios.drain(..) {
                let index = self.jobs.add_internal_io(internal_io, lane);
                let job = self.jobs.get(index);
                job.phase = RequestPhase::Start;
                self.pieces_open += job.pieces.len();
                self.lanes.add_pieces(lane, job.pieces.len());
                self.lanes.internal_begun(lane, job.memory.count());
                self.start_errand(index);
            }
            self.internal_ios = internal_ios;
            self.lanes.close_if_over(lane);
        }
        any || !self.completed.is_empty()
    }

    /// Starts an internal I/O, unless it changes what another process goes on with.
    fn start_errand(&mut self, index: RequestIndex) {
        let Self { jobs, kernel, lanes, .. } = self;
        let job = jobs.get(index);
        let mut storages = FileAndChannelBackends { kernel, channels: &mut lanes.channels };
        let is_foreign = |piece: &Piece| {
            let (storage, _) = piece.target.storage()?;
            (storages.medium(storage).owner() == TakeoverOwner::Other).then_some(storage)
        };
        let foreign = job.operation.is_change().then(|| job.pieces.iter().find_map(is_foreign));
        match foreign.flatten() {
            None => self.start(index),
            Some(storage) => {
                self.fail(index, storage, StorageFailureCause::Foreign);
                self.advance(index);
            }
        }
    }

    /// An answer was carried out, or was not: its lane is told, together with what else ends now.
    pub(super) fn notify_later(&mut self, index: RequestIndex, outcome: Outcome) {
        let job = self.jobs.get(index);
        job.phase = RequestPhase::Completed;
        let lane = job.lane;
        if self.completed_on != Some(lane) {
            self.notify_completed();
            self.completed_on = Some(lane);
        }
        self.completed.push(CompletedRequest::new(index.token(), outcome));
    }

    /// Tells the lane of what was carried out: the requests are over, or with their lane again.
    pub(super) fn notify_completed(&mut self) {
        let Some(lane) = self.completed_on.take() else { return };
        let mut completed = std::mem::take(&mut self.completed);
        self.lanes.with(lane, |it| it.completed_together(&mut completed));
        for request in completed.drain(..) {
            let index = RequestIndex::of(request.token);
            match (request.outcome, request.decision) {
                (Outcome::Done, LaneCompletionDecision::Finish(Outcome::Failed(kind))) => {
                    self.refused(index, kind)
                }
                (_, LaneCompletionDecision::Finish(outcome)) => self.finish(index, outcome),
                (_, LaneCompletionDecision::HoldAgain) => self.hold_again(lane, index),
            }
        }
        self.completed = completed;
    }

    /// The lane has taken a request back.
    fn hold_again(&mut self, lane: LaneIndex, index: RequestIndex) {
        let job = self.jobs.get(index);
        self.pieces_open -= job.pieces.len();
        self.lanes.remove_pieces(lane, job.pieces.len());
        job.forget_answer(index);
        job.failure = None;
        job.phase = RequestPhase::Held;
        job.after = AfterPiecesAction::Finish;
        let (bytes, released) = (job.memory.count(), job.released);
        self.cancelled += usize::from(job.is_cancelled());
        self.held += 1;
        self.lanes.held(lane, 1, bytes);
        if released {
            // Whoever waited for its end still does.
            self.lanes.release(lane, 1);
        }
    }
}
