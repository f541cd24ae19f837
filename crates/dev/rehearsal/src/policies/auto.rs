//! The policy of the daemon, with counters of the simulated world.

use std::time::Duration;

use placement::{
    DiskCounters, DiskId, DiskMode, IothreadCounters, IothreadSlot, NextLook, Note, Order, Placer,
    PoolSettings, RingCounters, Snapshot, StorageId,
};

use super::Policy;
use crate::world::{WINDOW, World};

/// Work of all iothreads after which one of them rings the bell, in nanoseconds.
const BELL_NS: f64 = 1e6;

/// What the daemon's placer thread does, without a daemon.
#[derive(Debug)]
pub struct Auto {
    placer: Placer,
    changes: Vec<(f64, usize)>,
    /// All that it said.
    pub notes: Vec<(f64, Note)>,
    parked_at_work: Option<f64>,
    is_trying: bool,
}

impl Auto {
    /// For a pool with these settings.
    pub fn new(settings: PoolSettings) -> Self {
        let placer = Placer::new(settings);
        Self {
            placer,
            changes: Vec::new(),
            notes: Vec::new(),
            parked_at_work: None,
            is_trying: false,
        }
    }

    /// How many iothreads a disk has, without those that are tried.
    pub fn iothreads_of(&self, disk: usize) -> Option<usize> {
        self.placer.iothreads_of(DiskId(disk as u64))
    }

    fn carry_out(&mut self, world: &mut World, orders: Vec<Order>) {
        for order in orders {
            match order {
                Order::Start(slot) => {
                    assert!(world.running.insert(slot.0), "{slot:?} runs already");
                }
                Order::Move(moves) => {
                    for it in moves {
                        assert!(world.running.contains(&it.to.0), "{:?} does not run", it.to);
                        let disk = usize::try_from(it.disk.0).expect("it is an index");
                        world.move_ring(disk, it.queue, it.to.0);
                    }
                }
                Order::End(slot) => {
                    assert!(world.running.remove(&slot.0), "{slot:?} does not run");
                    world.threads.remove(&slot.0);
                    let used = world.disks.iter().any(|it| it.place.contains(&slot.0));
                    assert!(!used, "{slot:?} ends with rings on it");
                }
            }
        }
    }
}

impl Policy for Auto {
    fn look(&mut self, world: &mut World) -> f64 {
        world.running.insert(0);
        if let Some(before) = self.parked_at_work {
            if total_work(world) - before < BELL_NS {
                return WINDOW;
            }
            self.parked_at_work = None;
        }
        let now = Duration::from_secs_f64(world.now);
        let decision = self.placer.decide(snapshot(world), now);
        for note in decision.notes {
            if let Note::Kept { disk, .. } = note {
                self.changes.push((world.now, usize::try_from(disk.0).expect("it is an index")));
            }
            self.notes.push((world.now, note));
        }
        self.carry_out(world, decision.orders);
        self.is_trying = (0..world.disks.len()).any(|it| self.placer.is_trying(DiskId(it as u64)));
        match decision.next {
            NextLook::After(time) => time.as_secs_f64(),
            NextLook::Parked => {
                self.parked_at_work = Some(total_work(world));
                WINDOW
            }
        }
    }

    fn changes(&self) -> &[(f64, usize)] {
        &self.changes
    }

    fn is_trying(&self) -> bool {
        self.is_trying
    }

    fn is_parked(&self) -> bool {
        self.parked_at_work.is_some()
    }
}

fn total_work(world: &World) -> f64 {
    world.threads.values().map(|it| it.work_ns).sum()
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "counters, far below 2^63"
)]
fn counter(value: f64) -> u64 {
    value as u64
}

fn snapshot(world: &World) -> Snapshot {
    let iothread = |slot: &u16| {
        let count = world.threads.get(slot).copied().unwrap_or_default();
        IothreadCounters {
            slot: IothreadSlot(*slot),
            work_ns: counter(count.work_ns),
            poll_ns: counter(count.poll_ns),
            cpu_ns: counter(count.work_ns + count.poll_ns),
            run_delay_ns: counter(count.run_delay_ns),
        }
    };
    let disks = world.disks.iter().enumerate().map(|(at, disk)| {
        let ring =
            |(queue, (count, place)): (u16, (&crate::world::RingCount, &u16))| RingCounters {
                queue,
                iothread: IothreadSlot(*place),
                is_pinned: false,
                requests: counter(count.requests),
                bytes: counter(count.bytes),
                in_flight: counter(count.in_flight),
                turns: counter(count.turns),
                turn_ns: counter(count.turn_ns),
                open_ns: counter(count.open_ns),
                take_wait_ns: counter(count.take_wait_ns),
                answer_wait_ns: counter(count.answer_wait_ns),
            };
        DiskCounters {
            id: DiskId(at as u64),
            storage: StorageId(disk.plan.storage),
            mode: DiskMode::Auto,
            rings: (0..).zip(disk.rings.iter().zip(&disk.place)).map(ring).collect(),
        }
    });
    Snapshot {
        iothreads: world.running.iter().map(iothread).collect(),
        disks: disks.collect(),
        idle_cpus: world.idle_cpus,
    }
}
