//! What all lanes of a snapshot share, on the side of its guests and on that of its readers: which clusters are preserved, who is
//! at which bytes, and whether it is broken.
//!
//! Invariants: a cluster is pending until its bytes of the instant are on the target; as long as it is, the source has
//! them. It stops being pending under a lock of all of it. Who reads bytes on the source holds a lock of these from before
//! it looks whether they are pending to the end of the read. So who finds a cluster not pending may change it at once.
//! A snapshot that is broken stays so; a read that began before looks once more when it is over.
//! Threads: any.

use std::ops::Range;
use std::sync::OnceLock;

use bitmaps::{BitmapError, DirtyBitmap, Granularity};
use block::{DiskSize, FailKind, LaneError, Node, RangeGuard, RangeLock};

/// What was preserved of a disk as it was at an instant, and what is still to be.
#[derive(Debug)]
pub struct SnapshotState {
    name: String,
    size: DiskSize,
    /// The clusters whose bytes only the source has.
    pending: DirtyBitmap,
    /// Those that cannot be read any more.
    gone: DirtyBitmap,
    locks: RangeLock,
    broken: OnceLock<FailKind>,
}

impl SnapshotState {
    /// Nothing is preserved of a disk of that size.
    pub(super) fn new(
        name: &str,
        size: DiskSize,
        cluster: Granularity,
    ) -> Result<Self, BitmapError> {
        let pending = DirtyBitmap::new(size, cluster)?;
        pending.set_all();
        let gone = DirtyBitmap::new(size, cluster)?;
        let (locks, broken) = (RangeLock::default(), OnceLock::new());
        Ok(Self { name: name.to_owned(), size, pending, gone, locks, broken })
    }

    /// The size of the disk at the instant.
    pub fn size(&self) -> DiskSize {
        self.size
    }

    /// How many bytes are preserved together.
    pub fn cluster_bytes(&self) -> u64 {
        self.pending.granularity().bytes()
    }

    /// The first of these bytes that are still to be preserved: as many as follow each other.
    pub fn next_pending(&self, bytes: Range<u64>) -> Option<Range<u64>> {
        self.pending.next_dirty(bytes)
    }

    /// How many bytes are still to be preserved, a part of a cluster counted as if it were whole.
    pub fn pending_bytes(&self) -> u64 {
        self.pending.count_bytes()
    }

    /// The whole clusters that these bytes touch, cut where the disk ends.
    pub fn clusters_of(&self, bytes: &Range<u64>) -> Range<u64> {
        let cluster = self.cluster_bytes();
        let end = bytes.end.checked_next_multiple_of(cluster).unwrap_or(u64::MAX);
        bytes.start - bytes.start % cluster..end.min(self.size.0.0)
    }

    /// Locks bytes: whole clusters, to preserve them, or any, to read them.
    pub async fn lock(&self, bytes: Range<u64>) -> RangeGuard {
        self.locks.lock(bytes).await
    }

    /// These whole clusters, which the caller has locked, are on the target, or need not be there.
    pub fn set_preserved(&self, clusters: Range<u64>) {
        self.pending.clear(clusters);
    }

    /// These whole clusters, which the caller has locked, are not read any more.
    pub fn forget(&self, clusters: Range<u64>) {
        self.gone.set(clusters.clone());
        self.pending.clear(clusters);
    }

    /// Whether all of these bytes can be read.
    pub fn is_there(&self, bytes: Range<u64>) -> bool {
        !self.gone.is_any_dirty(bytes)
    }

    /// Fails if the snapshot is broken.
    pub fn check(&self) -> Result<(), FailKind> {
        self.broken.get().map_or(Ok(()), |_| Err(FailKind::Io))
    }

    /// Why it is broken, if it is.
    pub fn broken(&self) -> Option<FailKind> {
        self.broken.get().copied()
    }

    /// Breaks it: from now on what guests change is not preserved. Whoever does so says why.
    pub(super) fn break_for(&self, kind: FailKind) {
        if self.broken.set(kind).is_ok() {
            tracing::warn!(
                "node {}: a change could not be preserved ({kind:?}); the snapshot is broken",
                self.name
            );
        }
    }

    /// Fails if the disk does not have the size of the instant any more.
    pub(super) fn check_size(&self, node: &dyn Node, found: DiskSize) -> Result<(), LaneError> {
        if found == self.size {
            return Ok(());
        }
        let said = format!("it was kept with {} bytes, and has {} now", self.size.0.0, found.0.0);
        Err(LaneError { node: node.name().to_owned(), source: std::io::Error::other(said) })
    }
}
