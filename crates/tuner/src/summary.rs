//! From runs to numbers: medians, spreads, percentiles, best and n90 per cell. Pure functions.
//!
//! Ratios are formed inside a block (one repeat of one cell) and then summarised, so that slow drift
//! of the machine cancels. Percentiles come from merged histograms, never from averages.

mod curve;
mod probe;

use std::time::Duration;

use load::{Latency, Spread};

use crate::cell::Cell;
use crate::contender::{Contender, Iothreads, Subject};
use crate::plan::Purpose;
use crate::results::{Part, Run};
use crate::variant::Variant;

pub(crate) use self::curve::{Curve, Point, curves};
pub(crate) use self::probe::{Memory, Phase, Probe, REMEMBERS_FROM, probes};

#[cfg(test)]
pub(crate) use self::{curve::tests as curve_tests, probe::tests as probe_tests};

/// A count is good enough when its median reaches this share of the best one.
pub(crate) const ENOUGH: f64 = 0.9;

/// One contender of a cell.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Row {
    pub(crate) contender: Contender,
    pub(crate) repeats: usize,
    pub(crate) iops: Spread,
    pub(crate) bytes_per_second: f64,
    pub(crate) p50: Option<Duration>,
    pub(crate) p99: Option<Duration>,
    pub(crate) p99_9: Option<Duration>,
    pub(crate) cpu_us: Option<f64>,
    /// Context switches per request of what serves the disk.
    pub(crate) switches: Option<f64>,
    /// CPUs of the host in use, and how many it has.
    pub(crate) cpus: Option<(f64, usize)>,
    /// Those that ran at once, where there were several.
    pub(crate) parts: Vec<PartRow>,
    /// IOPS relative to `none` of the same subject and block; 1 is equal. Missing where there is no count.
    pub(crate) to_none: Option<Spread>,
    /// IOPS relative to the host of the same block.
    pub(crate) to_host: Option<Spread>,
    /// More busy threads than cores: the machine limits, not the number of iothreads.
    pub(crate) cpu_bound: bool,
    /// The guest's CPUs were emulated.
    pub(crate) emulated: bool,
    /// Queues of each disk.
    pub(crate) queues: u16,
}

/// One of several guests that ran at once.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PartRow {
    pub(crate) vm: u16,
    /// Median of the repeats, as are the bytes.
    pub(crate) iops: f64,
    pub(crate) bytes_per_second: f64,
    /// Of all repeats together.
    pub(crate) p99: Option<Duration>,
}

impl Row {
    /// The number of iothreads, where numbers are compared.
    pub(crate) fn iothreads(&self) -> Option<Iothreads> {
        self.contender.iothreads()
    }
}

/// A cell on a variant and what follows from its rows.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct CellSummary {
    pub(crate) variant: Variant,
    pub(crate) cell: Cell,
    pub(crate) rows: Vec<Row>,
    /// One per subject that compares numbers of iothreads.
    pub(crate) verdicts: Vec<(Subject, Verdict)>,
}

impl CellSummary {
    /// The counts of a subject with their median IOPS.
    pub(crate) fn medians(&self, subject: Subject) -> Vec<(Iothreads, f64)> {
        medians(&self.rows, subject)
    }

    /// The rows of a subject.
    pub(crate) fn rows_of(&self, subject: Subject) -> impl Iterator<Item = &Row> {
        self.rows.iter().filter(move |row| row.contender.subject() == subject)
    }
}

/// Which counts of iothreads are best and enough.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Verdict {
    pub(crate) best: Iothreads,
    pub(crate) n90: Iothreads,
}

/// Summarises all cells of a sweep, in the order in which they first appear.
pub(crate) fn summarise(runs: &[Run], cores: usize) -> Vec<CellSummary> {
    let mut places: Vec<(Variant, Cell)> = Vec::new();
    for run in runs.iter().filter(|run| run.key.purpose == Purpose::Sweep) {
        let place = (run.key.variant, run.key.cell);
        if !places.contains(&place) {
            places.push(place);
        }
    }
    places.into_iter().map(|(variant, cell)| cell_summary(variant, cell, runs, cores)).collect()
}

/// The subjects whose numbers of iothreads are compared in these cells.
pub(crate) fn compared(cells: &[CellSummary]) -> Vec<Subject> {
    let mut subjects: Vec<Subject> =
        cells.iter().flat_map(|cell| &cell.verdicts).map(|(subject, _)| *subject).collect();
    subjects.sort_unstable();
    subjects.dedup();
    subjects
}

fn cell_summary(variant: Variant, cell: Cell, runs: &[Run], cores: usize) -> CellSummary {
    let here = |run: &&Run| {
        run.key.purpose == Purpose::Sweep && run.key.variant == variant && run.key.cell == cell
    };
    let runs: Vec<&Run> = runs.iter().filter(here).collect();
    let mut contenders: Vec<Contender> = runs.iter().map(|run| run.key.contender).collect();
    contenders.sort_unstable();
    contenders.dedup();
    let rows: Vec<Row> =
        contenders.iter().filter_map(|&contender| row(contender, &runs, cores)).collect();
    let mut subjects: Vec<Subject> = contenders.iter().map(|it| it.subject()).collect();
    subjects.dedup();
    let verdicts = subjects
        .into_iter()
        .filter_map(|subject| Some((subject, verdict(&medians(&rows, subject))?)))
        .collect();
    CellSummary { variant, cell, rows, verdicts }
}

fn row(contender: Contender, runs: &[&Run], cores: usize) -> Option<Row> {
    let own: Vec<&Run> =
        runs.iter().copied().filter(|run| run.key.contender == contender).collect();
    let first = own.first()?;
    let latency = merged(own.iter().map(|run| run.latency()));
    let none = Contender::new(contender.subject(), Iothreads::NONE);
    Some(Row {
        contender,
        repeats: own.len(),
        iops: Spread::of(own.iter().map(|run| run.iops()))?,
        bytes_per_second: Spread::of(own.iter().map(|run| run.bytes_per_second()))?.median,
        p50: latency.percentile(50.0),
        p99: latency.percentile(99.0),
        p99_9: latency.percentile(99.9),
        cpu_us: median(own.iter().filter_map(|run| run.cpu_us())),
        switches: median(own.iter().filter_map(|run| run.switches())),
        cpus: cpus(&own),
        parts: parts(&own),
        to_none: contender.iothreads().and_then(|_| ratio(&own, runs, none)),
        to_host: ratio(&own, runs, Contender::Host),
        cpu_bound: contender.busy_threads(&first.key.variant, &first.key.cell, first.queues)
            > cores,
        emulated: own.iter().any(|run| run.emulated),
        queues: first.queues,
    })
}

/// The histograms of several runs as one.
fn merged(latencies: impl Iterator<Item = Latency>) -> Latency {
    let mut merged = Latency::default();
    for latency in latencies {
        merged.merge(&latency);
    }
    merged
}

fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    Spread::of(values).map(|spread| spread.median)
}

/// CPUs in use, and how many there are.
fn cpus(runs: &[&Run]) -> Option<(f64, usize)> {
    let hosts = || runs.iter().filter_map(|run| run.cost.host.as_ref());
    Some((median(hosts().map(|host| host.cpus_in_use))?, hosts().next()?.of))
}

fn parts(runs: &[&Run]) -> Vec<PartRow> {
    let all = || runs.iter().flat_map(|run| &run.parts);
    let mut numbers: Vec<u16> = all().map(|part| part.vm).collect();
    numbers.sort_unstable();
    numbers.dedup();
    let row = |vm| {
        let own = || all().filter(move |part| part.vm == vm);
        let latency = merged(own().map(|part| Latency::from_buckets(&part.latency_ns)));
        Some(PartRow {
            vm,
            iops: median(own().map(Part::iops))?,
            bytes_per_second: median(own().map(Part::bytes_per_second))?,
            p99: latency.percentile(99.0),
        })
    };
    numbers.into_iter().filter_map(row).collect()
}

/// The IOPS of each run relative to those of `base` in the same repeat, if both had the same load: fio and the tuner's own
/// do not compare.
fn ratio(own: &[&Run], all: &[&Run], base: Contender) -> Option<Spread> {
    let in_block = |run: &&Run| {
        let base =
            all.iter().find(|b| b.key.contender == base && b.key.repeat == run.key.repeat)?;
        (base.operations > 0 && base.is_own_load() == run.is_own_load())
            .then(|| run.iops() / base.iops())
    };
    Spread::of(own.iter().filter_map(in_block))
}

fn medians(rows: &[Row], subject: Subject) -> Vec<(Iothreads, f64)> {
    let own = rows.iter().filter(|row| row.contender.subject() == subject);
    own.filter_map(|row| Some((row.iothreads()?, row.iops.median))).collect()
}

/// The best count and the fewest iothreads that are enough; of equal ones the fewer.
fn verdict(medians: &[(Iothreads, f64)]) -> Option<Verdict> {
    let mut sorted = medians.to_vec();
    sorted.sort_by_key(|(iothreads, _)| *iothreads);
    let (best, most) = sorted.iter().copied().reduce(|a, b| if b.1 > a.1 { b } else { a })?;
    let (n90, _) = sorted.into_iter().find(|(_, median)| *median >= ENOUGH * most)?;
    Some(Verdict { best, n90 })
}

#[cfg(test)]
mod tests;
