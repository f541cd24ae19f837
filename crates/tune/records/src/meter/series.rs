//! Counters over time: the moments of the samples and the values between them. Pure functions.
//!
//! Invariants: moments only grow; a series stores a value only when it changed, by the number of
//! its sample, and counters only grow.

use std::time::{Duration, Instant};

/// What the kernel counts for a thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counters {
    pub cpu_ns: u64,
    pub voluntary: u64,
    pub involuntary: u64,
}

impl Counters {
    /// Whether `later` can be a later value of the same thread.
    pub(super) fn precedes(&self, later: &Self) -> bool {
        self.cpu_ns <= later.cpu_ns
            && self.voluntary <= later.voluntary
            && self.involuntary <= later.involuntary
    }

    /// Each with that of another.
    fn with(self, other: Self, both: impl Fn(u64, u64) -> u64) -> Self {
        Self {
            cpu_ns: both(self.cpu_ns, other.cpu_ns),
            voluntary: both(self.voluntary, other.voluntary),
            involuntary: both(self.involuntary, other.involuntary),
        }
    }
}

/// A moment between two samples, or at one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Position {
    pub(super) before: usize,
    pub(super) after: usize,
    /// How far it is from `before` to `after`, as a fraction of nanoseconds.
    part: (u128, u128),
}

impl Position {
    fn at(index: usize) -> Self {
        Self { before: index, after: index, part: (0, 1) }
    }

    /// The value on the straight line from `before` to `after`.
    pub(super) fn blend(&self, before: u64, after: u64) -> u64 {
        let (part, whole) = self.part;
        let grown = u128::from(after.saturating_sub(before)) * part / whole;
        before + u64::try_from(grown).expect("a part of a u64 fits a u64")
    }
}

/// A window of time in terms of samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    pub(super) open: Position,
    pub(super) close: Position,
    pub(super) elapsed: Duration,
}

/// The moments of the samples.
#[derive(Debug, Default)]
pub(super) struct Axis {
    moments: Vec<Instant>,
}

impl Axis {
    pub(super) fn len(&self) -> usize {
        self.moments.len()
    }

    pub(super) fn last(&self) -> Option<Instant> {
        self.moments.last().copied()
    }

    /// Adds a moment and returns its number; one before the last one counts as the last one.
    pub(super) fn push(&mut self, now: Instant) -> usize {
        let last = self.last().unwrap_or(now);
        self.moments.push(now.max(last));
        self.moments.len() - 1
    }

    /// The window, cut to what was sampled; `None` if nothing of it was.
    pub(super) fn window(&self, open: Instant, close: Instant) -> Option<Window> {
        let (first, last) = (*self.moments.first()?, *self.moments.last()?);
        let (open, close) = (open.max(first), close.min(last));
        let elapsed = close.checked_duration_since(open).filter(|elapsed| !elapsed.is_zero())?;
        Some(Window { open: self.position(open), close: self.position(close), elapsed })
    }

    /// Where a moment lies that is neither before the first nor after the last sample.
    fn position(&self, at: Instant) -> Position {
        let after = self.moments.partition_point(|&moment| moment < at);
        if self.moments[after] == at {
            return Position::at(after);
        }
        let (start, end) = (self.moments[after - 1], self.moments[after]);
        let part = ((at - start).as_nanos(), (end - start).as_nanos());
        Position { before: after - 1, after, part }
    }

    /// Drops every second sample and returns the mean distance of those that stay.
    pub(super) fn thin(&mut self) -> Duration {
        self.moments = self.moments.iter().copied().step_by(2).collect();
        let distances = u32::try_from(self.moments.len().saturating_sub(1)).unwrap_or(u32::MAX);
        match (self.moments.first(), self.moments.last()) {
            (Some(&first), Some(&last)) => (last - first) / distances.max(1),
            _ => Duration::ZERO,
        }
    }
}

/// The counters of one thread.
#[derive(Debug)]
pub(super) struct Series {
    /// Number of the sample and the value since then.
    values: Vec<(usize, Counters)>,
}

impl Series {
    pub(super) fn new(index: usize, counters: Counters) -> Self {
        Self { values: vec![(index, counters)] }
    }

    pub(super) fn last(&self) -> Counters {
        self.values.last().map_or_else(Counters::default, |&(_, counters)| counters)
    }

    pub(super) fn push(&mut self, index: usize, counters: Counters) {
        if self.last() != counters {
            self.values.push((index, counters));
        }
    }

    /// What was counted in the window.
    pub(super) fn between(&self, window: &Window) -> Counters {
        self.at(&window.close).with(self.at(&window.open), u64::saturating_sub)
    }

    fn at(&self, position: &Position) -> Counters {
        let (before, after) = (self.value(position.before), self.value(position.after));
        before.with(after, |before, after| position.blend(before, after))
    }

    /// Zero before the thread was first seen: then it did not exist.
    fn value(&self, index: usize) -> Counters {
        let next = self.values.partition_point(|&(at, _)| at <= index);
        next.checked_sub(1).map_or_else(Counters::default, |at| self.values[at].1)
    }

    /// Follows `Axis::thin`: what was seen at a dropped sample is seen at the next one.
    pub(super) fn thin(&mut self) {
        let mut thinned: Vec<(usize, Counters)> = Vec::with_capacity(self.values.len());
        for &(index, counters) in &self.values {
            let index = index.div_ceil(2);
            if thinned.last().is_some_and(|&(last, _)| last == index) {
                thinned.pop();
            }
            thinned.push((index, counters));
        }
        self.values = thinned;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn axis(milliseconds: &[u64]) -> (Instant, Axis) {
        let start = storage::clock::now();
        let mut axis = Axis::default();
        for &at in milliseconds {
            axis.push(start + Duration::from_millis(at));
        }
        (start, axis)
    }

    fn cpu(cpu_ns: u64) -> Counters {
        Counters { cpu_ns, ..Counters::default() }
    }

    #[test]
    fn both_ends_are_interpolated() {
        let (start, axis) = axis(&[0, 100, 200, 400]);
        let mut series = Series::new(0, cpu(1000));
        series.push(1, cpu(2000));
        series.push(3, cpu(6000));
        for (open, close, used) in [
            (0, 400, 5000),
            (0, 100, 1000),
            (50, 100, 500),
            (25, 75, 500),
            (100, 200, 0),
            (200, 400, 4000),
            (50, 300, 2500),
            (0, 9999, 5000),
        ] {
            let at = |milliseconds| start + Duration::from_millis(milliseconds);
            let window = axis.window(at(open), at(close)).unwrap();
            assert_eq!(series.between(&window), cpu(used), "{open} to {close}");
        }
    }

    #[test]
    fn a_window_is_cut_to_what_was_sampled() {
        let (start, axis) = axis(&[100, 200]);
        let at = |milliseconds| start + Duration::from_millis(milliseconds);
        let elapsed = |open, close| axis.window(at(open), at(close)).map(|it| it.elapsed);
        assert_eq!(elapsed(0, 150), Some(Duration::from_millis(50)));
        assert_eq!(elapsed(0, 900), Some(Duration::from_millis(100)));
        assert_eq!(elapsed(0, 100), None);
        assert_eq!(elapsed(200, 300), None);
        assert_eq!(elapsed(180, 120), None);
        assert_eq!(Axis::default().window(start, at(1)), None);
    }

    #[test]
    fn a_thread_that_starts_in_between_counts_from_zero() {
        let (start, axis) = axis(&[0, 100, 200]);
        let series = Series::new(1, cpu(700));
        let window = axis.window(start, start + Duration::from_millis(200)).unwrap();
        assert_eq!(series.between(&window), cpu(700));
    }

    #[test]
    fn thinning_keeps_the_values_at_what_stays() {
        let (start, mut axis) = axis(&[0, 100, 200, 300, 400]);
        let mut series = Series::new(0, cpu(10));
        for (index, value) in [(1, 20), (2, 30), (3, 40)] {
            series.push(index, cpu(value));
        }
        let late = Series::new(3, cpu(5));
        let mut thinned_late = late;
        assert_eq!(axis.thin(), Duration::from_millis(200));
        series.thin();
        thinned_late.thin();
        assert_eq!(axis.len(), 3);
        let values: Vec<u64> = (0..3).map(|index| series.value(index).cpu_ns).collect();
        assert_eq!(values, [10, 30, 40]);
        let values: Vec<u64> = (0..3).map(|index| thinned_late.value(index).cpu_ns).collect();
        assert_eq!(values, [0, 0, 5]);
        let window = axis.window(start, start + Duration::from_millis(300)).unwrap();
        assert_eq!(series.between(&window), cpu(25));
    }
}
