//! From runs to numbers: medians, intervals, percentiles, best and n90 per cell. Pure functions.
//!
//! Ratios are formed inside a block (one repeat of one cell) and then summarised, so that slow drift
//! of the machine cancels. Percentiles come from merged histograms, never from averages.
//!
//! Invariants: a contender that was measured again has its figures from those runs alone: the exploration chose it for
//! being high, and so is biased.

mod blocks;
mod curve;
mod failed;
mod fairness;
pub mod form;
mod pairs;
mod probe;

use std::borrow::Borrow;
use std::collections::HashMap;
use std::time::Duration;

use load::Latency;
use plan::cell::Cell;
use plan::contender::{Contender, Iothreads, Subject};
use plan::lists::sorted;
use plan::question::{Figures, Want};
use plan::runs::{Purpose, RunKey};
use plan::variant::Variant;
use records::meter::HostCpu;
use records::results::{Part, Run};
use records::steady::UnsteadyRuns;

use crate::stats::{self, Estimate, ratio_by_repeat};

pub use self::blocks::{
    BLOCKS_MIN, Blocks, Reached, Shares, TIE, Verdict, best, explored, n90, reached,
};
pub use self::curve::{Curve, Point, curves};
pub use self::failed::{FailedCell, FailedContender, failed};
pub use self::fairness::Fairness;
pub use self::pairs::{Pair, PairRow, pairs};
pub use self::probe::{Memory, Phase, Probe, REMEMBERS_FROM, probes};

/// A count is good enough when its median reaches this share of the best one.
pub const ENOUGH: f64 = 0.9;

/// One contender of a cell.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// What serves the disk.
    pub contender: Contender,
    /// What its runs were for: `Confirm`, or `Sweep` where it was not measured again.
    pub purpose: Purpose,
    /// Requests per second.
    pub iops: Estimate,
    /// The figures of each repeat.
    pub by_repeat: Vec<(u16, Figures)>,
    /// Those of its runs of purpose `Sweep`: where others were measured again, the best of them is what it counts with.
    pub explored: Vec<Figures>,
    /// The median of the repeats.
    pub bytes_per_second: f64,
    /// Half of the requests took at most so long, in all repeats together.
    pub p50: Option<Duration>,
    /// 99 of 100 did.
    pub p99: Option<Duration>,
    /// 999 of 1000 did.
    pub p99_9: Option<Duration>,
    /// These three in µs repeat by repeat, in this order.
    pub percentiles: [Option<Estimate>; 3],
    /// CPU time per request in µs of what serves the disk.
    pub cpu_us: Option<f64>,
    /// CPU time per request in µs of everything that takes part: what serves the disk, the guests' CPUs and the load.
    pub cpu_of_all_us: Option<f64>,
    /// Context switches per request of what serves the disk.
    pub switches: Option<f64>,
    /// CPUs of the host in use, and how many it has.
    pub cpus: Option<(f64, usize)>,
    /// How many of them a hypervisor below withheld.
    pub cpus_stolen: f64,
    /// How busy the busiest thread is that serves the disk, and on average those that make the requests: 1 is all the time.
    pub serving_busy: Option<f64>,
    /// The mean of those that make the requests.
    pub submitting_busy: Option<f64>,
    /// Those that ran at once, where there were several.
    pub parts: Vec<PartRow>,
    /// How evenly guests were served, and all disks, where there were several.
    pub vms: Option<Fairness>,
    /// How evenly all disks were served.
    pub disks: Option<Fairness>,
    /// IOPS relative to `none` of the same subject and block; 1 is equal. Missing where there is no count.
    pub to_none: Option<Estimate>,
    /// IOPS relative to the host of the same block.
    pub to_host: Option<Estimate>,
    /// IOPS relative to the first contender with the same load that is not the host, likewise; missing for that itself.
    pub to_first: Option<Estimate>,
    /// More busy threads than cores: the machine limits, not the number of iothreads.
    pub cpu_bound: bool,
    /// How many of its runs were not steady.
    pub unsteady_runs: UnsteadyRuns,
    /// The guest's CPUs were emulated.
    pub emulated: bool,
    /// Queues of each disk.
    pub queues: u16,
}

/// One of several guests that ran at once.
#[derive(Clone, Debug, PartialEq)]
pub struct PartRow {
    /// Which guest, from 0 on.
    pub vm: u16,
    /// Median of the repeats, as are the bytes.
    pub iops: f64,
    /// The median of the repeats.
    pub bytes_per_second: f64,
    /// Of all repeats together.
    pub p99: Option<Duration>,
    /// The nodes of a cluster on which it ran, one for each repeat that was on another.
    pub node: Option<String>,
}

impl Row {
    /// The number of iothreads, where numbers are compared, or `auto`.
    pub fn iothreads(&self) -> Option<Iothreads> {
        self.contender.iothreads()
    }

    /// What was wanted of each repeat.
    pub fn merits(&self, want: Want) -> impl Iterator<Item = (u16, f64)> {
        let merit = move |(repeat, figures): &(u16, Figures)| Some((*repeat, figures.merit(want)?));
        self.by_repeat.iter().filter_map(merit)
    }

    /// Whether it was measured again after the exploration.
    pub fn is_confirmed(&self) -> bool {
        self.purpose == Purpose::Confirm
    }
}

/// A cell on a variant and what follows from its rows.
#[derive(Clone, Debug, PartialEq)]
pub struct CellSummary {
    /// The storage below.
    pub variant: Variant,
    /// The load.
    pub cell: Cell,
    /// One for each contender, in their order.
    pub rows: Vec<Row>,
    /// IOPS of the host, or else of what is compared first, with more requests in flight (`Cell::deeper`), relative to those of
    /// the cell.
    pub deeper: Option<f64>,
    /// One per subject that compares numbers of iothreads.
    pub verdicts: Vec<(Subject, Verdict)>,
}

impl CellSummary {
    /// The counts of a subject and `auto`, block by block, by what is wanted of them.
    pub fn blocks(&self, subject: Subject, want: Want) -> Blocks {
        self.blocks_of(subject, want, Contender::iothreads)
    }

    fn blocks_of(
        &self,
        subject: Subject,
        want: Want,
        count: fn(Contender) -> Option<Iothreads>,
    ) -> Blocks {
        let again = self.rows_of(subject).any(Row::is_confirmed);
        let reached = |row: &Row| {
            let is_counted = row.is_confirmed() == again;
            let of_explored = row.explored.iter().filter_map(|figures| figures.merit(want));
            Some(Reached {
                iothreads: count(row.contender)?,
                blocks: if is_counted { row.merits(want).collect() } else { Vec::new() },
                explored: explored(of_explored).filter(|_| again),
            })
        };
        Blocks::of(self.rows_of(subject).filter_map(reached).collect())
    }

    /// Whether a row was explored only, while others of its subject were measured again.
    pub fn is_given_up(&self, row: &Row) -> bool {
        let subject = row.contender.subject();
        !row.is_confirmed() && self.rows_of(subject).any(Row::is_confirmed)
    }

    /// The row of the host, or of the pod, if it was measured.
    pub fn host(&self) -> Option<&Row> {
        self.rows.iter().find(|row| row.contender.is_baseline())
    }

    /// The rows of a subject.
    pub fn rows_of(&self, subject: Subject) -> impl Iterator<Item = &Row> {
        self.rows.iter().filter(move |row| row.contender.subject() == subject)
    }
}

/// Summarises all cells of a sweep, in the order in which they first appear.
pub fn summarise(runs: &[Run], cores: usize) -> Vec<CellSummary> {
    let mut places: HashMap<(Variant, Cell), usize> = HashMap::new();
    let mut cells: Vec<Vec<&Run>> = Vec::new();
    for run in runs.iter().filter(|run| run.key.purpose.is_compared()) {
        let place = *places.entry((run.key.variant, run.key.cell)).or_insert(cells.len());
        if place == cells.len() {
            cells.push(Vec::new());
        }
        cells[place].push(run);
    }
    let mut cells: Vec<CellSummary> =
        cells.iter().filter_map(|runs| cell_summary(runs, cores)).collect();
    let deeper: Vec<Option<f64>> = cells.iter().map(|cell| deeper(cell, &cells, runs)).collect();
    cells.iter_mut().zip(deeper).for_each(|(cell, deeper)| cell.deeper = deeper);
    // On a cluster each round has an order of its own, the first one, too.
    if cells.iter().any(|cell| cell.variant.claim.is_some()) {
        cells.sort_by_cached_key(by_load);
    }
    cells
}

/// The loads one after the other, each on all storages.
fn by_load(cell: &CellSummary) -> impl Ord + use<> {
    let (shape, variant) = (cell.cell.shape(), cell.variant);
    let load = (shape.operation().to_string(), shape.block().get(), shape.jobs(), shape.iodepth());
    (load, variant.vms, variant.placement, variant.claim)
}

/// What the host gains with more requests in flight, by runs of its own in the exploration or by the cell that has as many; where
/// it is not measured, what a contender gains.
fn deeper(summary: &CellSummary, cells: &[CellSummary], runs: &[Run]) -> Option<f64> {
    let (variant, cell) = (summary.variant, summary.cell.deeper()?);
    let base = summary.host().or(summary.rows.first())?;
    let other = cells.iter().find(|it| (it.variant, it.cell) == (variant, cell));
    let mut others = other.into_iter().flat_map(|it| &it.rows);
    if let Some(other) = others.find(|row| row.contender == base.contender) {
        return Some(other.iops.median / base.iops.median).filter(|ratio| ratio.is_finite());
    }
    let is_deeper = |run: &&Run| {
        let key = &run.key;
        (key.purpose, key.variant, key.cell) == (Purpose::Deeper, variant, cell)
    };
    let deep = explored(runs.iter().filter(is_deeper).map(Run::iops))?;
    let ratio = deep / explored(base.explored.iter().map(|it| it.iops))?;
    ratio.is_finite().then_some(ratio)
}

/// The subjects whose numbers of iothreads are compared in these cells.
pub fn compared(cells: &[CellSummary]) -> Vec<Subject> {
    sorted(cells.iter().flat_map(|cell| &cell.verdicts).map(|(subject, _)| *subject))
}

/// Of the runs of one cell on one variant.
fn cell_summary(runs: &[&Run], cores: usize) -> Option<CellSummary> {
    let RunKey { variant, cell, .. } = runs.first()?.key;
    let contenders = sorted(runs.iter().map(|run| run.key.contender));
    let rows: Vec<Row> =
        contenders.iter().filter_map(|&contender| row(contender, runs, cores)).collect();
    let subjects = sorted(contenders.iter().map(|it| it.subject()));
    let mut summary = CellSummary { variant, cell, rows, deeper: None, verdicts: Vec::new() };
    // What suffices is a number.
    let numbers = |subject| summary.blocks_of(subject, Want::Throughput, Contender::number);
    let verdict = |subject| Some((subject, Verdict::of(&numbers(subject))?));
    summary.verdicts = subjects.into_iter().filter_map(verdict).collect();
    Some(summary)
}

fn row(contender: Contender, runs: &[&Run], cores: usize) -> Option<Row> {
    let with = |purpose| -> Vec<&Run> {
        let own = |run: &&&Run| run.key.contender == contender && run.key.purpose == purpose;
        runs.iter().filter(own).copied().collect()
    };
    let (swept, again) = (with(Purpose::Sweep), with(Purpose::Confirm));
    let explored = swept.iter().map(|run| run.figures()).collect();
    let own = if again.is_empty() { swept } else { again };
    let first = own.first()?;
    let latencies: Vec<Latency> = own.iter().map(|run| run.latency()).collect();
    let latency = merged(latencies.iter());
    let none = Contender::new(contender.subject(), Iothreads::NONE);
    Some(Row {
        contender,
        purpose: first.key.purpose,
        iops: Estimate::of(own.iter().map(|run| run.iops()))?,
        by_repeat: own.iter().map(|run| (run.key.repeat, run.figures())).collect(),
        explored,
        bytes_per_second: median(own.iter().map(|run| run.bytes_per_second()))?,
        p50: latency.percentile(50.0),
        p99: latency.percentile(99.0),
        p99_9: latency.percentile(99.9),
        percentiles: [50.0, 99.0, 99.9].map(|percent| by_repeat(&latencies, percent)),
        cpu_us: median(own.iter().filter_map(|run| run.cpu_us())),
        cpu_of_all_us: median(own.iter().filter_map(|run| run.cpu_of_all_us())),
        switches: median(own.iter().filter_map(|run| run.switches())),
        cpus: cpus(&own),
        cpus_stolen: median(hosts(&own).map(|host| host.cpus_stolen)).unwrap_or(0.0),
        serving_busy: median(own.iter().filter_map(|run| run.cost.serving_busy())),
        submitting_busy: median(own.iter().filter_map(|run| run.submitting_busy())),
        parts: parts(&own),
        vms: Fairness::of_vms(&own),
        disks: Fairness::of_disks(&own),
        to_none: contender.iothreads().and_then(|_| ratio(&own, runs, none)),
        to_host: baseline(runs).and_then(|it| ratio(&own, runs, it)),
        to_first: first_beside(contender, runs).and_then(|it| ratio(&own, runs, it)),
        cpu_bound: first.key.variant.busy_threads(contender, &first.key.cell, first.queues) > cores,
        unsteady_runs: own.iter().map(|run| run.steadiness()).collect(),
        emulated: own.iter().any(|run| run.emulated),
        queues: first.queues,
    })
}

/// The histograms of several runs as one.
fn merged(latencies: impl Iterator<Item = impl Borrow<Latency>>) -> Latency {
    let mut merged = Latency::default();
    for latency in latencies {
        merged.merge(latency.borrow());
    }
    merged
}

/// A percentile of each repeat in µs.
fn by_repeat(latencies: &[Latency], percent: f64) -> Option<Estimate> {
    let each = latencies.iter().filter_map(|latency| latency.percentile(percent));
    Estimate::of(each.map(|it| it.as_secs_f64() * 1e6))
}

fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    stats::median(&mut values.filter(|value| value.is_finite()).collect::<Vec<_>>())
}

/// CPUs in use, and how many there are.
fn cpus(runs: &[&Run]) -> Option<(f64, usize)> {
    Some((median(hosts(runs).map(|host| host.cpus_in_use))?, hosts(runs).next()?.of))
}

fn hosts<'a>(runs: &[&'a Run]) -> impl Iterator<Item = &'a HostCpu> {
    runs.iter().filter_map(|run| run.cost.host.as_ref())
}

fn parts(runs: &[&Run]) -> Vec<PartRow> {
    let all = || runs.iter().flat_map(|run| &run.parts);
    let numbers = sorted(all().map(|part| part.vm));
    let row = |vm| {
        let own = || all().filter(move |part| part.vm == vm);
        let latency = merged(own().map(|part| Latency::from_buckets(&part.latency_ns)));
        Some(PartRow {
            vm,
            iops: median(own().map(Part::iops))?,
            bytes_per_second: median(own().map(Part::bytes_per_second))?,
            p99: latency.percentile(99.0),
            node: nodes(own().filter_map(|part| part.node.as_deref())),
        })
    };
    numbers.into_iter().filter_map(row).collect()
}

/// `node1`, or all of those where it ran.
fn nodes<'a>(names: impl Iterator<Item = &'a str>) -> Option<String> {
    let names = sorted(names);
    (!names.is_empty()).then(|| names.join(", "))
}

/// The host, or the pod of a cluster.
fn baseline(runs: &[&Run]) -> Option<Contender> {
    runs.iter().map(|run| run.key.contender).find(|it| it.is_baseline())
}

/// What a contender that is not the host is compared with: the first that has the same load.
fn first_beside(contender: Contender, runs: &[&Run]) -> Option<Contender> {
    let kind = |it: Contender| it.subject().is_vm();
    let others = runs.iter().map(|run| run.key.contender).filter(|it| !it.is_baseline());
    let first = others.filter(|it| kind(*it) == kind(contender)).min()?;
    (!contender.is_baseline() && first != contender).then_some(first)
}

/// The IOPS of each run relative to those of `base` in the same repeat, if both had the same load: fio and the tuner's own
/// do not compare.
fn ratio(own: &[&Run], all: &[&Run], base: Contender) -> Option<Estimate> {
    let first = own.first()?;
    let is_base = |run: &&&Run| {
        (run.key.contender, run.key.purpose, run.is_own_load())
            == (base, first.key.purpose, first.is_own_load())
            && run.operations > 0
    };
    let iops = |run: &&Run| (run.key.repeat, run.iops());
    ratio_by_repeat(own.iter().map(iops), all.iter().filter(is_base).map(iops))
}

#[cfg(test)]
mod tests;
