//! What a mirror must not do, planted, and found.

use std::ops::Range;

use block::{
    BatchPieces, ByteCount, ByteOffset, Child, DiskSize, Durability, Extent, Lane, LaneContext,
    LaneError, Mapping,
};
use testkit::conformance::mirror::MirrorTally;

use super::*;

/// A filter that notes changes before they are carried out.
#[derive(Debug)]
struct EarlyNode {
    child: Arc<dyn Node>,
    backlog: Arc<CopyBacklog>,
}

#[derive(Debug)]
struct EarlyLane {
    child: Box<dyn Lane>,
    backlog: Arc<CopyBacklog>,
}

impl Node for EarlyNode {
    testkit::same_node_as!(child);

    fn open_lane(&self, io: &LaneContext) -> Result<Box<dyn Lane>, LaneError> {
        let (child, backlog) = (self.child.open_lane(io)?, Arc::clone(&self.backlog));
        Ok(Box::new(EarlyLane { child, backlog }))
    }
}

impl Lane for EarlyLane {
    fn map(&mut self, batch: &mut [Mapping], pieces: &mut BatchPieces) {
        for mapping in &*batch {
            match mapping.operation {
                Operation::Write(extent, _)
                | Operation::WriteZeroes(extent, ..)
                | Operation::Discard(extent, _) => self.backlog.add(extent.bytes()),
                Operation::Read(_) | Operation::Status(_) | Operation::Flush => {}
            }
        }
        self.child.map(batch, pieces);
    }

    fn due(&self) -> Option<block::WakeTime> {
        self.child.due()
    }

    fn resume(
        &mut self,
        now: std::time::Instant,
        late: &mut Vec<Mapping>,
        pieces: &mut BatchPieces,
    ) {
        self.child.resume(now, late, pieces);
    }

    fn release(&mut self) {
        self.child.release();
    }

    fn completed(
        &mut self,
        token: block::Token,
        outcome: Outcome,
    ) -> block::LaneCompletionDecision {
        self.child.completed(token, outcome)
    }
}

/// A copy that cleans what it reads, and holds nobody off.
struct LooseCopier {
    backlog: Arc<CopyBacklog>,
    /// What is under way, and whether it was read.
    open: BTreeMap<u16, (Range<u64>, bool)>,
    read: Vec<(u16, Range<u64>, Vec<u8>)>,
}

impl LooseCopier {
    fn extent(&self, bytes: &Range<u64>) -> Extent {
        let size = self.backlog.dirty().size();
        let DiskSize(ByteCount(_)) = size;
        let count = ByteCount(bytes.end - bytes.start);
        size.check(ByteOffset(bytes.start), count).expect("it lies inside the disk")
    }
}

impl Copier for LooseCopier {
    fn next(&mut self) -> Option<CopyRequest> {
        if let Some((slot, bytes, data)) = self.read.pop() {
            let operation = Operation::Write(self.extent(&bytes), Durability::Cached);
            self.open.insert(slot, (bytes, true));
            return Some(CopyRequest { slot, is_of_target: true, operation, data });
        }
        let size = self.backlog.dirty().size().0.0;
        let slot = (0..8).find(|slot| !self.open.contains_key(slot))?;
        let bytes = self.backlog.dirty().next_dirty(0..size)?;
        let bytes = bytes.start..bytes.end.min(bytes.start + (64 << 10));
        self.backlog.dirty().clear(bytes.clone());
        let data = vec![0; usize::try_from(bytes.end - bytes.start).expect("small")];
        let operation = Operation::Read(self.extent(&bytes));
        self.open.insert(slot, (bytes, false));
        Some(CopyRequest { slot, is_of_target: false, operation, data })
    }

    fn end(&mut self, slot: u16, outcome: Outcome, data: &[u8]) {
        let (bytes, was_read) = self.open.remove(&slot).expect("it is under way");
        match (outcome, was_read) {
            (Outcome::Failed(_), _) => self.backlog.dirty().set(bytes),
            (Outcome::Done, true) => {}
            (Outcome::Done, false) => {
                self.open.insert(slot, (bytes.clone(), true));
                self.read.push((slot, bytes, data.to_vec()));
            }
        }
    }

    fn set_blocking(&mut self, _: bool) {}

    fn is_equal(&mut self) -> bool {
        self.open.is_empty() && self.backlog.left_bytes() == 0
    }
}

fn played(seed: u64, plant: &dyn Fn(&mut MirrorNodes, Planted)) -> Result<MirrorTally> {
    play_mirror(seed, &|parts| {
        let source = Arc::clone(&parts.source);
        let (mut nodes, backlog) = make(seed, parts)?;
        plant(&mut nodes, Planted { source, backlog });
        Ok(nodes)
    })
}

/// What faults are made of.
struct Planted {
    source: Arc<Child>,
    backlog: Arc<CopyBacklog>,
}

#[test]
fn a_target_becomes_equal_to_what_guests_change() {
    let mut all = MirrorTally::default();
    for seed in 0..200 {
        let one = played(seed, &|_, _| {}).unwrap_or_else(|error| panic!("{error:#}"));
        all.changes += one.changes;
        all.copied += one.copied;
        all.failed += one.failed;
    }
    assert!(all.changes > 10_000 && all.copied > 10_000 && all.failed > 100, "{all:?}");
}

#[track_caller]
fn check_found(plant: &dyn Fn(&mut MirrorNodes, Planted)) {
    let errors: Vec<String> =
        (0..60).filter_map(|seed| played(seed, plant).err()).map(|it| format!("{it:#}")).collect();
    let found = errors.iter().filter(|error| error.contains(" of the target is ")).count();
    assert!(found > 0, "{errors:?}");
}

#[test]
fn a_change_that_is_noted_before_it_is_written_is_found() {
    check_found(&|nodes, Planted { source, backlog }| {
        let child = source.node();
        nodes.guest = Arc::new(EarlyNode { child, backlog });
    });
}

#[test]
fn a_copy_past_the_ranges_of_writes_is_found() {
    check_found(&|nodes, Planted { backlog, .. }| {
        nodes.copier = Box::new(LooseCopier { backlog, open: BTreeMap::new(), read: Vec::new() });
    });
}
