//! Loads that stay: four busy queues of sixteen, nothing at all, and a guest that plays with the policy.

use placement::{Fault, PoolSettings, Preference};

use crate::machine::{Load, rate};
use crate::parameters::{Op, Parameters};
use crate::policies::{Auto, Fixed, Policy};
use crate::report::run;
use crate::rng::Rng;
use crate::world::{DiskPlan, Phase, WINDOW, World};

/// Queues of a disk.
pub const QUEUES: u16 = 16;

/// A disk that does the same all the time.
pub fn plan(load: Option<Load>, storage: u64) -> DiskPlan {
    let phase = Phase { seconds: f64::INFINITY, load, wander_per_s: 0.0 };
    DiskPlan { queues: QUEUES, storage, phases: vec![phase] }
}

/// So many busy queues with 4 KiB.
pub fn load(op: Op, depth: f64, queues: Vec<u16>) -> Load {
    Load { op, bytes: 4096.0, depth, queues, gain_exponent: 1.0 }
}

/// The policy for up to so many iothreads.
pub fn auto(threads: u16, fault: Fault) -> Auto {
    let settings = PoolSettings::new(1, threads, None, Preference::Throughput);
    Auto::new(settings.expect("it is in range").with_fault(fault))
}

/// Four busy queues of sixteen against 16 fixed iothreads: the share of their throughput from `from` to `until` seconds
/// after a cold start, and the most iothreads that had busy queues then.
pub fn four_of_sixteen(
    p: &Parameters,
    seed: u64,
    fault: Fault,
    from: f64,
    until: f64,
) -> (f64, usize) {
    let busy = Rng::new(seed).sample(QUEUES, 4);
    let plans = [plan(Some(load(Op::RandRead, 16.0, busy)), 0)];
    let mut most = 0;
    let mut world = World::new(p.clone(), &plans, seed);
    let found = run(&mut world, &mut auto(16, fault), from, until, |world, shares, _, _| {
        if world.now > from {
            most = most.max(shares[0].len());
        }
    });
    let mut world = World::new(p.clone(), &plans, seed);
    let fixed = run(&mut world, &mut Fixed::new(|_, queue| queue), from, until, |_, _, _, _| {});
    (found.requests_per_s / fixed.requests_per_s, most)
}

/// Nothing to do after a busy second: whether the policy is parked, and how often it moved anything since.
pub fn idle(seed: u64) -> (bool, u64) {
    let busy = Phase {
        seconds: 1.0,
        load: Some(load(Op::RandRead, 16.0, (0..8).collect())),
        wander_per_s: 0.0,
    };
    let quiet = Phase { seconds: f64::INFINITY, load: None, wander_per_s: 0.0 };
    let plans = [DiskPlan { queues: QUEUES, storage: 0, phases: vec![busy, quiet] }];
    let mut world = World::new(Parameters::fitted(), &plans, seed);
    let mut policy = auto(16, Fault::None);
    run(&mut world, &mut policy, 0.0, 2.0, |_, _, _, _| {});
    let moves = world.moves;
    let mut is_parked = true;
    run(&mut world, &mut policy, 2.0, 60.0, |_, _, _, policy| is_parked &= policy.is_parked());
    (is_parked, world.moves - moves)
}

/// What a guest does to mislead the policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Game {
    /// Nothing: all it can, all the time.
    Honest,
    /// It does less whenever its rings lie on more iothreads than in the beginning.
    Sulk,
    /// It does more then, and little otherwise.
    Lure,
    /// It changes its busy queues ten times a second.
    Hop,
    /// It works for 0.1 s and rests for 0.1 s.
    Blink,
}

/// A guest that plays, and lets the policy do the rest.
#[derive(Debug)]
struct Player {
    auto: Auto,
    game: Game,
    full: Load,
    looks: u32,
}

impl Policy for Player {
    fn look(&mut self, world: &mut World) -> f64 {
        let next = self.auto.look(world);
        self.looks += 1;
        let turn = self.looks;
        let player = &mut world.disks[0];
        let used: std::collections::BTreeSet<u16> =
            self.full.queues.iter().map(|it| player.place[usize::from(*it)]).collect();
        let mut load = self.full.clone();
        let weak = match self.game {
            Game::Honest | Game::Hop => false,
            Game::Sulk => used.len() > 1,
            Game::Lure => used.len() == 1,
            Game::Blink => false,
        };
        if weak {
            load.depth = 1.0;
        }
        if self.game == Game::Hop && turn % 4 < 2 {
            load.queues = load.queues.iter().map(|it| (it + 8) % QUEUES).collect();
        }
        let rests = self.game == Game::Blink && turn % 4 < 2;
        player.load = (!rests).then_some(load);
        next.min(WINDOW)
    }

    fn changes(&self) -> &[(f64, usize)] {
        self.auto.changes()
    }
}

/// What nine others have beside a guest that plays, each by what it has beside an honest one: the least.
pub fn least_beside(game: Game, threads: u16, seed: u64) -> f64 {
    let served = |game: Game| -> Vec<f64> {
        let full = load(Op::RandRead, 16.0, (0..8).collect());
        let mut plans = vec![plan(Some(full.clone()), 0)];
        let mut rng = Rng::new(seed);
        for disk in 1..10 {
            let jobs = [1, 2, 4][rng.below(3)];
            let queues = rng.sample(QUEUES, jobs);
            plans.push(plan(Some(load(Op::RandRead, 8.0, queues)), disk));
        }
        let mut world = World::new(Parameters::fitted(), &plans, seed);
        let mut player = Player { auto: auto(threads, Fault::None), game, full, looks: 0 };
        let mut sums = vec![0.0; plans.len()];
        run(&mut world, &mut player, 0.0, 40.0, |world, shares, step, _| {
            if world.now > 20.0 {
                for (sum, shares) in sums.iter_mut().zip(shares) {
                    *sum += rate(shares) * step;
                }
            }
        });
        sums
    };
    let (honest, played) = (served(Game::Honest), served(game));
    let ratios: Vec<f64> = played.iter().zip(&honest).skip(1).map(|it| it.0 / it.1).collect();
    super::least(&ratios)
}
