//! The contract between the block graph and those who use it: nodes and lanes.
//!
//! Where it stands in the life of a request: an iothread opens one [`Lane`] on each [`Node`] it
//! serves. It hands the lane whole batches of decoded operations; the lane answers at once and
//! without I/O where the bytes live. A layer answers by asking the lane below with the extents
//! changed.
//!
//! Threads: a node is shared by all iothreads; a lane belongs to the thread that opened it.
//! Limits: an answer has at most [`PIECES_MAX`] pieces.

use std::fmt::Debug;
use std::num::NonZeroU32;

use crate::{ByteCount, ByteOffset, Claim, ClaimError, DiskSize, FailKind, Operation, Rights};

/// The most pieces one answer has. Four cover a stripe's border on both sides; raw and file need
/// one.
pub const PIECES_MAX: usize = 4;

/// A vertex of the block graph.
pub trait Node: Debug + Send + Sync {
    /// The node-name, as in `--blockdev node-name=`.
    fn name(&self) -> &str;

    /// The size a guest sees.
    fn size(&self) -> DiskSize;

    /// What requests suit the node.
    fn limits(&self) -> Limits;

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

    /// Opens the calling thread's own handle. Called by an iothread before it serves the first
    /// ring on this node.
    fn open_lane(&self) -> Result<Box<dyn Lane>, LaneError>;
}

/// One iothread's handle on a node. Not `Send` by intent: it may hold what belongs to its thread.
pub trait Lane: Debug {
    /// Answers every mapping of the batch. Must not block, do I/O or leave one unanswered.
    fn map(&mut self, batch: &mut [Mapping]);
}

/// Whether something takes changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Reads and flushes only.
    ReadOnly,
    /// Everything.
    ReadWrite,
}

/// What requests suit a node. All are hints for the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Requests aligned to this many bytes need no read-modify-write. A power of two, at least
    /// 512.
    pub request_alignment: NonZeroU32,
    /// The size below which the storage itself rewrites more than it is asked to. A power of two.
    pub physical_block: NonZeroU32,
    /// Whether a discard does anything.
    pub discard: bool,
}

/// A file that bytes live in. Opaque here; `kernel_io` resolves it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FileId(pub u32);

/// One operation on its way through the lanes, and the answer to it. What is carried out is the
/// operation as the lanes leave it, on the pieces of the answer.
#[derive(Debug, Clone, Copy)]
pub struct Mapping {
    /// What is asked. A lane may rewrite it before it answers or asks the lane below.
    pub operation: Operation,
    /// Where the bytes live.
    pub answer: Answer,
}

/// A lane's answer to one operation.
#[derive(Debug, Clone, Copy)]
pub enum Answer {
    /// Carry it out on these pieces, in any order.
    Now(Pieces),
    /// It cannot be carried out.
    Refused(FailKind),
}

/// Where a run of bytes lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// At this place of a file. For a flush: the file whose data is to be made durable.
    File {
        /// The file.
        file: FileId,
        /// The place in the file.
        offset: ByteOffset,
    },
    /// Nowhere: reads return zeroes, changes are done already.
    Zeroes,
    /// Nowhere: reads leave the memory as it is, changes are done already.
    Nothing,
}

/// A run of bytes of one operation and where it lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// The number of bytes; 0 for a flush.
    pub count: ByteCount,
    /// Where they live.
    pub target: Target,
}

/// The pieces of one answer, in the order of the operation's bytes; their counts add up to the
/// operation's. Kept in place: an answer allocates nothing.
#[derive(Debug, Clone, Copy)]
pub struct Pieces {
    pieces: [Piece; PIECES_MAX],
    used: u8,
}

impl Pieces {
    /// An answer without any piece: there is nothing to do.
    pub fn none() -> Self {
        let nothing = Piece { count: ByteCount(0), target: Target::Nothing };
        Self { pieces: [nothing; PIECES_MAX], used: 0 }
    }

    /// An answer of one piece, by far the most frequent.
    pub fn one(piece: Piece) -> Self {
        let nothing = Piece { count: ByteCount(0), target: Target::Nothing };
        Self { pieces: [piece, nothing, nothing, nothing], used: 1 }
    }

    /// Adds a piece behind the others.
    pub fn push(&mut self, piece: Piece) -> Result<(), TooManyPieces> {
        let place = self.pieces.get_mut(usize::from(self.used)).ok_or(TooManyPieces)?;
        *place = piece;
        self.used += 1;
        Ok(())
    }

    /// Becomes the same answer. Copies only the pieces that are used, mostly one of four.
    pub fn copy_from(&mut self, other: &Self) {
        let used = usize::from(other.used);
        self.pieces[..used].copy_from_slice(&other.pieces[..used]);
        self.used = other.used;
    }

    /// The pieces in order.
    pub fn as_slice(&self) -> &[Piece] {
        &self.pieces[..usize::from(self.used)]
    }
}

/// An answer needs more pieces than it can hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an answer holds at most {PIECES_MAX} pieces")]
pub struct TooManyPieces;

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

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(count: u64) -> Piece {
        Piece { count: ByteCount(count), target: Target::Zeroes }
    }

    #[test]
    fn an_answer_keeps_its_pieces_in_order_and_refuses_a_fifth() {
        let mut pieces = Pieces::none();
        for count in 1..=4 {
            pieces.push(piece(count)).unwrap();
        }
        assert_eq!(pieces.push(piece(5)), Err(TooManyPieces));
        assert_eq!(pieces.as_slice(), [piece(1), piece(2), piece(3), piece(4)]);
    }

    #[test]
    fn an_answer_of_one_piece_has_one_piece() {
        assert_eq!(Pieces::one(piece(7)).as_slice(), [piece(7)]);
        assert!(Pieces::none().as_slice().is_empty());
    }
}
