//! What a worker takes of what is left: which bytes, how many at once, and whether its source is asked about them first.
//!
//! Where it stands: before a chunk begins. Limits: those of the worker, of the job's backlog, and its rate.

use std::sync::Arc;
use std::time::Duration;

use bitmaps::CopyClaim;
use block::{BlockStatus, SourceRequestSlot};

use super::{CHUNK_BYTES, CopyWorker, LARGE_CHUNK_BYTES, Supply};
use crate::chunk::{SourceRun, Step};
use crate::job::{CopyAction, Share, TargetContent};

/// What is smaller is read without a question: to find out takes longer.
const QUESTION_BYTES_MIN: u64 = CHUNK_BYTES as u64;

/// How long a worker rests that found source and target equal: what is written meanwhile is copied once, however often.
const EQUAL_REST: Duration = Duration::from_millis(100);

impl CopyWorker {
    /// Takes a share of what is left. If its source has to be asked first, that is begun in this slot.
    pub(super) fn get_share(&mut self, slot: SourceRequestSlot) -> Option<SourceRequestSlot> {
        if self.is_of_instant
            && let Err(later) = self.job.rate.check(self.job.clock.now())
        {
            self.later = Some(later);
            return None;
        }
        self.supply = Supply::Awaited;
        match self.job.share(&self.waker) {
            Share::Runs(runs) => {
                let run = |(bytes, status)| SourceRun { bytes, status, claim: None };
                self.runs.extend(runs.into_iter().map(run));
                self.supply = Supply::Unknown;
            }
            Share::Ask(bytes) => {
                return Some(self.begin(slot, bytes.clone(), Step::Status(bytes), None, None));
            }
            Share::Claimed(claim) => {
                self.supply = Supply::Unknown;
                let (bytes, claim) = (claim.bytes(), Some(Arc::new(claim)));
                if bytes.end - bytes.start < QUESTION_BYTES_MIN {
                    self.runs.push_back(SourceRun { bytes, status: BlockStatus::DATA, claim });
                    return None;
                }
                return Some(self.begin(slot, bytes.clone(), Step::Status(bytes), None, claim));
            }
            Share::Equal if !self.job.is_hurried() => {
                self.rest = Some(self.job.clock.now() + EQUAL_REST);
            }
            Share::Wait | Share::Equal => {}
            Share::Nothing => self.supply = Supply::Over,
        }
        None
    }

    /// Whether the target has zeroes where a chunk is.
    pub(super) fn target_is_zero(&self, claim: Option<&CopyClaim>) -> bool {
        let was_zero = self.job.settings.target == TargetContent::Zeroes;
        was_zero && claim.is_none_or(CopyClaim::is_first)
    }

    /// Takes the next part of what the source has told, as far as the rate allows it: a chunk, or as many zeroes as there
    /// are where they need no memory.
    pub(super) fn next_run(&mut self, is_verifying: bool) -> Option<SourceRun> {
        let run = self.runs.front()?;
        let is_copied = self.job.settings.action == CopyAction::Copy && !is_verifying;
        let needs_memory = !run.status.is_zero || !is_copied;
        let most = if needs_memory { self.chunk_bytes() } else { u64::MAX };
        let count = (run.bytes.end - run.bytes.start).min(most);
        let claim = run.claim.clone();
        if needs_memory && !self.is_let_through(count, claim.as_ref()) {
            return None;
        }
        let run = self.runs.front_mut().expect("it was there");
        let bytes = run.bytes.start..run.bytes.start + count;
        run.bytes.start = bytes.end;
        let (status, claim) = (run.status, run.claim.clone());
        if run.bytes.is_empty() {
            self.runs.pop_front();
        }
        Some(SourceRun { bytes, status, claim })
    }

    /// The most bytes of the next chunk that needs memory.
    fn chunk_bytes(&self) -> u64 {
        let (large, limit) = (LARGE_CHUNK_BYTES as u64, self.job.limits().chunk_bytes);
        let is_large = self.depth == self.chunks.len() && self.job.rate.burst_bytes() >= large;
        let most = limit.min(if is_large { large } else { CHUNK_BYTES as u64 });
        most.max(self.job.settings.target_unit)
    }

    /// Whether the job's rate allows so many bytes now. What guests wait for is let through as a whole, or given back.
    fn is_let_through(&mut self, count: u64, claim: Option<&Arc<CopyClaim>>) -> bool {
        let whole = claim.filter(|_| self.is_of_instant);
        if whole.is_some_and(|claim| claim.is_charged()) {
            return true;
        }
        let charged = whole.map_or(count, |claim| claim.bytes().end - claim.bytes().start);
        match (self.job.rate.take(charged, self.job.clock.now()), whole) {
            (Ok(()), None) => true,
            (Ok(()), Some(claim)) => {
                claim.set_charged();
                true
            }
            (Err(later), whole) => {
                self.later = Some(later);
                if let Some(claim) = whole {
                    self.forget(claim);
                }
                false
            }
        }
    }
}
