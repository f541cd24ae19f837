//! What a worker does with a chunk that is compared, and copied if it differs.

use super::CopyWorker;
use crate::chunk::{Chunk, Step, differing_parts};
use crate::job::CopySide;

/// What is read to compare bytes of which the source says that they are zeroes, or not.
pub(super) fn comparison(is_zero: bool) -> (Step, Option<Step>) {
    let target = Step::Read(CopySide::Target);
    if is_zero { (target, None) } else { (Step::Read(CopySide::Source), Some(target)) }
}

impl CopyWorker {
    /// Counts what was compared, and copies it again if it differs.
    pub(super) fn follow_verified(&mut self, chunk: &mut Chunk, difference: Option<usize>) {
        self.job.count_compared(chunk.len() as u64);
        if difference.is_none() {
            return;
        }
        for part in differing_parts(chunk, self.job.compared_granule()) {
            self.job.note_difference(part);
        }
        self.plan_writes(chunk);
    }
}
