//! The published sweep: one machine that all of its cells share is fitted to some of them and says what the others gain.
//!
//! The sweep tells two facts of each of 144 cells, what the best number gains over none and the fewest iothreads for 90 % of it, and no
//! rate; so a curve of one cell is not in it, but a machine is. docs/statistics.md has the errors.

use model::{Landing, Network, lower, minimise};

use crate::{Chance, print, quantile};

const GAINS: &str = include_str!("../../../../../docs/examples/published-sweep/improvement.csv");
const MINIMA: &str = include_str!("../../../../../docs/examples/published-sweep/min-iothreads.csv");
const COUNTS: [u16; 9] = [0, 1, 2, 3, 4, 6, 8, 12, 16];
const QUEUES: u16 = 16;
/// Bytes per µs of the published disk.
const BANDWIDTH: [f64; 2] = [7300.0, 6700.0];

#[derive(Clone, Copy, Debug, PartialEq)]
struct Cell {
    bytes: f64,
    /// Place in `OPS`.
    op: usize,
    jobs: u16,
    iodepth: u16,
    gain: f64,
    n90: u16,
}

const OPS: [&str; 4] = ["randread", "randwrite", "read", "write"];

fn cells() -> Vec<Cell> {
    let rows = |text: &'static str| csv::Reader::from_reader(text.as_bytes()).into_deserialize();
    type Row = (u32, String, u16, u16, u16);
    let minima = rows(MINIMA).map(|row: csv::Result<Row>| row.unwrap());
    let gains = rows(GAINS).map(|row: csv::Result<Row>| row.unwrap());
    let both = gains.zip(minima).map(|((bytes, op, jobs, iodepth, gain), other)| {
        assert_eq!((bytes, &op, jobs, iodepth), (other.0, &other.1, other.2, other.3));
        let op = OPS.iter().position(|it| *it == op).unwrap();
        let (bytes, gain) = (f64::from(bytes), 1.0 + f64::from(gain) / 100.0);
        Cell { bytes, op, jobs, iodepth, gain, n90: other.4 }
    });
    both.collect()
}

/// Lowest, first guess, highest: guesses from before any fit. Times in µs, rates in requests per µs.
const PARAMETERS: [(f64, f64, f64); 18] = [
    // Device and kernel for each operation, and per KiB.
    (20.0, 75.0, 200.0),
    (3.0, 15.0, 100.0),
    (2.0, 20.0, 100.0),
    (2.0, 15.0, 100.0),
    (0.01, 0.3, 3.0),
    // An iothread for a request, and per KiB; how it falls with the depth for each operation.
    (1.0, 5.0, 30.0),
    (0.0005, 0.02, 1.0),
    (0.001, 0.1, 0.8),
    (0.001, 0.1, 0.8),
    (0.001, 0.3, 0.8),
    (0.001, 0.3, 0.8),
    // The main thread: so many times as dear, and its wake-up.
    (1.001, 1.5, 6.0),
    (0.1, 15.0, 80.0),
    // The guest; contention and coherence; what reads and writes have at most.
    (0.3, 3.0, 20.0),
    (1e-4, 0.05, 0.6),
    (1e-6, 0.002, 0.05),
    (0.3, 1.5, 8.0),
    (0.3, 1.5, 8.0),
];

fn parameter(at: &[f64], place: usize) -> f64 {
    let (lowest, guess, highest) = PARAMETERS[place];
    (guess * (0.6 * at[place]).exp()).clamp(lowest, highest)
}

type Landings = Vec<(u16, Vec<Landing>)>;

/// For each number of jobs, of all numbers of iothreads.
fn landings() -> Landings {
    let of = |jobs| COUNTS.map(|n: u16| Landing::new(jobs, QUEUES, n.max(1))).to_vec();
    [1, 4, 16].map(|jobs| (jobs, of(jobs))).to_vec()
}

fn curve(at: &[f64], cell: &Cell, landings: &Landings) -> Vec<f64> {
    let p = |place| parameter(at, place);
    let (kib, depth, writes) = (cell.bytes / 1024.0, f64::from(cell.iodepth), cell.op % 2);
    let service = (p(5) + p(6) * kib) * depth.powf(-p(7 + cell.op));
    let away = p(cell.op) + p(4) * kib + p(13);
    let ceiling = lower(BANDWIDTH[writes] / cell.bytes, p(16 + writes));
    let all = &landings.iter().find(|(jobs, _)| *jobs == cell.jobs).unwrap().1;
    let one = |(n, landing): (u16, &Landing)| {
        let (slower, wake) = if n == 0 { (p(11), p(12)) } else { (1.0, 0.0) };
        let network = Network {
            service_s: service * slower,
            away_s: away + wake,
            submit_s: p(13),
            contention: p(14),
            coherence: p(15),
            batching: 0.0,
            batch: 1.0,
            ceiling,
        };
        network.iops(landing, depth)
    };
    COUNTS.into_iter().zip(all).map(one).collect()
}

/// What the best gains, and n90.
fn facts(curve: &[f64]) -> (f64, u16) {
    let best = curve.iter().copied().fold(0.0, f64::max);
    let enough = curve.iter().position(|&it| it >= 0.9 * best).unwrap();
    (best / curve[0], COUNTS[enough])
}

fn place(n: u16) -> usize {
    COUNTS.iter().position(|&it| it == n).unwrap()
}

fn loss(curve: &[f64], cell: &Cell) -> f64 {
    let best = curve.iter().copied().fold(0.0, f64::max);
    let error = ((best / curve[0] / cell.gain).ln() / 0.06).abs();
    // One odd cell does not rule.
    let gain = if error < 3.0 { error * error } else { 6.0 * error - 9.0 };
    let at = place(cell.n90);
    let lacks = |ratio: f64| (ratio.ln() / 0.04).max(0.0).powi(2);
    let below = at.checked_sub(1).map_or(0.0, |it| lacks(curve[it] / (0.9 * best)));
    gain + lacks(0.9 * best / curve[at]) + below
}

fn fitted(cells: &[Cell], landings: &Landings, starts: u64) -> (Vec<f64>, f64) {
    let all = |at: &[f64]| {
        let of = |cell: &Cell| loss(&curve(at, cell, landings), cell);
        cells.iter().map(of).sum::<f64>() + 0.05 * at.iter().map(|it| it * it).sum::<f64>()
    };
    let start = |seed: u64| -> Vec<f64> {
        let chance = &mut Chance::new(seed);
        PARAMETERS.map(|_| if seed == 0 { 0.0 } else { chance.normal() }).to_vec()
    };
    let one = |seed| {
        let mut found = minimise(&all, &start(seed), 1500);
        for _ in 0..3 {
            found = minimise(&all, &found.0, 700);
        }
        found
    };
    (0..starts).map(one).reduce(|a, b| if b.1 < a.1 { b } else { a }).unwrap()
}

/// Errors of the gain: median and what nine of ten do not exceed; shares of n90 that are exact, and within a step.
fn errors(at: &[f64], cells: &[Cell], landings: &Landings) -> [f64; 4] {
    let each: Vec<(f64, usize)> = cells
        .iter()
        .map(|cell| {
            let (gain, n90) = facts(&curve(at, cell, landings));
            ((gain / cell.gain - 1.0).abs(), place(n90).abs_diff(place(cell.n90)))
        })
        .collect();
    let gains: Vec<f64> = each.iter().map(|it| it.0).collect();
    let share = |steps| each.iter().filter(|it| it.1 <= steps).count() as f64 / each.len() as f64;
    [quantile(&gains, 0.5), quantile(&gains, 0.9), share(0), share(1)]
}

/// What is left out, and the most that the gain may be off in the median and that n90 may be within a step.
type HeldOut = (&'static str, fn(&Cell) -> bool, f64, (f64, f64));

const HELD_OUT: [HeldOut; 6] = [
    ("4 KiB", |it| it.bytes == 4096.0, 0.14, (0.85, 1.0)),
    ("32 KiB", |it| it.bytes == 32768.0, 0.22, (0.55, 1.0)),
    ("iodepth 16", |it| it.iodepth == 16, 0.26, (0.5, 1.0)),
    ("16 jobs", |it| it.jobs == 16, 0.26, (0.5, 1.0)),
    ("16 jobs and iodepth 16", |it| it.jobs == 16 && it.iodepth == 16, 0.3, (0.35, 1.0)),
    // The reason why nothing but "at least" is said of what leaves the load: it is wrong of most.
    ("n90 above 4", |it| it.n90 > 4, 0.35, (0.1, 0.6)),
];

#[track_caller]
fn check(name: &str, train: &[Cell], test: &[Cell], gain_max: f64, (least, most): (f64, f64)) {
    let landings = landings();
    let (at, _) = fitted(train, &landings, 1);
    let [median, ninth, exact, within] = errors(&at, test, &landings);
    let percent = [median, ninth, exact, within].map(|it| format!("{:.0}", 100.0 * it));
    print(name, &format!("{} | {}", test.len(), percent.join(" | ")));
    assert!(median <= gain_max && (least..=most).contains(&within), "{name}: {percent:?}");
}

#[test]
fn one_machine_explains_the_published_sweep() {
    let all = cells();
    assert_eq!(all.len(), 144);
    check("in sample", &all, &all, 0.09, (0.85, 1.0));
}

#[test]
fn what_is_left_out_of_the_sweep_is_told_as_well_as_is_said() {
    let all = cells();
    for (name, is_out, gain_max, within) in HELD_OUT {
        let (test, train): (Vec<Cell>, Vec<Cell>) = all.iter().copied().partition(is_out);
        check(name, &train, &test, gain_max, within);
    }
}

#[test]
fn a_third_of_the_cells_is_told_from_the_others() {
    // In an order without meaning.
    let mut all = cells();
    let mut chance = Chance::new(5);
    for place in (1..all.len()).rev() {
        all.swap(place, chance.below(u16::try_from(place + 1).unwrap()).into());
    }
    for fold in 0..3 {
        let (mut test, mut train) = (Vec::new(), Vec::new());
        for (place, cell) in all.iter().enumerate() {
            if place % 3 == fold { test.push(*cell) } else { train.push(*cell) }
        }
        check(&format!("a random third, {}", fold + 1), &train, &test, 0.14, (0.75, 1.0));
    }
}
