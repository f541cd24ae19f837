//! The placer on a disk whose four rings each fill an iothread, or share one.

use super::*;
use crate::{
    DiskCounters, DiskMode, IothreadCounters, Preference, RingCounters, RingMove, StorageId,
};

const QUEUES: u16 = 4;
/// Requests per second of an iothread.
const RATE: f64 = 80_000.0;
const DEPTH: f64 = 16.0;

struct Rig {
    placer: Placer,
    snapshot: Snapshot,
    now: Duration,
    /// A queue that cannot be moved.
    stuck: Option<u16>,
    is_busy: bool,
    moves: Vec<RingMove>,
    ended: usize,
    hints: usize,
}

impl Rig {
    fn new(budget_cpus: Option<f64>) -> Self {
        let settings = PoolSettings::new(1, 8, budget_cpus, Preference::Throughput);
        let ring = |queue| RingCounters {
            queue,
            iothread: IothreadSlot(0),
            is_pinned: false,
            requests: 0,
            bytes: 0,
            in_flight: 16,
            turns: 0,
            turn_ns: 0,
            open_ns: 0,
            take_wait_ns: 0,
            answer_wait_ns: 0,
        };
        let disk = DiskCounters {
            id: DiskId(7),
            storage: StorageId(7),
            mode: DiskMode::Auto,
            rings: (0..QUEUES).map(ring).collect(),
        };
        let snapshot = Snapshot {
            iothreads: vec![iothread(IothreadSlot(0))],
            disks: vec![disk],
            idle_cpus: 8.0,
        };
        Self {
            placer: Placer::new(settings.expect("it is in range")),
            snapshot,
            now: Duration::ZERO,
            stuck: None,
            is_busy: true,
            moves: Vec::new(),
            ended: 0,
            hints: 0,
        }
    }

    /// Time passes with the rings where they are.
    fn pass(&mut self, time: Duration) {
        self.now += time;
        let Some(disk) = self.snapshot.disks.first_mut().filter(|_| self.is_busy) else { return };
        let places: Vec<IothreadSlot> = disk.rings.iter().map(|it| it.iothread).collect();
        let ns = time.as_secs_f64() * 1e9;
        for ring in &mut disk.rings {
            let share = 1.0 / places.iter().filter(|it| **it == ring.iothread).count() as f64;
            let whole = |value: f64| u64::try_from(Duration::from_secs_f64(value / 1e9).as_nanos());
            let whole = |value: f64| whole(value).expect("it is small");
            ring.requests += whole(RATE * share * time.as_secs_f64());
            ring.turns += whole(RATE * share * time.as_secs_f64() / 8.0);
            ring.turn_ns += whole(ns * share);
            ring.open_ns += whole(ns * DEPTH * (1.0 - 0.3 * (1.0 - share)));
            ring.take_wait_ns += whole(ns * DEPTH * 0.3 * (1.0 - share));
            ring.answer_wait_ns += whole(ns * DEPTH * 0.3 * (1.0 - share));
        }
        for thread in &mut self.snapshot.iothreads {
            if places.contains(&thread.slot) {
                let passed = u64::try_from(time.as_nanos()).expect("it is small");
                thread.work_ns += passed;
                thread.cpu_ns += passed;
            }
        }
    }

    fn decide(&mut self) -> NextLook {
        let decision = self.placer.decide(self.snapshot.clone(), self.now);
        let is_hint = |it: &&Note| matches!(it, Note::NoCpuFree { .. });
        self.hints += decision.notes.iter().filter(is_hint).count();
        for order in decision.orders {
            match order {
                Order::Start(slot) => self.snapshot.iothreads.push(iothread(slot)),
                Order::End(slot) => {
                    self.ended += 1;
                    self.snapshot.iothreads.retain(|it| it.slot != slot);
                }
                Order::Move(moves) => {
                    for it in moves {
                        self.moves.push(it);
                        let mut rings = self.snapshot.disks.iter_mut().flat_map(|it| &mut it.rings);
                        let ring = rings.find(|ring| ring.queue == it.queue).expect("it exists");
                        if self.stuck != Some(it.queue) {
                            ring.iothread = it.to;
                        }
                    }
                }
            }
        }
        decision.next
    }

    fn run(&mut self, seconds: u64) -> NextLook {
        let until = self.now + Duration::from_secs(seconds);
        let mut next = self.decide();
        while self.now < until {
            match next {
                NextLook::After(time) => self.pass(time),
                NextLook::Parked => self.pass(Duration::from_millis(500)),
            }
            next = self.decide();
        }
        next
    }

    fn places(&self) -> Vec<u16> {
        self.snapshot.disks[0].rings.iter().map(|it| it.iothread.0).collect()
    }

    fn iothreads(&self) -> usize {
        let mut places = self.places();
        places.sort_unstable();
        places.dedup();
        places.len()
    }
}

fn iothread(slot: IothreadSlot) -> IothreadCounters {
    IothreadCounters { slot, work_ns: 0, poll_ns: 0, cpu_ns: 0, run_delay_ns: 0 }
}

#[test]
fn four_rings_that_each_fill_an_iothread_get_four() {
    let mut rig = Rig::new(None);
    rig.run(1);
    assert_eq!(rig.iothreads(), 4, "{:?}", rig.places());
    assert_eq!(rig.placer.iothreads_of(DiskId(7)), Some(4));
    rig.moves.clear();
    rig.run(60);
    assert_eq!(rig.iothreads(), 4);
    assert!(rig.moves.len() < 100, "{} moves in a minute", rig.moves.len());
}

#[test]
fn a_pinned_ring_is_never_moved_and_others_make_room_for_it() {
    let mut rig = Rig::new(None);
    rig.snapshot.disks[0].rings[0].is_pinned = true;
    rig.run(20);
    assert!(rig.moves.iter().all(|it| it.queue != 0));
    assert_eq!(rig.iothreads(), 4, "{:?}", rig.places());
}

#[test]
fn a_frozen_disk_goes_back_to_before_the_trial_and_stays() {
    let mut rig = Rig::new(None);
    while !rig.placer.is_trying(DiskId(7)) {
        rig.decide();
        rig.pass(Duration::from_millis(50));
    }
    rig.snapshot.disks[0].mode = DiskMode::Frozen;
    rig.run(1);
    assert_eq!(rig.places(), [0; 4]);
    rig.moves.clear();
    rig.run(10);
    assert!(rig.moves.is_empty());
}

#[test]
fn a_suspended_disk_is_not_touched_and_its_trial_goes_on_afterwards() {
    let mut rig = Rig::new(None);
    while !rig.placer.is_trying(DiskId(7)) {
        rig.decide();
        rig.pass(Duration::from_millis(50));
    }
    rig.snapshot.disks[0].mode = DiskMode::Suspended;
    rig.moves.clear();
    rig.run(5);
    assert!(rig.moves.is_empty() && rig.placer.is_trying(DiskId(7)));
    rig.snapshot.disks[0].mode = DiskMode::Auto;
    rig.run(1);
    assert_eq!(rig.placer.iothreads_of(DiskId(7)), Some(4));
}

#[test]
fn a_budget_is_not_exceeded() {
    let mut rig = Rig::new(Some(2.5));
    rig.run(20);
    assert_eq!(rig.iothreads(), 2, "{:?}", rig.places());
}

#[test]
fn no_cpu_that_is_free_is_no_reason_to_jump_and_said_once() {
    let mut rig = Rig::new(None);
    rig.snapshot.idle_cpus = 0.0;
    for _ in 0..10 {
        rig.decide();
        rig.pass(Duration::from_millis(50));
    }
    assert!(rig.placer.is_trying(DiskId(7)), "a proper trial, not a quick step");
    let (iothreads, predicted) = rig.placer.trial_of(DiskId(7)).expect("a trial");
    assert!(iothreads > 1 && predicted > 0.0, "{iothreads}, {predicted}");
    assert_eq!(rig.placer.trial_of(DiskId(8)), None);
    assert_eq!(rig.placer.iothreads_of(DiskId(7)), Some(1));
    assert_eq!(rig.hints, 1);
}

#[test]
fn a_ring_that_cannot_be_moved_is_let_be() {
    let mut rig = Rig::new(None);
    rig.stuck = Some(2);
    rig.run(30);
    let tries = rig.moves.iter().filter(|it| it.queue == 2).count();
    assert!((1..=6).contains(&tries), "{tries} tries");
    assert!(rig.iothreads() >= 3, "{:?}", rig.places());
}

#[test]
fn without_work_there_is_no_timer_and_unused_iothreads_end() {
    let mut rig = Rig::new(None);
    rig.run(2);
    rig.is_busy = false;
    assert_eq!(rig.run(5), NextLook::Parked);
    rig.snapshot.disks.clear();
    rig.run(70);
    assert_eq!((rig.snapshot.iothreads.len(), rig.ended), (1, 3));
}
