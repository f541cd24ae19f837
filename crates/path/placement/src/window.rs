//! The time between two snapshots: what rings and iothreads did in it.
//!
//! Invariants: what is sampled by the gauges is smoothed here over some windows; what they count exactly is not.
//! Limits: what a ring is remembered by is dropped with the ring.

use std::collections::BTreeMap;

use crate::network::Flow;
use crate::{
    DiskCounters, DiskId, DiskMode, Fault, IothreadSlot, RingCounters, Snapshot, StorageId,
};

/// So many bytes count as much as a request, so that a change of the mix moves progress little.
const PROGRESS_BYTES: f64 = 32.0 * 1024.0;
/// The gauges sample one turn in so many.
const SAMPLED: f64 = 64.0;
/// Seconds over which the cost of a ring's requests is averaged.
const COST_SECONDS: f64 = 1.0;
/// Seconds over which waits are averaged.
const WAIT_SECONDS: f64 = 0.1;
/// So many samples of a ring's cost count as much as the average of its iothread.
const COST_PRIOR: f64 = 8.0;
/// A ring is busy if it makes this share of the progress of its disk's busiest one; it stays busy down to half of that.
const BUSY_SHARE: f64 = 0.03;

/// What an iothread did.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ThreadWindow {
    /// Share of the time in which it worked.
    pub(crate) work: f64,
    /// Share of the time in which it looked for work.
    pub(crate) poll: f64,
    /// CPUs that it used.
    pub(crate) cpu: f64,
    /// Share of the time in which it had no CPU.
    pub(crate) run_delay: f64,
    /// What its rings cost together, for their shares of `work`.
    cost: f64,
}

/// What a ring did.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RingWindow {
    pub(crate) queue: u16,
    pub(crate) slot: IothreadSlot,
    pub(crate) is_pinned: bool,
    pub(crate) is_busy: bool,
    pub(crate) requests: f64,
    pub(crate) flow: Flow,
}

/// What a disk did.
#[derive(Clone, Debug)]
pub(crate) struct DiskWindow {
    pub(crate) id: DiskId,
    pub(crate) storage: StorageId,
    pub(crate) mode: DiskMode,
    pub(crate) rings: Vec<RingWindow>,
}

impl DiskWindow {
    pub(crate) fn busy(&self) -> impl Iterator<Item = &RingWindow> {
        self.rings.iter().filter(|it| it.is_busy)
    }

    /// Progress per second, of all rings.
    pub(crate) fn progress(&self) -> f64 {
        self.rings.iter().map(|it| it.flow.rate).sum()
    }

    /// Iothreads that it uses.
    pub(crate) fn usage(&self) -> f64 {
        self.rings.iter().map(|it| it.flow.usage).sum()
    }

    /// Iothreads that it would use if each ring had one.
    pub(crate) fn usage_alone(&self) -> f64 {
        self.busy().map(|it| it.flow.usage_alone()).sum()
    }
}

/// What all did.
#[derive(Clone, Debug)]
pub(crate) struct Window {
    pub(crate) seconds: f64,
    pub(crate) threads: BTreeMap<IothreadSlot, ThreadWindow>,
    pub(crate) disks: Vec<DiskWindow>,
    pub(crate) idle_cpus: f64,
}

/// What is remembered of a ring from window to window.
#[derive(Clone, Copy, Debug, Default)]
struct RingMemory {
    is_busy: bool,
    turn_ns: f64,
    progress: f64,
    samples: f64,
    open_ns: f64,
    wait_ns: f64,
    wait_seconds: f64,
}

/// What is remembered of all rings.
#[derive(Clone, Debug, Default)]
pub(crate) struct RingMemories(BTreeMap<(DiskId, u16), RingMemory>);

impl RingMemories {
    /// Rings of that disk have other neighbours now: how long they waited says nothing any more.
    pub(crate) fn forget_waits(&mut self, disk: DiskId) {
        for (_, memory) in self.0.range_mut((disk, 0)..=(disk, u16::MAX)) {
            (memory.open_ns, memory.wait_ns, memory.wait_seconds) = (0.0, 0.0, 0.0);
        }
    }
}

/// The increase of a counter; one that shrank belongs to something new.
fn grown(before: u64, after: u64) -> f64 {
    after.checked_sub(before).unwrap_or(after) as f64
}

impl Window {
    pub(crate) fn between(
        memories: &mut RingMemories,
        before: &Snapshot,
        after: &Snapshot,
        seconds: f64,
        fault: Fault,
    ) -> Self {
        let threads = threads_between(before, after, seconds, fault);
        let mut window =
            Self { seconds, threads, disks: Vec::new(), idle_cpus: after.idle_cpus.max(0.0) };
        let mut kept = RingMemories::default();
        for disk in &after.disks {
            let old = before.disks.iter().find(|it| it.id == disk.id);
            let mut rings = Vec::new();
            for (at, ring) in disk.rings.iter().enumerate() {
                // Usually the same place in the list.
                let last = old.and_then(|old| {
                    let guess = old.rings.get(at).filter(|it| it.queue == ring.queue);
                    guess.or_else(|| old.rings.iter().find(|it| it.queue == ring.queue))
                });
                let memory = memories.0.remove(&(disk.id, ring.queue)).unwrap_or_default();
                // The first window of a ring has no beginning.
                let last = last.unwrap_or(ring);
                rings.push((ring, Growth::of(last, ring, seconds), memory));
            }
            window.add_disk(disk, &mut rings, seconds);
            kept.0.extend(rings.iter().map(|(ring, _, memory)| ((disk.id, ring.queue), *memory)));
        }
        *memories = kept;
        window.share_work();
        window
    }

    fn add_disk(
        &mut self,
        disk: &DiskCounters,
        rings: &mut [(&RingCounters, Growth, RingMemory)],
        seconds: f64,
    ) {
        let most = rings.iter().map(|it| it.1.progress).fold(0.0, f64::max);
        for (_, growth, memory) in rings.iter_mut() {
            memory.add(growth, seconds);
            let enough = if memory.is_busy { BUSY_SHARE / 2.0 } else { BUSY_SHARE };
            memory.is_busy = growth.progress > 0.0 && growth.progress >= enough * most;
        }
        let turn_ns: f64 = rings.iter().map(|it| it.2.turn_ns).sum();
        let progress: f64 = rings.iter().map(|it| it.2.progress).sum();
        let typical = turn_ns / progress.max(1e-9);
        let windows = rings.iter().map(|(ring, growth, memory)| {
            let rate = growth.progress / seconds;
            let cost = rate * memory.cost(typical);
            if let Some(thread) = self.threads.get_mut(&ring.iothread) {
                thread.cost += cost;
            }
            let average = |ns: f64| ns / 1e9 / memory.wait_seconds.max(1e-9);
            let wait_for_others = average(memory.wait_ns);
            let open = average(memory.open_ns).max(wait_for_others);
            RingWindow {
                queue: ring.queue,
                slot: ring.iothread,
                is_pinned: ring.is_pinned,
                is_busy: memory.is_busy,
                requests: growth.requests,
                flow: Flow { rate, open, waiting: 0.0, wait_for_others, usage: cost },
            }
        });
        let rings = windows.collect();
        self.disks.push(DiskWindow { id: disk.id, storage: disk.storage, mode: disk.mode, rings });
    }

    /// Gives each ring its share of its iothread's work, and what follows from it.
    fn share_work(&mut self) {
        for disk in &mut self.disks {
            let mut sums: BTreeMap<IothreadSlot, (f64, f64)> = BTreeMap::new();
            for ring in &mut disk.rings {
                let thread = self.threads.get(&ring.slot).copied().unwrap_or_default();
                let share = ring.flow.usage / thread.cost.max(1e-9);
                let flow = &mut ring.flow;
                flow.usage = thread.work * share;
                flow.open = flow.open.max(flow.usage);
                flow.wait_for_others = flow.wait_for_others.min(0.95 * flow.open);
                let sum = sums.entry(ring.slot).or_default();
                (sum.0, sum.1) = (sum.0 + waiting(flow, share), sum.1 + flow.open);
            }
            // Waits of a single ring come from few samples; those that share an iothread wait alike.
            for ring in &mut disk.rings {
                let (waiting, open) = sums[&ring.slot];
                let waiting = ring.flow.open * waiting / open.max(1e-9);
                ring.flow.waiting = waiting.min(0.998 * ring.flow.open - ring.flow.usage).max(0.0);
            }
        }
    }
}

/// How many requests of a ring wait, for others or for each other. Only the first is counted by the gauges.
fn waiting(flow: &Flow, share: f64) -> f64 {
    let waiting: f64 = if share < 0.9 {
        flow.wait_for_others / (1.0 - share)
    } else {
        let seen = flow.usage.min(0.98) * (1.0 - 1.0 / flow.open.max(1.0));
        flow.usage * seen / (1.0 - seen)
    };
    waiting.min(flow.open)
}

fn threads_between(
    before: &Snapshot,
    after: &Snapshot,
    seconds: f64,
    fault: Fault,
) -> BTreeMap<IothreadSlot, ThreadWindow> {
    let window = |thread: &crate::IothreadCounters| {
        let old = before.iothreads.iter().find(|it| it.slot == thread.slot);
        let share = |of: fn(&crate::IothreadCounters) -> u64| {
            grown(old.map_or(0, of), of(thread)) / 1e9 / seconds
        };
        let poll = share(|it| it.poll_ns).min(1.0);
        let mut work = share(|it| it.work_ns).min(1.0);
        if fault == Fault::PollsAreWork {
            work = (work + poll).min(1.0);
        }
        let (cpu, run_delay) = (share(|it| it.cpu_ns), share(|it| it.run_delay_ns));
        (thread.slot, ThreadWindow { work, poll, cpu, run_delay, cost: 0.0 })
    };
    after.iothreads.iter().map(window).collect()
}

/// What a ring's counters grew by.
#[derive(Clone, Copy, Debug)]
struct Growth {
    requests: f64,
    progress: f64,
    turns: f64,
    turn_ns: f64,
    open_ns: f64,
    wait_ns: f64,
}

impl Growth {
    fn of(before: &RingCounters, after: &RingCounters, seconds: f64) -> Self {
        let by = |of: fn(&RingCounters) -> u64| grown(of(before), of(after));
        let requests = by(|it| it.requests);
        let take_wait_ns = by(|it| it.take_wait_ns);
        let mut open_ns = by(|it| it.open_ns);
        if requests == 0.0 {
            // All that is open takes longer than the window.
            open_ns = open_ns.max(after.in_flight as f64 * seconds * 1e9);
        }
        Self {
            requests,
            progress: requests + by(|it| it.bytes) / PROGRESS_BYTES,
            turns: by(|it| it.turns),
            turn_ns: by(|it| it.turn_ns),
            open_ns: open_ns + take_wait_ns,
            wait_ns: take_wait_ns + by(|it| it.answer_wait_ns),
        }
    }
}

impl RingMemory {
    fn add(&mut self, growth: &Growth, seconds: f64) {
        let keep = (-seconds / COST_SECONDS).exp();
        self.turn_ns = self.turn_ns * keep + growth.turn_ns;
        self.progress = self.progress * keep + growth.progress;
        self.samples = self.samples * keep + growth.turns / SAMPLED;
        let keep = (-seconds / WAIT_SECONDS).exp();
        self.open_ns = self.open_ns * keep + growth.open_ns;
        self.wait_ns = self.wait_ns * keep + growth.wait_ns;
        self.wait_seconds = self.wait_seconds * keep + seconds;
    }

    /// What progress costs on this ring, in any unit: as measured, and as typical for the disk while there are few samples.
    fn cost(&self, typical: f64) -> f64 {
        let own = self.turn_ns / self.progress.max(1e-9);
        let cost = (self.samples * own + COST_PRIOR * typical) / (self.samples + COST_PRIOR);
        if cost > 0.0 { cost } else { 1.0 }
    }
}
