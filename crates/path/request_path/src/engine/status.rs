//! What the bytes of a status are, where its pieces do not say it: the holes of a file.
//!
//! Where it stands in the life of a request: between the answer of its lanes and its end, when the records go into its
//! memory.
//!
//! Limits: a piece is looked at until there are as many runs as the memory has room for, and once in any case.

use block::{ByteCount, Operation, Outcome, Piece, StatusRecord, Target};
use kernel_io::{EngineKernel, FileExtent, Tag};

use super::Engine;
use crate::io_request::{EventTarget, IoRequest, RequestIndex};

impl IoRequest {
    /// Takes what a piece of a status says, or has the file tell it.
    pub(super) fn begin_status_piece(
        &mut self,
        place: usize,
        kernel: &mut impl EngineKernel,
        tag: Tag,
    ) {
        let Piece { skip, count, ref target } = self.pieces[place];
        match *target {
            Target::File { file, offset } => {
                if count.0 > 0 && (skip == 0 || self.has_room_for_runs()) {
                    self.outstanding += 1;
                    kernel.find_extent(file, offset, count, tag);
                }
            }
            Target::Channel { .. }
            | Target::Zeroes
            | Target::Nothing
            | Target::Memory { .. }
            | Target::Status(_) => {
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
        let EventTarget::Job(index, piece) = EventTarget::from_tag(tag) else {
            panic!("only requests ask for extents")
        };
        let Self { jobs, kernel, .. } = self;
        let job = jobs.get(index);
        job.outstanding -= 1;
        let Piece { skip, count, target } = &mut job.pieces[piece.place()];
        job.status.add(*skip, found.count, found.status());
        *target = target.behind(found.count.0);
        *count = ByteCount(count.0 - found.count.0);
        *skip += found.count.0;
        job.begin_status_piece(piece.place(), kernel, tag);
        self.advance(index);
    }
}
