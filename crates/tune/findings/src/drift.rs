//! Whether the machine became slower or faster while it was measured, told from sentinel runs.
//!
//! A sentinel is one run that is repeated between the others: on the host, and of what is compared. Pure functions.
//!
//! With enough sentinels they tell their own noise: each is smoothed by its neighbours, and a change must exceed what noise
//! alone would do, or the ranks must show that neighbours are alike, as they are not by chance.
//!
//! Invariants: spans are in the order of time and every change above the threshold, which is at least `CHANGE_MAX`, is in
//! one: a jump between neighbours, or what all jumps leave unexplained between the extremes.

use std::collections::BTreeMap;

use plan::lists::unique;
use plan::runs::Purpose;
use records::calendar::{Date, time_of_day};
use records::results::Run;

use crate::stats;

/// A change of more than 5 % is flagged; less matters to nobody.
const CHANGE_MAX: f64 = 0.05;
/// Fewer sentinels do not tell their noise: every change above `CHANGE_MAX` is flagged.
const TELL_NOISE_FROM: usize = 6;
/// A sentinel is smoothed by so many to each side; by fewer where neighbours show that the machine changes quickly.
const BESIDE: usize = 2;
const BESIDE_CHANGING: usize = 1;
/// A change of so many standard deviations of one sentinel is no noise: smoothed ones differ by half as much, but those of two
/// states, or that stall, more often by more than a normal distribution has it.
const DEVIATIONS: f64 = 4.5;
/// So many percent of the changes between neighbours are not larger than the one that tells the noise: a step, or the ends of
/// a stall, are among the others.
const QUIET_PERCENT: usize = 85;
/// Where that part of a normal distribution lies, to both sides, in standard deviations.
const QUIET_DEVIATIONS: f64 = 1.4395;
/// However few there are, so many changes are left out: the two of a stall and a step.
const LOUD: usize = 3;
/// So that noise alone is flagged no more often than with `QUIET_PERCENT` where that leaves out fewer: of 5 to 14 changes, by
/// 8,000 trials each of normal and lognormal noise of 3 to 20 %.
const QUIET_DEVIATIONS_OF_FEW: [f64; 10] =
    [0.34, 0.47, 0.61, 1.04, 1.06, 1.12, 1.15, 1.16, 1.18, 1.18];
/// How unlikely neighbours are by chance as alike as they are: 2.5 % of each of two contenders, in standard deviations.
const ALIKE: f64 = -1.96;

/// A time in which the sentinel changed too much.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Flag {
    /// When the stretch begins.
    pub from_unix_s: u64,
    /// When it ends.
    pub to_unix_s: u64,
    /// -0.12: it fell by 12 %.
    pub change: f64,
}

/// What the sentinels among all runs say; nothing if fewer than two have a figure. What changed by the host's own is not
/// told by those of what is compared once more.
pub fn flagged(runs: &[Run]) -> Vec<Flag> {
    let sentinels = || runs.iter().filter(|run| run.key.purpose == Purpose::Sentinel);
    let mut contenders = unique(sentinels().map(|run| run.key.contender));
    contenders.sort_by_key(|contender| !contender.is_baseline());
    let mut flags: Vec<Flag> = Vec::new();
    for contender in contenders {
        let own = sentinels().filter(|run| run.key.contender == contender);
        let mut new = flagged_of(&by_round(&own.collect::<Vec<_>>()));
        new.retain(|flag| !flags.iter().any(|known| known.overlaps(flag)));
        flags.extend(new);
    }
    flags
}

/// `(started_unix_s, iops)` of each sentinel; of each round, where there are enough of them, the median of its own: a boot changes
/// all of them, and so is a part of the noise.
fn by_round(runs: &[&Run]) -> Vec<(u64, f64)> {
    let mut rounds = BTreeMap::<Option<u16>, Vec<&Run>>::new();
    for run in runs {
        rounds.entry(run.round).or_default().push(run);
    }
    if rounds.len() < TELL_NOISE_FROM {
        return runs.iter().map(|run| (run.started_unix_s, run.iops())).collect();
    }
    let of_round = |runs: Vec<&Run>| {
        let started = runs.iter().map(|run| run.started_unix_s).min()?;
        let mut rates: Vec<f64> = runs.iter().map(|run| run.iops()).collect();
        rates.retain(|rate| rate.is_finite());
        Some((started, stats::median(&mut rates)?))
    };
    rounds.into_values().filter_map(of_round).collect()
}

/// From `(started_unix_s, iops)` of each sentinel.
fn flagged_of(sentinels: &[(u64, f64)]) -> Vec<Flag> {
    let mut runs = sentinels.to_vec();
    runs.retain(|(_, iops)| iops.is_finite() && *iops > 0.0);
    runs.sort_by_key(|&(started, _)| started);
    changes(&runs).unwrap_or_default()
}

/// The first run with the extreme figure.
fn extreme(runs: &[(u64, f64)], beats: fn(f64, f64) -> bool) -> Option<(u64, f64)> {
    runs.iter().copied().reduce(|old, new| if beats(new.1, old.1) { new } else { old })
}

/// What is flagged; `None` without runs.
fn changes(runs: &[(u64, f64)]) -> Option<Vec<Flag>> {
    if runs.len() < TELL_NOISE_FROM {
        return flags(runs, CHANGE_MAX);
    }
    let above_noise = flags(&smoothed(runs, BESIDE), CHANGE_MAX.max(noise(runs)))?;
    if above_noise.is_empty() && alikeness(runs) < ALIKE {
        return flags(&smoothed(runs, BESIDE_CHANGING), CHANGE_MAX);
    }
    Some(above_noise)
}

/// The change that noise alone does not reach, told from the changes between neighbours.
fn noise(runs: &[(u64, f64)]) -> f64 {
    let mut changes: Vec<f64> =
        runs.windows(2).map(|pair| (pair[1].1 / pair[0].1).ln().abs()).collect();
    changes.sort_by(f64::total_cmp);
    let few = QUIET_DEVIATIONS_OF_FEW.get(changes.len() + 1 - TELL_NOISE_FROM);
    let (quiet, deviations) = match few {
        Some(deviations) => (changes[changes.len() - 1 - LOUD], *deviations),
        None => (changes[(changes.len() - 1) * QUIET_PERCENT / 100], QUIET_DEVIATIONS),
    };
    // A change between two has the noise of both.
    let deviation = quiet / deviations / 2.0_f64.sqrt();
    (DEVIATIONS * deviation).exp() - 1.0
}

/// Each with the median of itself and its neighbours: a step stays where it is, a stall is gone.
fn smoothed(runs: &[(u64, f64)], beside: usize) -> Vec<(u64, f64)> {
    let median = |place: usize| {
        let near = &runs[place.saturating_sub(beside)..runs.len().min(place + beside + 1)];
        stats::median(&mut near.iter().map(|(_, iops)| *iops).collect::<Vec<_>>())
    };
    let smooth = |(place, run): (usize, &(u64, f64))| (run.0, median(place).unwrap_or(run.1));
    runs.iter().enumerate().map(smooth).collect()
}

/// How much more alike the ranks of neighbours are than by chance, in standard deviations; negative if they are (R. Bartels,
/// "The Rank Version of von Neumann's Ratio Test for Randomness", 1982).
fn alikeness(runs: &[(u64, f64)]) -> f64 {
    let rank = |iops: f64| runs.iter().filter(|(_, other)| *other < iops).count() as f64;
    let ranks: Vec<f64> = runs.iter().map(|(_, iops)| rank(*iops)).collect();
    let number = ranks.len() as f64;
    let mean = ranks.iter().sum::<f64>() / number;
    let all: f64 = ranks.iter().map(|rank| (rank - mean).powi(2)).sum();
    let between: f64 = ranks.windows(2).map(|pair| (pair[1] - pair[0]).powi(2)).sum();
    if all == 0.0 { 0.0 } else { (between / all - 2.0) / variance_of_ratio(number).sqrt() }
}

/// The exact variance of the ratio where order is chance (Bartels 1982); it tends to 4/n, which is too much for few.
fn variance_of_ratio(number: f64) -> f64 {
    let n = number;
    4.0 * (n - 2.0) * (5.0 * n * n - 2.0 * n - 9.0) / (5.0 * n * (n + 1.0) * (n - 1.0).powi(2))
}

/// Neighbours that differ too much, or else, for a slow drift, the time between the extremes; `None` without runs.
fn flags(runs: &[(u64, f64)], threshold: f64) -> Option<Vec<Flag>> {
    let low = extreme(runs, |new, old| new < old)?;
    let high = extreme(runs, |new, old| new > old)?;
    let neighbours = runs.windows(2).map(|pair| flag(pair[0], pair[1]));
    let mut flags: Vec<Flag> = neighbours.filter(|flag| flag.change.abs() > threshold).collect();
    let overall = if low.0 <= high.0 { flag(low, high) } else { flag(high, low) };
    let inside = |it: &&Flag| overall.covers(it.from_unix_s) && overall.covers(it.to_unix_s);
    let jumps: f64 = flags.iter().filter(inside).map(|flag| 1.0 + flag.change).product();
    // What the flagged jumps do not explain is a slow drift.
    if ((1.0 + overall.change) / jumps - 1.0).abs() > threshold {
        flags.push(overall);
    }
    flags.sort_by_key(|flag| (flag.from_unix_s, flag.to_unix_s));
    Some(flags)
}

fn flag(from: (u64, f64), to: (u64, f64)) -> Flag {
    Flag { from_unix_s: from.0, to_unix_s: to.0, change: to.1 / from.1 - 1.0 }
}

impl Flag {
    /// Whether a run that started then may have seen the change.
    pub fn covers(&self, started_unix_s: u64) -> bool {
        (self.from_unix_s..=self.to_unix_s).contains(&started_unix_s)
    }

    fn overlaps(&self, other: &Self) -> bool {
        self.from_unix_s <= other.to_unix_s && other.from_unix_s <= self.to_unix_s
    }

    /// Without its full stop.
    pub fn sentence(&self) -> String {
        let verb = if self.change < 0.0 { "fell" } else { "rose" };
        let percent = self.change.abs() * 100.0;
        let (from, to) = self.times();
        format!("the sentinel {verb} by {percent:.0} % between {from} and {to} (UTC)")
    }

    /// Hours and minutes, with the date where they are of different days, and seconds where the minutes are the same.
    fn times(&self) -> (String, String) {
        let both = [self.from_unix_s, self.to_unix_s];
        let [from, to] = both.map(time_of_day);
        let [first, last] = both.map(Date::of);
        if first != last {
            (format!("{first} {from}"), format!("{last} {to}"))
        } else if from == to {
            let [first, last] = both.map(|unix_s| unix_s % 60);
            (format!("{from}:{first:02}"), format!("{to}:{last:02}"))
        } else {
            (from, to)
        }
    }
}

#[cfg(test)]
mod tests {
    use load::Random;

    use super::*;

    /// 2026-11-22 14:00:00 UTC.
    const START: u64 = 1_795_356_000;

    fn drift(figures: &[(u64, f64)]) -> Vec<Flag> {
        let runs: Vec<_> =
            figures.iter().map(|&(minute, iops)| (START + 60 * minute, iops)).collect();
        flagged_of(&runs)
    }

    fn sentences(flags: &[Flag]) -> Vec<String> {
        flags.iter().map(Flag::sentence).collect()
    }

    #[track_caller]
    fn check(figures: &[(u64, f64)], expected: &[&str]) {
        assert_eq!(sentences(&drift(figures)), expected);
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

    /// Noise of about 2 %, and what is multiplied to it.
    fn noisy(course: impl Fn(usize) -> f64) -> Vec<(u64, f64)> {
        let noise = [0.4, -1.9, 2.2, -0.3, 1.1, -2.6, 0.9, 0.1, -1.2, 2.9, -0.7, 1.6, -2.1, 0.2];
        let of = |(place, noise): (usize, &f64)| (1.0 + noise / 100.0) * 100.0 * course(place);
        (0..).step_by(10).zip(noise.iter().enumerate().map(of)).collect()
    }

    #[test]
    fn noise_alone_is_not_flagged_however_many_sentinels_there_are() {
        check(&noisy(|_| 1.0), &[]);
        // One that stalled is no drift either.
        check(&noisy(|place| if place == 5 { 0.4 } else { 1.0 }), &[]);
    }

    #[test]
    fn a_step_and_a_slow_drift_are_told_from_noise() {
        let step = drift(&noisy(|place| if place < 6 { 1.0 } else { 0.8 }));
        let [flag] = &step[..] else { panic!("{step:?}") };
        assert!((flag.change + 0.2).abs() < 0.03 && flag.to_unix_s - flag.from_unix_s <= 3600);
        let slow = drift(&noisy(|place| 1.0 - 0.01 * place as f64));
        assert!(slow.iter().any(|flag| flag.change < -0.08), "{slow:?}");
        let wave = drift(&noisy(|place| 1.0 + 0.1 * (place as f64 * 0.9).sin()));
        assert!(!wave.is_empty());
    }

    #[test]
    fn a_step_is_flagged_however_few_sentinels_there_are_and_if_one_stalled() {
        check(
            &[(0, 100.0), (10, 100.0), (20, 40.0), (30, 100.0), (40, 80.0), (50, 80.0)],
            &["the sentinel fell by 20 % between 14:20 and 14:30 (UTC)"],
        );
        for count in TELL_NOISE_FROM..25 {
            for stalled in 1..count - 1 {
                let iops = |place| if place < count / 2 { 100.0 } else { 80.0 };
                let iops = |place| if place == stalled { 0.4 * iops(place) } else { iops(place) };
                let runs: Vec<(u64, f64)> = (0..).zip((0..count).map(iops)).collect();
                assert!(!drift(&runs).is_empty(), "{stalled} of {count}");
            }
        }
    }

    /// About normal, of this deviation.
    fn noise_of(deviation: f64, random: &mut Random) -> f64 {
        let uniform = |_| random.below(1 << 32) as f64 / f64::from(u32::MAX);
        deviation * ((0..12).map(uniform).sum::<f64>() - 6.0)
    }

    #[test]
    fn noise_alone_is_flagged_in_few_commands_however_few_sentinels_there_are() {
        const TRIALS: u32 = 1000;
        let mut random = Random::new(1);
        // By trials, when the loudest 15 % alone were left out: 7 % of six sentinels, 6 % of seven and eight, 10 % of nine.
        for (count, most) in [(6, 11.0), (7, 10.0), (8, 10.0), (9, 13.0), (12, 10.0), (15, 9.0)] {
            for deviation in [0.03, 0.1] {
                let mut one = |minute| (minute, 100.0 * noise_of(deviation, &mut random).exp());
                let mut command = |_: &u32| {
                    let runs: Vec<(u64, f64)> = (0..count).map(&mut one).collect();
                    !flagged_of(&runs).is_empty()
                };
                let flagged = (0..TRIALS).filter(&mut command).count();
                let percent = 100.0 * flagged as f64 / f64::from(TRIALS);
                assert!(percent <= most, "{count} with {deviation}: {percent} %");
            }
        }
    }

    #[test]
    fn a_noisy_machine_must_change_more() {
        let loud = |place: usize| if place.is_multiple_of(2) { 1.15 } else { 1.0 / 1.15 };
        check(&noisy(loud), &[]);
    }

    #[test]
    fn another_day_is_told() {
        check(
            &[(9 * 60, 100.0), (11 * 60, 90.0)],
            &["the sentinel fell by 10 % between 2026-11-22 23:00 and 2026-11-23 01:00 (UTC)"],
        );
    }

    #[test]
    fn within_a_minute_seconds_are_told() {
        let runs = [(START + 5, 100.0), (START + 59, 90.0)];
        assert_eq!(
            sentences(&flagged_of(&runs)),
            ["the sentinel fell by 10 % between 14:00:05 and 14:00:59 (UTC)"]
        );
    }

    #[test]
    fn sentinels_count_in_the_order_of_time_and_with_a_figure() {
        check(
            &[(20, 92.0), (0, 100.0), (10, 80.0), (30, f64::NAN), (40, 0.0), (50, f64::INFINITY)],
            &[
                "the sentinel fell by 20 % between 14:00 and 14:10 (UTC)",
                "the sentinel rose by 15 % between 14:10 and 14:20 (UTC)",
            ],
        );
    }

    #[test]
    fn one_sentinel_tells_nothing() {
        assert_eq!(flagged_of(&[]), []);
        assert_eq!(flagged_of(&[(1, 5.0), (2, 0.0)]), []);
    }
}
