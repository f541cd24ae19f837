//! A run: a policy in a world for a time, and what came of it.

use serde::Serialize;

use crate::machine::{Shares, cpus, rate};
use crate::policies::Policy;
use crate::world::World;

/// What came of a run, in the part of it that was measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Outcome {
    /// Requests per second of all disks, on average, without noise.
    pub requests_per_s: f64,
    /// The same of each disk.
    pub disks: Vec<f64>,
    /// CPUs that the iothreads used, polling included, on average.
    pub cpus: f64,
    /// Iothreads with busy rings, on average.
    pub iothreads: f64,
    /// Moves of rings per second.
    pub moves_per_s: f64,
    /// Changes of a number of iothreads that were kept, per second.
    pub kept_per_s: f64,
    /// Share of the requests that was lost to trials, against the time between them.
    pub lost_to_trials: f64,
}

/// Sums of a run.
#[derive(Clone, Debug, Default)]
struct Sums {
    seconds: f64,
    disks: Vec<f64>,
    cpus: f64,
    iothreads: f64,
    still_seconds: f64,
    still_requests: f64,
}

impl Sums {
    fn add(&mut self, shares: &[Shares], seconds: f64, is_still: bool) {
        self.seconds += seconds;
        self.disks.resize(shares.len(), 0.0);
        let mut all = 0.0;
        for (sum, shares) in self.disks.iter_mut().zip(shares) {
            let requests = rate(shares) * seconds * 1e6;
            *sum += requests;
            all += requests;
        }
        self.cpus += cpus(shares) * seconds;
        let threads: std::collections::BTreeSet<u16> =
            shares.iter().flat_map(|it| it.keys().copied()).collect();
        self.iothreads += threads.len() as f64 * seconds;
        if is_still {
            self.still_seconds += seconds;
            self.still_requests += all;
        }
    }
}

/// Runs until that time, and measures from `from` on, in seconds. `watch` sees every step.
pub fn run(
    world: &mut World,
    policy: &mut dyn Policy,
    from: f64,
    until: f64,
    mut watch: impl FnMut(&World, &[Shares], f64, &dyn Policy),
) -> Outcome {
    let mut sums = Sums::default();
    let mut next = world.now + policy.look(world);
    let mut moves_before = None;
    while world.now < until - 1e-6 {
        let step = world.until_window().min((next - world.now).max(1e-6)).min(until - world.now);
        let measured = world.now >= from - 1e-6;
        if measured && moves_before.is_none() {
            moves_before = Some(world.moves);
        }
        let is_still = !policy.is_trying();
        let shares = world.advance(step);
        if measured {
            sums.add(&shares, step, is_still);
        }
        watch(world, &shares, step, policy);
        if world.now >= next - 1e-7 {
            next = world.now + policy.look(world);
        }
    }
    let seconds = sums.seconds.max(1e-9);
    let kept = policy.changes().iter().filter(|it| it.0 >= from).count();
    let all: f64 = sums.disks.iter().sum();
    let still = sums.still_requests / sums.still_seconds.max(1e-9);
    let lost = if sums.still_seconds > 0.0 { 1.0 - all / seconds / still.max(1e-9) } else { 0.0 };
    Outcome {
        requests_per_s: all / seconds,
        disks: sums.disks.iter().map(|it| it / seconds).collect(),
        cpus: sums.cpus / seconds,
        iothreads: sums.iothreads / seconds,
        moves_per_s: (world.moves - moves_before.unwrap_or(world.moves)) as f64 / seconds,
        kept_per_s: kept as f64 / seconds,
        lost_to_trials: lost,
    }
}
