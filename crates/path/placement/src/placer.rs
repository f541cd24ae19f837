//! Placement as a function of what was and what is: snapshots in, orders out.
//!
//! Where it stands: a control thread of the daemon owns it, and so does the simulator.
//!
//! Invariants: time is what the caller says. A window in which rings were moved is counted for nobody.
//! Limits: looks at most every 10 ms. Without work there is no next look but when an iothread has worked for 1 ms.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::disk::Disk;
use crate::order::{Decision, NextLook, Note, Order};
use crate::pool::Pool;
use crate::window::{RingMemories, Window};
use crate::{DiskId, IothreadSlot, PoolSettings, Snapshot};

/// A look while something may change soon.
const LOOK: Duration = Duration::from_millis(50);
/// A look otherwise.
const LOOK_CALM: Duration = Duration::from_millis(100);
/// When rings have been moved, what is counted begins after so long.
const SETTLE: Duration = Duration::from_millis(2);
/// A shorter window says nothing.
const WINDOW_MIN: Duration = Duration::from_millis(10);
/// A pause after which a trial has lost its sense.
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// Nanoseconds of work of all iothreads in a window that are none.
const IDLE_WORK_NS: u64 = 1_000_000;
/// An iothread that has had no ring for so long ends, in seconds.
const UNUSED_SECONDS: f64 = 60.0;

/// What a pool of iothreads decides by itself.
#[derive(Debug)]
pub struct Placer {
    settings: PoolSettings,
    pool: Pool,
    memories: RingMemories,
    /// The last snapshot, when it was taken, and whether it is the beginning of a window.
    last: Option<(Snapshot, Duration)>,
    /// Rings were moved after the last snapshot: a window begins with the next one.
    has_moved: bool,
    is_parked: bool,
    unused_since: BTreeMap<IothreadSlot, f64>,
    /// What was said once, until it is over.
    said: Vec<(DiskId, &'static str)>,
}

impl Placer {
    /// Nothing is placed yet.
    pub fn new(settings: PoolSettings) -> Self {
        Self {
            settings,
            pool: Pool::new(settings),
            memories: RingMemories::default(),
            last: None,
            has_moved: false,
            is_parked: false,
            unused_since: BTreeMap::new(),
            said: Vec::new(),
        }
    }

    /// The slot in which all rings of a new disk are to begin. The caller starts an iothread there if none runs.
    pub fn home_of_new_disk(&self) -> IothreadSlot {
        self.pool.home_of_new()
    }

    /// How many iothreads a disk has now, without what is being tried; `None` if there was no snapshot with it.
    pub fn iothreads_of(&self, disk: DiskId) -> Option<usize> {
        self.pool.disks.get(&disk).map(|it| it.places.threads.len())
    }

    /// How much of the progress now another iothread would bring at most, as a share; for the table of a pool.
    pub fn gain_max_of(&self, disk: DiskId) -> Option<f64> {
        self.pool.disks.get(&disk).map(|it| it.search.gain_max)
    }

    /// Whether rings of that disk go to and fro now.
    pub fn is_trying(&self, disk: DiskId) -> bool {
        self.pool.disks.get(&disk).is_some_and(|it| it.search.trial.is_some())
    }

    /// What is being tried with a disk now: on how many iothreads, and what that is expected to change, as a share; for the
    /// table of a pool.
    pub fn trial_of(&self, disk: DiskId) -> Option<(usize, f64)> {
        let comparison = &self.pool.disks.get(&disk)?.search.trial.as_ref()?.comparison;
        Some((comparison.new_threads.len(), comparison.predicted))
    }

    /// What to do now. `now` is the time since any moment that stays the same, and never goes back; the snapshot was
    /// taken then. The caller carries out the orders before it takes the next snapshot.
    pub fn decide(&mut self, snapshot: Snapshot, now: Duration) -> Decision {
        let seconds = now.as_secs_f64();
        let was_parked = std::mem::take(&mut self.is_parked);
        let Some((before, at)) = self.last.take() else {
            self.take_in(&snapshot, seconds);
            return self.begin_window(snapshot, now);
        };
        let elapsed = now.saturating_sub(at);
        if was_parked && elapsed > PAUSE_MAX {
            for disk in self.pool.disks.values_mut() {
                disk.search.abort(&mut disk.places);
            }
        }
        if was_parked || self.has_moved {
            self.arrived(&snapshot, seconds);
            self.take_in(&snapshot, seconds);
            return self.begin_window(snapshot, now);
        }
        if elapsed < WINDOW_MIN {
            self.last = Some((before, at));
            let next = NextLook::After(LOOK.saturating_sub(elapsed));
            return Decision { orders: Vec::new(), next, notes: Vec::new() };
        }
        self.take_in(&snapshot, seconds);
        let length = elapsed.as_secs_f64();
        let fault = self.settings.fault;
        let window = Window::between(&mut self.memories, &before, &snapshot, length, fault);
        let notes = self.pool.step(&window, seconds);
        let notes = self.say_once(notes);
        let orders = self.orders(&snapshot, seconds);
        let next = if self.has_moved {
            NextLook::After(SETTLE)
        } else if worked_ns(&before, &snapshot) < IDLE_WORK_NS {
            self.is_parked = true;
            NextLook::Parked
        } else if self.pool.is_restless() {
            NextLook::After(LOOK)
        } else {
            NextLook::After(LOOK_CALM)
        };
        self.last = Some((snapshot, now));
        Decision { orders, next, notes }
    }

    fn begin_window(&mut self, snapshot: Snapshot, now: Duration) -> Decision {
        self.has_moved = false;
        self.last = Some((snapshot, now));
        Decision { orders: Vec::new(), next: NextLook::After(LOOK), notes: Vec::new() }
    }

    /// Disks that came, went, or have other rings.
    fn take_in(&mut self, snapshot: &Snapshot, now: f64) {
        let disks = &mut self.pool.disks;
        disks.retain(|id, _| snapshot.disks.iter().any(|it| it.id == *id));
        for counters in &snapshot.disks {
            let disk =
                disks.entry(counters.id).or_insert_with(|| Disk::new(counters, self.settings));
            disk.sync(counters, now);
        }
        self.said.retain(|(id, _)| snapshot.disks.iter().any(|it| it.id == *id));
    }

    fn arrived(&mut self, snapshot: &Snapshot, now: f64) {
        for counters in &snapshot.disks {
            if let Some(disk) = self.pool.disks.get_mut(&counters.id) {
                disk.is_unsettled = false;
                disk.check_arrivals(counters, now);
            }
        }
    }

    fn orders(&mut self, snapshot: &Snapshot, now: f64) -> Vec<Order> {
        let (mut moves, mut spent) = (Vec::new(), 0.0);
        for counters in &snapshot.disks {
            let Some(disk) = self.pool.disks.get_mut(&counters.id) else { continue };
            if counters.mode == crate::DiskMode::Suspended {
                continue;
            }
            let own = disk.moves(counters);
            if !own.is_empty() {
                self.memories.forget_waits(counters.id);
            }
            let cost = disk.cost(&own);
            disk.moves.take(cost);
            spent += cost;
            moves.extend(own);
        }
        self.pool.spend(spent);
        self.has_moved = !moves.is_empty();
        let runs = |slot: IothreadSlot| snapshot.iothreads.iter().any(|it| it.slot == slot);
        let mut missing: Vec<IothreadSlot> =
            moves.iter().map(|it| it.to).filter(|it| !runs(*it)).collect();
        missing.sort_unstable();
        missing.dedup();
        let mut orders: Vec<Order> = missing.into_iter().map(Order::Start).collect();
        if self.has_moved {
            orders.push(Order::Move(moves));
        }
        orders.extend(self.ends(snapshot, now));
        orders
    }

    /// Iothreads that nobody has needed for long.
    fn ends(&mut self, snapshot: &Snapshot, now: f64) -> Vec<Order> {
        let mut running = snapshot.iothreads.len();
        let mut ends = Vec::new();
        for slot in snapshot.iothreads.iter().rev().map(|it| it.slot) {
            let serves =
                snapshot.disks.iter().flat_map(|it| &it.rings).any(|it| it.iothread == slot);
            let is_wanted = self.pool.disks.values().flat_map(Disk::uses).any(|it| it == slot);
            if serves || is_wanted {
                self.unused_since.remove(&slot);
                continue;
            }
            let since = *self.unused_since.entry(slot).or_insert(now);
            if now - since >= UNUSED_SECONDS && running > self.settings.min {
                self.unused_since.remove(&slot);
                running -= 1;
                ends.push(Order::End(slot));
            }
        }
        ends
    }

    /// Leaves out hints that were given for the same situation.
    fn say_once(&mut self, notes: Vec<Note>) -> Vec<Note> {
        let mut new = Vec::new();
        for note in notes {
            let said = match &note {
                Note::QueueFillsIothread { disk, .. } => (*disk, "queue"),
                Note::NoCpuFree { disk, .. } => (*disk, "cpu"),
                Note::Kept { disk, .. } => {
                    self.said.retain(|it| it.0 != *disk);
                    new.push(note);
                    continue;
                }
                Note::Refused { .. } => {
                    new.push(note);
                    continue;
                }
            };
            if !self.said.contains(&said) {
                self.said.push(said);
                new.push(note);
            }
        }
        new
    }
}

/// Nanoseconds in which iothreads worked.
fn worked_ns(before: &Snapshot, after: &Snapshot) -> u64 {
    let work = |thread: &crate::IothreadCounters| {
        let old =
            before.iothreads.iter().find(|it| it.slot == thread.slot).map_or(0, |it| it.work_ns);
        thread.work_ns.saturating_sub(old)
    };
    after.iothreads.iter().map(work).sum()
}

#[cfg(test)]
mod tests;
