//! A source whose client is behind a socket, with transfers on the iothread's own ring.

use std::error::Error;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use block::{
    ByteCount, ByteOffset, DiskSize, Durability, Extent, Node, Operation, Outcome,
    SourceRequestSlot, SystemClock,
};
use disk::ReadContent;
use iothread::{Iothread, PlacedFrontEnd, SourceObserver};
use kernel_io::{FileTable, Notifier, ReactorChoice, WaitMode};
use request_path::{
    Engine, FrontEnd, FrontEndSource, LogicalUnitIndex, SleepDecision, Source, SourceKey,
    TurnBudget, TurnResult,
};
use testkit::counting::allocations;
use testkit::rng::Rng;
use testkit::stream_front::StreamFront;
use testkit::stream_front::client::StreamClient;
use testkit::stream_front::frame::{ANSWER_BYTES, Answer, RequestFrame};

use crate::guest::BLOCK;
use crate::lanes::null_disk;
use crate::setup::{NoFault, file_node, iothreads, name, on_both, wait_for_answer};

const SLOTS: u16 = 16;
const BLOCKS: usize = 64;
const DISK_BYTES: u64 = (BLOCKS * BLOCK) as u64;
/// A request may have so many.
const SLOT_BYTES: usize = BLOCKS * BLOCK;

/// The peer of a front end for so many disks.
struct Peer(StreamClient);

impl Peer {
    fn new(disks: usize) -> (Self, StreamFront) {
        let sizes = vec![DiskSize(ByteCount(DISK_BYTES)); disks];
        let (client, front) = StreamClient::new(sizes, SLOTS, SLOT_BYTES).unwrap();
        (Self(client), front)
    }

    fn read(&mut self, slot: u16, unit: u16, block: usize, blocks: usize) {
        let operation = Operation::Read(extent(block, blocks));
        self.0.submit(SourceRequestSlot(slot), LogicalUnitIndex(unit), operation, &[]).unwrap();
    }

    fn write(&mut self, slot: u16, unit: u16, block: usize, data: &[u8]) {
        let extent = extent(block, data.len() / BLOCK);
        let operation = Operation::Write(extent, Durability::Cached);
        self.0.submit(SourceRequestSlot(slot), LogicalUnitIndex(unit), operation, data).unwrap();
    }

    /// Waits for one answer at least.
    fn answers(&mut self) -> Vec<(u16, Outcome, Vec<u8>)> {
        loop {
            let over = self.0.collect().unwrap();
            if !over.is_empty() {
                return over.into_iter().map(|(slot, end, data)| (slot.0, end, data)).collect();
            }
            wait_for_answer(self.0.call(), self.0.in_flight());
        }
    }

    /// Waits for so many.
    fn answers_to(&mut self, count: usize) -> Vec<(u16, Outcome, Vec<u8>)> {
        let mut all = Vec::new();
        while all.len() < count {
            all.extend(self.answers());
        }
        all.sort_unstable_by_key(|(slot, ..)| *slot);
        all
    }
}

fn extent(block: usize, blocks: usize) -> Extent {
    let [start, count] = [block, blocks].map(|number| (number * BLOCK) as u64);
    DiskSize(ByteCount(DISK_BYTES)).check(ByteOffset(start), ByteCount(count)).unwrap()
}

fn source(front: StreamFront, nodes: &[&Arc<dyn Node>]) -> FrontEndSource<StreamFront> {
    let nodes = nodes.iter().map(|node| Arc::clone(node)).collect();
    FrontEndSource::new(front, nodes, Arc::new(Notifier::new().unwrap()))
}

fn place(
    front: StreamFront,
    nodes: &[&Arc<dyn Node>],
    on: &Arc<Iothread>,
) -> PlacedFrontEnd<StreamFront> {
    PlacedFrontEnd::on(on, name(0), source(front, nodes), Arc::new(NoFault)).unwrap()
}

/// Counts those who broke the rules.
#[derive(Debug, Default)]
struct Broken(AtomicU32);

impl SourceObserver for Broken {
    fn broken(&self, _: &(dyn Error + 'static)) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }

    fn kicked_while_empty(&self) {
        panic!("nobody kicks");
    }
}

/// What each slot is doing: a read of what must be found, or a write.
enum Doing {
    Nothing,
    Read(Vec<u8>),
    Write,
}

#[test]
fn requests_and_their_data_go_both_ways_while_the_source_moves_and_stops() {
    on_both(|reactors| {
        let files = Arc::new(FileTable::default());
        let [a, b] = iothreads::<2>(&files, reactors);
        let images: [_; 3] = std::array::from_fn(|_| file_node(&files, DISK_BYTES));
        let nodes = [&images[0].0, &images[1].0, &images[2].0];
        let (mut peer, front) = Peer::new(3);
        let mut placed = place(front, &nodes, &a);
        let rng = &mut Rng::new(21);
        let mut model = vec![vec![[0_u8; BLOCK]; BLOCKS]; 3];
        let mut doing: [Doing; SLOTS as usize] = std::array::from_fn(|_| Doing::Nothing);
        let mut done = 0;
        while done < 2000 {
            // Blocks are one slot's, so that no two requests meet.
            while let Some(SourceRequestSlot(slot)) = peer.0.free_slot() {
                let unit = rng.index(3);
                let (unit_index, blocks) = (u16::try_from(unit).unwrap(), 1 + rng.index(4));
                let first = usize::from(slot) * 4;
                let range = first..first + blocks;
                doing[usize::from(slot)] = if rng.one_in(2) {
                    let data: Vec<u8> =
                        (0..blocks * BLOCK).map(|_| rng.below(256).to_le_bytes()[0]).collect();
                    for (block, data) in range.clone().zip(data.chunks_exact(BLOCK)) {
                        model[unit][block].copy_from_slice(data);
                    }
                    peer.write(slot, unit_index, first, &data);
                    Doing::Write
                } else {
                    peer.read(slot, unit_index, first, blocks);
                    Doing::Read(model[unit][range].concat())
                };
            }
            if rng.one_in(8) {
                placed.move_to(if rng.one_in(2) { &a } else { &b }).unwrap();
            }
            if rng.one_in(30) {
                let front = placed.stop().into_front();
                placed = place(front, &nodes, if rng.one_in(2) { &a } else { &b });
            }
            for (slot, outcome, data) in peer.answers() {
                assert_eq!(outcome, Outcome::Done);
                if let Doing::Read(expected) = &doing[usize::from(slot)] {
                    assert!(data == *expected, "slot {slot}");
                }
                done += 1;
            }
        }
        placed.stop();
    });
}

/// Half a frame, or half of the data of a write: nothing waits for the rest.
#[test]
fn a_peer_that_stalls_holds_up_no_move_and_no_stop() {
    on_both(|reactors| {
        let files = Arc::new(FileTable::default());
        let [a, b] = iothreads::<2>(&files, reactors);
        let (node, _image) = file_node(&files, DISK_BYTES);
        let (mut peer, front) = Peer::new(1);
        let mut placed = place(front, &[&node], &a);
        let data: Vec<u8> = (0_u8..251).cycle().take(4 * BLOCK).collect();
        let frame = RequestFrame::of(
            SourceRequestSlot(0),
            LogicalUnitIndex(0),
            Operation::Write(extent(0, 4), Durability::Cached),
        );
        let whole = [&frame.unwrap().to_bytes()[..], &data].concat();
        let mut sent = 0;
        let mut to = peer.0.socket().try_clone().unwrap();
        for part in [1, 5, 24, 25, 5000, 5001, whole.len() - 1] {
            to.write_all(&whole[sent..part]).unwrap();
            sent = part;
            placed.move_to(&b).unwrap();
            placed.move_to(&a).unwrap();
            let front = placed.stop().into_front();
            placed = place(front, &[&node], &a);
        }
        // One that was left is over, whatever the peer does.
        placed.move_to(&b).unwrap();
        drop(a);
        to.write_all(&whole[sent..]).unwrap();
        expect_answer(&to);
        peer.read(3, 0, 0, 4);
        assert_eq!(peer.answers_to(1), [(3, Outcome::Done, data)]);
        placed.stop();
    });
}

/// Takes the answer to a write off the socket.
fn expect_answer(mut socket: &UnixStream) {
    let mut answer = [0; ANSWER_BYTES];
    socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    socket.read_exact(&mut answer).unwrap();
    let answer = Answer::parse(&answer).unwrap();
    assert_eq!(answer.outcome, Outcome::Done);
}

/// More than a socket holds: what was answered stays with the front end, wherever it goes.
#[test]
fn answers_that_nobody_reads_outlive_a_stop() {
    on_both(|reactors| {
        let files = Arc::new(FileTable::default());
        let [a, b] = iothreads::<2>(&files, reactors);
        let (node, _image) = file_node(&files, DISK_BYTES);
        let (mut peer, front) = Peer::new(1);
        let mut placed = place(front, &[&node], &a);
        let data: Vec<u8> = (0_u8..253).cycle().take(SLOT_BYTES).collect();
        peer.write(0, 0, 0, &data);
        assert_eq!(peer.answers_to(1), [(0, Outcome::Done, Vec::new())]);
        for round in 0..6 {
            (0..SLOTS).for_each(|slot| peer.read(slot, 0, 0, BLOCKS));
            // Until all were answered, which a visit sees.
            while placed.visit(|front, _| front.unpublished()).unwrap() < usize::from(SLOTS) {
                std::thread::yield_now();
            }
            for _ in 0..round {
                placed.move_to(&b).unwrap();
                let source = placed.stop();
                assert_eq!(source.in_flight(), 0);
                let front = source.into_front();
                assert!(front.unpublished() > 0);
                placed = place(front, &[&node], &a);
            }
            for (slot, (found, outcome, bytes)) in
                peer.answers_to(usize::from(SLOTS)).into_iter().enumerate()
            {
                assert_eq!((usize::from(found), outcome), (slot, Outcome::Done));
                assert!(bytes == data, "round {round}, slot {slot}");
            }
        }
        placed.stop();
    });
}

#[test]
fn rubbish_and_a_peer_that_dies_harm_nobody_else() {
    on_both(|reactors| {
        let [a, b] = iothreads::<2>(&Arc::new(FileTable::default()), reactors);
        let node = null_disk(DISK_BYTES, ReadContent::Zeroes);
        let (mut good, front) = Peer::new(1);
        let placed = place(front, &[&node], &a);
        let broken = Arc::new(Broken::default());
        let told = || broken.0.load(Ordering::SeqCst);
        let mut others = Vec::new();
        for round in 0..30_u16 {
            let (mut bad, front) = Peer::new(1);
            let source = source(front, &[&node]);
            let bad_one =
                PlacedFrontEnd::on(&a, name(0), source, Arc::clone(&broken) as _).unwrap();
            (0..4).for_each(|slot| bad.read(slot, 0, 0, BLOCKS));
            if round % 3 == 0 {
                bad.0.write(vec![0xee; 1000]);
                // What came before the rubbish is answered.
                bad.answers_to(4);
                // A peer that is dropped sends nothing more.
                while told() <= u32::from(round / 3) {
                    std::thread::yield_now();
                }
            } else {
                bad.answers();
                bad.read(9, 0, 0, BLOCKS);
            }
            drop(bad);
            if round % 2 == 0 {
                bad_one.move_to(&b).unwrap();
            }
            good.read(0, 0, 0, 1);
            good.answers_to(1);
            others.push(bad_one);
        }
        others.into_iter().for_each(|placed| drop(placed.stop()));
        assert_eq!(told(), 10);
        good.read(0, 0, 0, 1);
        good.answers_to(1);
        placed.stop();
    });
}

/// Each of them has a turn, however little comes.
#[test]
fn a_peer_that_sends_single_bytes_gets_its_answer_beside_one_that_is_in_a_hurry() {
    on_both(|reactors| {
        let [iothread] = iothreads::<1>(&Arc::new(FileTable::default()), reactors);
        let node = null_disk(DISK_BYTES, ReadContent::Zeroes);
        let (slow, front) = Peer::new(1);
        let placed = [place(front, &[&node], &iothread)];
        let (mut quick, front) = Peer::new(1);
        let others = [place(front, &[&node], &iothread)];
        let frame = RequestFrame::of(
            SourceRequestSlot(0),
            LogicalUnitIndex(0),
            Operation::Write(extent(0, 1), Durability::Cached),
        );
        let whole = [&frame.unwrap().to_bytes()[..], &[7; BLOCK]].concat();
        let mut to = slow.0.socket().try_clone().unwrap();
        for byte in whole.chunks(1) {
            to.write_all(byte).unwrap();
            quick.read(0, 0, 0, 1);
            quick.answers_to(1);
        }
        expect_answer(&to);
        placed.into_iter().chain(others).for_each(|placed| drop(placed.stop()));
    });
}

#[test]
fn a_transfer_allocates_nothing() {
    on_both(|reactors| {
        let fewest = allocations_of_rounds(reactors).into_iter().min();
        assert!(fewest < Some(10), "{fewest:?} allocations for 1000 requests");
    });
}

/// How often rounds of 1000 requests have allocated, the first one left out.
fn allocations_of_rounds(reactors: ReactorChoice) -> Vec<u64> {
    let notifier = Arc::new(Notifier::new().unwrap());
    let files = Arc::new(FileTable::default());
    let mut engine = Engine::new(files, notifier, Arc::new(SystemClock), reactors).unwrap();
    let node = null_disk(DISK_BYTES, ReadContent::Zeroes);
    let (mut peer, front) = Peer::new(1);
    let mut source = source(front, &[&node]);
    let lanes = engine.open_lanes(source.nodes()).unwrap();
    source.arrive(&mut engine, lanes, SourceKey(0));
    let (mut signals, mut counts) = (Vec::new(), Vec::new());
    for _ in 0..5 {
        let (mut done, mut count) = (0, 0);
        while done < 1000 {
            while let Some(slot) = peer.0.free_slot() {
                if slot.0 % 2 == 0 {
                    peer.read(slot.0, 0, 0, 1);
                } else {
                    peer.write(slot.0, 0, 0, &[1; BLOCK]);
                }
            }
            let before = allocations();
            let turn = source.turn(&mut engine, TurnBudget::Alone(64));
            assert!(matches!(turn, TurnResult::Idle | TurnResult::More), "{turn:?}");
            if source.rest() == SleepDecision::MaySleep {
                engine.wait(WaitMode::AtMost(Duration::from_millis(1))).unwrap();
            }
            engine.dispatch(&mut signals);
            signals.clear();
            count += allocations() - before;
            done += peer.0.collect().unwrap().len();
        }
        counts.push(count);
    }
    source.begin_leaving(&mut engine);
    while source.in_flight() > 0 {
        engine.wait(WaitMode::Poll).unwrap();
        engine.dispatch(&mut signals);
        let _end = source.turn(&mut engine, TurnBudget::CompletionsOnly);
    }
    source.depart(&mut engine);
    counts.split_off(1)
}
