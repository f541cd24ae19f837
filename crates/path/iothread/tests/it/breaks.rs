//! Rings whose guest is found to break the rules while they stop.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use block::Node;
use iothread::{Placed, Watcher};
use kernel_io::FileTable;
use request_path::{
    Appetite, Ending, Engine, Fault, LaneIndex, Mailbox, Rest, RingLog, Source, SourceKey, Turn,
};
use virtio::RingError;

use crate::guest::{Ask, BLOCK, Guest};
use crate::setup::{file_node, iothreads, on_both, source};

/// A ring that finds that its guest has broken the rules when it is already stopping or leaving: it
/// still takes what was in flight before it came.
#[derive(Debug)]
struct BreaksAtTheEnd(Box<dyn Source>);

impl Source for BreaksAtTheEnd {
    fn turn(&mut self, engine: &mut Engine, appetite: Appetite<'_>) -> Turn {
        let is_ending = matches!(appetite, Appetite::DrainOnly);
        match self.0.turn(engine, appetite) {
            Turn::Idle if is_ending => Turn::Broken(RingError::MemoryLost.into()),
            other @ (Turn::Idle | Turn::More | Turn::Full | Turn::Broken(_)) => other,
        }
    }

    fn kick(&self) -> BorrowedFd<'_> {
        self.0.kick()
    }

    fn node(&self) -> &Arc<dyn Node> {
        self.0.node()
    }

    fn mailbox(&self) -> &Arc<Mailbox> {
        self.0.mailbox()
    }

    fn arrive(&mut self, engine: &mut Engine, lane: LaneIndex, key: SourceKey) {
        self.0.arrive(engine, lane, key);
    }

    fn has_new(&self) -> bool {
        self.0.has_new()
    }

    fn rest(&mut self) -> Rest {
        self.0.rest()
    }

    fn depart(&mut self, engine: &mut Engine) {
        self.0.depart(engine);
    }

    fn in_flight(&self) -> usize {
        self.0.in_flight()
    }

    fn set_call(&mut self, engine: &mut Engine, call: Option<OwnedFd>) {
        self.0.set_call(engine, call);
    }

    fn set_log(&mut self, engine: &mut Engine, log: Option<RingLog>) {
        self.0.set_log(engine, log);
    }

    fn signal_error(&self, engine: &mut Engine) {
        self.0.signal_error(engine);
    }

    fn ending(&self) -> Ending {
        self.0.ending()
    }
}

/// Hears of the fault, as a session does.
#[derive(Debug, Default)]
struct Hears(AtomicU32);

impl Watcher for Hears {
    fn broken(&self, _: &Fault) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn kicked_in_vain(&self) {}
}

#[test]
fn a_ring_that_breaks_while_it_stops_is_given_back_all_the_same() {
    on_both(|reactors| {
        let files = Arc::new(FileTable::default());
        let [iothread] = iothreads::<1>(&files, reactors);
        let (node, _image) = file_node(&files, 64 * BLOCK as u64);
        let hears = Arc::new(Hears::default());
        for _ in 0..50 {
            let mut guest = Guest::new();
            let ring = Box::new(BreaksAtTheEnd(source(&guest, &node)));
            let placed = Placed::on(&iothread, ring, Arc::clone(&hears) as Arc<dyn Watcher>);
            let slot = guest.free_slot().unwrap();
            guest.submit(slot, Ask::Read, 0);
            assert_eq!(placed.unwrap().stop().in_flight(), 0);
        }
        assert!(hears.0.load(Ordering::Relaxed) > 0, "it was never broken while it stopped");
    });
}
