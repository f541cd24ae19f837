//! From a piece of an answer to kernel operations: in place where direct I/O can, staged where it
//! cannot; and what a failure means.
//!
//! Where it stands in the life of a request: `engine` calls it for each piece in a file.

use block::{
    Alignments, Buffers, ByteCount, ByteOffset, Durability, DurableWriteMethod, FailKind, Medium,
    Operation, Piece, Segment, StorageId, Tag,
};
use kernel_io::{DiscardOrZeroGoal, EngineKernel, IoFailure};

use crate::bounce_transfer::{BounceOperation, BounceTransfer};
use crate::io_request::{IoRequest, KernelEventTarget, RequestPhase};
use crate::storage_backends::FileAndChannelBackends;

/// How many pieces of an answer are begun in one go, and the most that go to the kernel together: 1 MiB of chunks of
/// 4 KiB.
pub(crate) const WINDOW: usize = 256;

/// Neighbouring pieces of a request that are contiguous in one file and are submitted together.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PieceRun<'a> {
    pub(crate) storage: StorageId,
    pub(crate) offset: ByteOffset,
    pub(crate) count: u64,
    /// Where the bytes are in the request's memory; never empty.
    pub(crate) pieces: &'a [Piece],
}

impl<'a> PieceRun<'a> {
    /// Where the window ends that this place is in.
    pub(crate) fn window(pieces: &[Piece], place: usize) -> usize {
        pieces.len().min((place / WINDOW + 1) * WINDOW)
    }

    /// As many of the pieces from this place on as are carried out together, if the first is in storage: all of the window
    /// that follow each other there, if the operation moves bytes. The others need no memory, and may have to be done
    /// otherwise, each by itself.
    pub(crate) fn of(pieces: &'a [Piece], place: usize, operation: Operation) -> Option<Self> {
        Self::first_of(&pieces[place..Self::window(pieces, place)], operation)
    }

    fn first_of(pieces: &'a [Piece], operation: Operation) -> Option<Self> {
        let (first, rest) = pieces.split_first()?;
        let (storage, offset) = first.target.storage()?;
        let mut run = Self { storage, offset, count: first.count.0, pieces: &pieces[..1] };
        if matches!(operation, Operation::Read(_) | Operation::Write(..)) {
            for piece in rest {
                if !first.target.is_followed_by(ByteCount(run.count), &piece.target) {
                    break;
                }
                run.count += piece.count.0;
                run.pieces = &pieces[..=run.pieces.len()];
            }
        }
        Some(run)
    }

    /// The memory of the run, in the order of the storage.
    fn memory(self, memory: &Buffers) -> impl Iterator<Item = Segment> {
        self.pieces.iter().flat_map(|piece| memory.range(skip(piece), bytes(piece)))
    }
}

fn skip(piece: &Piece) -> usize {
    usize::try_from(piece.skip).expect("64-bit host")
}

fn bytes(piece: &Piece) -> usize {
    usize::try_from(piece.count.0).expect("64-bit host")
}

/// Submits one run and returns how many operations that is. What direct I/O cannot do in place is
/// added to `staged`.
pub(crate) fn submit_run(
    storages: &mut FileAndChannelBackends<'_, impl EngineKernel>,
    operation: Operation,
    run: PieceRun<'_>,
    memory: &Buffers,
    staged: &mut Vec<BounceTransfer>,
    addressee: KernelEventTarget,
) -> u32 {
    let PieceRun { storage, offset, pieces, .. } = run;
    let tag = addressee.to_tag();
    let is_lent = storages.takes_guest_memory(storage);
    let medium = storages.medium(storage);
    let Alignments { memory: memory_alignment, offset: length_alignment, .. } = medium.alignments();
    let alignment = u64::from(length_alignment);
    let is_aligned = |piece: &Piece| (piece.skip | piece.count.0).is_multiple_of(alignment);
    let in_place = is_lent
        && offset.0.is_multiple_of(alignment)
        && pieces.iter().all(is_aligned)
        // The kernel wants every segment, not only their sum, to be whole blocks.
        && memory.is_aligned(memory_alignment as usize, length_alignment as usize);
    let mut stage = |kind| {
        let mut at = offset.0;
        for piece in pieces {
            staged.push(BounceTransfer::new(
                kind,
                (storage, medium),
                at,
                skip(piece),
                piece.count.0,
            ));
            at += piece.count.0;
        }
        0
    };
    match operation {
        Operation::Read(_) if !in_place => stage(BounceOperation::Read),
        Operation::Write(..) if !in_place => stage(BounceOperation::Write),
        Operation::Read(_) => match pieces {
            [one] => storages.read((storage, offset), memory.range(skip(one), bytes(one)), tag),
            _ => storages.read((storage, offset), run.memory(memory), tag),
        },
        Operation::Write(_, durability) => {
            // Made durable afterwards if it is less, see `must_sync`.
            let durability = medium.write_as(durability);
            match pieces {
                [one] => {
                    let memory = memory.range(skip(one), bytes(one));
                    storages.write((storage, offset), durability, memory, tag)
                }
                _ => storages.write((storage, offset), durability, run.memory(memory), tag),
            }
        }
        Operation::Discard(..) => {
            submit_allocation(storages, run, DiscardOrZeroGoal::Discard, None, tag)
        }
        Operation::WriteZeroes(_, terms, _) => {
            let how = DiscardOrZeroGoal::Zeroes(terms);
            submit_allocation(storages, run, how, Some(staged), tag)
        }
        Operation::Flush | Operation::Status(_) => panic!("no bytes of files are moved for it"),
    }
}

/// Discards or zeroes the whole blocks of a run and returns how many operations that is. The
/// parts of blocks at its ends are added to `zero_ends`, or left alone.
fn submit_allocation(
    storages: &mut FileAndChannelBackends<'_, impl EngineKernel>,
    run: PieceRun<'_>,
    how: DiscardOrZeroGoal,
    zero_ends: Option<&mut Vec<BounceTransfer>>,
    tag: Tag,
) -> u32 {
    let medium = storages.medium(run.storage);
    let bytes = run.offset.0..run.offset.0 + run.count;
    let whole = medium.allocation_blocks(&bytes);
    if let Some(staged) = zero_ends {
        for end in [bytes.start..whole.start, whole.end..bytes.end] {
            let (at, left) = (end.start, end.end - end.start);
            if left > 0 {
                staged.push(BounceTransfer::new(
                    BounceOperation::Zero,
                    (run.storage, medium),
                    at,
                    0,
                    left,
                ));
            }
        }
    }
    if whole.is_empty() {
        return 0;
    }
    let count = ByteCount(whole.end - whole.start);
    storages.allocate((run.storage, ByteOffset(whole.start)), count, how, tag);
    1
}

/// Whether a job whose bytes are there has to sync their storage before it is over.
pub(crate) fn must_sync(
    job: &IoRequest,
    storages: &mut FileAndChannelBackends<'_, impl EngineKernel>,
) -> bool {
    if job.phase == RequestPhase::Sync {
        return false;
    }
    let stable = job.operation.durability() == Durability::Stable;
    match job.operation {
        Operation::Flush => true,
        Operation::Read(_) | Operation::Status(_) => false,
        Operation::Discard(..) | Operation::WriteZeroes(..) => stable,
        Operation::Write(..) => {
            let by_sync = |piece: &Piece| {
                piece.target.storage().is_some_and(|(storage, _)| {
                    storages.medium(storage).stable_writes() == DurableWriteMethod::BySync
                })
            };
            stable && job.pieces.iter().any(by_sync)
        }
    }
}

/// As what the bytes of a request are written to its storage: those of a zeroing are synced together at its end.
pub(crate) fn write_durability(operation: Operation, medium: &Medium) -> Durability {
    match operation {
        Operation::Write(_, durability) => medium.write_as(durability),
        Operation::Read(_)
        | Operation::Status(_)
        | Operation::Discard(..)
        | Operation::WriteZeroes(..)
        | Operation::Flush => Durability::Cached,
    }
}

/// Whether a failed write may have been told, in place of a later flush, that data of others is lost.
/// A stable write is a write and a sync in one, and nobody says which of them failed; but a lack of
/// space is found before anything is written.
pub(crate) fn may_hide_lost_data(durability: Durability, failure: IoFailure) -> bool {
    durability == Durability::Stable && failure.kind() == FailKind::Io
}

#[cfg(test)]
mod tests {
    use super::*;
    use block::{FileId, Target};

    const FILE: FileId = FileId(1);

    fn piece(skip: u64, offset: Option<u64>) -> Piece {
        let file = |offset| Target::File { file: FILE, offset: ByteOffset(offset) };
        Piece { skip, count: ByteCount(8), target: offset.map_or(Target::Zeroes, file) }
    }

    #[track_caller]
    fn check_run(operation: Operation, pieces: &[Piece], expected: Option<(usize, u64)>) {
        let run = PieceRun::first_of(pieces, operation);
        assert_eq!(run.map(|run| (run.pieces.len(), run.count)), expected);
    }

    #[test]
    fn pieces_that_follow_each_other_in_a_file_go_together() {
        let size = block::DiskSize(ByteCount(64));
        let extent = size.check(ByteOffset(0), ByteCount(32)).expect("inside");
        let read = Operation::Read(extent);
        // As a stripe cuts: each second chunk of the memory, all of one file.
        let strided = [piece(0, Some(0)), piece(16, Some(8)), piece(8, Some(0)), piece(24, None)];
        check_run(read, &strided, Some((2, 16)));
        check_run(Operation::Write(extent, Durability::Stable), &strided, Some((2, 16)));
        check_run(read, &strided[1..], Some((1, 8)));
        check_run(read, &strided[2..], Some((1, 8)));
        check_run(read, &strided[3..], None);
        check_run(read, &[], None);
        // What has no memory may have to be done otherwise, each by itself.
        check_run(Operation::Discard(extent, Durability::Cached), &strided, Some((1, 8)));
        let elsewhere = Target::File { file: FileId(2), offset: ByteOffset(8) };
        let two_files = [piece(0, Some(0)), Piece { target: elsewhere, ..piece(8, None) }];
        check_run(read, &two_files, Some((1, 8)));
    }
}
