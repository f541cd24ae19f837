//! What the bytes of a status are, where its pieces do not say it: the holes of a file, and what a channel tells.
//!
//! Where it stands in the life of a request: between the answer of its lanes and its end, when the records go into its
//! memory.
//!
//! Limits: a piece in a file is looked at until there are as many runs as the memory has room for, and once in any case. Of
//! pieces behind channels the first one is asked for, once, through a bounce buffer that is filled by at most
//! [`RECORDS_BYTES`]; the answer ends with what that tells.

use block::{
    BlockStatus, ByteCount, ByteOffset, Operation, Outcome, Piece, StatusRecord, StorageId, Tag,
    Target,
};
use kernel_io::{BounceBuffer, BounceSize, EngineKernel, FileExtent, IoFailure};

use super::Engine;
use crate::bounce_transfer::{BounceOperation, BounceTransfer};
use crate::io_request::{IoRequest, KernelEventTarget, RequestIndex};
use crate::storage_backends::{FileAndChannelBackends, extent};

/// The memory for what a channel tells.
const RECORDS_BYTES: usize = 256 * StatusRecord::BYTES;
const _: () = assert!(RECORDS_BYTES <= BounceSize::Small.bytes(), "any buffer has room for them");

impl IoRequest {
    /// Takes what a piece of a status says, or has its storage tell it.
    pub(super) fn begin_status_piece(
        &mut self,
        place: usize,
        storages: &mut FileAndChannelBackends<'_, impl EngineKernel>,
        tag: Tag,
    ) {
        let Piece { skip, count, ref target } = self.pieces[place];
        match *target {
            Target::File { file, offset } => {
                if count.0 > 0 && (skip == 0 || self.has_room_for_runs()) {
                    self.outstanding += 1;
                    storages.kernel.find_extent(file, offset, count, tag);
                }
            }
            Target::Channel { channel, offset } => {
                let is_first = |piece: &Piece| {
                    piece.skip >= skip || !matches!(piece.target, Target::Channel { .. })
                };
                if count.0 > 0 && self.staged.is_empty() && self.pieces.iter().all(is_first) {
                    let storage = StorageId::Channel(channel);
                    let place = (storage, storages.medium(storage));
                    let skip = usize::try_from(skip).expect("64-bit host");
                    let kind = BounceOperation::Read;
                    self.staged.push(BounceTransfer::new(kind, place, offset.0, skip, count.0));
                }
            }
            Target::Zeroes | Target::Nothing | Target::Memory { .. } | Target::Status(_) => {
                self.status.add(skip, count, target.status());
            }
        }
    }

    /// Whether its memory has room for more runs than there are.
    fn has_room_for_runs(&self) -> bool {
        self.status.count() < self.memory.count() / StatusRecord::BYTES
    }

    /// Leaves the records in the memory of a status that went well, and forgets them.
    pub(super) fn end_status(&mut self, index: RequestIndex, outcome: Outcome) -> Outcome {
        let Operation::Status(extent) = self.operation else { return outcome };
        let told = match outcome {
            Outcome::Done if extent.count().0 > 0 => {
                self.status.write(&mut self.memory).map_or_else(Outcome::Failed, |()| outcome)
            }
            Outcome::Done | Outcome::Failed(_) => outcome,
        };
        self.status.clear(index.room_kept());
        told
    }
}

impl<K: EngineKernel> Engine<K> {
    /// A file has told what it has at the beginning of what is left of a piece.
    pub(super) fn extent_found(&mut self, tag: Tag, found: FileExtent) {
        let KernelEventTarget::Job(index, piece) = KernelEventTarget::from_tag(tag) else {
            panic!("only requests ask for extents")
        };
        let Self { jobs, kernel, lanes, .. } = self;
        let mut storages = FileAndChannelBackends { kernel, channels: &mut lanes.channels };
        let job = jobs.get(index);
        job.outstanding -= 1;
        let Piece { skip, count, target } = &mut job.pieces[piece.place()];
        job.status.add(*skip, found.count, found.status());
        *target = target.behind(found.count.0);
        *count = ByteCount(count.0 - found.count.0);
        *skip += found.count.0;
        job.begin_status_piece(piece.place(), &mut storages, tag);
        self.advance(index);
    }

    /// Asks the channel of a status that waited for a buffer.
    pub(super) fn ask_channel(&mut self, index: RequestIndex, mut buffer: BounceBuffer, tag: Tag) {
        let Self { jobs, lanes, .. } = self;
        let job = jobs.get(index);
        let staged = job.staged.last().expect("what the channel is asked for");
        let StorageId::Channel(channel) = staged.storage else {
            panic!("files are asked without a buffer")
        };
        buffer.zero(0, RECORDS_BYTES);
        let status = Operation::Status(extent(ByteOffset(staged.at), staged.left));
        job.outstanding += 1;
        lanes.channels.begin_bounce(channel, status, RECORDS_BYTES, buffer, tag);
    }

    /// A channel has told what a piece is, or has not.
    pub(super) fn channel_told(
        &mut self,
        index: RequestIndex,
        result: Result<(), IoFailure>,
        buffer: BounceBuffer,
    ) {
        let job = self.jobs.get(index);
        let BounceTransfer { skip, left, .. } = *job.staged.last().expect("what it was asked for");
        let (mut at, end) = (skip as u64, skip as u64 + left);
        match result {
            Ok(()) => {
                for record in StatusRecord::read_all(buffer.first(RECORDS_BYTES)) {
                    let count = record.count.0.min(end - at);
                    job.status.add(at, ByteCount(count), record.status);
                    at += count;
                }
            }
            Err(failure) if failure.is_unsupported() => {
                job.status.add(at, ByteCount(left), BlockStatus::DATA);
            }
            Err(failure) => return self.staged_step_failed(index, failure, Some(buffer)),
        }
        job.staged.pop();
        let lane = job.lane;
        self.take_back(lane, buffer);
        self.advance(index);
    }
}
