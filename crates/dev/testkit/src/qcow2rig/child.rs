//! A file of the rig as a node, and the control thread's way to it.
//!
//! Where it stands: below the node under test, in the place of the driver `file`.
//!
//! Invariants: when a life is over, nothing of it changes the disk any more: neither a claim that is dropped nor an open
//! that was interrupted.

use std::io;
use std::num::NonZeroU32;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Waker};

use block::{
    Access, Answer, ByteCount, ByteOffset, Claim, ClaimError, Clock, ControlEngine, DiskSize,
    Durability, EngineFactory, Errand, FailKind, FileId, Lane, LaneError, LaneIo, LeafLane, Limits,
    MakeLane, Mapping, Node, Operation, Outcome, Piece, PieceList, Rights, Target,
};

use super::disk::Disk;
use crate::conformance::index;

/// A process of the rig: from its start to its death.
#[derive(Debug)]
pub struct Life {
    is_over: AtomicBool,
    /// So many errands of control threads are carried out before it ends.
    errands_left: AtomicU64,
}

impl Life {
    /// One that ends when it is told, or with that errand of a control thread.
    pub fn new(errands: u64) -> Arc<Self> {
        Arc::new(Self { is_over: AtomicBool::new(false), errands_left: AtomicU64::new(errands) })
    }

    /// Ends it.
    pub fn end(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }

    /// Whether it has ended.
    pub fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    /// From now on control threads may do what they like.
    pub fn spare(&self) {
        self.errands_left.store(u64::MAX, Ordering::Relaxed);
    }

    /// From now on control threads have so many errands.
    pub fn limit(&self, errands: u64) {
        self.errands_left.store(errands, Ordering::Relaxed);
    }
}

/// A file of the disk as a node, in one life.
#[derive(Debug)]
pub struct FileChild {
    /// Its node-name.
    pub name: String,
    /// The disk.
    pub disk: Arc<Disk>,
    /// The file.
    pub file: FileId,
    /// Whether it takes changes.
    pub access: Access,
    /// Whether discards reach it.
    pub discards: bool,
    /// Whose it is.
    pub life: Arc<Life>,
}

impl Node for FileChild {
    fn name(&self) -> &str {
        &self.name
    }

    fn size(&self) -> DiskSize {
        DiskSize(ByteCount(self.disk.bytes(self.file)))
    }

    fn limits(&self) -> Limits {
        let least = NonZeroU32::new(512).expect("512 is not zero");
        Limits {
            request_alignment: least,
            physical_block: least,
            discard: self.discards,
            discard_granularity: least,
            allocation_unit: least,
        }
    }

    fn access(&self) -> Access {
        self.access
    }

    fn flush(&self) -> io::Result<()> {
        if !self.life.is_over() {
            self.disk.end_sync(self.file, self.disk.begin_sync());
        }
        Ok(())
    }

    fn claim(&self, _: Rights) -> Result<Claim, ClaimError> {
        Ok(Claim::nothing())
    }

    fn open_lane(&self, _: &LaneIo) -> Result<Box<dyn Lane>, LaneError> {
        Ok(Box::new(FileLane { file: self.file, access: self.access, discards: self.discards }))
    }
}

#[derive(Debug)]
struct FileLane {
    file: FileId,
    access: Access,
    discards: bool,
}

impl LeafLane for FileLane {
    fn answer(&mut self, mapping: &mut Mapping, pieces: &mut PieceList) {
        if mapping.operation.is_change() && self.access == Access::ReadOnly {
            mapping.answer = Answer::Refused(FailKind::ReadOnly);
            return;
        }
        let extent = mapping.operation.extent();
        let bytes = extent.map_or(0..0, block::Extent::bytes);
        let target = Target::File { file: self.file, offset: ByteOffset(bytes.start) };
        let count = ByteCount(bytes.end - bytes.start);
        let is_ignored = matches!(mapping.operation, Operation::Discard(..)) && !self.discards;
        mapping.answer = Answer::Now(match is_ignored {
            true => pieces.none(),
            false => pieces.one(Piece { skip: 0, count, target }),
        });
    }
}

/// Carries out the errands of control threads at once.
#[derive(Clone, Debug)]
pub struct ControlThread {
    /// The disk.
    pub disk: Arc<Disk>,
    /// Of which process.
    pub life: Arc<Life>,
}

impl EngineFactory for ControlThread {
    fn make(&self) -> io::Result<Box<dyn ControlEngine>> {
        Ok(Box::new(ErrandEngine { thread: self.clone(), lanes: Vec::new() }))
    }
}

/// The lanes of a control thread.
#[derive(Debug)]
struct ErrandEngine {
    thread: ControlThread,
    lanes: Vec<(LaneIo, Box<dyn Lane>)>,
}

impl ControlEngine for ErrandEngine {
    fn open(&mut self, _: &Arc<dyn Node>, make: &mut MakeLane<'_>) -> Result<(), LaneError> {
        let io = LaneIo::idle();
        let lane = make(&io)?;
        self.lanes.push((io, lane));
        Ok(())
    }

    fn run(&mut self, mut future: Pin<&mut (dyn Future<Output = ()> + '_)>) {
        let mut context = Context::from_waker(Waker::noop());
        while future.as_mut().poll(&mut context).is_pending() {
            for (io, lane) in &mut self.lanes {
                let mut errands = Vec::new();
                io.take_submitted(&mut errands);
                errands.into_iter().for_each(|errand| self.thread.run(errand));
                let now = block::SystemClock.now();
                lane.resume(now, &mut Vec::new(), &mut PieceList::default());
            }
        }
    }
}

impl ControlThread {
    /// Carries an errand out.
    pub fn run(&self, mut errand: Errand) {
        let left = self.life.errands_left.load(Ordering::Relaxed);
        if left == 0 {
            self.life.end();
        }
        if self.life.is_over() {
            return errand.finish(Outcome::Failed(FailKind::Io));
        }
        self.life.errands_left.store(left.saturating_sub(1), Ordering::Relaxed);
        let outcome = self.carry_out(&mut errand);
        errand.finish(outcome);
    }

    fn carry_out(&self, errand: &mut Errand) -> Outcome {
        let operation = errand.operation();
        let pieces = errand.pieces().to_vec();
        for piece in pieces {
            let (skip, count) = (index(piece.skip), index(piece.count.0));
            let Target::File { file, offset: ByteOffset(offset) } = piece.target else {
                if matches!((operation, piece.target), (Operation::Read(_), Target::Zeroes)) {
                    errand.memory().zero(skip, count);
                }
                continue;
            };
            let op = self.disk.begin();
            let mut bytes = vec![0; count];
            match operation {
                Operation::Read(_) => {
                    self.disk.read(file, offset, &mut bytes);
                    errand.memory().copy_from(skip, &bytes);
                }
                Operation::Write(..) => {
                    errand.memory().copy_to(skip, &mut bytes);
                    self.disk.write(file, offset, &bytes, op);
                }
                Operation::Discard(..) | Operation::WriteZeroes(..) => {
                    self.disk.zero(file, offset..offset + piece.count.0, op);
                }
                Operation::Flush => {}
                Operation::Status(_) => panic!("the rig asks for no status"),
            }
            self.disk.delivered(op);
            if operation == Operation::Flush {
                self.disk.end_sync(file, self.disk.begin_sync());
            } else if operation.durability() == Durability::Stable {
                self.disk.end_stable(file, op);
            }
        }
        Outcome::Done
    }
}
