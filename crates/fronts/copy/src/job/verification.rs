//! A copy whose source is written compares all of it, once both are equal for the first time.
//!
//! Invariants: what is compared is claimed, so that no write which goes to both is under way there. What goes to the source alone
//! is added to the backlog when it ends, and is no difference then.
//! Limits: two bitmaps of the granularity of the backlog; [`PASSES_MAX`].

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::task::Waker;

use bitmaps::{BitmapError, ClaimResult, CopyBacklog, DirtyBitmap};
use block::SECTOR_BYTES;

use super::{CopyJob, Share};
use crate::backlog::BacklogCopy;

/// How often is compared what has differed, with the first time: what never becomes equal is said.
const PASSES_MAX: u32 = 4;

/// What a job has compared that copies while its source is written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ComparedBytes {
    /// Looked at on both sides.
    pub bytes: u64,
    /// Of these, those in which they were not equal, in granules, and that nobody has changed meanwhile: they were copied again.
    pub differing: u64,
}

/// Whether a job compares all of the disk once it has copied it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Phase {
    /// It does not, or it has.
    #[default]
    Off,
    /// It will.
    Wanted,
    /// It does, for that many times.
    Running {
        /// With this one.
        passes: u32,
    },
}

/// What a job knows of what it compares.
#[derive(Debug, Default)]
pub(super) struct Verification {
    phase: Mutex<Phase>,
    /// Whether what is claimed is compared first. Changes while nobody has a claim.
    is_verifying: AtomicBool,
    compared: AtomicU64,
    /// Whether what has differed is compared once more.
    is_again: AtomicBool,
    /// Whether something has differed since that, or all, was begun with.
    has_found: AtomicBool,
    /// What differed.
    differing: OnceLock<DirtyBitmap>,
}

impl Verification {
    fn phase(&self) -> MutexGuard<'_, Phase> {
        self.phase.lock().expect("no holder of this lock panics")
    }
}

impl CopyJob {
    /// Once source and target are equal all of it is compared before anybody hears of that, and what differs is copied again.
    /// Said before its workers begin, of a backlog that ends when it is cancelled. What is changed in the source meanwhile, and not
    /// under the ranges of the backlog in both, is added to the backlog, and is no difference.
    pub fn verify_when_equal(&self) -> Result<(), BitmapError> {
        let Some(BacklogCopy { backlog, .. }) = &self.backlog else { return Ok(()) };
        let (size, granularity) = (backlog.dirty().size(), backlog.dirty().granularity());
        let _set_already = self.verification.differing.set(DirtyBitmap::new(size, granularity)?);
        backlog.keep_notes()?;
        *self.verification.phase() = Phase::Wanted;
        Ok(())
    }

    /// What was compared so far.
    pub fn compared(&self) -> ComparedBytes {
        let notes = self.backlog.as_ref().and_then(|it| it.backlog.notes());
        let differing = match (self.verification.differing.get(), notes) {
            (Some(differing), Some(notes)) => bytes_but(differing, notes),
            (_, _) => 0,
        };
        ComparedBytes { bytes: self.verification.compared.load(Ordering::Relaxed), differing }
    }

    /// Whether what is claimed is compared before it is copied.
    pub(crate) fn is_verifying(&self) -> bool {
        self.verification.is_verifying.load(Ordering::Acquire)
    }

    pub(crate) fn count_compared(&self, bytes: u64) {
        if !self.verification.is_again.load(Ordering::Relaxed) {
            self.verification.compared.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// Where the parts end of which each is equal or not.
    pub(crate) fn compared_granule(&self) -> u64 {
        self.verification.differing.get().map_or(SECTOR_BYTES, |it| it.granularity().bytes())
    }

    /// These bytes of source and target were not equal.
    pub(crate) fn note_difference(&self, bytes: Range<u64>) {
        if let Some(differing) = self.verification.differing.get() {
            differing.set(bytes);
            self.verification.has_found.store(true, Ordering::Relaxed);
        }
    }

    /// What a worker does that has found nothing dirty, if that is to be compared now, or is being compared.
    pub(super) fn share_of_verification(
        &self,
        backlog: &Arc<CopyBacklog>,
        most: u64,
        worker: &Waker,
    ) -> Option<Share> {
        let mut state = self.verification.phase();
        match *state {
            Phase::Off => None,
            Phase::Wanted => {
                *state = Phase::Running { passes: 1 };
                self.verification.is_verifying.store(true, Ordering::Release);
                // It wakes all who wait, this one among them.
                backlog.add_all();
                Some(Share::Wait)
            }
            // It may have found nothing before another one has begun with it.
            Phase::Running { passes } => match backlog.claim(most, worker) {
                ClaimResult::Claimed(claim) => Some(Share::Claimed(claim)),
                ClaimResult::Wait => Some(Share::Wait),
                ClaimResult::Nothing if passes < PASSES_MAX && self.compares_again(backlog) => {
                    *state = Phase::Running { passes: passes + 1 };
                    Some(Share::Wait)
                }
                ClaimResult::Nothing => {
                    *state = Phase::Off;
                    self.verification.is_verifying.store(false, Ordering::Release);
                    None
                }
            },
        }
    }

    /// Has workers compare what was copied again, if there is something; nobody has a claim.
    fn compares_again(&self, backlog: &CopyBacklog) -> bool {
        let Verification { has_found, is_again, differing, .. } = &self.verification;
        let (true, Some(differing)) = (has_found.swap(false, Ordering::Relaxed), differing.get())
        else {
            return false;
        };
        is_again.store(true, Ordering::Relaxed);
        let (mut at, size) = (0, differing.size().0.0);
        while let Some(run) = differing.next_dirty(at..size) {
            at = run.end;
            // No note of the backlog: nobody has changed it.
            backlog.dirty().set(run);
        }
        backlog.wake_workers();
        true
    }
}

/// How many bytes one bitmap has without those of another one.
fn bytes_but(all: &DirtyBitmap, without: &DirtyBitmap) -> u64 {
    let (granule, size) = (all.granularity().bytes(), all.size().0.0);
    let (mut at, mut sum) = (0, 0);
    while let Some(run) = all.next_dirty(at..size) {
        let mut start = run.start;
        while start < run.end {
            let end = start.saturating_add(granule).min(run.end);
            if !without.is_any_dirty(start..end) {
                sum += end - start;
            }
            start = end;
        }
        at = run.end;
    }
    sum
}
