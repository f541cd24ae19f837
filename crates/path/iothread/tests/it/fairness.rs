//! How long a quiet ring waits beside saturated ones: counted in their requests, not in time.
//!
//! All guests are played by the iothread itself, at the moments that are worst: the quiet ring's
//! request comes right after the loop has looked at it in vain.

use std::cell::RefCell;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use block::{BatchPieces, Lane, Mapping, Node, Outcome, SourceRequestSlot};
use disk::ReadContent;
use iothread::{Iothread, PlacedFrontEnd};
use kernel_io::FileTable;
use request_path::{
    FrontEnd, FrontEndContext, Interest, NewRequest, SleepDecision, StreamTransfer,
};
use virtio_blk::BlkRing;

use crate::guest::{Ask, BULKS, Guest};
use crate::lanes::{null_disk, with_lanes};
use crate::setup::{iothreads, on_both, place_source, ring, served};

/// What docs/limits.md promises: so many requests of each other ring at most.
const STEP: u64 = 8;
const ROUNDS: usize = 3000;

/// Counts the requests that have begun. Relaxed: one thread counts.
#[derive(Debug)]
struct CountingLane {
    null: Box<dyn Lane>,
    begun: Arc<AtomicU64>,
}

impl Lane for CountingLane {
    fn map(&mut self, batch: &mut [Mapping], pieces: &mut BatchPieces) {
        self.begun.fetch_add(batch.len() as u64, Ordering::Relaxed);
        self.null.map(batch, pieces);
    }

    block::pass_on_to!(null);
}

fn counting_node() -> (Arc<dyn Node>, Arc<AtomicU64>) {
    let begun = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&begun);
    let node = with_lanes(null_disk(1 << 20, ReadContent::Untouched), move |null, _| {
        Box::new(CountingLane { null, begun: Arc::clone(&counter) })
    });
    (node, begun)
}

/// A guest on the iothread of its ring.
pub(crate) trait Player: std::fmt::Debug + Send {
    fn before_batch(&mut self) {}

    /// Whether it has made requests available.
    fn after_turn(&mut self) -> bool;

    fn looked_at_in_vain(&mut self) {}

    /// Its ring is not looked at any more, until it kicks.
    fn rests(&mut self) {}
}

/// Always has as much in flight as its ring can hold.
#[derive(Debug)]
struct Saturating(Guest);

impl Player for Saturating {
    fn after_turn(&mut self) -> bool {
        let done = self.0.poll();
        done.iter().for_each(|&slot| self.0.submit(slot, Ask::Read, 0));
        !done.is_empty()
    }
}

/// Has one request in flight, which comes right after one of the next looks.
#[derive(Debug)]
struct Quiet {
    guest: Guest,
    others: Vec<Meter>,
    /// What the others had had when its request came.
    asked_at: Option<Vec<u64>>,
    answered: usize,
    looks_left: usize,
    /// For each request, how much each other ring got while it waited.
    waits: mpsc::Sender<Vec<u64>>,
}

/// What a ring has had so far.
#[derive(Debug)]
enum Meter {
    /// The requests that were begun.
    Begun(Arc<AtomicU64>),
    /// The bytes of its guest's memory that were touched, and given up since.
    Touched(OwnedFd, Arc<AtomicU64>),
}

impl Meter {
    fn read(&self) -> u64 {
        match self {
            Self::Begun(begun) => begun.load(Ordering::Relaxed),
            Self::Touched(memory, given_up) => {
                let blocks = rustix::fs::fstat(memory).unwrap().st_blocks.cast_unsigned();
                blocks * 512 + given_up.load(Ordering::Relaxed)
            }
        }
    }
}

impl Quiet {
    fn new(guest: Guest, others: Vec<Meter>, waits: mpsc::Sender<Vec<u64>>) -> Self {
        Self { guest, others, asked_at: None, answered: 0, looks_left: 0, waits }
    }

    fn had(&self) -> Vec<u64> {
        self.others.iter().map(Meter::read).collect()
    }
}

impl Player for Quiet {
    fn before_batch(&mut self) {
        if let Some(then) = self.asked_at.take() {
            let waited = self.had().iter().zip(then).map(|(now, then)| now - then).collect();
            // The test ends when it has heard enough.
            let _heard = self.waits.send(waited);
        }
    }

    fn after_turn(&mut self) -> bool {
        self.answered += self.guest.poll().len();
        self.looks_left = self.answered % 5;
        false
    }

    fn looked_at_in_vain(&mut self) {
        if self.guest.in_flight() > 0 {
            return;
        }
        if self.looks_left > 0 {
            self.looks_left -= 1;
            return;
        }
        self.asked_at = Some(self.had());
        self.guest.submit(0, Ask::Read, 0);
    }

    /// A busy host kept the thread from looking for so long that it takes the ring for idle. This is not the
    /// wait that the test is about, so it is not told.
    fn rests(&mut self) {
        if self.guest.in_flight() == 0 {
            self.guest.submit(0, Ask::Read, 0);
        }
    }
}

/// A ring and its guest.
#[derive(Debug)]
pub(crate) struct Played<P> {
    ring: BlkRing,
    player: RefCell<P>,
}

impl<P: Player + 'static> FrontEnd for Played<P> {
    type Reply = <BlkRing as FrontEnd>::Reply;
    type Fault = <BlkRing as FrontEnd>::Fault;

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
        self.player.get_mut().before_batch();
        self.ring.begin_batch();
    }

    fn take(&mut self) -> Result<Option<NewRequest<'_, Self::Reply>>, Self::Fault> {
        self.ring.take()
    }

    fn answer(&mut self, slot: SourceRequestSlot, reply: Self::Reply, outcome: Outcome) {
        self.ring.answer(slot, reply, outcome);
    }

    fn publish(&mut self, port: &mut FrontEndContext<'_>) {
        self.ring.publish(port);
        if self.player.get_mut().after_turn() {
            port.call();
        }
    }

    fn unpublished(&self) -> usize {
        self.ring.unpublished()
    }

    fn transfer_over(&mut self, transfer: StreamTransfer) {
        self.ring.transfer_over(transfer);
    }

    fn check(&self) -> Result<(), Self::Fault> {
        self.ring.check()
    }

    fn report_fault(&self, port: &mut FrontEndContext<'_>) {
        self.ring.report_fault(port);
    }

    fn has_new(&self) -> bool {
        let found = self.ring.has_new();
        if !found {
            self.player.borrow_mut().looked_at_in_vain();
        }
        found
    }

    fn waiting(&self) -> u32 {
        self.ring.waiting()
    }

    fn rest(&mut self) -> SleepDecision {
        let rest = self.ring.rest();
        if rest == SleepDecision::MaySleep {
            self.player.get_mut().rests();
        }
        rest
    }

    fn inherited(&self) -> usize {
        self.ring.inherited()
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

/// Places a ring with its guest.
pub(crate) fn play<P: Player + 'static>(
    ring: BlkRing,
    player: P,
    node: &Arc<dyn Node>,
    on: &Arc<Iothread>,
) -> PlacedFrontEnd<Played<P>> {
    let player = RefCell::new(player);
    place_source(served(Played { ring, player }, node), on)
}

/// So many rings that are always full, on one disk that stores nothing.
pub(crate) fn saturated(count: usize, on: &Arc<Iothread>) -> Vec<PlacedFrontEnd<impl FrontEnd>> {
    let node = null_disk(1 << 20, ReadContent::Untouched);
    let full = |_| {
        let mut guest = Guest::new();
        let ring = ring(&guest, &node);
        while let Some(slot) = guest.free_slot() {
            guest.submit(slot, Ask::Read, 0);
        }
        play(ring, Saturating(guest), &node, on)
    };
    (0..count).map(full).collect()
}

/// What each request of a quiet ring waits for beside so many saturated ones.
fn waits(reactors: kernel_io::ReactorChoice, saturated: usize) -> Vec<Vec<u64>> {
    let [iothread] = iothreads::<1>(&Arc::new(FileTable::default()), reactors);
    let mut placed = Vec::new();
    let mut counters = Vec::new();
    for _ in 0..saturated {
        let (node, begun) = counting_node();
        counters.push(Meter::Begun(begun));
        let mut guest = Guest::new();
        let ring = ring(&guest, &node);
        while let Some(slot) = guest.free_slot() {
            guest.submit(slot, Ask::Read, 0);
        }
        placed.push(play(ring, Saturating(guest), &node, &iothread));
    }
    let (node, _) = counting_node();
    let (sender, receiver) = mpsc::channel();
    let mut guest = Guest::new();
    let ring = ring(&guest, &node);
    guest.submit(0, Ask::Read, 0);
    let quiet = play(ring, Quiet::new(guest, counters, sender), &node, &iothread);
    let next = |round| {
        let waited = receiver.recv_timeout(Duration::from_secs(60));
        waited.unwrap_or_else(|_| panic!("request {round} of the quiet ring is not served"))
    };
    let waits = (0..ROUNDS).map(next).collect();
    for placed in placed {
        assert_eq!(placed.stop().counters().errors, 0);
    }
    assert_eq!(quiet.stop().counters().errors, 0);
    waits
}

#[test]
fn a_quiet_ring_waits_for_one_step_of_each_saturated_ring() {
    on_both(|reactors| {
        for saturated in [1, 3] {
            let waits = waits(reactors, saturated);
            let longest = waits.iter().map(|wait| wait.iter().sum::<u64>()).max().unwrap();
            // With less, the test would not show what it is about.
            let bound = STEP * saturated as u64;
            assert!((STEP..=bound).contains(&longest), "{saturated}: {longest} requests");
        }
    });
}

#[test]
fn saturated_rings_get_equal_shares_while_a_quiet_one_cuts_their_turns_short() {
    on_both(|reactors| {
        let waits = waits(reactors, 3);
        let shares: Vec<u64> =
            (0..3).map(|ring| waits.iter().map(|wait| wait[ring]).sum()).collect();
        let (least, most) = (shares.iter().min().unwrap(), shares.iter().max().unwrap());
        assert!(*least * 10 >= *most * 9, "{shares:?}");
    });
}

/// A guest with many busy queues takes nothing from the guest of another disk.
#[test]
fn disks_get_equal_shares_however_many_busy_rings_each_has() {
    on_both(|reactors| {
        let [iothread] = iothreads::<1>(&Arc::new(FileTable::default()), reactors);
        let (many, one) = (saturated(8, &iothread), saturated(1, &iothread));
        let all = || many.iter().chain(&one);
        let reads = || all().map(|ring| ring.gauges().reads.get()).collect::<Vec<_>>();
        // Until each ring has had some thousand.
        let start = reads();
        let had = || reads().iter().zip(&start).map(|(now, then)| now - then).collect::<Vec<_>>();
        while had().iter().min().unwrap() < &5000 {
            std::thread::yield_now();
        }
        let had = had();
        let (of_many, of_one) = (had[..8].iter().sum::<u64>(), had[8]);
        assert!(of_one * 10 >= of_many * 8 && of_many * 10 >= of_one * 8, "{had:?}");
        let (least, most) = (had[..8].iter().min().unwrap(), had[..8].iter().max().unwrap());
        assert!(*least * 10 >= *most * 9, "{had:?}");
        for placed in many.into_iter().chain(one) {
            assert_eq!(placed.stop().counters().errors, 0);
        }
    });
}

/// Reads so many zeroes with each request, always the first time into the memory that it has.
#[derive(Debug)]
struct Zeroed {
    guest: Guest,
    given_up: Arc<AtomicU64>,
}

const ZEROES: usize = 16 << 20;

impl Player for Zeroed {
    fn after_turn(&mut self) -> bool {
        let done = self.guest.poll();
        for &slot in &done {
            assert_eq!(self.guest.status(slot), 0);
            self.guest.give_up_bulk(slot);
            self.given_up.fetch_add(ZEROES as u64, Ordering::Relaxed);
            self.guest.submit(slot, Ask::BulkRead, 0);
        }
        !done.is_empty()
    }
}

/// Zeroes take the iothread itself: as long as a request of a quiet ring waits, few bytes are filled of others.
#[test]
fn a_quiet_ring_does_not_wait_for_a_large_read_of_zeroes() {
    on_both(|reactors| {
        let [iothread] = iothreads::<1>(&Arc::new(FileTable::default()), reactors);
        let null = |content| null_disk(1 << 30, content);
        let mut greedy = Guest::with_bulk(ZEROES);
        let zeroes = null(ReadContent::Zeroes);
        let ring_of_zeroes = ring(&greedy, &zeroes);
        (0..BULKS).for_each(|slot| greedy.submit(slot, Ask::BulkRead, 0));
        let given_up = Arc::new(AtomicU64::new(0));
        let meter = Meter::Touched(greedy.memory_file(), Arc::clone(&given_up));
        let player = Zeroed { guest: greedy, given_up };
        let greedy = play(ring_of_zeroes, player, &zeroes, &iothread);
        let (sender, receiver) = mpsc::channel();
        let mut guest = Guest::new();
        let node = null(ReadContent::Untouched);
        let ring = ring(&guest, &node);
        guest.submit(0, Ask::Read, 0);
        let quiet = play(ring, Quiet::new(guest, vec![meter], sender), &node, &iothread);
        let waited = |_| receiver.recv_timeout(Duration::from_secs(60)).expect("it is served")[0];
        let longest = (0..300).map(waited).max().unwrap();
        assert!(longest <= 2 << 20, "{longest} bytes were zeroed");
        assert_eq!(quiet.stop().counters().errors, 0);
        assert_eq!(greedy.stop().counters().errors, 0);
    });
}
