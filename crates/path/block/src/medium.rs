//! What an engine must know of storage, and what all users of the storage share, whatever it is: a file, a channel.
//!
//! Where it stands in the life of a request: whoever carries out pieces asks it how to cut and stage them, which
//! blocks a change has to lock, how a write becomes durable, and whether an earlier sync has failed.
//!
//! Invariants: alignments are powers of two and stay as they are. A failed sync is remembered until the storage is opened
//! anew. Threads: shared by all iothreads and control threads.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::{Durability, RangeLock, SECTOR_BYTES, SyncCoalescer, TakeoverOwner};

/// What all users of one protocol node's storage share, whatever its kind: name, alignments, range locks, turns to
/// sync, a failed sync.
#[derive(Debug)]
pub struct Medium {
    name: String,
    alignments: Alignments,
    stable_writes: DurableWriteMethod,
    transfer_max: u64,
    ranges: RangeLock,
    sync_turns: SyncCoalescer,
    failed_sync: AtomicBool,
    unfenced: AtomicUsize,
    unresponsive: AtomicBool,
    owned_by_other: AtomicBool,
}

/// What operations on storage must be a multiple of, in bytes. Powers of two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Alignments {
    /// Addresses of memory that is read into or written from.
    pub memory: u32,
    /// Places, and the lengths of all memory segments, of reads and writes.
    pub offset: u32,
    /// Places and lengths of ranges that are discarded or zeroed.
    pub allocation: u32,
}

impl Alignments {
    /// Of storage that takes any bytes.
    pub const NONE: Self = Self { memory: 1, offset: 1, allocation: 1 };
}

/// How a write becomes durable that has to be when it completes ([`crate::Durability::Stable`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DurableWriteMethod {
    /// By itself: a write and a sync in one (RWF_DSYNC, FUA).
    ByThemselves,
    /// By a sync after it.
    BySync,
}

impl Medium {
    /// Storage that messages call so. What it is, its opener has found out.
    pub fn new(name: String, alignments: Alignments, stable_writes: DurableWriteMethod) -> Self {
        let Alignments { memory, offset, allocation } = alignments;
        assert!([memory, offset, allocation].iter().all(|bytes| bytes.is_power_of_two()));
        Self {
            name,
            alignments,
            stable_writes,
            transfer_max: u64::MAX,
            ranges: RangeLock::default(),
            sync_turns: SyncCoalescer::default(),
            failed_sync: AtomicBool::new(false),
            unfenced: AtomicUsize::new(0),
            unresponsive: AtomicBool::new(false),
            owned_by_other: AtomicBool::new(false),
        }
    }

    /// The same, that reads and writes at most so many bytes at once: a multiple of the alignments of memory and offset.
    #[must_use]
    pub fn with_transfer_max(self, bytes: u64) -> Self {
        let Alignments { memory, offset, .. } = self.alignments;
        assert!(bytes > 0 && bytes.is_multiple_of(memory.max(offset).into()));
        Self { transfer_max: bytes, ..self }
    }

    /// What messages call it: the path of a file.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What operations must be a multiple of.
    pub fn alignments(&self) -> Alignments {
        self.alignments
    }

    /// How writes become durable.
    pub fn stable_writes(&self) -> DurableWriteMethod {
        self.stable_writes
    }

    /// As what a write is carried out that is to be so durable: it is made stable afterwards if it cannot be by itself.
    pub fn write_as(&self, wanted: Durability) -> Durability {
        match self.stable_writes {
            DurableWriteMethod::ByThemselves => wanted,
            DurableWriteMethod::BySync => Durability::Cached,
        }
    }

    /// The most bytes that are read or written at once.
    pub fn transfer_max(&self) -> u64 {
        self.transfer_max
    }

    /// The whole blocks inside a range that can be discarded or zeroed; empty, at the range's end, if there is none.
    pub fn allocation_blocks(&self, bytes: &Range<u64>) -> Range<u64> {
        let block = u64::from(self.alignments.allocation);
        let start = bytes.start.next_multiple_of(block);
        let end = bytes.end - bytes.end % block;
        if start < end { start..end } else { bytes.end..bytes.end }
    }

    /// The blocks that a change of these bytes may have to read and write back, which nobody else may change
    /// meanwhile; `None` if no guest's request cuts a block.
    pub fn blocks_to_lock(&self, bytes: &Range<u64>) -> Option<Range<u64>> {
        let block = u64::from(self.alignments.offset);
        (block > SECTOR_BYTES)
            .then(|| bytes.start - bytes.start % block..bytes.end.next_multiple_of(block))
    }

    /// Which ranges are being changed now. Only used where a change can need a read-modify-write.
    pub fn ranges(&self) -> &RangeLock {
        &self.ranges
    }

    /// Whose turn it is to sync, and whom a sync has served.
    pub fn sync_turns(&self) -> &SyncCoalescer {
        &self.sync_turns
    }

    /// Notes that a sync has failed. The page cache forgets such data, so no later sync may succeed.
    pub fn remember_failed_sync(&self) {
        // A lone flag: nothing else is published by it.
        self.failed_sync.store(true, Ordering::Relaxed);
    }

    /// Whether a sync has ever failed.
    pub fn has_failed_sync(&self) -> bool {
        self.failed_sync.load(Ordering::Relaxed)
    }

    /// Notes that changes of a channel were abandoned that the storage may still carry out, whatever is written
    /// meanwhile: nothing is begun on it any more. Whoever waits for a range of it is woken, and gives up.
    pub fn abandoned(&self) {
        self.unfenced.fetch_add(1, Ordering::Release);
        self.ranges.wake_all();
    }

    /// Notes that those of one channel are over, or will never be carried out.
    pub fn fenced(&self) {
        let before = self.unfenced.fetch_sub(1, Ordering::Release);
        assert_ne!(before, 0, "what is fenced was abandoned");
    }

    /// Whether it may still carry out abandoned changes.
    pub fn is_unfenced(&self) -> bool {
        self.unfenced.load(Ordering::Acquire) > 0
    }

    /// Notes that somebody has waited for it as long as a stop may take, and has given it up.
    pub fn remember_unresponsive(&self) {
        // A lone flag, which only shortens waits.
        self.unresponsive.store(true, Ordering::Relaxed);
    }

    /// Notes that it has carried something out.
    pub fn note_answer(&self) {
        if self.is_unresponsive() {
            self.unresponsive.store(false, Ordering::Relaxed);
        }
    }

    /// Whether it was given up and has carried nothing out since: whoever has to end does not wait for it again.
    pub fn is_unresponsive(&self) -> bool {
        self.unresponsive.load(Ordering::Relaxed)
    }

    /// Which process may change it.
    pub fn owner(&self) -> TakeoverOwner {
        if self.owned_by_other.load(Ordering::Acquire) {
            TakeoverOwner::Other
        } else {
            TakeoverOwner::This
        }
    }

    /// Notes which process may change it. For whoever holds the locks on it.
    pub fn set_owner(&self, owner: TakeoverOwner) {
        self.owned_by_other.store(owner == TakeoverOwner::Other, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn medium(offset: u32, allocation: u32) -> Medium {
        let alignments = Alignments { memory: 1, offset, allocation };
        Medium::new("medium".to_owned(), alignments, DurableWriteMethod::BySync)
    }

    #[track_caller]
    fn check_whole(bytes: Range<u64>, block: u32, expected: Range<u64>) {
        let found = medium(1, block).allocation_blocks(&bytes);
        assert_eq!(found, expected, "{bytes:?} in blocks of {block}");
    }

    #[test]
    fn whole_blocks_are_those_that_lie_inside() {
        check_whole(0..8192, 4096, 0..8192);
        check_whole(1..8192, 4096, 4096..8192);
        check_whole(1..8191, 4096, 8191..8191);
        check_whole(4096..4608, 4096, 4608..4608);
        check_whole(512..12800, 4096, 4096..12288);
        check_whole(5..9, 1, 5..9);
    }

    #[test]
    fn a_change_locks_the_blocks_that_it_touches_where_requests_may_cut_them() {
        assert_eq!(medium(512, 1).blocks_to_lock(&(0..512)), None);
        assert_eq!(medium(4096, 1).blocks_to_lock(&(512..1024)), Some(0..4096));
        assert_eq!(medium(4096, 1).blocks_to_lock(&(4000..4100)), Some(0..8192));
        assert_eq!(medium(4096, 1).blocks_to_lock(&(4096..8192)), Some(4096..8192));
    }
}
