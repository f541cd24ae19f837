//! Simulated machines: what a disk would have measured, run by run, without a disk and without a clock.
//!
//! Harnesses ask for runs with a number of iothreads, and compare what a method says with [`Machine::truth`]. A machine is
//! a [`base`](Base) (throughput over the number of iothreads), times the noise of each run, times what a boot does to all
//! runs until the next one, times a course over the session (drift, memory, warm-up). [`all`] is the list of those to try.
//!
//! Invariants: pure; a seed and the same sequence of asks give the same runs. `truth` does not depend on what was asked.
//! Limits: one disk, one guest. Numbers of iothreads are those of [`COUNTS`].
//! Not here: the tuner, which this knows nothing of.

mod chance;
mod course;
mod landing;
mod noise;
mod published;
mod queueing;
mod registry;
mod shape;

use std::cell::RefCell;
use std::collections::HashMap;
use std::time::Duration;

pub use course::{Course, Drift, Memory, Trigger, WarmUp};
pub use noise::Noise;
pub use published::{Published, PublishedCell, published_cells};
pub use queueing::{Media, Queueing};
pub use registry::{Named, all, named};
pub use shape::{Form, Shape};

use self::chance::{normal, uniform};
use crate::rng::Rng;

/// The numbers of iothreads that are compared; 0 is none.
pub const COUNTS: [u16; 9] = [0, 1, 2, 3, 4, 6, 8, 12, 16];
/// The measured time of a run is told in so many windows of equal length.
pub const WINDOWS: usize = 5;
/// What one window differs from the mean of its run; standard deviation.
const WINDOW_SD: f64 = 0.02;
/// A count is enough when it reaches this share of the best one.
const ENOUGH: f64 = 0.9;
/// Rounding is no shortfall.
const ROUNDING: f64 = 1e-9;

/// Who puts the load on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Subject {
    /// The load straight on the disk.
    Host,
    /// A guest, served by iothreads.
    Vm,
}

/// What the requests do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Op {
    /// `randread`.
    RandomRead,
    /// `randwrite`.
    RandomWrite,
    /// `read`.
    Read,
    /// `write`.
    Write,
}

impl Op {
    /// As fio names it.
    pub fn name(self) -> &'static str {
        match self {
            Self::RandomRead => "randread",
            Self::RandomWrite => "randwrite",
            Self::Read => "read",
            Self::Write => "write",
        }
    }

    /// Whether data changes.
    pub fn writes(self) -> bool {
        matches!(self, Self::RandomWrite | Self::Write)
    }

    /// Whether each job walks along the disk.
    pub fn is_sequential(self) -> bool {
        matches!(self, Self::Read | Self::Write)
    }
}

/// What is put on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Load {
    /// What the requests do.
    pub op: Op,
    /// Length of a request.
    pub bytes: u32,
    /// Threads of the load, at least 1.
    pub jobs: u16,
    /// Requests that each keeps in flight, at least 1.
    pub iodepth: u16,
}

impl Load {
    /// Requests in flight of all jobs.
    pub fn in_flight(self) -> f64 {
        f64::from(self.jobs) * f64::from(self.iodepth)
    }
}

/// One run that is wanted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ask {
    /// Who runs it.
    pub subject: Subject,
    /// How many iothreads serve it; 0 is none. Means nothing for the host.
    pub iothreads: u16,
    /// The load.
    pub load: Load,
    /// When the load begins, in seconds of the session. Never before the end of the ask before.
    pub started_s: f64,
    /// Seconds of load that are not measured, at least 0.
    pub ramp_s: f64,
    /// Seconds that are measured, above 0.
    pub seconds: f64,
}

/// What a run measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Ran {
    /// Requests per second of the windows.
    pub windows: [f64; WINDOWS],
    /// Requests per second of all the measured time.
    pub iops: f64,
    /// CPU time of what serves the disk, in µs.
    pub cpu_us_per_request: f64,
    /// What was busy, where the machine is made of threads.
    pub busy: Option<Busy>,
    /// Half of the requests took at most so long, in ns.
    pub p50_ns: u64,
    /// 99 of 100 took at most so long, in ns.
    pub p99_ns: u64,
}

/// How busy threads and CPUs were: 1 is all the time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Busy {
    /// The busiest of the threads that serve the disk, looking for requests included.
    pub serving: f64,
    /// On average of the virtual CPUs that have a job.
    pub submitting: f64,
    /// CPUs of the host in use.
    pub cpus: f64,
    /// CPUs of the host.
    pub cores: u16,
}

/// What limits a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// What the disk does at once, or its bandwidth.
    Disk,
    /// The number of requests in flight, each of which takes its time.
    InFlight,
    /// The threads that serve the disk.
    Iothread,
    /// The virtual CPUs.
    GuestCpu,
    /// The cores of the host.
    HostCpu,
}

/// Throughput over the number of iothreads.
#[derive(Clone, Debug)]
pub enum Base {
    /// Jobs, rings, threads and a disk.
    Queueing(Queueing),
    /// Curves that have the gains of the published sweep.
    Published(Published),
    /// A curve given by a formula.
    Shape(Shape),
}

/// One thing that may happen to a run before noise: where the jobs land.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outcome {
    /// Above 0; those of an ask sum to 1.
    pub probability: f64,
    /// Requests per second.
    pub iops: f64,
}

impl Base {
    /// What may happen to a run.
    pub fn outcomes(&self, subject: Subject, iothreads: u16, load: Load) -> Vec<Outcome> {
        match self {
            Self::Queueing(queueing) => queueing.outcomes(subject, iothreads, load),
            Self::Published(published) => certain(published.iops(subject, iothreads, load)),
            Self::Shape(shape) => certain(shape.iops(subject, iothreads, load)),
        }
    }
}

fn certain(iops: f64) -> Vec<Outcome> {
    vec![Outcome { probability: 1.0, iops }]
}

/// Probabilities of the factors that boots draw: both parts together, in steps of a fifth of their standard deviation.
fn boots(boot_sd: f64) -> Vec<(f64, f64)> {
    const STEPS: i32 = 20;
    if boot_sd == 0.0 {
        return vec![(1.0, 1.0)];
    }
    let density = |z: f64| (-z * z / 2.0).exp();
    let z = || (-STEPS..=STEPS).map(|step| f64::from(step) / 5.0);
    let all: f64 = z().map(density).sum();
    let deviation = boot_sd * 2.0_f64.sqrt();
    z().map(|z| (density(z) / all, (deviation * z).exp())).collect()
}

/// A simulated machine.
#[derive(Clone, Debug)]
pub struct Machine {
    base: Base,
    noise: Noise,
    course: Course,
    loads: Vec<Load>,
    /// What a boot does to the logarithm of all rates, and once more to that of each number of iothreads: a standard deviation.
    boot_sd: f64,
    /// The factors that the last boot drew.
    boot: HashMap<Option<(Subject, u16)>, f64>,
    rng: Rng,
    /// Of correlated noise, the last value.
    last: f64,
    memory: course::State,
    /// What `truth` found before: it takes long where jobs land in many ways.
    truths: RefCell<HashMap<(Subject, u16, Load), f64>>,
}

impl Machine {
    /// A machine whose random numbers come from `seed`; `loads` are the cells worth measuring on it.
    pub fn new(base: Base, noise: Noise, course: Course, loads: Vec<Load>, seed: u64) -> Self {
        let memory = course::State::default();
        let (rng, truths) = (Rng::new(seed), RefCell::default());
        let (boot_sd, boot) = (0.0, HashMap::new());
        Self { base, noise, course, loads, boot_sd, boot, rng, last: 0.0, memory, truths }
    }

    /// A machine whose boots differ: standard deviation of the logarithm.
    #[must_use]
    pub fn with_boots(self, boot_sd: f64) -> Self {
        Self { boot_sd, ..self }
    }

    /// Guests are booted and files made anew: what that does to the runs is drawn again.
    pub fn boot(&mut self) {
        self.boot.clear();
    }

    /// What the last boot does to a number of iothreads.
    fn of_boot(&mut self, subject: Subject, iothreads: u16) -> f64 {
        if self.boot_sd == 0.0 {
            return 1.0;
        }
        let Self { boot, boot_sd, rng, .. } = self;
        let mut factor = |of| *boot.entry(of).or_insert_with(|| (*boot_sd * normal(rng)).exp());
        factor(None) * factor(Some((subject, iothreads)))
    }

    /// The cells worth measuring.
    pub fn loads(&self) -> &[Load] {
        &self.loads
    }

    /// The numbers of iothreads that can be measured; 0 is none.
    pub fn counts(&self) -> &'static [u16] {
        &COUNTS
    }

    /// What the machine does over the session.
    pub fn course(&self) -> &Course {
        &self.course
    }

    /// Runs a load. The machine remembers it.
    pub fn run(&mut self, ask: &Ask) -> Ran {
        let outcomes = self.base.outcomes(ask.subject, ask.iothreads, ask.load);
        let iops = self.drawn(&outcomes) * self.noise.draw(&mut self.rng, &mut self.last);
        let iops = iops * self.of_boot(ask.subject, ask.iothreads);
        let mut windows = self.course.windows(&mut self.memory, ask, iops);
        let errors: [f64; WINDOWS] = std::array::from_fn(|_| WINDOW_SD * normal(&mut self.rng));
        let mean = errors.iter().sum::<f64>() / WINDOWS as f64;
        for (window, error) in windows.iter_mut().zip(errors) {
            *window *= 1.0 + error - mean;
        }
        let iops = windows.iter().sum::<f64>() / WINDOWS as f64;
        let p50_s = ask.load.in_flight() / iops;
        Ran {
            windows,
            iops,
            cpu_us_per_request: self.cpu_us(ask, iops),
            busy: match &self.base {
                Base::Queueing(queueing) => Some(queueing.busy(ask, iops)),
                Base::Published(_) | Base::Shape(_) => None,
            },
            p50_ns: nanoseconds(p50_s),
            p99_ns: nanoseconds(3.0 * p50_s),
        }
    }

    /// The median IOPS of all runs that there could be, noise and boots included, but not the course: on the undisturbed machine.
    pub fn truth(&self, subject: Subject, iothreads: u16, load: Load) -> f64 {
        let key = (subject, iothreads, load);
        let known = self.truths.borrow().get(&key).copied();
        known.unwrap_or_else(|| {
            let truth = self.median(subject, iothreads, load);
            self.truths.borrow_mut().insert(key, truth);
            truth
        })
    }

    fn median(&self, subject: Subject, iothreads: u16, load: Load) -> f64 {
        let outcomes = self.base.outcomes(subject, iothreads, load);
        let of_boot = |iops: f64| -> f64 {
            outcomes.iter().map(|it| it.probability * self.noise.cdf(iops / it.iops)).sum()
        };
        let boots = boots(self.boot_sd);
        let below = |iops: f64| -> f64 {
            boots.iter().map(|(probability, factor)| probability * of_boot(iops / factor)).sum()
        };
        let (mut low, mut high) =
            (0.0, outcomes.iter().map(|it| it.iops).fold(0.0, f64::max) * 3.0);
        for _ in 0..60 {
            let middle = f64::midpoint(low, high);
            if below(middle) < 0.5 { low = middle } else { high = middle }
        }
        f64::midpoint(low, high)
    }

    /// The number of iothreads whose worst shortfall over these loads is smallest, the fewest of equals, and that shortfall.
    pub fn best(&self, loads: &[Load]) -> (u16, f64) {
        let rated = COUNTS.map(|count| (count, self.shortfall(count, loads)));
        rated.into_iter().reduce(|a, b| if b.1 < a.1 - ROUNDING { b } else { a }).expect("counts")
    }

    /// What a number of iothreads truly lacks to the best of each load, at worst: 0 is nothing, 1 everything.
    pub fn shortfall(&self, iothreads: u16, loads: &[Load]) -> f64 {
        let lack = |&load: &Load| {
            let most =
                COUNTS.map(|n| self.truth(Subject::Vm, n, load)).into_iter().fold(0.0, f64::max);
            1.0 - self.truth(Subject::Vm, iothreads, load) / most
        };
        loads.iter().map(lack).fold(0.0, f64::max)
    }

    /// CPU time per request of what serves the disk over these loads, in µs, on the undisturbed machine: a geometric mean.
    pub fn cpu_truth(&self, iothreads: u16, loads: &[Load]) -> f64 {
        let logarithm = |&load: &Load| {
            let iops = self.truth(Subject::Vm, iothreads, load);
            let subject = Subject::Vm;
            let ask = Ask { subject, iothreads, load, started_s: 0.0, ramp_s: 0.0, seconds: 1.0 };
            self.cpu_us(&ask, iops).ln()
        };
        (loads.iter().map(logarithm).sum::<f64>() / loads.len() as f64).exp()
    }

    /// The number of iothreads that takes least CPU of those that lack at most `tolerance` more than the best: the one that an
    /// administrator who knew everything would take.
    pub fn cheapest(&self, loads: &[Load], tolerance: f64) -> u16 {
        let most = self.best(loads).1 + tolerance + ROUNDING;
        let enough = COUNTS.into_iter().filter(|&count| self.shortfall(count, loads) <= most);
        let cpu = |count| (count, self.cpu_truth(count, loads));
        enough.map(cpu).reduce(|a, b| if b.1 < a.1 { b } else { a }).expect("the best is one").0
    }

    /// By which share each thing would raise the throughput if there were a quarter more of it; nothing is known of a machine
    /// that is not made of threads.
    pub fn limits(&self, iothreads: u16, load: Load) -> Vec<(Limit, f64)> {
        match &self.base {
            Base::Queueing(queueing) => queueing.limits(iothreads, load),
            Base::Published(_) | Base::Shape(_) => Vec::new(),
        }
    }

    /// The fewest iothreads that reach 90 % of the best in a load.
    pub fn n90(&self, load: Load) -> u16 {
        let truths = COUNTS.map(|n| (n, self.truth(Subject::Vm, n, load)));
        let most = truths.iter().map(|it| it.1).fold(0.0, f64::max);
        let enough = truths.into_iter().find(|it| it.1 >= (ENOUGH - ROUNDING) * most);
        enough.expect("the best is enough").0
    }

    fn drawn(&mut self, outcomes: &[Outcome]) -> f64 {
        let mut left = uniform(&mut self.rng);
        for outcome in outcomes {
            left -= outcome.probability;
            if left < 0.0 {
                return outcome.iops;
            }
        }
        outcomes.last().expect("something happens").iops
    }

    fn cpu_us(&self, ask: &Ask, iops: f64) -> f64 {
        match &self.base {
            Base::Queueing(queueing) => queueing.cpu_us(ask, iops),
            // A thread that looks for requests all the time, as all do under load.
            Base::Published(_) | Base::Shape(_) => f64::from(ask.iothreads.max(1)) * 0.5e6 / iops,
        }
    }
}

fn nanoseconds(seconds: f64) -> u64 {
    u64::try_from(Duration::from_secs_f64(seconds).as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
