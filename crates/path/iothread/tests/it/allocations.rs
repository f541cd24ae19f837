//! A warm path allocates nothing for a request: counted on the thread that serves.

use std::sync::Arc;

use block::{Access, ByteCount, Child, DiskSize, Node, SystemClock};
use disk::{NullNode, ReadContent};
use kernel_io::{FileTable, Notifier, ReactorChoice, WaitMode};
use layers::{ChunkSize, StripeDiscards, StripeNode};
use request_path::{
    Engine, EventLoopEvent, FrontEndSource, SleepDecision, Source, SourceKey, TurnBudget,
    TurnResult,
};
use testkit::counting::{Counting, allocations};
use virtio_blk::BlkRing;

use crate::dirty_log::Log;
use crate::guest::{Ask, BLOCK, Guest};
use crate::setup::{file_node, source};

#[global_allocator]
static COUNTING: Counting = Counting;

/// Serves the ring on this thread as an iothread would, and counts what that allocates.
struct Rig {
    engine: Engine,
    source: FrontEndSource<BlkRing>,
    signals: Vec<EventLoopEvent>,
    allocations: u64,
}

impl Rig {
    fn new(guest: &Guest, node: &Arc<dyn Node>, files: &Arc<FileTable>) -> Self {
        let notifier = Arc::new(Notifier::new().unwrap());
        let mut engine =
            Engine::new(Arc::clone(files), notifier, Arc::new(SystemClock), ReactorChoice::Any)
                .unwrap();
        let mut source = source(guest, node);
        let lanes = engine.open_lanes(source.nodes()).unwrap();
        source.arrive(&mut engine, lanes, SourceKey(0));
        Self { engine, source, signals: Vec::new(), allocations: 0 }
    }

    fn serve_once(&mut self) {
        let before = allocations();
        match self.source.turn(&mut self.engine, TurnBudget::Alone(64)) {
            TurnResult::Idle | TurnResult::More | TurnResult::Full => {}
            TurnResult::Broken(fault) => panic!("{fault}"),
        }
        let resting = self.source.rest() == SleepDecision::MaySleep;
        let wait =
            if resting && self.source.in_flight() > 0 { WaitMode::Block } else { WaitMode::Poll };
        self.engine.wait(wait).unwrap();
        self.engine.dispatch(&mut self.signals);
        self.signals.clear();
        self.allocations += allocations() - before;
    }
}

const NARROW: [Ask; 4] = [Ask::Read, Ask::Write, Ask::Read, Ask::Flush];
const ACROSS: [Ask; 4] = [Ask::WideRead, Ask::WideWrite, Ask::WideRead, Ask::Flush];

#[track_caller]
fn check(node: &Arc<dyn Node>, files: &Arc<FileTable>, log: Option<&Log>) {
    check_asks(NARROW, node, files, log);
}

#[track_caller]
fn check_asks(asks: [Ask; 4], node: &Arc<dyn Node>, files: &Arc<FileTable>, log: Option<&Log>) {
    let mut guest = Guest::new();
    let mut served = Rig::new(&guest, node, files);
    if let Some(log) = log {
        let log = guest.ring_log(log.shared());
        served.source.visit(&mut served.engine, |ring, port| ring.set_log(Some(log), port));
    }
    let mut allocations = [0; 5];
    // The first round fills the lists that are kept. On a busy machine a later one may meet a new
    // high-water mark, where they grow once more.
    for allocations in &mut allocations {
        served.allocations = 0;
        let mut completed = 0;
        while completed < 3000 {
            while let Some(slot) = guest.free_slot() {
                let ask = asks[usize::from(slot % 4)];
                guest.submit(slot, ask, u64::from(slot));
            }
            served.serve_once();
            completed += guest.poll().len();
        }
        while guest.in_flight() > 0 {
            served.serve_once();
            guest.poll();
        }
        *allocations = served.allocations;
    }
    served.source.depart(&mut served.engine);
    assert!(allocations[0] > 0, "the rig does not count");
    let fewest = allocations[1..].iter().min();
    assert!(fewest < Some(&10), "{allocations:?} allocations for 3000 requests each");
}

#[test]
fn a_request_to_a_null_disk_allocates_nothing() {
    let size = DiskSize(ByteCount(1 << 20));
    let node = NullNode::new("null", size, Access::ReadWrite, ReadContent::Zeroes);
    check(&(Arc::new(node) as Arc<dyn Node>), &Arc::new(FileTable::default()), None);
}

#[test]
fn a_request_to_a_file_allocates_nothing() {
    let files = Arc::new(FileTable::default());
    let (node, _image) = file_node(&files, 64 * BLOCK as u64);
    check(&node, &files, None);
}

#[test]
fn a_request_whose_pages_are_logged_allocates_nothing() {
    let files = Arc::new(FileTable::default());
    let (node, _image) = file_node(&files, 64 * BLOCK as u64);
    let log = Log::new();
    check(&node, &files, Some(&log));
    assert!(!log.take().is_empty(), "it was logged");
}

/// A stripe of chunks of one block.
fn stripe(nodes: Vec<Arc<dyn Node>>) -> Arc<dyn Node> {
    let children = nodes.into_iter().map(Child::new).collect();
    let chunk = ChunkSize::new(ByteCount(BLOCK as u64)).unwrap();
    let (access, discards) = (Access::ReadWrite, StripeDiscards::Passed);
    Arc::new(StripeNode::new("stripe", children, chunk, access, discards).unwrap())
}

#[test]
fn a_request_over_eight_chunks_of_null_disks_allocates_nothing() {
    let size = DiskSize(ByteCount(1 << 20));
    let null = |name| -> Arc<dyn Node> {
        Arc::new(NullNode::new(name, size, Access::ReadWrite, ReadContent::Zeroes))
    };
    let names = ["n0", "n1", "n2", "n3", "n4", "n5", "n6", "n7"];
    let node = stripe(names.into_iter().map(null).collect());
    check_asks(ACROSS, &node, &Arc::new(FileTable::default()), None);
}

#[test]
fn a_request_over_eight_chunks_of_files_allocates_nothing() {
    let files = Arc::new(FileTable::default());
    let images: [_; 3] = std::array::from_fn(|_| file_node(&files, 64 * BLOCK as u64));
    let node = stripe(images.iter().map(|(node, _)| Arc::clone(node)).collect());
    check_asks(ACROSS, &node, &files, None);
}
