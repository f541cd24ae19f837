//! Rings move within their disk's iothreads, without a trial, where that plainly lowers the fullest one.
//!
//! Limits: the same rings are moved so again after 1 s, and each time after twice as long, up to 60 s.

use std::collections::BTreeMap;

use super::{Places, View};
use crate::balance::{Placement, balance, fullest, spread};

/// How much one move must lower the fullest iothread to be made without a trial.
const UNEVEN: f64 = 1.3;
/// The same rings are moved so again after that many seconds, and each time after twice as many.
const EVENED_SECONDS: f64 = 1.0;
const EVENED_SECONDS_MAX: f64 = 60.0;

/// Moves within a disk's iothreads, which are made without a trial. What a ring would use alone is seen differently from
/// place to place, so the same rings are moved again only after a while, and each time a longer one.
#[derive(Clone, Debug, Default)]
pub(super) struct Evened {
    busy: Vec<u16>,
    times: i32,
    until: f64,
}

impl Evened {
    pub(super) fn allows(&self, sizes: &BTreeMap<u16, f64>, now: f64) -> bool {
        now >= self.until || !self.busy.iter().eq(sizes.keys())
    }

    pub(super) fn note(&mut self, sizes: &BTreeMap<u16, f64>, now: f64) {
        let is_same = self.busy.iter().eq(sizes.keys());
        self.times = if is_same { (self.times + 1).min(8) } else { 0 };
        self.until = now + (EVENED_SECONDS * 2_f64.powi(self.times)).min(EVENED_SECONDS_MAX);
        self.busy = sizes.keys().copied().collect();
    }
}

/// Moves rings within the disk's iothreads if that helps plainly.
pub(super) fn rebalance(view: &View<'_>, places: &mut Places, sizes: &BTreeMap<u16, f64>) -> bool {
    if places.threads.len() < 2 {
        return false;
    }
    let threads = &places.threads;
    let mut new = balance(&places.target, sizes, threads, view.obstacles);
    let most = |placed: &Placement| fullest(placed, sizes, threads, view.obstacles);
    if most(&places.target) <= UNEVEN * most(&new) {
        return false;
    }
    let quiet =
        places.target.keys().copied().filter(|it| !new.contains_key(it)).collect::<Vec<_>>();
    spread(&mut new, &quiet, &places.target, threads);
    places.target = new;
    true
}
