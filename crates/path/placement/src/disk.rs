//! What the pool knows of one disk: where its rings are wanted, and how it shares iothreads.
//!
//! Invariants: every ring of the disk that may be moved has a place among the disk's iothreads.

use std::collections::{BTreeMap, BTreeSet};

use crate::balance::Placement;
use crate::moves::MoveBudget;
use crate::search::{Places, Search};
use crate::{DiskCounters, DiskId, IothreadSlot, PoolSettings, RingCounters, RingMove};

/// A ring that could not be moved so often is left alone for a while.
const TRIES_MAX: u8 = 3;
/// For so many seconds.
const LEFT_ALONE_SECONDS: f64 = 60.0;

/// How a disk shares iothreads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// It lies whole on an iothread, with other small disks.
    Small,
    /// It has iothreads of its own, and searches for their number.
    Alone,
    /// There are fewer iothreads than large disks: it lies whole on one, with others.
    Divided,
}

/// What a move of a quiet ring costs, in moves of busy ones.
const QUIET_COST: f64 = 0.1;

#[derive(Clone, Copy, Debug, Default)]
struct Stubborn {
    tries: u8,
    /// It is left alone until then.
    until: Option<f64>,
}

impl Stubborn {
    fn is_left_alone(&self, now: f64) -> bool {
        self.until.is_some_and(|it| now < it)
    }
}

#[derive(Debug)]
pub(crate) struct Disk {
    pub(crate) id: DiskId,
    pub(crate) role: Role,
    pub(crate) places: Places,
    pub(crate) search: Search,
    pub(crate) moves: MoveBudget,
    /// Since when it has been so small that it could lie with others.
    pub(crate) small_since: Option<f64>,
    /// Iothreads that it would use if each ring had one; smoothed.
    pub(crate) wanted: f64,
    /// Iothreads times seconds that it got less than its share.
    pub(crate) debt: f64,
    /// When it asked for an iothread in vain last.
    pub(crate) hungry_at: f64,
    /// When it was busy last.
    pub(crate) busy_at: f64,
    /// What was counted of this window says nothing: its rings were not where they are wanted.
    pub(crate) is_unsettled: bool,
    /// The rings that were busy in the last window.
    pub(crate) busy: BTreeSet<u16>,
    stubborn: BTreeMap<u16, Stubborn>,
}

impl Disk {
    /// A disk as it was found, or as it was placed when it came.
    pub(crate) fn new(counters: &DiskCounters, settings: PoolSettings) -> Self {
        let movable = counters.rings.iter().filter(|it| !it.is_pinned);
        let home = movable.clone().next().or(counters.rings.first());
        let home = home.map_or(IothreadSlot(0), |it| it.iothread);
        let target: Placement = movable.map(|it| (it.queue, home)).collect();
        Self {
            id: counters.id,
            role: Role::Small,
            places: Places { threads: vec![home], target },
            search: Search::new(settings),
            moves: MoveBudget::of_disk(),
            small_since: None,
            wanted: 0.0,
            debt: 0.0,
            hungry_at: f64::NEG_INFINITY,
            busy_at: f64::NEG_INFINITY,
            is_unsettled: true,
            busy: BTreeSet::new(),
            stubborn: BTreeMap::new(),
        }
    }

    pub(crate) fn home(&self) -> IothreadSlot {
        self.places.threads[0]
    }

    /// Takes in rings that came or went, or were pinned or released.
    pub(crate) fn sync(&mut self, counters: &DiskCounters, now: f64) {
        let left_alone: BTreeSet<u16> = self
            .stubborn
            .iter()
            .filter(|(_, it)| it.is_left_alone(now))
            .map(|(queue, _)| *queue)
            .collect();
        let movable: BTreeMap<u16, &RingCounters> = counters
            .rings
            .iter()
            .filter(|it| !it.is_pinned && !left_alone.contains(&it.queue))
            .map(|it| (it.queue, it))
            .collect();
        let same = movable.len() == self.places.target.len()
            && movable.keys().all(|it| self.places.target.contains_key(it));
        if same {
            return;
        }
        self.search.abort(&mut self.places);
        self.places.target.retain(|queue, _| movable.contains_key(queue));
        for (queue, ring) in movable {
            let threads = &self.places.threads;
            let is_there = threads.contains(&ring.iothread);
            let slot =
                if is_there { ring.iothread } else { threads[usize::from(queue) % threads.len()] };
            self.places.target.entry(queue).or_insert(slot);
        }
        self.is_unsettled = true;
    }

    /// The moves that are left to do.
    pub(crate) fn moves(&mut self, counters: &DiskCounters) -> Vec<RingMove> {
        let wanted = |ring: &RingCounters| {
            let to = *self.places.target.get(&ring.queue)?;
            let (disk, queue) = (self.id, ring.queue);
            (to != ring.iothread).then_some(RingMove { disk, queue, to })
        };
        let moves: Vec<RingMove> = counters.rings.iter().filter_map(wanted).collect();
        self.is_unsettled |= !moves.is_empty();
        moves
    }

    /// What moves cost: those of quiet rings make nobody wait.
    pub(crate) fn cost(&self, moves: &[RingMove]) -> f64 {
        let of = |it: &RingMove| if self.busy.contains(&it.queue) { 1.0 } else { QUIET_COST };
        moves.iter().map(of).sum()
    }

    /// Notes rings that are not where they should have arrived.
    pub(crate) fn check_arrivals(&mut self, counters: &DiskCounters, now: f64) {
        self.stubborn.retain(|_, it| it.until.is_none_or(|until| now < until));
        for ring in &counters.rings {
            let Some(&wanted) = self.places.target.get(&ring.queue) else { continue };
            if wanted == ring.iothread {
                self.stubborn.remove(&ring.queue);
                continue;
            }
            self.is_unsettled = true;
            let stubborn = self.stubborn.entry(ring.queue).or_default();
            stubborn.tries += 1;
            if stubborn.tries >= TRIES_MAX {
                stubborn.until = Some(now + LEFT_ALONE_SECONDS);
            }
        }
    }

    /// Puts it on these iothreads, without a trial: rings stay where they can.
    pub(crate) fn settle(
        &mut self,
        threads: Vec<IothreadSlot>,
        role: Role,
        sizes: &BTreeMap<u16, f64>,
    ) {
        self.search.abort(&mut self.places);
        let busy = sizes.iter().filter(|(queue, _)| self.places.target.contains_key(queue));
        let sizes = busy.map(|(queue, size)| (*queue, *size)).collect();
        let mut new =
            crate::balance::balance(&self.places.target, &sizes, &threads, &BTreeMap::new());
        let quiet: Vec<u16> =
            self.places.target.keys().copied().filter(|it| !new.contains_key(it)).collect();
        crate::balance::spread(&mut new, &quiet, &self.places.target, &threads);
        self.places = Places { threads, target: new };
        self.role = role;
        self.small_since = None;
        self.is_unsettled = true;
    }

    /// The iothreads that it has or tries.
    pub(crate) fn uses(&self) -> impl Iterator<Item = IothreadSlot> {
        let tried = self.search.trial.iter().flat_map(|it| it.comparison.new_threads.iter());
        self.places.threads.iter().chain(tried).copied()
    }
}
