//! A warm lane allocates nothing for a request on clusters that have their place: no more than raw.

use std::sync::Arc;

use block::{
    Access, AfterPiecesAction, Answer, BatchPieces, ByteCount, ByteOffset, Child, Clock, DiskSize,
    Durability, Extent, Lane, LaneCompletionDecision, LaneContext, Mapping, Node, Operation,
    Outcome, Rights, SystemClock, Token,
};
use qcow2::{Children, FreedClusterDiscards, OverlapCheck, Qcow2Node, Qcow2Settings};
use testkit::qcow2rig::child::{ControlThread, FileChild, Life};
use testkit::qcow2rig::disk::Disk;
use testkit::qcow2rig::make::Recipe;
use testkit::rng::Rng;

use testkit::counting::allocations;

const CLUSTER: u64 = 64 << 10;
const SIZE: u64 = 64 * CLUSTER;

/// What the requests are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Requests {
    Reads,
    /// And flushes.
    Writes,
}

/// The iothread of a lane on an image.
struct Iothread {
    lane: Box<dyn Lane>,
    io: LaneContext,
    runner: ControlThread,
    pieces: BatchPieces,
    late: Vec<Mapping>,
}

impl Iothread {
    /// Has every request of the batch answered and carried out; how many were answered at once.
    fn serve(&mut self, batch: &mut [Mapping]) -> usize {
        self.pieces.clear();
        self.lane.map(batch, &mut self.pieces);
        let mut left = batch.len();
        let mut at_once = 0;
        for mapping in batch.iter() {
            match mapping.answer {
                Answer::Held => {}
                Answer::Now(_) | Answer::Refused(_) => {
                    at_once += 1;
                    left -= usize::from(self.is_over(mapping));
                }
            }
        }
        while left > 0 {
            let mut errands = Vec::new();
            self.io.take_submitted(&mut errands);
            errands.into_iter().for_each(|errand| self.runner.run(errand));
            self.lane.resume(SystemClock.now(), &mut self.late, &mut self.pieces);
            let late = std::mem::take(&mut self.late);
            left -= late.iter().filter(|mapping| self.is_over(mapping)).count();
        }
        at_once
    }

    /// A request is carried out: whether it is over.
    fn is_over(&mut self, mapping: &Mapping) -> bool {
        assert!(matches!(mapping.answer, Answer::Now(_)), "{mapping:?}");
        let told = match mapping.after {
            AfterPiecesAction::Finish => LaneCompletionDecision::Finish(Outcome::Done),
            AfterPiecesAction::NotifyLane => self.lane.completed(mapping.token, Outcome::Done),
        };
        told == LaneCompletionDecision::Finish(Outcome::Done)
    }
}

fn extent(start: u64, count: u64) -> Extent {
    DiskSize(ByteCount(SIZE)).check(ByteOffset(start), ByteCount(count)).unwrap()
}

/// So many requests that begin 512 bytes before the end of a cluster, or elsewhere.
fn batch(requests: Requests, round: u64, bytes: u64) -> [Mapping; 16] {
    let mut batch = [Mapping::new(Token(0), Operation::Flush); 16];
    for (mapping, number) in batch.iter_mut().zip(0_u32..) {
        let cluster = (round + u64::from(number) * 3) % (SIZE / CLUSTER - bytes.div_ceil(CLUSTER));
        let within = if number % 2 == 0 { CLUSTER - 512 } else { 512 };
        let bytes = extent(cluster * CLUSTER + within, bytes);
        mapping.token = Token(number);
        mapping.operation = match (requests, number % 8) {
            (Requests::Reads, _) => Operation::Read(bytes),
            (Requests::Writes, 0) => Operation::Flush,
            (Requests::Writes, _) => Operation::Write(bytes, Durability::Cached),
        };
    }
    batch
}

/// Asks for batches of requests of so many bytes, after all clusters were read or written once.
#[track_caller]
fn check(recipe: &Recipe, access: Access, requests: Requests, bytes: u64) {
    let made = recipe.make(&mut Rng::new(1)).unwrap();
    let disk = Arc::new(Disk::default());
    let life = Life::new(u64::MAX);
    let child = |name: &str, content: &[u8], access| {
        let (name, file) = (name.to_owned(), disk.add(content));
        let (disk, life) = (Arc::clone(&disk), Arc::clone(&life));
        Child::new(Arc::new(FileChild { name, disk, file, access, discards: true, life }))
    };
    let file = child("file", &made.image, access);
    let backing = made.backing.map(|content| child("backing", &content, Access::ReadOnly));
    let runner = || ControlThread { disk: Arc::clone(&disk), life: Arc::clone(&life) };
    let settings = Qcow2Settings {
        access,
        discards: FreedClusterDiscards::Passed,
        l2_cache: ByteCount(1 << 20),
        refcount_cache: ByteCount(1 << 20),
        clean_after: None,
        overlap_check: OverlapCheck::Cached,
    };
    let children = Children { file, backing, data_file: None };
    let node = Qcow2Node::open("image", children, settings, Arc::new(runner())).unwrap();
    let _claim = node.claim(Rights::of_user(access)).unwrap();
    let io = LaneContext::idle();
    let lane = node.open_lane(&io).unwrap();
    let (pieces, late) = (BatchPieces::default(), Vec::new());
    let mut iothread = Iothread { lane, io, runner: runner(), pieces, late };

    let before = allocations();
    for round in 0..SIZE / CLUSTER {
        iothread.serve(&mut batch(requests, round, bytes));
    }
    assert!(allocations() > before, "the rig does not count");
    let before = allocations();
    for round in 0..100 {
        let mut batch = batch(requests, round, bytes);
        assert_eq!(iothread.serve(&mut batch), batch.len(), "all are answered at once");
    }
    assert_eq!(allocations() - before, 0, "allocations of 1600 requests");
}

fn plain() -> Recipe {
    Recipe::plain(16, SIZE)
}

fn full() -> Recipe {
    Recipe { filled: 100, ..plain() }
}

#[test]
fn reads_of_allocated_clusters_allocate_nothing() {
    for access in [Access::ReadOnly, Access::ReadWrite] {
        check(&full(), access, Requests::Reads, 512);
        check(&full(), access, Requests::Reads, 4096);
        check(&full(), access, Requests::Reads, 4 * CLUSTER);
    }
}

#[test]
fn writes_and_flushes_of_allocated_clusters_allocate_nothing() {
    check(&full(), Access::ReadWrite, Requests::Writes, 512);
    check(&full(), Access::ReadWrite, Requests::Writes, 4 * CLUSTER);
}

#[test]
fn writes_of_what_was_allocated_before_allocate_nothing() {
    check(&plain(), Access::ReadWrite, Requests::Writes, 4096);
}

#[test]
fn reads_of_zeroes_and_of_a_backing_file_allocate_nothing() {
    check(&plain(), Access::ReadWrite, Requests::Reads, 2 * CLUSTER);
    let above = Recipe { backing: Some(SIZE / 2 + 4096), ..plain() };
    check(&above, Access::ReadWrite, Requests::Reads, 2 * CLUSTER);
    check(&above, Access::ReadOnly, Requests::Reads, 4096);
}
