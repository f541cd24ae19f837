//! Whether a run was steady: the two conditions of SNIA's Performance Test Specification, on five equal windows. Pure.
//!
//! `measure` records the windows, `Run::steadiness` judges them; `UnsteadyRuns` says of several whether most were not.
//!
//! A run is steady if the rates of its windows differ by no more than a fifth of their mean, and the straight line through
//! them (least squares) rises or falls by no more than a tenth of the mean (SSS PTS 2.0.1, definition of steady state; there
//! a window is a round of a test, here a fifth of one run's measured time).
//!
//! Invariants: every figure of a judgement is finite. Limits: windows of few requests differ by chance; nothing corrects for
//! that, so a slow disk needs a longer runtime.

use std::iter::Sum;

use load::FIFTHS;

/// The largest difference of two windows, as a share of the mean.
const RANGE_MAX: f64 = 0.2;
/// The most that the line may rise or fall from the first window to the last, as a share of the mean.
const RISE_MAX: f64 = 0.1;
/// What the arithmetic may add to a figure that is exactly at a limit.
const ROUNDING: f64 = 1e-9;
/// A second that is longer than this share of a window cannot be divided among windows.
const LONGEST_SECOND: f64 = 1.5;

/// The judgement on one run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Steady {
    /// There are not five windows, or nothing was done in any of them.
    Unknown,
    /// Neither its range nor its rise is too large.
    Steady,
    /// One of them is.
    Unsteady {
        /// The fastest window less the slowest, as a share of the mean.
        range: f64,
        /// How much faster the line through the windows ends than it begins, as a share of the mean; negative if it falls.
        rise: f64,
        /// Whether only the first window stands out: the ramp was too short.
        still_warming: bool,
    },
}

/// How many of several runs were not steady.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UnsteadyRuns {
    unsteady: usize,
    all: usize,
}

impl UnsteadyRuns {
    /// Takes in a run. One of which it is unknown is not unsteady.
    pub fn note(&mut self, steady: Steady) {
        self.unsteady += usize::from(matches!(steady, Steady::Unsteady { .. }));
        self.all += 1;
    }

    /// Whether most of the runs were not steady.
    pub fn are_most(self) -> bool {
        self.unsteady * 2 > self.all
    }

    /// 0 of no runs.
    pub fn share(self) -> f64 {
        self.unsteady as f64 / self.all.max(1) as f64
    }
}

impl FromIterator<Steady> for UnsteadyRuns {
    fn from_iter<T: IntoIterator<Item = Steady>>(runs: T) -> Self {
        let mut counted = Self::default();
        runs.into_iter().for_each(|steady| counted.note(steady));
        counted
    }
}

impl Sum for UnsteadyRuns {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, it| Self {
            unsteady: sum.unsteady + it.unsteady,
            all: sum.all + it.all,
        })
    }
}

/// Judges the windows of a run: length in ns and requests of each.
pub fn judge(windows: &[(u64, u64)]) -> Steady {
    let rates: Vec<f64> = windows.iter().filter_map(|&window| rate(window)).collect();
    if windows.len() != count() || rates.len() != windows.len() {
        return Steady::Unknown;
    }
    let Some(all) = Figures::of(&rates) else { return Steady::Unknown };
    if all.are_steady() {
        return Steady::Steady;
    }
    let Figures { range, rise, .. } = all;
    Steady::Unsteady { range, rise, still_warming: is_warming(&rates) }
}

/// Five equal windows of a run whose seconds are known, or none if they are too few or too long to be divided. What lies on
/// both sides of a boundary is divided by its length.
pub fn windows(seconds: &[(u64, u64)]) -> Vec<(u64, u64)> {
    let parts = u64::from(FIFTHS);
    let total: u64 = seconds.iter().fold(0, |sum, &(length, _)| sum.saturating_add(length));
    let longest = seconds.iter().map(|&(length, _)| length).max().unwrap_or(0);
    let each = total as f64 / f64::from(FIFTHS);
    if seconds.len() < count() || longest == 0 || longest as f64 > LONGEST_SECOND * each {
        return Vec::new();
    }
    // The remainder of the division goes to the last.
    let ends = (1..=parts).map(|part| if part == parts { total } else { total / parts * part });
    let mut before = (0, 0);
    ends.map(|end| {
        let now = (end, done(seconds, end));
        let window = (now.0 - before.0, now.1 - before.1);
        before = now;
        window
    })
    .collect()
}

/// The requests that were done by then, in ns from the opening of the window.
fn done(seconds: &[(u64, u64)], by: u64) -> u64 {
    let (mut passed, mut done) = (0_u64, 0_u64);
    for &(length, operations) in seconds {
        let inside = (by - passed).min(length);
        let part = u128::from(operations) * u128::from(inside) / u128::from(length.max(1));
        done = done.saturating_add(u64::try_from(part).unwrap_or(u64::MAX));
        passed += inside;
    }
    done
}

/// What the two conditions are about.
#[derive(Clone, Copy, Debug)]
struct Figures {
    mean: f64,
    /// As shares of the mean.
    range: f64,
    rise: f64,
}

impl Figures {
    /// `None` if nothing was done.
    fn of(rates: &[f64]) -> Option<Self> {
        let number = rates.len() as f64;
        let mean = rates.iter().sum::<f64>() / number;
        if mean <= 0.0 {
            return None;
        }
        let highest = rates.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let lowest = rates.iter().copied().fold(f64::INFINITY, f64::min);
        let middle = (number - 1.0) / 2.0;
        let places = || (0_u32..).map(|place| f64::from(place) - middle);
        let slope = places().zip(rates).map(|(place, rate)| place * rate).sum::<f64>()
            / places().take(rates.len()).map(|place| place * place).sum::<f64>();
        let rise = slope * (number - 1.0) / mean;
        Some(Self { mean, range: (highest - lowest) / mean, rise })
    }

    fn are_steady(&self) -> bool {
        self.range <= RANGE_MAX + ROUNDING && self.rise.abs() <= RISE_MAX + ROUNDING
    }
}

/// Whether all but the first are steady, and the first is not like them.
fn is_warming(rates: &[f64]) -> bool {
    let [first, rest @ ..] = rates else { return false };
    let rest = Figures::of(rest).filter(Figures::are_steady);
    rest.is_some_and(|rest| (first - rest.mean).abs() > RISE_MAX * rest.mean)
}

/// Requests per ns; `None` of a window without length.
fn rate((length, operations): (u64, u64)) -> Option<f64> {
    (length > 0).then(|| operations as f64 / length as f64)
}

fn count() -> usize {
    usize::try_from(FIFTHS).expect("five fits usize")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Windows of one second.
    fn of(operations: &[u64]) -> Vec<(u64, u64)> {
        scaled(operations, 1_000_000_000)
    }

    fn scaled(operations: &[u64], length: u64) -> Vec<(u64, u64)> {
        operations.iter().map(|&operations| (length, operations)).collect()
    }

    #[test]
    fn both_conditions_are_kept_at_their_limits_and_not_above() {
        for (operations, steady) in [
            ([100, 100, 100, 100, 100], true),
            ([1, 1, 1, 1, 1], true),
            // The range alone: 20 % and a little more, and a line that is flat.
            ([100, 90, 100, 110, 100], true),
            ([1000, 1100, 1000, 899, 1001], false),
            ([100, 110, 90, 110, 90], true),
            ([100, 110, 89, 110, 91], false),
            // The rise alone: 10 %, and a little more, either way.
            ([950, 975, 1000, 1025, 1050], true),
            ([1050, 1025, 1000, 975, 950], true),
            ([949, 975, 1000, 1025, 1051], false),
            ([1051, 1025, 1000, 975, 949], false),
            // A stall.
            ([100, 100, 0, 100, 100], false),
            ([0, 0, 0, 0, 1], false),
        ] {
            let found = judge(&of(&operations));
            assert_eq!(found == Steady::Steady, steady, "{operations:?}: {found:?}");
            assert_ne!(found, Steady::Unknown, "{operations:?}");
        }
    }

    #[test]
    fn what_says_nothing_is_unknown() {
        let mut torn = of(&[100; 5]);
        torn[4].0 = 0;
        let cases = [Vec::new(), of(&[100; 4]), of(&[100; 6]), of(&[0; 5]), torn];
        for windows in cases {
            assert_eq!(judge(&windows), Steady::Unknown, "{windows:?}");
        }
    }

    #[test]
    fn rates_count_and_not_requests() {
        let windows = [(200, 20), (100, 10), (400, 40), (200, 20), (100, 10)];
        assert_eq!(judge(&windows), Steady::Steady);
    }

    #[test]
    fn an_unsteady_run_says_how_much() {
        let found = judge(&of(&[100, 90, 80, 70, 60]));
        let Steady::Unsteady { range, rise, still_warming: false } = found else {
            panic!("{found:?}")
        };
        assert!((range - 0.5).abs() < 1e-9 && (rise + 0.5).abs() < 1e-9, "{range} {rise}");
    }

    #[test]
    fn most_runs_are_not_steady_if_more_than_half_are_not() {
        let (steady, not) = (Steady::Steady, judge(&of(&[100, 100, 0, 100, 100])));
        for (runs, most) in [
            (&[][..], false),
            (&[steady][..], false),
            (&[not], true),
            (&[not, steady], false),
            (&[not, Steady::Unknown, not], true),
            (&[Steady::Unknown, Steady::Unknown, not], false),
        ] {
            let counted: UnsteadyRuns = runs.iter().copied().collect();
            assert_eq!(counted.are_most(), most, "{runs:?}");
            assert_eq!(counted.share() > 0.5, most, "{runs:?}");
            assert_eq!([counted; 3].into_iter().sum::<UnsteadyRuns>().are_most(), most);
        }
    }

    #[test]
    fn figures_are_finite_whatever_was_counted() {
        for windows in [[(1, u64::MAX); 5], [(u64::MAX, 1); 5]] {
            assert_eq!(judge(&windows), Steady::Steady);
        }
        let far = [(1, u64::MAX), (u64::MAX, 0), (1, 1), (1, 1), (1, 1)];
        let Steady::Unsteady { range, rise, .. } = judge(&far) else { panic!("steady") };
        assert!(range.is_finite() && rise.is_finite(), "{range} {rise}");
    }

    #[test]
    fn a_first_window_that_stands_out_alone_is_the_ramp() {
        for (operations, warming) in [
            ([80, 100, 100, 100, 100], true),
            ([10, 100, 95, 105, 100], true),
            // Too fast at first, as a disk with a cache is.
            ([300, 100, 102, 99, 100], true),
            // Another one stands out, the rest goes on to rise, it falls all the time, it stands still.
            ([100, 80, 100, 100, 60], false),
            ([60, 80, 90, 100, 110], false),
            ([108, 104, 101, 98, 95], false),
            ([100, 0, 0, 0, 0], false),
        ] {
            let found = judge(&of(&operations));
            let Steady::Unsteady { still_warming, .. } = found else {
                panic!("{operations:?}: {found:?}")
            };
            assert_eq!(still_warming, warming, "{operations:?}: {found:?}");
        }
    }

    #[test]
    fn seconds_make_five_windows_with_all_requests() {
        for (seconds, expected) in [
            // One second each.
            (of(&[1, 2, 3, 4, 5]), of(&[1, 2, 3, 4, 5])),
            (of(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]), scaled(&[3, 7, 11, 15, 19], 2_000_000_000)),
            // Six seconds, a fifth is 1.2.
            (of(&[10, 20, 30, 40, 50, 60]), scaled(&[14, 28, 42, 56, 70], 1_200_000_000)),
            // A fifth of a second less than whole seconds at both ends.
            (
                vec![(5, 5), (10, 20), (10, 30), (10, 40), (10, 50), (5, 25)],
                scaled(&[15, 25, 35, 45, 50], 10),
            ),
        ] {
            assert_eq!(windows(&seconds), expected, "{seconds:?}");
        }
    }

    #[test]
    fn too_few_or_too_long_seconds_make_no_windows() {
        let mut long = of(&[1, 1, 1, 1, 1, 1, 1]);
        long[3].0 = 4_000_000_000;
        for seconds in [Vec::new(), of(&[1; 4]), vec![(0, 0); 5], long] {
            assert_eq!(windows(&seconds), [], "{seconds:?}");
        }
        assert_eq!(windows(&[(u64::MAX, u64::MAX); 5]), [], "no run is that long");
    }
}
