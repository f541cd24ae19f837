//! What the header of an image says, which others may change: its size and its snapshots, as far as they are known.
//!
//! Threads: read by any, without waiting for the cluster; looked at by the thread that watches and by control threads.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use block::SnapshotInfo;

use crate::image::Image;

/// Size and snapshots.
#[derive(Debug)]
pub(crate) struct Header {
    /// In bytes.
    size: AtomicU64,
    /// The oldest first.
    snapshots: Mutex<Vec<SnapshotInfo>>,
}

impl Header {
    /// Of an image of that size, of which no snapshots are known yet.
    pub(crate) fn new(size: u64) -> Arc<Self> {
        Arc::new(Self { size: AtomicU64::new(size), snapshots: Mutex::default() })
    }

    pub(crate) fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    pub(crate) fn snapshots(&self) -> MutexGuard<'_, Vec<SnapshotInfo>> {
        self.snapshots.lock().expect("no holder of this lock panics")
    }

    /// Asks for both. Blocks.
    pub(crate) fn look(&self, name: &str, image: &Image) {
        match image.size() {
            Ok(now) => {
                let before = self.size.swap(now, Ordering::AcqRel);
                if before != now {
                    tracing::info!("disk {name}: the image has now {now} bytes, and had {before}");
                }
            }
            Err(error) => tracing::warn!("disk {name}: its size cannot be had: {error}"),
        }
        self.look_for_snapshots(name, image);
    }

    /// Asks for the snapshots. Blocks.
    pub(crate) fn look_for_snapshots(&self, name: &str, image: &Image) {
        match image.snapshots() {
            Ok(now) => *self.snapshots() = now,
            Err(error) => tracing::warn!("disk {name}: its snapshots cannot be had: {error}"),
        }
    }
}
