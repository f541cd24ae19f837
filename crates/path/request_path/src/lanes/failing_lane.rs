//! What stands in for a lane that could not be opened at the end of a drain.

use block::{Answer, BatchPieces, FailKind, LeafLane, Mapping};

/// Stands in for a lane that could not be opened: fails every request.
#[derive(Debug)]
pub(super) struct FailingLane;

impl LeafLane for FailingLane {
    fn answer(&mut self, mapping: &mut Mapping, _: &mut BatchPieces) {
        mapping.answer = Answer::Refused(FailKind::Io);
    }
}
