//! Small disks: together, each of them whole, on as few iothreads as carry them.

use std::collections::{BTreeMap, BTreeSet};

use super::Pool;
use crate::disk::{Disk, Role};
use crate::window::Window;
use crate::{DiskId, IothreadSlot};

/// A disk that would use so much of an iothread gets one of its own.
const LARGE: f64 = 0.5;
/// One that uses less than that for [`SMALL_SECONDS`] comes back.
const SMALL: f64 = 0.35;
const SMALL_SECONDS: f64 = 10.0;
/// A shared iothread is filled up to that.
const FILL: f64 = 0.6;
/// Above that it gives a disk away.
pub(super) const FILL_MAX: f64 = 0.75;
/// How often shared iothreads that are nearly empty are merged, in seconds.
const MERGE_SECONDS: f64 = 10.0;
/// What counts as nearly empty.
const MERGE_BELOW: f64 = 0.3;

impl Pool {
    pub(super) fn place_small(&mut self, window: &Window, now: f64) {
        self.shared_loads(now);
        self.leave_owned(window, now);
        self.grow_out(window, now);
        self.relieve(window, now);
        self.come_back(window, now);
        self.merge(window, now);
        let lies_there = |slot: &IothreadSlot| {
            self.disks.values().any(|it| it.role != Role::Alone && it.places.threads.contains(slot))
        };
        let kept: BTreeSet<IothreadSlot> = self.shared.iter().copied().filter(lies_there).collect();
        self.shared = kept;
    }

    /// What busy small disks would use of each shared iothread. An iothread that a small disk lies on is shared.
    fn shared_loads(&mut self, now: f64) -> BTreeMap<IothreadSlot, f64> {
        let mut loads: BTreeMap<IothreadSlot, f64> =
            self.shared.iter().map(|it| (*it, 0.0)).collect();
        let owned: BTreeSet<IothreadSlot> = self.owned();
        for disk in self.disks.values().filter(|it| it.role == Role::Small) {
            if owned.contains(&disk.home()) {
                continue;
            }
            let wanted = if self.is_busy(disk, now) { disk.wanted } else { 0.0 };
            *loads.entry(disk.home()).or_default() += wanted;
        }
        self.shared = loads.keys().copied().collect();
        loads
    }

    fn owned(&self) -> BTreeSet<IothreadSlot> {
        let alone = self.disks.values().filter(|it| it.role == Role::Alone);
        alone.flat_map(Disk::uses).collect()
    }

    /// Busy small disks, the largest first.
    fn busy_small(&self, now: f64) -> Vec<(DiskId, IothreadSlot, f64)> {
        let small =
            self.disks.values().filter(|it| it.role == Role::Small && self.is_busy(it, now));
        let mut small: Vec<_> = small.map(|it| (it.id, it.home(), it.wanted)).collect();
        small.sort_by(|a, b| b.2.total_cmp(&a.2).then(a.0.cmp(&b.0)));
        small
    }

    /// A small disk that wakes on an iothread which became another's own goes to the small ones.
    fn leave_owned(&mut self, window: &Window, now: f64) {
        let owned = self.owned();
        for (id, home, wanted) in self.busy_small(now) {
            if !owned.contains(&home) {
                continue;
            }
            let loads = self.shared_loads(now);
            let room = |it: &(&IothreadSlot, &f64)| *it.1 + wanted <= FILL_MAX;
            let fits = loads.iter().filter(room).max_by(|a, b| a.1.total_cmp(b.1)).map(|it| *it.0);
            if let Some(slot) = fits.or_else(|| self.free().first().copied()) {
                self.shared.insert(slot);
                self.settle(id, vec![slot], Role::Small, window);
            }
        }
    }

    /// A disk that would fill an iothread gets one of its own.
    fn grow_out(&mut self, window: &Window, now: f64) {
        let busy = self.disks.values().filter(|it| self.is_busy(it, now)).count();
        for (id, home, wanted) in self.busy_small(now) {
            let neighbours =
                self.disks.values().filter(|it| it.id != id && it.places.threads.contains(&home));
            let busy_neighbours = neighbours.clone().filter(|it| self.is_busy(it, now)).count();
            let has_neighbours = neighbours.count() > 0;
            let free = self.free();
            let stays = busy_neighbours == 0 && (!has_neighbours || busy == 1 || free.len() < 4);
            if stays {
                let disk = self.disks.get_mut(&id).expect("it is one of the small disks");
                disk.role = Role::Alone;
                self.shared.remove(&home);
            } else if wanted >= LARGE
                && let Some(&slot) = free.first()
            {
                self.settle(id, vec![slot], Role::Alone, window);
            }
        }
    }

    /// A shared iothread that is too full gives its largest disk to one with room, or to a new one.
    fn relieve(&mut self, window: &Window, now: f64) {
        let mut loads = self.shared_loads(now);
        for (id, home, wanted) in self.busy_small(now) {
            let load = loads.get(&home).copied().unwrap_or(0.0);
            if load <= FILL_MAX || wanted <= 0.0 || load - wanted <= 1e-9 {
                continue;
            }
            let fits = loads.iter().find(|it| *it.1 + wanted <= FILL).map(|it| *it.0);
            let Some(slot) = fits.or_else(|| self.free().first().copied()) else { continue };
            self.shared.insert(slot);
            *loads.entry(home).or_default() -= wanted;
            *loads.entry(slot).or_default() += wanted;
            self.settle(id, vec![slot], Role::Small, window);
        }
    }

    /// A disk that has been small for long goes back to the others, if there are any.
    fn come_back(&mut self, window: &Window, now: f64) {
        let usages: BTreeMap<DiskId, f64> =
            window.disks.iter().map(|it| (it.id, it.usage())).collect();
        let mut back = Vec::new();
        let small_exists = self.disks.values().filter(|it| self.is_busy(it, now)).count() > 1;
        for disk in self.disks.values_mut().filter(|it| it.role == Role::Alone) {
            let usage = usages.get(&disk.id).copied().unwrap_or(0.0);
            let has_several = disk.places.threads.len() > 1 && usage > 0.1;
            if usage >= SMALL || has_several || disk.search.trial.is_some() {
                disk.small_since = None;
                continue;
            }
            let since = *disk.small_since.get_or_insert(now);
            let is_idle = usage <= 0.0;
            if now - since >= SMALL_SECONDS && (small_exists || is_idle) {
                back.push((disk.id, usage));
            }
        }
        for (id, usage) in back {
            let loads = self.shared_loads(now);
            let room = loads.iter().filter(|it| *it.1 + usage <= FILL);
            let fullest = room.max_by(|a, b| a.1.total_cmp(b.1)).map(|it| *it.0);
            let home = fullest.unwrap_or_else(|| self.disks[&id].home());
            self.shared.insert(home);
            self.settle(id, vec![home], Role::Small, window);
        }
    }

    /// Disks of the emptiest shared iothread go to others that have room.
    fn merge(&mut self, window: &Window, now: f64) {
        if now - self.merged_at < MERGE_SECONDS {
            return;
        }
        self.merged_at = now;
        let mut loads = self.shared_loads(now);
        let emptiest = loads.iter().min_by(|a, b| a.1.total_cmp(b.1)).map(|it| (*it.0, *it.1));
        let Some((from, _)) = emptiest.filter(|it| it.1 < MERGE_BELOW && loads.len() > 1) else {
            return;
        };
        loads.remove(&from);
        let small = self.disks.values().filter(|it| it.role == Role::Small && it.home() == from);
        let leaving: Vec<(DiskId, f64)> = small.map(|it| (it.id, it.wanted)).collect();
        for (id, wanted) in leaving {
            let room = loads.iter().filter(|it| *it.1 + wanted <= FILL);
            let Some(to) = room.max_by(|a, b| a.1.total_cmp(b.1)).map(|it| *it.0) else { return };
            *loads.entry(to).or_default() += wanted;
            self.settle(id, vec![to], Role::Small, window);
        }
    }
}
