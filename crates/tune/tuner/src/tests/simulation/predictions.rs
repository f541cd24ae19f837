//! What is predicted from none to 4 iothreads on machines of testkit, compared with what is true there of 8 and 16.
//!
//! The machines that are not `queueing` share nothing with the model: their curves are formulas, or made up around what was
//! published. docs/statistics.md has the table of many seeds, which
//! `RINGLOOM_SEEDS=100 cargo test --release -p tuner predictions -- --nocapture` makes again.

use findings::summary::summarise;
use model::{Claim, N90, Prediction};
use plan::cell::Cell;
use plan::settings::Step;
use report::prediction::predicted;
use testkit::machines::{self, COUNTS, Load, Machine, all, named};

use super::claims::{DISTURBED, seeds};
use super::score::Tally;
use super::session::{Boots, Budget, session_of};

/// What may be claimed was chosen with the help of others.
const FIRST_SEED: u64 = 5000;
const MEASURED: &str = "--iothreads none,1,2,3,4 --repeats 6";
/// Of machines that tell no more.
const CORES: usize = 64;
/// What the ranges hold on all machines but those, and on each.
const TOGETHER: f64 = 90.0;
const EACH: f64 = 80.0;
/// Curves that fall, or rise, at a number that was not measured: nobody can know that. docs/statistics.md says how often it is
/// said all the same.
const UNFORESEEN: [&str; 3] = ["falls", "conflict", "lonely"];

#[derive(Clone, Copy, Debug, Default)]
struct Score {
    told: Tally,
    /// Of these, those that are claimed to hold, which then contain the truth, and whose n90 is within a step.
    claimed: Tally,
    holds: Tally,
    n90: Tally,
    /// Of those that are only a range.
    wide: Tally,
    at_least: Tally,
}

impl Score {
    /// `scale` is what the machine was in the session, relative to what it is undisturbed.
    fn add(&mut self, told: Option<Prediction>, (machine, load): (&Machine, Load), scale: f64) {
        self.told.note(told.is_some());
        let Some(Prediction { iothreads, iops, n90, claim }) = told else { return };
        let truth = |n| machine.truth(machines::Subject::Vm, n, load);
        let contains = (iops.low..=iops.high).contains(&(scale * truth(iothreads)));
        self.claimed.note(claim == Claim::Holds);
        match claim {
            Claim::Holds => self.holds.note(contains),
            Claim::Wide => self.wide.note(contains),
            // The machine has not the cores that are assumed.
            Claim::Assumed { .. } => return,
        }
        let numbers = || COUNTS.into_iter().filter(|&n| n <= iothreads);
        let best = numbers().map(truth).fold(0.0, f64::max);
        let least = numbers().find(|&n| truth(n) >= 0.9 * best).unwrap();
        let place = |n| COUNTS.iter().position(|&it| it == n).unwrap();
        match n90 {
            Some(N90::Between(low, high)) => {
                let at = place(least);
                self.n90.note(at + 1 >= place(low) && at <= place(high) + 1);
            }
            Some(N90::AtLeast(low)) => self.at_least.note(least >= low),
            None => {}
        }
    }
}

fn tried(name: &str) -> Score {
    let mut score = Score::default();
    for seed in FIRST_SEED..FIRST_SEED + seeds() {
        let mut machine = named(name, seed);
        let loads: Vec<Load> = machine.loads().to_vec();
        let how = (Budget::Enough, Boots::EachRound);
        let found = session_of(&mut machine, &loads, seed, how, MEASURED);
        let hosts = found.runs.iter().filter_map(|run| run.cost.host.as_ref());
        let cores = hosts.map(|host| host.of).max().unwrap_or(CORES);
        let cells = summarise(&found.runs, cores);
        let steps = [Step::Iothreads(8), Step::Iothreads(16)];
        let name_of = |cell: Cell| cell.to_string();
        for one in predicted(&steps, (&found.runs, cores), &cells, &|it| name_of(it.cell)) {
            let own = found.cells.iter().find(|(cell, _)| name_of(*cell) == one.place);
            let load = own.unwrap().1;
            let (count, iops) = one.base.unwrap();
            let is_disturbed = DISTURBED.contains(&name);
            let undisturbed = machine.truth(machines::Subject::Vm, count, load);
            let scale = if is_disturbed { iops / undisturbed } else { 1.0 };
            score.add(one.told.ok(), (&machine, load), scale);
        }
    }
    score
}

#[test]
#[expect(clippy::print_stdout, reason = "the table is for a reader")]
fn what_is_predicted_holds_as_often_as_it_says() {
    let mut together = [Tally::default(); 4];
    for it in all(0) {
        let Score { told, claimed, holds, n90, wide, at_least } = tried(it.name);
        let shares = [holds, n90, wide, at_least];
        if std::env::var_os("RINGLOOM_SEEDS").is_some() {
            let cell = |tally: Tally| match tally.percent() {
                Some(percent) => format!("{percent:.0}"),
                None => "–".to_owned(),
            };
            let all = [told, claimed, holds, n90, wide, at_least].map(cell);
            println!("| {} | {} |", it.name, all.join(" | "));
        }
        if UNFORESEEN.contains(&it.name) {
            continue;
        }
        for (sum, share) in together.iter_mut().zip(shares) {
            *sum += share;
        }
        for share in [holds, n90] {
            let least = EACH - share.chance(EACH);
            assert!(share.percent().is_none_or(|it| it >= least), "{}: {shares:?}", it.name);
        }
    }
    assert!(together.iter().all(|it| it.percent() >= Some(TOGETHER)), "{together:?}");
}
