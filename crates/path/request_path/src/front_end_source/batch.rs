//! The requests of a source that are not started yet: a batch for one unit, and one that waits for room.

use block::{Buffers, Operation, SourceRequestSlot};

use super::Attachment;
use crate::front_end::LogicalUnitIndex;
use crate::{Engine, LaneIndex};

/// A request that waits for room in the lane of its disk.
#[derive(Debug)]
pub(super) struct PendingRequest {
    pub(super) slot: SourceRequestSlot,
    pub(super) unit: LogicalUnitIndex,
    pub(super) operation: Operation,
    pub(super) memory: Buffers,
}

/// The requests that are taken on for one unit and not started yet.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) unit: LogicalUnitIndex,
    pub(super) lane: LaneIndex,
    /// How many more there may be. Asked once: the step bounds what a batch can add.
    pub(super) room: usize,
}

impl PendingRequest {
    /// Where its data go, of a read.
    pub(super) fn as_read(&self) -> Option<(SourceRequestSlot, &Buffers)> {
        matches!(self.operation, Operation::Read(_) | Operation::Status(_))
            .then_some((self.slot, &self.memory))
    }
}

impl Batch {
    pub(super) fn of(unit: LogicalUnitIndex, attachment: &Attachment, engine: &Engine) -> Self {
        let lane = attachment.lanes[usize::from(unit.0)];
        Self { unit, lane, room: engine.room(lane) }
    }
}
