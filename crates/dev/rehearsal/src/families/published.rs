//! The 144 published cells, on the machine that was fitted to them, near-equal ones and worse ones.

use placement::{Fault, PoolSettings, Preference};

use super::{least, most, quantile};
use crate::machine::{Load, cpus, rate, solve};
use crate::parameters::Parameters;
use crate::policies::{Auto, COUNTS};
use crate::published::{Cell, cells};
use crate::report::run;
use crate::rng::Rng;
use crate::world::{DiskPlan, Phase, World};

/// Queues of the disk.
const QUEUES: u16 = 16;
/// How many ways in which jobs land on queues are averaged for a fixed number of iothreads.
const LANDINGS: usize = 24;

/// How the cells are run.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The machine.
    pub parameters: Parameters,
    /// Each cell has the gain that was published.
    pub has_published_gains: bool,
    /// The first seed; each cell has the next one.
    pub seed: u64,
    /// Seconds of each cell; what is compared are those after `from`.
    pub seconds: f64,
    /// See there.
    pub from: f64,
    /// One cell in so many.
    pub one_in: usize,
    /// What is left out of the policy.
    pub fault: Fault,
    /// What one more iothread must bring.
    pub prefer: Preference,
}

impl Setup {
    /// All cells for a minute.
    pub fn long(parameters: Parameters, seed: u64) -> Self {
        Self {
            parameters,
            has_published_gains: false,
            seed,
            seconds: 60.0,
            from: 30.0,
            one_in: 1,
            fault: Fault::None,
            prefer: Preference::Throughput,
        }
    }
}

/// What came of a cell.
#[derive(Clone, Copy, Debug)]
pub struct CellOutcome {
    /// Which cell.
    pub cell: Cell,
    /// Throughput by that of the best fixed number of iothreads.
    pub of_best: f64,
    /// The same from a cold start, over all the time.
    pub of_best_cold: f64,
    /// CPU by that of the cheapest fixed number with the same throughput.
    pub cpu: f64,
    /// Iothreads on average.
    pub iothreads: f64,
    /// The fewest fixed ones for the same throughput.
    pub fixed_iothreads: f64,
    /// Changes that were kept, per second.
    pub kept_per_s: f64,
    /// Lost to trials, as a share.
    pub lost: f64,
}

/// Throughput and CPU of a fixed number of iothreads, over many landings.
#[derive(Clone, Copy, Debug)]
struct FixedPoint {
    count: u16,
    rate: f64,
    cpus: f64,
}

fn fixed(p: &Parameters, load: &Load, seed: u64) -> Vec<FixedPoint> {
    let mut rng = Rng::new(seed ^ 0xf1ed);
    let landings: Vec<Vec<u16>> =
        (0..LANDINGS).map(|_| rng.sample(QUEUES, load.queues.len())).collect();
    let point = |&count: &u16| {
        let (mut sum_rate, mut sum_cpus) = (0.0, 0.0);
        for queues in &landings {
            let load = Load { queues: queues.clone(), ..load.clone() };
            let shares = solve(p, &[(Some(&load), &|queue| queue % count)]);
            sum_rate += rate(&shares[0]) / LANDINGS as f64;
            sum_cpus += cpus(&shares) / LANDINGS as f64;
        }
        FixedPoint { count, rate: sum_rate, cpus: sum_cpus }
    };
    COUNTS.iter().map(point).collect()
}

/// Runs the cells.
pub fn outcomes(setup: &Setup) -> Vec<CellOutcome> {
    let cells = cells();
    let chosen = cells.iter().enumerate().filter(|(at, _)| at % setup.one_in == 0);
    chosen.map(|(at, cell)| outcome(setup, cell, setup.seed + at as u64)).collect()
}

fn outcome(setup: &Setup, cell: &Cell, seed: u64) -> CellOutcome {
    let p = &setup.parameters;
    let mut load = cell.load(Rng::new(seed).sample(QUEUES, cell.jobs));
    let mut points = fixed(p, &load, seed);
    if setup.has_published_gains {
        load.gain_exponent =
            cell.exponent(p, most(&points.iter().map(|it| it.rate).collect::<Vec<_>>()));
        points = fixed(p, &load, seed);
    }
    let phase = Phase { seconds: f64::INFINITY, load: Some(load), wander_per_s: 0.0 };
    let plan = DiskPlan { queues: QUEUES, storage: 0, phases: vec![phase] };
    let mut world = World::new(p.clone(), &[plan], seed);
    let settings = PoolSettings::new(1, 16, None, setup.prefer).expect("it is in range");
    let mut auto = Auto::new(settings.with_fault(setup.fault));
    let mut whole = 0.0;
    let measured = run(&mut world, &mut auto, setup.from, setup.seconds, |_, shares, step, _| {
        whole += rate(&shares[0]) * step / setup.seconds;
    });
    let rate = measured.requests_per_s / 1e6;
    let best = most(&points.iter().map(|it| it.rate).collect::<Vec<_>>());
    let same: Vec<FixedPoint> =
        points.into_iter().filter(|it| it.rate >= 0.99 * rate.min(best)).collect();
    CellOutcome {
        cell: *cell,
        of_best: rate / best,
        of_best_cold: whole / best,
        cpu: measured.cpus / least(&same.iter().map(|it| it.cpus).collect::<Vec<_>>()),
        iothreads: measured.iothreads,
        fixed_iothreads: f64::from(same.iter().map(|it| it.count).min().unwrap_or(0)),
        kept_per_s: measured.kept_per_s,
        lost: measured.lost_to_trials,
    }
}

/// The cells in a line.
pub fn summary(outcomes: &[CellOutcome]) -> String {
    let of = |f: fn(&CellOutcome) -> f64| -> Vec<f64> { outcomes.iter().map(f).collect() };
    let (best, cold, cpu) = (of(|it| it.of_best), of(|it| it.of_best_cold), of(|it| it.cpu));
    let below = best.iter().filter(|it| **it < 0.97).count();
    format!(
        "of best fixed: least {:.3} p5 {:.3} below 0.97: {below}/{} | cold p5 {:.3} | CPU p50 {:.2} p90 {:.2} max {:.2} | kept/10 s max {:.2} | lost max {:.4}",
        least(&best),
        quantile(&best, 0.05),
        best.len(),
        quantile(&cold, 0.05),
        quantile(&cpu, 0.5),
        quantile(&cpu, 0.9),
        most(&cpu),
        10.0 * most(&of(|it| it.kept_per_s)),
        most(&of(|it| it.lost)),
    )
}
