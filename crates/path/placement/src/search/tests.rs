//! A search on windows that are made up.

use super::*;
use crate::{DiskId, DiskMode, Preference, StorageId};

/// So many busy rings of four on one or two iothreads, each with that flow.
fn window(busy: usize, slots: &[u16], flow: Flow) -> DiskWindow {
    let ring = |(queue, slot): (u16, &u16)| RingWindow {
        queue,
        slot: IothreadSlot(*slot),
        is_pinned: false,
        is_busy: usize::from(queue) < busy,
        requests: 10_000.0,
        flow,
    };
    DiskWindow {
        id: DiskId(1),
        storage: StorageId(1),
        mode: DiskMode::Auto,
        rings: (0..).zip(slots).map(ring).collect(),
    }
}

/// A ring on a full iothread, where others use the rest.
const CROWDED_FLOW: Flow =
    Flow { rate: 20_000.0, open: 16.0, waiting: 13.0, wait_for_others: 9.0, usage: 0.25 };

struct Rig {
    search: Search,
    places: Places,
    now: f64,
}

impl Rig {
    fn new(fault: Fault, threads: u16, slots: &[u16]) -> Self {
        let settings = PoolSettings::new(1, 16, None, Preference::Throughput);
        let search = Search::new(settings.expect("it is in range").with_fault(fault));
        let threads = (0..threads).map(IothreadSlot).collect();
        let target = (0..).zip(slots).map(|(queue, it)| (queue, IothreadSlot(*it))).collect();
        Self { search, places: Places { threads, target }, now: 0.0 }
    }

    fn step(&mut self, window: &DiskWindow) {
        self.now += 0.05;
        let obstacles = BTreeMap::new();
        let view = View {
            now: self.now,
            seconds: 0.05,
            window,
            obstacles: &obstacles,
            work_max: 1.0,
            is_scarce: false,
            has_neighbours: false,
            may_move: true,
            may_try: true,
        };
        let mut free: Vec<IothreadSlot> = (8..16).map(IothreadSlot).collect();
        let mut grant = |count: usize| free.drain(..count).collect();
        self.search.step(&view, &mut self.places, &mut grant);
    }

    /// A trial, with what it is about.
    fn comparison(&self, direction: Direction, to: usize) -> Comparison {
        Comparison {
            direction,
            old: self.places.target.clone(),
            new: self.places.target.clone(),
            old_threads: self.places.threads.clone(),
            new_threads: vec![IothreadSlot(0); to],
            busy: 4,
            before: 80_000.0,
            predicted: 0.1,
            need: 0.03,
        }
    }
}

#[test]
fn a_crowded_disk_gets_iothreads_at_once() {
    let mut rig = Rig::new(Fault::None, 1, &[0; 4]);
    let window = window(4, &[0; 4], CROWDED_FLOW);
    rig.step(&window);
    let trial = rig.search.trial.as_ref().expect("it is crowded");
    assert_eq!(trial.stage, Stage::Quick);
    assert!(trial.comparison.new_threads.len() > 2);
}

#[test]
fn a_trial_ends_where_it_began_when_the_load_changes() {
    let ends = |fault| {
        let mut rig = Rig::new(fault, 1, &[0; 4]);
        rig.step(&window(4, &[0; 4], CROWDED_FLOW));
        assert!(rig.places.target.values().any(|it| it.0 != 0));
        rig.step(&window(2, &[0; 4], CROWDED_FLOW));
        rig.places.target.values().all(|it| it.0 == 0)
    };
    assert!(ends(Fault::None));
    assert!(!ends(Fault::TrialAcrossLoads), "the planted fault is found");
}

#[test]
fn rings_are_balanced_by_what_they_would_use_alone() {
    let evens = |fault| {
        let mut rig = Rig::new(fault, 2, &[0, 0, 0, 1]);
        let mut window = window(4, &[0, 0, 0, 1], CROWDED_FLOW);
        // Three share a full iothread, and one fills the other: by use now they are balanced.
        for ring in &mut window.rings {
            ring.flow.usage = if ring.queue < 3 { 1.0 / 3.0 } else { 1.0 };
            ring.flow.rate = if ring.queue < 3 { 27_000.0 } else { 80_000.0 };
            ring.flow.waiting = 13.0;
            ring.flow.wait_for_others = 0.0;
        }
        rig.step(&window);
        rig.places.target.values().filter(|it| it.0 == 1).count() == 2
    };
    assert!(evens(Fault::None));
    assert!(!evens(Fault::BalanceByUseNow), "the planted fault is found");
}

#[test]
fn the_same_rings_are_not_moved_to_and_fro() {
    let mut rig = Rig::new(Fault::None, 2, &[0, 0, 0, 1]);
    let mut changes = 0;
    for _ in 0..400 {
        let slots: Vec<u16> = rig.places.target.values().map(|it| it.0).collect();
        let mut window = window(4, &slots, CROWDED_FLOW);
        // Whatever lies on iothread 0 looks three times as large.
        for ring in &mut window.rings {
            ring.flow.usage = if ring.slot.0 == 0 { 0.3 } else { 0.1 };
            ring.flow.wait_for_others = 0.0;
            (ring.flow.waiting, ring.flow.open) = (0.0, 1.0);
        }
        let before = rig.places.target.clone();
        rig.search.trial = None;
        rig.step(&window);
        changes += usize::from(rig.search.trial.is_none() && before != rig.places.target);
    }
    assert!(changes <= 8, "{changes} changes in 20 s");
}

#[test]
fn what_was_refused_is_remembered_by_the_rate_of_what_stays() {
    let refuses = |fault| {
        let mut rig = Rig::new(fault, 1, &[0; 4]);
        let comparison = rig.comparison(Direction::Up, 2);
        let window = window(4, &[0; 4], CROWDED_FLOW);
        let obstacles = BTreeMap::new();
        let view = View {
            now: 1.0,
            seconds: 0.05,
            window: &window,
            obstacles: &obstacles,
            work_max: 1.0,
            is_scarce: false,
            has_neighbours: false,
            may_move: true,
            may_try: true,
        };
        rig.search.refused(&view, &mut rig.places, Stage::Proper, comparison, -0.5, 80_000.0);
        let load = Load { busy: 4, flow: CROWDED_FLOW, sizes: BTreeMap::new(), progress: 80_000.0 };
        rig.search.refuses(Direction::Up, 1, 2, &load, &view)
    };
    assert!(refuses(Fault::None));
    assert!(!refuses(Fault::BackOffByNewRate), "the planted fault is found");
}

#[test]
fn steps_down_share_what_they_may_lose() {
    let allowed = |fault| {
        let mut rig = Rig::new(fault, 4, &[0, 1, 2, 3]);
        rig.search.given = 0.01;
        rig.search.need(4, 3, false)
    };
    assert!(allowed(Fault::None) > -0.006);
    assert!(allowed(Fault::LossPerStep) < -0.014, "the planted fault is found");
}

#[test]
fn a_step_up_brings_more_if_cpu_is_preferred() {
    let need = |prefer| {
        let settings = PoolSettings::new(1, 16, None, prefer).expect("it is in range");
        Search::new(settings).need(1, 4, false)
    };
    assert!((need(Preference::Throughput) - 0.03).abs() < 1e-9);
    assert!((need(Preference::Balanced).exp_m1() - 0.21).abs() < 1e-9);
    assert!((need(Preference::Cpu).exp_m1() - 0.5625).abs() < 1e-9);
}
