//! What all lanes of a snapshot share, on the side of its guests and on that of its readers: which clusters are preserved, who is
//! at which bytes, and whether it is broken.
//!
//! Invariants: a cluster is pending until its bytes of the instant are on the target; as long as it is, the source has
//! them. It stops being pending under a lock of all of it. Who reads bytes on the source holds a lock of these from before
//! it looks whether they are pending to the end of the read. So who finds a cluster not pending may change it at once.
//! A snapshot that is broken, or given up, stays so; a read that began before looks once more when it is over.
//! Threads: any.

use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, OnceLock};
use std::task::Waker;

use bitmaps::{BitmapError, BitmapRefusal, CopyBacklog, DirtyBitmap, Granularity};
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
    /// Whether nobody needs it any more, broken before or not.
    is_given_up: AtomicBool,
    /// Held as long as it is whole: who waits for that is woken when it breaks.
    whole: (RangeLock, Mutex<Option<RangeGuard>>),
    /// How many changes of guests have clusters copied just now.
    copying: AtomicUsize,
    /// What a job has to copy that copies all of it to the same target, if there is one.
    job: OnceLock<Arc<CopyBacklog>>,
    watcher: OnceLock<BreakWatcher>,
}

/// What becomes of a snapshot that a job copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SnapshotNews {
    /// It has broken.
    Broken(FailKind),
    /// It was given up, and what guests' changes have copied is over.
    Unused,
}

/// Who is told what becomes of a snapshot.
struct BreakWatcher(Box<dyn Fn(SnapshotNews) + Send + Sync>);

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
        let whole = RangeLock::default();
        let is_whole = whole.try_lock(0..1, Waker::noop());
        Ok(Self {
            name: name.to_owned(),
            size,
            pending,
            gone,
            locks: RangeLock::default(),
            broken: OnceLock::new(),
            is_given_up: AtomicBool::new(false),
            whole: (whole, Mutex::new(is_whole)),
            copying: AtomicUsize::new(0),
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

    /// Has this called when something becomes of the snapshot, by the iothread where it does: it must not block. Once, and before
    /// the first change can come.
    ///
    /// # Panics
    /// If somebody else is to be told.
    pub fn watch(&self, hear: impl Fn(SnapshotNews) + Send + Sync + 'static) {
        let set = self.watcher.set(BreakWatcher(Box::new(hear)));
        assert!(set.is_ok(), "a snapshot has one watcher");
    }

    fn tell(&self, news: SnapshotNews) {
        if let Some(BreakWatcher(tell)) = self.watcher.get() {
            tell(news);
        }
    }

    /// Nobody needs it any more: guests go on at once, those that wait for a copy as well.
    pub fn give_up(&self) {
        self.is_given_up.store(true, Ordering::SeqCst);
        self.end(FailKind::Cancelled);
    }

    /// Whether changes of guests have clusters copied just now. Once it was given up there is [`SnapshotNews::Unused`] when the last
    /// of them is over.
    pub fn is_copying(&self) -> bool {
        // Beside the one in `begin_copying`: either this finds the copy, or that finds that the snapshot is broken.
        fence(Ordering::SeqCst);
        self.copying.load(Ordering::SeqCst) > 0
    }

    /// A change of a guest has clusters copied as long as this is there.
    pub(super) fn begin_copying(self: &Arc<Self>) -> CopyingGuard {
        self.copying.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        CopyingGuard(Arc::clone(self))
    }

    /// Has this waker used when it breaks, or at once.
    pub(super) fn wake_if_broken(&self, waker: &Waker) {
        if self.whole.0.is_free(&(0..1), waker) {
            waker.wake_by_ref();
        }
    }

    /// It is not whole any more; whether that is new.
    fn end(&self, kind: FailKind) -> bool {
        let is_new = self.broken.set(kind).is_ok();
        drop(self.whole.1.lock().expect("nobody panics here").take());
        is_new
    }

    /// Nothing is kept but what is marked in bitmaps that come later ([`SnapshotState::keep`]). Before the first change can come.
    pub fn keep_nothing(&self) {
        self.pending.clear(0..self.size.0.0);
    }

    /// Only what is marked in that bitmap is kept, and can be read. Before the first change can come.
    pub fn keep_only(&self, name: &str, bitmap: &DirtyBitmap) -> Result<(), CopyBeforeWriteError> {
        if bitmap.size() != self.size {
            let (target, source_bytes) = (self.size.0.0, bitmap.size().0.0);
            let (name, why) = (name.to_owned(), BitmapRefusal::Sizes { target, source_bytes });
            return Err(CopyBeforeWriteError::OtherBitmap { name, why });
        }
        self.keep_nothing();
        self.keep(bitmap);
        self.gone.set_all();
        let mut at = 0;
        while let Some(run) = self.pending.next_dirty(at..self.size.0.0) {
            at = run.end;
            self.gone.clear(run);
        }
        Ok(())
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
        if self.end(kind) {
            tracing::warn!(
                "node {}: a change could not be preserved ({kind:?}); the snapshot is broken",
                self.name
            );
            self.tell(SnapshotNews::Broken(kind));
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

/// A change of a guest has clusters copied.
#[derive(Debug)]
#[must_use = "dropped, the copy is over"]
pub(super) struct CopyingGuard(Arc<SnapshotState>);

impl Drop for CopyingGuard {
    fn drop(&mut self) {
        let Self(state) = self;
        let is_last = state.copying.fetch_sub(1, Ordering::SeqCst) == 1;
        if is_last && state.is_given_up.load(Ordering::SeqCst) {
            state.tell(SnapshotNews::Unused);
        }
    }
}

#[cfg(test)]
mod tests {
    use block::ByteCount;

    use super::*;

    const SIZE: DiskSize = DiskSize(ByteCount(1 << 20));

    /// What is told when the last copy of a guest's change ends.
    #[track_caller]
    fn check(becomes: impl Fn(&SnapshotState), expected: &[SnapshotNews]) {
        let cluster = Granularity::new(1 << 16).unwrap();
        let state = Arc::new(SnapshotState::new("disk", SIZE, cluster).unwrap());
        let told = Arc::<Mutex<Vec<_>>>::default();
        let hears = Arc::clone(&told);
        state.watch(move |news| hears.lock().unwrap().push(news));
        let copying = [state.begin_copying(), state.begin_copying()];
        becomes(&state);
        told.lock().unwrap().clear();
        drop(copying);
        assert_eq!(*told.lock().unwrap(), expected);
        assert!(!state.is_copying());
    }

    #[test]
    fn whoever_has_given_up_a_snapshot_is_told_when_nobody_uses_it() {
        check(|_| {}, &[]);
        check(SnapshotState::give_up, &[SnapshotNews::Unused]);
        let breaks = |state: &SnapshotState| assert!(state.end(FailKind::Io), "it was whole");
        check(breaks, &[]);
        let breaks_before = |state: &SnapshotState| {
            breaks(state);
            state.give_up();
        };
        check(breaks_before, &[SnapshotNews::Unused]);
    }
}
