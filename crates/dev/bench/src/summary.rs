//! From samples to medians, spreads and what counts as noise. Pure functions.

use load::Spread;

/// A run is never more exact than this, whatever its repeats say.
const NOISE_MIN: f64 = 0.01;

/// By how much (0.05: five percent) two medians of such a series may differ without a cause.
///
/// The repeats of one contender inside a run are an A/A test: half of them against the other half,
/// and each against the next. The larger of the two differences counts. `None` with fewer than four.
pub(crate) fn noise(series: &[f64]) -> Option<f64> {
    if series.len() < 4 {
        return None;
    }
    let half = |from| series.iter().copied().skip(from).step_by(2).collect::<Vec<_>>();
    let [even, odd] = [0, 1].map(|from| Spread::of(half(from)).map_or(0.0, |s| s.median));
    let steps: Vec<f64> = series.windows(2).map(|w| difference(w[0], w[1])).collect();
    let step = Spread::of(steps)?.median;
    Some(difference(even, odd).max(step).max(NOISE_MIN))
}

/// How far two values are apart, relative to the first.
fn difference(first: f64, second: f64) -> f64 {
    if first == second { 0.0 } else { (second / first - 1.0).abs().min(10.0) }
}

/// How one run compares with another.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Change {
    pub(crate) before: f64,
    pub(crate) after: f64,
    /// `None` if a run has too few repeats to tell.
    pub(crate) noise: Option<f64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    More,
    Less,
    None,
    Unknown,
}

impl Change {
    /// `None` if one of the series is empty.
    pub(crate) fn between(before: &[f64], after: &[f64]) -> Option<Self> {
        let noise = noise(before).zip(noise(after)).map(|(a, b)| a.max(b));
        let median =
            |series: &[f64]| Spread::of(series.iter().copied()).map(|spread| spread.median);
        Some(Self { before: median(before)?, after: median(after)?, noise })
    }

    pub(crate) fn relative(&self) -> f64 {
        if self.before == self.after { 0.0 } else { self.after / self.before - 1.0 }
    }

    pub(crate) fn direction(&self) -> Direction {
        match self.noise {
            None => Direction::Unknown,
            Some(noise) if self.relative() > noise => Direction::More,
            Some(noise) if self.relative() < -noise => Direction::Less,
            Some(_) => Direction::None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_has_the_middle_and_the_ends() {
        let spread = |values: &[f64]| {
            Spread::of(values.iter().copied()).map(|s| (s.lowest, s.median, s.highest))
        };
        assert_eq!(spread(&[3.0, 1.0, 2.0]), Some((1.0, 2.0, 3.0)));
        assert_eq!(spread(&[4.0, 1.0]), Some((1.0, 2.5, 4.0)));
        assert_eq!(spread(&[]), None);
    }

    #[test]
    fn noise_is_what_repeats_differ_by() {
        assert_eq!(noise(&[1.0, 2.0, 3.0]), None);
        assert_eq!(noise(&[5.0; 6]), Some(NOISE_MIN));
        let found = noise(&[100.0, 110.0, 100.0, 110.0, 100.0]).unwrap();
        assert!((0.08..0.11).contains(&found), "{found}");
    }

    #[track_caller]
    fn check(before: f64, after: f64, expected: Direction) {
        let series = |level: f64| [level, level * 1.04, level, level * 1.04, level].to_vec();
        let change = Change::between(&series(before), &series(after)).unwrap();
        assert_eq!(change.direction(), expected, "{change:?}");
    }

    #[test]
    fn a_change_counts_above_the_noise_only() {
        check(100.0, 103.0, Direction::None);
        check(100.0, 98.0, Direction::None);
        check(100.0, 120.0, Direction::More);
        check(100.0, 80.0, Direction::Less);
        let single = Change::between(&[1.0], &[2.0]).unwrap();
        assert_eq!(single.direction(), Direction::Unknown);
    }
}
