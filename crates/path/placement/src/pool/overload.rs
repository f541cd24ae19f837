//! More is wanted than there are iothreads: everybody gets a fair share (max-min over the disks that are busy).
//!
//! Where there are enough iothreads for one each, large disks have whole ones, and what does not divide goes to those
//! that are owed most. Otherwise each disk lies whole on one iothread with others, and those that share change from time
//! to time, because two iothreads for one disk cost more than one.
//!
//! Limits: nobody's share changes more often than every 2.5 s; a debt is at most what a disk should get in 20 s.

use std::collections::{BTreeMap, BTreeSet};

use super::Pool;
use crate::balance::{Placement, balance};
use crate::disk::Role;
use crate::network::whole;
use crate::window::Window;
use crate::{DiskId, IothreadSlot};

/// How long it must last before something is done, in seconds.
const PATIENCE: f64 = 0.3;
/// How often shares are dealt again, in seconds.
const DEAL_SECONDS: f64 = 2.5;
/// Less than this share of all iothreads is wanted: it is over.
const OVER: f64 = 0.85;
/// A disk that wants less is a small one.
const LARGE: f64 = 0.5;
/// From that level on large disks have whole iothreads.
const WHOLE: f64 = 0.95;
/// A disk that asked in vain so recently wants more, in seconds.
const HUNGRY_SECONDS: f64 = 2.0;
/// A debt is at most the share of so many seconds.
const DEBT_SECONDS: f64 = 20.0;
/// An iothread that works so much is full.
const FULL: f64 = 0.9;
/// A disk that uses so much of what it gets there at least wants more.
const HELD_BACK: f64 = 0.7;
/// How much more is not known.
const MORE_THAN_ONE: f64 = 1.01;
/// Who is owed so much more than another, in seconds of a fair share, changes places with it.
const ROTATE_DEBT: f64 = 0.3;
/// Beside more disks than that, one more or less makes no difference.
const ROTATE_NEIGHBOURS_MAX: usize = 5;

#[derive(Debug, Default)]
pub(super) struct Overload {
    is_active: bool,
    since: Option<f64>,
    dealt_at: f64,
    /// Iothreads that nobody may exceed.
    level: f64,
}

impl Overload {
    /// Shares are dealt now: small disks lie where they were put.
    pub(super) fn is_active(&self) -> bool {
        self.is_active
    }

    pub(super) fn is_restless(&self) -> bool {
        self.since.is_some() && !self.is_active
    }
}

/// What a busy disk wants.
#[derive(Clone, Copy, Debug)]
struct Want {
    id: DiskId,
    threads: f64,
}

/// The level at which so much is shared among these wants, none getting more than it wants.
fn water_level(wants: &[Want], capacity: f64) -> f64 {
    let mut sizes: Vec<f64> = wants.iter().map(|it| it.threads).collect();
    sizes.sort_by(f64::total_cmp);
    let mut left = capacity.max(0.0);
    for (at, size) in sizes.iter().enumerate() {
        let each = left / (sizes.len() - at) as f64;
        if *size >= each {
            return each;
        }
        left -= size;
    }
    f64::INFINITY
}

impl Pool {
    pub(super) fn share_fairly(&mut self, window: &Window, now: f64) {
        let wants = self.wants(window, now);
        self.count_debts(&wants, window);
        let is_short = self.is_short(window, now);
        if !self.overload.is_active {
            if !is_short {
                self.overload.since = None;
                return;
            }
            let since = *self.overload.since.get_or_insert(now);
            if now - since < PATIENCE {
                return;
            }
        }
        if self.overload.is_active && now - self.overload.dealt_at < DEAL_SECONDS {
            return;
        }
        if !self.moves.allows() {
            return;
        }
        let total: f64 = wants.iter().map(|it| it.threads).sum();
        let is_over = total <= OVER * self.settings.max as f64 && !is_short;
        let was_active = std::mem::replace(&mut self.overload.is_active, !is_over);
        self.overload.dealt_at = now;
        self.overload.since = None;
        self.overload.level = water_level(&wants, self.settings.max as f64);
        if !is_over {
            self.deal(&wants, window, now, was_active);
        }
        if is_over {
            for disk in self.disks.values_mut() {
                disk.search.threads_max = self.settings.max;
                disk.debt = 0.0;
                if disk.role == Role::Divided {
                    disk.role = Role::Small;
                }
            }
        }
    }

    fn wants(&mut self, window: &Window, now: f64) -> Vec<Want> {
        for disk in self.disks.values_mut() {
            if disk.search.is_hungry {
                disk.hungry_at = now;
            }
        }
        let busy = self.disks.values().filter(|it| self.is_busy(it, now));
        let mut neighbours: BTreeMap<IothreadSlot, f64> = BTreeMap::new();
        for disk in busy.clone() {
            *neighbours.entry(disk.home()).or_default() += 1.0;
        }
        // A disk that uses its share of a full iothread wants more, however much that is.
        let is_held_back = |disk: &crate::disk::Disk| {
            let home = disk.home();
            let found = window.disks.iter().find(|it| it.id == disk.id);
            let usage = found.map_or(0.0, crate::window::DiskWindow::usage);
            let work = window.threads.get(&home).map_or(0.0, |it| it.work);
            work >= FULL && usage >= HELD_BACK * work / neighbours[&home]
        };
        let want = |disk: &crate::disk::Disk| {
            let has = disk.places.threads.len() as f64;
            let is_hungry = now - disk.hungry_at <= HUNGRY_SECONDS;
            let threads = match disk.role {
                Role::Alone if is_hungry => disk.wanted.max(has + 1.0),
                Role::Alone => disk.wanted.min(has),
                Role::Small => disk.wanted,
                Role::Divided if is_held_back(disk) => disk.wanted.max(MORE_THAN_ONE),
                Role::Divided => disk.wanted,
            };
            Want { id: disk.id, threads: threads.max(0.01) }
        };
        let mut wants: Vec<Want> = busy.map(want).collect();
        // Disks that cannot be moved now take no part.
        let may_move = |id| {
            let found = window.disks.iter().find(|it| it.id == id);
            found.is_some_and(|it| it.mode == crate::DiskMode::Auto)
        };
        wants.retain(|it| may_move(it.id));
        wants
    }

    fn count_debts(&mut self, wants: &[Want], window: &Window) {
        if !self.overload.is_active {
            return;
        }
        let level = self.overload.level;
        for want in wants {
            let found = window.disks.iter().find(|it| it.id == want.id);
            let (Some(disk), Some(found)) = (self.disks.get_mut(&want.id), found) else { continue };
            let fair = want.threads.min(level);
            let debt = disk.debt + (fair - found.usage()) * window.seconds;
            disk.debt = debt.clamp(-DEBT_SECONDS * fair, DEBT_SECONDS * fair);
        }
    }

    /// Whether a busy small disk lies on what has become another's own.
    fn is_stranded(&self, now: f64) -> bool {
        let owned: BTreeSet<IothreadSlot> = {
            let alone = self.disks.values().filter(|it| it.role == Role::Alone);
            alone.flat_map(|it| it.places.threads.iter().copied()).collect()
        };
        let mut small =
            self.disks.values().filter(|it| it.role == Role::Small && self.is_busy(it, now));
        small.any(|it| owned.contains(&it.home()))
    }

    fn is_short(&self, window: &Window, now: f64) -> bool {
        if !self.overload.is_active && !self.free().is_empty() {
            return false;
        }
        let hungry = |it: &crate::disk::Disk| {
            it.role == Role::Alone && now - it.hungry_at <= HUNGRY_SECONDS && self.is_busy(it, now)
        };
        let mut on: BTreeMap<IothreadSlot, usize> = BTreeMap::new();
        for disk in self.disks.values().filter(|it| it.role != Role::Alone && self.is_busy(it, now))
        {
            *on.entry(disk.home()).or_default() += 1;
        }
        let is_full = |slot: &IothreadSlot| {
            window.threads.get(slot).is_some_and(|it| it.work > super::small::FILL_MAX)
        };
        (!self.overload.is_active && self.is_stranded(now))
            || self.disks.values().any(hungry)
            || on.iter().any(|(slot, count)| *count > 1 && is_full(slot))
    }

    fn deal(&mut self, wants: &[Want], window: &Window, now: f64, was_active: bool) {
        let (large, small): (Vec<Want>, Vec<Want>) =
            wants.iter().partition(|it| it.threads >= LARGE);
        if self.settings.max >= large.len().max(1) && self.overload.level >= WHOLE {
            self.deal_whole(&large, &small, window);
        } else {
            self.divide(wants, window, was_active);
        }
        for disk in self.disks.values_mut() {
            if disk.role == Role::Divided && now - disk.busy_at > super::BUSY_SECONDS {
                disk.role = Role::Small;
            }
        }
    }

    /// Whole iothreads for large disks; the small ones lie evenly on all of them.
    fn deal_whole(&mut self, large: &[Want], small: &[Want], window: &Window) {
        let small_total: f64 = small.iter().map(|it| it.threads).sum();
        let max = self.settings.max as f64;
        // What small disks use counts as used on each iothread alike.
        let worth = (1.0 - small_total / max).max(0.1);
        let level = water_level(large, max * worth) / worth;
        let mut shares: Vec<(Want, usize)> = Vec::new();
        let most = |want: &Want| (want.threads / worth - 0.2).ceil().max(1.0);
        for &want in large {
            let share = whole((want.threads / worth).min(level) + 0.01);
            shares.push((want, share.clamp(1, whole(most(&want)))));
        }
        let owed = |want: &Want| {
            let debt = self.disks.get(&want.id).map_or(0.0, |it| it.debt);
            debt + (want.threads / worth).min(level).fract()
        };
        let mut order: Vec<usize> = (0..shares.len()).collect();
        order.sort_by(|a, b| owed(&shares[*b].0).total_cmp(&owed(&shares[*a].0)));
        let mut left = self.settings.max.saturating_sub(shares.iter().map(|it| it.1).sum());
        for at in order {
            let (want, share) = &mut shares[at];
            if left > 0 && (*share as f64) < most(want) {
                *share += 1;
                left -= 1;
            }
        }
        self.spread_small(small, window);
        self.hand_over(&shares, window);
    }

    /// Small disks evenly on all iothreads.
    fn spread_small(&mut self, small: &[Want], window: &Window) {
        let slots: Vec<IothreadSlot> = self.all_slots().collect();
        let sizes = (0_u16..).zip(small).map(|(at, it)| (at, it.threads)).collect();
        let now: Placement =
            (0_u16..).zip(small).map(|(at, it)| (at, self.disks[&it.id].home())).collect();
        let placed = balance(&now, &sizes, &slots, &BTreeMap::new());
        for (want, slot) in small.iter().zip(placed.values()) {
            let disk = &self.disks[&want.id];
            if disk.role != Role::Small || disk.home() != *slot {
                self.settle(want.id, vec![*slot], Role::Small, window);
            }
        }
    }

    fn hand_over(&mut self, shares: &[(Want, usize)], window: &Window) {
        let mut taken: BTreeSet<IothreadSlot> = BTreeSet::new();
        let mut plans: Vec<(DiskId, usize, Vec<IothreadSlot>)> = Vec::new();
        // Those that search keep what they have, up to their share.
        let mut order: Vec<&(Want, usize)> = shares.iter().collect();
        order.sort_by_key(|it| self.disks[&it.0.id].role != Role::Alone);
        for (want, share) in order {
            let mut threads = self.disks[&want.id].places.threads.clone();
            threads.retain(|it| !taken.contains(it));
            threads.truncate(*share);
            taken.extend(threads.iter().copied());
            plans.push((want.id, *share, threads));
        }
        let mut left: Vec<IothreadSlot> =
            self.all_slots().filter(|it| !taken.contains(it)).collect();
        for (id, share, mut threads) in plans {
            while threads.len() < share
                && let Some(slot) = left.pop()
            {
                threads.push(slot);
            }
            let Some(disk) = self.disks.get_mut(&id) else { continue };
            disk.search.threads_max = share.max(1);
            let is_same = disk.role == Role::Alone && disk.places.threads == threads;
            if !is_same && !threads.is_empty() {
                self.settle(id, threads, Role::Alone, window);
            }
        }
    }

    /// Each disk whole, on one iothread with others.
    fn divide(&mut self, wants: &[Want], window: &Window, was_active: bool) {
        let level = self.overload.level;
        let slots: Vec<IothreadSlot> = self.all_slots().collect();
        let sizes: BTreeMap<u16, f64> =
            (0_u16..).zip(wants).map(|(at, it)| (at, it.threads.min(level))).collect();
        let mut now: Placement =
            (0_u16..).zip(wants).map(|(at, it)| (at, self.disks[&it.id].home())).collect();
        if was_active {
            self.rotate(wants, &sizes, &mut now);
        }
        let placed = balance(&now, &sizes, &slots, &BTreeMap::new());
        for (want, slot) in wants.iter().zip(placed.values()) {
            let disk = &self.disks[&want.id];
            if disk.role != Role::Divided || disk.home() != *slot {
                self.settle(want.id, vec![*slot], Role::Divided, window);
            }
        }
        self.shared = slots.into_iter().collect();
    }

    /// On iothreads with more disks than others have, the one that is owed least changes to where somebody has been
    /// served well.
    fn rotate(&self, wants: &[Want], sizes: &BTreeMap<u16, f64>, now: &mut Placement) {
        let debt = |at: u16| self.disks.get(&wants[usize::from(at)].id).map_or(0.0, |it| it.debt);
        let mut on: BTreeMap<IothreadSlot, Vec<u16>> =
            self.all_slots().map(|it| (it, Vec::new())).collect();
        for (&at, slot) in now.iter() {
            on.entry(*slot).or_default().push(at);
        }
        let load = |items: &[u16]| items.iter().map(|it| sizes[it]).sum::<f64>();
        let most_owed = |items: &[u16]| items.iter().map(|it| debt(*it)).fold(f64::MIN, f64::max);
        let mut order: Vec<IothreadSlot> = on.keys().copied().collect();
        order.sort_by(|a, b| most_owed(&on[b]).total_cmp(&most_owed(&on[a])));
        let mut changed = BTreeSet::new();
        for full in order {
            let items = &on[&full];
            if items.len() < 2 || items.len() > ROTATE_NEIGHBOURS_MAX || changed.contains(&full) {
                continue;
            }
            let least = items.iter().copied().min_by(|a, b| debt(*a).total_cmp(&debt(*b)));
            let Some(leaving) = least else { continue };
            let stays: Vec<u16> = items.iter().copied().filter(|it| *it != leaving).collect();
            let fits = |slot: &&IothreadSlot| {
                !changed.contains(*slot)
                    && load(&on[*slot]) + sizes[&leaving] <= load(items) + 1e-9
                    && most_owed(&on[*slot]) < most_owed(&stays) - ROTATE_DEBT * self.overload.level
            };
            let to = on.keys().filter(|it| **it != full).filter(fits);
            let to = to.min_by(|a, b| most_owed(&on[a]).total_cmp(&most_owed(&on[b]))).copied();
            if let Some(to) = to {
                now.insert(leaving, to);
                changed.extend([full, to]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_gets_more_than_wanted_and_the_rest_is_shared_evenly() {
        let wants = |sizes: &[f64]| -> Vec<Want> {
            (0..).zip(sizes).map(|(id, &threads)| Want { id: DiskId(id), threads }).collect()
        };
        assert!((water_level(&wants(&[4.0, 4.0, 4.0]), 6.0) - 2.0).abs() < 1e-9);
        assert!((water_level(&wants(&[0.5, 4.0, 4.0]), 6.0) - 2.75).abs() < 1e-9);
        assert!(water_level(&wants(&[0.5, 1.0]), 6.0).is_infinite());
    }
}
