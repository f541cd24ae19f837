//! Requests that their front end does not want any more, wherever they are: each has one answer, and its memory is left
//! alone after it.

use std::io::Write;
use std::sync::{Arc, mpsc};
use std::task::Waker;
use std::time::Duration;

use block::{
    Answer, BatchPieces, ByteCount, ByteOffset, DiskSize, Durability, Extent, FailKind, FileId,
    LeafLane, Mapping, Node, Operation, Outcome, Piece, SourceRequestSlot, SyncAction, Target,
};
use disk::ReadContent;
use iothread::PlacedFrontEnd;
use kernel_io::{Aio, FileTable, OpenFile};
use request_path::LogicalUnitIndex;
use rustix::fs::{MemfdFlags, memfd_create};
use testkit::plain_front::{Habit, PlainClient, PlainFront, PlainRequest};
use testkit::rng::Rng;

use crate::guest::BLOCK;
use crate::holding::{FOR_EVER, holding, null};
use crate::lanes::{null_disk, with_lanes};
use crate::open_requests::OneFile;
use crate::setup::{file_node, iothreads, on_both, place_source, served, wait_for_answer};

const SLOTS: u16 = 32;
const BLOCKS: usize = 32;
const DISK_BYTES: u64 = (BLOCKS * BLOCK) as u64;
const CANARY: u8 = 0xc5;

/// What a request that was cancelled is answered with.
const CANCELLED: Outcome = Outcome::Failed(FailKind::Cancelled);

struct Client(PlainClient);

impl Client {
    fn new() -> Self {
        let client = PlainClient::new(SLOTS, usize::from(SLOTS) * BLOCK).unwrap();
        client.memory().fill(0, usize::from(SLOTS) * BLOCK, CANARY);
        Self(client)
    }

    fn read(&mut self, slot: u16, block: usize) {
        self.0.memory().fill(usize::from(slot) * BLOCK, BLOCK, CANARY);
        self.submit(slot, Operation::Read(extent(block)));
    }

    fn write(&mut self, slot: u16, block: usize, byte: u8) {
        self.0.memory().fill(usize::from(slot) * BLOCK, BLOCK, byte);
        self.submit(slot, Operation::Write(extent(block), Durability::Cached));
    }

    fn submit(&mut self, slot: u16, operation: Operation) {
        let segments = vec![(usize::from(slot) * BLOCK, BLOCK)];
        let segments = if operation == Operation::Flush { Vec::new() } else { segments };
        let (slot, unit) = (SourceRequestSlot(slot), LogicalUnitIndex(0));
        self.0.submit(PlainRequest { slot, unit, operation, segments }).unwrap();
    }

    fn answers(&mut self) -> Vec<(u16, Outcome)> {
        loop {
            let over = self.0.collect().unwrap();
            if !over.is_empty() {
                return over.into_iter().map(|(slot, outcome)| (slot.0, outcome)).collect();
            }
            wait_for_answer(self.0.call(), self.0.in_flight());
        }
    }

    fn bytes(&self, slot: u16) -> Vec<u8> {
        self.0.memory().read(usize::from(slot) * BLOCK, BLOCK)
    }
}

fn extent(block: usize) -> Extent {
    let start = ByteOffset((block * BLOCK) as u64);
    DiskSize(ByteCount(DISK_BYTES)).check(start, ByteCount(BLOCK as u64)).unwrap()
}

/// Cancels requests where the source is served; twice, as a client may.
fn cancel(placed: &PlacedFrontEnd<PlainFront>, slots: &[u16]) {
    let slots = slots.to_vec();
    let cancel = placed.visit(move |_, port| {
        slots.iter().chain(&slots).for_each(|slot| port.cancel(SourceRequestSlot(*slot)));
    });
    cancel.unwrap();
}

/// Waits until requests were taken: what was brought last is read, or waits.
fn are_taken(placed: &PlacedFrontEnd<PlainFront>, reads: usize) {
    while placed.visit(|_, port| port.open_reads().count()).unwrap() < reads {
        std::thread::yield_now();
    }
}

/// A file of blocks of 4096 bytes, on which flushes sync.
#[derive(Debug, Clone)]
struct Blocks(FileId);

impl LeafLane for Blocks {
    fn answer(&mut self, mapping: &mut Mapping, pieces: &mut BatchPieces) {
        let extent = mapping.operation.extent();
        let (offset, count) =
            extent.map_or((ByteOffset(0), ByteCount(0)), |it| (it.start(), it.count()));
        let mark = pieces.end();
        pieces.push(Piece { skip: 0, count, target: Target::File { file: self.0, offset } });
        mapping.answer = Answer::Now(pieces.since(mark));
    }
}

fn blocks(files: &FileTable) -> (Arc<dyn Node>, Arc<OpenFile>) {
    let file = memfd_create("blocks", MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&file, DISK_BYTES).unwrap();
    let file = OpenFile::adopt(file, "blocks".into(), DISK_BYTES, Aio::Threads);
    let file = Arc::new(file.with_alignment(4096));
    let lane = Blocks(files.insert(Arc::clone(&file)));
    let below = null_disk(DISK_BYTES, ReadContent::Zeroes);
    (with_lanes(below, move |_, _| Box::new(lane.clone())), file)
}

#[test]
fn what_a_lane_holds_is_answered_at_once_and_never_carried_out() {
    on_both(|reactors| {
        let [a, b] = iothreads::<2>(&Arc::new(FileTable::default()), reactors);
        let (node, held) = holding(null(), FOR_EVER);
        let mut client = Client::new();
        let placed = place_source(served(client.0.front(), &node), &a);
        for slot in 0..4 {
            client.read(slot, 0);
            held.recv_timeout(Duration::from_secs(60)).unwrap();
        }
        cancel(&placed, &[1, 2, 9]);
        let mut over = client.answers();
        while over.len() < 2 {
            over.extend(client.answers());
        }
        over.sort_unstable_by_key(|(slot, _)| *slot);
        assert_eq!(over, [(1, CANCELLED), (2, CANCELLED)]);
        // Its slot is free for another one, while the lane has the first.
        client.read(1, 1);
        held.recv_timeout(Duration::from_secs(60)).unwrap();
        // What stays behind is not reached, and ends as ever.
        placed.move_to(&b).unwrap();
        cancel(&placed, &[0, 1]);
        assert!(client.0.collect().unwrap().is_empty());
        assert_eq!(placed.stop().in_flight(), 0);
        let mut over = client.0.collect().unwrap();
        over.sort_unstable_by_key(|(slot, _)| slot.0);
        let done = [0, 1, 3].map(|slot| (SourceRequestSlot(slot), Outcome::Done));
        assert_eq!(over, done);
        // The node reads as zeroes.
        assert!(client.bytes(0).iter().all(|byte| *byte == 0));
        assert!(client.bytes(2).iter().all(|byte| *byte == CANARY));
    });
}

#[test]
fn what_is_cancelled_by_who_leaves_is_answered_where_that_arrives() {
    on_both(|reactors| {
        let [a, b] = iothreads::<2>(&Arc::new(FileTable::default()), reactors);
        let (node, held) = holding(null(), FOR_EVER);
        let mut client = Client::new();
        let front = client.0.front_with(Habit::CancelsAtLeave);
        let placed = place_source(served(front, &node), &a);
        client.read(0, 0);
        held.recv_timeout(Duration::from_secs(60)).unwrap();
        placed.move_to(&b).unwrap();
        assert_eq!(client.answers(), [(0, CANCELLED)]);
        assert_eq!(placed.stop().in_flight(), 0);
        assert!(client.bytes(0).iter().all(|byte| *byte == CANARY));
    });
}

#[test]
fn what_waits_for_a_range_or_a_sync_is_answered_while_it_waits() {
    on_both(|reactors| {
        let files = Arc::new(FileTable::default());
        let [iothread] = iothreads::<1>(&files, reactors);
        let (node, file) = blocks(&files);
        let mut client = Client::new();
        let placed = place_source(served(client.0.front(), &node), &iothread);
        let range = file.medium().ranges().try_lock(0..4096, Waker::noop()).unwrap();
        let SyncAction::Sync(sync) = file
            .medium()
            .sync_turns()
            .try_begin(file.medium().sync_turns().ticket(), Waker::noop())
        else {
            panic!("nobody else syncs")
        };
        client.write(0, 0, 1);
        client.submit(1, Operation::Flush);
        client.submit(2, Operation::Flush);
        client.write(3, 5, 2);
        assert_eq!(client.answers(), [(3, Outcome::Done)]);
        cancel(&placed, &[0, 1]);
        let mut over = client.answers();
        while over.len() < 2 {
            over.extend(client.answers());
        }
        over.sort_unstable_by_key(|(slot, _)| *slot);
        assert_eq!(over, [(0, CANCELLED), (1, CANCELLED)]);
        // The one beside it is served by the next sync.
        sync.done();
        assert_eq!(client.answers(), [(2, Outcome::Done)]);
        client.read(4, 0);
        assert_eq!(client.answers(), [(4, Outcome::Done)]);
        assert!(client.bytes(4).iter().all(|byte| *byte == 0), "it was not begun");
        drop(range);
        client.write(0, 0, 7);
        assert_eq!(client.answers(), [(0, Outcome::Done)]);
        assert_eq!(placed.stop().in_flight(), 0);
    });
}

/// Reads from a pipe in which nothing is: 16 workers have one each, the others wait.
#[test]
fn what_nobody_has_begun_is_answered_and_what_the_kernel_has_is_waited_for() {
    on_both(|reactors| {
        let files = Arc::new(FileTable::default());
        let [iothread] = iothreads::<1>(&files, reactors);
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let file = OpenFile::adopt(reader, "pipe".into(), 1 << 20, Aio::Threads);
        let (begun, _beginnings) = mpsc::channel();
        let node = OneFile { file: files.insert(Arc::new(file)), begun, others: 0 }.node();
        let mut pipe = std::fs::File::from(writer);
        let mut client = Client::new();
        let placed = place_source(served(client.0.front(), &node), &iothread);
        (0..20).for_each(|slot| client.read(slot, 0));
        are_taken(&placed, 20);
        cancel(&placed, &(0..20).collect::<Vec<_>>());
        let mut over = Vec::new();
        while over.len() < 4 {
            over.extend(client.answers());
        }
        assert!(over.iter().all(|(_, outcome)| *outcome == CANCELLED));
        for (slot, _) in &over {
            assert!(client.bytes(*slot).iter().all(|byte| *byte == CANARY));
        }
        // The others have memory that the kernel may write to.
        pipe.write_all(&[1; 16 * BLOCK]).unwrap();
        while over.len() < 20 {
            over.extend(client.answers());
        }
        let mut slots: Vec<u16> = over.iter().map(|(slot, _)| *slot).collect();
        slots.sort_unstable();
        assert_eq!(slots, (0..20).collect::<Vec<_>>());
        assert!(over.iter().all(|(_, outcome)| [Outcome::Done, CANCELLED].contains(outcome)));
        client.read(0, 0);
        pipe.write_all(&[2; BLOCK]).unwrap();
        assert_eq!(client.answers(), [(0, Outcome::Done)]);
        assert_eq!(placed.stop().in_flight(), 0);
    });
}

/// Requests at random, cancelled at any time, while the source moves and stops.
#[test]
fn each_request_has_one_answer_however_it_is_cancelled() {
    on_both(|reactors| {
        let files = Arc::new(FileTable::default());
        let [a, b] = iothreads::<2>(&files, reactors);
        let (file, _image) = file_node(&files, DISK_BYTES);
        let (aligned, _file) = blocks(&files);
        for (seed, below) in (1..).zip([file, aligned]) {
            let (node, _held) = holding(below, Duration::from_millis(1));
            let mut client = Client::new();
            let mut placed = place_source(served(client.0.front(), &node), &a);
            let rng = &mut Rng::new(seed);
            // What each block may have: one of these.
            let mut model: Vec<Vec<u8>> = vec![vec![0]; BLOCKS];
            let mut reads = [false; SLOTS as usize];
            let (mut done, mut cancelled) = (0, 0);
            while done < 3000 {
                while let Some(SourceRequestSlot(slot)) = client.0.free_slot() {
                    let block = usize::from(slot);
                    reads[block] = rng.one_in(2);
                    if reads[block] {
                        client.read(slot, block);
                    } else {
                        let byte = u8::try_from(rng.below(128)).unwrap();
                        model[block].push(byte);
                        client.write(slot, block, byte);
                    }
                }
                let slots: Vec<_> =
                    (0..rng.below(6)).map(|_| u16::try_from(rng.below(32)).unwrap()).collect();
                cancel(&placed, &slots);
                if rng.one_in(20) {
                    placed.move_to(if rng.one_in(2) { &a } else { &b }).unwrap();
                }
                if rng.one_in(100) {
                    assert_eq!(placed.stop().in_flight(), 0);
                    placed = place_source(served(client.0.front(), &node), &a);
                }
                for (slot, outcome) in client.answers() {
                    let block = usize::from(slot);
                    done += 1;
                    match (outcome, reads[block]) {
                        (Outcome::Done, true) => {
                            let bytes = client.bytes(slot);
                            assert!(bytes.iter().all(|byte| model[block].contains(byte)));
                        }
                        // Nothing before it is there any more.
                        (Outcome::Done, false) => {
                            let last = model[block].pop().unwrap();
                            model[block] = vec![last];
                        }
                        (CANCELLED, _) => cancelled += 1,
                        (other, _) => panic!("{other:?}"),
                    }
                }
            }
            assert!(cancelled > 0, "nothing was cancelled");
            assert_eq!(placed.stop().in_flight(), 0);
        }
    });
}
