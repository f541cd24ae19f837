//! Flushes that wait for each other: one sync serves all who came before it began, and none who came
//! after.

use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use block::{Clock, FileId, Node, SyncAction, SyncGuard, SystemClock};
use disk::{NullNode, ReadContent};
use iothread::{Iothread, PlacedFrontEnd};
use kernel_io::{FileTable, Notifier, OpenFile, ReactorChoice};
use virtio_blk::BlkRing;

use crate::guest::{Ask, BLOCK, Guest, SLOTS};
use crate::setup::{file_node, iothreads, on_both, place};

/// As many as an iothread has in flight.
const MANY: usize = 4096 / SLOTS as usize;

/// Iothreads that serve rings of one file.
struct Rig<const N: usize> {
    iothreads: [Arc<Iothread>; N],
    node: Arc<dyn Node>,
    file: Arc<OpenFile>,
    _image: tempfile::TempPath,
}

impl<const N: usize> Rig<N> {
    fn new(reactors: ReactorChoice) -> Self {
        let files = Arc::new(FileTable::default());
        let (node, image) = file_node(&files, 64 * BLOCK as u64);
        Self {
            iothreads: iothreads(&files, reactors),
            node,
            file: files.get(FileId(0)),
            _image: image,
        }
    }

    /// Holds the turn to sync, as another thread does whose sync takes long.
    fn sync(&self) -> SyncGuard {
        let notifier = Arc::new(Notifier::new().unwrap());
        let turns = self.file.medium().sync_turns();
        loop {
            match turns.try_begin(turns.ticket(), &Waker::from(Arc::clone(&notifier))) {
                SyncAction::Sync(guard) => return guard,
                SyncAction::Wait => notifier.wait().unwrap(),
                SyncAction::Covered => panic!("nobody else takes tickets"),
            }
        }
    }

    fn begun(&self) -> u64 {
        self.file.medium().sync_turns().begun()
    }

    /// So many guests on an iothread, each with as many flushes under way as its ring holds.
    fn flushing(&self, guests: usize, on: &Arc<Iothread>) -> Vec<(Guest, PlacedFrontEnd<BlkRing>)> {
        let flushing = (0..guests).map(|_| {
            let mut guest = Guest::new();
            let placed = place(&guest, &self.node, on);
            (0..SLOTS).for_each(|slot| guest.submit(slot, Ask::Flush, 0));
            (guest, placed)
        });
        let flushing = flushing.collect();
        settle(on);
        flushing
    }
}

/// Returns when the iothread has taken what was there before.
fn settle(iothread: &Arc<Iothread>) {
    let size = block::DiskSize(block::ByteCount(1 << 20));
    let access = block::Access::ReadWrite;
    let null: Arc<dyn Node> = Arc::new(NullNode::new("null", size, access, ReadContent::Untouched));
    let mut guest = Guest::new();
    let placed = place(&guest, &null, iothread);
    // Every round of the loop looks at its rings, at sixteen of many.
    for _ in 0..100 {
        guest.submit(0, Ask::Read, 0);
        assert_eq!(guest.completions(), [0]);
    }
    assert_eq!(placed.stop().in_flight(), 0);
}

/// Waits for all flushes, which must end with this status, and stops the rings.
#[track_caller]
fn finish(flushing: Vec<(Guest, PlacedFrontEnd<BlkRing>)>, status: u8) {
    for (mut guest, placed) in flushing {
        let mut done = 0;
        while done < usize::from(SLOTS) {
            done += guest.completions().len();
        }
        assert!((0..SLOTS).all(|slot| guest.status(slot) == status));
        assert_eq!(placed.stop().in_flight(), 0);
    }
}

#[test]
fn all_flushes_that_wait_for_a_sync_are_served_by_the_next_one() {
    on_both(|reactors| {
        let rig = Rig::<1>::new(reactors);
        let running = rig.sync();
        let mut flushing = rig.flushing(5, &rig.iothreads[0]);
        let begun = rig.begun();
        assert!(flushing.iter_mut().all(|(guest, _)| guest.poll().is_empty()), "a sync runs");
        running.done();
        finish(flushing, 0);
        // None would mean that one counted which had begun before they came.
        assert_eq!(rig.begun() - begun, 1, "syncs for all of them");
    });
}

#[test]
fn one_sync_serves_the_flushes_of_all_iothreads() {
    on_both(|reactors| {
        let rig = Rig::<2>::new(reactors);
        let running = rig.sync();
        let flushing = rig.iothreads.each_ref().map(|iothread| rig.flushing(2, iothread));
        let begun = rig.begun();
        running.done();
        flushing.into_iter().for_each(|flushing| finish(flushing, 0));
        assert_eq!(rig.begun() - begun, 1, "syncs for all of them");
    });
}

#[test]
fn a_sync_that_fails_fails_all_who_waited_for_it_and_those_who_come_later() {
    on_both(|reactors| {
        let rig = Rig::<2>::new(reactors);
        let running = rig.sync();
        let flushing = rig.iothreads.each_ref().map(|iothread| rig.flushing(2, iothread));
        let begun = rig.begun();
        rig.file.medium().remember_failed_sync();
        running.done();
        flushing.into_iter().for_each(|flushing| finish(flushing, 1));
        finish(rig.flushing(1, &rig.iothreads[0]), 1);
        // A turn is taken to find that out, and the kernel is not asked.
        assert!(rig.begun() - begun <= 2 * 3 * u64::from(SLOTS));
    });
}

/// A thread that gave its turn back without a sync has served nobody.
#[test]
fn a_turn_that_was_given_back_counts_for_nobody() {
    on_both(|reactors| {
        let rig = Rig::<1>::new(reactors);
        let running = rig.sync();
        let flushing = rig.flushing(1, &rig.iothreads[0]);
        let begun = rig.begun();
        drop(running);
        finish(flushing, 0);
        assert_eq!(rig.begun() - begun, 1);
    });
}

/// A ring that finds no room for more may have made room itself with what it has taken: nobody would
/// wake the iothread for that.
#[test]
fn a_ring_goes_on_in_the_last_place_of_an_iothread() {
    on_both(|reactors| {
        let rig = Rig::<1>::new(reactors);
        let running = rig.sync();
        let flushing = rig.flushing(MANY, &rig.iothreads[0]);
        // One place is left.
        settle(&rig.iothreads[0]);
        running.done();
        finish(flushing, 0);
    });
}

/// How long so many guests' flushes take from the moment at which they may go on.
fn time(guests: usize, reactors: ReactorChoice) -> (Duration, u64) {
    let rig = Rig::<1>::new(reactors);
    let running = rig.sync();
    let flushing = rig.flushing(guests, &rig.iothreads[0]);
    let begun = rig.begun();
    let start: Instant = SystemClock.now();
    running.done();
    finish(flushing, 0);
    (start.elapsed(), rig.begun() - begun)
}

/// Each of thousands, tried again whenever another one is over, would take millions of tries.
#[test]
fn thousands_of_flushes_take_not_much_longer_than_a_few() {
    on_both(|reactors| {
        let (few, _) = time(MANY / 16, reactors);
        let (many, syncs) = time(MANY, reactors);
        // A few may come when the sync for the others has begun.
        assert!(syncs <= 3, "{syncs} syncs for {} flushes", MANY * usize::from(SLOTS));
        let bound = few * 64 + Duration::from_secs(1);
        assert!(many < bound, "{many:?}, and a sixteenth of them took {few:?}");
    });
}
