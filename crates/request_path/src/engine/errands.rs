//! What lanes do on their own account: errands, and requests that they go on with.
//!
//! Where it stands in the life of a request: after each call of a lane, its errands are begun; when one
//! is over, or another thread has woken a task of the lane, the lane is called again.
//!
//! Limits: a lane bounds its errands by its requests; they count as requests in flight.

use block::{After, Outcome, Told};

use super::Engine;
use crate::LaneIndex;
use crate::job::{JobIndex, Phase};

impl Engine {
    /// A lane was called: it may have errands.
    pub(super) fn note_lane(&mut self, lane: LaneIndex) {
        if self.lanes.needs_attention(lane) {
            self.attended.push(lane);
        }
    }

    /// Goes on with lanes that have something to do; whether there was any.
    pub(super) fn attend_lanes(&mut self) -> bool {
        let mut any = false;
        if self.lanes.take_calls() {
            let Self { lanes, attended, .. } = self;
            attended.extend(lanes.all().filter(|lane| lanes.needs_attention(*lane)));
        }
        while let Some(lane) = self.attended.pop() {
            if !self.lanes.needs_attention(lane) {
                continue;
            }
            if self.lanes.take_call(lane) {
                any = true;
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
                self.start(index);
            }
            self.errands = errands;
        }
        any
    }

    /// An answer was carried out, or was not: the request is over, or with its lane again.
    pub(super) fn tell_lane(&mut self, index: JobIndex, outcome: Outcome) {
        let job = self.jobs.get(index);
        let lane = job.lane;
        match self.lanes.carried_out(lane, index.token(), outcome) {
            Told::Over(outcome) => self.finish(index, outcome),
            Told::Kept => {
                let job = self.jobs.get(index);
                self.pieces_open -= job.pieces.len();
                job.forget_answer();
                job.failure = None;
                job.phase = Phase::Held;
                job.after = After::Over;
                let bytes = job.memory.count();
                self.held += 1;
                self.lanes.held(lane, 1, bytes);
            }
        }
        self.note_lane(lane);
    }
}
