//! Throughput over the number of iothreads with the gains and minima of the published sweep, cell by cell.
//!
//! The sweep gives per cell what the best number gains over none, and the fewest iothreads for 90 % of the best. The
//! curves between are made up from a seed, such that both come out.
//!
//! Limits: the sweep's 144 cells; other loads are not on this machine.

use super::chance::{between, one_of};
use super::{COUNTS, Load, Op, Subject};
use crate::rng::Rng;

const SIZES: [u32; 4] = [2048, 4096, 32_768, 1_048_576];
const OPS: [Op; 4] = [Op::RandomRead, Op::RandomWrite, Op::Read, Op::Write];
/// Of jobs and of iodepth.
const LEVELS: [u16; 3] = [1, 4, 16];
/// What the best gains over none, in percent: rows are the sizes, in them the operations; columns are the jobs, in them the
/// iodepths.
const GAINS: [[u16; 9]; 16] = [
    [18, 31, 30, 30, 103, 192, 151, 432, 494],
    [81, 59, 24, 153, 199, 187, 458, 433, 353],
    [67, 58, 25, 64, 71, 103, 252, 241, 287],
    [103, 64, 0, 143, 99, 84, 410, 250, 203],
    [18, 34, 28, 33, 101, 208, 156, 432, 492],
    [95, 69, 20, 149, 200, 187, 471, 543, 481],
    [26, 53, 27, 24, 46, 66, 142, 155, 165],
    [103, 69, 0, 144, 86, 48, 438, 256, 161],
    [16, 23, 26, 23, 71, 124, 99, 160, 129],
    [75, 71, 28, 108, 132, 116, 203, 123, 115],
    [21, 57, 25, 21, 42, 32, 77, 54, 32],
    [79, 64, 26, 104, 59, 24, 195, 45, 27],
    [5, 2, 0, 9, 0, 0, 17, 0, 0],
    [10, 0, 1, 6, 0, 2, 9, 0, 2],
    [12, 18, 0, 9, 0, 0, 16, 0, 0],
    [19, 0, 0, 7, 0, 0, 9, 0, 0],
];
/// The fewest iothreads for 90 % of the best, 0 is none; laid out as `GAINS`.
const MINIMA: [[u16; 9]; 16] = [
    [1, 1, 1, 1, 4, 8, 3, 12, 12],
    [1, 1, 1, 3, 16, 12, 8, 12, 12],
    [1, 1, 1, 1, 4, 4, 4, 6, 8],
    [1, 1, 0, 2, 12, 6, 8, 6, 6],
    [1, 1, 1, 1, 4, 8, 3, 12, 12],
    [1, 1, 1, 3, 16, 12, 8, 12, 12],
    [1, 1, 1, 1, 2, 3, 3, 6, 8],
    [1, 1, 0, 3, 12, 4, 8, 6, 4],
    [1, 1, 1, 1, 3, 6, 2, 4, 3],
    [1, 1, 1, 2, 12, 6, 4, 3, 3],
    [1, 1, 1, 1, 2, 2, 2, 2, 2],
    [1, 1, 1, 2, 6, 2, 4, 2, 1],
    [0, 0, 0, 0, 0, 0, 1, 0, 0],
    [0, 0, 0, 0, 0, 0, 0, 0, 0],
    [1, 1, 0, 0, 0, 0, 1, 0, 0],
    [1, 0, 0, 0, 0, 0, 0, 0, 0],
];
const ENOUGH: f64 = 0.9;

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
    let mut cells = Vec::new();
    let rows = SIZES.iter().flat_map(|&bytes| OPS.map(|op| (bytes, op)));
    for ((bytes, op), (gains, minima)) in rows.zip(GAINS.iter().zip(&MINIMA)) {
        let columns = LEVELS.iter().flat_map(|&jobs| LEVELS.map(|iodepth| (jobs, iodepth)));
        for ((jobs, iodepth), (&gain, &n90)) in columns.zip(gains.iter().zip(minima)) {
            let load = Load { op, bytes, jobs, iodepth };
            cells.push(PublishedCell { load, gain: f64::from(gain) / 100.0, n90 });
        }
    }
    cells
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

    /// IOPS without noise. Only the published loads are known.
    pub(super) fn iops(&self, subject: Subject, iothreads: u16, load: Load) -> f64 {
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
