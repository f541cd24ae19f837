//! What a job must hold before it may go on: ranges that nobody else changes meanwhile.
//!
//! Invariants: all or nothing, in the order of files and offsets, so that two jobs never wait for
//! each other. Whoever gets nothing is woken through its bell and tries again (`block::RangeLock`).

use std::ops::Range;
use std::task::Waker;

use block::{FileId, RangeGuard, Target};
use kernel_io::Kernel;

use crate::job::Job;

/// Which ranges of which files; in order once [`Wanted::merge`] was called. Kept for its room.
#[derive(Debug, Default)]
pub(crate) struct Wanted {
    ranges: Vec<(FileId, Range<u64>)>,
}

impl Wanted {
    /// Sorts, and makes one range of those that touch in one file.
    fn merge(&mut self) {
        self.ranges.sort_unstable_by_key(|(file, range)| (file.0, range.start));
        self.ranges.dedup_by(|(next_file, next), (file, range)| {
            let touch = file == next_file && next.start <= range.end;
            if touch {
                range.end = range.end.max(next.end);
            }
            touch
        });
    }
}

/// Holds all ranges that the job changes in files where that may need a read-modify-write: those
/// whose block is larger than a sector.
pub(crate) fn hold_changes(
    job: &mut Job,
    wanted: &mut Wanted,
    kernel: &mut Kernel,
    waker: &Waker,
) -> bool {
    if !job.operation.is_change() {
        return true;
    }
    wanted.ranges.clear();
    for piece in &job.pieces {
        let Target::File { file, offset } = piece.target else { continue };
        let blocks = kernel.medium(file).blocks_to_lock(&(offset.0..offset.0 + piece.count.0));
        wanted.ranges.extend(blocks.map(|blocks| (file, blocks)));
    }
    if wanted.ranges.is_empty() {
        return true;
    }
    wanted.merge();
    hold_all(job, wanted, |file, range| kernel.medium(file).ranges().try_lock(range, waker))
}

fn hold_all(
    job: &mut Job,
    wanted: &Wanted,
    mut try_lock: impl FnMut(FileId, Range<u64>) -> Option<RangeGuard>,
) -> bool {
    for (file, range) in &wanted.ranges {
        match try_lock(*file, range.clone()) {
            Some(guard) => job.holds.push(guard),
            None => {
                job.holds.clear();
                return false;
            }
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(ranges: &[(u32, Range<u64>)], expected: &[(u32, Range<u64>)]) {
        let ranges = ranges.iter().map(|(file, range)| (FileId(*file), range.clone())).collect();
        let mut wanted = Wanted { ranges };
        wanted.merge();
        let found: Vec<_> =
            wanted.ranges.into_iter().map(|(file, range)| (file.0, range)).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn ranges_are_held_in_order_and_none_twice() {
        check(&[(1, 0..4096), (0, 0..4096)], &[(0, 0..4096), (1, 0..4096)]);
        check(&[(0, 4096..8192), (0, 0..4096)], &[(0, 0..8192)]);
        check(&[(0, 0..4096), (0, 0..4096), (0, 0..4096), (0, 0..4096)], &[(0, 0..4096)]);
        check(&[(0, 8192..9000), (0, 0..4096)], &[(0, 0..4096), (0, 8192..9000)]);
        check(&[(0, 0..8192), (1, 0..1), (0, 4096..5000)], &[(0, 0..8192), (1, 0..1)]);
        check(&[], &[]);
    }
}
