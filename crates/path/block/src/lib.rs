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
mod channel;
mod child;
mod claim;
mod clock;
mod delay_queue;
mod extent;
mod failure;
mod gauge;
mod internal_io;
mod log_rate_limit;
mod medium;
mod node;
mod operation;
mod permission;
mod pieces;
mod range_lock;
mod status;
mod sync_coalescer;

pub use answer_memory::{AnswerMemory, AnswerMemoryError};
pub use buffers::{Buffers, HostMemory, MemoryCopy, Segment};
pub use channel::{BeginResult, Cancellation, Channel, ChannelId, ChannelWakeup, Interest, Tag};
pub use child::Child;
pub use claim::{Access, Claim, ClaimError, ClaimGuard, OwnerProcess, RetryHint, Rights};
pub use clock::{Clock, SystemClock};
pub use delay_queue::DelayQueue;
pub use extent::{ByteCount, ByteOffset, DiskSize, Extent, OutOfRange, SECTOR_BYTES, Sector};
pub use failure::IoFailure;
pub use gauge::{Gauge, GaugeWriter, Gauges};
pub use internal_io::{
    ChannelIds, ControlEngine, EngineFactory, InternalIo, InternalIoFuture, LaneContext, LaneOpener,
};
pub use log_rate_limit::LogRateLimit;
pub use medium::{Alignments, Medium, StableWrites};
pub use node::{
    Answer, BlockLimits, CompletionAction, CompletionDecision, EofPolicy, Lane, LaneError,
    LeafLane, Mapping, MemoryUse, Node, Token, WakeTime, display_name,
};
pub use operation::{Durability, FailKind, Operation, Outcome, RequestSlot, Unmap};
pub use permission::{Permission, Permissions};
pub use pieces::{FileId, PIECES_MAX, Piece, PieceList, PieceMark, PieceRange, StorageId, Target};
pub use range_lock::{RangeGuard, RangeLock};
pub use status::{BlockStatus, StatusRecord, StatusRun, StatusRuns};
pub use sync_coalescer::{SyncAction, SyncCoalescer, SyncGuard, SyncTicket};
