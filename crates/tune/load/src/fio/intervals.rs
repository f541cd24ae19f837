//! What happened second by second, from the reports that fio prints while it runs.
//!
//! fio's own logs would be the other source; they hold rates instead of counts, lose what comes
//! after a job's last sample, and say nothing about the spread of the latencies.
//!
//! Invariants: all intervals together with `finish` hold each request of the last report once; the
//! ramp is in none. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::fio::document::{Document, Group, Side, Splitter};
use crate::{Interval, Latency};

/// Reports that come sooner after another are joined with the next: the one at a run's end comes
/// a few milliseconds after the one of its last second.
const SHORTEST_MS: u64 = 500;

/// Takes what fio prints and gives the intervals.
#[derive(Debug, Default)]
pub struct Intervals {
    splitter: Splitter,
    /// At the end of the last interval.
    told: Count,
    /// The newest report, if it is newer.
    newest: Option<Count>,
}

impl Intervals {
    /// Takes the next bytes of fio's output; returns the intervals that they complete.
    ///
    /// What is no report is passed over: `parse_report` judges the output once it is complete.
    pub fn feed(&mut self, bytes: &[u8]) -> Vec<Interval> {
        let documents = self.splitter.feed(bytes);
        documents.iter().filter_map(|document| self.note(document)).collect()
    }

    /// The rest of the last second, if there are requests in it.
    #[must_use]
    pub fn finish(mut self) -> Option<Interval> {
        let last = self.splitter.finish();
        let told = last.and_then(|document| self.note(&document));
        told.or_else(|| self.newest.take().and_then(|newest| newest.since(&self.told)))
    }

    fn note(&mut self, document: &[u8]) -> Option<Interval> {
        let document = Document::parse(document).ok()?;
        let count = Count::of(&document.group().ok()?, document.block().ok()?)?;
        if count.runtime_ms < self.told.runtime_ms + SHORTEST_MS {
            self.newest = Some(count);
            return None;
        }
        let interval = count.since(&self.told);
        self.told = count;
        self.newest = None;
        interval
    }
}

/// All intervals of a run that is over; the rest of the last second is part of the one before if it is short.
#[must_use]
pub fn series(text: &str) -> Vec<Interval> {
    let mut intervals = Intervals::default();
    let mut all = intervals.feed(text.as_bytes());
    match (all.last_mut(), intervals.finish()) {
        (Some(last), Some(rest)) if rest.elapsed < Duration::from_millis(SHORTEST_MS) => {
            last.continue_with(&rest);
        }
        (_, rest) => all.extend(rest),
    }
    all
}

/// What a report has counted so far.
#[derive(Debug, Default)]
struct Count {
    runtime_ms: u64,
    reads: BTreeMap<u64, u64>,
    writes: BTreeMap<u64, u64>,
    /// The bytes of one request.
    block: u64,
}

impl Count {
    /// `None` as long as jobs are in their ramp: they count bytes, but no latencies, and when the
    /// ramp of a job ends its count starts again.
    fn of(group: &Group, block: u64) -> Option<Self> {
        let (reads, writes) = (&group.read, &group.write);
        let timed = (reads.completed() + writes.completed()).saturating_mul(block);
        let moved = reads.io_bytes + writes.io_bytes;
        if timed == 0 || timed < moved - moved / 4 {
            return None;
        }
        let bins = |side: &Side| side.lat_ns.bins.clone();
        let runtime_ms = group.runtime_ms();
        Some(Self { runtime_ms, reads: bins(reads), writes: bins(writes), block })
    }

    fn since(&self, earlier: &Self) -> Option<Interval> {
        let reads = grown(&self.reads, &earlier.reads);
        let writes = grown(&self.writes, &earlier.writes);
        let count = |bins: &[(u64, u64)]| bins.iter().map(|&(_, count)| count).sum::<u64>();
        let operations = count(&reads) + count(&writes);
        let elapsed = self.runtime_ms.saturating_sub(earlier.runtime_ms);
        let second = (self.runtime_ms + 500) / 1000;
        (operations > 0 || elapsed > 0).then(|| Interval {
            second: u32::try_from(second).unwrap_or(u32::MAX).max(1),
            operations,
            bytes: operations.saturating_mul(self.block),
            reads: count(&reads),
            elapsed: Duration::from_millis(elapsed),
            latency: Latency::from_buckets(&[reads, writes].concat()),
        })
    }
}

/// The bins that have grown, by how much.
fn grown(now: &BTreeMap<u64, u64>, earlier: &BTreeMap<u64, u64>) -> Vec<(u64, u64)> {
    let growth = |(&ns, &count): (&u64, &u64)| {
        (ns, count.saturating_sub(earlier.get(&ns).copied().unwrap_or_default()))
    };
    now.iter().map(growth).filter(|&(_, count)| count > 0).collect()
}

#[cfg(test)]
mod tests;
