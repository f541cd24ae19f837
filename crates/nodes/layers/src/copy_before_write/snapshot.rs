//! The disk as it was at the instant, which others may read (driver `snapshot-access`).
//!
//! Where it stands in the life of a request: a read asks the target where that has the bytes of the instant, and the source
//! elsewhere, while no guest changes them there.
//!
//! Not here: what preserves the bytes (`lane`, `preserving`).

use std::ops::Range;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use block::{
    Access, Answer, BatchPieces, BlockLimits, ByteCount, Child, Claim, ClaimError, DiskSize,
    FailKind, Lane, LaneCompletionDecision, LaneContext, LaneError, Mapping, Node, Operation,
    Outcome, Permissions, Piece, RangeGuard, ResizeError, RetryHint, Rights, StatusRuns, Target,
    Token, WakeTime,
};
use tasks::{AsyncChild, RequestParts, TaskExecutor};

use super::{SnapshotState, USES_TARGET};
use crate::served::{ServedRequest, ServedRequests};

/// What a reader of the snapshot does with the source.
const USES_SOURCE: Rights = Rights { uses: Permissions::READS, shares: Permissions::ALL };

/// A node without a snapshot in the place of one that has one.
#[derive(Debug, thiserror::Error)]
#[error("node '{0}' keeps no snapshot that could be read; put 'copy-before-write' there")]
pub struct NoSnapshot(String);

/// A node that shows the disk of the node below as that has kept it.
#[derive(Debug)]
pub struct SnapshotAccessNode {
    name: String,
    child: Arc<Child>,
}

impl SnapshotAccessNode {
    /// Over a node that keeps a snapshot. It takes discards of what need not be kept any more, and no other changes. Fails if
    /// the node keeps none.
    pub fn new(name: &str, child: Arc<Child>) -> Result<Self, NoSnapshot> {
        let node = Self { name: name.to_owned(), child };
        node.snapshot_below()?;
        Ok(node)
    }

    fn snapshot_below(&self) -> Result<Arc<dyn Node>, NoSnapshot> {
        let below = self.child.node();
        below.snapshot().ok_or_else(|| NoSnapshot(below.name().to_owned()))
    }
}

impl Node for SnapshotAccessNode {
    fn name(&self) -> &str {
        &self.name
    }

    fn image_file(&self) -> Option<PathBuf> {
        self.child.node().image_file()
    }

    fn size(&self) -> DiskSize {
        self.child.node().size()
    }

    fn limits(&self) -> BlockLimits {
        let below = self.child.node().limits();
        BlockLimits { discard: true, ..below }
    }

    fn access(&self) -> Access {
        Access::ReadWrite
    }

    /// Nothing was written.
    fn flush(&self) -> std::io::Result<()> {
        Ok(())
    }

    fn claim(&self, rights: Rights) -> Result<Claim, ClaimError> {
        let failed = |source: NoSnapshot| {
            let (node, source) = (self.name.clone(), Box::new(source));
            ClaimError { node, outlook: RetryHint::Permanent, source }
        };
        self.snapshot_below().map_err(failed)?.claim(rights)
    }

    fn resize(&self, _: DiskSize) -> Result<(), ResizeError> {
        Err(ResizeError::refused(self, "it shows a disk as it was"))
    }

    fn open_lane(&self, io: &LaneContext) -> Result<Box<dyn Lane>, LaneError> {
        let failed =
            |source| LaneError { node: self.name.clone(), source: std::io::Error::other(source) };
        self.snapshot_below().map_err(failed)?.open_lane(io)
    }
}

/// The snapshot that a copy-before-write node keeps.
#[derive(Debug)]
pub(super) struct SnapshotNode {
    name: String,
    source: Arc<Child>,
    target: Arc<Child>,
    state: Arc<SnapshotState>,
}

impl SnapshotNode {
    pub(super) fn new(
        name: &str,
        source: &Arc<Child>,
        target: &Arc<Child>,
        state: Arc<SnapshotState>,
    ) -> Self {
        let (source, target) = (Arc::clone(source), Arc::clone(target));
        Self { name: name.to_owned(), source, target, state }
    }
}

impl Node for SnapshotNode {
    fn name(&self) -> &str {
        &self.name
    }

    fn size(&self) -> DiskSize {
        self.state.size()
    }

    fn limits(&self) -> BlockLimits {
        self.source.node().limits()
    }

    fn access(&self) -> Access {
        Access::ReadWrite
    }

    /// Nothing was written.
    fn flush(&self) -> std::io::Result<()> {
        Ok(())
    }

    fn claim(&self, _: Rights) -> Result<Claim, ClaimError> {
        let source = self.source.node().claim(USES_SOURCE)?;
        Ok(source.and(self.target.node().claim(USES_TARGET)?))
    }

    fn open_lane(&self, io: &LaneContext) -> Result<Box<dyn Lane>, LaneError> {
        self.state.check_size(self, self.source.node().size())?;
        let (source, target) = (open_child(&self.source, io)?, open_child(&self.target, io)?);
        let (state, requests) = (Arc::clone(&self.state), ServedRequests::default());
        let tasks = TaskExecutor::new(io.waker().clone());
        let core = Rc::new(SnapshotCore { source, target, state, requests });
        Ok(Box::new(SnapshotLane { core, tasks }))
    }
}

/// A lane of a child, for tasks.
pub(super) fn open_child(child: &Child, io: &LaneContext) -> Result<AsyncChild, LaneError> {
    let node = child.node();
    let alignment = node.limits().request_alignment.get().into();
    Ok(AsyncChild::new(node.open_lane(io)?, io, alignment))
}

/// One iothread's handle on a snapshot: each request has a task.
#[derive(Debug)]
struct SnapshotLane {
    core: Rc<SnapshotCore>,
    tasks: TaskExecutor,
}

/// What the tasks of one lane share.
#[derive(Debug)]
struct SnapshotCore {
    source: AsyncChild,
    target: AsyncChild,
    state: Arc<SnapshotState>,
    requests: ServedRequests,
}

impl SnapshotCore {
    async fn serve(self: Rc<Self>, request: ServedRequest) {
        let result = match request.operation {
            Operation::Read(_) => self.read(request).await,
            Operation::Status(_) => self.status(request).await,
            Operation::Discard(..) => self.discard(request).await,
            Operation::Write(..) | Operation::WriteZeroes(..) => Err(FailKind::Unsupported),
            Operation::Flush => Ok(Vec::new()),
        };
        self.requests.end(request, result);
    }

    /// Reads from either side, while nobody changes what is read from the source.
    async fn read(&self, request: ServedRequest) -> Result<Vec<Piece>, FailKind> {
        let bytes = request.operation.extent().map_or(0..0, |extent| extent.bytes());
        let _locked = self.lock_readable(&bytes).await?;
        let mut parts = RequestParts::default();
        for (run, side) in self.sides(&bytes) {
            parts.ask(side, request.operation, run.start - bytes.start, run);
        }
        self.requests.carry_out(request, parts).await?;
        self.check(&bytes)?;
        Ok(Vec::new())
    }

    /// Says what the bytes are on the side that has them.
    async fn status(&self, request: ServedRequest) -> Result<Vec<Piece>, FailKind> {
        let bytes = request.operation.extent().map_or(0..0, |extent| extent.bytes());
        let _locked = self.lock_readable(&bytes).await?;
        let mut runs = StatusRuns::default();
        for (run, side) in self.sides(&bytes) {
            let (skip, mut told) = (run.start - bytes.start, 0);
            for found in side.status(run.clone()).await? {
                runs.add(skip + found.skip, found.record.count, found.record.status);
                told = found.skip + found.record.count.0;
            }
            // Behind what one side did not tell nothing can be told.
            if run.start + told < run.end {
                break;
            }
        }
        self.check(&bytes)?;
        let pieces = runs.in_order().iter().map(|run| Piece {
            skip: run.skip,
            count: run.record.count,
            target: Target::Status(run.record.status),
        });
        Ok(pieces.collect())
    }

    /// Of whole clusters nothing is kept any more. QEMU's rules: parts of clusters stay.
    async fn discard(&self, request: ServedRequest) -> Result<Vec<Piece>, FailKind> {
        let bytes = request.operation.extent().map_or(0..0, |extent| extent.bytes());
        let cluster = self.state.cluster_bytes();
        let start = bytes.start.next_multiple_of(cluster);
        let is_end = bytes.end == self.state.size().0.0;
        let end = if is_end { bytes.end } else { bytes.end - bytes.end % cluster };
        if start >= end {
            return Ok(Vec::new());
        }
        let _locked = self.state.lock(start..end).await;
        self.state.forget(start..end);
        self.target.discard(start..end).await?;
        Ok(Vec::new())
    }

    /// Waits until nobody preserves these bytes, and locks them if some of them are on the source.
    async fn lock_readable(&self, bytes: &Range<u64>) -> Result<Option<RangeGuard>, FailKind> {
        self.state.check()?;
        let locked = match self.state.next_pending(bytes.clone()) {
            Some(_) => Some(self.state.lock(bytes.clone()).await),
            None => None,
        };
        self.check(bytes)?;
        Ok(locked)
    }

    /// Fails if these bytes are not kept, or not any more: who breaks the snapshot or gives them up does not wait for readers.
    fn check(&self, bytes: &Range<u64>) -> Result<(), FailKind> {
        self.state.check()?;
        // QEMU's clients hear that the request is invalid.
        if self.state.is_there(bytes.clone()) { Ok(()) } else { Err(FailKind::Malformed) }
    }

    /// Which side has which of these bytes, in order.
    fn sides(&self, bytes: &Range<u64>) -> impl Iterator<Item = (Range<u64>, &AsyncChild)> {
        let (mut at, end) = (bytes.start, bytes.end);
        std::iter::from_fn(move || {
            if at == end {
                return None;
            }
            let pending = self.state.next_pending(at..end).unwrap_or(end..end);
            let (run, side) = if pending.start == at {
                (pending, &self.source)
            } else {
                (at..pending.start, &self.target)
            };
            at = run.end;
            Some((run, side))
        })
    }
}

impl Lane for SnapshotLane {
    fn map(&mut self, batch: &mut [Mapping], pieces: &mut BatchPieces) {
        for mapping in batch.iter_mut() {
            let count = mapping.operation.extent().map(|extent| extent.count());
            if let (Operation::Flush, _) | (_, Some(ByteCount(0))) = (mapping.operation, count) {
                mapping.answer = Answer::Now(pieces.none());
                continue;
            }
            mapping.answer = Answer::Held;
            let request = ServedRequest { token: mapping.token, operation: mapping.operation };
            self.core.requests.begin(request);
            self.tasks.spawn(Rc::clone(&self.core).serve(request));
        }
        self.core.requests.take_answers(pieces, |answered| {
            let mapping = batch.iter_mut().find(|mapping| mapping.token == answered.token);
            *mapping.expect("nobody answers but for this batch") = answered;
        });
    }

    fn due(&self) -> Option<WakeTime> {
        WakeTime::first(self.core.source.due(), self.core.target.due())
    }

    fn resume(&mut self, now: Instant, late: &mut Vec<Mapping>, pieces: &mut BatchPieces) {
        self.core.source.resume(now);
        self.core.target.resume(now);
        self.tasks.go_on();
        self.core.requests.take_answers(pieces, |answered| late.push(answered));
    }

    fn release(&mut self) {
        self.core.source.release();
        self.core.target.release();
    }

    fn completed(&mut self, token: Token, outcome: Outcome) -> LaneCompletionDecision {
        self.core.requests.completed(token, outcome)
    }
}
