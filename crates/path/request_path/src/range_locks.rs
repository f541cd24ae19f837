//! What a job must hold before it may go on: ranges that nobody else changes meanwhile.
//!
//! Invariants: all or nothing, in the order of storage and offsets, so that two jobs never wait for
//! each other. Whoever gets nothing is woken through its notifier and tries again (`block::RangeLock`).

use std::ops::Range;
use std::task::Waker;

use block::{RangeGuard, StorageId};
use kernel_io::EngineKernel;

use crate::io_request::IoRequest;
use crate::storage_backends::FileAndChannelBackends;

/// The file ranges that a request has to lock, in order once [`LockRanges::merge`] was called. Kept for their capacity.
#[derive(Debug, Default)]
pub(crate) struct LockRanges {
    ranges: Vec<(StorageId, Range<u64>)>,
}

impl LockRanges {
    /// Sorts, and makes one range of those that touch in one storage.
    fn merge(&mut self) {
        self.ranges.sort_unstable_by_key(|(storage, range)| (*storage, range.start));
        self.ranges.dedup_by(|(next_storage, next), (storage, range)| {
            let touch = storage == next_storage && next.start <= range.end;
            if touch {
                range.end = range.end.max(next.end);
            }
            touch
        });
    }
}

/// Holds all ranges that the job changes in storage where that may need a read-modify-write: those
/// whose block is larger than a sector.
pub(crate) fn lock_changed_ranges(
    job: &mut IoRequest,
    wanted: &mut LockRanges,
    storages: &mut FileAndChannelBackends<'_, impl EngineKernel>,
    waker: &Waker,
) -> bool {
    if !job.operation.is_change() {
        return true;
    }
    wanted.ranges.clear();
    for piece in &job.pieces {
        let Some((storage, offset)) = piece.target.storage() else { continue };
        let blocks = storages.medium(storage).blocks_to_lock(&(offset.0..offset.0 + piece.count.0));
        wanted.ranges.extend(blocks.map(|blocks| (storage, blocks)));
    }
    if wanted.ranges.is_empty() {
        return true;
    }
    wanted.merge();
    // Nothing is taken if something is missing: what is given back wakes others.
    let mut is_free = |(storage, range): &(StorageId, Range<u64>)| {
        storages.medium(*storage).ranges().is_free(range, waker)
    };
    if wanted.ranges.len() > 1 && !wanted.ranges.iter().all(&mut is_free) {
        return false;
    }
    lock_all(job, wanted, |storage, range| storages.medium(storage).ranges().try_lock(range, waker))
}

fn lock_all(
    job: &mut IoRequest,
    wanted: &LockRanges,
    mut try_lock: impl FnMut(StorageId, Range<u64>) -> Option<RangeGuard>,
) -> bool {
    for (storage, range) in &wanted.ranges {
        match try_lock(*storage, range.clone()) {
            Some(guard) => job.range_guards.push(guard),
            None => {
                job.range_guards.clear();
                return false;
            }
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use block::FileId;

    #[track_caller]
    fn check(ranges: &[(u32, Range<u64>)], expected: &[(u32, Range<u64>)]) {
        let of = |file: u32| StorageId::File(FileId(file));
        let ranges = ranges.iter().map(|(file, range)| (of(*file), range.clone())).collect();
        let mut wanted = LockRanges { ranges };
        wanted.merge();
        let expected = expected.iter().map(|(file, range)| (of(*file), range.clone()));
        assert_eq!(wanted.ranges, expected.collect::<Vec<_>>());
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
