//! Whether the machine became slower or faster while it was measured, told from sentinel runs.
//!
//! A sentinel is one run that is repeated between the others. Pure functions.
//!
//! Invariants: spans are in the order of time and every change above `CHANGE_MAX` is in one:
//! a jump between neighbours, or what all jumps leave unexplained between the extremes.

use serde::{Deserialize, Serialize};

use crate::calendar::{Date, time_of_day};

/// A change of more than 5 % is flagged; less is the noise of a good machine.
const CHANGE_MAX: f64 = 0.05;

/// How the sentinel went, in requests per second.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Drift {
    pub(crate) first: f64,
    pub(crate) last: f64,
    pub(crate) lowest: f64,
    pub(crate) highest: f64,
    /// The highest relative to the lowest, less one: 0.1 is 10 %.
    pub(crate) span: f64,
    pub(crate) flags: Vec<Flag>,
}

/// A time in which the sentinel changed too much.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Flag {
    pub(crate) from_unix_s: u64,
    pub(crate) to_unix_s: u64,
    /// -0.12: it fell by 12 %.
    pub(crate) change: f64,
}

impl Drift {
    /// From `(started_unix_s, iops)` of each sentinel; `None` for fewer than two with a figure.
    pub(crate) fn of(sentinels: &[(u64, f64)]) -> Option<Self> {
        let mut runs = sentinels.to_vec();
        runs.retain(|(_, iops)| iops.is_finite() && *iops > 0.0);
        runs.sort_by_key(|&(started, _)| started);
        let [(_, first), .., (_, last)] = runs.as_slice() else { return None };
        let low = extreme(&runs, |new, old| new < old)?;
        let high = extreme(&runs, |new, old| new > old)?;
        let (lowest, highest) = (low.1, high.1);
        Some(Self {
            first: *first,
            last: *last,
            lowest,
            highest,
            span: highest / lowest - 1.0,
            flags: flags(&runs, low, high),
        })
    }

    /// One sentence for each flag; `runs` are the names and start times of all other runs, and a
    /// run that started in the span is named.
    pub(crate) fn sentences(&self, runs: &[(u64, String)]) -> Vec<String> {
        self.flags.iter().map(|flag| flag.sentence(runs)).collect()
    }
}

/// The first run with the extreme figure.
fn extreme(runs: &[(u64, f64)], beats: fn(f64, f64) -> bool) -> Option<(u64, f64)> {
    runs.iter().copied().reduce(|old, new| if beats(new.1, old.1) { new } else { old })
}

/// Neighbours that differ too much, or else, for a slow drift, the time between the extremes.
fn flags(runs: &[(u64, f64)], low: (u64, f64), high: (u64, f64)) -> Vec<Flag> {
    let neighbours = runs.windows(2).map(|pair| flag(pair[0], pair[1]));
    let mut flags: Vec<Flag> = neighbours.filter(|flag| flag.change.abs() > CHANGE_MAX).collect();
    let overall = if low.0 <= high.0 { flag(low, high) } else { flag(high, low) };
    let inside = |it: &&Flag| overall.covers(it.from_unix_s) && overall.covers(it.to_unix_s);
    let jumps: f64 = flags.iter().filter(inside).map(|flag| 1.0 + flag.change).product();
    // What the flagged jumps do not explain is a slow drift.
    if ((1.0 + overall.change) / jumps - 1.0).abs() > CHANGE_MAX {
        flags.push(overall);
    }
    flags.sort_by_key(|flag| (flag.from_unix_s, flag.to_unix_s));
    flags
}

fn flag(from: (u64, f64), to: (u64, f64)) -> Flag {
    Flag { from_unix_s: from.0, to_unix_s: to.0, change: to.1 / from.1 - 1.0 }
}

impl Flag {
    /// Whether a run that started then may have seen the change.
    pub(crate) fn covers(&self, started_unix_s: u64) -> bool {
        (self.from_unix_s..=self.to_unix_s).contains(&started_unix_s)
    }

    fn sentence(&self, runs: &[(u64, String)]) -> String {
        let verb = if self.change < 0.0 { "fell" } else { "rose" };
        let percent = self.change.abs() * 100.0;
        let (from, to) = self.times();
        let covered = runs.iter().filter(|(started, _)| self.covers(*started));
        let names: Vec<&str> = covered.map(|(_, name)| name.as_str()).collect();
        let doubt = match names.as_slice() {
            [] => String::new(),
            names => format!("; in doubt: {}", names.join("; ")),
        };
        format!("the sentinel {verb} by {percent:.0} % between {from} and {to} (UTC){doubt}")
    }

    /// Hours and minutes, with the date where they are of different days.
    fn times(&self) -> (String, String) {
        let both = [self.from_unix_s, self.to_unix_s];
        let [from, to] = both.map(time_of_day);
        let [first, last] = both.map(Date::of);
        if first == last { (from, to) } else { (format!("{first} {from}"), format!("{last} {to}")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2026-11-22 14:00:00 UTC.
    const START: u64 = 1_795_356_000;

    fn drift(figures: &[(u64, f64)]) -> Drift {
        let runs: Vec<_> =
            figures.iter().map(|&(minute, iops)| (START + 60 * minute, iops)).collect();
        Drift::of(&runs).unwrap()
    }

    #[track_caller]
    fn check(figures: &[(u64, f64)], expected: &[&str]) {
        assert_eq!(drift(figures).sentences(&[]), expected);
    }

    #[test]
    fn a_steady_sentinel_is_not_flagged() {
        check(&[(0, 100.0), (1, 104.0), (2, 100.0), (3, 101.0)], &[]);
        check(&[(0, 100.0), (9, 104.9)], &[]);
        check(&[(0, 100.0), (5, 98.0), (9, 95.1)], &[]);
    }

    #[test]
    fn a_change_is_flagged_with_its_time() {
        check(
            &[(2, 100.0), (40, 88.0), (50, 88.0)],
            &["the sentinel fell by 12 % between 14:02 and 14:40 (UTC)"],
        );
        check(
            &[(2, 100.0), (40, 106.0)],
            &["the sentinel rose by 6 % between 14:02 and 14:40 (UTC)"],
        );
    }

    #[test]
    fn a_slow_drift_is_flagged_as_a_whole() {
        check(
            &[(0, 100.0), (10, 97.0), (20, 94.0), (30, 93.0), (40, 96.0)],
            &["the sentinel fell by 7 % between 14:00 and 14:30 (UTC)"],
        );
    }

    #[test]
    fn a_drift_besides_a_jump_is_flagged_too() {
        check(
            &[(0, 100.0), (10, 97.0), (20, 87.0), (30, 84.0), (40, 82.0)],
            &[
                "the sentinel fell by 18 % between 14:00 and 14:40 (UTC)",
                "the sentinel fell by 10 % between 14:10 and 14:20 (UTC)",
            ],
        );
    }

    #[test]
    fn a_dip_is_flagged_down_and_up() {
        check(
            &[(0, 100.0), (10, 80.0), (20, 100.0)],
            &[
                "the sentinel fell by 20 % between 14:00 and 14:10 (UTC)",
                "the sentinel rose by 25 % between 14:10 and 14:20 (UTC)",
            ],
        );
    }

    #[test]
    fn another_day_is_told() {
        check(
            &[(9 * 60, 100.0), (11 * 60, 90.0)],
            &["the sentinel fell by 10 % between 2026-11-22 23:00 and 2026-11-23 01:00 (UTC)"],
        );
    }

    #[test]
    fn runs_in_the_span_are_named() {
        let named = [(5, "before"), (10, "a, 1 iothread"), (15, "b, 2 iothreads"), (21, "after")];
        let named = named.map(|(minute, name)| (START + 60 * minute, name.to_owned()));
        let sentences = drift(&[(0, 100.0), (10, 100.0), (20, 50.0), (30, 50.0)]).sentences(&named);
        assert_eq!(
            sentences,
            ["the sentinel fell by 50 % between 14:10 and 14:20 (UTC); in doubt: a, 1 iothread; \
              b, 2 iothreads"]
        );
    }

    #[test]
    fn the_figures_are_those_of_the_runs_in_order() {
        let drift = drift(&[(3, 90.0), (0, 100.0), (1, 80.0), (2, 120.0), (4, f64::NAN), (5, 0.0)]);
        assert_eq!((drift.first, drift.last), (100.0, 90.0));
        assert_eq!((drift.lowest, drift.highest, drift.span), (80.0, 120.0, 0.5));
        let text = serde_json::to_string(&drift).unwrap();
        assert_eq!(serde_json::from_str::<Drift>(&text).unwrap(), drift);
    }

    #[test]
    fn one_sentinel_tells_nothing() {
        assert_eq!(Drift::of(&[]), None);
        assert_eq!(Drift::of(&[(1, 5.0), (2, 0.0)]), None);
    }
}
