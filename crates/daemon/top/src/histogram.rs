//! How long requests took in an interval: differences of a daemon's buckets, and what is read off them.
//!
//! Invariants: buckets of all queues of a daemon begin and end at the same times, so those of several queues add up. A bucket that
//! a daemon does not name is empty.

use std::collections::BTreeMap;

use serde::Deserialize;

/// How many requests took at least `from_ns` and less than `to_ns`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub(crate) struct Bucket {
    pub(crate) from_ns: u64,
    pub(crate) to_ns: u64,
    pub(crate) count: u64,
}

/// Requests by how long they took.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Histogram(BTreeMap<(u64, u64), u64>);

impl Histogram {
    /// What came to the buckets since they were as they were before.
    pub(crate) fn between(before: &[Bucket], now: &[Bucket]) -> Self {
        let mut all = Self::default();
        for bucket in now {
            *all.0.entry((bucket.from_ns, bucket.to_ns)).or_default() += bucket.count;
        }
        for bucket in before {
            if let Some(count) = all.0.get_mut(&(bucket.from_ns, bucket.to_ns)) {
                *count = count.saturating_sub(bucket.count);
            }
        }
        all.0.retain(|_, count| *count > 0);
        all
    }

    /// Adds those of another queue.
    pub(crate) fn add(&mut self, other: &Self) {
        for (bucket, count) in &other.0 {
            *self.0.entry(*bucket).or_default() += count;
        }
    }

    /// The end of the bucket below which so many of a hundred requests stay, as `ringloom ctl list queues` has it.
    pub(crate) fn percentile(&self, percent: u64) -> Option<u64> {
        let total: u128 = self.0.values().map(|count| u128::from(*count)).sum();
        let mut below = 0;
        self.0.iter().find_map(|((_, to), count)| {
            below += u128::from(*count);
            (below * 100 >= total * u128::from(percent)).then_some(*to)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn buckets(all: &[(u64, u64, u64)]) -> Vec<Bucket> {
        all.iter().map(|&(from_ns, to_ns, count)| Bucket { from_ns, to_ns, count }).collect()
    }

    #[test]
    fn percentiles_are_those_of_the_interval_and_not_of_all_time() {
        let before = buckets(&[(0, 256, 1000), (1024, 1280, 5)]);
        let now = buckets(&[(0, 256, 1000), (1024, 1280, 103), (4096, 5120, 2)]);
        let found = Histogram::between(&before, &now);
        assert_eq!(found.percentile(50), Some(1280));
        assert_eq!(found.percentile(98), Some(1280));
        assert_eq!(found.percentile(99), Some(5120));
        assert_eq!(Histogram::between(&now, &now).percentile(50), None);
        assert_eq!(Histogram::default().percentile(99), None);
    }

    #[test]
    fn queues_add_up() {
        let mut all = Histogram::between(&[], &buckets(&[(0, 256, 1)]));
        all.add(&Histogram::between(&[], &buckets(&[(0, 256, 1), (512, 640, 98)])));
        assert_eq!(all.percentile(2), Some(256));
        assert_eq!(all.percentile(3), Some(640));
    }
}
