//! Rings whose guest is found to break the rules while they stop.

use std::cell::Cell;
use std::error::Error;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use block::{Outcome, SourceRequestSlot};
use iothread::{PlacedFrontEnd, SourceObserver};
use kernel_io::FileTable;
use request_path::{
    FrontEnd, FrontEndContext, Interest, NewRequest, SleepDecision, StreamTransfer,
};
use virtio::RingError;
use virtio_blk::{BlkReplyTarget, BlkRing, BlkRingFault};

use crate::guest::{Ask, BLOCK, Guest};
use crate::setup::{file_node, iothreads, name, on_both, ring, served};

/// A ring that finds that its guest has broken the rules when it is already stopping or leaving: it
/// still takes what was in flight before it came.
#[derive(Debug)]
struct BreaksAtTheEnd {
    ring: BlkRing,
    /// Nobody asks for what was in flight before who does not stop it.
    is_ending: Cell<bool>,
}

impl FrontEnd for BreaksAtTheEnd {
    type Reply = BlkReplyTarget;
    type Fault = BlkRingFault;

    fn take(&mut self) -> Result<Option<NewRequest<'_, BlkReplyTarget>>, BlkRingFault> {
        if self.is_ending.get() { Err(RingError::MemoryLost.into()) } else { self.ring.take() }
    }

    fn inherited(&self) -> usize {
        self.is_ending.set(true);
        1
    }

    fn kick(&self) -> BorrowedFd<'_> {
        self.ring.kick()
    }

    fn interest(&self) -> Interest {
        self.ring.interest()
    }

    fn slots(&self) -> u16 {
        self.ring.slots()
    }

    fn begin_batch(&mut self) {
        self.ring.begin_batch();
    }

    fn answer(&mut self, slot: SourceRequestSlot, reply: BlkReplyTarget, outcome: Outcome) {
        self.ring.answer(slot, reply, outcome);
    }

    fn publish(&mut self, port: &mut FrontEndContext<'_>) {
        self.ring.publish(port);
    }

    fn unpublished(&self) -> usize {
        self.ring.unpublished()
    }

    fn transfer_over(&mut self, transfer: StreamTransfer) {
        self.ring.transfer_over(transfer);
    }

    fn check(&self) -> Result<(), BlkRingFault> {
        self.ring.check()
    }

    fn report_fault(&self, port: &mut FrontEndContext<'_>) {
        self.ring.report_fault(port);
    }

    fn has_new(&self) -> bool {
        self.ring.has_new()
    }

    fn waiting(&self) -> u32 {
        self.ring.waiting()
    }

    fn rest(&mut self) -> SleepDecision {
        self.ring.rest()
    }

    fn stays(&self) -> Option<&'static str> {
        self.ring.stays()
    }

    fn arrive(&mut self, port: &mut FrontEndContext<'_>) {
        self.ring.arrive(port);
    }

    fn leave(&mut self, port: &mut FrontEndContext<'_>) {
        self.ring.leave(port);
    }
}

/// Hears of the fault, as a session does.
#[derive(Debug, Default)]
struct Hears(AtomicU32);

impl SourceObserver for Hears {
    fn broken(&self, _: &(dyn Error + 'static)) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn kicked_while_empty(&self) {}
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
            let front = BreaksAtTheEnd { ring: ring(&guest, &node), is_ending: Cell::new(false) };
            let observer = Arc::clone(&hears) as Arc<dyn SourceObserver>;
            let placed = PlacedFrontEnd::on(&iothread, name(0), served(front, &node), observer);
            let slot = guest.free_slot().unwrap();
            guest.submit(slot, Ask::Read, 0);
            assert_eq!(placed.unwrap().stop().in_flight(), 0);
        }
        assert_eq!(hears.0.load(Ordering::Relaxed), 50, "each is found broken while it stops");
    });
}
