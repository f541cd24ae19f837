//! What is left of a copy that goes on while its source is written: dirty bytes, and who copies which of them.
//!
//! Where it stands: the workers of a job claim parts of it and copy them; what stands on the source adds what was written.
//!
//! Invariants: of the same bytes one copy is under way at a time, and no write that holds their range. A claim cleans its
//! bytes before they are read, and has its range until they are on the target; what it does not finish is dirty again.
//! Threads: any. Limits: the memory of two bitmaps; as many claims as there are requests of workers.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::task::Waker;
use std::time::Duration;

use block::{RangeGuard, RangeLock};

use crate::{BitmapError, DirtyBitmap};

/// How many dirty runs that others have are passed by at a look.
const LOOKS_MAX: usize = 64;

/// What is left of a copy.
#[derive(Debug)]
pub struct CopyBacklog {
    dirty: DirtyBitmap,
    /// Where the target is not as it was before the job.
    written: DirtyBitmap,
    ranges: RangeLock,
    /// Where a worker looks next.
    cursor: AtomicU64,
    /// How many claims there are.
    claims: Mutex<usize>,
    /// How many bytes they have that are not finished.
    claimed_bytes: AtomicU64,
    unclaimed: Condvar,
    /// Whether a worker waits for something to be added.
    is_awaited: AtomicBool,
    workers: Mutex<Vec<Waker>>,
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
        Ok(Arc::new(Self {
            dirty,
            written,
            ranges: RangeLock::default(),
            cursor: AtomicU64::new(0),
            claims: Mutex::default(),
            claimed_bytes: AtomicU64::new(0),
            unclaimed: Condvar::new(),
            is_awaited: AtomicBool::new(false),
            workers: Mutex::default(),
        }))
    }

    /// What is dirty.
    pub fn dirty(&self) -> &DirtyBitmap {
        &self.dirty
    }

    /// The ranges that are copied or written. Whoever writes source and target at once holds its own.
    pub fn ranges(&self) -> &RangeLock {
        &self.ranges
    }

    /// These bytes are to be copied: a write of the source has ended.
    pub fn add(&self, bytes: Range<u64>) {
        self.dirty.set(bytes);
        // Beside the one in `claim`: either this finds the worker that waits, or that worker finds the bytes.
        fence(Ordering::SeqCst);
        if self.is_awaited.load(Ordering::Relaxed) {
            self.wake_workers();
        }
    }

    /// These bytes of the target are written, by somebody else than a worker.
    pub fn target_written(&self, bytes: Range<u64>) {
        self.written.set(bytes);
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
            if let Some(guard) = self.ranges.try_lock(bytes.clone(), worker) {
                *self.claims() += 1;
                self.claimed_bytes.fetch_add(bytes.end - bytes.start, Ordering::Relaxed);
                self.cursor.store(bytes.end, Ordering::Relaxed);
                self.dirty.clear(bytes.clone());
                let is_first = !self.written.is_any_dirty(bytes.clone());
                self.written.set(bytes.clone());
                let (backlog, finished) = (Arc::clone(self), AtomicU64::new(0));
                let guard = Some(guard);
                return Some(CopyClaim { backlog, bytes, is_first, finished, guard });
            }
            range.start = bytes.end;
        }
        None
    }

    /// How many bytes are left, those that are being copied among them. About so many while others work.
    pub fn left_bytes(&self) -> u64 {
        let claimed = self.claimed_bytes.load(Ordering::Relaxed);
        self.dirty.count_bytes().saturating_add(claimed)
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
