//! `delay`: the child's bytes, later.

use std::sync::Arc;

use anyhow::{Context, Result};
use block::{Access, Node};
use layers::{DelayNode, DelayOrder, DelaySettings, Distribution, Latency, UniformLatency};
use testkit::conformance::stack::{Chosen, Home, Parts, Shape, Subject};
use testkit::rng::Rng;

use super::Pace;

#[derive(Debug)]
pub(crate) struct Delay(pub(crate) Pace);

impl Delay {
    fn latency(&self, rng: &mut Rng) -> Latency {
        let bits = match self.0 {
            // Up to an hour.
            Pace::Jumping => 42,
            Pace::Real => 22,
        };
        let ceiling = 1 << rng.below(bits);
        let ns = rng.below(ceiling);
        Latency::from_ns(ns.min(Latency::MAX.ns())).unwrap_or(Latency::MAX)
    }

    fn distribution(&self, rng: &mut Rng) -> Distribution {
        match rng.below(6) {
            0 => Distribution::NONE,
            1 => Distribution::Fixed(self.latency(rng)),
            2 => {
                let (one, other) = (self.latency(rng), self.latency(rng));
                let bounds = UniformLatency::new(one.min(other), one.max(other));
                bounds.map_or(Distribution::NONE, Distribution::Uniform)
            }
            3 => Distribution::Normal { mean: self.latency(rng), deviation: self.latency(rng) },
            _ => Distribution::Exponential { mean: self.latency(rng) },
        }
    }
}

impl Subject for Delay {
    fn name(&self) -> &'static str {
        "delay"
    }

    fn children(&self) -> (usize, usize) {
        (1, 1)
    }

    fn choose(&self, rng: &mut Rng, below: &Shape) -> Option<Arc<dyn Chosen>> {
        let settings = DelaySettings {
            read: self.distribution(rng),
            write: self.distribution(rng),
            flush: self.distribution(rng),
            order: if rng.one_in(2) { DelayOrder::AsBegun } else { DelayOrder::Any },
        };
        Some(Arc::new(ChosenDelay { size: below.size, settings, seed: rng.next_u64() }))
    }
}

#[derive(Debug)]
struct ChosenDelay {
    size: u64,
    settings: DelaySettings,
    seed: u64,
}

impl Chosen for ChosenDelay {
    fn describe(&self) -> String {
        let DelaySettings { read, write, flush, order } = &self.settings;
        format!("read {read:?}, write {write:?}, flush {flush:?}, {order:?}")
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn home(&self, at: u64) -> Home {
        Home::Child(0, at)
    }

    fn keeps_order(&self) -> bool {
        self.settings.order == DelayOrder::AsBegun
    }

    fn build(&self, parts: Parts<'_>) -> Result<Arc<dyn Node>> {
        let child = Arc::clone(parts.children.first().context("what is below")?);
        let (settings, clock) = (self.settings.clone(), Arc::clone(parts.clock));
        let node = DelayNode::new(parts.name, child, Access::ReadWrite, settings, self.seed, clock);
        Ok(Arc::new(node))
    }
}
