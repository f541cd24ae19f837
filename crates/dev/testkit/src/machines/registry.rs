//! The machines to try a method on, by name; each seed draws other parameters.

use super::chance::{between, one_of};
use super::{
    Base, Course, Drift, Form, Load, Machine, Media, Memory, Noise, Op, Published, Queueing, Shape,
    Trigger, WarmUp, published_cells,
};
use crate::rng::Rng;

/// About how long a session is that a drift is spread over.
const SESSION_S: f64 = 1800.0;
/// Loads of a machine.
const LOADS: usize = 4;

/// A machine and what it is called.
#[derive(Clone, Debug)]
pub struct Named {
    /// Such as `queueing-nvme`.
    pub name: &'static str,
    /// The machine of this seed.
    pub machine: Machine,
}

type Make = fn(&mut Rng) -> Machine;

const TABLE: &[(&str, Make)] = &[
    ("queueing-nvme", |r| queueing(Media::Nvme, normal(r), Course::STILL, r)),
    ("queueing-ssd", |r| queueing(Media::Ssd, normal(r), Course::STILL, r)),
    ("queueing-network", |r| queueing(Media::Network, normal(r), Course::STILL, r)),
    ("queueing-spinning", |r| queueing(Media::Spinning, normal(r), Course::STILL, r)),
    ("published", |r| published(normal(r), r)),
    ("falls", |r| shape(Form::Falls, normal(r), r)),
    ("saw-tooth", |r| shape(Form::SawTooth, normal(r), r)),
    ("two-optima", |r| shape(Form::TwoOptima, normal(r), r)),
    ("flat", |r| shape(Form::Flat, normal(r), r)),
    ("hurts", |r| shape(Form::Hurts, normal(r), r)),
    ("on-the-line", |r| shape(Form::OnTheLine, normal(r), r)),
    ("conflict", |r| shape(Form::Conflict, normal(r), r)),
    ("noise-lognormal", |r| queueing(Media::Nvme, lognormal(r), Course::STILL, r)),
    ("noise-stalls", |r| queueing(Media::Nvme, stalls(r), Course::STILL, r)),
    ("noise-bimodal", |r| queueing(Media::Nvme, bimodal(r), Course::STILL, r)),
    ("boots", |r| {
        queueing(Media::Nvme, normal(r), Course::STILL, r).with_boots(between(r, 0.02, 0.05))
    }),
    ("boots-flat", |r| shape(Form::Flat, normal(r), r).with_boots(between(r, 0.02, 0.05))),
    ("noise-correlated", |r| queueing(Media::Nvme, correlated(r), Course::STILL, r)),
    ("published-lognormal", |r| published(lognormal(r), r)),
    ("two-optima-stalls", |r| shape(Form::TwoOptima, stalls(r), r)),
    ("drift-linear", |r| drifting(Drift::Linear { change: -0.2, over_s: SESSION_S }, r)),
    ("drift-step", |r| drifting(Drift::Step { change: -0.2, at_s: 0.4 * SESSION_S }, r)),
    ("drift-periodic", |r| {
        drifting(Drift::Periodic { amplitude: 0.1, period_s: 0.4 * SESSION_S }, r)
    }),
    ("hysteretic-slower", |r| remembering(Trigger::InFlight(64), 0.7, r)),
    ("hysteretic-faster", |r| remembering(Trigger::InFlight(64), 1.4, r)),
    ("carries-over", |r| remembering(Trigger::Iothreads(8), 0.8, r)),
    ("warm-up-rising", |r| warming(WarmUp::Settles { change: -0.6, tau_s: 2.5 }, r)),
    ("warm-up-falling", |r| warming(WarmUp::Settles { change: 0.8, tau_s: 2.5 }, r)),
    ("cache-cliff", |r| {
        let bytes = between(r, 1e9, 8e9);
        warming(WarmUp::Cache { bytes, full: 0.35, emptied: 50e6 }, r)
    }),
    ("lonely", |r| shape(Form::Lonely, normal(r), r)),
];

/// All machines, with parameters, loads and noise drawn from the seed.
pub fn all(seed: u64) -> Vec<Named> {
    TABLE.iter().map(|&(name, _)| Named { name, machine: named(name, seed) }).collect()
}

/// The machine of this name, which must be one of those of [`all`].
pub fn named(name: &str, seed: u64) -> Machine {
    let place = TABLE.iter().position(|it| it.0 == name).expect("the name of a machine");
    let stream = u64::try_from(place).expect("a place fits 64 bits");
    let mut rng = Rng::new(Rng::new(seed).next_u64().wrapping_add(stream));
    (TABLE[place].1)(&mut rng)
}

fn queueing(media: Media, noise: Noise, course: Course, rng: &mut Rng) -> Machine {
    let base = Base::Queueing(Queueing::new(media, rng.next_u64()));
    Machine::new(base, noise, course, loads(rng), rng.next_u64())
}

fn published(noise: Noise, rng: &mut Rng) -> Machine {
    let cells = published_cells();
    let mut loads: Vec<Load> = Vec::new();
    while loads.len() < LOADS {
        let load = cells[rng.index(cells.len())].load;
        if !loads.contains(&load) {
            loads.push(load);
        }
    }
    let base = Base::Published(Published::new(rng.next_u64()));
    Machine::new(base, noise, Course::STILL, loads, rng.next_u64())
}

fn shape(form: Form, noise: Noise, rng: &mut Rng) -> Machine {
    let loads = [4, 16].into_iter().flat_map(|jobs| {
        [Op::RandomRead, Op::RandomWrite].map(|op| Load { op, bytes: 4096, jobs, iodepth: 16 })
    });
    let base = Base::Shape(Shape::new(form, rng.next_u64()));
    Machine::new(base, noise, Course::STILL, loads.collect(), rng.next_u64())
}

fn drifting(drift: Drift, rng: &mut Rng) -> Machine {
    queueing(Media::Nvme, normal(rng), Course { drift, ..Course::STILL }, rng)
}

fn remembering(after: Trigger, factor: f64, rng: &mut Rng) -> Machine {
    let memory = Some(Memory { after, factor, for_s: between(rng, 5.0, 40.0) });
    queueing(Media::Nvme, normal(rng), Course { memory, ..Course::STILL }, rng)
}

fn warming(warm_up: WarmUp, rng: &mut Rng) -> Machine {
    queueing(Media::Nvme, normal(rng), Course { warm_up, ..Course::STILL }, rng)
}

/// Different loads, two of them of many jobs.
fn loads(rng: &mut Rng) -> Vec<Load> {
    let mut loads: Vec<Load> = Vec::new();
    while loads.len() < LOADS {
        let jobs: &[u16] = if loads.len() < LOADS / 2 { &[4, 8, 16] } else { &[1, 2, 4, 8, 16] };
        let load = Load {
            op: one_of(rng, &[Op::RandomRead, Op::RandomWrite, Op::Read, Op::Write]),
            bytes: one_of(rng, &[4096, 4096, 65_536]),
            jobs: one_of(rng, jobs),
            iodepth: one_of(rng, &[1, 4, 16]),
        };
        if !loads.contains(&load) {
            loads.push(load);
        }
    }
    loads
}

fn normal(rng: &mut Rng) -> Noise {
    Noise::Normal { sd: between(rng, 0.01, 0.03) }
}

fn lognormal(rng: &mut Rng) -> Noise {
    Noise::Lognormal { sd: between(rng, 0.05, 0.15) }
}

fn stalls(rng: &mut Rng) -> Noise {
    Noise::Stalls { share: between(rng, 0.05, 0.2), sd: between(rng, 0.01, 0.03) }
}

fn bimodal(rng: &mut Rng) -> Noise {
    let (share, low) = (between(rng, 0.2, 0.4), between(rng, 0.75, 0.9));
    Noise::Bimodal { share, low, sd: between(rng, 0.01, 0.02) }
}

fn correlated(rng: &mut Rng) -> Noise {
    Noise::Correlated { sd: between(rng, 0.02, 0.05), rho: between(rng, 0.6, 0.95) }
}
