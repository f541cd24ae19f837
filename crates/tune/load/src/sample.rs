//! What one run yields: requests, bytes, time and the latencies.
//!
//! Invariants: every latency has the same histogram layout, so that merging and storing lose
//! nothing. A sample exists only for a run without a single I/O error.

use std::time::Duration;

use hdrhistogram::Histogram;

/// Latencies above one hour are recorded as one hour.
const LATENCY_NS_MAX: u64 = 3_600_000_000_000;
/// Two significant digits: a percentile is exact to 1 %, and a stored run stays a few KiB.
const DIGITS: u8 = 2;
const NS_PER_SECOND: f64 = 1e9;

/// A histogram of request latencies in nanoseconds.
#[derive(Clone, Debug, PartialEq)]
pub struct Latency(Histogram<u64>);

impl Default for Latency {
    fn default() -> Self {
        Self(Histogram::new_with_max(LATENCY_NS_MAX, DIGITS).expect("the bounds are valid"))
    }
}

impl Latency {
    /// Builds a histogram from pairs of latency and count, as `buckets` gives them.
    #[must_use]
    pub fn from_buckets(buckets: &[(u64, u64)]) -> Self {
        let mut latency = Self::default();
        for &(nanoseconds, count) in buckets {
            latency.0.saturating_record_n(nanoseconds, count);
        }
        latency
    }

    /// The non-empty buckets: a latency that falls into the bucket, and how many requests had it.
    #[must_use]
    pub fn buckets(&self) -> Vec<(u64, u64)> {
        let recorded = self.0.iter_recorded();
        recorded.map(|b| (b.value_iterated_to(), b.count_at_value())).collect()
    }

    /// Adds all requests of `other`.
    pub fn merge(&mut self, other: &Self) {
        self.0.add(&other.0).expect("both have the same layout");
    }

    /// The number of requests.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// The latency that `percent` of all requests did not exceed; `None` without requests.
    #[must_use]
    pub fn percentile(&self, percent: f64) -> Option<Duration> {
        let filled = !self.0.is_empty();
        filled.then(|| Duration::from_nanos(self.0.value_at_percentile(percent)))
    }

    /// The mean latency, exact to 1 %; `None` without requests.
    #[must_use]
    pub fn mean(&self) -> Option<Duration> {
        let filled = !self.0.is_empty();
        filled.then(|| Duration::from_secs_f64(self.0.mean() / NS_PER_SECOND))
    }

    /// The standard deviation of the latencies; `None` without requests.
    #[must_use]
    pub fn stddev(&self) -> Option<Duration> {
        let filled = !self.0.is_empty();
        filled.then(|| Duration::from_secs_f64(self.0.stdev() / NS_PER_SECOND))
    }

    /// The upper end of the bucket of the slowest request; `None` without requests.
    #[must_use]
    pub fn max(&self) -> Option<Duration> {
        let filled = !self.0.is_empty();
        filled.then(|| Duration::from_nanos(self.0.max()))
    }

    /// Adds one request.
    pub fn record(&mut self, latency: Duration) {
        let nanoseconds = u64::try_from(latency.as_nanos()).unwrap_or(LATENCY_NS_MAX);
        self.0.saturating_record(nanoseconds);
    }
}

/// The result of one run without errors; the ramp is not in it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sample {
    /// Requests that completed inside the measured window.
    pub operations: u64,
    /// The bytes they moved.
    pub bytes: u64,
    /// The length of the window.
    pub elapsed: Duration,
    /// The latencies of these requests, of all jobs together.
    pub latency: Latency,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn latency(values: &[u64]) -> Latency {
        let mut latency = Latency::default();
        for &value in values {
            latency.record(Duration::from_nanos(value));
        }
        latency
    }

    #[test]
    fn buckets_lose_nothing() {
        let original = latency(&[1, 127, 4_096, 4_100, 1_000_000, 77_000_000_000, u64::MAX]);
        assert_eq!(Latency::from_buckets(&original.buckets()), original);
    }

    #[test]
    fn merging_adds_the_requests() {
        let mut merged = latency(&[100, 200]);
        merged.merge(&latency(&[300_000]));
        assert_eq!(merged.count(), 3);
        assert_eq!(merged, latency(&[100, 200, 300_000]));
    }

    #[test]
    fn percentiles_are_exact_to_one_percent() {
        let values: Vec<u64> = (1..=1000).map(|n| n * 1000).collect();
        let median = latency(&values).percentile(50.0).unwrap();
        assert!((495_000..=505_000).contains(&median.as_nanos()), "{median:?}");
    }

    #[test]
    fn mean_deviation_and_maximum_are_those_of_the_values() {
        let latency = latency(&[100_000, 200_000, 600_000]);
        let near = |found: Option<Duration>, wanted: f64| {
            let found = found.unwrap().as_secs_f64() * NS_PER_SECOND;
            assert!((found / wanted - 1.0).abs() < 0.01, "{found} for {wanted}");
        };
        near(latency.mean(), 300_000.0);
        near(latency.stddev(), 216_025.0);
        near(latency.max(), 600_000.0);
    }

    #[test]
    fn no_requests_have_no_percentile() {
        let none = Latency::default();
        assert_eq!(none.percentile(99.0), None);
        assert_eq!((none.mean(), none.stddev(), none.max()), (None, None, None));
    }
}
