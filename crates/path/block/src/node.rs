//! The contract between the block graph and those who use it: nodes and lanes.
//!
//! Where it stands in the life of a request: an iothread opens one [`Lane`] on each [`Node`] it
//! serves. It hands the lane whole batches of decoded operations; the lane answers without I/O
//! where the bytes live, at once or when it has held the request long enough. A layer answers by
//! asking the lane below with the extents changed.
//!
//! Invariants: every mapping of a batch is answered, held or refused. What is held is answered by
//! [`Lane::resume`] exactly once, under the token it came with. A lane that asked for it is told of each
//! answer when that was carried out, and may hold the request again, for another answer.
//! Threads: a node is shared by all iothreads; a lane belongs to the thread that opened it.
//! Limits: an answer has at most [`crate::PIECES_MAX`] pieces.

use std::fmt::Debug;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::{
    Access, BatchPieces, Claim, ClaimError, DiskSize, Extent, FailKind, InternalSnapshots,
    LaneContext, Operation, Outcome, PieceRange, Rights, Target,
};

/// A vertex of the block graph, shared by all threads (QEMU's BlockDriverState).
pub trait Node: Debug + Send + Sync {
    /// The node-name, as in `--blockdev node-name=`.
    fn name(&self) -> &str;

    /// The file that the node shows, or is in: what an operator knows it by. `None` if there is none, or
    /// several.
    fn image_file(&self) -> Option<PathBuf> {
        None
    }

    /// The size a guest sees.
    fn size(&self) -> DiskSize;

    /// What requests suit the node.
    fn limits(&self) -> BlockLimits;

    /// Whether the node takes changes.
    fn access(&self) -> Access;

    /// Makes everything durable that was completed before the call, in all children. Blocks: for
    /// threads that own no ring; requests are flushed through lanes. After an error the data may be
    /// lost, and every later flush of the node fails as well.
    fn flush(&self) -> std::io::Result<()>;

    /// Takes the right to use the node, and what it stands on, in this way: files are locked
    /// against other processes. Does not wait for those. Called before the first request, and
    /// never by an iothread; the claim is dropped after the last one.
    fn claim(&self, rights: Rights) -> Result<Claim, ClaimError>;

    /// Gives the node another size: what is new reads as zeroes, what lies behind a smaller size is lost. Blocks. No lane is
    /// open on the node, on what stands above it or on what stands below, none is opened meanwhile, and the caller holds a
    /// claim for writing: nobody else uses the node. Lanes that are opened later see the new size. It is durable at the
    /// latest with the next flush; a loss of power before that leaves the old size or the new one. What was refused has
    /// changed nothing; after a failure either size may be there, and [`Node::size`] says which.
    fn resize(&self, _: DiskSize) -> Result<(), ResizeError> {
        Err(ResizeError::refused(self, "Image format driver does not support resize"))
    }

    /// The disk as it was at an instant, if the node keeps that: a node of its own, which others may read while this one is
    /// changed (QEMU's snapshot API of a driver).
    fn snapshot(&self) -> Option<Arc<dyn Node>> {
        None
    }

    /// The snapshots in the node's own storage, if it is an image that has some.
    fn internal_snapshots(&self) -> Option<Arc<dyn InternalSnapshots>> {
        None
    }

    /// Opens the calling thread's own handle. Called by an iothread before it serves the first
    /// ring on this node. What the lane needs of the iothread later is `io`, also for the lanes below.
    fn open_lane(&self, io: &LaneContext) -> Result<Box<dyn Lane>, LaneError>;
}

/// What a message calls a node: its file, and otherwise its name.
pub fn display_name(node: &dyn Node) -> String {
    match node.image_file() {
        Some(file) => file.display().to_string(),
        None => format!("node {}", node.name()),
    }
}

/// One iothread's private handle on a [`Node`]: maps requests without locks (SPDK's io_channel). Not `Send` by intent:
/// it may hold what belongs to its thread.
///
/// What stands on nothing and holds nothing is a [`LeafLane`]; a layer passes the calls on to the lanes below, all
/// but the first with [`pass_on_to!`](crate::pass_on_to) if it has nothing to do with them.
pub trait Lane: Debug {
    /// Answers every mapping of the batch, or holds it. Must not block or do I/O. The pieces of
    /// the answers are added to `pieces`.
    fn map(&mut self, batch: &mut [Mapping], pieces: &mut BatchPieces);

    /// Where all bytes of a read or a write are, if they follow each other in one storage or are zeroes, and the lane
    /// neither holds the operation, changes it, nor wants to hear of its end; `None` if [`Lane::map`] has to be asked. What a
    /// read finds behind the end of a file is up to the caller. It is true until the batch of
    /// the caller is answered, and changes nothing of what the other calls say. A layer above a plain file saves itself a
    /// question with it; a lane that always says `None` is only slower.
    fn locate(&mut self, _: Operation) -> Option<Target> {
        None
    }

    /// [`Lane::locate`] for many reads with one call, so that a layer can have its tables loaded for all of them together.
    /// Each query comes without a target and keeps its number; the lane may change their order.
    fn locate_reads(&mut self, queries: &mut [LocateQuery]) {
        for query in queries {
            query.target = self.locate(Operation::Read(query.extent));
        }
    }

    /// When [`Lane::resume`] has something to do; `None` while nothing is held, here or below, that
    /// waits for a time. Asked again after each of the other calls.
    fn due(&self) -> Option<WakeTime>;

    /// Adds what was held and may go on by now to `late`, with its token and its answer. Like
    /// [`Lane::map`] otherwise. May be called too early: then it adds nothing.
    fn resume(&mut self, now: Instant, late: &mut Vec<Mapping>, pieces: &mut BatchPieces);

    /// Makes everything due at once that is held, here and below: somebody waits for it to end. Not
    /// what comes later.
    fn release(&mut self);

    /// A request that was answered with [`AfterPiecesAction::NotifyLane`] was carried out, or was not, and nothing of it
    /// is in flight any more. What the lane keeps, it holds again, and answers once more.
    fn completed(&mut self, token: Token, outcome: Outcome) -> LaneCompletionDecision;

    /// [`Lane::completed`] for many requests with one call, for a lane that has something to do once for all of them.
    fn completed_together(&mut self, completed: &mut [CompletedRequest]) {
        for request in completed {
            request.decision = self.completed(request.token, request.outcome);
        }
    }
}

/// A lane of a node without children, which answers every request at once.
pub trait LeafLane: Debug {
    /// Answers a mapping, as [`Lane::map`] does.
    fn answer(&mut self, mapping: &mut Mapping, pieces: &mut BatchPieces);

    /// As [`Lane::locate`].
    fn locate(&mut self, _: Operation) -> Option<Target> {
        None
    }
}

impl<L: LeafLane> Lane for L {
    fn map(&mut self, batch: &mut [Mapping], pieces: &mut BatchPieces) {
        for mapping in batch {
            self.answer(mapping, pieces);
        }
    }

    fn locate(&mut self, operation: Operation) -> Option<Target> {
        LeafLane::locate(self, operation)
    }

    fn due(&self) -> Option<WakeTime> {
        None
    }

    fn resume(&mut self, _: Instant, _: &mut Vec<Mapping>, _: &mut BatchPieces) {}

    fn release(&mut self) {}

    fn completed(&mut self, token: Token, _: Outcome) -> LaneCompletionDecision {
        panic!("{token:?} did not ask to be told")
    }
}

/// For the [`Lane`] of a layer that only maps: passes the other calls on to the lane in this field.
#[macro_export]
macro_rules! pass_on_to {
    ($below:ident) => {
        fn due(&self) -> Option<$crate::WakeTime> {
            self.$below.due()
        }

        fn resume(
            &mut self,
            now: std::time::Instant,
            late: &mut Vec<$crate::Mapping>,
            pieces: &mut $crate::BatchPieces,
        ) {
            self.$below.resume(now, late, pieces);
        }

        fn release(&mut self) {
            self.$below.release();
        }

        fn completed(
            &mut self,
            token: $crate::Token,
            outcome: $crate::Outcome,
        ) -> $crate::LaneCompletionDecision {
            self.$below.completed(token, outcome)
        }

        fn completed_together(&mut self, completed: &mut [$crate::CompletedRequest]) {
            self.$below.completed_together(completed);
        }
    };
}

/// When a lane is to be called again, and how much later does no harm (timer slack).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WakeTime {
    /// Not before then.
    pub at: Instant,
    /// How much later does no harm. With zero the thread does not trust its sleep to end in time, and
    /// looks at the clock towards the end.
    pub slack: Duration,
}

impl WakeTime {
    /// The one of two that comes first.
    pub fn first(one: Option<Self>, other: Option<Self>) -> Option<Self> {
        match (one, other) {
            (Some(one), Some(other)) => Some(if one.at <= other.at { one } else { other }),
            (one, other) => one.or(other),
        }
    }
}

/// The request alignment and sizes that suit a node (QEMU's BlockLimits). All are hints for the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockLimits {
    /// Requests aligned to this many bytes need no read-modify-write. A power of two, at least
    /// 512.
    pub request_alignment: NonZeroU32,
    /// The size below which the storage itself rewrites more than it is asked to. A power of two.
    pub physical_block: NonZeroU32,
    /// Whether a discard does anything.
    pub discard: bool,
    /// What discards should be a multiple of, in bytes: less of them has no effect. A power of two, at
    /// least 512.
    pub discard_granularity: NonZeroU32,
    /// What gets a place at once when a part of it is written, in bytes: a cluster of an image, or a subcluster. A power
    /// of two; of storage that has all places from the beginning what a request is aligned to.
    pub allocation_unit: NonZeroU32,
}

/// The identifier of a request between a lane and its caller (a cookie): unique among the caller's requests there. It
/// means nothing to the lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Token(pub u32);

/// One operation that lanes map to where its bytes are, with the answer. What is carried out is the operation as the
/// lanes leave it, on the pieces of the answer.
#[derive(Debug, Clone, Copy)]
pub struct Mapping {
    /// Under which name the asker finds it again.
    pub token: Token,
    /// What is asked. A lane may rewrite it before it answers or asks the lane below.
    pub operation: Operation,
    /// Where the bytes live.
    pub answer: Answer,
    /// What becomes of it when the answer was carried out. Means nothing to a request that is refused.
    pub after: AfterPiecesAction,
    /// What a read finds behind the end of a file.
    pub eof_policy: EofPolicy,
    /// How the memory of a write is used.
    pub memory: BufferCopyPolicy,
}

impl Mapping {
    /// An operation that nobody has answered yet: what no lane answers is refused.
    pub fn new(token: Token, operation: Operation) -> Self {
        Self {
            token,
            operation,
            answer: Answer::Refused(FailKind::Io),
            after: AfterPiecesAction::Finish,
            eof_policy: EofPolicy::Error,
            memory: BufferCopyPolicy::Live,
        }
    }
}

/// A read whose place is asked for ([`Lane::locate_reads`]), and the answer.
#[derive(Debug)]
pub struct LocateQuery {
    /// What is read.
    pub extent: Extent,
    /// Where all of its bytes are, if the lane says so.
    pub target: Option<Target>,
    /// The number that the asker knows the query by. It means nothing to the lane.
    pub number: usize,
}

/// What [`Lane::map`] answers for an operation: the pieces to carry it out on, that it is held, or why it fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// Carry it out on these pieces, in any order.
    Now(PieceRange),
    /// It is held: the answer comes from [`Lane::resume`].
    Held,
    /// It cannot be carried out.
    Refused(FailKind),
}

/// What the engine does when the pieces of an answer are carried out: it finishes the request, or notifies its lane
/// first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AfterPiecesAction {
    /// It is over.
    Finish,
    /// The lane is told, and says. Until then it may keep other requests waiting, so the answer is carried out
    /// without waiting for anything else of this lane, not even for other parts of the same request.
    NotifyLane,
}

/// A request that was carried out, or was not, and what its lane says to that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CompletedRequest {
    /// The name that the lane knows it by.
    pub token: Token,
    /// What became of it.
    pub outcome: Outcome,
    /// What becomes of it now: before the lane is asked, that it is over.
    pub decision: LaneCompletionDecision,
}

impl CompletedRequest {
    /// One of which no lane has been told.
    pub fn new(token: Token, outcome: Outcome) -> Self {
        Self { token, outcome, decision: LaneCompletionDecision::Finish(outcome) }
    }
}

/// What a read behind the end of a file gives: an error, or zeroes. Writes make a file longer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EofPolicy {
    /// An error: the file was longer when it was opened.
    Error,
    /// Zeroes: a format need not fill its file to the last cluster.
    Zeroes,
}

/// Whether a write's memory is copied once before it is carried out, because its client may change it meanwhile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BufferCopyPolicy {
    /// As it is when each piece is carried out.
    Live,
    /// It is copied once, before anything of the request is carried out from then on. So its pieces may overlap in the
    /// bytes of the request: all copies that are written are equal.
    Copied,
}

impl BufferCopyPolicy {
    /// How a request is treated that is made of two.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Live, Self::Live) => Self::Live,
            (Self::Copied, _) | (_, Self::Copied) => Self::Copied,
        }
    }
}

/// What a lane decides when it is notified that an answer was carried out: the request is finished, or the lane holds
/// it for another answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LaneCompletionDecision {
    /// The request is over, and this is how it ended.
    Finish(Outcome),
    /// It is held again.
    HoldAgain,
}

/// Why a node was not given another size. The sentences are QEMU's where it has some.
#[derive(Debug, thiserror::Error)]
pub enum ResizeError {
    /// It cannot be; nothing was changed.
    #[error("node {node}: {why}")]
    Refused {
        /// The node-name.
        node: String,
        /// Why.
        why: &'static str,
    },
    /// Something has failed on the way.
    #[error("node {node}: {what}")]
    Failed {
        /// The node-name.
        node: String,
        /// What could not be done.
        what: &'static str,
        /// Why.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl ResizeError {
    /// Of that node, which is as it was.
    pub fn refused(node: &(impl Node + ?Sized), why: &'static str) -> Self {
        Self::Refused { node: node.name().to_owned(), why }
    }

    /// Of that node, which could not do that.
    pub fn failed(
        node: &(impl Node + ?Sized),
        what: &'static str,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Self::Failed { node: node.name().to_owned(), what, source: source.into() }
    }
}

/// A node could not open a lane for a thread.
#[derive(Debug, thiserror::Error)]
#[error("node {node}: cannot open a lane")]
pub struct LaneError {
    /// The node-name.
    pub node: String,
    /// Why.
    #[source]
    pub source: std::io::Error,
}
