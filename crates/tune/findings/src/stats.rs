//! What a few repeats of a measurement say: median, extremes, and where the true median lies. Pure functions.
//!
//! `summary` makes an `Estimate` of every figure; `answer` and `summary` resample blocks with `Resampler`.
//!
//! Invariants: nothing is assumed of the distribution. An interval covers the true median with at least `CONFIDENCE`
//! if the repeats are independent, by the ranks of the sorted values alone; fewer than six values have none.

use load::Random;

/// How often an interval contains the true median, at least.
pub const CONFIDENCE: f64 = 0.95;
/// An interval is narrow when half of it is less than this share of the median.
const NARROW: f64 = 0.03;
/// Resamplings of a bootstrap: the 2.5th percentile is the tenth value.
const RESAMPLINGS: usize = 400;

/// Where the true median lies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// Its lower end.
    pub low: f64,
    /// Its upper end.
    pub high: f64,
    /// How often such an interval contains the median: 0.969 for the extremes of six values.
    pub confidence: f64,
}

/// Median, extremes and interval of at least one value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// The value in the middle, or the mean of the two in the middle.
    pub median: f64,
    /// The least value.
    pub lowest: f64,
    /// The greatest value.
    pub highest: f64,
    /// How many values there were.
    pub samples: usize,
    /// From six values on: all of five cover the median with 93.75 %.
    pub interval: Option<Interval>,
}

impl Estimate {
    /// `None` without values. Values that are no number count as if they were not there.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().filter(|value| value.is_finite()).collect();
        values.sort_by(f64::total_cmp);
        let (&lowest, &highest) = (values.first()?, values.last()?);
        let (samples, interval) = (values.len(), interval(&values));
        Some(Self { median: middle(&values), lowest, highest, samples, interval })
    }

    /// The interval, or of too few values the lowest and highest.
    pub fn ends(&self) -> (f64, f64) {
        self.interval.map_or((self.lowest, self.highest), |it| (it.low, it.high))
    }

    /// Half of the interval, as a share of the median.
    pub fn half_width(&self) -> Option<f64> {
        let Interval { low, high, .. } = self.interval?;
        (self.median > 0.0).then(|| (high - low) / 2.0 / self.median)
    }

    /// Whether more repeats would tell little more.
    pub fn is_narrow(&self) -> bool {
        self.half_width().is_some_and(|half| half < NARROW)
    }
}

/// Values relative to those of the same repeat.
pub fn ratios_by_repeat(
    values: impl IntoIterator<Item = (u16, f64)>,
    base: impl IntoIterator<Item = (u16, f64)>,
) -> Vec<(u16, f64)> {
    let base: Vec<(u16, f64)> = base.into_iter().collect();
    let ratio = |(repeat, value): (u16, f64)| {
        base.iter().find(|(other, _)| *other == repeat).map(|(_, base)| (repeat, value / base))
    };
    values.into_iter().filter_map(ratio).collect()
}

/// What these are in the middle.
pub fn ratio_by_repeat(
    values: impl IntoIterator<Item = (u16, f64)>,
    base: impl IntoIterator<Item = (u16, f64)>,
) -> Option<Estimate> {
    Estimate::of(ratios_by_repeat(values, base).into_iter().map(|(_, ratio)| ratio))
}

/// The median of at least one value.
pub fn median(values: &mut [f64]) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    (!values.is_empty()).then(|| middle(values))
}

/// The geometric mean of those values that are positive and finite: the others have none. `None` without any.
pub fn geometric_mean(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let positive = values.into_iter().filter(|value| value.is_finite() && *value > 0.0);
    let logarithms: Vec<f64> = positive.map(f64::ln).collect();
    let count = logarithms.len() as f64;
    (count > 0.0).then(|| (logarithms.iter().sum::<f64>() / count).exp())
}

/// By how much a positive ratio is away from 1, up or down.
pub fn factor(ratio: f64) -> f64 {
    ratio.max(1.0 / ratio)
}

/// Of sorted values, at least one.
fn middle(sorted: &[f64]) -> f64 {
    let middle = sorted.len() / 2;
    if sorted.len().is_multiple_of(2) {
        f64::midpoint(sorted[middle - 1], sorted[middle])
    } else {
        sorted[middle]
    }
}

/// The narrowest interval between a value and the one of the same rank from the other end.
fn interval(sorted: &[f64]) -> Option<Interval> {
    let count = sorted.len();
    let ranks = (0..count.div_ceil(2)).map(|left_out| (left_out, coverage(count, left_out)));
    let (left_out, confidence) = ranks.take_while(|(_, sure)| *sure >= CONFIDENCE).last()?;
    let (low, high) = (sorted[left_out], sorted[count - 1 - left_out]);
    Some(Interval { low, high, confidence })
}

/// How often the median is between the values that remain when so many are left out at each end: as often as a fair
/// coin, thrown `count` times, shows more than `left_out` heads and more than `left_out` tails.
fn coverage(count: usize, left_out: usize) -> f64 {
    let mut ways = 1.0;
    let mut outside = 0.0;
    for heads in 0..=left_out {
        outside += ways;
        ways *= (count - heads) as f64 / (heads + 1) as f64;
    }
    let throws = i32::try_from(count).expect("repeats are few");
    1.0 - 2.0 * outside / 2.0_f64.powi(throws)
}

/// Draws blocks again and again, as a bootstrap does.
#[derive(Debug)]
pub struct Resampler {
    random: Random,
}

impl Resampler {
    /// The draws of a seed, the same each time.
    pub fn new(seed: u64) -> Self {
        Self { random: Random::new(seed) }
    }

    /// How often to draw.
    pub fn times() -> std::ops::Range<usize> {
        0..RESAMPLINGS
    }

    /// As many of these as there are, some twice and some not at all.
    pub fn draw<T: Copy>(&mut self, all: &[T]) -> Vec<T> {
        let bound = u64::try_from(all.len()).expect("a length fits 64 bits");
        let mut one = || usize::try_from(self.random.below(bound)).expect("smaller than a length");
        all.iter().map(|_| all[one()]).collect()
    }
}

/// The values between which the middle 95 % of the resamplings lie.
pub fn middle_95<T: Copy + Ord>(mut values: Vec<T>) -> Option<(T, T)> {
    values.sort_unstable();
    let cut = values.len() / 40;
    Some((*values.get(cut)?, *values.get(values.len().checked_sub(cut + 1)?)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_leaves_out_as_many_as_its_confidence_allows() {
        for (count, low_rank, confidence) in [
            (6, 1, 0.96875),
            (7, 1, 0.984_375),
            (8, 1, 0.992_187_5),
            (9, 2, 0.960_937_5),
            (10, 2, 0.978_515_625),
            (11, 2, 0.988_281_25),
            (12, 3, 0.961_425_781_25),
            (20, 6, 0.958_610_534_667_968_8),
        ] {
            let values = (1..=count).map(f64::from);
            let interval = Estimate::of(values).unwrap().interval.unwrap();
            let expected = Interval {
                low: f64::from(low_rank),
                high: f64::from(count + 1 - low_rank),
                confidence,
            };
            assert_eq!(interval, expected, "{count}");
        }
        for count in 1..=5 {
            assert_eq!(Estimate::of((1..=count).map(f64::from)).unwrap().interval, None);
        }
    }

    #[test]
    fn an_estimate_is_median_extremes_and_number() {
        let of = |values: &[f64]| {
            let Estimate { median, lowest, highest, samples, .. } =
                Estimate::of(values.iter().copied())?;
            Some((median, lowest, highest, samples))
        };
        for (values, expected) in [
            (&[][..], None),
            (&[f64::NAN], None),
            (&[5.0], Some((5.0, 5.0, 5.0, 1))),
            (&[3.0, 1.0], Some((2.0, 1.0, 3.0, 2))),
            (&[9.0, 1.0, 2.0], Some((2.0, 1.0, 9.0, 3))),
            (&[4.0, 1.0, f64::INFINITY, 2.0, 9.0], Some((3.0, 1.0, 9.0, 4))),
        ] {
            assert_eq!(of(values), expected, "{values:?}");
        }
    }

    #[test]
    fn a_geometric_mean_is_of_positive_numbers_only() {
        assert_eq!(geometric_mean([]), None);
        assert_eq!(geometric_mean([0.0, -1.0, f64::NAN, f64::INFINITY]), None);
        assert!((geometric_mean([2.0, 0.0, 8.0, f64::INFINITY]).unwrap() - 4.0).abs() < 1e-9);
    }

    #[test]
    fn a_factor_is_the_same_up_and_down() {
        for (ratio, expected) in [(1.0, 1.0), (4.0, 4.0), (0.25, 4.0), (0.0, f64::INFINITY)] {
            assert_eq!(factor(ratio), expected, "{ratio}");
        }
    }

    #[test]
    fn narrow_is_less_than_3_percent_to_each_side() {
        let narrow = |values: &[f64]| Estimate::of(values.iter().copied()).unwrap().is_narrow();
        assert!(narrow(&[98.0, 99.0, 100.0, 100.0, 101.0, 102.0]));
        assert!(!narrow(&[97.0, 99.0, 100.0, 100.0, 101.0, 103.1]));
        assert!(!narrow(&[100.0; 5]), "five have no interval");
        assert!(!narrow(&[0.0; 6]), "nothing is no rate");
    }

    #[test]
    fn a_resampling_draws_with_replacement() {
        let mut resampler = Resampler::new(1);
        let draws: Vec<Vec<usize>> = (0..200).map(|_| resampler.draw(&[0, 1, 2])).collect();
        assert!(draws.iter().flatten().all(|&index| index < 3));
        assert!(draws.iter().any(|draw| draw.iter().all(|index| *index == draw[0])));
        let first = draws.iter().flatten().filter(|index| **index == 0).count();
        assert!((150..250).contains(&first), "{first} of 600 should be some 200");
    }

    #[test]
    fn the_middle_leaves_out_a_fortieth_at_each_end() {
        assert_eq!(middle_95((0..400).collect::<Vec<_>>()), Some((10, 389)));
        assert_eq!(middle_95(vec![7]), Some((7, 7)));
        assert_eq!(middle_95::<u8>(Vec::new()), None);
    }
}
