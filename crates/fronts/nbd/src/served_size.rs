//! The size of a disk while connections use it, which may become smaller or larger.
//!
//! Where it stands in the life of a request: a connection looks at it once for each batch.
//!
//! Invariants: a client knows the size that it was told; what the disk does not have any more is out of range for it.
//! Threads: written by control threads, read by all iothreads.

use std::sync::atomic::{AtomicU64, Ordering};

use block::{ByteCount, DiskSize, SECTOR_BYTES};

/// The size of a disk, as its connections see it.
#[derive(Debug)]
pub struct ServedSize(AtomicU64);

impl ServedSize {
    /// A disk of that size.
    pub fn new(size: DiskSize) -> Self {
        Self(AtomicU64::new(size.0.0))
    }

    /// The disk has another size now. Whoever hears of it after this is served.
    pub fn set(&self, size: DiskSize) {
        self.0.store(size.0.0, Ordering::Release);
    }

    /// Whole sectors that a client may use which was told that size.
    pub(crate) fn for_client(&self, told: DiskSize) -> DiskSize {
        let size = self.0.load(Ordering::Acquire);
        DiskSize(ByteCount(told.0.0.min(size - size % SECTOR_BYTES)))
    }
}
