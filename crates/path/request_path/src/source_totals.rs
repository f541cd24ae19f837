//! What sources have done as plain numbers, which can be kept and summed after a source is gone.
//!
//! Where it stands in the life of a request: beside it; whoever watches a daemon reads gauges into these.
//!
//! Invariants: what is read of one source only grows from one reading to the next. `in_flight` is no sum and not here.
//! Threads: any; a value belongs to whoever has it.

use std::time::Duration;

use crate::gauges::{BUCKETS, edge};
use crate::{Counters, LatencyHistograms, RequestKind, SourceGauges};

const KINDS: usize = RequestKind::ALL.len();

/// The sums of one source, or of several that follow each other, without latencies.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct SourceTotals {
    /// What was answered.
    pub counters: Counters,
    /// Moves to another iothread.
    pub moves: u64,
    /// Nanoseconds in which nothing was taken because of them.
    pub move_ns: u64,
    /// Nanoseconds that requests were open, summed over all of them.
    pub open_ns: u64,
    /// Nanoseconds that requests waited for a turn to be taken or answered in.
    pub wait_ns: u64,
}

impl SourceTotals {
    /// What a source has done so far.
    pub fn of(gauges: &SourceGauges) -> Self {
        Self {
            counters: gauges.counters(),
            moves: gauges.moves.get(),
            move_ns: gauges.move_ns.get(),
            open_ns: gauges.open_ns.get(),
            wait_ns: gauges.take_wait_ns.get().wrapping_add(gauges.answer_wait_ns.get()),
        }
    }

    /// With what another one has done.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        // Gauges wrap around, too.
        let sum = u64::wrapping_add;
        Self {
            counters: self.counters.plus(other.counters),
            moves: sum(self.moves, other.moves),
            move_ns: sum(self.move_ns, other.move_ns),
            open_ns: sum(self.open_ns, other.open_ns),
            wait_ns: sum(self.wait_ns, other.wait_ns),
        }
    }
}

/// How long the requests of several sources took, for each kind of request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LatencyTotals(Box<[[u64; BUCKETS]; KINDS]>);

impl Default for LatencyTotals {
    fn default() -> Self {
        Self(Box::new([[0; BUCKETS]; KINDS]))
    }
}

impl LatencyTotals {
    /// Adds what one source has measured.
    pub fn add(&mut self, latency: &LatencyHistograms) {
        for (kind, counts) in RequestKind::ALL.into_iter().zip(self.0.iter_mut()) {
            for (count, new) in counts.iter_mut().zip(latency.of(kind).counts()) {
                *count = count.wrapping_add(new);
            }
        }
    }

    /// The buckets of a kind that are not empty, in order: from, to, and how many requests.
    pub fn of(&self, kind: RequestKind) -> impl Iterator<Item = (Duration, Duration, u64)> {
        let counts = self.0[kind as usize].iter().enumerate().filter(|(_, count)| **count > 0);
        counts.map(|(place, count)| (edge(place), edge(place + 1), *count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gauges::{SampleWeight, SourceMeter, Ticks, TimedRequests};

    fn meter(reads: u64) -> SourceMeter {
        let mut meter = SourceMeter::new();
        for _ in 0..reads {
            let took = (Ticks::after(Duration::ZERO), Ticks::after(Duration::from_micros(100)));
            meter.answered(RequestKind::Read, took, SampleWeight::One);
        }
        let counters = Counters { reads, read_bytes: reads * 512, ..Counters::default() };
        let open = (1, TimedRequests::default());
        meter.turn_over(&counters, open, false);
        meter.show(&counters, open);
        meter
    }

    #[test]
    fn sources_that_follow_each_other_are_summed() {
        let (first, second) = (meter(3).gauges(), meter(5).gauges());
        let both = SourceTotals::of(&first).plus(SourceTotals::of(&second));
        assert_eq!(
            (both.counters.reads, both.counters.read_bytes, both.counters.writes),
            (8, 4096, 0)
        );
        let mut latency = LatencyTotals::default();
        latency.add(&first.latency);
        latency.add(&second.latency);
        let found: Vec<_> = latency.of(RequestKind::Read).collect();
        let (from, to, count) = found[0];
        assert_eq!((found.len(), count), (1, 8));
        assert!((from..to).contains(&Duration::from_micros(100)), "{from:?} to {to:?}");
        assert_eq!(latency.of(RequestKind::Write).count(), 0);
    }
}
