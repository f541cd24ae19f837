//! The words and contracts of the block layer: extents, operations, buffers, nodes and lanes.
//!
//! Where it stands in the life of a request: everywhere. A ring is decoded into an
//! [`Operation`] over [`Buffers`]; a [`Lane`] says where its bytes live; its [`Outcome`] goes
//! back to the guest.
//!
//! Not here: I/O and threads (`kernel_io`, `iothread`), the nodes themselves (`disk`).

#![deny(unsafe_code)]

mod buffers;
mod claim;
mod clock;
mod extent;
mod node;
mod operation;
mod rate;

pub use buffers::{Buffers, Segment};
pub use claim::{Claim, ClaimError, Held, Others, Outlook, Rights};
pub use clock::{Clock, SystemClock};
pub use extent::{ByteCount, ByteOffset, DiskSize, Extent, OutOfRange, SECTOR_BYTES, Sector};
pub use node::{
    Access, Answer, FileId, Lane, LaneError, Limits, Mapping, Node, PIECES_MAX, Piece, Pieces,
    Target, TooManyPieces,
};
pub use operation::{Durability, FailKind, Operation, Outcome, Unmap};
pub use rate::SentenceRate;
