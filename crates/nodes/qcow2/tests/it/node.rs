//! An image of a file as a node, used by a control thread as a guest would.

use std::path::Path;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll, Waker};

use anyhow::{Context, Result, bail};
use block::{
    Access, Answer, BatchPieces, ByteCount, ByteOffset, Child, Claim, Clock, DiscardPolicy,
    DiskSize, Durability, EngineFactory, Extent, HostMemory, Lane, LaneCompletionDecision,
    LaneContext, Mapping, Node, Operation, Outcome, Rights, SystemClock, Token,
};
use disk::FileNode;
use kernel_io::{FileTable, OpenFile, OpenOptions};
use qcow2::{Children, FreedClusterDiscards, OverlapCheck, Qcow2Node, Qcow2Settings};
use request_path::ControlEngineFactory;

/// A file of the host as a node, for writing.
pub(crate) fn file(path: &Path, table: &Arc<FileTable>) -> Result<Arc<FileNode>> {
    let options = OpenOptions::regular(path, Access::ReadWrite);
    Ok(Arc::new(FileNode::open("file", &options, DiscardPolicy::Unmap, table)?))
}

/// What control threads use.
pub(crate) fn engines(table: &Arc<FileTable>) -> Arc<dyn EngineFactory> {
    let clock = Arc::new(SystemClock) as Arc<dyn Clock>;
    Arc::new(ControlEngineFactory::new(table, &clock))
}

/// An image that nobody uses yet.
#[derive(Debug)]
pub(crate) struct Image {
    pub(crate) node: Qcow2Node,
    /// The file that it is in.
    pub(crate) file: Arc<OpenFile>,
    engines: Arc<dyn EngineFactory>,
}

impl Image {
    /// Opens an image for writing, without a backing file.
    pub(crate) fn open(path: &Path, overlap_check: OverlapCheck) -> Result<Self> {
        let table = Arc::new(FileTable::default());
        let node = file(path, &table)?;
        let file = Arc::clone(node.file());
        let settings = Qcow2Settings {
            access: Access::ReadWrite,
            discards: FreedClusterDiscards::Passed,
            l2_cache: ByteCount(1 << 20),
            refcount_cache: ByteCount(1 << 20),
            clean_after: None,
            overlap_check,
        };
        let engines = engines(&table);
        let children = Children { file: Child::new(node), backing: None, data_file: None };
        let node = Qcow2Node::open("image", children, settings, Arc::clone(&engines))?;
        Ok(Self { node, file, engines })
    }
}

/// A guest's use of an image.
#[derive(Debug)]
pub(crate) struct Guest {
    size: DiskSize,
    lane: Box<dyn Lane>,
    io: LaneContext,
    engines: Arc<dyn EngineFactory>,
    // Dropped last: with it the image is closed.
    _claim: Claim,
}

impl Guest {
    /// Opens an image for writing, without a backing file.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        Self::open_with(path, OverlapCheck::Cached)
    }

    /// The same, with this held against metadata.
    pub(crate) fn open_with(path: &Path, overlap_check: OverlapCheck) -> Result<Self> {
        Self::of(&Image::open(path, overlap_check)?)
    }

    /// Uses an image that was opened.
    pub(crate) fn of(image: &Image) -> Result<Self> {
        let node = &image.node;
        let claim = node.claim(Rights::of_user(Access::ReadWrite));
        let claim = claim.map_err(|error| anyhow::anyhow!("{}", sentence(&error)))?;
        let io = LaneContext::idle();
        let lane = node.open_lane(&io)?;
        let engines = Arc::clone(&image.engines);
        Ok(Self { size: node.size(), lane, io, engines, _claim: claim })
    }

    pub(crate) fn write(&mut self, at: u64, bytes: &[u8]) -> Result<()> {
        let extent = self.extent(at, bytes.len())?;
        let operation = Operation::Write(extent, Durability::Cached);
        self.run(operation, HostMemory::of(bytes)).map(drop)
    }

    pub(crate) fn read(&mut self, at: u64, count: usize) -> Result<HostMemory> {
        let extent = self.extent(at, count)?;
        self.run(Operation::Read(extent), HostMemory::zeroed(count))
    }

    pub(crate) fn discard(&mut self, at: u64, count: usize) -> Result<()> {
        let operation = Operation::Discard(self.extent(at, count)?, Durability::Cached);
        self.run(operation, HostMemory::zeroed(0)).map(drop)
    }

    pub(crate) fn flush(&mut self) -> Result<()> {
        self.run(Operation::Flush, HostMemory::zeroed(0))?;
        self.finish()
    }

    /// Gives the lane back, and keeps the claim.
    pub(crate) fn without_lane(self) -> Claim {
        let Self { lane, _claim: claim, .. } = self;
        drop(lane);
        claim
    }

    /// Has the lane end what no request waits for, such as freeing clusters.
    fn finish(&mut self) -> Result<()> {
        loop {
            let mut errands = Vec::new();
            self.io.take_submitted(&mut errands);
            if errands.is_empty() {
                return Ok(());
            }
            errands.into_iter().for_each(|errand| testkit::errands::run(&*self.engines, errand));
            let mut late = Vec::new();
            self.lane.resume(SystemClock.now(), &mut late, &mut BatchPieces::default());
            anyhow::ensure!(late.is_empty(), "nothing is held");
        }
    }

    fn extent(&self, at: u64, count: usize) -> Result<Extent> {
        Ok(self.size.check(ByteOffset(at), ByteCount(u64::try_from(count)?))?)
    }

    fn run(&mut self, operation: Operation, mut memory: HostMemory) -> Result<HostMemory> {
        let token = Token(0);
        let mut pieces = BatchPieces::default();
        let mut batch = [Mapping::new(token, operation)];
        self.lane.map(&mut batch, &mut pieces);
        let [mut mapping] = batch;
        loop {
            mapping = self.wait(mapping, &mut pieces)?;
            let Answer::Now(range) = mapping.answer else { bail!("{:?}", mapping.answer) };
            let io = LaneContext::idle();
            let mut done = io.submit(mapping.operation, pieces.get(range), memory);
            self.carry_out(&io);
            let context = &mut TaskContext::from_waker(Waker::noop());
            let Poll::Ready(result) = std::pin::Pin::new(&mut done).poll(context) else {
                bail!("it was carried out");
            };
            memory = result.map_err(|kind| anyhow::anyhow!("{kind:?}"))?;
            match mapping.after {
                block::AfterPiecesAction::Finish => return Ok(memory),
                block::AfterPiecesAction::NotifyLane => {
                    match self.lane.completed(token, Outcome::Done) {
                        LaneCompletionDecision::Finish(Outcome::Done) => return Ok(memory),
                        LaneCompletionDecision::Finish(Outcome::Failed(kind)) => bail!("{kind:?}"),
                        LaneCompletionDecision::HoldAgain => mapping.answer = Answer::Held,
                    }
                }
            }
            pieces.clear();
        }
    }

    /// Waits for an answer that is not "held".
    fn wait(&mut self, mapping: Mapping, pieces: &mut BatchPieces) -> Result<Mapping> {
        let mut late = Vec::new();
        for _ in 0..100_000 {
            if late.is_empty() && mapping.answer != Answer::Held {
                return Ok(mapping);
            }
            self.carry_out(&self.io);
            self.lane.resume(SystemClock.now(), &mut late, pieces);
            if let Some(mapping) = late.pop() {
                return Ok(mapping);
            }
        }
        bail!("it is held for ever")
    }

    fn carry_out(&self, io: &LaneContext) {
        let mut errands = Vec::new();
        io.take_submitted(&mut errands);
        errands.into_iter().for_each(|errand| testkit::errands::run(&*self.engines, errand));
    }
}

/// An error with its causes.
pub(crate) fn sentence(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// Makes an image writable, as it is when it is opened.
pub(crate) fn make_writable(path: &Path) -> Result<qcow2::Header, String> {
    let table = Arc::new(FileTable::default());
    let file = file(path, &table).context("open the file").map_err(|error| format!("{error:#}"))?;
    let file: Arc<dyn Node> = file;
    qcow2::make_writable(&file, &*engines(&table)).map_err(|error| sentence(&error))
}
