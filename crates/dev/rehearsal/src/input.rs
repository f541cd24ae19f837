//! Machines from a file, and results for one: the format is in `docs/placement-machines.md`.

use anyhow::{Result, bail, ensure};
use placement::Fault;
use serde::{Deserialize, Serialize};

use crate::machine::Load;
use crate::parameters::{Op, Parameters};
use crate::policies::{COUNTS, Name};
use crate::report::{Outcome, run};
use crate::rng::Rng;
use crate::world::{DiskPlan, Phase, World};

/// What a file has.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct File {
    /// The machines, each with its disks.
    pub machines: Vec<MachineInput>,
}

/// A machine and what its guests do.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MachineInput {
    /// Its name in the results.
    pub name: String,
    /// Iothreads at most, 1 to 64.
    #[serde(default = "iothreads_default")]
    pub iothreads: u16,
    /// How long it runs, in simulated seconds: up to a day.
    #[serde(default = "seconds_default")]
    pub seconds: f64,
    /// From when on it is measured.
    #[serde(default = "measure_from_default")]
    pub measure_from: f64,
    /// It runs once with each of them.
    #[serde(default = "seeds_default")]
    pub seeds: Vec<u64>,
    /// What it is made of.
    #[serde(default)]
    pub parameters: Parameters,
    /// Its disks.
    pub disks: Vec<DiskInput>,
}

/// A disk, or several alike.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiskInput {
    /// So many of them.
    #[serde(default = "one")]
    pub copies: u16,
    /// Queues of each, 1 to 256.
    #[serde(default = "queues_default")]
    pub queues: u16,
    /// Disks with the same number stand on the same storage; by default each has its own.
    pub storage: Option<u64>,
    /// What the guest does, phase after phase and then from the first again.
    pub phases: Vec<PhaseInput>,
}

/// A phase.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PhaseInput {
    /// How long; for ever by default.
    #[serde(default = "endless")]
    pub seconds: f64,
    /// Nothing if it is left out.
    pub load: Option<LoadInput>,
    /// How often a second each busy queue stops and another one begins.
    #[serde(default)]
    pub wander_per_s: f64,
}

/// A load.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoadInput {
    /// `randread`, `randwrite`, `read`, `write`.
    pub op: Op,
    /// Length of a request.
    pub bytes: f64,
    /// Requests that each busy queue has in flight, at least 1.
    pub depth: f64,
    /// The busy queues: their numbers, or how many, at random.
    pub busy: Busy,
    /// Exponent of what more iothreads gain, 1 by default.
    #[serde(default = "exponent_default")]
    pub gain_exponent: f64,
}

/// Which queues are busy.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub enum Busy {
    /// So many.
    Count(u16),
    /// These.
    Queues(Vec<u16>),
}

fn iothreads_default() -> u16 {
    16
}
fn seconds_default() -> f64 {
    60.0
}
fn measure_from_default() -> f64 {
    30.0
}
fn seeds_default() -> Vec<u64> {
    vec![1]
}
fn one() -> u16 {
    1
}
fn queues_default() -> u16 {
    16
}
fn endless() -> f64 {
    f64::INFINITY
}
fn exponent_default() -> f64 {
    1.0
}

/// What a policy did on a machine.
#[derive(Clone, Debug, Serialize)]
pub struct ResultLine {
    /// The machine.
    pub machine: String,
    /// With which seed.
    pub seed: u64,
    /// The policy.
    pub policy: String,
    /// The number of iothreads that was best, of `best-fixed`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fixed_iothreads: Option<u16>,
    /// Throughput by that of `best-fixed` in the same run, if that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub of_best_fixed: Option<f64>,
    /// The rest.
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// The longest run, in seconds.
const SECONDS_MAX: f64 = 86_400.0;
/// The most disks of a machine.
const DISKS_MAX: usize = 1024;

impl MachineInput {
    /// The disks of a run with that seed.
    ///
    /// # Errors
    /// If a number is out of range.
    pub fn plans(&self, seed: u64) -> Result<Vec<DiskPlan>> {
        let name = &self.name;
        ensure!((1..=64).contains(&self.iothreads), "{name}: iothreads must be 1 to 64");
        ensure!(
            self.seconds > 0.0 && self.seconds <= SECONDS_MAX && self.measure_from < self.seconds,
            "{name}: seconds must be above measure_from, and at most {SECONDS_MAX}"
        );
        let mut rng = Rng::new(seed ^ 0xb05e);
        let mut plans = Vec::new();
        for disk in &self.disks {
            ensure!((1..=256).contains(&disk.queues), "{name}: a disk has 1 to 256 queues");
            ensure!(!disk.phases.is_empty(), "{name}: a disk has at least one phase");
            for _ in 0..disk.copies {
                let phases: Result<Vec<Phase>> =
                    disk.phases.iter().map(|it| self.phase(it, disk.queues, &mut rng)).collect();
                let storage = disk.storage.unwrap_or(1_000_000 + plans.len() as u64);
                plans.push(DiskPlan { queues: disk.queues, storage, phases: phases? });
            }
        }
        ensure!((1..=DISKS_MAX).contains(&plans.len()), "{name}: 1 to {DISKS_MAX} disks");
        Ok(plans)
    }

    fn phase(&self, phase: &PhaseInput, queues: u16, rng: &mut Rng) -> Result<Phase> {
        let name = &self.name;
        ensure!(phase.seconds > 0.0, "{name}: a phase has more than 0 seconds");
        let (seconds, wander_per_s) = (phase.seconds, phase.wander_per_s);
        let Some(load) = &phase.load else {
            return Ok(Phase { seconds, load: None, wander_per_s });
        };
        ensure!(load.bytes >= 1.0 && load.depth >= 1.0, "{name}: bytes and depth are at least 1");
        let busy = match &load.busy {
            Busy::Count(count) => {
                ensure!(*count <= queues, "{name}: {count} busy queues of {queues}");
                rng.sample(queues, usize::from(*count))
            }
            Busy::Queues(busy) => {
                if let Some(queue) = busy.iter().find(|it| **it >= queues) {
                    bail!("{name}: queue {queue} of {queues}");
                }
                busy.clone()
            }
        };
        let load = (!busy.is_empty()).then_some(Load {
            op: load.op,
            bytes: load.bytes,
            depth: load.depth,
            queues: busy,
            gain_exponent: load.gain_exponent,
        });
        Ok(Phase { seconds, load, wander_per_s })
    }

    /// Runs the policies with each seed.
    ///
    /// # Errors
    /// If a number is out of range.
    pub fn results(&self, policies: &[Name]) -> Result<Vec<ResultLine>> {
        let mut lines = Vec::new();
        for &seed in &self.seeds {
            let plans = self.plans(seed)?;
            let mut of_seed = Vec::new();
            for &policy in policies {
                let (outcome, fixed_iothreads) = self.outcome(&plans, seed, policy);
                let (machine, policy) = (self.name.clone(), policy.to_string());
                of_seed.push(ResultLine {
                    machine,
                    seed,
                    policy,
                    fixed_iothreads,
                    of_best_fixed: None,
                    outcome,
                });
            }
            let best = of_seed.iter().find(|it| it.fixed_iothreads.is_some());
            if let Some(best) = best.map(|it| it.outcome.requests_per_s) {
                for line in &mut of_seed {
                    line.of_best_fixed = Some(line.outcome.requests_per_s / best);
                }
            }
            lines.extend(of_seed);
        }
        Ok(lines)
    }

    fn outcome(&self, plans: &[DiskPlan], seed: u64, name: Name) -> (Outcome, Option<u16>) {
        let go = |name: Name| {
            let mut world = World::new(self.parameters.clone(), plans, seed);
            let mut policy = name.policy(self.iothreads, Fault::None).expect("not in hindsight");
            run(&mut world, policy.as_mut(), self.measure_from, self.seconds, |_, _, _, _| {})
        };
        if name != Name::BestFixed {
            return (go(name), None);
        }
        let counts = COUNTS.iter().copied().filter(|it| *it <= self.iothreads);
        let all = counts.map(|count| (go(Name::Modulo(count)), Some(count)));
        let best = all.max_by(|a, b| a.0.requests_per_s.total_cmp(&b.0.requests_per_s));
        best.expect("there is at least one iothread")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_runs_and_what_is_out_of_range_is_refused() {
        let text = include_str!("../../../../docs/examples/placement-machines.json");
        let file: File = serde_json::from_str(text).expect("it is in the format");
        for mut machine in file.machines {
            (machine.seconds, machine.measure_from) = (2.0, 1.0);
            let lines = machine.results(&[Name::BestFixed, Name::DiskModulo]).expect("it runs");
            assert!(lines.iter().all(|it| it.of_best_fixed.is_some()));
            machine.iothreads = 65;
            assert!(machine.results(&[]).is_err());
        }
    }
}
