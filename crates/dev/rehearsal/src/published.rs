//! The cells of the published sweep as loads.

use crate::machine::Load;
use crate::parameters::{Op, Parameters, closed, lower};

const GAINS: &str = include_str!("../../../../docs/examples/published-sweep/improvement.csv");
/// The main thread, which serves when there is no iothread: so many times as dear, and microseconds for waking up.
const NONE_DEARER: f64 = 1.14;
const NONE_WAKE_US: f64 = 30.6;

/// A cell: `jobs` queues, each with `depth` requests of that length.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cell {
    /// What the requests do.
    pub op: Op,
    /// Length of a request.
    pub bytes: f64,
    /// Busy queues.
    pub jobs: usize,
    /// Requests in flight of each.
    pub depth: f64,
    /// What the best number of iothreads gained over none, as a share.
    pub gain: f64,
}

/// All 144, in the order of their publication.
pub fn cells() -> Vec<Cell> {
    let cell = |line: &str| {
        let fields: Vec<&str> = line.split(',').collect();
        let number =
            |at: usize| fields[at].parse::<f64>().expect("a number of the published table");
        let op = match fields[1] {
            "randread" => Op::RandRead,
            "randwrite" => Op::RandWrite,
            "read" => Op::Read,
            _ => Op::Write,
        };
        let jobs = fields[2].parse().expect("a number of the published table");
        Cell { op, bytes: number(0), jobs, depth: number(3), gain: number(4) / 100.0 }
    };
    GAINS.lines().skip(1).map(cell).collect()
}

impl Cell {
    /// The cell as a load of these queues.
    pub fn load(&self, queues: Vec<u16>) -> Load {
        let (op, bytes, depth) = (self.op, self.bytes, self.depth);
        Load { op, bytes, depth, queues, gain_exponent: 1.0 }
    }

    /// The exponent with which a machine's best gain over none becomes the published one.
    pub fn exponent(&self, p: &Parameters, best: f64) -> f64 {
        let requests = self.depth * self.jobs as f64;
        let (service, away) =
            (p.service(self.op, self.bytes, self.depth), p.away(self.op, self.bytes));
        let at_most = |rate: f64| {
            lower(lower(rate, self.jobs as f64 / p.guest_us), p.ceiling(self.op, self.bytes))
        };
        let one = at_most(closed(requests, service, away));
        let none = at_most(closed(requests, service * NONE_DEARER, away + NONE_WAKE_US));
        let (machine, published) = ((best / one).ln(), ((1.0 + self.gain) * none / one).ln());
        if machine < 0.02 { 1.0 } else { (published / machine).clamp(0.25, 4.0) }
    }
}
