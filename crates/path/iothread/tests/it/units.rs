//! A source without a protocol, on plain memory, whose requests go to several disks.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use block::{
    ByteCount, ByteOffset, DiskSize, Durability, FailKind, Node, Operation, Outcome,
    SourceRequestSlot, SystemClock,
};
use disk::ReadContent;
use iothread::{Iothread, PlacedFrontEnd};
use kernel_io::{FileTable, Notifier, ReactorChoice};
use request_path::{
    Engine, FrontEndSource, LogicalUnitIndex, Source, SourceKey, TurnBudget, TurnResult,
};
use testkit::plain_front::{Habit, PlainClient, PlainFront, PlainRequest};
use testkit::rng::Rng;

use crate::drains::{Top, drain};
use crate::guest::BLOCK;
use crate::lanes::null_disk;
use crate::open_requests::pipe_node;
use crate::setup::{NoFault, file_node, iothreads, name, on_both, place_source, wait_for_answer};

const SLOTS: u16 = 16;
const BLOCKS: usize = 32;
const DISK_BYTES: u64 = (BLOCKS * BLOCK) as u64;

/// A client with a block of memory for each slot.
struct Client(PlainClient);

impl Client {
    fn new() -> Self {
        Self(PlainClient::new(SLOTS, usize::from(SLOTS) * BLOCK).unwrap())
    }

    fn source(&self, nodes: &[&Arc<dyn Node>]) -> FrontEndSource<PlainFront> {
        source(self.0.front(), nodes)
    }

    fn place(&self, nodes: &[&Arc<dyn Node>], on: &Arc<Iothread>) -> PlacedFrontEnd<PlainFront> {
        place_source(self.source(nodes), on)
    }

    /// Reads a block of a disk into a slot's memory.
    fn read(&mut self, slot: u16, unit: u16, block: u64) {
        self.submit(slot, unit, Operation::Read, block);
    }

    /// Writes the slot's memory, filled with that.
    fn write(&mut self, slot: u16, unit: u16, block: u64, byte: u8) {
        self.0.memory().fill(usize::from(slot) * BLOCK, BLOCK, byte);
        self.submit(slot, unit, |extent| Operation::Write(extent, Durability::Cached), block);
    }

    fn submit(
        &mut self,
        slot: u16,
        unit: u16,
        operation: impl FnOnce(block::Extent) -> Operation,
        block: u64,
    ) {
        let start = ByteOffset(block * BLOCK as u64);
        let extent = DiskSize(ByteCount(DISK_BYTES)).check(start, ByteCount(BLOCK as u64));
        let operation = operation(extent.unwrap());
        let at = usize::from(slot) * BLOCK;
        // Not in one piece.
        let segments = vec![(at, 512), (at + 512, BLOCK - 512)];
        let (slot, unit) = (SourceRequestSlot(slot), LogicalUnitIndex(unit));
        self.0.submit(PlainRequest { slot, unit, operation, segments }).unwrap();
    }

    /// Waits for one outcome at least.
    fn outcomes(&mut self) -> Vec<(u16, Outcome)> {
        loop {
            let over = self.0.collect().unwrap();
            if !over.is_empty() {
                return over.into_iter().map(|(slot, outcome)| (slot.0, outcome)).collect();
            }
            wait_for_answer(self.0.call(), self.0.in_flight());
        }
    }

    /// What is in a slot's memory: the same byte everywhere.
    #[track_caller]
    fn byte(&self, slot: u16) -> u8 {
        let bytes = self.0.memory().read(usize::from(slot) * BLOCK, BLOCK);
        assert!(bytes.iter().all(|byte| *byte == bytes[0]));
        bytes[0]
    }
}

fn source(front: PlainFront, nodes: &[&Arc<dyn Node>]) -> FrontEndSource<PlainFront> {
    let nodes = nodes.iter().map(|node| Arc::clone(node)).collect();
    FrontEndSource::new(front, nodes, Arc::new(Notifier::new().unwrap()))
}

/// What each slot is doing: a read of what must be found, or a write.
#[derive(Clone, Copy)]
enum Doing {
    Nothing,
    Read(u8),
    Write,
}

#[test]
fn requests_reach_the_disk_of_their_unit_while_the_source_moves() {
    on_both(|reactors| {
        let files = Arc::new(FileTable::default());
        let [a, b] = iothreads::<2>(&files, reactors);
        let images: [_; 3] = std::array::from_fn(|_| file_node(&files, DISK_BYTES));
        let mut client = Client::new();
        let placed = client.place(&[&images[0].0, &images[1].0, &images[2].0], &a);
        let rng = &mut Rng::new(17);
        let mut model = [[0_u8; BLOCKS]; 3];
        let mut doing = [Doing::Nothing; SLOTS as usize];
        let mut done = 0;
        while done < 3000 {
            // A block is one slot's, so that no two requests meet.
            while let Some(SourceRequestSlot(slot)) = client.0.free_slot() {
                let (unit, byte) = (rng.index(3), u8::try_from(rng.below(256)).unwrap());
                let block = usize::from(slot) + usize::from(SLOTS) * rng.index(2);
                let (unit_index, block_index) = (u16::try_from(unit).unwrap(), block as u64);
                doing[usize::from(slot)] = if rng.one_in(2) {
                    client.write(slot, unit_index, block_index, byte);
                    model[unit][block] = byte;
                    Doing::Write
                } else {
                    client.read(slot, unit_index, block_index);
                    Doing::Read(model[unit][block])
                };
            }
            if rng.one_in(20) {
                placed.move_to(if rng.one_in(2) { &a } else { &b }).unwrap();
            }
            for (slot, outcome) in client.outcomes() {
                assert_eq!(outcome, Outcome::Done);
                if let Doing::Read(expected) = doing[usize::from(slot)] {
                    assert_eq!(client.byte(slot), expected);
                }
                done += 1;
            }
        }
        let source = placed.stop();
        let counters = source.counters();
        assert_eq!((source.in_flight(), counters.errors), (0, 0));
        client.0.collect().unwrap();
        assert!(counters.reads + counters.writes >= done);
    });
}

/// What is asked of the disk that is drained waits, and what comes after it; what came before goes on.
#[test]
fn a_drain_of_one_disk_stops_what_is_asked_of_it() {
    on_both(|reactors| {
        let files = Arc::new(FileTable::default());
        let iothreads = iothreads::<2>(&files, reactors);
        let (first, _image) = file_node(&files, DISK_BYTES);
        let second: Arc<dyn Node> = Top::over(null_disk(DISK_BYTES, ReadContent::Zeroes));
        let mut client = Client::new();
        let placed = client.place(&[&first, &second], &iothreads[0]);
        let drained = drain(&iothreads, &second);
        (0..4).for_each(|slot| client.write(slot, 0, slot.into(), 7));
        let mut over = 0;
        while over < 4 {
            over += client.outcomes().len();
        }
        client.write(4, 1, 0, 9);
        client.write(5, 0, 5, 9);
        client.write(6, 1, 1, 9);
        // It travels with the source, which answers everybody who asks.
        placed.move_to(&iothreads[1]).unwrap();
        placed.visit(|_, port| assert_eq!(port.open_reads().count(), 0)).unwrap();
        assert!(client.0.collect().unwrap().is_empty());
        drained.end().unwrap();
        let mut over = Vec::new();
        while over.len() < 3 {
            over.extend(client.outcomes());
        }
        over.sort_unstable_by_key(|(slot, _)| *slot);
        assert_eq!(over, [(4, Outcome::Done), (5, Outcome::Done), (6, Outcome::Done)]);
        assert_eq!(placed.stop().in_flight(), 0);
    });
}

#[test]
fn a_source_that_stops_answers_what_waits_for_the_end_of_a_drain() {
    on_both(|reactors| {
        let files = Arc::new(FileTable::default());
        let iothreads = iothreads::<1>(&files, reactors);
        let nodes: [Arc<dyn Node>; 2] =
            std::array::from_fn(|_| null_disk(DISK_BYTES, ReadContent::Zeroes));
        let mut client = Client::new();
        let placed = client.place(&[&nodes[0], &nodes[1]], &iothreads[0]);
        let drained = drain(&iothreads, &nodes[1]);
        client.read(0, 1, 0);
        // Until it was taken: a log that comes then is to know where its data go.
        while placed.visit(|_, port| port.open_reads().count()).unwrap() == 0 {}
        std::thread::scope(|scope| {
            let stop = scope.spawn(|| placed.stop());
            drained.end().unwrap();
            assert_eq!(stop.join().unwrap().in_flight(), 0);
        });
        assert_eq!(client.outcomes(), [(0, Outcome::Done)]);
    });
}

/// One of the disks hangs with all that it may have in flight.
#[test]
fn what_a_source_asks_of_one_disk_goes_on_while_another_one_hangs() {
    on_both(|reactors| {
        let files = Arc::new(FileTable::default());
        let [iothread] = iothreads::<1>(&files, reactors);
        let (hangs, pipe, beginnings) = pipe_node(&files);
        let (other, _image) = file_node(&files, DISK_BYTES);
        let mut client = Client::new();
        let placed = client.place(&[&hangs, &other], &iothread);
        (0..8).for_each(|slot| client.read(slot, 0, 0));
        (0..8).for_each(|_| beginnings.recv_timeout(Duration::from_secs(60)).unwrap());
        for round in 0..100 {
            client.write(8, 1, round % BLOCKS as u64, 3);
            assert_eq!(client.outcomes(), [(8, Outcome::Done)]);
        }
        // The reads meet the end of the pipe.
        drop(pipe);
        let mut over = Vec::new();
        while over.len() < 8 {
            over.extend(client.outcomes());
        }
        assert!(over.iter().all(|(_, outcome)| *outcome == Outcome::Failed(FailKind::Io)));
        assert_eq!(placed.stop().counters().errors, 8);
    });
}

#[test]
fn a_source_is_given_back_if_one_of_its_disks_opens_no_lane() {
    let [iothread] = iothreads::<1>(&Arc::new(FileTable::default()), ReactorChoice::Any);
    let top = || Top::over(null_disk(DISK_BYTES, ReadContent::Zeroes));
    let (opens, refuses) = (top(), top());
    refuses.refuse(true);
    let nodes: [Arc<dyn Node>; 2] = [opens.clone(), refuses.clone()];
    let client = Client::new();
    let source = client.source(&[&nodes[0], &nodes[1]]);
    let refused = PlacedFrontEnd::on(&iothread, name(0), source, Arc::new(NoFault)).unwrap_err();
    assert_eq!((opens.lanes(), refuses.lanes()), (0, 0));
    refuses.refuse(false);
    let placed = place_source(*refused.rejected, &iothread);
    assert_eq!((opens.lanes(), refuses.lanes()), (1, 1));
    assert_eq!(placed.stop().in_flight(), 0);
    assert_eq!((opens.lanes(), refuses.lanes()), (0, 0));
}

#[test]
fn a_source_whose_front_end_refuses_to_move_is_served_where_it_is() {
    on_both(|reactors| {
        let [a, b] = iothreads::<2>(&Arc::new(FileTable::default()), reactors);
        let top = Top::over(null_disk(DISK_BYTES, ReadContent::Zeroes));
        let node: Arc<dyn Node> = top.clone();
        let mut client = Client::new();
        let placed = place_source(source(client.0.front_with(Habit::Stays), &[&node]), &a);
        let refusal = placed.move_to(&b).unwrap_err();
        assert_eq!(refusal.to_string(), "it stays on iothread t0: it was told to");
        assert!(Arc::ptr_eq(&placed.iothread().unwrap(), &a));
        assert_eq!(top.lanes(), 1);
        client.read(0, 0, 0);
        assert_eq!(client.outcomes(), [(0, Outcome::Done)]);
        assert_eq!(placed.stop().in_flight(), 0);
    });
}

/// A mistake of a front end that would give one request two answers.
#[test]
fn a_front_end_that_brings_a_request_twice_is_found() {
    let node = null_disk(DISK_BYTES, ReadContent::Zeroes);
    let mut client = Client::new();
    client.read(3, 0, 0);
    let (files, notifier) = (Arc::new(FileTable::default()), Arc::new(Notifier::new().unwrap()));
    let mut engine =
        Engine::new(files, notifier, Arc::new(SystemClock), ReactorChoice::Any).unwrap();
    let mut source = source(client.0.front_with(Habit::BringsTwice), &[&node]);
    let lanes = engine.open_lanes(source.nodes()).unwrap();
    source.arrive(&mut engine, lanes, SourceKey(0));
    let turn =
        AssertUnwindSafe(|| -> TurnResult { source.turn(&mut engine, TurnBudget::Alone(8)) });
    let panic = catch_unwind(turn).unwrap_err();
    let message = panic.downcast_ref::<String>().unwrap();
    assert_eq!(message, "request 3 was brought twice");
}
