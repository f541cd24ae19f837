//! Comparisons of made-up runs, and over many seeds: how often nothing is called something, and something is found.

use load::Random;
use plan::testing::{cell, client};
use records::testing::run;

use super::*;
use crate::summary::summarise;

/// Requests of a second without noise.
const RATE: f64 = 100_000.0;
/// By how much two commands differ that were measured alike: standard deviation, as a share.
const OF_COMMAND: f64 = 0.004;

fn cells(rows: &[(Contender, &[u64])]) -> Vec<CellSummary> {
    let mut runs = Vec::new();
    for (contender, repeats) in rows {
        for (repeat, iops) in (0..).zip(*repeats) {
            runs.push(run(cell("randread", 4096, 4, 16), *contender, repeat, *iops));
        }
    }
    summarise(&runs, 16)
}

#[track_caller]
fn check(a: &[u64], b: &[u64], verdict: ChangeVerdict) {
    let comparison = Comparison::new(&cells(&[(client(1), a)]), &cells(&[(client(1), b)]));
    let row = comparison.rows().next().unwrap();
    assert_eq!(row.verdict, verdict, "{row:?}");
}

#[test]
fn a_change_is_told_from_noise() {
    let a = [1000, 1010, 990, 1005, 995, 1000];
    check(&a, &[1200, 1210, 1190, 1205, 1195, 1200], ChangeVerdict::Faster);
    check(&a, &[800, 810, 790, 805, 795, 800], ChangeVerdict::Slower);
    check(&a, &a, ChangeVerdict::Noise);
    // Told apart by the test, but less than two commands differ by.
    check(&a, &[1015, 1025, 1005, 1020, 1010, 1015], ChangeVerdict::Noise);
    check(&[1000; 6], &[1015; 6], ChangeVerdict::Noise);
    // Above that, but its repeats stray as far.
    check(&a, &[1100, 1110, 1090, 900, 1095, 900], ChangeVerdict::Noise);
    check(&[1000, 1300, 700], &[1200, 1500, 900], ChangeVerdict::Noise);
}

#[test]
fn too_few_repeats_and_rates_of_zero_say_nothing() {
    check(&[1000; 2], &[2000; 6], ChangeVerdict::CannotTell);
    check(&[1000; 6], &[2000; 2], ChangeVerdict::CannotTell);
    check(&[1000], &[2000], ChangeVerdict::CannotTell);
    check(&[0; 3], &[2000; 3], ChangeVerdict::CannotTell);
    check(&[0; 3], &[0; 3], ChangeVerdict::CannotTell);
    check(&[1000; 3], &[0; 3], ChangeVerdict::CannotTell);
    check(&[1000, 0, 1000], &[2000; 3], ChangeVerdict::CannotTell);
}

#[test]
fn rows_are_matched_and_the_others_named() {
    let a = cells(&[(Contender::HOST, &[900; 3]), (client(1), &[500; 3]), (client(2), &[800; 3])]);
    let mut b = cells(&[(client(1), &[1000; 3]), (client(2), &[200; 3]), (client(4), &[1; 3])]);
    let comparison = Comparison::new(&a, &b);
    let rows: Vec<_> = comparison.rows().map(|row| (row.contender, row.verdict)).collect();
    assert_eq!(rows, [(client(1), ChangeVerdict::Faster), (client(2), ChangeVerdict::Slower)]);
    let names = |only: &[(Variant, Cell, Contender)]| {
        only.iter().map(|(_, _, contender)| contender.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(names(&comparison.only_a), ["host"]);
    assert_eq!(names(&comparison.only_b), ["client 4"]);
    let [(subject, mean, rows)] = comparison.means[..] else { panic!("{comparison:?}") };
    assert_eq!((subject, rows), (Subject::Client, 2));
    assert!((mean - 0.5_f64.sqrt()).abs() < 1e-12, "2 and a quarter: {mean}");
    b[0].cell = cell("randwrite", 4096, 4, 16);
    let apart = Comparison::new(&a, &b);
    assert_eq!((apart.cells.len(), apart.only_a.len(), apart.only_b.len()), (0, 3, 3));
    assert_eq!(apart.means, []);
}

#[test]
fn the_correction_is_that_of_benjamini_and_hochberg() {
    // Of 10: limits are 0.005, 0.010, 0.015, …
    let of = |found: &[f64]| {
        let rest = vec![Some(0.9); 10 - found.len()];
        limit(&[found.iter().copied().map(Some).collect(), rest, vec![None; 3]].concat())
    };
    assert_eq!(of(&[0.004]), 0.004);
    assert_eq!(of(&[0.006]), -1.0);
    assert_eq!(of(&[0.006, 0.009]), 0.009, "the second allows the first");
    assert_eq!(limit(&[]), -1.0);
    assert_eq!(limit(&[Some(0.0)]), 0.0);
}

/// A normal deviate, by the sum of twelve uniform ones.
fn deviate(random: &mut Random) -> f64 {
    let uniform = |_| random.below(1 << 32) as f64 / (1_u64 << 32) as f64;
    (0..12).map(uniform).sum::<f64>() - 6.0
}

/// One row of one run with noise of so many percent.
fn noisy(random: &mut Random, percent: f64, repeats: usize, rate: f64) -> Repeated {
    let value = |_| rate * (deviate(random) * percent / 100.0).exp();
    let values: Vec<f64> = (0..repeats).map(value).collect();
    Repeated { iops: Estimate::of(values.iter().copied()).unwrap(), values }
}

/// A sweep of four cells with host, none, 1, 2 and 4, measured twice: the second so much faster. Each row of each command
/// has an effect of its own, which no repeat shows.
fn twice(seed: u64, percent: f64, repeats: usize, faster: f64) -> Vec<ComparedRow> {
    let mut random = Random::new(seed);
    let contenders = [Contender::HOST, client(0), client(1), client(2), client(4)];
    let mut pairs = Vec::new();
    for place in 0..4 {
        for contender in contenders {
            let [of_a, of_b] = [(); 2].map(|()| (deviate(&mut random) * OF_COMMAND).exp());
            let a = noisy(&mut random, percent, repeats, RATE * of_a);
            let b = noisy(&mut random, percent, repeats, RATE * of_b * faster);
            pairs.push(Pair { place, contender, emulated: false, a, b });
        }
    }
    judged(&pairs)
}

fn count(rows: &[ComparedRow], verdict: ChangeVerdict) -> usize {
    rows.iter().filter(|row| row.verdict == verdict).count()
}

#[test]
fn the_same_measured_twice_is_called_noise_in_95_percent_of_reports() {
    for (percent, repeats) in [(3.0, 6), (5.0, 3), (10.0, 6), (20.0, 6)] {
        let wrong = (0..200).filter(|seed| {
            let rows = twice(*seed, percent, repeats, 1.0);
            count(&rows, ChangeVerdict::Noise) < rows.len()
        });
        let wrong = wrong.count();
        // One in twenty, what the effects of the commands add, and chance.
        assert!(wrong <= 16, "{wrong} of 200 reports with {percent} % and {repeats} repeats");
    }
}

#[test]
fn more_repeats_see_more() {
    // A change of 5 % in noise of 3 %, and none.
    let found = |repeats, faster| -> usize {
        (0..10).map(|seed| count(&twice(seed, 3.0, repeats, faster), ChangeVerdict::Faster)).sum()
    };
    let share = [6, 12, 40].map(|repeats| found(repeats, 1.05) * 100 / (10 * 20));
    assert_eq!(found(40, 1.0), 0, "nothing changed");
    assert!(share[0] + 10 < share[1] && share[1] < share[2] && share[2] >= 90, "{share:?} %");
}

#[test]
fn a_change_of_20_percent_is_found_in_95_percent_of_rows() {
    for (faster, verdict) in [(1.2, ChangeVerdict::Faster), (1.0 / 1.2, ChangeVerdict::Slower)] {
        let (mut found, mut all) = (0, 0);
        for seed in 0..200 {
            let rows = twice(seed, 5.0, 6, faster);
            found += count(&rows, verdict);
            all += rows.len();
        }
        assert!(found * 100 >= all * 95, "{found} of {all}");
    }
}
