//! One command on a simulated machine: the runs that the tuner's own course asks for.

use std::time::Duration;

use plan::cell::Cell;
use plan::contender::{Contender, Iothreads, Subject};
use plan::matrix::Matrix;
use plan::matrix::Writes;
use plan::runs::PlannedRun;
use plan::settings::Settings;
use plan::testing::settings;
use plan::variant::Layers;
use records::meter::{Cost, GroupCost, GroupName, Role, ThreadCost};
use records::results::{RecordedRuns, Run};
use records::testing::{host_cpu, run};
use testkit::machines::{self, Ask, Busy, Load, Machine, Ran};

use crate::course::Course;

/// More than any machine of testkit has.
const CORES: usize = 64;
const DISK_BYTES: u64 = 1 << 40;
const RAMP_S: f64 = 1.0;
const RUNTIME_S: f64 = 5.0;
/// To attach the disk, and to start and end the load.
const BETWEEN_S: f64 = 0.5;
/// A run is recorded as if it had been so long, so that its rate is a whole number of requests.
const RECORDED_S: u64 = 1_000_000;
/// 2026-11-22.
const STARTED_UNIX_S: u64 = 1_795_300_000;

/// The subject whose numbers of iothreads are compared.
pub(super) const SUBJECT: Subject = Subject::VmQemu;

/// What a command has measured.
pub(super) struct Session {
    pub(super) runs: Vec<Run>,
    /// The loads with their cells.
    pub(super) cells: Vec<(Cell, Load)>,
}

/// How much time a command has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Budget {
    /// What the estimate tells beforehand, as without `--budget`. All runs take the same here, stretched ones twice that.
    Estimated,
    /// As much as it likes.
    Enough,
}

/// Whether guests are booted before each round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Boots {
    EachRound,
    /// Before the first one alone, as up to format 3 of the results.
    Once,
}

/// Runs a command to its end.
pub(super) fn session(machine: &mut Machine, seed: u64, budget: Budget, boots: Boots) -> Session {
    let loads = machine.loads().to_vec();
    session_of(machine, &loads, seed, (budget, boots), "")
}

/// The same with these loads and options.
pub(super) fn session_of(
    machine: &mut Machine,
    loads: &[Load],
    seed: u64,
    (budget, boots): (Budget, Boots),
    options: &str,
) -> Session {
    let (settings, matrix, cells) = prepared(loads, seed, options);
    let mut course = Course::new(&matrix, &settings, &RecordedRuns::default());
    let mut runs: Vec<Run> = Vec::new();
    let mut now_s = 0.0;
    let length =
        |runs: &[PlannedRun]| -> u64 { runs.iter().map(|run| u64::from(run.stretch)).sum() };
    let estimated = length(&course.outlook(None));
    let mut done = 0;
    let mut round = None;
    loop {
        let fits = |block: &[PlannedRun]| match budget {
            Budget::Estimated => done + length(block) <= estimated,
            Budget::Enough => true,
        };
        let Some(block) = course.next(&fits) else { return Session { runs, cells } };
        for planned in &block {
            if planned.round.is_some_and(|it| round.replace(it) != Some(it))
                && boots == Boots::EachRound
            {
                machine.boot();
            }
            let measured = Run { round, ..measure(machine, planned, &cells, now_s) };
            done += u64::from(planned.stretch);
            now_s += f64::from(planned.stretch) * (RAMP_S + RUNTIME_S) + BETWEEN_S;
            course.measured(&measured);
            runs.push(measured);
        }
    }
}

/// A matrix of just these loads; a command line has all combinations of its lists.
fn prepared(loads: &[Load], seed: u64, options: &str) -> (Settings, Matrix, Vec<(Cell, Load)>) {
    let line = |load: &Load| {
        let Load { op, bytes, jobs, iodepth } = load;
        settings(
            &format!(
                "--subject host,vm:qemu --vcpus 16 --queues 16 --ramp {RAMP_S} --runtime {RUNTIME_S} --seed {seed} \
                 --op {} --bs {bytes} --jobs {jobs} --iodepth {iodepth} {options}",
                op.name()
            ),
            CORES,
        )
    };
    let of = |settings: &Settings| {
        Matrix::new(settings, &|_| Layers::Kernel, DISK_BYTES, Writes::Allowed).unwrap()
    };
    let mut whole: Option<Matrix> = None;
    let mut cells = Vec::new();
    for load in loads {
        let own = of(&line(load));
        cells.push((own.entries[0].cells[0], *load));
        match &mut whole {
            Some(whole) => whole.entries.extend(own.entries),
            None => whole = Some(own),
        }
    }
    (line(&loads[0]), whole.unwrap(), cells)
}

fn measure(
    machine: &mut Machine,
    planned: &PlannedRun,
    cells: &[(Cell, Load)],
    started_s: f64,
) -> Run {
    let key = &planned.key;
    let load = load_of(cells, &key.cell);
    let (subject, iothreads) = asked(key.contender);
    let ask = Ask { subject, iothreads, load, started_s, ramp_s: RAMP_S, seconds: RUNTIME_S };
    recorded(planned, &machine.run(&ask), started_s)
}

/// The load of a cell, or of one that is deeper than the cell.
fn load_of(cells: &[(Cell, Load)], cell: &Cell) -> Load {
    let own = cells.iter().find(|(own, _)| own == cell).map(|(_, load)| *load);
    own.unwrap_or_else(|| {
        let (_, load) = cells.iter().find(|(own, _)| own.deeper() == Some(*cell)).unwrap();
        Load { iodepth: cell.shape().iodepth(), ..*load }
    })
}

/// As the machine names a contender.
pub(super) fn asked(contender: Contender) -> (machines::Subject, u16) {
    match contender.iothreads() {
        None => (machines::Subject::Host, 0),
        Some(iothreads) => (machines::Subject::Vm, iothreads.count()),
    }
}

fn recorded(planned: &PlannedRun, ran: &Ran, started_s: f64) -> Run {
    let key = planned.key.clone();
    let mut run = run(key.cell, key.contender, key.repeat, whole(ran.iops * seconds(RECORDED_S)));
    run.key = key;
    run.stretched = planned.stretch > 1;
    run.started_unix_s = STARTED_UNIX_S + whole(started_s);
    run.elapsed_ns = RECORDED_S * 1_000_000_000;
    // One latency for all requests: histograms take time.
    run.latency_ns = vec![(ran.p99_ns, run.operations)];
    let length_ns = run.elapsed_ns / 5;
    let requests = |rate: f64| (length_ns, whole(rate * seconds(RECORDED_S / 5)));
    run.windows = ran.windows.into_iter().map(requests).collect();
    run.cost.covered_ns = run.elapsed_ns;
    for group in &mut run.cost.groups {
        group.cpu_ns = whole(ran.cpu_us_per_request * 1000.0 * ran.iops * seconds(RECORDED_S));
    }
    run.queues = 16;
    if let Some(busy) = &ran.busy {
        let vcpus = run.key.cell.shape().jobs().min(run.queues);
        costs(&mut run.cost, run.key.contender, busy, vcpus);
    }
    run
}

/// The CPUs of the host and of each thread, as the meter tells them.
fn costs(cost: &mut Cost, contender: Contender, busy: &Busy, vcpus: u16) {
    let ns = |cpus: f64| whole(cpus * 1e9 * seconds(RECORDED_S));
    cost.host = Some(host_cpu(busy.cpus, usize::from(busy.cores)));
    let thread = |role, cpus: f64| ThreadCost {
        name: String::new(),
        role,
        cpu_ns: ns(cpus),
        voluntary: 0,
        involuntary: 0,
    };
    let Some(iothreads) = contender.iothreads() else { return };
    let (role, count) = match iothreads {
        Iothreads::NONE => (Role::Main, 1),
        count => (Role::Iothread, count.count()),
    };
    let serving = (0..count).map(|_| thread(role, busy.serving));
    let vcpus = (0..vcpus).map(|_| thread(Role::Vcpu, busy.submitting));
    let threads: Vec<ThreadCost> = serving.chain(vcpus).collect();
    let cpu_ns = threads.iter().map(|thread| thread.cpu_ns).sum();
    let name = GroupName::Qemu;
    cost.groups = vec![GroupCost { name, cpu_ns, voluntary: 0, involuntary: 0, threads }];
}

fn seconds(seconds: u64) -> f64 {
    Duration::from_secs(seconds).as_secs_f64()
}

/// Without what is behind the point.
fn whole(number: f64) -> u64 {
    Duration::from_secs_f64(number).as_secs()
}

/// The contender with a number of iothreads.
pub(super) fn vm(iothreads: u16) -> Contender {
    Contender::new(SUBJECT, Iothreads::new(iothreads))
}
