//! Requests that come from no client: those of whoever tries an engine out.
//!
//! Where it stands in the life of a request: in the place of a source, without turns and moves.

use std::sync::Arc;

use block::{Buffers, LaneError, Node, Operation, Outcome, SourceRequestSlot};
use kernel_io::EngineKernel;

use crate::mailbox::Wake;
use crate::{Engine, LaneIndex, OutcomeMailbox, RouteIndex, SourceKey};

/// Requests to one disk that come from no source: submits them to an engine and takes their outcomes (for tests).
#[derive(Debug)]
pub struct SourcelessRequests {
    route: RouteIndex,
    lane: LaneIndex,
}

/// A [`Wake`] that wakes nobody: outcomes are looked for.
#[derive(Debug)]
struct NoopWake;

impl Wake for NoopWake {
    fn wake(&self) {}
}

impl SourcelessRequests {
    /// None yet, of at most so many slots. Opens the engine's lane on the disk.
    pub fn new<K: EngineKernel>(
        engine: &mut Engine<K>,
        disk: &Arc<dyn Node>,
        slots: u16,
    ) -> Result<Self, LaneError> {
        let lane = engine.open_lanes(std::slice::from_ref(disk))?.remove(0);
        let mailbox = Arc::new(OutcomeMailbox::new(slots, Arc::new(NoopWake)));
        Ok(Self { route: engine.attach(&mailbox, slots, SourceKey(0)), lane })
    }

    /// Begins these as one batch. Each names a slot that is free, and memory as long as what it reads or writes, which
    /// stays until the request is over.
    pub fn begin<K: EngineKernel>(
        &self,
        engine: &mut Engine<K>,
        batch: impl Iterator<Item = (SourceRequestSlot, Operation, Buffers)>,
    ) {
        for (slot, operation, mut memory) in batch {
            engine.add(self.route, self.lane, slot, operation, &mut memory);
        }
        engine.start_batch(self.lane);
    }

    /// Takes those that are over, into an empty list.
    pub fn take_finished<K: EngineKernel>(
        &self,
        engine: &mut Engine<K>,
        into: &mut Vec<(SourceRequestSlot, Outcome)>,
    ) {
        engine.take_finished(self.route, into);
    }

    /// Has the lane let go at once what it holds.
    pub fn release<K: EngineKernel>(&self, engine: &mut Engine<K>) {
        engine.release(self.lane);
    }

    /// Closes the lane. All requests are over, and taken.
    pub fn close<K: EngineKernel>(self, engine: &mut Engine<K>) {
        engine.leave(self.route);
        engine.close_lane(self.lane);
    }
}
