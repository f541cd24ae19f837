//! Rings that somebody has left in an in-flight region.
//!
//! Engines are driven by hand, so that a turn comes when the test says so. Whoever is "killed" here is not given a turn
//! any more: what it has stored until then is what a killed process leaves.

use std::sync::Arc;

use block::{Node, SystemClock};
use kernel_io::{FileTable, Notifier, ReactorChoice, WaitMode};
use request_path::{Engine, FrontEndSource, Source, SourceKey, TurnBudget, TurnResult};
use virtio::{InflightGeometry, InflightQueue, InflightRegion, Ring, RingBase, RingSetup};
use virtio_blk::BlkRing;

use crate::guest::{Ask, BLOCK, Guest, RING_SIZE, SLOTS};
use crate::setup::{file_node, on_both, source_of};

const KEY: SourceKey = SourceKey(0);

struct Rig {
    files: Arc<FileTable>,
    node: Arc<dyn Node>,
    guest: Guest,
    inflight: InflightQueue,
    reactors: ReactorChoice,
}

impl Rig {
    fn new(node: Arc<dyn Node>, files: Arc<FileTable>, reactors: ReactorChoice) -> Self {
        let shape = InflightGeometry::check(1, RING_SIZE).unwrap();
        let (region, _fd) = InflightRegion::create(shape, &Arc::default()).unwrap();
        let inflight = InflightQueue { region: Arc::new(region), queue: 0 };
        let mut guest = Guest::new();
        for slot in 0..SLOTS {
            guest.submit(slot, Ask::Read, slot.into());
        }
        Self { files, node, guest, inflight, reactors }
    }

    fn engine(&self) -> Engine {
        let notifier = Arc::new(Notifier::new().unwrap());
        Engine::new(Arc::clone(&self.files), notifier, Arc::new(SystemClock), self.reactors)
            .unwrap()
    }

    fn ring(&self) -> Ring {
        let setup = RingSetup { base: RingBase(0), ..self.guest.setup() };
        Ring::tracked(self.guest.memory(), setup, &self.inflight).unwrap()
    }

    fn source(&self, ring: Ring) -> FrontEndSource<BlkRing> {
        source_of(ring, &self.guest, &self.node)
    }
}

fn arrive(source: &mut FrontEndSource<BlkRing>, engine: &mut Engine) {
    let lanes = engine.open_lanes(source.nodes()).unwrap();
    source.arrive(engine, lanes, KEY);
}

/// Gives turns without an appetite for new requests until nothing is in flight.
fn drain(source: &mut FrontEndSource<BlkRing>, engine: &mut Engine) {
    while source.in_flight() > 0 {
        match source.turn(engine, TurnBudget::CompletionsOnly) {
            TurnResult::More => {}
            TurnResult::Idle | TurnResult::Full => {
                let left = source.in_flight();
                assert!(left == 0 || engine.is_busy(), "{left} requests are left lying");
                wait(engine);
            }
            TurnResult::Broken(fault) => panic!("{fault}"),
        }
    }
}

fn wait(engine: &mut Engine) {
    if engine.is_busy() {
        engine.wait(WaitMode::Block).unwrap();
        engine.dispatch(&mut Vec::new());
    }
}

fn with_rig(test: impl Fn(Rig)) {
    on_both(|reactors| {
        let files = Arc::new(FileTable::default());
        let (node, _image) = file_node(&files, (usize::from(SLOTS) * BLOCK) as u64);
        test(Rig::new(node, files, reactors));
    });
}

/// Who says that a ring is stopped must not leave requests behind that were popped before its time: the front end may
/// go on without the region.
#[test]
fn a_ring_that_stops_at_once_serves_what_was_in_flight_before() {
    with_rig(|mut rig| {
        let mut first = rig.engine();
        let mut killed = rig.source(rig.ring());
        arrive(&mut killed, &mut first);
        assert!(matches!(killed.turn(&mut first, TurnBudget::Alone(5)), TurnResult::More));
        let ring = rig.ring();
        assert_eq!(ring.pending(), 5);
        let mut engine = rig.engine();
        let mut source = rig.source(ring);
        arrive(&mut source, &mut engine);
        assert_eq!(source.in_flight(), 5);
        drain(&mut source, &mut engine);
        assert_eq!(rig.guest.poll().len(), 5);
        assert_eq!(source.front().base().0, 5, "nothing new was popped");
        assert_eq!(rig.ring().pending(), 0);
        drain(&mut killed, &mut first);
    });
}

/// A has left the ring, B has not got it yet, and nobody comes back.
#[test]
fn a_crash_between_two_iothreads_loses_nothing() {
    with_rig(|mut rig| {
        let mut a = rig.engine();
        let mut killed = rig.source(rig.ring());
        arrive(&mut killed, &mut a);
        assert!(matches!(killed.turn(&mut a, TurnBudget::Alone(64)), TurnResult::Idle));
        killed.depart(&mut a);
        // What A finishes now goes to the mailbox, which nobody empties any more.
        while a.is_busy() {
            wait(&mut a);
        }
        let ring = rig.ring();
        let published = rig.guest.poll();
        assert_eq!(ring.pending() + published.len(), usize::from(SLOTS));
        let mut engine = rig.engine();
        let mut source = rig.source(ring);
        arrive(&mut source, &mut engine);
        drain(&mut source, &mut engine);
        let again = rig.guest.poll();
        assert_eq!(again.len() + published.len(), usize::from(SLOTS));
        assert_eq!(rig.guest.in_flight(), 0);
    });
}
