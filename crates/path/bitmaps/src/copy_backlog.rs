//! What is left of a copy that goes on while its source is written: dirty bytes, and who copies which of them.
//!
//! Where it stands: the workers of a job claim parts of it and copy them; what stands on the source adds what was written, or,
//! where the source is copied as it was at an instant, copies first what is about to be written.
//!
//! Invariants: of the same bytes one copy is under way at a time, and no write that holds their range. A claim cleans its
//! bytes before they are read, and has its range until they are on the target; what it does not finish is dirty again. Of an
//! instant a claim has only what is pending, which it is until a claim or a write has it on the target. Where all that is
//! pending is to be copied, one bitmap says both, and what is claimed is known by its range alone.
//! Threads: any. Limits: the memory of two bitmaps, or one; as many claims as there are requests of workers.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock};
use std::task::Waker;
use std::time::Duration;

use block::{RangeGuard, RangeLock};

use crate::{BitmapError, DirtyBitmap};

/// How many dirty runs that others have are passed by at a look.
const LOOKS_MAX: usize = 64;

/// What is left of a copy.
#[derive(Debug)]
pub struct CopyBacklog {
    /// That of what is pending, if all of that is to be copied.
    dirty: Arc<DirtyBitmap>,
    kind: BacklogKind,
    ranges: RangeLock,
    /// Where a worker looks next.
    cursor: AtomicU64,
    /// How many claims there are.
    claims: Mutex<usize>,
    /// How many bytes they have that are not finished.
    claimed_bytes: AtomicU64,
    /// How many bytes were copied by others than workers.
    copied_bytes: AtomicU64,
    unclaimed: Condvar,
    /// What was added since somebody asked for that.
    notes: OnceLock<DirtyBitmap>,
    /// Whether a worker waits for something to be added.
    is_awaited: AtomicBool,
    workers: Mutex<Vec<Waker>>,
}

/// What is copied: a disk as it becomes, or as it was.
#[derive(Debug)]
enum BacklogKind {
    /// As it becomes. Where the target is not as it was before the job.
    Current(DirtyBitmap),
    /// As it was at an instant. What only the source has of that.
    Instant(Arc<DirtyBitmap>),
}

/// Bytes that one worker copies. Dropped before all of them were finished, they are dirty again.
#[derive(Debug)]
#[must_use = "dropped, the bytes are dirty again"]
pub struct CopyClaim {
    backlog: Arc<CopyBacklog>,
    bytes: Range<u64>,
    /// Whether the target has there what it had before the job.
    is_first: bool,
    finished: AtomicU64,
    /// Whether a limit of speed has let it through.
    is_charged: AtomicBool,
    guard: Option<RangeGuard>,
}

/// What a worker gets that asks for more.
#[derive(Debug)]
pub enum ClaimResult {
    /// These bytes are its own.
    Claimed(CopyClaim),
    /// What is dirty is held by others, or others may give something back: the worker is woken.
    Wait,
    /// Nothing is dirty, and nobody copies: source and target are equal but for writes under way. The worker is woken
    /// when something is added.
    Nothing,
}

impl CopyBacklog {
    /// With these dirty bytes.
    pub fn new(dirty: DirtyBitmap) -> Result<Arc<Self>, BitmapError> {
        let written = DirtyBitmap::new(dirty.size(), dirty.granularity())?;
        Ok(Self::of(Arc::new(dirty), BacklogKind::Current(written), RangeLock::default()))
    }

    /// With these dirty bytes of a disk as it was at an instant, of which only the source has what is pending; of the same
    /// granularity. What is about to be changed there is copied by whoever changes it, under a lock of the same ranges.
    pub fn of_instant(
        dirty: DirtyBitmap,
        pending: Arc<DirtyBitmap>,
        ranges: RangeLock,
    ) -> Arc<Self> {
        Self::of(Arc::new(dirty), BacklogKind::Instant(pending), ranges)
    }

    /// The same where all that is pending is to be copied.
    pub fn of_whole_instant(pending: Arc<DirtyBitmap>, ranges: RangeLock) -> Arc<Self> {
        Self::of(Arc::clone(&pending), BacklogKind::Instant(pending), ranges)
    }

    fn of(dirty: Arc<DirtyBitmap>, kind: BacklogKind, ranges: RangeLock) -> Arc<Self> {
        Arc::new(Self {
            dirty,
            kind,
            ranges,
            cursor: AtomicU64::new(0),
            claims: Mutex::default(),
            claimed_bytes: AtomicU64::new(0),
            copied_bytes: AtomicU64::new(0),
            unclaimed: Condvar::new(),
            notes: OnceLock::new(),
            is_awaited: AtomicBool::new(false),
            workers: Mutex::default(),
        })
    }

    /// Whether the disk is copied as it was at an instant: guests wait for who has a claim on what they write.
    pub fn is_of_instant(&self) -> bool {
        matches!(self.kind, BacklogKind::Instant(_))
    }

    /// Whether a claim leaves its bytes dirty until it is finished.
    fn is_whole(&self) -> bool {
        matches!(&self.kind, BacklogKind::Instant(pending) if Arc::ptr_eq(pending, &self.dirty))
    }

    /// What is dirty.
    pub fn dirty(&self) -> &DirtyBitmap {
        &self.dirty
    }

    /// The ranges that are copied or written. Whoever writes source and target at once holds its own.
    pub fn ranges(&self) -> &RangeLock {
        &self.ranges
    }

    /// From now on it is kept which bytes are added ([`CopyBacklog::add`]), also when they were copied.
    pub fn keep_notes(&self) -> Result<(), BitmapError> {
        let notes = DirtyBitmap::new(self.dirty.size(), self.dirty.granularity())?;
        let _kept_already = self.notes.set(notes);
        Ok(())
    }

    /// What was added, if that is kept.
    pub fn notes(&self) -> Option<&DirtyBitmap> {
        self.notes.get()
    }

    /// All of it is looked at again by workers, also what nobody has changed.
    pub fn add_all(&self) {
        self.dirty.set_all();
        fence(Ordering::SeqCst);
        if self.is_awaited.load(Ordering::Relaxed) {
            self.wake_workers();
        }
    }

    /// These bytes are to be copied: a write of the source has ended.
    pub fn add(&self, bytes: Range<u64>) {
        if let Some(notes) = self.notes.get() {
            notes.set(bytes.clone());
        }
        self.dirty.set(bytes);
        // Beside the one in `claim`: either this finds the worker that waits, or that worker finds the bytes.
        fence(Ordering::SeqCst);
        if self.is_awaited.load(Ordering::Relaxed) {
            self.wake_workers();
        }
    }

    /// These bytes of the target are written, by somebody else than a worker.
    pub fn target_written(&self, bytes: Range<u64>) {
        if let BacklogKind::Current(written) = &self.kind {
            written.set(bytes);
        }
    }

    /// These bytes, whose range the caller has, are on the target by somebody else than a worker.
    pub fn copied(&self, bytes: Range<u64>) {
        let mut at = bytes.start;
        while let Some(run) = self.dirty.next_dirty(at..bytes.end) {
            at = run.end;
            self.copied_bytes.fetch_add(run.end - run.start, Ordering::Relaxed);
            self.dirty.clear(run);
        }
    }

    /// These bytes of an instant need not be copied, nor what shares no granule with others.
    pub fn skip(&self, bytes: Range<u64>) {
        let BacklogKind::Instant(pending) = &self.kind else { return };
        let (granule, size) = (self.dirty.granularity().bytes(), self.dirty.size().0.0);
        let start = bytes.start.next_multiple_of(granule);
        let end = if bytes.end >= size { size } else { bytes.end - bytes.end % granule };
        if start < end {
            pending.clear(start..end);
        }
    }

    /// Has this waker used when something is added or given back, until the backlog is gone.
    pub fn enter(&self, worker: Waker) {
        self.workers().push(worker);
    }

    /// Has all workers look.
    pub fn wake_workers(&self) {
        self.is_awaited.store(false, Ordering::Relaxed);
        self.workers().iter().for_each(Waker::wake_by_ref);
    }

    /// Claims dirty bytes that follow each other, at most that many, a multiple of the granularity.
    pub fn claim(self: &Arc<Self>, most: u64, worker: &Waker) -> ClaimResult {
        if let Some(claim) = self.try_claim(most, worker) {
            return ClaimResult::Claimed(claim);
        }
        self.is_awaited.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if let Some(claim) = self.try_claim(most, worker) {
            return ClaimResult::Claimed(claim);
        }
        // In this order: what a claim gives back is dirty before it is gone.
        let is_claimed = *self.claims() > 0;
        let is_clean = !self.dirty.is_any_dirty(0..self.dirty.size().0.0);
        if is_clean && !is_claimed { ClaimResult::Nothing } else { ClaimResult::Wait }
    }

    fn try_claim(self: &Arc<Self>, most: u64, worker: &Waker) -> Option<CopyClaim> {
        let (start, end) = (self.cursor.load(Ordering::Relaxed), self.dirty.size().0.0);
        self.claim_in(start..end, most, worker).or_else(|| self.claim_in(0..start, most, worker))
    }

    fn claim_in(
        self: &Arc<Self>,
        mut range: Range<u64>,
        most: u64,
        worker: &Waker,
    ) -> Option<CopyClaim> {
        for _ in 0..LOOKS_MAX {
            let run = self.dirty.next_dirty(range.clone())?;
            let bytes = run.start..run.end.min(run.start.saturating_add(most));
            range.start = bytes.end;
            if let Some(guard) = self.ranges.try_lock(bytes.clone(), worker) {
                let Some(bytes) = self.take(bytes) else { continue };
                let is_first = match &self.kind {
                    BacklogKind::Current(written) => {
                        let is_first = !written.is_any_dirty(bytes.clone());
                        written.set(bytes.clone());
                        is_first
                    }
                    BacklogKind::Instant(_) => true,
                };
                let (backlog, finished) = (Arc::clone(self), AtomicU64::new(0));
                let (guard, is_charged) = (Some(guard), AtomicBool::new(false));
                return Some(CopyClaim { backlog, bytes, is_first, finished, is_charged, guard });
            }
        }
        None
    }

    /// Cleans these bytes, whose range is locked, as far as they are claimed.
    fn take(&self, mut bytes: Range<u64>) -> Option<Range<u64>> {
        if let BacklogKind::Instant(pending) = &self.kind {
            // What is not pending any more is on the target, or is not wanted.
            let Some(run) = pending.next_dirty(bytes.clone()) else {
                self.dirty.clear(bytes);
                return None;
            };
            if bytes.start < run.start {
                self.dirty.clear(bytes.start..run.start);
            }
            bytes = run;
        }
        *self.claims() += 1;
        self.claimed_bytes.fetch_add(bytes.end - bytes.start, Ordering::Relaxed);
        self.cursor.store(bytes.end, Ordering::Relaxed);
        if !self.is_whole() {
            self.dirty.clear(bytes.clone());
        }
        Some(bytes)
    }

    /// How many bytes are left, those that are being copied among them. About so many while others work.
    pub fn left_bytes(&self) -> u64 {
        if self.is_whole() {
            return self.dirty.count_bytes();
        }
        let claimed = self.claimed_bytes.load(Ordering::Relaxed);
        self.dirty.count_bytes().saturating_add(claimed)
    }

    /// How many bytes others than workers have copied.
    pub fn copied_bytes(&self) -> u64 {
        self.copied_bytes.load(Ordering::Relaxed)
    }

    /// Waits until nobody has a claim; whether that is so in time.
    pub fn wait_unclaimed(&self, limit: Duration) -> bool {
        let claims = self.claims();
        let waited = self.unclaimed.wait_timeout_while(claims, limit, |claims| *claims > 0);
        let (claims, _) = waited.expect("no holder of this lock panics");
        *claims == 0
    }

    fn claims(&self) -> MutexGuard<'_, usize> {
        self.claims.lock().expect("no holder of this lock panics")
    }

    fn workers(&self) -> MutexGuard<'_, Vec<Waker>> {
        self.workers.lock().expect("no holder of this lock panics")
    }
}

impl CopyClaim {
    /// Which bytes.
    pub fn bytes(&self) -> Range<u64> {
        self.bytes.clone()
    }

    /// Whether the target has there what it had before the job.
    pub fn is_first(&self) -> bool {
        self.is_first
    }

    /// Whether a limit of speed has let it through.
    pub fn is_charged(&self) -> bool {
        self.is_charged.load(Ordering::Relaxed)
    }

    /// A limit of speed has let it through.
    pub fn set_charged(&self) {
        self.is_charged.store(true, Ordering::Relaxed);
    }

    /// So many more of the bytes are on the target.
    pub fn finish(&self, bytes: u64) {
        self.finished.fetch_add(bytes, Ordering::Relaxed);
        self.backlog.claimed_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl Drop for CopyClaim {
    fn drop(&mut self) {
        let left = self.bytes.end - self.bytes.start - *self.finished.get_mut();
        let is_finished = left == 0;
        if let (true, BacklogKind::Instant(pending)) = (is_finished, &self.backlog.kind) {
            pending.clear(self.bytes.clone());
        }
        if !is_finished {
            self.backlog.dirty.set(self.bytes.clone());
            self.backlog.claimed_bytes.fetch_sub(left, Ordering::Relaxed);
        }
        drop(self.guard.take());
        let is_last = {
            let mut claims = self.backlog.claims();
            *claims -= 1;
            *claims == 0
        };
        if is_last {
            self.backlog.unclaimed.notify_all();
        }
        fence(Ordering::SeqCst);
        if (is_last || !is_finished) && self.backlog.is_awaited.load(Ordering::Relaxed) {
            self.backlog.wake_workers();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Granularity;
    use block::{ByteCount, DiskSize};

    const GRANULE: u64 = 4096;

    fn backlog(granules: u64) -> Arc<CopyBacklog> {
        let size = DiskSize(ByteCount(granules * GRANULE));
        let granularity = Granularity::new(GRANULE).unwrap();
        CopyBacklog::new(DirtyBitmap::new(size, granularity).unwrap()).unwrap()
    }

    #[track_caller]
    fn claimed(backlog: &Arc<CopyBacklog>, most: u64) -> CopyClaim {
        match backlog.claim(most * GRANULE, Waker::noop()) {
            ClaimResult::Claimed(claim) => claim,
            other @ (ClaimResult::Wait | ClaimResult::Nothing) => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_is_claimed_is_nobody_elses_until_it_is_over() {
        let backlog = backlog(16);
        backlog.add(0..8 * GRANULE);
        let first = claimed(&backlog, 4);
        assert_eq!((first.bytes(), first.is_first()), (0..4 * GRANULE, true));
        let second = claimed(&backlog, 8);
        assert_eq!(second.bytes(), 4 * GRANULE..8 * GRANULE);
        // A write of now is copied again, after the copy that may have missed it.
        backlog.add(100..200);
        assert!(matches!(backlog.claim(GRANULE, Waker::noop()), ClaimResult::Wait));
        first.finish(4 * GRANULE);
        drop(first);
        let again = claimed(&backlog, 8);
        assert_eq!((again.bytes(), again.is_first()), (0..GRANULE, false));
        assert!(!backlog.wait_unclaimed(Duration::ZERO));
        again.finish(GRANULE);
        second.finish(4 * GRANULE);
        drop((again, second));
        assert!(backlog.wait_unclaimed(Duration::ZERO));
        assert!(matches!(backlog.claim(GRANULE, Waker::noop()), ClaimResult::Nothing));
    }

    #[test]
    fn of_an_instant_a_claim_has_what_is_pending_until_it_is_finished() {
        let size = DiskSize(ByteCount(8 * GRANULE));
        let bitmap = || DirtyBitmap::new(size, Granularity::new(GRANULE).unwrap()).unwrap();
        let (dirty, pending, ranges) = (bitmap(), Arc::new(bitmap()), RangeLock::default());
        dirty.set_all();
        pending.set_all();
        let backlog = CopyBacklog::of_instant(dirty, Arc::clone(&pending), ranges.clone());
        // A guest has its first two granules copied, and the last one is not wanted.
        let held = ranges.try_lock(0..2 * GRANULE, Waker::noop()).unwrap();
        pending.clear(0..2 * GRANULE);
        backlog.copied(0..2 * GRANULE);
        drop(held);
        backlog.skip(7 * GRANULE - 100..8 * GRANULE);
        assert_eq!(backlog.copied_bytes(), 2 * GRANULE);
        // The next one was copied as well, and the bit is not cleaned yet.
        pending.clear(2 * GRANULE..3 * GRANULE);
        let claim = claimed(&backlog, 4);
        assert_eq!(claim.bytes(), 3 * GRANULE..6 * GRANULE);
        assert!(pending.is_dirty(3 * GRANULE), "a guest might change it before it is copied");
        assert!(ranges.try_lock(5 * GRANULE..6 * GRANULE, Waker::noop()).is_none());
        claim.finish(GRANULE);
        drop(claim);
        assert!(pending.is_dirty(3 * GRANULE));
        let claim = claimed(&backlog, 8);
        assert_eq!(claim.bytes(), 6 * GRANULE..7 * GRANULE);
        claim.finish(GRANULE);
        drop(claim);
        let claim = claimed(&backlog, 8);
        assert_eq!(claim.bytes(), 3 * GRANULE..6 * GRANULE);
        claim.finish(3 * GRANULE);
        drop(claim);
        assert!(matches!(backlog.claim(GRANULE, Waker::noop()), ClaimResult::Nothing));
        assert!(!pending.is_any_dirty(0..8 * GRANULE));
        assert_eq!(backlog.left_bytes(), 0);
    }

    #[test]
    fn of_a_whole_instant_one_bitmap_says_what_is_pending_and_what_is_left() {
        let size = DiskSize(ByteCount(8 * GRANULE));
        let bitmap = DirtyBitmap::new(size, Granularity::new(GRANULE).unwrap()).unwrap();
        let (pending, ranges) = (Arc::new(bitmap), RangeLock::default());
        pending.set_all();
        let backlog = CopyBacklog::of_whole_instant(Arc::clone(&pending), ranges.clone());
        let first = claimed(&backlog, 2);
        let second = claimed(&backlog, 4);
        assert_eq!((first.bytes(), second.bytes()), (0..2 * GRANULE, 2 * GRANULE..6 * GRANULE));
        assert!(pending.is_dirty(0), "a guest might change it before it is copied");
        assert_eq!(backlog.left_bytes(), 8 * GRANULE);
        // A guest has one of the last copied.
        let held = ranges.try_lock(6 * GRANULE..7 * GRANULE, Waker::noop()).unwrap();
        backlog.copied(6 * GRANULE..7 * GRANULE);
        drop(held);
        assert_eq!((backlog.copied_bytes(), backlog.left_bytes()), (GRANULE, 7 * GRANULE));
        let third = claimed(&backlog, 4);
        assert_eq!(third.bytes(), 7 * GRANULE..8 * GRANULE);
        assert!(matches!(backlog.claim(GRANULE, Waker::noop()), ClaimResult::Wait));
        first.finish(GRANULE);
        drop(first);
        let again = claimed(&backlog, 2);
        assert_eq!(again.bytes(), 0..2 * GRANULE);
        for claim in [again, second, third] {
            claim.finish(claim.bytes().end - claim.bytes().start);
        }
        assert!(matches!(backlog.claim(GRANULE, Waker::noop()), ClaimResult::Nothing));
        assert_eq!((backlog.left_bytes(), pending.count_granules()), (0, 0));
    }

    #[test]
    fn what_was_not_finished_is_dirty_again() {
        let backlog = backlog(4);
        backlog.add(0..2 * GRANULE);
        let claim = claimed(&backlog, 2);
        assert_eq!(backlog.dirty().count_granules(), 0);
        claim.finish(GRANULE);
        drop(claim);
        assert_eq!(backlog.dirty().count_granules(), 2);
    }
}
