//! Transfers that direct I/O cannot do in place: through a bounce buffer, chunk by chunk, with
//! read-modify-write where a chunk does not fill whole blocks.
//!
//! Where it stands in the life of a request: a job has a list of them for its misaligned pieces
//! and carries out one after the other, with one buffer.
//!
//! Here is only the deciding: what to do next ([`BounceTransfer::begin`], [`BounceTransfer::proceed`]). `io_request` does
//! it.

use block::{ByteOffset, Medium, StorageId};
use kernel_io::BounceSize;

/// What a bounced transfer does: read, write, or write zeroes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BounceOperation {
    /// Storage to request memory.
    Read,
    /// Request memory to storage.
    Write,
    /// Zeroes to storage.
    Zero,
}

/// A transfer that direct I/O cannot do in place, and that goes through bounce buffers chunk by chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BounceTransfer {
    pub(crate) kind: BounceOperation,
    pub(crate) storage: StorageId,
    /// Where the bytes that are left start there.
    pub(crate) at: u64,
    /// Where they start in the request's memory.
    pub(crate) skip: usize,
    /// How many are left.
    pub(crate) left: u64,
    /// The buffer that it needs: it has one from its beginning to its end.
    pub(crate) size: BounceSize,
    /// What ranges must be a multiple of; a power of two, at most [`kernel_io::BOUNCE_BYTES`].
    pub(crate) alignment: u64,
    /// The most bytes that are read or written at once: a multiple of that, and likewise bounded.
    pub(crate) chunk_max: u64,
    pub(crate) step: BounceStep,
}

/// What the kernel does for the current chunk: nothing, reading, writing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BounceStep {
    Idle,
    Reading,
    Writing,
}

/// The part of a transfer that one bounce buffer takes: whole blocks around the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BounceChunk {
    /// Where the blocks start in the storage.
    pub(crate) start: ByteOffset,
    /// The blocks' bytes.
    pub(crate) count: usize,
    /// Where the transfer's bytes start in the blocks.
    pub(crate) lead: usize,
    /// How many bytes of the transfer are in the blocks.
    pub(crate) body: usize,
}

/// What to do next with the current chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BounceAction {
    /// Read the chunk's blocks into the buffer.
    Read(BounceChunk),
    /// Put the transfer's bytes of the chunk into the buffer, then write the blocks.
    FillAndWrite(BounceChunk),
    /// All bytes are through.
    Finished,
}

impl BounceTransfer {
    /// These bytes, of which nothing was moved yet.
    pub(crate) fn new(
        kind: BounceOperation,
        (storage, medium): (StorageId, &Medium),
        at: u64,
        skip: usize,
        left: u64,
    ) -> Self {
        let alignment = u64::from(medium.alignments().offset);
        let blocks = (at % alignment).saturating_add(left).checked_next_multiple_of(alignment);
        let size = BounceSize::of(blocks.unwrap_or(u64::MAX));
        let chunk_max = medium.transfer_max().min(size.bytes() as u64);
        Self { kind, storage, at, skip, left, size, alignment, chunk_max, step: BounceStep::Idle }
    }

    /// The chunk that starts where the bytes that are left start.
    pub(crate) fn chunk(&self) -> BounceChunk {
        let lead = self.at % self.alignment;
        let body = self.left.min(self.chunk_max - lead);
        let count = (lead + body).next_multiple_of(self.alignment);
        let bounded = |bytes: u64| usize::try_from(bytes).expect("at most a bounce buffer");
        BounceChunk {
            start: ByteOffset(self.at - lead),
            count: bounded(count),
            lead: bounded(lead),
            body: bounded(body),
        }
    }

    /// What to do first with the next chunk.
    pub(crate) fn begin(&mut self) -> BounceAction {
        if self.left == 0 {
            return BounceAction::Finished;
        }
        let chunk = self.chunk();
        let whole = chunk.lead == 0 && chunk.body == chunk.count;
        if self.kind == BounceOperation::Read || !whole {
            self.step = BounceStep::Reading;
            BounceAction::Read(chunk)
        } else {
            self.step = BounceStep::Writing;
            BounceAction::FillAndWrite(chunk)
        }
    }

    /// What to do after the kernel has finished the current step. If a read has finished that
    /// was the transfer's purpose, its bytes must be copied out of the buffer before.
    pub(crate) fn proceed(&mut self) -> BounceAction {
        match (self.step, self.kind) {
            (BounceStep::Reading, BounceOperation::Write | BounceOperation::Zero) => {
                self.step = BounceStep::Writing;
                BounceAction::FillAndWrite(self.chunk())
            }
            (BounceStep::Reading, BounceOperation::Read) | (BounceStep::Writing, _) => {
                let body = self.chunk().body;
                self.at += body as u64;
                self.skip += body;
                self.left -= body as u64;
                self.step = BounceStep::Idle;
                self.begin()
            }
            (BounceStep::Idle, _) => panic!("a step finished that was never begun"),
        }
    }
}

#[cfg(test)]
mod tests {
    use kernel_io::BOUNCE_BYTES;

    use super::*;
    use block::FileId;

    fn staged(kind: BounceOperation, at: u64, left: u64) -> BounceTransfer {
        let (storage, alignment) = (StorageId::File(FileId(0)), 4096);
        let chunk_max = BOUNCE_BYTES as u64;
        BounceTransfer {
            kind,
            storage,
            at,
            skip: 0,
            left,
            size: BounceSize::Large,
            alignment,
            chunk_max,
            step: BounceStep::Idle,
        }
    }

    /// Carries a transfer out on vectors and says which blocks it read and wrote.
    fn play(
        mut transfer: BounceTransfer,
        disk: &mut [u8],
        memory: &mut [u8],
    ) -> Vec<(char, u64, usize)> {
        let mut log = Vec::new();
        let mut buffer = vec![0xee; BOUNCE_BYTES];
        let mut next = transfer.begin();
        loop {
            match next {
                BounceAction::Finished => return log,
                BounceAction::Read(chunk) => {
                    let start = usize::try_from(chunk.start.0).unwrap();
                    buffer[..chunk.count].copy_from_slice(&disk[start..start + chunk.count]);
                    log.push(('r', chunk.start.0, chunk.count));
                    if transfer.kind == BounceOperation::Read {
                        memory[transfer.skip..transfer.skip + chunk.body]
                            .copy_from_slice(&buffer[chunk.lead..chunk.lead + chunk.body]);
                    }
                }
                BounceAction::FillAndWrite(chunk) => {
                    let place = &mut buffer[chunk.lead..chunk.lead + chunk.body];
                    match transfer.kind {
                        BounceOperation::Write => place
                            .copy_from_slice(&memory[transfer.skip..transfer.skip + chunk.body]),
                        BounceOperation::Zero => place.fill(0),
                        BounceOperation::Read => panic!("a read writes"),
                    }
                    let start = usize::try_from(chunk.start.0).unwrap();
                    disk[start..start + chunk.count].copy_from_slice(&buffer[..chunk.count]);
                    log.push(('w', chunk.start.0, chunk.count));
                }
            }
            next = transfer.proceed();
        }
    }

    #[track_caller]
    fn check_write(at: usize, count: usize, expected: &[(char, u64, usize)]) {
        let mut disk: Vec<u8> = (0..=250).cycle().take(1 << 20).collect();
        let mut memory: Vec<u8> = (0..count).map(|i| u8::try_from(i % 7).unwrap() + 100).collect();
        let mut model = disk.clone();
        model[at..at + count].copy_from_slice(&memory);
        let transfer = staged(BounceOperation::Write, at as u64, count as u64);
        assert_eq!(play(transfer, &mut disk, &mut memory), expected);
        assert!(disk == model, "{count} bytes at {at} went elsewhere");
    }

    #[test]
    fn a_write_reads_only_the_chunks_it_does_not_fill() {
        check_write(0, 4096, &[('w', 0, 4096)]);
        check_write(512, 512, &[('r', 0, 4096), ('w', 0, 4096)]);
        check_write(4096, 512, &[('r', 4096, 4096), ('w', 4096, 4096)]);
        check_write(4000, 200, &[('r', 0, 8192), ('w', 0, 8192)]);
        check_write(
            0,
            BOUNCE_BYTES + 512,
            &[('w', 0, BOUNCE_BYTES), ('r', 262_144, 4096), ('w', 262_144, 4096)],
        );
    }

    #[test]
    fn a_read_brings_exactly_its_bytes() {
        for (at, count) in [(0, 512), (512, 512), (4095, 2), (100, BOUNCE_BYTES * 2), (4096, 4096)]
        {
            let mut disk: Vec<u8> = (0..=250).cycle().take(1 << 20).collect();
            let mut memory = vec![0xff; count];
            play(staged(BounceOperation::Read, at as u64, count as u64), &mut disk, &mut memory);
            assert!(memory == disk[at..at + count], "{count} bytes at {at}");
        }
    }

    #[test]
    fn zeroing_keeps_the_neighbours() {
        let mut disk = vec![7; 16384];
        play(staged(BounceOperation::Zero, 1000, 6000), &mut disk, &mut []);
        assert!(disk[..1000].iter().chain(&disk[7000..]).all(|&byte| byte == 7));
        assert!(disk[1000..7000].iter().all(|&byte| byte == 0));
    }

    #[test]
    fn a_transfer_of_nothing_is_finished() {
        assert_eq!(staged(BounceOperation::Read, 5, 0).begin(), BounceAction::Finished);
    }
}
