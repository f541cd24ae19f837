//! What all lanes of a snapshot share, on the side of its guests and on that of its readers: which clusters are preserved, who is
//! at which bytes, and whether it is broken.
//!
//! Invariants: a cluster is pending until its bytes of the instant are on the target; as long as it is, the source has
//! them. It stops being pending under a lock of all of it. Who reads bytes on the source holds a lock of these from before
//! it looks whether they are pending to the end of the read. So who finds a cluster not pending may change it at once.
//! A snapshot that is broken stays so; a read that began before looks once more when it is over.
//! Threads: any.

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use bitmaps::{BitmapError, CopyBacklog, DirtyBitmap, Granularity};
use block::{DiskSize, FailKind, LaneError, Node, RangeGuard, RangeLock};

use super::{CLUSTER_BYTES_MAX, CLUSTER_BYTES_MIN, CopyBeforeWriteError, CopyBeforeWriteSettings};

/// What was preserved of a disk as it was at an instant, and what is still to be.
#[derive(Debug)]
pub struct SnapshotState {
    name: String,
    size: DiskSize,
    /// The clusters whose bytes only the source has.
    pending: Arc<DirtyBitmap>,
    /// Those that cannot be read any more.
    gone: DirtyBitmap,
    locks: RangeLock,
    broken: OnceLock<FailKind>,
    /// What a job has to copy that copies all of it to the same target, if there is one.
    job: OnceLock<Arc<CopyBacklog>>,
    watcher: OnceLock<BreakWatcher>,
}

/// Who is told when a snapshot breaks.
struct BreakWatcher(Box<dyn Fn(FailKind) + Send + Sync>);

impl fmt::Debug for BreakWatcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BreakWatcher")
    }
}

impl SnapshotState {
    /// Nothing is preserved of a source, which is as large as its target at most.
    pub fn of(
        name: &str,
        (source, target): (&dyn Node, &dyn Node),
        settings: CopyBeforeWriteSettings,
    ) -> Result<Arc<Self>, CopyBeforeWriteError> {
        let min = settings.min_cluster_bytes;
        let unit = u64::from(target.limits().allocation_unit.get());
        let cluster = min.max(unit).max(CLUSTER_BYTES_MIN);
        let cluster = Granularity::new(cluster)
            .filter(|it| it.bytes() <= CLUSTER_BYTES_MAX && (min == 0 || min.is_power_of_two()))
            .ok_or(CopyBeforeWriteError::Cluster(min))?;
        let (size, found) = (source.size(), target.size());
        if found.0 < size.0 {
            let (target, source_name) = (target.name().to_owned(), source.name().to_owned());
            let (found, wanted) = (found.0.0, size.0.0);
            return Err(CopyBeforeWriteError::SmallTarget { target, found, source_name, wanted });
        }
        Ok(Arc::new(Self::new(name, size, cluster)?))
    }

    /// Nothing is preserved of a disk of that size.
    fn new(name: &str, size: DiskSize, cluster: Granularity) -> Result<Self, BitmapError> {
        let pending = Arc::new(DirtyBitmap::new(size, cluster)?);
        pending.set_all();
        let gone = DirtyBitmap::new(size, cluster)?;
        Ok(Self {
            name: name.to_owned(),
            size,
            pending,
            gone,
            locks: RangeLock::default(),
            broken: OnceLock::new(),
            job: OnceLock::new(),
            watcher: OnceLock::new(),
        })
    }

    /// What a job has to copy that copies these dirty bytes of the snapshot, of the same granularity, to its target. Once, and
    /// before the first change can come.
    ///
    /// # Panics
    /// If a job copies it already.
    pub fn begin_job(&self, dirty: DirtyBitmap) -> Arc<CopyBacklog> {
        let (pending, locks) = (Arc::clone(&self.pending), self.locks.clone());
        self.begin(CopyBacklog::of_instant(dirty, pending, locks))
    }

    /// The same of a job that copies all that is kept.
    ///
    /// # Panics
    /// If a job copies it already.
    pub fn begin_job_of_all(&self) -> Arc<CopyBacklog> {
        let (pending, locks) = (Arc::clone(&self.pending), self.locks.clone());
        self.begin(CopyBacklog::of_whole_instant(pending, locks))
    }

    fn begin(&self, backlog: Arc<CopyBacklog>) -> Arc<CopyBacklog> {
        self.job.set(Arc::clone(&backlog)).expect("a snapshot has one job");
        backlog
    }

    /// Has this called when the snapshot breaks, by the iothread that breaks it: it must not block. Once, and before the first
    /// change can come.
    ///
    /// # Panics
    /// If somebody else is to be told.
    pub fn watch(&self, has_broken: impl Fn(FailKind) + Send + Sync + 'static) {
        let set = self.watcher.set(BreakWatcher(Box::new(has_broken)));
        assert!(set.is_ok(), "a snapshot has one watcher");
    }

    /// Nothing is kept but what is marked in bitmaps that come later ([`SnapshotState::keep`]). Before the first change can come.
    pub fn keep_nothing(&self) {
        self.pending.clear(0..self.size.0.0);
    }

    /// What is marked in that bitmap is kept. Before the first change can come.
    pub fn keep(&self, bitmap: &DirtyBitmap) {
        self.pending.merge(bitmap);
    }

    /// The clusters that are still to be preserved.
    pub fn pending(&self) -> &DirtyBitmap {
        &self.pending
    }

    /// The size of the disk at the instant.
    pub fn size(&self) -> DiskSize {
        self.size
    }

    /// How many bytes are preserved together.
    pub fn cluster_bytes(&self) -> u64 {
        self.cluster().bytes()
    }

    /// The same as a granularity.
    pub fn cluster(&self) -> Granularity {
        self.pending.granularity()
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
        // The job counts what it has not copied.
        if let Some(job) = self.job.get() {
            job.copied(clusters.clone());
        }
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
            if let Some(BreakWatcher(tell)) = self.watcher.get() {
                tell(kind);
            }
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
