//! What happened in one second or one fifth of a run, whichever load ran. Pure.

use std::time::Duration;

use crate::Latency;

/// The requests that completed in one second or so of the measured window.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Interval {
    /// The seconds of the window that had passed at its end, rounded; the first is 1.
    pub second: u32,
    /// Completed requests.
    pub operations: u64,
    /// The bytes they moved.
    pub bytes: u64,
    /// How many of them were reads.
    pub reads: u64,
    /// Its length.
    pub elapsed: Duration,
    /// The latencies of its requests.
    pub latency: Latency,
}

/// How many equal parts of a window [`Fifth`] stands for.
pub const FIFTHS: u32 = 5;

/// One of five equal parts of the measured window; whether they are alike tells whether the run was steady.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fifth {
    /// Its length.
    pub elapsed: Duration,
    /// Completed requests.
    pub operations: u64,
}

impl Interval {
    /// The same second of several machines as one; `None` of none. Its length is the longest.
    #[must_use]
    pub fn merge(intervals: &[Self]) -> Option<Self> {
        let (first, others) = intervals.split_first()?;
        let mut all = first.clone();
        for other in others {
            all.operations += other.operations;
            all.bytes += other.bytes;
            all.reads += other.reads;
            all.elapsed = all.elapsed.max(other.elapsed);
            all.latency.merge(&other.latency);
        }
        Some(all)
    }

    /// Adds what came right after it.
    pub(crate) fn continue_with(&mut self, next: &Self) {
        self.second = next.second;
        self.operations += next.operations;
        self.bytes += next.bytes;
        self.reads += next.reads;
        self.elapsed += next.elapsed;
        self.latency.merge(&next.latency);
    }
}
