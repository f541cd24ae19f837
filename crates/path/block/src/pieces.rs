//! The pieces of answers: where the bytes of an operation live.
//!
//! Where it stands in the life of a request: lanes add pieces to the list of a batch; each answer names
//! its own by their range. The list keeps its room from batch to batch, so a warm iothread allocates
//! nothing for an answer.

use crate::{AnswerBuffer, BlockStatus, Buffers, ByteCount, ByteOffset, ChannelId};

/// The most pieces one answer has: a request of 256 MiB in the smallest chunks of a stripe. It bounds
/// what a hostile request makes the daemon remember.
pub const PIECES_MAX: usize = 1 << 16;

/// The most pieces whose room a list keeps.
const ROOM_KEPT: usize = 1 << 12;

/// A file that bytes live in. Opaque here; `kernel_io` resolves it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId(pub u32);

/// What stores a piece's bytes, as one iothread names it: a file or a channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum StorageId {
    /// A file.
    File(FileId),
    /// What is behind a channel.
    Channel(ChannelId),
}

/// Where the bytes of a piece are or go: in a file, nowhere, or in memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// At this place of a file. For a flush: the file whose data is to be made durable.
    File {
        /// The file.
        file: FileId,
        /// The place in the file.
        offset: ByteOffset,
    },
    /// At this place of what is behind a channel. For a flush: what is to be made durable.
    Channel {
        /// A channel of the iothread that is asked.
        channel: ChannelId,
        /// The place behind it.
        offset: ByteOffset,
    },
    /// Nowhere: reads return zeroes, changes are done already.
    Zeroes,
    /// Nowhere: reads leave the memory as it is, changes are done already.
    Nothing,
    /// In memory. Only of reads, which are copied out of it, and of writes, which are copied into it
    /// ([`crate::LaneContext::capture`]).
    Memory {
        /// The memory.
        memory: AnswerBuffer,
        /// The place in it, in bytes: it has less than 2 GiB.
        offset: u32,
    },
    /// That is what they are. Only of a status, which may be answered as a read as well.
    Status(BlockStatus),
}

impl Target {
    /// What stores the bytes, and where; `None` if nothing does.
    pub fn storage(&self) -> Option<(StorageId, ByteOffset)> {
        match self {
            Self::File { file, offset } => Some((StorageId::File(*file), *offset)),
            Self::Channel { channel, offset } => Some((StorageId::Channel(*channel), *offset)),
            Self::Zeroes | Self::Nothing | Self::Memory { .. } | Self::Status(_) => None,
        }
    }

    /// Whether the other one begins where so many bytes from here on end, in the same storage.
    pub fn is_followed_by(&self, count: ByteCount, other: &Self) -> bool {
        let end = |(storage, ByteOffset(at)): (StorageId, _)| {
            at.checked_add(count.0).map(|end| (storage, ByteOffset(end)))
        };
        other.storage().is_some_and(|begin| self.storage().and_then(end) == Some(begin))
    }

    /// So many bytes behind.
    #[must_use]
    pub fn behind(&self, bytes: u64) -> Self {
        match self {
            Self::File { file, offset } => {
                Self::File { file: *file, offset: ByteOffset(offset.0 + bytes) }
            }
            Self::Channel { channel, offset } => {
                Self::Channel { channel: *channel, offset: ByteOffset(offset.0 + bytes) }
            }
            Self::Memory { memory, offset } => {
                let bytes = u32::try_from(bytes).expect("the piece is in the memory");
                Self::Memory { memory: memory.clone(), offset: offset + bytes }
            }
            Self::Zeroes => Self::Zeroes,
            Self::Nothing => Self::Nothing,
            Self::Status(status) => Self::Status(*status),
        }
    }

    /// What bytes are that live there, as far as that tells it: a file may have holes.
    pub fn status(&self) -> BlockStatus {
        match self {
            Self::File { .. } | Self::Channel { .. } | Self::Memory { .. } => BlockStatus::DATA,
            Self::Zeroes => BlockStatus::ZEROES,
            Self::Nothing => BlockStatus::NOTHING,
            Self::Status(status) => *status,
        }
    }
}

/// A run of an operation's bytes, and where it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// Where the run starts, in bytes from the operation's first: its place in memory. Of an operation
    /// without memory the pieces only count its bytes: whose they are does not matter.
    pub skip: u64,
    /// The number of bytes; 0 for a flush.
    pub count: ByteCount,
    /// Where they live.
    pub target: Target,
}

impl Piece {
    /// The bytes, if they are in memory.
    pub fn in_memory(&self) -> Option<&[u8]> {
        match &self.target {
            Target::Memory { memory, offset } => memory.get(*offset, self.count),
            Target::File { .. }
            | Target::Channel { .. }
            | Target::Zeroes
            | Target::Nothing
            | Target::Status(_) => None,
        }
    }

    /// Copies so many bytes of a write to where they go, if that is memory: from `from` on in the piece.
    pub fn put_in_memory(&self, write: &Buffers, from: usize, count: usize) {
        if let Target::Memory { memory, offset } = &self.target {
            let skip = usize::try_from(self.skip).expect("64-bit host") + from;
            memory.put(*offset as usize + from, write, skip, count);
        }
    }
}

const _: () = assert!(size_of::<Piece>() == 32, "what clients can make the daemon remember");

/// In the place of a piece that was moved.
const MOVED: Piece = Piece { skip: u64::MAX, count: ByteCount(0), target: Target::Nothing };

/// The pieces of one answer: a range of a [`BatchPieces`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PieceRange {
    start: u32,
    end: u32,
}

impl PieceRange {
    /// How many pieces.
    pub fn count(self) -> usize {
        self.end as usize - self.start as usize
    }
}

/// The pieces of all answers of a batch. Those of one answer cover the operation's bytes once, in any order (of a
/// status those that it tells about); of one that its lane is told of ([`crate::AfterPiecesAction::NotifyLane`]) all
/// answers together do. Those of a write may do so more than once if its memory is copied
/// ([`crate::BufferCopyPolicy::Copied`]). Pieces that follow each other in one storage are carried out together if they follow
/// each other here.
#[derive(Debug, Default)]
pub struct BatchPieces {
    pieces: Vec<Piece>,
}

impl BatchPieces {
    /// Where the next piece goes.
    pub fn end(&self) -> PieceMark {
        PieceMark(self.place())
    }

    /// Adds a piece behind the others.
    pub fn push(&mut self, piece: Piece) {
        self.pieces.push(piece);
    }

    /// Adds an answer of one piece, by far the most frequent.
    pub fn one(&mut self, piece: Piece) -> PieceRange {
        let start = self.place();
        self.pieces.push(piece);
        PieceRange { start, end: start + 1 }
    }

    /// An answer without any piece: there is nothing to do.
    pub fn none(&self) -> PieceRange {
        PieceRange { start: 0, end: 0 }
    }

    /// What was added since that mark, as an answer.
    pub fn since(&self, mark: PieceMark) -> PieceRange {
        PieceRange { start: mark.0, end: self.place() }
    }

    /// The pieces of an answer, in order.
    pub fn get(&self, range: PieceRange) -> &[Piece] {
        &self.pieces[range.start as usize..range.end as usize]
    }

    /// Moves the pieces of an answer behind those of `into`. Panics if they were moved before: each answer has its own.
    #[inline]
    pub fn take(&mut self, range: PieceRange, into: &mut Vec<Piece>) {
        for piece in &mut self.pieces[range.start as usize..range.end as usize] {
            assert!(piece.skip != MOVED.skip, "two answers name one piece");
            into.push(std::mem::replace(piece, MOVED));
        }
    }

    /// The piece of an answer, by its place in it. For who adds pieces made of others meanwhile.
    pub fn at(&self, range: PieceRange, place: usize) -> Option<Piece> {
        self.get(range).get(place).cloned()
    }

    /// Forgets all answers, keeps the room that a batch needs but for a hostile one.
    pub fn clear(&mut self) {
        self.pieces.clear();
        self.pieces.shrink_to(ROOM_KEPT);
    }

    fn place(&self) -> u32 {
        u32::try_from(self.pieces.len()).expect("a batch has fewer pieces than memory has bytes")
    }
}

/// A position in a [`BatchPieces`]: what is pushed after it can be made an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PieceMark(u32);

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(skip: u64) -> Piece {
        Piece { skip, count: ByteCount(1), target: Target::Zeroes }
    }

    #[test]
    #[should_panic(expected = "two answers name one piece")]
    fn a_piece_is_moved_once() {
        let mut list = BatchPieces::default();
        let (answer, mut moved) = (list.one(piece(1)), Vec::new());
        list.take(answer, &mut moved);
        assert_eq!(moved, [piece(1)]);
        list.take(answer, &mut moved);
    }

    #[test]
    fn answers_share_a_list_and_keep_their_own_pieces() {
        let mut list = BatchPieces::default();
        let first = list.one(piece(7));
        let mark = list.end();
        list.push(piece(0));
        list.push(piece(1));
        let second = list.since(mark);
        assert_eq!(list.get(first), [piece(7)]);
        assert_eq!(list.get(second), [piece(0), piece(1)]);
        assert_eq!((list.at(second, 1), list.at(second, 2)), (Some(piece(1)), None));
        assert!(list.get(list.none()).is_empty());
    }
}
