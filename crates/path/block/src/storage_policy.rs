//! What a node lets through to the storage that it stands for: a file, or a disk of a server.
//!
//! Threads: plain values, used by lanes in their maps; nothing here waits or allocates.

use crate::{
    Access, Answer, BatchPieces, ByteCount, ByteOffset, Durability, FailKind, Mapping, Operation,
    Piece, Target,
};

/// Whether discards reach the storage (`discard=`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiscardPolicy {
    /// They complete without any effect.
    Ignore,
    /// They give space back.
    Unmap,
}

/// Whether flushes are carried out (`cache.no-flush`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlushPolicy {
    /// They make durable what was written.
    Obeyed,
    /// They complete without any effect: a power loss may cost everything.
    Ignored,
}

/// What reaches the storage of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoragePolicy {
    /// Whether changes do.
    pub access: Access,
    /// Whether discards do.
    pub discard: DiscardPolicy,
    /// Whether flushes do.
    pub flushes: FlushPolicy,
}

impl StoragePolicy {
    /// Answers as [`LeafLane::answer`](crate::LeafLane::answer) does, with one piece or none; `target` is where a byte
    /// of the disk lives.
    #[inline]
    pub fn answer(
        self,
        mapping: &mut Mapping,
        pieces: &mut BatchPieces,
        target: impl Fn(ByteOffset) -> Target,
    ) {
        if mapping.operation.is_change() && self.access == Access::ReadOnly {
            mapping.answer = Answer::Refused(FailKind::ReadOnly);
            return;
        }
        let ignores_flushes = self.flushes == FlushPolicy::Ignored;
        let ignores_discards = self.discard == DiscardPolicy::Ignore;
        if ignores_flushes {
            mapping.operation = cached(mapping.operation);
        }
        let whole = |pieces: &mut BatchPieces, count, offset| {
            pieces.one(Piece { skip: 0, count, target: target(offset) })
        };
        mapping.answer = Answer::Now(match mapping.operation {
            Operation::Flush if ignores_flushes => pieces.none(),
            Operation::Discard(..) if ignores_discards => pieces.none(),
            Operation::WriteZeroes(extent, terms, durability) if ignores_discards => {
                let terms = terms.keeping_space();
                mapping.operation = Operation::WriteZeroes(extent, terms, durability);
                whole(pieces, extent.count(), extent.start())
            }
            Operation::Read(extent)
            | Operation::Status(extent)
            | Operation::Write(extent, _)
            | Operation::Discard(extent, _)
            | Operation::WriteZeroes(extent, _, _) => whole(pieces, extent.count(), extent.start()),
            Operation::Flush => whole(pieces, ByteCount(0), ByteOffset(0)),
        });
    }

    /// Where a request begins that is carried out as it is, as [`LeafLane::locate`](crate::LeafLane::locate) asks:
    /// reads, and writes that change nothing in their durability.
    #[inline]
    pub fn located(self, operation: Operation) -> Option<ByteOffset> {
        match operation {
            Operation::Read(extent) => Some(extent.start()),
            Operation::Write(extent, durability) => {
                let is_as_asked =
                    durability == Durability::Cached || self.flushes == FlushPolicy::Obeyed;
                (self.access == Access::ReadWrite && is_as_asked).then(|| extent.start())
            }
            Operation::Status(_)
            | Operation::Discard(..)
            | Operation::WriteZeroes(..)
            | Operation::Flush => None,
        }
    }
}

/// The same change, complete as soon as the storage has it.
fn cached(operation: Operation) -> Operation {
    match operation {
        Operation::Read(_) | Operation::Status(_) | Operation::Flush => operation,
        Operation::Write(extent, _) => Operation::Write(extent, Durability::Cached),
        Operation::Discard(extent, _) => Operation::Discard(extent, Durability::Cached),
        Operation::WriteZeroes(extent, terms, _) => {
            Operation::WriteZeroes(extent, terms, Durability::Cached)
        }
    }
}
