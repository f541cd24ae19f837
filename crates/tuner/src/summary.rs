//! From runs to numbers: medians, spreads, percentiles, best and n90 per cell. Pure functions.
//!
//! Ratios are formed inside a block (one repeat of one cell) and then summarised, so that slow drift
//! of the machine cancels. Percentiles come from merged histograms, never from averages.

use std::time::Duration;

use load::{Latency, Spread};

use crate::cell::{Cell, Contender, Iothreads};
use crate::results::Run;

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
    /// IOPS relative to `none` of the same block; 1 is equal. Missing for the host.
    pub(crate) to_none: Option<Spread>,
    /// IOPS relative to the host of the same block.
    pub(crate) to_host: Option<Spread>,
    /// More busy threads than cores: the machine limits, not the number of iothreads.
    pub(crate) cpu_bound: bool,
}

impl Row {
    /// The number of iothreads of a client.
    pub(crate) fn iothreads(&self) -> Option<Iothreads> {
        match self.contender {
            Contender::Host => None,
            Contender::Client { iothreads } => Some(iothreads),
        }
    }
}

/// A cell and what follows from its rows.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct CellSummary {
    pub(crate) cell: Cell,
    pub(crate) rows: Vec<Row>,
    /// The clients' verdict; `None` if only the host was measured.
    pub(crate) verdict: Option<Verdict>,
}

/// Which counts of iothreads are best and enough.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Verdict {
    pub(crate) best: Iothreads,
    pub(crate) n90: Iothreads,
}

/// Summarises all cells, in the order in which they first appear.
pub(crate) fn summarise(runs: &[Run], cores: usize) -> Vec<CellSummary> {
    let mut cells: Vec<Cell> = Vec::new();
    for run in runs {
        if !cells.contains(&run.cell) {
            cells.push(run.cell);
        }
    }
    cells.into_iter().map(|cell| cell_summary(cell, runs, cores)).collect()
}

fn cell_summary(cell: Cell, runs: &[Run], cores: usize) -> CellSummary {
    let runs: Vec<&Run> = runs.iter().filter(|run| run.cell == cell).collect();
    let mut contenders: Vec<Contender> = runs.iter().map(|run| run.contender).collect();
    contenders.sort_unstable();
    contenders.dedup();
    let rows: Vec<Row> =
        contenders.iter().filter_map(|&contender| row(contender, &runs, cores)).collect();
    let verdict = verdict(&medians(&rows));
    CellSummary { cell, rows, verdict }
}

fn row(contender: Contender, runs: &[&Run], cores: usize) -> Option<Row> {
    let own: Vec<&Run> = runs.iter().copied().filter(|run| run.contender == contender).collect();
    let first = own.first()?;
    let mut latency = Latency::default();
    for run in &own {
        latency.merge(&run.latency());
    }
    let none = Contender::Client { iothreads: Iothreads::NONE };
    Some(Row {
        contender,
        repeats: own.len(),
        iops: Spread::of(own.iter().map(|run| run.iops()))?,
        bytes_per_second: Spread::of(own.iter().map(|run| run.bytes_per_second()))?.median,
        p50: latency.percentile(50.0),
        p99: latency.percentile(99.0),
        p99_9: latency.percentile(99.9),
        cpu_us: Spread::of(own.iter().filter_map(|run| run.cpu_us())).map(|cpu| cpu.median),
        to_none: (contender != Contender::Host).then(|| ratio(&own, runs, none)).flatten(),
        to_host: ratio(&own, runs, Contender::Host),
        cpu_bound: contender.busy_threads(&first.cell) > cores,
    })
}

/// The IOPS of each run relative to those of `base` in the same repeat.
fn ratio(own: &[&Run], all: &[&Run], base: Contender) -> Option<Spread> {
    let in_block = |run: &&Run| {
        let base = all.iter().find(|b| b.contender == base && b.repeat == run.repeat)?;
        (base.operations > 0).then(|| run.iops() / base.iops())
    };
    Spread::of(own.iter().filter_map(in_block))
}

/// The clients of a cell with their median IOPS.
pub(crate) fn medians(rows: &[Row]) -> Vec<(Iothreads, f64)> {
    rows.iter().filter_map(|row| Some((row.iothreads()?, row.iops.median))).collect()
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
