//! `throttle`: the child's bytes, within limits.

use std::sync::{Arc, OnceLock};

use anyhow::{Context, Result};
use block::{Access, Node};
use layers::{LimitKind, ThrottleGroup, ThrottleLimits, ThrottleNode, ThrottleSettings};
use testkit::conformance::stack::{Chosen, Home, Parts, Shape, Subject};
use testkit::rng::Rng;

use super::Pace;

#[derive(Debug)]
pub(crate) struct Throttle(pub(crate) Pace);

impl Throttle {
    /// A rate that holds much, little or nothing.
    fn rate(&self, rng: &mut Rng, kind: LimitKind) -> u64 {
        let (least, bits) = match (self.0, kind.name().starts_with("bps")) {
            // Less than a minute for the longest; a lane looks at what it holds every 50 ms.
            (Pace::Jumping, true) => (23, 10),
            (Pace::Jumping, false) => (3, 20),
            (Pace::Real, true) => (24, 8),
            (Pace::Real, false) => (10, 14),
        };
        let ceiling = 1 << (least + rng.below(bits));
        (1 << least) + rng.below(ceiling)
    }

    fn settings(&self, rng: &mut Rng) -> ThrottleSettings {
        let mut settings = ThrottleSettings::default();
        let sets: [&[LimitKind]; 2] = [
            &[LimitKind::IopsTotal, LimitKind::BpsTotal],
            &[LimitKind::IopsRead, LimitKind::IopsWrite, LimitKind::BpsRead, LimitKind::BpsWrite],
        ];
        for kind in sets[usize::from(rng.one_in(2))] {
            if rng.one_in(2) {
                let rate = self.rate(rng, *kind);
                let limit = settings.limit_mut(*kind);
                limit.rate = rate;
                if rng.one_in(3) {
                    limit.burst = limit.rate + rng.below(1 << 16);
                    limit.burst_seconds = 1 + rng.below(5);
                }
            }
        }
        let is_iops = |kind: &LimitKind| kind.name().starts_with("iops");
        let mut iops = LimitKind::ALL.iter().filter(|kind| is_iops(kind));
        if rng.one_in(2) && iops.any(|kind| settings.limit(*kind).rate > 0) {
            settings.iops_size = (64 << 10) << rng.below(4);
        }
        settings
    }
}

impl Subject for Throttle {
    fn name(&self) -> &'static str {
        "throttle"
    }

    fn children(&self) -> (usize, usize) {
        (1, 1)
    }

    fn choose(&self, rng: &mut Rng, below: &Shape) -> Option<Arc<dyn Chosen>> {
        let limits = ThrottleLimits::check(self.settings(rng)).ok()?;
        Some(Arc::new(ChosenThrottle { size: below.size, limits, group: OnceLock::new() }))
    }
}

#[derive(Debug)]
struct ChosenThrottle {
    size: u64,
    limits: ThrottleLimits,
    /// All nodes of the stack with these options are its members, of children that are alike.
    group: OnceLock<Arc<ThrottleGroup>>,
}

impl Chosen for ChosenThrottle {
    fn describe(&self) -> String {
        let settings = self.limits.settings();
        let limits = LimitKind::ALL.iter().map(|kind| (kind, settings.limit(*kind)));
        let limits = limits.filter(|(_, limit)| limit.rate > 0).map(|(kind, limit)| {
            format!(
                "{kind}={} -max={} -max-length={}",
                limit.rate, limit.burst, limit.burst_seconds
            )
        });
        let limits: Vec<String> = limits.collect();
        format!("{}, iops-size={}", limits.join(", "), settings.iops_size)
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn home(&self, at: u64) -> Home {
        Home::Child(0, at)
    }

    fn build(&self, parts: Parts<'_>) -> Result<Arc<dyn Node>> {
        let child = Arc::clone(parts.children.first().context("what is below")?);
        let group = self
            .group
            .get_or_init(|| ThrottleGroup::new("conform", self.limits, Arc::clone(parts.clock)));
        let group = Arc::clone(group);
        Ok(Arc::new(ThrottleNode::new(parts.name, child, group, Access::ReadWrite)))
    }
}
