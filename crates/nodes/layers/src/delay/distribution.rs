//! How long requests are delayed: distributions of latencies.
//!
//! Invariants: a drawn latency is never negative and never above [`Latency::MAX`]: what a normal
//! distribution has below 0 counts as 0, and what is above the bound as the bound.

use std::f64::consts::TAU;
use std::sync::Arc;
use std::time::Duration;

use super::histogram::Histogram;
use super::random::Random;

/// A time by which something is delayed: at most an hour.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Latency(Duration);

/// A latency of more than an hour.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{ns} ns is more than an hour ({} ns)", Latency::MAX.ns())]
pub struct LatencyTooLong {
    /// What was asked for, in nanoseconds.
    pub ns: u64,
}

impl Latency {
    /// No delay.
    pub const ZERO: Self = Self(Duration::ZERO);

    /// The longest: an hour.
    pub const MAX: Self = Self(Duration::from_secs(3600));

    /// So many nanoseconds.
    pub fn from_ns(ns: u64) -> Result<Self, LatencyTooLong> {
        let latency = Self(Duration::from_nanos(ns));
        if latency > Self::MAX { Err(LatencyTooLong { ns }) } else { Ok(latency) }
    }

    /// In nanoseconds.
    pub fn ns(self) -> u64 {
        u64::try_from(self.0.as_nanos()).expect("an hour in nanoseconds fits 64 bits")
    }

    /// As a time.
    pub fn duration(self) -> Duration {
        self.0
    }

    /// The nearest there is to so many seconds.
    fn nearest(seconds: f64) -> Self {
        Self(Duration::from_secs_f64(seconds.clamp(0.0, Self::MAX.0.as_secs_f64())))
    }
}

/// How long the requests of one kind are delayed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Distribution {
    /// All alike.
    Fixed(Latency),
    /// Evenly between two bounds.
    Uniform(UniformLatency),
    /// Around a mean.
    Normal {
        /// The mean, before what is negative counts as 0.
        mean: Latency,
        /// The standard deviation.
        deviation: Latency,
    },
    /// Most of them short and few very long, as arrivals that know nothing of each other.
    Exponential {
        /// The mean.
        mean: Latency,
    },
    /// As they were measured.
    Histogram(Arc<Histogram>),
}

/// The bounds of a uniform latency distribution: the shortest and the longest latency.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UniformLatency {
    shortest: Latency,
    longest: Latency,
}

impl UniformLatency {
    /// From the first to the second, both included; `None` if the first is above the second.
    pub fn new(shortest: Latency, longest: Latency) -> Option<Self> {
        (shortest <= longest).then_some(Self { shortest, longest })
    }
}

impl Distribution {
    /// No delay at all.
    pub const NONE: Self = Self::Fixed(Latency::ZERO);

    /// Whether there is never any delay.
    pub(super) fn is_none(&self) -> bool {
        let longest = match self {
            Self::Fixed(latency) | Self::Exponential { mean: latency } => *latency,
            Self::Uniform(bounds) => bounds.longest,
            Self::Normal { mean, deviation } => *mean.max(deviation),
            Self::Histogram(histogram) => histogram.longest(),
        };
        longest == Latency::ZERO
    }

    /// How long the next request is delayed.
    pub(super) fn draw(&self, random: &mut Random) -> Latency {
        match self {
            Self::Fixed(latency) => *latency,
            Self::Uniform(UniformLatency { shortest, longest }) => {
                let more = random.below(longest.ns() - shortest.ns() + 1);
                Latency(shortest.0 + Duration::from_nanos(more))
            }
            Self::Normal { mean, deviation } => {
                let seconds = mean.0.as_secs_f64() + deviation.0.as_secs_f64() * normal(random);
                Latency::nearest(seconds)
            }
            Self::Exponential { mean } => {
                Latency::nearest(-mean.0.as_secs_f64() * (1.0 - random.fraction()).ln())
            }
            Self::Histogram(histogram) => histogram.at(random.below(histogram.total())),
        }
    }
}

/// A number around 0 with deviation 1 (Box and Muller).
fn normal(random: &mut Random) -> f64 {
    let radius = (-2.0 * (1.0 - random.fraction()).ln()).sqrt();
    radius * (TAU * random.fraction()).cos()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// So many draws that a deviation of 1 % of the mean would show.
    const DRAWS: usize = 100_000;

    /// The largest distance from the true distribution that one run in a thousand has:
    /// 1.95 / sqrt(n) (Kolmogorov).
    const DISTANCE_MAX: f64 = 1.95 / 316.2;

    fn latency(ns: u64) -> Latency {
        Latency::from_ns(ns).unwrap()
    }

    fn draws(distribution: &Distribution) -> Vec<f64> {
        let mut random = Random::new(42, "disk", 0);
        (0..DRAWS).map(|_| distribution.draw(&mut random).ns() as f64).collect()
    }

    /// Compares what is drawn with mean, deviation and cumulative distribution, in nanoseconds.
    #[track_caller]
    fn check(distribution: &Distribution, mean: f64, deviation: f64, up_to: impl Fn(f64) -> f64) {
        let mut all = draws(distribution);
        let count = all.len() as f64;
        let seen_mean = all.iter().sum::<f64>() / count;
        let variance = all.iter().map(|it| (it - seen_mean).powi(2)).sum::<f64>() / count;
        // Four standard errors of a mean.
        let error = 4.0 * deviation / count.sqrt();
        assert!((seen_mean - mean).abs() <= error, "mean {seen_mean}, not {mean} ± {error}");
        let seen_deviation = variance.sqrt();
        let off = (seen_deviation - deviation).abs() / deviation;
        assert!(off < 0.02, "deviation {seen_deviation}, not {deviation}");
        all.sort_unstable_by(f64::total_cmp);
        let distance = (0..all.len()).map(|place| {
            let (below, above) = (place as f64 / count, (place + 1) as f64 / count);
            let expected = up_to(all[place]);
            (expected - below).abs().max((expected - above).abs())
        });
        let distance = distance.fold(0.0, f64::max);
        assert!(distance <= DISTANCE_MAX, "distance {distance} above {DISTANCE_MAX}");
    }

    /// The share of a normal distribution below `z` deviations (Abramowitz and Stegun 7.1.26, exact to
    /// 1.5e-7).
    fn normal_up_to(z: f64) -> f64 {
        let x = z.abs() / 2_f64.sqrt();
        let t = 1.0 / (1.0 + 0.327_591_1 * x);
        let factors = [1.061_405_429, -1.453_152_027, 1.421_413_741, -0.284_496_736, 0.254_829_592];
        let sum = factors.iter().fold(0.0, |sum, factor| (sum + factor) * t);
        let error_function = 1.0 - sum * (-x * x).exp();
        if z < 0.0 { (1.0 - error_function) / 2.0 } else { (1.0 + error_function) / 2.0 }
    }

    #[test]
    fn draws_follow_a_uniform_distribution() {
        let bounds = UniformLatency::new(latency(200_000), latency(600_000)).unwrap();
        check(&Distribution::Uniform(bounds), 400_000.0, 400_000.0 / 12_f64.sqrt(), |ns| {
            (ns - 200_000.0) / 400_000.0
        });
    }

    #[test]
    fn draws_follow_a_normal_distribution() {
        let normal = Distribution::Normal { mean: latency(1_000_000), deviation: latency(100_000) };
        check(&normal, 1_000_000.0, 100_000.0, |ns| normal_up_to((ns - 1_000_000.0) / 100_000.0));
    }

    #[test]
    fn draws_follow_an_exponential_distribution() {
        let exponential = Distribution::Exponential { mean: latency(2_000_000) };
        check(&exponential, 2_000_000.0, 2_000_000.0, |ns| 1.0 - (-ns / 2_000_000.0).exp());
    }

    #[test]
    fn draws_follow_a_histogram() {
        let histogram = Histogram::parse(b"100000 70\n2000000 25\n50000000 5\n").unwrap();
        let all = draws(&Distribution::Histogram(Arc::new(histogram)));
        for (ns, share) in [(100_000.0, 0.7), (2_000_000.0, 0.25), (50_000_000.0, 0.05)] {
            let seen = all.iter().filter(|it| **it == ns).count() as f64 / all.len() as f64;
            assert!((seen - share).abs() < DISTANCE_MAX, "{ns}: {seen}, not {share}");
        }
    }

    #[test]
    fn a_wide_normal_distribution_is_cut_at_its_ends() {
        let normal = Distribution::Normal { mean: latency(1000), deviation: latency(1_000_000) };
        let all = draws(&normal);
        let zeroes = all.iter().filter(|it| **it == 0.0).count() as f64 / all.len() as f64;
        assert!((zeroes - 0.5).abs() < 0.01, "{zeroes}");
        let hour = Latency::MAX;
        let long = draws(&Distribution::Normal { mean: hour, deviation: hour });
        assert!(long.iter().all(|it| *it <= hour.ns() as f64));
    }

    #[test]
    fn the_same_seed_draws_the_same() {
        let exponential = Distribution::Exponential { mean: latency(1_000_000) };
        let first: Vec<_> = draws(&exponential).into_iter().take(3).collect();
        assert_eq!(first, draws(&exponential)[..3]);
    }

    #[test]
    fn only_what_never_delays_is_none() {
        let histogram =
            |text: &[u8]| Distribution::Histogram(Arc::new(Histogram::parse(text).unwrap()));
        let bounds = |longest| UniformLatency::new(Latency::ZERO, latency(longest)).unwrap();
        for (distribution, none) in [
            (Distribution::NONE, true),
            (Distribution::Fixed(latency(1)), false),
            (Distribution::Uniform(bounds(0)), true),
            (Distribution::Uniform(bounds(1)), false),
            (Distribution::Normal { mean: latency(0), deviation: latency(0) }, true),
            (Distribution::Normal { mean: latency(0), deviation: latency(1) }, false),
            (Distribution::Exponential { mean: latency(0) }, true),
            (Distribution::Exponential { mean: latency(1) }, false),
            (histogram(b"0 1"), true),
            (histogram(b"0 1\n1 1"), false),
        ] {
            assert_eq!(distribution.is_none(), none, "{distribution:?}");
        }
        assert_eq!(UniformLatency::new(latency(2), latency(1)), None);
    }
}
