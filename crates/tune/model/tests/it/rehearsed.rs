//! Machines from files as `rehearsal` reads them, whose solver has another author: those of `machines.json`, those of
//! docs/examples, and the cells of the published sweep on the machine that was fitted to it, with their published gains.

use model::{Measured, Observation, Shape, Wanted, predict};
use rehearsal::input::File;
use rehearsal::machine::{Load, rate, solve};
use rehearsal::parameters::{Parameters, closed, lower};
use rehearsal::published::cells;

use crate::{Chance, Tally, print, seeds};

const FILES: [&str; 2] = [
    include_str!("machines.json"),
    include_str!("../../../../../docs/examples/placement-machines.json"),
];
const QUEUES: u16 = 16;
const MEASURED: [u16; 4] = [1, 2, 3, 4];
/// Ways to land.
const WAYS: usize = 40;
const NOISE: f64 = 0.02;
const HOST_US: f64 = 2.5;

/// Requests per second with so many iothreads.
fn iops(p: &Parameters, load: &Load, iothreads: u16, chance: &mut Chance) -> f64 {
    let mut sum = 0.0;
    for _ in 0..WAYS {
        let mut left: Vec<u16> = (0..QUEUES).collect();
        let busy = (0..load.queues.len()).map(|_| {
            let place = chance.below(u16::try_from(left.len()).unwrap());
            left.swap_remove(place.into())
        });
        let load = Load { queues: busy.collect(), ..load.clone() };
        sum += rate(&solve(p, &[(Some(&load), &|queue| queue % iothreads)])[0]);
    }
    1e6 * sum / WAYS as f64
}

fn host(p: &Parameters, load: &Load) -> f64 {
    let away = p.away(load.op, load.bytes) - p.guest_us;
    let jobs = load.queues.len() as f64;
    1e6 * lower(jobs * closed(load.depth, HOST_US, away), p.ceiling(load.op, load.bytes))
}

fn tried(p: &Parameters, load: &Load, tally: &mut Tally, chance: &mut Chance) {
    let run = |iops: f64, chance: &mut Chance| iops * (NOISE * chance.normal()).exp();
    let truth = |n: u16| iops(p, load, n.max(1), &mut Chance::new(n.into()));
    let numbers = MEASURED.map(|n| {
        let iops = truth(n);
        Observation { iothreads: n, iops: run(iops, chance), error: NOISE }
    });
    let shape = Shape {
        jobs: u16::try_from(load.queues.len()).unwrap(),
        // Depths are whole there, too.
        iodepth: (1..=256).find(|&it| f64::from(it) >= load.depth).unwrap(),
        queues: QUEUES,
    };
    let service_us = p.service(load.op, load.bytes, load.depth);
    let measured = Measured {
        shape,
        cores: 64,
        host: Some(run(host(p, load), chance)),
        deeper: None,
        latency_s: Some(1e-6 * (p.away(load.op, load.bytes) - p.guest_us)),
        // Looking is in it.
        service_s: Some(1.15e-6 * service_us),
        submit_s: Some(1e-6 * p.guest_us),
        cpu_s: Some(1e-6 * (1.15 * service_us + p.guest_us)),
        none: Some(run(truth(0), chance)),
        numbers: numbers.to_vec(),
    };
    for n in [8, 16] {
        let wanted = Wanted { iothreads: Some(n), cores: None, shape };
        tally.add(&predict(&measured, &wanted), &truth);
    }
}

#[test]
fn what_is_claimed_holds_on_machines_from_files() {
    for file in FILES {
        let file: File = serde_json::from_str(file).unwrap();
        for machine in &file.machines {
            let mut tally = Tally::default();
            for seed in seeds(4) {
                let plans = machine.plans(seed).unwrap();
                let chance = &mut Chance::new(seed);
                let loads = plans.iter().filter_map(|it| it.phases[0].load.as_ref());
                for load in loads.filter(|it| it.queues.len() > 1) {
                    tried(&machine.parameters, load, &mut tally, chance);
                }
            }
            print(&machine.name, &tally);
            tally.check(&machine.name, 85.0);
        }
    }
}

#[test]
fn what_is_claimed_holds_on_the_published_cells() {
    let mut tally = Tally::default();
    for share in [0.0, 1.0] {
        let p = Parameters::between(share);
        let chance = &mut Chance::new(9);
        for cell in cells().into_iter().filter(|it| it.jobs > 1) {
            let load = cell.load((0..QUEUES).take(cell.jobs).collect());
            let best = [1, 2, 4, 8, 12, 16].map(|n| iops(&p, &load, n, chance) / 1e6);
            let best = best.into_iter().fold(0.0, f64::max);
            let load = Load { gain_exponent: cell.exponent(&p, best), ..load };
            tried(&p, &load, &mut tally, chance);
        }
    }
    print("cells of the published sweep", &tally);
    tally.check("cells", 90.0);
    assert!(tally.holds.1 > tally.asked / 2, "{tally:?}");
}
