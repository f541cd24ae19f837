//! Throughput over the number of iothreads with the gains and minima of the published sweep, cell by cell.
//!
//! The sweep gives per cell what the best number gains over none, and the fewest iothreads for 90 % of the best. The
//! curves between are made up from a seed, such that both come out. Its tables are those of `docs/examples`.
//!
//! Limits: the sweep's 144 cells; other loads are not on this machine.

use super::chance::{between, one_of};
use super::{COUNTS, Load, Op, Subject};
use crate::rng::Rng;

const OPS: [Op; 4] = [Op::RandomRead, Op::RandomWrite, Op::Read, Op::Write];
/// What the best gains over none, in percent.
const GAINS: &str = include_str!("../../../../../docs/examples/published-sweep/improvement.csv");
/// The fewest iothreads for 90 % of the best, 0 is none.
const MINIMA: &str = include_str!("../../../../../docs/examples/published-sweep/min-iothreads.csv");
const ENOUGH: f64 = 0.9;
/// The most requests in flight of each job.
const PUBLISHED_DEPTH: u16 = 16;

/// A cell of the published sweep.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PublishedCell {
    /// What is run.
    pub load: Load,
    /// What the best gains over none: 0.18 is 18 %.
    pub gain: f64,
    /// The fewest iothreads for 90 % of the best; 0 is none.
    pub n90: u16,
}

/// The 144 cells in the order in which they were published.
pub fn published_cells() -> Vec<PublishedCell> {
    let cell = |((load, gain), (other, n90)): ((Load, u16), (Load, u16))| {
        assert_eq!(load, other, "both tables have the same cells");
        PublishedCell { load, gain: f64::from(gain) / 100.0, n90 }
    };
    table(GAINS).into_iter().zip(table(MINIMA)).map(cell).collect()
}

/// The figures of a published table.
fn table(text: &str) -> Vec<(Load, u16)> {
    let mut lines = csv::Reader::from_reader(text.as_bytes());
    let figure = |line: csv::Result<(u32, String, u16, u16, u16)>| {
        let (bytes, op, jobs, iodepth, figure) = line.expect("a line of the published table");
        let op = OPS.into_iter().find(|it| it.name() == op).expect("an operation of fio's");
        (Load { op, bytes, jobs, iodepth }, figure)
    };
    lines.deserialize().map(figure).collect()
}

/// One curve per published cell.
#[derive(Clone, Debug)]
pub struct Published {
    curves: Vec<(Load, Curve)>,
}

#[derive(Clone, Copy, Debug)]
struct Curve {
    /// IOPS of each of `COUNTS`.
    vm: [f64; COUNTS.len()],
    host: f64,
}

impl Published {
    /// Curves that depend on the seed where the publication is silent.
    pub fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let curve = |cell: PublishedCell| (cell.load, Curve::new(&cell, &mut rng));
        Self { curves: published_cells().into_iter().map(curve).collect() }
    }

    /// IOPS without noise. Only the published loads are known; the host with more requests in flight than was published gets no
    /// more.
    pub(super) fn iops(&self, subject: Subject, iothreads: u16, load: Load) -> f64 {
        let deepest = PUBLISHED_DEPTH.min(load.iodepth);
        let load = if subject == Subject::Host { Load { iodepth: deepest, ..load } } else { load };
        let known = self.curves.iter().find(|(known, _)| *known == load);
        let (_, curve) = known.expect("the load is one of the published cells");
        let place = COUNTS.iter().position(|&count| count == iothreads).expect("one of COUNTS");
        match subject {
            Subject::Host => curve.host,
            Subject::Vm => curve.vm[place],
        }
    }
}

impl Curve {
    fn new(cell: &PublishedCell, rng: &mut Rng) -> Self {
        let best = 1.0 + cell.gain;
        let first = COUNTS.iter().position(|&count| count == cell.n90).expect("one of COUNTS");
        // Where the best is: at the first that is enough, or up to two later.
        let steps = if cell.gain == 0.0 { 0 } else { rng.index(3) };
        let least = usize::from(cell.n90 == 0 && cell.gain > 0.0);
        let peak = (first + steps.max(least)).min(COUNTS.len() - 1);
        let (bend, fall) = (between(rng, 0.7, 1.2), between(rng, 0.0, 0.02));
        let enough = between(rng, 0.92, 0.99) * best;
        let below = between(rng, 0.9, 0.98) * ENOUGH * best;
        let shape = |place: usize| -> f64 {
            let count = f64::from(COUNTS[place]);
            if place < first {
                1.0 + (below - 1.0) * (count / f64::from(cell.n90)).powf(bend)
            } else if place <= peak {
                let start = if cell.n90 == 0 {
                    1.0
                } else if first == peak {
                    best
                } else {
                    enough
                };
                let share = (place - first) as f64 / (peak - first).max(1) as f64;
                start + (best - start) * share
            } else {
                best * (1.0 - fall * (place - peak) as f64)
            }
        };
        let in_flight = cell.load.in_flight().min(64.0);
        let scale =
            20_000.0 * in_flight.powf(0.6) / (f64::from(cell.load.bytes) / 16_384.0).max(1.0);
        let vm = std::array::from_fn(|place| scale * shape(place));
        Self { vm, host: scale * best * one_of(rng, &[1.0, 1.1, 1.3, 1.6]) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_curve_has_its_gain_and_its_minimum() {
        for seed in 0..20 {
            let machine = Published::new(seed);
            for cell in published_cells() {
                let iops = COUNTS.map(|n| machine.iops(Subject::Vm, n, cell.load));
                let most = iops.iter().copied().fold(0.0, f64::max);
                assert!((most / iops[0] - 1.0 - cell.gain).abs() < 1e-9, "{cell:?} {iops:?}");
                let n90 = COUNTS.into_iter().zip(iops).find(|it| it.1 >= ENOUGH * most).unwrap().0;
                assert_eq!(n90, cell.n90, "{cell:?} {iops:?}");
            }
        }
    }

    #[test]
    fn the_cells_are_those_of_the_publication() {
        let cells = published_cells();
        assert_eq!(cells.len(), 144);
        // What peers tell of it: none is enough in exactly the cells that gain at most 10 %.
        assert!(cells.iter().all(|cell| (cell.n90 == 0) == (cell.gain <= 0.1)));
        assert_eq!(cells.iter().filter(|cell| cell.n90 == 0).count(), 33);
        assert!(cells.iter().all(|cell| cell.load.jobs > 1 || cell.n90 <= 1));
    }
}
