//! Moves and stops while requests are open that the test finishes when it likes: reads from a
//! pipe.

use std::io::Write;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use block::{
    Answer, BatchPieces, ByteCount, ByteOffset, FileId, LeafLane, Mapping, Node, Piece, Target,
};
use disk::ReadContent;
use kernel_io::{Aio, FileTable, OpenFile};
use virtio::RingBase;

use crate::guest::{Ask, BLOCK, Guest};
use crate::holding::{FOR_EVER, holding, null};
use crate::lanes::{null_disk, with_lanes};
use crate::setup::{iothreads, on_both, place};

/// A disk of one file, such as a pipe, with whose beginning it answers all. It tells of each read.
#[derive(Debug, Clone)]
pub(crate) struct OneFile {
    pub(crate) file: FileId,
    pub(crate) begun: mpsc::Sender<()>,
    /// How many pieces each answer has besides.
    pub(crate) others: usize,
}

impl OneFile {
    pub(crate) fn node(self) -> Arc<dyn Node> {
        let below = null_disk(1 << 30, ReadContent::Zeroes);
        with_lanes(below, move |_, _| Box::new(self.clone()))
    }
}

impl LeafLane for OneFile {
    fn answer(&mut self, mapping: &mut Mapping, pieces: &mut BatchPieces) {
        let Some(extent) = mapping.operation.extent() else {
            mapping.answer = Answer::Now(pieces.none());
            return;
        };
        let target = Target::File { file: self.file, offset: ByteOffset(0) };
        let count = extent.count();
        let mark = pieces.end();
        pieces.push(Piece { skip: 0, count, target });
        let nothing = Piece { skip: 0, count: ByteCount(0), target: Target::Nothing };
        (0..self.others).for_each(|_| pieces.push(nothing.clone()));
        mapping.answer = Answer::Now(pieces.since(mark));
        // Not every test listens.
        let _heard = self.begun.send(());
    }
}

/// The node, what its reads wait for, and what tells that one has begun.
pub(crate) fn pipe_node(files: &FileTable) -> (Arc<dyn Node>, std::fs::File, mpsc::Receiver<()>) {
    let (begun, beginnings) = mpsc::channel();
    let (reader, writer): (OwnedFd, OwnedFd) = rustix::pipe::pipe().unwrap();
    let file = OpenFile::adopt(reader, "pipe".into(), 1 << 20, Aio::Automatic);
    let file = files.insert(Arc::new(file));
    (OneFile { file, begun, others: 0 }.node(), writer.into(), beginnings)
}

#[test]
fn a_ring_that_comes_back_while_its_first_requests_are_open_gets_each_answer_once() {
    on_both(|reactors| {
        let files = Arc::new(FileTable::default());
        let [a, b] = iothreads::<2>(&files, reactors);
        let (node, mut pipe, _) = pipe_node(&files);
        let mut guest = Guest::new();
        let placed = place(&guest, &node, &a);
        // Each move leaves a request open on the thread it leaves.
        for (slot, to) in (0..).zip([&b, &a, &b, &a]) {
            guest.submit(slot, Ask::Read, 0);
            placed.move_to(to).unwrap();
        }
        guest.submit(4, Ask::Read, 0);
        assert!(guest.poll().is_empty());
        let mut answered = Vec::new();
        for round in 0..5_u8 {
            pipe.write_all(&[round + 1; BLOCK]).unwrap();
            for slot in guest.completions() {
                assert_eq!(guest.status(slot), 0);
                assert!(guest.data(slot).iter().all(|byte| (1..=5).contains(byte)));
                answered.push(slot);
            }
        }
        while answered.len() < 5 {
            answered.extend(guest.completions());
        }
        answered.sort_unstable();
        assert_eq!(answered, [0, 1, 2, 3, 4]);
        assert_eq!(placed.stop().in_flight(), 0);
    });
}

#[test]
fn an_iothread_that_ends_mails_what_moved_rings_have_left_there() {
    on_both(|reactors| {
        let files = Arc::new(FileTable::default());
        let [a, b] = iothreads::<2>(&files, reactors);
        let (node, mut pipe, beginnings) = pipe_node(&files);
        let mut guest = Guest::new();
        let placed = place(&guest, &node, &a);
        for slot in 0..3 {
            guest.submit(slot, Ask::Read, 0);
            beginnings.recv_timeout(Duration::from_secs(10)).unwrap();
        }
        placed.move_to(&b).unwrap();
        let (ended, end) = mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                drop(a);
                ended.send(()).unwrap();
            });
            for _ in 0..3 {
                pipe.write_all(&[1; BLOCK]).unwrap();
            }
            end.recv_timeout(Duration::from_secs(10)).unwrap();
        });
        let mut answered = Vec::new();
        while answered.len() < 3 {
            answered.extend(guest.completions());
        }
        assert_eq!(placed.stop().in_flight(), 0);
    });
}

#[test]
fn an_iothread_that_ends_lets_go_what_it_holds() {
    on_both(|reactors| {
        let [a, b] = iothreads::<2>(&Arc::new(FileTable::default()), reactors);
        let (node, held) = holding(null(), FOR_EVER);
        let mut guest = Guest::new();
        let placed = place(&guest, &node, &a);
        guest.submit(0, Ask::Read, 0);
        held.recv_timeout(Duration::from_secs(10)).unwrap();
        placed.move_to(&b).unwrap();
        drop(a);
        assert_eq!(guest.completions(), [0]);
        assert_eq!(placed.stop().in_flight(), 0);
    });
}

#[test]
fn a_stop_in_mid_move_waits_for_requests_open_on_both_threads() {
    on_both(|reactors| {
        let files = Arc::new(FileTable::default());
        let [a, b] = iothreads::<2>(&files, reactors);
        let (node, mut pipe, beginnings) = pipe_node(&files);
        let mut guest = Guest::new();
        let placed = place(&guest, &node, &a);
        guest.submit(0, Ask::Read, 0);
        beginnings.recv_timeout(Duration::from_secs(10)).unwrap();
        placed.move_to(&b).unwrap();
        guest.submit(1, Ask::Read, 0);
        beginnings.recv_timeout(Duration::from_secs(10)).unwrap();
        let (stopped, stop) = mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(move || stopped.send(placed.stop()).unwrap());
            // Not a proof that it waits, but a ring given up too early would be here by then.
            let early = stop.recv_timeout(Duration::from_millis(100));
            assert!(early.is_err(), "stopped with two requests open");
            pipe.write_all(&[1; BLOCK]).unwrap();
            let early = stop.recv_timeout(Duration::from_millis(100));
            assert!(early.is_err(), "stopped with one request open");
            pipe.write_all(&[2; BLOCK]).unwrap();
            let source = stop.recv_timeout(Duration::from_secs(10)).unwrap();
            assert_eq!((source.in_flight(), source.front().base()), (0, RingBase(2)));
        });
        assert_eq!(guest.poll().len(), 2);
    });
}

#[test]
fn moves_and_stops_from_several_threads_at_once_are_all_obeyed() {
    on_both(|reactors| {
        let files = Arc::new(FileTable::default());
        let [a, b] = iothreads::<2>(&files, reactors);
        let (node, mut pipe, _) = pipe_node(&files);
        for round in 0..50 {
            let mut guest = Guest::new();
            let placed = Arc::new(place(&guest, &node, &a));
            guest.submit(0, Ask::Read, 0);
            std::thread::scope(|scope| {
                for to in [&b, &a, &b] {
                    let placed = Arc::clone(&placed);
                    scope.spawn(move || placed.move_to(to).unwrap());
                }
                pipe.write_all(&[round; BLOCK]).unwrap();
            });
            assert_eq!(guest.completions(), [0]);
            let placed = Arc::into_inner(placed).unwrap();
            assert_eq!(placed.stop().counters().reads, 1);
        }
    });
}
