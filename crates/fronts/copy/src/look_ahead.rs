//! What the source was found to have beyond what was asked for: a file system may look for the end of a run for long, and is
//! not asked for each part of it.
//!
//! Where it stands: the workers of a copy whose source is written ask here before they ask the source about what they have
//! claimed.
//!
//! Invariants: what is remembered may be wrong by now, and does no harm: bytes that were data are read, whatever they are,
//! and bytes that were zeroes are asked about again once they are claimed.
//! Threads: those of all workers, behind one lock that is taken a few times for each claim.

use std::ops::Range;
use std::sync::{Mutex, MutexGuard};

use block::BlockStatus;

/// The most bytes that the source is asked about at once.
const ASKED_BYTES_MAX: u64 = 1 << 30;

/// The most bytes of zeroes that are claimed at once: making them takes no longer than copying a few chunks.
const ZEROES_CLAIMED_MAX: u64 = 64 << 20;

/// What is remembered of the source.
#[derive(Debug, Default)]
pub(crate) struct LookAhead(Mutex<FoundRuns>);

#[derive(Debug, Default)]
struct FoundRuns {
    /// Where data were found last.
    data: Range<u64>,
    /// Where zeroes were found last.
    zeroes: Range<u64>,
    /// How many bytes beyond a claim are asked about.
    more: u64,
}

impl LookAhead {
    /// Whether these bytes can be read without asking: they were data.
    pub(crate) fn is_data(&self, bytes: &Range<u64>) -> bool {
        let found = self.found();
        found.data.start <= bytes.start && bytes.end <= found.data.end
    }

    /// How many bytes to claim from here on, at least `least`, of which it is a multiple: more where there were zeroes.
    pub(crate) fn claimed(&self, start: u64, least: u64) -> u64 {
        let found = self.found();
        if !found.zeroes.contains(&start) {
            return least;
        }
        let zeroes = (found.zeroes.end - start).min(ZEROES_CLAIMED_MAX);
        (zeroes - zeroes % least).max(least)
    }

    /// The bytes to ask about for a claim, on a disk of that size.
    pub(crate) fn asked(&self, claim: &Range<u64>, size: u64) -> Range<u64> {
        claim.start..claim.end.saturating_add(self.found().more).min(size)
    }

    /// The source was asked about bytes, and the last ones of a claim are in a run of that status.
    pub(crate) fn told(&self, asked: &Range<u64>, run: Range<u64>, status: BlockStatus) {
        let mut found = self.found();
        found.more = if run.end >= asked.end {
            (asked.end - asked.start).saturating_mul(2).min(ASKED_BYTES_MAX)
        } else {
            0
        };
        if status.is_zero { found.zeroes = run } else { found.data = run }
    }

    fn found(&self) -> MutexGuard<'_, FoundRuns> {
        self.0.lock().expect("no holder of this lock panics")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn long_runs_are_asked_about_seldom() {
        let (ahead, size) = (LookAhead::default(), 1 << 40);
        let (mut at, mut asked) = (0, 0);
        while at < size / 64 {
            let claim = at..at + MIB;
            if !ahead.is_data(&claim) {
                let range = ahead.asked(&claim, size);
                ahead.told(&range, range.clone(), BlockStatus::DATA);
                asked += 1;
            }
            at = claim.end;
        }
        assert!(asked < 40, "{asked} questions for 16 GiB");
    }

    #[test]
    fn many_short_runs_are_asked_about_no_further_than_needed() {
        let ahead = LookAhead::default();
        let claim = 0..MIB;
        ahead.told(&claim, MIB / 2..MIB, BlockStatus::DATA);
        assert_eq!(ahead.asked(&(MIB..2 * MIB), 1 << 40), MIB..4 * MIB);
        ahead.told(&(MIB..4 * MIB), MIB..3 * MIB, BlockStatus::ZEROES);
        assert_eq!(ahead.asked(&(3 * MIB..4 * MIB), 1 << 40), 3 * MIB..4 * MIB);
        assert_eq!((ahead.claimed(MIB, MIB), ahead.claimed(3 * MIB, MIB)), (2 * MIB, MIB));
    }
}
