//! How much the same run differs when it is repeated: within a round, and from round to round.
//!
//! Told from sentinels and the runs of the same contender in the same cell. Pure functions.
//!
//! A round is one boot of the guests and one filling of the scratch files, so the second is what these do. The components of
//! the variance are those of a one-way random-effects model (analysis of variance, with different numbers of runs in a round:
//! S. R. Searle, "Linear Models", 1971, section 11.1), of the logarithms: deviations are shares.

use std::collections::BTreeMap;

use plan::cell::Cell;
use plan::contender::Contender;
use plan::lists::unique;
use plan::runs::Purpose;
use plan::variant::Variant;
use records::results::Run;

/// Fewer rounds do not tell what differs between them.
const ROUNDS_MIN: usize = 4;

/// The standard deviations of one contender, as shares of its rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// What did the same again and again.
    pub contender: Contender,
    /// Between runs of one round.
    pub within: f64,
    /// From round to round, without what runs in a round differ by; 0 if that explains it.
    pub between: f64,
}

/// Those of each contender that is measured as a sentinel, where there are enough rounds.
pub fn spreads(runs: &[Run]) -> Vec<Spread> {
    let sentinels = runs.iter().map(|run| &run.key).filter(|key| key.purpose == Purpose::Sentinel);
    // All of a contender are in the same cell.
    let watched = unique(sentinels.map(|key| (key.contender, key.variant, key.cell)));
    let of = |watched: Watched| {
        let (within, between) = deviations(&by_round(runs, watched))?;
        Some(Spread { contender: watched.0, within, between })
    };
    watched.into_iter().filter_map(of).collect()
}

/// What a sentinel measures again and again.
type Watched = (Contender, Variant, Cell);

/// The logarithms of the rates of all runs that do the same as a sentinel.
fn by_round(runs: &[Run], watched: Watched) -> Vec<Vec<f64>> {
    let mut rounds = BTreeMap::<u16, Vec<f64>>::new();
    for run in runs {
        let key = &run.key;
        let is_same = (key.contender, key.variant, key.cell) == watched
            && (key.purpose == Purpose::Sentinel || key.purpose.is_compared());
        let rate = run.iops();
        if let Some(round) = run.round.filter(|_| is_same && rate.is_finite() && rate > 0.0) {
            rounds.entry(round).or_default().push(rate.ln());
        }
    }
    rounds.into_values().collect()
}

/// The standard deviations within rounds and between them; `None` where they cannot be told.
fn deviations(rounds: &[Vec<f64>]) -> Option<(f64, f64)> {
    let count = |values: &[f64]| values.len() as f64;
    let mean = |values: &[f64]| values.iter().sum::<f64>() / count(values);
    let all = rounds.concat();
    let (runs, groups) = (count(&all), rounds.len() as f64);
    if rounds.len() < ROUNDS_MIN || all.len() < rounds.len() + ROUNDS_MIN {
        return None;
    }
    let overall = mean(&all);
    let (mut within, mut between, mut squares) = (0.0, 0.0, 0.0);
    for round in rounds {
        let own = mean(round);
        within += round.iter().map(|value| (value - own).powi(2)).sum::<f64>();
        between += count(round) * (own - overall).powi(2);
        squares += count(round).powi(2);
    }
    let within = within / (runs - groups);
    let each = (runs - squares / runs) / (groups - 1.0);
    let between = (between / (groups - 1.0) - within) / each;
    Some((within.sqrt(), between.max(0.0).sqrt()))
}

#[cfg(test)]
mod tests {
    use load::Random;
    use plan::testing::{cell, client};
    use records::testing::run;

    use super::*;

    /// Normal, of mean 0 and standard deviation 1: the sum of twelve.
    fn normal(random: &mut Random) -> f64 {
        let uniform = |random: &mut Random| random.next_u64() as f64 / u64::MAX as f64;
        (0..12).map(|_| uniform(random)).sum::<f64>() - 6.0
    }

    #[test]
    fn both_deviations_are_found() {
        let mut random = Random::stream(1, 2);
        for (within, between) in [(0.02, 0.0), (0.02, 0.05), (0.005, 0.02), (0.05, 0.01)] {
            let mut round = |number: usize| -> Vec<f64> {
                let own = between * normal(&mut random);
                (0..=number % 3).map(|_| own + within * normal(&mut random)).collect()
            };
            let rounds: Vec<Vec<f64>> = (0..3000).map(&mut round).collect();
            let found = deviations(&rounds).unwrap();
            assert!((found.0 - within).abs() < 0.1 * within, "{within} {between}: {found:?}");
            assert!((found.1 - between).abs() < 0.004, "{within} {between}: {found:?}");
        }
    }

    #[test]
    fn few_rounds_tell_nothing() {
        assert_eq!(deviations(&vec![vec![1.0, 2.0]; 3]), None);
        assert_eq!(deviations(&vec![vec![1.0]; 9]), None);
        assert!(deviations(&vec![vec![1.0, 2.0]; 4]).is_some());
    }

    #[test]
    fn a_sentinel_and_the_runs_that_do_the_same_are_taken_together() {
        let mut runs = Vec::new();
        for round in 0..6_u16 {
            for (purpose, contender, jobs) in [
                (Purpose::Sentinel, client(1), 1),
                (Purpose::Confirm, client(1), 1),
                (Purpose::Confirm, client(2), 1),
                (Purpose::Confirm, client(1), 2),
            ] {
                let iops = 1000 + u64::from(round % 2) * 100 + u64::from(jobs) * 1000;
                let mut run = run(cell("randread", 4096, jobs, 1), contender, round, iops);
                (run.key.purpose, run.round) = (purpose, Some(round));
                runs.push(run);
            }
        }
        let found = spreads(&runs);
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].contender, found[0].within), (client(1), 0.0));
        assert!((found[0].between - 0.0267).abs() < 0.001, "{found:?}");
        // Files of earlier versions do not know their rounds.
        runs.iter_mut().for_each(|run| run.round = None);
        assert_eq!(spreads(&runs), []);
    }
}
