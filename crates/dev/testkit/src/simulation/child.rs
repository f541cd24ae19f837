//! A file of the simulated disk as a node, and the control thread's way to it.
//!
//! Where it stands: below the node under test, in the place of the driver `file`.
//!
//! Invariants: when a life is over, nothing of it changes the disk any more: neither a claim that is dropped nor an open
//! that was interrupted.

use std::io;
use std::num::NonZeroU32;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use block::{
    Access, Answer, BatchPieces, BlockLimits, ByteCount, ByteOffset, ChannelId, Claim, ClaimError,
    ControlEngine, DiskSize, EngineFactory, FailKind, FileId, InternalOperation, Lane, LaneContext,
    LaneError, LeafLane, Mapping, Node, Operation, Piece, ResizeError, Rights, SystemClock, Target,
};
use kernel_io::Notifier;
use request_path::Engine;
use rustix::io::Errno;

use super::disk::Disk;
use super::iothread::SimulatedKernel;
use super::kernel::Order;

/// A process: from its start to its death.
#[derive(Debug)]
pub struct Life {
    is_over: AtomicBool,
    /// So many operations of control threads are carried out before it ends.
    operations_left: AtomicU64,
}

impl Life {
    /// One that ends when it is told, or with that operation of a control thread.
    pub fn new(operations: u64) -> Arc<Self> {
        Arc::new(Self {
            is_over: AtomicBool::new(false),
            operations_left: AtomicU64::new(operations),
        })
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
        self.operations_left.store(u64::MAX, Ordering::Relaxed);
    }

    /// Counts an operation of a control thread; whether the process still lives to carry it out.
    fn take_operation(&self) -> bool {
        let left = self.operations_left.load(Ordering::Relaxed);
        if left == 0 {
            self.end();
        }
        self.operations_left.store(left.saturating_sub(1), Ordering::Relaxed);
        !self.is_over()
    }

    /// From now on control threads have so many operations.
    pub fn limit(&self, operations: u64) {
        self.operations_left.store(operations, Ordering::Relaxed);
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

    fn limits(&self) -> BlockLimits {
        let least = NonZeroU32::new(512).expect("512 is not zero");
        BlockLimits {
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

    fn resize(&self, DiskSize(ByteCount(bytes)): DiskSize) -> Result<(), ResizeError> {
        if !self.life.take_operation() {
            return Err(ResizeError::refused(self, "the process is dead"));
        }
        let op = self.disk.begin();
        self.disk.resize(self.file, bytes, op);
        self.disk.delivered(op);
        Ok(())
    }

    fn open_lane(&self, _: &LaneContext) -> Result<Box<dyn Lane>, LaneError> {
        let place = Place::File(self.file);
        Ok(Box::new(FileLane { place, access: self.access, discards: self.discards }))
    }
}

/// How the bytes of a child are reached.
#[derive(Clone, Copy, Debug)]
pub(super) enum Place {
    File(FileId),
    Channel(ChannelId),
}

/// A lane of a file, or of a channel to one.
#[derive(Debug)]
pub(super) struct FileLane {
    pub(super) place: Place,
    pub(super) access: Access,
    pub(super) discards: bool,
}

impl LeafLane for FileLane {
    fn answer(&mut self, mapping: &mut Mapping, pieces: &mut BatchPieces) {
        if mapping.operation.is_change() && self.access == Access::ReadOnly {
            mapping.answer = Answer::Refused(FailKind::ReadOnly);
            return;
        }
        let extent = mapping.operation.extent();
        let bytes = extent.map_or(0..0, block::Extent::bytes);
        let offset = ByteOffset(bytes.start);
        let target = match self.place {
            Place::File(file) => Target::File { file, offset },
            Place::Channel(channel) => Target::Channel { channel, offset },
        };
        let count = ByteCount(bytes.end - bytes.start);
        let is_ignored = matches!(mapping.operation, Operation::Discard(..)) && !self.discards;
        mapping.answer = Answer::Now(match is_ignored {
            true => pieces.none(),
            false => pieces.one(Piece { skip: 0, count, target }),
        });
    }

    /// Of channels nothing is said at once, so that whoever stands above asks in both ways.
    fn locate(&mut self, operation: Operation) -> Option<Target> {
        let Place::File(file) = self.place else { return None };
        let offset = operation.extent()?.start();
        match operation {
            Operation::Read(_) => Some(Target::File { file, offset }),
            Operation::Write(..) if self.access == Access::ReadWrite => {
                Some(Target::File { file, offset })
            }
            Operation::Write(..)
            | Operation::Status(_)
            | Operation::Discard(..)
            | Operation::WriteZeroes(..)
            | Operation::Flush => None,
        }
    }
}

/// Makes engines for control threads, whose operations are carried out at once.
#[derive(Clone, Debug)]
pub struct ControlThread {
    /// The disk.
    pub disk: Arc<Disk>,
    /// Of which process.
    pub life: Arc<Life>,
}

impl EngineFactory for ControlThread {
    fn make(&self) -> io::Result<Box<dyn ControlEngine>> {
        let kernel = SimulatedKernel::of_control(self.clone());
        Ok(Box::new(Engine::with(kernel, Arc::new(Notifier::new()?), Arc::new(SystemClock))))
    }
}

impl ControlThread {
    /// Carries out an internal I/O that some lane has submitted.
    pub fn run(&self, errand: InternalOperation) {
        crate::errands::run(self, errand);
    }

    /// Carries out an operation.
    pub(super) fn carry_out(
        &self,
        file: FileId,
        bytes: Range<u64>,
        order: Order,
    ) -> Result<(), Errno> {
        if !self.life.take_operation() {
            return Err(Errno::IO);
        }
        let op = self.disk.begin();
        match order {
            Order::Read(mut into) => {
                let mut found = vec![0; into.count()];
                self.disk.read(file, bytes.start, &mut found);
                into.copy_from(0, &found);
            }
            Order::Write(memory, _) => self.disk.write(file, bytes.start, &memory, op),
            Order::Discard | Order::Zero => self.disk.zero(file, bytes, op),
            Order::Sync => self.disk.end_sync(file, self.disk.begin_sync()),
            Order::FindExtent | Order::Status(_) => return Err(Errno::OPNOTSUPP),
        }
        self.disk.delivered(op);
        Ok(())
    }
}
