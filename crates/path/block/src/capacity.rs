//! The size of a disk as its clients see it, which may change while they are served.
//!
//! Where it stands in the life of a request: a front end looks at it once for each batch, before it decodes.
//!
//! Threads: written by control threads, read by all iothreads; written so seldom that the cache line stays
//! with its readers.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::{ByteCount, DiskSize};

/// The size of a disk as its clients see it; it may change while they are served.
#[derive(Debug)]
pub struct Capacity(AtomicU64);

impl Capacity {
    /// A disk of that size.
    pub fn new(size: DiskSize) -> Self {
        Self(AtomicU64::new(size.0.0))
    }

    /// The size now.
    pub fn get(&self) -> DiskSize {
        DiskSize(ByteCount(self.0.load(Ordering::Acquire)))
    }

    /// Changes the size. Whoever hears of it after this, and asks for what is new, is served: store and
    /// load are a pair, so a front end that sees such a request sees the size too.
    pub fn set(&self, size: DiskSize) {
        self.0.store(size.0.0, Ordering::Release);
    }
}
