//! The words and contracts of the block layer: extents, operations, buffers, nodes and lanes.
//!
//! Where it stands in the life of a request: everywhere. A ring is decoded into an
//! [`Operation`] over [`Buffers`]; a [`Lane`] says where its bytes live; its [`Outcome`] goes
//! back to the guest.
//!
//! Not here: I/O and threads (`kernel_io`, `iothread`), the nodes themselves (`disk`).

#![deny(unsafe_code)]

mod answer_memory;
mod buffers;
mod capacity;
mod channel;
mod channel_lane;
mod child;
mod claim;
mod clock;
mod compute;
mod delay_queue;
mod extent;
mod failure;
mod gauge;
mod internal_io;
mod internal_snapshots;
mod log_rate_limit;
mod medium;
mod node;
mod operation;
mod permission;
mod pieces;
mod range_lock;
mod status;
mod storage_policy;
mod sync_coalescer;
mod zeroes;

pub use answer_memory::{AnswerBuffer, AnswerMemoryError};
pub use buffers::{Buffers, HostMemory, RequestMemory, RequestMemoryCopy, Segment};
pub use capacity::Capacity;
pub use channel::{
    BeginResult, CancellationSupport, Channel, ChannelId, ChannelWakeCondition, Interest, Tag,
};
pub use channel_lane::ChannelLane;
pub use child::Child;
pub use claim::{Access, Claim, ClaimError, ClaimGuard, RetryHint, Rights, TakeoverOwner};
pub use clock::{Clock, SystemClock};
pub use compute::{Computation, ComputeThreads, ComputeWork, compute};
pub use delay_queue::DelayQueue;
pub use extent::{ByteCount, ByteOffset, DiskSize, Extent, OutOfRange, SECTOR_BYTES, Sector};
pub use failure::IoFailure;
pub use gauge::{Gauge, GaugeWriter, Gauges, nanoseconds};
pub use internal_io::{
    ChannelIds, ControlEngine, EngineFactory, InternalIoFuture, InternalOperation, LaneContext,
    LaneOpener,
};
pub use internal_snapshots::{
    InternalSnapshots, NewSnapshot, SnapshotFailure, SnapshotInfo, SnapshotSelector,
};
pub use log_rate_limit::LogRateLimit;
pub use medium::{Alignments, DurableWriteMethod, Medium};
pub use node::{
    AfterPiecesAction, Answer, BlockLimits, BufferCopyPolicy, CompletedRequest, EofPolicy, Lane,
    LaneCompletionDecision, LaneError, LeafLane, LocateQuery, Mapping, Node, ResizeError, Token,
    WakeTime, display_name,
};
pub use operation::{
    Durability, FailKind, Operation, Outcome, SourceRequestSlot, Unmap, ZeroCost, ZeroTerms,
};
pub use permission::{Permission, Permissions};
pub use pieces::{
    BatchPieces, FileId, PIECES_MAX, Piece, PieceMark, PieceRange, StorageId, Target,
};
pub use range_lock::{RangeGuard, RangeLock};
pub use status::{BlockStatus, StatusRecord, StatusRun, StatusRuns};
pub use storage_policy::{DiscardPolicy, FlushPolicy, StoragePolicy};
pub use sync_coalescer::{SyncAction, SyncCoalescer, SyncGuard, SyncTicket};
pub use zeroes::is_zero;
