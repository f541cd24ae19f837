//! What lanes hold: it goes on when it is due, when its lane is called, or when somebody waits for its end.
//!
//! Where it stands in the life of a request: between its mapping and its answer.

use std::sync::Arc;
use std::time::Instant;

use block::{Node, WakeTime};
use kernel_io::EngineKernel;

use super::Engine;
use crate::LaneIndex;
use crate::io_request::RequestIndex;

impl<K: EngineKernel> Engine<K> {
    /// When [`Engine::resume`] has something to do.
    pub fn due(&self) -> Option<WakeTime> {
        let due = WakeTime::first(self.lanes.due(), self.lanes.channels.due());
        if self.timed_turns.is_empty() {
            return due;
        }
        WakeTime::first(due, self.timed_turns.due())
    }

    /// Goes on with what was held and may go on by now. What is over at once is told by the next
    /// [`Engine::dispatch`].
    pub fn resume(&mut self, now: Instant) {
        self.lanes.channels.begin_round(Some(now));
        let mut from = 0;
        while let Some(lane) = self.lanes.next_due(from, now) {
            from = lane.next();
            self.resume_lane(lane, now);
            self.deliver_finished();
        }
    }

    /// Starts what a lane has held and lets go on.
    pub(super) fn resume_lane(&mut self, lane: LaneIndex, now: Instant) {
        self.lanes.resume(lane, now, &mut self.mappings, &mut self.pieces);
        self.held -= self.mappings.len();
        self.release_rest(lane);
        let Self { mappings, jobs, lanes, .. } = self;
        let late = mappings.iter().map(|mapping| RequestIndex::of(mapping.token));
        lanes.remove_held(lane, late.map(|index| jobs.get(index).memory.count()).sum());
        let cancelled = self.take_cancelled();
        let (held, _) = self.start_answered(lane);
        assert_eq!(held, 0, "a lane answers what it held, or does not mention it");
        cancelled.into_iter().for_each(|mapping| self.skip_cancelled(&mapping));
    }

    /// Makes due at once what a lane holds: somebody waits for its end.
    pub fn release(&mut self, lane: LaneIndex) {
        if self.lanes.requests_of(lane) > 0 {
            let released = self.jobs.release(lane);
            self.lanes.release(lane, released);
        }
    }

    /// The same for all lanes.
    pub fn release_all(&mut self) {
        let mut from = 0;
        while let Some(lane) = self.lanes.next_busy(from) {
            from = lane.next();
            self.release(lane);
        }
    }

    /// The same for the lane on that node, if there is one.
    pub fn release_on(&mut self, node: &Arc<dyn Node>) {
        if let Some(lane) = self.lanes.find(node) {
            self.release(lane);
        }
    }

    /// What one layer has let go because it was released, the next one may hold again.
    fn release_rest(&mut self, lane: LaneIndex) {
        if self.lanes.is_releasing(lane) {
            let Self { mappings, jobs, lanes, .. } = self;
            let over = mappings
                .iter()
                .filter(|mapping| jobs.get(RequestIndex::of(mapping.token)).released);
            lanes.release_rest(lane, over.count());
        }
    }
}
