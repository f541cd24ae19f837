//! What each mechanism of the policy is there for: a figure that gets bad without it.

use placement::Fault;

use super::still::{auto, load, plan};
use crate::parameters::{Op, Parameters};
use crate::report::run;
use crate::world::{DiskPlan, World};

/// Eight busy queues on a machine of which more iothreads make less: the share of the time that trials take, once it
/// knows its load.
pub fn trying(fault: Fault) -> f64 {
    let p = Parameters { coherence: 0.2, ..Parameters::fitted() };
    let plans = [plan(Some(load(Op::RandWrite, 16.0, (0..8).collect())), 0)];
    let (mut world, mut tried) = (World::new(p, &plans, 11), 0.0);
    run(&mut world, &mut auto(16, fault), 0.0, 30.0, |world, _, step, policy| {
        if world.now > 10.0 && policy.is_trying() {
            tried += step / 20.0;
        }
    });
    tried
}

/// Thirty disks that do little: how many iothreads they wake.
pub fn awake(fault: Fault) -> f64 {
    let little = |at: u64| plan(Some(load(Op::RandRead, 1.0, vec![3])), at);
    let plans: Vec<DiskPlan> = (0..30).map(little).collect();
    let mut world = World::new(Parameters::fitted(), &plans, 11);
    run(&mut world, &mut auto(64, fault), 6.0, 8.0, |_, _, _, _| {}).iothreads
}
