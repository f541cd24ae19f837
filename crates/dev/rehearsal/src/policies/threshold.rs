//! A replica of a rule by utilisation: one iothread more above 95 %, fewer when they would do, 5 % or back.
//!
//! Limits: queues by modulo; polls come every 0.5 s, which is sooner than such controllers do.

use super::Policy;
use crate::world::World;

/// Utilisation that is aimed at.
const FULL: f64 = 0.95;
/// What a step must bring.
const GAIN: f64 = 1.05;
/// Windows of a step before it is judged, and of idleness before one down.
const PATIENCE: u32 = 3;

#[derive(Clone, Copy, Debug)]
struct Pending {
    up: bool,
    from: u16,
    base: f64,
    sum: f64,
    count: u32,
}

#[derive(Clone, Debug)]
struct Rule {
    count: u16,
    base: Option<f64>,
    low: u32,
    pending: Option<Pending>,
    requests: f64,
}

/// The rule, for each disk by itself.
#[derive(Debug)]
pub struct Threshold {
    threads: u16,
    rules: Vec<Rule>,
    changes: Vec<(f64, usize)>,
}

impl Threshold {
    /// With so many iothreads at most.
    pub fn new(threads: u16) -> Self {
        Self { threads, rules: Vec::new(), changes: Vec::new() }
    }
}

impl Rule {
    /// The next number of iothreads.
    fn next(&mut self, rate: f64, usage: f64, threads: u16) -> u16 {
        let used = usage / f64::from(self.count);
        if let Some(pending) = &mut self.pending {
            (pending.sum, pending.count) = (pending.sum + rate, pending.count + 1);
            if pending.count < PATIENCE {
                return self.count;
            }
            let mean = pending.sum / f64::from(pending.count);
            let back = if pending.up {
                mean < GAIN * pending.base
            } else {
                used > FULL && mean < pending.base / GAIN
            };
            let from = pending.from;
            self.pending = None;
            self.base = None;
            return if back { from } else { self.count };
        }
        let Some(base) = self.base else {
            self.base = Some(rate);
            return self.count;
        };
        let base = f64::midpoint(base, rate);
        self.base = Some(base);
        let enough = (1..self.count).find(|it| usage / f64::from(*it) <= FULL);
        self.low = if enough.is_some() { self.low + 1 } else { 0 };
        let pending = |up, from| Some(Pending { up, from, base, sum: 0.0, count: 0 });
        if self.count < threads && used > FULL {
            self.pending = pending(true, self.count);
            return self.count + 1;
        }
        match enough.filter(|_| self.low >= PATIENCE) {
            Some(enough) => {
                self.pending = pending(false, self.count);
                self.low = 0;
                enough
            }
            None => self.count,
        }
    }
}

impl Policy for Threshold {
    fn look(&mut self, world: &mut World) -> f64 {
        let new = Rule { count: 1, base: None, low: 0, pending: None, requests: 0.0 };
        self.rules.resize(world.disks.len(), new);
        let shares = world.shares();
        for (disk, rule) in self.rules.iter_mut().enumerate() {
            let requests: f64 = world.disks[disk].rings.iter().map(|it| it.requests).sum();
            let rate = requests - std::mem::replace(&mut rule.requests, requests);
            let usage = shares[disk].values().map(|it| it.usage).sum();
            let count = rule.next(rate, usage, self.threads.min(16));
            if count != rule.count {
                rule.count = count;
                self.changes.push((world.now, disk));
                for queue in 0..world.disks[disk].plan.queues {
                    world.move_ring(disk, queue, queue % count);
                }
            }
        }
        0.5
    }

    fn changes(&self) -> &[(f64, usize)] {
        &self.changes
    }
}
