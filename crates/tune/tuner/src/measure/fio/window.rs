//! The time in which all places ran: of several that were started together, only what they did then counts. Pure.
//!
//! Limits: whole seconds, as fio reports them. Where these are fewer than half of the measured time, a place keeps all that it
//! did, and the report says that they ran apart.

use std::time::{Duration, Instant};

use load::{Interval, Latency, Sample};

/// When a load was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Window {
    pub(super) open: Instant,
    pub(super) close: Instant,
}

impl Window {
    /// That ended then.
    pub(super) fn ending(close: Instant, elapsed: Duration) -> Self {
        Self { open: close.checked_sub(elapsed).unwrap_or(close), close }
    }

    /// What both have in common; nothing is left where it ends before it begins.
    pub(super) fn with(self, other: Self) -> Self {
        let open = self.open.max(other.open);
        Self { open, close: self.close.min(other.close).max(open) }
    }

    fn contains(self, other: Self) -> bool {
        self.open <= other.open && other.close <= self.close
    }

    /// What a place did in the seconds that lie in the window, of its seconds and the window of its own; nothing if that is less than
    /// half of it.
    pub(super) fn sample(self, seconds: &[Interval], own: Self) -> Option<Sample> {
        let (mut end, mut inside) = (own.close, Vec::new());
        for second in seconds.iter().rev() {
            let window = Self::ending(end, second.elapsed);
            if self.contains(window) {
                inside.push(second);
            }
            end = window.open;
        }
        let elapsed: Duration = inside.iter().map(|second| second.elapsed).sum();
        let is_enough = elapsed * 2 >= own.close.duration_since(own.open) && !elapsed.is_zero();
        is_enough.then(|| {
            let mut latency = Latency::default();
            inside.iter().for_each(|second| latency.merge(&second.latency));
            let operations = inside.iter().map(|second| second.operations).sum();
            let bytes = inside.iter().map(|second| second.bytes).sum();
            Sample { operations, bytes, elapsed, latency }
        })
    }
}

#[cfg(test)]
mod tests {
    use storage::clock;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn seconds(operations: &[u64]) -> Vec<Interval> {
        let second = |(second, &operations): (u32, &u64)| {
            let latency = Latency::from_buckets(&[(u64::from(second) * 1000, operations)]);
            let bytes = operations * 4096;
            Interval { second, operations, bytes, reads: 0, elapsed: SECOND, latency }
        };
        (1..).zip(operations).map(second).collect()
    }

    #[test]
    fn what_was_done_alone_does_not_count() {
        let begin = clock::now();
        let own = Window { open: begin, close: begin + 5 * SECOND };
        let other = Window { open: begin + SECOND, close: begin + 4 * SECOND };
        let common = own.with(other);
        assert_eq!(common, other);
        let sample = common.sample(&seconds(&[100, 1, 2, 3, 100]), own).unwrap();
        assert_eq!((sample.operations, sample.bytes, sample.elapsed), (6, 6 * 4096, 3 * SECOND));
        assert_eq!(sample.latency.count(), 6);
        assert_eq!(own.sample(&seconds(&[7; 5]), own).unwrap().operations, 35);
    }

    #[test]
    fn a_second_that_is_cut_is_none() {
        let begin = clock::now();
        let own = Window { open: begin, close: begin + 4 * SECOND };
        let half = SECOND / 2;
        let common = Window { open: begin + half, close: begin + 4 * SECOND - half };
        assert_eq!(common.sample(&seconds(&[1, 2, 3, 4]), own).unwrap().operations, 5);
        let less = Window { open: begin + half, close: begin + 2 * SECOND };
        assert_eq!(less.sample(&seconds(&[1, 2, 3, 4]), own), None);
    }

    #[test]
    fn those_that_never_met_have_nothing_in_common() {
        let begin = clock::now();
        let one = Window { open: begin, close: begin + SECOND };
        let other = Window { open: begin + 2 * SECOND, close: begin + 3 * SECOND };
        let common = one.with(other);
        assert_eq!(common.open, common.close);
        assert_eq!(common.sample(&seconds(&[5]), one), None);
    }
}
