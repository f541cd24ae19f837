//! Disks that are no files: behind channels, which are slow, answer in any order, lose their connections, and may be
//! given up.

use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use block::{
    Alignments, Answer, BatchPieces, BeginResult, ByteCount, ByteOffset, CancellationSupport,
    Channel, ChannelId, ChannelWakeCondition, DurableWriteMethod, IoFailure, LeafLane, Mapping,
    Medium, Node, Operation, Piece, Segment, SystemClock, Tag, Target,
};
use disk::ReadContent;
use iothread::{DrainedSection, Iothread};
use kernel_io::{FileTable, ReactorChoice};
use testkit::channel::{Habits, Hears, Mischief, Remote, RemoteNode};

use crate::guest::{Ask, BLOCK, Guest, SLOTS, WIDE};
use crate::lanes::{null_disk, with_lanes};
use crate::setup::{iothreads, on_both, place, place_stable};

const BLOCKS: u64 = 256;
/// So many requests the storage takes at once, and so many buffers a lane has that is alone.
const BEGUN: usize = 16;
const LATE: Duration = Duration::from_secs(60);

const LIBRARY: Habits =
    Habits { cancel: CancellationSupport::Impossible, hears: Hears::Waker, ..Habits::PLAIN };

/// An iothread and a disk.
struct Rig {
    iothread: Arc<Iothread>,
    remote: Arc<Remote>,
    node: Arc<dyn Node>,
}

impl Rig {
    fn new(habits: Habits, reactors: ReactorChoice) -> Self {
        let [iothread] = iothreads::<1>(&Arc::new(FileTable::default()), reactors);
        let file = tempfile::tempfile().unwrap();
        let bytes = BLOCKS * BLOCK as u64;
        file.set_len(bytes).unwrap();
        let remote = Remote::new("remote", file, bytes, habits, 7);
        let node = Arc::new(RemoteNode::new("node", &remote));
        Self { iothread, remote, node }
    }
}

/// What is written to a block.
fn content(block: u64) -> [u8; BLOCK] {
    let mut bytes = [u8::try_from(block % 251).unwrap(); BLOCK];
    bytes[..8].copy_from_slice(&block.to_le_bytes());
    bytes
}

/// Asks about all these blocks, as many at once as go; fails if one of them fails.
fn ask_all(guest: &mut Guest, ask: Ask, blocks: std::ops::Range<u64>) {
    let mut left = blocks;
    let mut asked = [0; SLOTS as usize];
    loop {
        while let Some(slot) = guest.free_slot()
            && let Some(block) = left.next()
        {
            let bytes = if ask == Ask::Write { content(block) } else { [0xee; BLOCK] };
            guest.fill(slot, &bytes);
            asked[usize::from(slot)] = block;
            guest.submit(slot, ask, block);
        }
        if guest.in_flight() == 0 {
            return;
        }
        for slot in guest.completions() {
            let block = asked[usize::from(slot)];
            assert_eq!(guest.status(slot), 0, "{ask:?} of block {block}");
            if ask == Ask::Read {
                assert!(*guest.data(slot) == content(block), "block {block}");
            }
        }
    }
}

fn check(habits: Habits) {
    on_both(|reactors| {
        let rig = Rig::new(habits, reactors);
        let mut guest = Guest::new();
        let placed = place(&guest, &rig.node, &rig.iothread);
        ask_all(&mut guest, Ask::Write, 0..BLOCKS);
        ask_all(&mut guest, Ask::Flush, 0..3);
        ask_all(&mut guest, Ask::Read, 0..BLOCKS);
        ask_all(&mut guest, Ask::WideRead, 0..BLOCKS - WIDE as u64);
        assert_eq!(placed.stop().counters().errors, 0);
        assert_eq!(rig.remote.connections() > 1, habits.loses > 0);
        let mut stable = Guest::new();
        let placed = place_stable(&stable, &rig.node, &rig.iothread);
        ask_all(&mut stable, Ask::Write, 0..BLOCKS);
        ask_all(&mut stable, Ask::Read, 0..BLOCKS);
        placed.stop();
    });
}

#[test]
fn a_disk_behind_a_connection_that_is_slow_and_gets_lost_keeps_what_was_written() {
    check(Habits::PLAIN);
    check(Habits {
        alignment: 512,
        transfer_max: 1536,
        room: 3,
        delay_max: Duration::from_micros(50),
        loses: 40,
        ..Habits::PLAIN
    });
}

#[test]
fn a_disk_behind_a_library_keeps_what_was_written() {
    check(LIBRARY);
    let (stable_writes, transfer_max) = (DurableWriteMethod::BySync, 3 * 4096);
    check(Habits { alignment: 4096, room: 2, stable_writes, transfer_max, ..LIBRARY });
}

/// A channel whose answers are there when it is asked for the third time, and that has itself called each time.
#[derive(Debug)]
struct Hesitant {
    medium: Arc<Medium>,
    waker: Waker,
    tags: Vec<Tag>,
    calls: usize,
}

impl Channel for Hesitant {
    fn medium(&self) -> &Arc<Medium> {
        &self.medium
    }

    fn cancel(&self) -> CancellationSupport {
        CancellationSupport::Possible
    }

    fn begin(&mut self, _: Operation, _: &[Segment], tag: Tag) -> BeginResult {
        self.tags.push(tag);
        self.calls = 0;
        BeginResult::Started
    }

    fn collect(&mut self, done: &mut Vec<(Tag, Result<(), IoFailure>)>) {
        self.calls += 1;
        if self.calls < 3 {
            self.waker.wake_by_ref();
        } else {
            done.extend(self.tags.drain(..).map(|tag| (tag, Ok(()))));
        }
    }

    fn wants(&self) -> ChannelWakeCondition<'_> {
        ChannelWakeCondition { descriptor: None, again: false, due: None }
    }

    fn abandon(&mut self) {}
}

/// Answers with pieces on a channel.
#[derive(Debug)]
struct ChannelLane(ChannelId);

impl LeafLane for ChannelLane {
    fn answer(&mut self, mapping: &mut Mapping, pieces: &mut BatchPieces) {
        let count = mapping.operation.extent().map_or(ByteCount(0), |extent| extent.count());
        let target = Target::Channel { channel: self.0, offset: ByteOffset(0) };
        mapping.answer = Answer::Now(pieces.one(Piece { skip: 0, count, target }));
    }
}

#[test]
fn a_channel_that_is_called_while_it_is_collected_from_is_collected_from_again() {
    on_both(|reactors| {
        let [iothread] = iothreads::<1>(&Arc::new(FileTable::default()), reactors);
        let node = with_lanes(null_disk(1 << 20, ReadContent::Zeroes), |_, io| {
            let (name, by_sync) = ("hesitant".to_owned(), DurableWriteMethod::BySync);
            let medium = Arc::new(Medium::new(name, Alignments::NONE, by_sync));
            let (waker, tags) = (io.waker().clone(), Vec::new());
            Box::new(ChannelLane(io.enter(Box::new(Hesitant { medium, waker, tags, calls: 0 }))))
        });
        let mut guest = Guest::new();
        let placed = place(&guest, &node, &iothread);
        for ask in [Ask::Read, Ask::Write, Ask::Flush] {
            guest.submit(0, ask, 0);
            assert_eq!(guest.completions(), [0]);
            assert_eq!(guest.status(0), 0);
        }
        placed.stop();
    });
}

/// Has requests wait for a server that stands still, gives them up and stops the ring; the server goes on after that.
/// Whether it has touched the memory that reads were to go to.
fn touches_memory_late(habits: Habits, reactors: ReactorChoice) -> bool {
    let rig = Rig::new(habits, reactors);
    let mut guest = Guest::new();
    let placed = place(&guest, &rig.node, &rig.iothread);
    rig.remote.stand_still();
    for slot in 0..SLOTS {
        guest.fill(slot, &[0xee; BLOCK]);
        guest.submit(slot, Ask::Read, u64::from(slot));
    }
    // For more there is no room, nor memory of the engine.
    rig.remote.wait_for(BEGUN);
    rig.iothread.abandon(&rig.node);
    placed.stop();
    // What had not been taken by then is still in the ring.
    let over = guest.poll();
    assert!(over.len() >= BEGUN, "{over:?}");
    assert!(over.iter().all(|slot| guest.status(*slot) == 1), "what was given up has failed");
    rig.remote.go_on();
    rig.remote.wait_until_idle();
    (0..SLOTS).any(|slot| *guest.data(slot) != [0xee; BLOCK])
}

#[test]
fn what_was_given_up_writes_to_no_guest() {
    on_both(|reactors| {
        assert!(!touches_memory_late(Habits::PLAIN, reactors));
        assert!(!touches_memory_late(LIBRARY, reactors));
        // The test would see it.
        let keeps = Habits { mischief: Mischief::KeepsMemory, ..Habits::PLAIN };
        assert!(touches_memory_late(keeps, reactors));
    });
}

#[test]
fn after_a_disk_was_given_up_it_serves_again() {
    on_both(|reactors| {
        let rig = Rig::new(Habits::PLAIN, reactors);
        let mut guest = Guest::new();
        let placed = place(&guest, &rig.node, &rig.iothread);
        rig.remote.stand_still();
        guest.submit(0, Ask::Write, 0);
        rig.remote.wait_for(1);
        rig.iothread.abandon(&rig.node);
        assert_eq!((guest.completions(), guest.status(0)), (vec![0], 1));
        (0..SLOTS).for_each(|slot| guest.submit(slot, Ask::Write, slot.into()));
        // These wait for the server.
        rig.remote.wait_for(BEGUN);
        rig.remote.go_on();
        while guest.in_flight() > 0 {
            for slot in guest.completions() {
                assert_eq!(guest.status(slot), 0);
            }
        }
        ask_all(&mut guest, Ask::Write, 0..BLOCKS);
        ask_all(&mut guest, Ask::Read, 0..BLOCKS);
        placed.stop();
    });
}

/// Until the server has carried out a write that was given up, it could overwrite whatever is written meanwhile.
#[test]
fn nothing_is_written_while_a_write_may_come_late() {
    on_both(|reactors| {
        let rig = Rig::new(Habits { alignment: 4096, ..LIBRARY }, reactors);
        let mut guest = Guest::new();
        let placed = place(&guest, &rig.node, &rig.iothread);
        rig.remote.stand_still();
        guest.fill(0, &content(1));
        guest.submit(0, Ask::Write, 5);
        rig.remote.wait_for(1);
        guest.submit(1, Ask::Write, 5);
        // It waits for the range.
        while placed.gauges().in_flight.get() < 2 {
            std::thread::yield_now();
        }
        rig.iothread.abandon(&rig.node);
        while guest.in_flight() > 0 {
            guest.completions();
        }
        assert_eq!([0, 1].map(|slot| guest.status(slot)), [1, 1]);
        assert!(rig.remote.medium().ranges().try_lock(20480..20481, Waker::noop()).is_none());
        for ask in [Ask::Write, Ask::Read] {
            guest.submit(2, ask, 5);
            assert_eq!(guest.completions(), [2]);
            assert_eq!(guest.status(2), 1, "{ask:?}");
        }
        // Nobody waits for the server, but what it has been told.
        let nodes = vec![Arc::clone(&rig.node)];
        let drained =
            DrainedSection::begin(rig.iothread.sources(), nodes, LATE, &SystemClock).unwrap();
        drained.end().unwrap();
        rig.remote.go_on();
        rig.remote.wait_until_idle();
        while rig.remote.medium().is_unfenced() {
            std::thread::yield_now();
        }
        ask_all(&mut guest, Ask::Write, 5..6);
        ask_all(&mut guest, Ask::Read, 5..6);
        placed.stop();
    });
}
