//! What a job must hold before it may go on: ranges that nobody else changes meanwhile, and the
//! turn to sync a file.
//!
//! Invariants: all or nothing, in the order of files and offsets, so that two jobs never wait for
//! each other. Whoever gets nothing is woken through its bell and tries again.

use std::ops::Range;
use std::sync::Arc;

use block::{FileId, PIECES_MAX, Target};
use kernel_io::{Kernel, Notifier, RangeGuard};

use crate::job::Job;

/// Which ranges of which files; in order once [`Wanted::merge`] was called.
#[derive(Debug, Default)]
struct Wanted {
    ranges: [Option<(FileId, Range<u64>)>; PIECES_MAX],
}

impl Wanted {
    /// Sorts, and makes one range of those that touch in one file.
    fn merge(&mut self) {
        self.ranges.sort_by_key(|wanted| {
            // What is empty goes last.
            wanted.as_ref().map_or((u32::MAX, u64::MAX), |(file, range)| (file.0, range.start))
        });
        for place in (1..PIECES_MAX).rev() {
            let (before, after) = self.ranges.split_at_mut(place);
            if let (Some((file, range)), Some((next_file, next))) =
                (&mut before[place - 1], &after[0])
                && file == next_file
                && next.start <= range.end
            {
                range.end = range.end.max(next.end);
                after[0] = None;
            }
        }
    }
}

/// Holds all ranges that the job changes in files where that may need a read-modify-write: those
/// whose block is larger than a sector.
pub(crate) fn hold_changes(job: &mut Job, kernel: &mut Kernel, bell: &Arc<Notifier>) -> bool {
    if !job.operation.is_change() {
        return true;
    }
    let mut wanted = Wanted::default();
    let mut any = false;
    for (piece, place) in job.pieces.as_slice().iter().zip(&mut wanted.ranges) {
        let Target::File { file, offset } = piece.target else { continue };
        let alignment = u64::from(kernel.file(file).offset_alignment());
        if alignment > block::SECTOR_BYTES {
            let start = offset.0 - offset.0 % alignment;
            *place = Some((file, start..(offset.0 + piece.count.0).next_multiple_of(alignment)));
            any = true;
        }
    }
    if !any {
        return true;
    }
    wanted.merge();
    hold_all(job, &wanted, |file, range| kernel.file(file).ranges().try_hold(range, bell))
}

/// Holds the turn to sync every file of the job.
pub(crate) fn hold_sync_turns(job: &mut Job, kernel: &mut Kernel, bell: &Arc<Notifier>) -> bool {
    let mut wanted = Wanted::default();
    for (piece, place) in job.pieces.as_slice().iter().zip(&mut wanted.ranges) {
        if let Target::File { file, .. } = piece.target {
            *place = Some((file, 0..1));
        }
    }
    wanted.merge();
    hold_all(job, &wanted, |file, range| kernel.file(file).sync_turn().try_hold(range, bell))
}

fn hold_all(
    job: &mut Job,
    wanted: &Wanted,
    mut try_hold: impl FnMut(FileId, Range<u64>) -> Option<RangeGuard>,
) -> bool {
    for (file, range) in wanted.ranges.iter().flatten() {
        match try_hold(*file, range.clone()) {
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
        let mut wanted = Wanted::default();
        for (place, (file, range)) in wanted.ranges.iter_mut().zip(ranges) {
            *place = Some((FileId(*file), range.clone()));
        }
        wanted.merge();
        let found: Vec<_> =
            wanted.ranges.into_iter().flatten().map(|(file, range)| (file.0, range)).collect();
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
