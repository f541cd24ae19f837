//! What lanes do on their own account: errands, and requests that they go on with.
//!
//! Where it stands in the life of a request: after each call of a lane, its errands are begun; when one
//! is over, or another thread has woken a task of the lane, the lane is called again.
//!
//! Limits: a lane bounds its errands by its requests; they count as requests in flight.

use block::{After, Outcome, Owner, Piece, Told};

use super::Engine;
use crate::EngineKernel;
use crate::job::{JobIndex, Phase};
use crate::report::Trouble;
use crate::storages::Storages;

impl<K: EngineKernel> Engine<K> {
    /// Goes on with lanes that have something to do, as far as this round has room; whether there was any.
    /// What is left keeps the iothread awake.
    pub(super) fn attend_lanes(&mut self) -> bool {
        if self.calls_left > 0 {
            self.lanes.note_called();
        }
        let mut any = self.attend_channels();
        while self.calls_left > 0
            && let Some(lane) = self.lanes.next_attended()
        {
            if self.lanes.take_call(lane) {
                any = true;
                self.calls_left -= 1;
                self.lanes.channels.call_of(lane);
                self.resume_lane(lane, self.clock.now());
            }
            let mut errands = std::mem::take(&mut self.errands);
            self.lanes.take_errands(lane, &mut errands);
            any |= !errands.is_empty();
            for errand in errands.drain(..) {
                let index = self.jobs.add_errand(errand, lane);
                let job = self.jobs.get(index);
                job.phase = Phase::Start;
                self.pieces_open += job.pieces.len();
                self.lanes.opened_pieces(lane, job.pieces.len());
                self.lanes.internal_begun(lane, job.memory.count());
                self.start_errand(index);
            }
            self.errands = errands;
            self.lanes.close_if_over(lane);
        }
        any
    }

    /// Starts an errand, unless it changes what another process goes on with.
    fn start_errand(&mut self, index: JobIndex) {
        let Self { jobs, kernel, lanes, .. } = self;
        let job = jobs.get(index);
        let mut storages = Storages { kernel, channels: &mut lanes.channels };
        let is_foreign = |piece: &Piece| {
            let (storage, _) = piece.target.storage()?;
            (storages.medium(storage).owner() == Owner::Other).then_some(storage)
        };
        let foreign = job.operation.is_change().then(|| job.pieces.iter().find_map(is_foreign));
        match foreign.flatten() {
            None => self.start(index),
            Some(storage) => {
                self.fail(index, storage, Trouble::Foreign);
                self.settle(index);
            }
        }
    }

    /// An answer was carried out, or was not: the request is over, or with its lane again.
    pub(super) fn tell_lane(&mut self, index: JobIndex, outcome: Outcome) {
        let job = self.jobs.get(index);
        let lane = job.lane;
        match (outcome, self.lanes.carried_out(lane, index.token(), outcome)) {
            (Outcome::Done, Told::Over(Outcome::Failed(kind))) => self.refused(index, kind),
            (_, Told::Over(outcome)) => self.finish(index, outcome),
            (_, Told::Kept) => {
                let job = self.jobs.get(index);
                self.pieces_open -= job.pieces.len();
                self.lanes.closed_pieces(lane, job.pieces.len());
                job.forget_answer(index);
                job.failure = None;
                job.phase = Phase::Held;
                job.after = After::Over;
                let (bytes, released) = (job.memory.count(), job.released);
                self.held += 1;
                self.lanes.held(lane, 1, bytes);
                if released {
                    // Whoever waited for its end still does.
                    self.lanes.release(lane, 1);
                }
            }
        }
    }
}
