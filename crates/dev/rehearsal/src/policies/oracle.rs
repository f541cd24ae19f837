//! What could be had at most: the best number of iothreads and the best places in every window.

use super::{COUNTS, Policy};
use crate::machine::rate;
use crate::world::{WINDOW, World};

/// Knows the truth, and moves rings for nothing. Each disk is placed as if it were alone.
#[derive(Debug)]
pub struct Oracle {
    threads: u16,
}

impl Oracle {
    /// For so many iothreads for each disk.
    pub fn new(threads: u16) -> Self {
        Self { threads }
    }
}

impl Policy for Oracle {
    fn look(&mut self, world: &mut World) -> f64 {
        for at in 0..world.disks.len() {
            let Some(load) = world.disks[at].load.clone() else { continue };
            let base = u16::try_from(at).unwrap_or(0).wrapping_mul(self.threads);
            let balanced = |count: u16| {
                let load = load.clone();
                move |queue: u16| {
                    let place = load.queues.iter().position(|it| *it == queue).unwrap_or(0);
                    base.wrapping_add(u16::try_from(place).unwrap_or(0) % count)
                }
            };
            let gives = |count: u16| {
                let place = balanced(count);
                rate(&crate::machine::solve(&world.parameters, &[(Some(&load), &place)])[0])
            };
            let counts = COUNTS.iter().copied().filter(|it| *it <= self.threads);
            let best = counts.max_by(|a, b| gives(*a).total_cmp(&gives(*b))).unwrap_or(1);
            let place = balanced(best);
            for queue in &load.queues {
                world.disks[at].place[usize::from(*queue)] = place(*queue);
            }
        }
        WINDOW
    }
}
