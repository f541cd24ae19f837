//! One cell: from what was measured to the range that something else would bring.
//!
//! Invariants: a service time is at most what was measured of CPU time, a ceiling is that of the bare host; so what is left to
//! fit is little. A step that leaves the load, or the cores, is never claimed as one that does not.
//! Limits: the network explains curves that rise and flatten. One that falls at a number which was not measured is not foreseen.

use crate::fit::{minimise, walk};
use crate::network::{Landing, Network, lower};

/// So many numbers of iothreads, none not counted, show how a curve bends.
pub const NUMBERS_MIN: usize = 3;
/// The numbers whose curve tells n90; the one that is asked for is added.
const COUNTS: [u16; 15] = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192];
/// A number is enough that reaches this share of the best.
const ENOUGH: f64 = 0.9;
/// Parameter sets that are looked at.
const SETS: usize = 200;
const EVALUATIONS: usize = 600;
const SEED: u64 = 19;
/// A figure is never taken as more exact.
const ERROR_MIN: f64 = 0.015;
/// Figures that lie further off, or so many errors off, are not explained.
const MISFIT: f64 = 0.08;
const MISFIT_ERRORS: f64 = 3.5;
/// What a range is widened by on both sides, as a logarithm: more iothreads within the cores, and everything else.
const WITHIN_ERROR: f64 = 0.035;
const BEYOND_ERROR: f64 = 0.12;
/// And by this share of what the highest number is off when it is predicted from the others.
const OF_HELD_OUT: f64 = 0.5;
/// The widest range, from its middle to an end, and the furthest step, as a factor, of which more is claimed.
const NARROW: f64 = 0.1;
const FURTHEST: u16 = 4;
/// Where the highest number reaches less of the best the curve falls already, and where it reaches less of the one below it is
/// flat.
const RISING: f64 = 0.95;
const FLAT: f64 = 1.03;

/// What is put on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Jobs, at least 1.
    pub jobs: u16,
    /// Requests that each keeps in flight, at least 1.
    pub iodepth: u16,
    /// Queues that they land on, at least 1.
    pub queues: u16,
}

impl Shape {
    fn in_flight(self) -> f64 {
        f64::from(self.jobs) * f64::from(self.iodepth)
    }

    /// Cores that its jobs and so many iothreads want.
    fn cores(self, iothreads: u16) -> u16 {
        self.jobs.min(self.queues).saturating_add(iothreads.min(self.queues))
    }
}

/// What a number of iothreads reached.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Observation {
    /// At least 1.
    pub iothreads: u16,
    /// Requests per second, above 0.
    pub iops: f64,
    /// Its standard error, as a share.
    pub error: f64,
}

/// The figures of one cell. Times are in seconds per request, all above 0.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// The load.
    pub shape: Shape,
    /// Cores of the machine.
    pub cores: u16,
    /// Requests per second of the bare host under this load.
    pub host: Option<f64>,
    /// How many times as many requests in flight the host was given besides, and how many times as much it then reached.
    pub deeper: Option<(f64, f64)>,
    /// How long one request alone takes on the host.
    pub latency_s: Option<f64>,
    /// CPU time of iothreads, looking for requests included, the least of all numbers.
    pub service_s: Option<f64>,
    /// CPU time of what makes the requests.
    pub submit_s: Option<f64>,
    /// CPU time of everything that takes part, the least of all numbers.
    pub cpu_s: Option<f64>,
    /// Requests per second without an iothread.
    pub none: Option<f64>,
    /// The numbers, in ascending order.
    pub numbers: Vec<Observation>,
}

/// What is asked: what is left out stays as it was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// A number of iothreads, at least 1; else the number that reached most.
    pub iothreads: Option<u16>,
    /// Cores of the machine.
    pub cores: Option<u16>,
    /// The load.
    pub shape: Shape,
}

/// From where to where.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Range {
    /// The lower end.
    pub low: f64,
    /// The upper end.
    pub high: f64,
}

impl Range {
    /// How far its ends are from its middle, as a share.
    pub fn width(self) -> f64 {
        (self.high / self.low).sqrt() - 1.0
    }

    fn widened(self, logarithm: f64) -> Self {
        Self { low: self.low * (-logarithm).exp(), high: self.high * logarithm.exp() }
    }

    fn including(self, other: Self) -> Self {
        Self { low: self.low.min(other.low), high: self.high.max(other.high) }
    }

    /// The same, or as wide as that.
    fn at_least(self, width: f64) -> Self {
        self.widened(((1.0 + width) / (1.0 + self.width())).ln().max(0.0))
    }
}

/// What is claimed of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// More iothreads for the same load on the same disk, with a core for each: it contains the truth in 90 % of cases, and is at
    /// most `NARROW` wide to each side.
    Holds,
    /// The same, but the figures leave a wider range, or the number is more than `FURTHEST` times those that were measured.
    Wide,
    /// It holds if the machine has so many cores, the storage keeps pace and no other bottleneck appears.
    Assumed {
        /// Cores that it takes, if the machine has not so many.
        cores: Option<u16>,
    },
}

/// The fewest iothreads that reach 90 % of the best, of all up to the number that was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum N90 {
    /// Between these, which are often the same; 0 is none.
    Between(u16, u16),
    /// This or more.
    AtLeast(u16),
}

/// The answer. It is no figure of a run, and is never mixed with these.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prediction {
    /// Iothreads that it is of.
    pub iothreads: u16,
    /// Requests per second.
    pub iops: Range,
    /// Missing where nothing can be said of it.
    pub n90: Option<N90>,
    /// How far it holds.
    pub claim: Claim,
}

/// Why nothing is predicted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum NoAnswer {
    /// The bare host was not measured, so what the disk can do is not known.
    NoHost,
    /// So many numbers of iothreads were measured, which are too few.
    FewNumbers(usize),
    /// The cores were too few for what was measured, and the CPU time is not known.
    NoCpuTime,
    /// The network is off by this share.
    Misfit(f64),
}

/// What something else would bring.
///
/// # Errors
/// Why that cannot be told.
pub fn predict(measured: &Measured, wanted: &Wanted) -> Result<Prediction, NoAnswer> {
    let Some(host) = measured.host else { return Err(NoAnswer::NoHost) };
    let numbers = &measured.numbers;
    let best = numbers.iter().copied().reduce(|a, b| if b.iops > a.iops { b } else { a });
    let (Some(best), Some(last)) = (best, numbers.last()) else {
        return Err(NoAnswer::FewNumbers(0));
    };
    if wanted.iothreads.is_some() && numbers.len() < NUMBERS_MIN {
        return Err(NoAnswer::FewNumbers(numbers.len()));
    }
    if measured.shape.cores(last.iothreads) > measured.cores && measured.cpu_s.is_none() {
        return Err(NoAnswer::NoCpuTime);
    }
    let cell = Cell::new(measured, host);
    let (fitted, _) = minimise(&|at| cell.loss(at, numbers), &[0.0; PARAMETERS], EVALUATIONS);
    let off = |it: &Observation| {
        let off = (cell.measurable(&fitted, it.iothreads) / it.iops).ln().abs();
        (off > MISFIT_ERRORS * error(it)).then_some(off)
    };
    let furthest = numbers.iter().filter_map(off).fold(0.0, f64::max);
    if furthest > MISFIT {
        return Err(NoAnswer::Misfit(furthest));
    }
    let sets = walk(&|at| cell.loss(at, numbers), &fitted, SETS, SEED);
    let iothreads = wanted.iothreads.unwrap_or(best.iothreads);
    let curves = Curves::new(&cell, wanted, iothreads);
    let (cores, held_out) = (missing_cores(measured, wanted, iothreads), cell.held_out());
    let is_same = wanted.shape == measured.shape && wanted.cores.is_none() && cores.is_none();
    let likely = curves.range(&sets, &[0.0], 0.05).widened(WITHIN_ERROR + OF_HELD_OUT * held_out);
    // Whether the storage gives what it gave, or keeps pace.
    let paces: &[f64] = if is_same { &[0.0] } else { &[0.0, 1.0] };
    let wide = || {
        let range = curves.range(&sets, paces, 0.01).including(line(measured, host, iothreads));
        range.widened(BEYOND_ERROR + held_out)
    };
    let is_near = iothreads <= last.iothreads.saturating_mul(FURTHEST);
    let is_known = is_clear(measured, best);
    let (claim, iops) = match is_same {
        true if is_near && is_known && likely.width() <= NARROW => {
            (Claim::Holds, likely.at_least(NARROW))
        }
        true => (Claim::Wide, wide()),
        false => (Claim::Assumed { cores }, wide()),
    };
    let n90 = (numbers.len() >= NUMBERS_MIN).then(|| {
        let each = paces.iter().flat_map(|&pace| sets.iter().map(move |at| (at, pace)));
        let mut all: Vec<u16> = each.map(|(at, pace)| curves.n90(at, pace)).collect();
        all.sort_unstable();
        let tail = all.len() / 20;
        match claim {
            Claim::Holds => Some(N90::Between(all[tail], all[all.len() - 1 - tail])),
            Claim::Wide | Claim::Assumed { .. } => curves.step_below(all[0]).map(N90::AtLeast),
        }
    });
    let n90 = n90.flatten();
    Ok(Prediction { iothreads, iops, n90, claim })
}

/// Whether the figures tell how the curve goes on: it does not fall, and either the CPU time of an iothread is known, or it
/// has become flat.
fn is_clear(measured: &Measured, best: Observation) -> bool {
    let is_flat = match measured.numbers[..] {
        [.., before, last] => last.iops <= FLAT * before.iops,
        [_] | [] => false,
    };
    let is_rising = measured.numbers.last().is_some_and(|it| it.iops >= RISING * best.iops);
    is_rising && (is_flat || measured.service_s.is_some())
}

/// From the highest number as it is to what it would be if the curve went on as a straight line, up to the host.
fn line(measured: &Measured, host: f64, iothreads: u16) -> Range {
    let (before, last) = match measured.numbers[..] {
        [.., before, last] => (before, last),
        [last] => (last, last),
        [] => return Range { low: host, high: host },
    };
    let steps = f64::from(last.iothreads) - f64::from(before.iothreads);
    let rise = (last.iops - before.iops).max(0.0) / steps.max(1.0);
    let further = (f64::from(iothreads) - f64::from(last.iothreads)).max(0.0);
    Range { low: last.iops, high: (last.iops + further * rise).min(host).max(last.iops) }
}

/// The cores that it takes, if the machine has not so many; none more if so many are asked for.
fn missing_cores(measured: &Measured, wanted: &Wanted, iothreads: u16) -> Option<u16> {
    let needed = wanted.cores.unwrap_or(wanted.shape.cores(iothreads));
    (needed > measured.cores).then_some(needed)
}

const PARAMETERS: usize = 7;

/// A cell with what is known of its parameters.
struct Cell<'a> {
    measured: &'a Measured,
    host: f64,
    /// Of the numbers.
    landings: Vec<(u16, Landing)>,
}

impl<'a> Cell<'a> {
    fn new(measured: &'a Measured, host: f64) -> Self {
        let numbers = measured.numbers.iter().map(|it| it.iothreads);
        let Shape { jobs, queues, .. } = measured.shape;
        let landings = numbers.map(|n| (n, Landing::new(jobs, queues, n))).collect();
        Self { measured, host, landings }
    }

    /// The network of some parameters, which are 0 where they are most probable, with deviations of 1.
    fn network(&self, at: &[f64]) -> Network {
        let spread = |middle: f64, width: f64, place: usize| middle * (width * at[place]).exp();
        let measured = self.measured;
        // Looking for requests is in the CPU times, too.
        let (service, known) = measured.service_s.map_or((6e-6, 1.0), |it| (0.85 * it, 0.3));
        let in_flight = measured.shape.in_flight();
        let of_host = in_flight / self.host;
        let (away, near) =
            measured.latency_s.map_or((0.7 * of_host, 0.8), |it| (it.min(of_host), 0.4));
        Network {
            service_s: spread(service, known, 0),
            away_s: spread(away, near, 1),
            submit_s: measured.submit_s.map_or(0.0, |it| it * (-spread(0.1, 1.0, 6)).exp()),
            contention: spread(0.02, 1.2, 2),
            coherence: spread(3e-4, 1.8, 3),
            batching: spread(0.08, 0.8, 4),
            batch: in_flight,
            ceiling: self.host * (-spread(0.04, 1.0, 5)).exp(),
        }
    }

    /// What a number that was measured reaches on the machine that it was measured on.
    fn measurable(&self, at: &[f64], iothreads: u16) -> f64 {
        let shape = self.measured.shape;
        let landing = self.landings.iter().find(|(n, _)| *n == iothreads).map(|(_, it)| it);
        let iops = landing.map_or(0.0, |it| self.network(at).iops(it, shape.iodepth.into()));
        self.on_cores(iops, shape.cores(iothreads), self.measured.cores)
    }

    /// What is left where threads want more cores than there are.
    fn on_cores(&self, iops: f64, wanted: u16, cores: u16) -> f64 {
        match self.measured.cpu_s {
            Some(cpu_s) if wanted > cores => lower(iops, f64::from(cores) / cpu_s),
            Some(_) | None => iops,
        }
    }

    fn loss(&self, at: &[f64], numbers: &[Observation]) -> f64 {
        let off = |it: &Observation| (self.measurable(at, it.iothreads) / it.iops).ln() / error(it);
        let figures: f64 = numbers.iter().map(|it| off(it).powi(2)).sum();
        figures + at.iter().map(|it| it * it).sum::<f64>()
    }

    /// How far off the highest number is if it is predicted from the others, as a logarithm.
    fn held_out(&self) -> f64 {
        let Some((last, others)) = self.measured.numbers.split_last() else { return 0.0 };
        if others.is_empty() {
            return 0.0;
        }
        let (fitted, _) = minimise(&|at| self.loss(at, others), &[0.0; PARAMETERS], EVALUATIONS);
        (self.measurable(&fitted, last.iothreads) / last.iops).ln().abs()
    }
}

fn error(observation: &Observation) -> f64 {
    observation.error.hypot(ERROR_MIN)
}

/// What is asked of a cell, for all numbers of iothreads.
struct Curves<'a> {
    cell: &'a Cell<'a>,
    wanted: &'a Wanted,
    asked: u16,
    landings: Vec<(u16, Landing)>,
    /// By how much the storage keeps pace with more requests in flight and more cores, at most.
    pace: f64,
}

impl<'a> Curves<'a> {
    fn new(cell: &'a Cell<'a>, wanted: &'a Wanted, iothreads: u16) -> Self {
        let Shape { jobs, queues, .. } = wanted.shape;
        let numbers = COUNTS.into_iter().filter(|&n| n < iothreads).chain([iothreads]);
        let more = wanted.shape.in_flight() / cell.measured.shape.in_flight();
        let exponent = cell.measured.deeper.map_or(1.0, |(times, gain)| gain.ln() / times.ln());
        // The host had no more cores, either.
        let has = f64::from(cell.measured.cores.max(1));
        let cores = wanted.cores.map_or(1.0, |cores| f64::from(cores) / has);
        Self {
            cell,
            wanted,
            asked: iothreads,
            landings: numbers.map(|n| (n, Landing::new(jobs, queues, n))).collect(),
            pace: more.powf(exponent.clamp(0.0, 1.0)) * cores.max(1.0),
        }
    }

    /// Between which values it is, but for so small a share at both ends.
    fn range(&self, sets: &[Vec<f64>], paces: &[f64], tail: f64) -> Range {
        let ends = paces.iter().map(|&pace| {
            let all: Vec<f64> = sets.iter().map(|at| self.at(at, pace, self.asked)).collect();
            (quantile(&all, tail), quantile(&all, 1.0 - tail))
        });
        let nothing = Range { low: f64::INFINITY, high: 0.0 };
        ends.fold(nothing, |range, (low, high)| Range {
            low: low.min(range.low),
            high: high.max(range.high),
        })
    }

    /// Requests per second if the storage keeps pace, 1, or gives what it gave, 0.
    fn at(&self, at: &[f64], pace: f64, iothreads: u16) -> f64 {
        let network = self.cell.network(at);
        let network = Network { ceiling: network.ceiling * self.pace.powf(pace), ..network };
        let shape = self.wanted.shape;
        let landing = self.landings.iter().find(|(n, _)| *n == iothreads).map(|(_, it)| it);
        let iops = landing.map_or(0.0, |it| network.iops(it, shape.iodepth.into()));
        let wanted = shape.cores(iothreads);
        self.cell.on_cores(iops, wanted, self.wanted.cores.unwrap_or(wanted))
    }

    /// The next lower number, if that is more than one: less need not be said.
    fn step_below(&self, iothreads: u16) -> Option<u16> {
        let lower = self.landings.iter().map(|(n, _)| *n).filter(|&n| n < iothreads);
        lower.max().filter(|&n| n > 1)
    }

    /// Of measured figures where there are some.
    fn n90(&self, at: &[f64], pace: f64) -> u16 {
        let (measured, wanted) = (self.cell.measured, self.wanted);
        let is_same = wanted.shape == measured.shape && wanted.cores.is_none();
        let known = |n: u16| measured.numbers.iter().find(|it| is_same && it.iothreads == n);
        let one = |n: u16| known(n).map_or_else(|| self.at(at, pace, n), |it| it.iops);
        let none = measured.none.filter(|_| is_same).map(|iops| (0, iops));
        let each = self.landings.iter().map(|(n, _)| (*n, one(*n)));
        let curve: Vec<(u16, f64)> = none.into_iter().chain(each).collect();
        let best = curve.iter().map(|it| it.1).fold(0.0, f64::max);
        curve.iter().find(|it| it.1 >= ENOUGH * best).map_or(0, |it| it.0)
    }
}

/// The value that so large a share of them does not exceed.
fn quantile(values: &[f64], share: f64) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    let below = |place: &usize| *place as f64 <= share * (values.len() - 1) as f64;
    (0..values.len()).rfind(below).map_or(0.0, |it| values[it])
}
