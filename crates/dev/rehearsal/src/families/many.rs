//! Ten guests with nine disks of 16 queues each, on 64 iothreads and on 8.

use placement::Fault;

use super::least;
use crate::machine::{Load, rate, solve, water_fill};
use crate::parameters::{Op, Parameters};
use crate::policies::Name;
use crate::report::run;
use crate::rng::Rng;
use crate::world::{DiskPlan, Phase, World};

/// Disks of all guests.
pub const DISKS: usize = 90;
const QUEUES: u16 = 16;

/// How busy the disks are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mix {
    /// Share of disks that are idle.
    pub idle: f64,
    /// Share of those that do little.
    pub light: f64,
}

/// Most do nothing.
pub const MOSTLY_IDLE: Mix = Mix { idle: 0.7, light: 0.25 };
/// A third is heavy.
pub const BUSY: Mix = Mix { idle: 0.4, light: 0.3 };
/// All are heavy.
pub const ALL_HEAVY: Mix = Mix { idle: 0.0, light: 0.0 };

/// How they are run.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The machine.
    pub parameters: Parameters,
    /// Iothreads at most.
    pub threads: u16,
    /// How busy they are.
    pub mix: Mix,
    /// Which disks do what.
    pub seed: u64,
    /// How often other disks become busy.
    pub phases: usize,
    /// Seconds of each; the second half is measured.
    pub phase_seconds: f64,
}

impl Setup {
    /// Three phases of 30 s.
    pub fn long(threads: u16, mix: Mix, seed: u64) -> Self {
        let parameters = Parameters::fitted();
        Self { parameters, threads, mix, seed, phases: 3, phase_seconds: 30.0 }
    }
}

/// What came of it.
#[derive(Clone, Copy, Debug)]
pub struct ManyOutcome {
    /// Requests per second of all.
    pub requests_per_s: f64,
    /// Of what a disk would have alone with an iothread for each queue, the least of all busy disks and phases.
    pub least_of_alone: f64,
    /// Of its fair share of all iothreads, max-min over the busy disks: the least.
    pub least_of_fair: f64,
    /// Iothreads on average.
    pub iothreads: f64,
    /// Moves per second, all the time.
    pub moves_per_s: f64,
}

/// The disks and what they do.
pub fn plans(setup: &Setup) -> Vec<DiskPlan> {
    let mut rng = Rng::new(setup.seed);
    let mut plans: Vec<DiskPlan> = (0..DISKS)
        .map(|at| DiskPlan { queues: QUEUES, storage: at as u64, phases: Vec::new() })
        .collect();
    for _ in 0..setup.phases {
        for plan in &mut plans {
            let load = load(&mut rng, setup.mix);
            plan.phases.push(Phase { seconds: setup.phase_seconds, load, wander_per_s: 0.0 });
        }
    }
    plans
}

fn load(rng: &mut Rng, mix: Mix) -> Option<Load> {
    let at = rng.uniform();
    if at < mix.idle {
        return None;
    }
    let is_light = at < mix.idle + mix.light;
    let (op, jobs, depth) = if is_light {
        ([Op::RandRead, Op::Read][rng.below(2)], 1, 1.0)
    } else {
        (
            [Op::RandRead, Op::RandWrite][rng.below(2)],
            [2, 4, 8][rng.below(3)],
            [4.0, 16.0][rng.below(2)],
        )
    };
    let queues = rng.sample(QUEUES, jobs);
    Some(Load { op, bytes: 4096.0, depth, queues, gain_exponent: 1.0 })
}

/// What each disk would have alone on so many iothreads, with its rings balanced; requests per microsecond.
fn alone(p: &Parameters, load: &Load, count: usize) -> f64 {
    let place = |queue: u16| {
        let at = load.queues.iter().position(|it| *it == queue).unwrap_or(0);
        u16::try_from(at % count).unwrap_or(0)
    };
    rate(&solve(p, &[(Some(load), &place)])[0])
}

/// Iothreads that it would use with one for each queue.
fn demand(p: &Parameters, load: &Load) -> f64 {
    let shares = solve(p, &[(Some(load), &|queue| queue)]);
    shares[0].values().map(|it| it.usage).sum()
}

/// What each disk has alone, and for its fair share of the iothreads; requests per microsecond.
fn references(p: &Parameters, loads: &[Option<Load>], threads: f64) -> Vec<Option<(f64, f64)>> {
    let demands: Vec<f64> =
        loads.iter().map(|it| it.as_ref().map_or(0.0, |load| demand(p, load))).collect();
    let fair = water_fill(&demands, threads);
    let reference = |((load, fair), demand): ((&Option<Load>, f64), &f64)| {
        let load = load.as_ref()?;
        let all = alone(p, load, load.queues.len());
        if fair >= demand - 1e-9 {
            return Some((all, all));
        }
        let most = load.queues.len();
        let below = (1..=most).rfind(|it| *it as f64 <= fair);
        let low = below.map_or(0.0, |it| alone(p, load, it));
        let high = alone(p, load, (below.unwrap_or(0) + 1).min(most));
        // A share of one iothread is what it needs for a request, no more.
        let high =
            if below.is_none() { 1.0 / p.service(load.op, load.bytes, load.depth) } else { high };
        let part = fair - below.unwrap_or(0) as f64;
        Some((all, (low + (high - low) * part.min(1.0)).min(all)))
    };
    loads.iter().zip(fair).zip(&demands).map(reference).collect()
}

/// Runs a policy.
pub fn outcome(setup: &Setup, name: Name, fault: Fault) -> ManyOutcome {
    let plans = plans(setup);
    let mut world = World::new(setup.parameters.clone(), &plans, setup.seed);
    let mut policy = name.policy(setup.threads, fault).expect("it is a policy");
    let until = setup.phases as f64 * setup.phase_seconds;
    let mut served = vec![vec![0.0; DISKS]; setup.phases];
    let half = setup.phase_seconds / 2.0;
    let mut threads = 0.0;
    run(&mut world, policy.as_mut(), 0.0, until, |world, shares, step, _| {
        let began = world.now - step;
        let phase = (0..setup.phases).rfind(|it| *it as f64 * setup.phase_seconds <= began + 1e-6);
        let phase = phase.unwrap_or(0);
        if began - phase as f64 * setup.phase_seconds < half - 1e-6 {
            return;
        }
        let used: std::collections::BTreeSet<u16> =
            shares.iter().flat_map(|it| it.keys().copied()).collect();
        threads += used.len() as f64 * step / half / setup.phases as f64;
        for (sum, shares) in served[phase].iter_mut().zip(shares) {
            *sum += rate(shares) * step / half;
        }
    });
    let (mut of_alone, mut of_fair, mut all) = (Vec::new(), Vec::new(), 0.0);
    for (phase, served) in served.iter().enumerate() {
        let loads: Vec<Option<Load>> =
            plans.iter().map(|it| it.phases[phase].load.clone()).collect();
        let references = references(&setup.parameters, &loads, f64::from(setup.threads));
        for (served, reference) in served.iter().zip(&references) {
            all += served * 1e6 / setup.phases as f64;
            if let Some((alone, fair)) = reference {
                of_alone.push(served / alone);
                of_fair.push(served / fair);
            }
        }
    }
    ManyOutcome {
        requests_per_s: all,
        least_of_alone: least(&of_alone),
        least_of_fair: least(&of_fair),
        iothreads: threads,
        moves_per_s: world.moves as f64 / until,
    }
}

/// The static maps that it is compared with.
pub const STATIC: [Name; 6] = [
    Name::DiskModulo,
    Name::QueueModulo,
    Name::Spread(4),
    Name::Spread(2),
    Name::Modulo(16),
    Name::Modulo(4),
];
