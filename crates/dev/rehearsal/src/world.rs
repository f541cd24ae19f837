//! A world: machine, guests, rings and iothreads in time, with the counters that the daemon would have.
//!
//! Invariants: what is measured for results is without noise; what policies see has noise, and the errors of sampling.

use std::collections::{BTreeMap, BTreeSet};

use crate::machine::{DiskOnThreads, Load, Shares, guest_cpus, polling, solve};
use crate::parameters::Parameters;
use crate::rng::Rng;

/// Loads change, and noise is drawn, every so many seconds.
pub const WINDOW: f64 = 0.05;
/// The gauges sample one turn or round in so many.
const SAMPLED: f64 = 64.0;
/// Requests that a turn takes at most beside other rings.
const TURN_REQUESTS: f64 = 16.0;

/// A time in which a guest does one thing.
#[derive(Clone, Debug, PartialEq)]
pub struct Phase {
    /// How long, in seconds.
    pub seconds: f64,
    /// What it does; `None` is nothing.
    pub load: Option<Load>,
    /// How often a second each busy queue stops and another one begins.
    pub wander_per_s: f64,
}

/// A disk and what its guest does, phase after phase and then from the first again.
#[derive(Clone, Debug, PartialEq)]
pub struct DiskPlan {
    /// How many queues it has.
    pub queues: u16,
    /// What is below it: trials on the same storage do not overlap.
    pub storage: u64,
    /// The phases, at least one.
    pub phases: Vec<Phase>,
}

/// What a ring has done.
#[derive(Clone, Copy, Debug, Default)]
pub struct RingCount {
    /// Requests.
    pub requests: f64,
    /// Bytes.
    pub bytes: f64,
    /// Turns.
    pub turns: f64,
    /// Nanoseconds in turns, sampled.
    pub turn_ns: f64,
    /// Nanoseconds that requests were open.
    pub open_ns: f64,
    /// Nanoseconds that they waited to be taken, sampled.
    pub take_wait_ns: f64,
    /// Nanoseconds that they waited to be answered, sampled.
    pub answer_wait_ns: f64,
    /// Open now.
    pub in_flight: f64,
}

/// What an iothread has done.
#[derive(Clone, Copy, Debug, Default)]
pub struct ThreadCount {
    /// Nanoseconds of work.
    pub work_ns: f64,
    /// Nanoseconds of polling.
    pub poll_ns: f64,
    /// Nanoseconds without a CPU.
    pub run_delay_ns: f64,
}

/// A disk as it is.
#[derive(Clone, Debug)]
pub struct DiskState {
    /// What its guest does.
    pub plan: DiskPlan,
    /// The iothread of each queue.
    pub place: Vec<u16>,
    /// What each queue has done.
    pub rings: Vec<RingCount>,
    /// What it does now.
    pub load: Option<Load>,
    phase: usize,
    phase_left: f64,
    drift: f64,
    noise: f64,
    wait_error: f64,
    /// Seconds for which its busy rings were not served, summed, since the last step.
    paused: f64,
}

/// Everything.
#[derive(Clone, Debug)]
pub struct World {
    /// The machine.
    pub parameters: Parameters,
    /// Its disks.
    pub disks: Vec<DiskState>,
    /// Its iothreads, those that have ever run.
    pub threads: BTreeMap<u16, ThreadCount>,
    /// Those that run.
    pub running: BTreeSet<u16>,
    /// Seconds since the start.
    pub now: f64,
    /// How often rings were moved.
    pub moves: u64,
    /// CPUs that nobody used in the last step.
    pub idle_cpus: f64,
    rng: Rng,
    until_window: f64,
}

impl World {
    /// All queues begin on iothread 0.
    pub fn new(parameters: Parameters, plans: &[DiskPlan], seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let disk = |plan: &DiskPlan| DiskState {
            plan: plan.clone(),
            place: vec![0; usize::from(plan.queues)],
            rings: vec![RingCount::default(); usize::from(plan.queues)],
            load: plan.phases[0].load.clone(),
            phase: 0,
            phase_left: plan.phases[0].seconds,
            drift: 0.0,
            noise: 0.0,
            wait_error: (rng.normal() * parameters.wait_error).exp() * parameters.wait_factor,
            paused: 0.0,
        };
        let disks = plans.iter().map(disk).collect();
        let (threads, running) = (BTreeMap::new(), BTreeSet::new());
        let idle_cpus = parameters.cpus;
        let (now, moves, until_window) = (0.0, 0, WINDOW);
        let mut world =
            Self { parameters, disks, threads, running, now, moves, idle_cpus, rng, until_window };
        world.draw();
        world
    }

    /// Puts a queue on another iothread.
    pub fn move_ring(&mut self, disk: usize, queue: u16, to: u16) {
        let disk = &mut self.disks[disk];
        let at = &mut disk.place[usize::from(queue)];
        if *at == to {
            return;
        }
        *at = to;
        self.moves += 1;
        if disk.load.as_ref().is_some_and(|it| it.queues.contains(&queue)) {
            disk.paused += self.parameters.move_us / 1e6;
        }
    }

    /// What each disk would get with these iothreads for its queues.
    pub fn shares_with(&self, place: &dyn Fn(usize, u16) -> u16) -> Vec<Shares> {
        let places: Vec<_> = (0..self.disks.len()).map(|d| move |q: u16| place(d, q)).collect();
        let asked: Vec<DiskOnThreads<'_>> = self
            .disks
            .iter()
            .zip(&places)
            .map(|(disk, place)| (disk.load.as_ref(), place as &dyn Fn(u16) -> u16))
            .collect();
        solve(&self.parameters, &asked)
    }

    /// What each disk gets now.
    pub fn shares(&self) -> Vec<Shares> {
        self.shares_with(&|disk, queue| self.disks[disk].place[usize::from(queue)])
    }

    /// Seconds until loads may change.
    pub fn until_window(&self) -> f64 {
        self.until_window
    }

    /// Time passes, at most until the next window; what each disk got, without noise.
    pub fn advance(&mut self, seconds: f64) -> Vec<Shares> {
        let mut shares = self.shares();
        for (disk, shares) in self.disks.iter_mut().zip(&mut shares) {
            let busy = disk.load.as_ref().map_or(1, |it| it.queues.len().max(1)) as f64;
            let lost = (disk.paused / busy / seconds).min(1.0);
            disk.paused = 0.0;
            for share in shares.values_mut() {
                share.rate *= 1.0 - lost;
                share.usage *= 1.0 - lost;
            }
        }
        self.count(&shares, seconds);
        self.now += seconds;
        self.until_window -= seconds;
        if self.until_window < 1e-6 {
            self.until_window = WINDOW;
            self.change_loads();
            self.draw();
        }
        shares
    }

    fn count(&mut self, shares: &[Shares], seconds: f64) {
        let mut threads: BTreeMap<u16, (f64, f64)> = BTreeMap::new();
        for (disk, shares) in self.disks.iter_mut().zip(shares) {
            let factor = (disk.drift + disk.noise).exp();
            let Some(load) = &disk.load else { continue };
            for queue in &load.queues {
                let at = usize::from(*queue);
                let Some(share) = shares.get(&disk.place[at]) else { continue };
                let rings = share.rings as f64;
                let ring = &mut disk.rings[at];
                let requests = share.rate * factor / rings * seconds * 1e6;
                let waiting = share.wait_for_others / rings;
                let batch = 1.0 + share.usage * load.depth.min(TURN_REQUESTS) / 2.0;
                let turns = requests / batch;
                let mut sampled = |mean_ns: f64| {
                    let samples = turns / SAMPLED;
                    let found = self.rng.poisson(samples);
                    let spread = 1.0 + 0.5 * self.rng.normal() / found.max(1.0).sqrt();
                    mean_ns * found / samples.max(1e-9) * spread.max(0.1)
                };
                let wait_ns = waiting * disk.wait_error * seconds * 1e9;
                let wait_ns = wait_ns.min(0.95 * share.open / rings * seconds * 1e9);
                ring.turn_ns += sampled(share.usage * factor / rings * seconds * 1e9);
                ring.take_wait_ns += sampled(wait_ns / 2.0);
                ring.answer_wait_ns += sampled(wait_ns / 2.0);
                ring.open_ns += (share.open / rings - waiting / 2.0).max(0.0) * seconds * 1e9;
                ring.requests += requests;
                ring.bytes += requests * load.bytes;
                ring.turns += turns;
                ring.in_flight = (share.open / rings).round();
            }
            for (thread, share) in shares {
                let sum = threads.entry(*thread).or_default();
                (sum.0, sum.1) = (sum.0 + share.usage * factor, sum.1 + share.rate * factor);
            }
        }
        self.count_threads(&threads, seconds);
    }

    fn count_threads(&mut self, threads: &BTreeMap<u16, (f64, f64)>, seconds: f64) {
        let wanted = self.guest_cpus() + threads.len() as f64;
        self.idle_cpus = (self.parameters.cpus - wanted).max(0.0);
        let late = (1.0 - self.parameters.cpus / wanted).max(0.0);
        for (thread, (usage, rate)) in threads {
            let count = self.threads.entry(*thread).or_default();
            count.work_ns += usage.min(1.0) * seconds * 1e9;
            count.poll_ns += polling(usage.min(1.0), *rate) * seconds * 1e9;
            count.run_delay_ns += late * seconds * 1e9;
        }
    }

    fn guest_cpus(&self) -> f64 {
        let here = |_: u16| 0_u16;
        let loads = self.disks.iter();
        let asked: Vec<DiskOnThreads<'_>> =
            loads.map(|it| (it.load.as_ref(), &here as &dyn Fn(u16) -> u16)).collect();
        guest_cpus(&asked)
    }

    fn change_loads(&mut self) {
        for disk in &mut self.disks {
            disk.phase_left -= WINDOW;
            if disk.phase_left < 1e-6 {
                disk.phase = (disk.phase + 1) % disk.plan.phases.len();
                let phase = &disk.plan.phases[disk.phase];
                disk.phase_left = phase.seconds;
                disk.load.clone_from(&phase.load);
            }
            let wander = disk.plan.phases[disk.phase].wander_per_s;
            let Some(load) = &mut disk.load else { continue };
            for at in 0..load.queues.len() {
                if wander > 0.0 && self.rng.chance(1.0 - (-wander * WINDOW).exp()) {
                    let quiet: Vec<u16> =
                        (0..disk.plan.queues).filter(|it| !load.queues.contains(it)).collect();
                    if !quiet.is_empty() {
                        load.queues[at] = quiet[self.rng.below(quiet.len())];
                    }
                }
            }
        }
    }

    fn draw(&mut self) {
        let p = &self.parameters;
        let stalls = self.rng.chance(p.stalls_per_s * WINDOW);
        for disk in &mut self.disks {
            disk.drift = 0.9 * disk.drift + self.rng.normal() * p.drift;
            disk.noise = self.rng.normal() * p.noise - if stalls { 2.0 } else { 0.0 };
        }
    }
}
