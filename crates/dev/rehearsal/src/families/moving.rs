//! Loads that move: jobs that wander from queue to queue, and bursts.

use placement::Fault;

use super::most;
use super::still::{QUEUES, auto, load};
use crate::machine::rate;
use crate::parameters::{Op, Parameters};
use crate::policies::Fixed;
use crate::report::run;
use crate::world::{DiskPlan, Phase, World};

fn compare(plan: &DiskPlan, seed: u64, seconds: f64, fault: Fault) -> f64 {
    let served = |policy: &mut dyn crate::policies::Policy| {
        let mut world = World::new(Parameters::fitted(), std::slice::from_ref(plan), seed);
        let mut sum = 0.0;
        run(&mut world, policy, 0.0, seconds, |_, shares, step, _| sum += rate(&shares[0]) * step);
        sum
    };
    let found = served(&mut auto(16, fault));
    let fixed: Vec<f64> = [2, 4, 8, 16]
        .into_iter()
        .map(|count: u16| served(&mut Fixed::new(move |_, queue| queue % count)))
        .collect();
    found / most(&fixed)
}

/// Four jobs, each of which changes its queue so often a second: throughput by that of the best fixed number.
pub fn wander(per_s: f64, seed: u64, seconds: f64, fault: Fault) -> f64 {
    let load = load(Op::RandRead, 16.0, vec![3, 7, 8, 12]);
    let phase = Phase { seconds: f64::INFINITY, load: Some(load), wander_per_s: per_s };
    compare(&DiskPlan { queues: QUEUES, storage: 0, phases: vec![phase] }, seed, seconds, fault)
}

/// Sixteen jobs that work and rest for so many seconds.
pub fn bursts(on: f64, off: f64, seed: u64, seconds: f64, fault: Fault) -> f64 {
    let load = load(Op::RandRead, 16.0, (0..QUEUES).collect());
    let phase = |seconds, load| Phase { seconds, load, wander_per_s: 0.0 };
    let phases = vec![phase(on, Some(load)), phase(off, None)];
    compare(&DiskPlan { queues: QUEUES, storage: 0, phases }, seed, seconds, fault)
}
