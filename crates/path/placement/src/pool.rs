//! The iothreads of a pool, shared by its disks.
//!
//! Where it stands: between the placer, which has snapshots and orders, and the search of each disk.
//!
//! Invariants: an iothread belongs to one disk, or is shared by whole disks; a disk that searches has iothreads that no
//! other busy disk uses.
//! Limits: one proper trial at a time for each storage.

mod overload;
mod small;

use std::collections::{BTreeMap, BTreeSet};

use crate::disk::{Disk, Role};
use crate::moves::MoveBudget;
use crate::network::whole;
use crate::search::View;
use crate::window::{DiskWindow, Window};
use crate::{DiskId, DiskMode, IothreadSlot, Note, PoolSettings, StorageId};

use self::overload::Overload;

/// From so many free iothreads on a disk may have as many as it likes.
const MANY_FREE: usize = 8;
/// Iothreads that could run and had no CPU for this share of their work: none is free.
const RUN_DELAY_MAX: f64 = 0.05;
/// CPUs that have to be idle, or used for polling, for one more iothread.
const CPUS_FREE_MIN: f64 = 0.5;
/// A disk that was busy so recently still counts, in seconds.
const BUSY_SECONDS: f64 = 2.0;
/// How fast `wanted` follows, per second.
const WANTED_RATE: f64 = 3.0;
/// Windows above the budget before a disk gives an iothread back.
const OVER_BUDGET_WINDOWS: u32 = 4;

#[derive(Debug)]
pub(crate) struct Pool {
    settings: PoolSettings,
    pub(crate) disks: BTreeMap<DiskId, Disk>,
    /// The iothreads that small disks share.
    shared: BTreeSet<IothreadSlot>,
    overload: Overload,
    moves: MoveBudget,
    over_budget: u32,
    merged_at: f64,
}

/// What is free in a window.
#[derive(Clone, Copy, Debug)]
struct Supply {
    is_scarce: bool,
    /// So many iothreads more may be used.
    threads: usize,
}

impl Pool {
    pub(crate) fn new(settings: PoolSettings) -> Self {
        Self {
            settings,
            disks: BTreeMap::new(),
            shared: BTreeSet::from([IothreadSlot(0)]),
            overload: Overload::default(),
            moves: MoveBudget::of_pool(),
            over_budget: 0,
            merged_at: 0.0,
        }
    }

    fn all_slots(&self) -> impl Iterator<Item = IothreadSlot> + use<> {
        (0..u16::try_from(self.settings.max).unwrap_or(u16::MAX)).map(IothreadSlot)
    }

    /// The iothreads that nobody has.
    fn free(&self) -> Vec<IothreadSlot> {
        let mut used: BTreeSet<IothreadSlot> = self.shared.clone();
        used.extend(self.disks.values().flat_map(Disk::uses));
        self.all_slots().filter(|it| !used.contains(it)).collect()
    }

    /// Where the rings of a new disk begin: with the small ones.
    pub(crate) fn home_of_new(&self) -> IothreadSlot {
        let count = |slot: &IothreadSlot| {
            let lies_there = |it: &&Disk| it.places.threads.contains(slot);
            self.disks.values().filter(lies_there).map(|it| 1.0 + 64.0 * it.wanted).sum::<f64>()
        };
        let emptiest = self.shared.iter().min_by(|a, b| count(a).total_cmp(&count(b)));
        emptiest.copied().or_else(|| self.free().first().copied()).unwrap_or(IothreadSlot(0))
    }

    pub(crate) fn spend(&mut self, moves: f64) {
        self.moves.take(moves);
    }

    /// Whether something may change soon.
    pub(crate) fn is_restless(&self) -> bool {
        self.disks.values().any(|it| it.search.is_restless()) || self.overload.is_restless()
    }

    /// A window is over.
    pub(crate) fn step(&mut self, window: &Window, now: f64) -> Vec<Note> {
        self.moves.pass(window.seconds);
        for disk in &window.disks {
            self.note_use(disk, window.seconds, now);
        }
        let supply = self.supply(window);
        let mut notes = Vec::new();
        for disk in &window.disks {
            notes.extend(self.search(disk, window, supply, now));
        }
        if !self.overload.is_active() {
            self.place_small(window, now);
        }
        self.hold_budget(window);
        self.share_fairly(window, now);
        notes
    }

    fn note_use(&mut self, window: &DiskWindow, seconds: f64, now: f64) {
        let Some(disk) = self.disks.get_mut(&window.id) else { return };
        disk.moves.pass(seconds);
        disk.busy = window.busy().map(|it| it.queue).collect();
        let is_busy = !disk.busy.is_empty();
        if is_busy {
            disk.busy_at = now;
        }
        if disk.is_unsettled && is_busy {
            return;
        }
        let follow = (WANTED_RATE * seconds).min(1.0);
        disk.wanted += follow * (window.usage_alone() - disk.wanted);
    }

    fn supply(&self, window: &Window) -> Supply {
        let sum = |of: fn(&crate::window::ThreadWindow) -> f64| {
            window.threads.values().map(of).sum::<f64>()
        };
        let (work, poll, run_delay, cpu) =
            (sum(|it| it.work), sum(|it| it.poll), sum(|it| it.run_delay), sum(|it| it.cpu));
        let spare = window.idle_cpus + poll;
        let is_scarce = spare < CPUS_FREE_MIN || run_delay > RUN_DELAY_MAX * work;
        let budget = self.settings.budget_cpus.map_or(f64::INFINITY, |it| it - cpu);
        // An iothread that shares the work of others needs no whole CPU.
        let by_cpus = 1 + whole(2.0 * spare);
        let by_budget = whole(budget.min(1e6));
        Supply { is_scarce, threads: by_cpus.min(by_budget) }
    }

    fn is_busy(&self, disk: &Disk, now: f64) -> bool {
        now - disk.busy_at <= BUSY_SECONDS
    }

    /// What others use of a disk's iothreads: pinned rings, and disks that woke.
    fn obstacles(&self, id: DiskId, window: &Window) -> BTreeMap<IothreadSlot, f64> {
        let (threads, target) = (&self.disks[&id].places.threads, &self.disks[&id].places.target);
        let mut obstacles = BTreeMap::new();
        for disk in &window.disks {
            for ring in disk.busy() {
                let is_own = disk.id == id && target.contains_key(&ring.queue);
                if !is_own && (threads.contains(&ring.slot) || ring.is_pinned) {
                    *obstacles.entry(ring.slot).or_default() += ring.flow.usage;
                }
            }
        }
        obstacles
    }

    /// One window of a disk that has iothreads of its own.
    fn search(
        &mut self,
        disk_window: &DiskWindow,
        window: &Window,
        supply: Supply,
        now: f64,
    ) -> Option<Note> {
        let id = disk_window.id;
        if !self.is_ready(disk_window) {
            return None;
        }
        let mut free = self.free();
        let allowed = self.allowed(id, free.len(), now).min(supply.threads);
        let storage_is_tried = self.is_tried(disk_window.storage, id, window);
        let obstacles = self.obstacles(id, window);
        let has_neighbours = self.disks.values().any(|it| it.id != id && self.is_busy(it, now));
        let may_move = self.moves.allows();
        let disk = self.disks.get_mut(&id)?;
        let work = |slot| window.threads.get(slot).map_or(0.0, |it| it.work);
        let work_max = disk.places.threads.iter().map(work).fold(0.0, f64::max);
        let may_move = may_move && disk.moves.allows();
        let view = View {
            now,
            seconds: window.seconds,
            window: disk_window,
            obstacles: &obstacles,
            work_max,
            is_scarce: supply.is_scarce,
            has_neighbours,
            may_move,
            may_try: may_move && !storage_is_tried,
        };
        // Those with pinned rings last.
        free.sort_by(|a, b| {
            let load = |it| obstacles.get(it).copied().unwrap_or(0.0);
            load(a).total_cmp(&load(b))
        });
        let mut grant = |count: usize| free.drain(..count.min(allowed).min(free.len())).collect();
        disk.search.step(&view, &mut disk.places, &mut grant)
    }

    /// Whether a disk searches in this window. What was begun is taken back if its rings are to stay, and a window is
    /// thrown away in which they were not where they are wanted.
    fn is_ready(&mut self, window: &DiskWindow) -> bool {
        let Some(disk) = self.disks.get_mut(&window.id) else { return false };
        match window.mode {
            DiskMode::Frozen => {
                disk.search.abort(&mut disk.places);
                return false;
            }
            DiskMode::Suspended => {
                disk.is_unsettled = true;
                return false;
            }
            DiskMode::Auto => {}
        }
        if std::mem::take(&mut disk.is_unsettled) {
            if let Some(trial) = &mut disk.search.trial {
                trial.throw_away();
            }
            return false;
        }
        disk.role == Role::Alone
    }

    /// How many iothreads more a disk may have: not more than its part of what large disks have and could have, rounded
    /// up, unless there is plenty or nobody else asks.
    fn allowed(&self, id: DiskId, free: usize, now: f64) -> usize {
        let is_asking = |it: &&Disk| it.id != id && now - it.hungry_at <= BUSY_SECONDS;
        if free > MANY_FREE || !self.disks.values().any(|it| is_asking(&it)) {
            return free;
        }
        let large = self.disks.values().filter(|it| it.role == Role::Alone);
        let (count, threads) = large
            .fold((0, 0), |(count, threads), it| (count + 1, threads + it.places.threads.len()));
        let fair = (free + threads).div_ceil(usize::max(count, 1));
        fair.saturating_sub(self.disks.get(&id).map_or(0, |it| it.places.threads.len()))
    }

    fn is_tried(&self, storage: StorageId, id: DiskId, window: &Window) -> bool {
        let others = window.disks.iter().filter(|it| it.storage == storage && it.id != id);
        others.filter_map(|it| self.disks.get(&it.id)).any(|it| it.search.trial.is_some())
    }

    /// Takes an iothread from the disk with most if the pool uses more CPUs than it may.
    fn hold_budget(&mut self, window: &Window) {
        let Some(budget) = self.settings.budget_cpus else { return };
        let used: f64 = window.threads.values().map(|it| it.cpu).sum();
        self.over_budget = if used > budget { self.over_budget + 1 } else { 0 };
        if self.over_budget < OVER_BUDGET_WINDOWS {
            return;
        }
        self.over_budget = 0;
        let alone = self.disks.values().filter(|it| it.role == Role::Alone);
        let rich = alone
            .max_by_key(|it| it.places.threads.len())
            .map(|it| (it.id, it.places.threads.clone()));
        if let Some((id, mut threads)) = rich.filter(|it| it.1.len() > 1) {
            threads.pop();
            self.settle(id, threads, Role::Alone, window);
        }
    }

    /// Puts a disk on these iothreads.
    fn settle(&mut self, id: DiskId, threads: Vec<IothreadSlot>, role: Role, window: &Window) {
        let found = window.disks.iter().find(|it| it.id == id);
        let may_move = found.is_some_and(|it| it.mode == DiskMode::Auto);
        if let (Some(disk), true) = (self.disks.get_mut(&id), may_move) {
            let busy = found.into_iter().flat_map(DiskWindow::busy);
            let sizes = busy.map(|it| (it.queue, it.flow.usage_alone())).collect();
            disk.settle(threads, role, &sizes);
        }
    }
}
