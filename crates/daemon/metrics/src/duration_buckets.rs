//! The few buckets of the histogram of durations, made of the many that queues count.
//!
//! Invariants: each bound is an edge between two buckets of a queue (`request_path::gauges`), so no request is in a wrong
//! one; bounds are the same for all exports and never change while the process runs.

use std::time::Duration;

use request_path::{LatencyTotals, RequestKind};

/// The unit of the bounds: 1.024 µs, twice as much for each step.
const UNIT_NS: u64 = 1024;

/// The bounds: 16 µs to 17 s. Close to each other where disks are, further apart where something hangs.
const STEPS: [u32; 16] = [4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 16, 18, 20, 22, 24];

/// What is behind the last bound, as the encoder wants it.
const INFINITY: f64 = f64::INFINITY;

/// The durations of the requests of one kind.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Durations {
    /// How many there are.
    pub(crate) count: u64,
    /// All together, in seconds: each as long as the middle of the bucket that it was counted in.
    pub(crate) sum: f64,
    /// The bounds in seconds, and how many there are in each bucket alone.
    pub(crate) buckets: [(f64, u64); STEPS.len() + 1],
}

fn bound(step: u32) -> Duration {
    Duration::from_nanos(UNIT_NS << step)
}

impl Durations {
    /// Of the requests of one kind.
    pub(crate) fn of(latency: &LatencyTotals, kind: RequestKind) -> Self {
        let bounds = STEPS.map(bound);
        let mut buckets = [(INFINITY, 0); STEPS.len() + 1];
        for (bucket, bound) in buckets.iter_mut().zip(bounds) {
            bucket.0 = bound.as_secs_f64();
        }
        let (mut count, mut sum) = (0, 0.0);
        for (from, to, requests) in latency.of(kind) {
            let place = bounds.partition_point(|bound| *bound < to);
            buckets[place].1 += requests;
            count += requests;
            sum += float(requests) * (from + (to - from) / 2).as_secs_f64();
        }
        Self { count, sum, buckets }
    }
}

/// Counts stay far below 2^53, where doubles lose whole numbers.
#[expect(clippy::cast_precision_loss, reason = "a sum of times is no whole number anyway")]
fn float(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What queues count goes up to 18 minutes.
    #[test]
    fn bounds_are_edges_of_the_buckets_that_queues_count() {
        // As in request_path::gauges: 256 ns, four parts of each octave.
        let edges: Vec<u64> = (0..31)
            .flat_map(|octave| (4..8).map(move |part: u64| (256 * part) << octave))
            .collect();
        for step in STEPS {
            let ns = u64::try_from(bound(step).as_nanos()).unwrap();
            assert!(edges.contains(&ns), "{ns} ns is no edge");
        }
        assert!(STEPS.windows(2).all(|pair| pair[0] < pair[1]));
    }

    #[test]
    fn nothing_was_timed_at_first() {
        let durations = Durations::of(&LatencyTotals::default(), RequestKind::Read);
        assert_eq!((durations.count, durations.sum), (0, 0.0));
        assert_eq!(durations.buckets[0], (0.000_016_384, 0));
        assert_eq!(durations.buckets[STEPS.len()], (INFINITY, 0));
    }
}
