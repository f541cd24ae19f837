//! Latency at fixed rates in numbers: the maximum and shares of it. Pure functions.

use std::time::Duration;

use plan::cell::Cell;
use plan::contender::Contender;
use plan::lists::sorted;
use plan::runs::{CURVE_MAXIMUM, Purpose};
use plan::variant::Variant;
use records::results::Run;

use super::{cpus, median, merged};
use crate::stats::Estimate;

/// A rate that differs more from the asked one was missed.
const MISSED_FROM: f64 = 0.02;

/// One contender in one cell.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    /// The storage below.
    pub variant: Variant,
    /// The load.
    pub cell: Cell,
    /// What serves the disk.
    pub contender: Contender,
    /// The guest's CPUs were emulated.
    pub emulated: bool,
    /// From the lowest share to the maximum.
    pub points: Vec<Point>,
}

/// One share of the maximum.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    /// 100 is the maximum itself.
    pub percent: u32,
    /// Requests per second that were asked for, median of the repeats; missing at the maximum.
    pub asked: Option<f64>,
    /// The rate that was reached.
    pub reached: Estimate,
    /// The reached rate relative to the asked one, median of the repeats.
    pub to_asked: Option<f64>,
    /// Of all repeats together, as are the percentiles.
    pub mean: Option<Duration>,
    /// Half of the requests took at most so long.
    pub p50: Option<Duration>,
    /// 99 of 100 did.
    pub p99: Option<Duration>,
    /// 999 of 1000 did.
    pub p99_9: Option<Duration>,
    /// CPU time per request in µs of what serves the disk.
    pub cpu_us: Option<f64>,
    /// CPUs of the host in use, and how many it has.
    pub cpus: Option<(f64, usize)>,
}

impl Point {
    /// The reached rate relative to the asked one, where it was missed.
    pub fn missed(&self) -> Option<f64> {
        self.to_asked.filter(|ratio| (ratio - 1.0).abs() > MISSED_FROM)
    }

    /// Whether no rate was asked.
    pub fn is_maximum(&self) -> bool {
        self.percent == CURVE_MAXIMUM
    }
}

/// All curves in the order in which they first appear.
pub fn curves(runs: &[Run]) -> Vec<Curve> {
    let mut all: Vec<Vec<&Run>> = Vec::new();
    for run in runs.iter().filter(|run| run.key.purpose == Purpose::Curve) {
        match all.iter_mut().find(|curve| same(curve[0], run)) {
            Some(curve) => curve.push(run),
            None => all.push(vec![run]),
        }
    }
    all.iter().map(|runs| curve(runs)).collect()
}

/// Whether two runs are points of the same curve.
fn same(a: &Run, b: &Run) -> bool {
    let (a, b) = (&a.key, &b.key);
    a.variant == b.variant && a.cell == b.cell && a.contender == b.contender
}

fn curve(runs: &[&Run]) -> Curve {
    let key = &runs[0].key;
    let shares = sorted(runs.iter().map(|run| run.key.step));
    Curve {
        variant: key.variant,
        cell: key.cell,
        contender: key.contender,
        emulated: runs.iter().any(|run| run.emulated),
        points: shares.into_iter().filter_map(|share| point(share, runs)).collect(),
    }
}

fn point(percent: u32, runs: &[&Run]) -> Option<Point> {
    let own: Vec<&Run> = runs.iter().copied().filter(|run| run.key.step == percent).collect();
    let latency = merged(own.iter().map(|run| run.latency()));
    let to_asked = |run: &Run| run.rate_iops.map(|asked| run.iops() / asked);
    Some(Point {
        percent,
        asked: median(own.iter().filter_map(|run| run.rate_iops)),
        reached: Estimate::of(own.iter().map(|run| run.iops()))?,
        to_asked: median(own.iter().filter_map(|run| to_asked(run))),
        mean: latency.mean(),
        p50: latency.percentile(50.0),
        p99: latency.percentile(99.0),
        p99_9: latency.percentile(99.9),
        cpu_us: median(own.iter().filter_map(|run| run.cpu_us())),
        cpus: cpus(&own),
    })
}

#[cfg(test)]
mod tests {
    use plan::testing::client;
    use records::testing::curve_runs;

    use super::*;

    #[test]
    fn points_are_ordered_from_low_to_high() {
        let runs = [
            curve_runs(client(1), 0, [1000, 500, 700, 900]),
            curve_runs(client(1), 1, [1000, 500, 700, 900]),
        ];
        let curves = curves(&runs.concat());
        let asked: Vec<_> =
            curves[0].points.iter().map(|point| (point.percent, point.asked)).collect();
        assert_eq!(asked, [(50, Some(500.0)), (70, Some(700.0)), (90, Some(900.0)), (100, None)]);
        assert!(curves[0].points[3].is_maximum() && curves.len() == 1);
        assert!(curves[0].points.iter().all(|point| point.missed().is_none()));
    }

    #[test]
    fn a_rate_that_is_missed_by_more_than_2_percent_is_called_so() {
        for (reached, missed) in
            [(900, false), (883, false), (881, true), (917, false), (919, true)]
        {
            let runs = curve_runs(client(1), 0, [1000, 500, 700, reached]);
            assert_eq!(curves(&runs)[0].points[2].missed().is_some(), missed, "{reached}");
        }
    }

    #[test]
    fn curves_are_told_apart_by_contender() {
        let runs =
            [curve_runs(client(1), 0, [1; 4]), curve_runs(Contender::HOST, 0, [1; 4])].concat();
        let contenders: Vec<_> = curves(&runs).iter().map(|curve| curve.contender).collect();
        assert_eq!(contenders, [client(1), Contender::HOST]);
    }
}
