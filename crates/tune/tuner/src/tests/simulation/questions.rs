//! Other questions than the most IOPS on simulated machines: the truth is the machine's own formula, of which latency is by
//! Little's law, and what a session answers must be true where it is sure or likely.
//!
//! `RINGLOOM_SEEDS=100 cargo test --release -p tuner simulation::questions -- --nocapture` prints the table of docs/statistics.md.

use findings::answer::{Answer, Certainty, answer};
use findings::summary::summarise;
use plan::question::{Bound, Figures, Question};
use plan::testing::settings;
use testkit::machines::{self, COUNTS, Load, Machine, named};

use super::claims::seeds;
use super::score::{LOSS_MAX, Tally};
use super::session::{Boots, Budget, SUBJECT, session_of};

const FIRST_SEED: u64 = 3000;
const MACHINES: [&str; 7] = [
    "queueing-nvme",
    "queueing-ssd",
    "queueing-network",
    "published",
    "falls",
    "two-optima",
    "flat",
];
/// What is nearer to a bound may be taken or not.
const MISSED: f64 = 1.03;

/// What a number of iothreads truly has.
fn truth(machine: &Machine, iothreads: u16, load: Load) -> Figures {
    let iops = machine.truth(machines::Subject::Vm, iothreads, load);
    Figures {
        iops,
        p99_us: Some(3e6 * load.in_flight() / iops),
        cpu_us: Some(machine.cpu_truth(iothreads, &[load])),
    }
}

/// Options of a question that has an answer on this machine, the bounds halfway to what is best.
fn options(machine: &Machine, load: Load, kind: &str) -> String {
    let all = COUNTS.map(|count| truth(machine, count, load).iops);
    let most = all.into_iter().fold(0.0, f64::max);
    let iops = f64::midpoint(most, all[0]);
    match kind {
        "p99-max" => format!("--p99-max {:.0}us", 3e6 * load.in_flight() / iops),
        "iops-min" => format!("--want cpu --iops-min {iops:.0}"),
        want => format!("--want {want}"),
    }
}

fn keeps(bounds: &[Bound], figures: &Figures, most: f64) -> bool {
    bounds.iter().all(|bound| bound.used(figures) <= most)
}

/// Whether the number of an answer keeps the bounds and lacks at most what an answer may to the best that does.
fn is_right(machine: &Machine, load: Load, question: &Question, found: &Answer) -> bool {
    let of = |count| truth(machine, count, load);
    let merit = |figures: Figures| figures.merit(question.want).unwrap();
    let fit = COUNTS.map(of).into_iter().filter(|it| keeps(&question.bounds, it, 1.0 / MISSED));
    let best = fit.map(merit).fold(0.0, f64::max);
    let own = of(found.iothreads.count());
    keeps(&question.bounds, &own, MISSED) && merit(own) >= best * (1.0 - LOSS_MAX)
}

#[test]
#[expect(clippy::print_stdout, reason = "the table is for a reader")]
fn other_questions_are_answered_rightly() {
    for kind in ["throughput", "latency", "cpu", "p99-max", "iops-min"] {
        let (mut all, mut told, mut is_told) =
            (Tally::default(), Tally::default(), Tally::default());
        for (name, seed) in MACHINES
            .iter()
            .flat_map(|name| (FIRST_SEED..FIRST_SEED + seeds()).map(move |it| (*name, it)))
        {
            let mut machine = named(name, seed);
            let load = machine.loads()[0];
            let options = options(&machine, load, kind);
            let time = (Budget::Estimated, Boots::EachRound);
            let question = settings(&format!("--subject vm:qemu {options}"), 64).question();
            let ran = session_of(&mut machine, &[load], seed, time, &options);
            let cells = summarise(&ran.runs, 64);
            let found = answer(SUBJECT, &cells, &question, &[]).unwrap();
            let is_sure = found.recommends() && found.certainty() >= Certainty::Likely;
            is_told.note(is_sure);
            if found.recommends() {
                let right = is_right(&machine, load, &question, &found);
                all.note(right);
                if is_sure {
                    told.note(right);
                }
            }
        }
        let [right, right_if_told, told_share] =
            [all, told, is_told].map(|it| it.percent().unwrap_or(0.0));
        if std::env::var_os("RINGLOOM_SEEDS").is_some() {
            println!("| {kind} | {right:.0} | {told_share:.0} | {right_if_told:.0} |");
        }
        assert!(right_if_told >= 90.0, "{kind}: {right_if_told:.0} % of what is told is right");
        assert!(told_share >= 50.0, "{kind}: {told_share:.0} % is told");
    }
}
