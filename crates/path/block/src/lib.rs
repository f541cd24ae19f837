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
mod errand;
mod extent;
mod failure;
mod gauge;
mod hold_queue;
mod medium;
mod node;
mod operation;
mod permission;
mod pieces;
mod range_lock;
mod rate;
mod status;
mod sync_turns;

pub use answer_memory::{AnswerMemory, AnswerMemoryFull};
pub use buffers::{Buffers, HostMemory, MemoryCopy, Segment};
pub use channel::{Begun, Cancel, Channel, ChannelId, Interest, Tag, Wants};
pub use child::Child;
pub use claim::{Access, Claim, ClaimError, Held, Outlook, Owner, Rights};
pub use clock::{Clock, SystemClock};
pub use errand::{
    ChannelNumbers, ControlEngine, EngineFactory, Errand, ErrandDone, LaneIo, MakeLane,
};
pub use extent::{ByteCount, ByteOffset, DiskSize, Extent, OutOfRange, SECTOR_BYTES, Sector};
pub use failure::IoFailure;
pub use gauge::{Gauge, GaugeWriter, Gauges};
pub use hold_queue::HoldQueue;
pub use medium::{Alignments, Medium, StableWrites};
pub use node::{
    After, Answer, BehindEnd, Due, Lane, LaneError, LeafLane, Limits, Mapping, MemoryUse, Node,
    Token, Told, known_as,
};
pub use operation::{Durability, FailKind, Operation, Outcome, Slot, Unmap};
pub use permission::{Permission, Permissions};
pub use pieces::{FileId, PIECES_MAX, Piece, PieceList, PieceMark, PieceRange, StorageId, Target};
pub use range_lock::{RangeGuard, RangeLock};
pub use rate::SentenceRate;
pub use status::{BlockStatus, StatusRecord, StatusRun, StatusRuns};
pub use sync_turns::{SyncGuard, SyncTicket, SyncTurn, SyncTurns};
