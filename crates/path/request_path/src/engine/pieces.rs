//! From the pieces of an answer to kernel operations, and what is done by hand: zeroes, and bytes from memory.
//!
//! Where it stands in the life of a request: between its answer and its end. An answer of many pieces, or of many bytes
//! that are moved by hand, is carried out over several turns, so that nobody waits for all of it.
//!
//! Limits: a job does [`crate::submit::WINDOW`] pieces in one go, and [`JOBS_MAX`] jobs go on in a turn; all by hand in a turn is bounded
//! like inline I/O ([`InlineBudget`]).

use block::{Operation, RequestMemoryCopy, Target};
use kernel_io::{EngineKernel, InlineBudget};

use super::Engine;
use crate::io_request::{IoRequest, KernelEventTarget, PieceIndex, RequestIndex};
use crate::storage_backends::FileAndChannelBackends;
use crate::submit::{PieceRun, submit_run};

/// How many jobs go on in one turn.
const JOBS_MAX: usize = 4;

/// Whether all pieces of a request were submitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PieceSubmitResult {
    AllBegun,
    MoreLater,
}

impl<K: EngineKernel> Engine<K> {
    /// Begins with a job's pieces. It counts what comes later as something outstanding.
    pub(super) fn begin_pieces(&mut self, index: RequestIndex) {
        if self.submit_window(index) == PieceSubmitResult::MoreLater {
            self.add_pieces_later(index);
        }
    }

    /// The job has pieces that were not begun.
    pub(super) fn add_pieces_later(&mut self, index: RequestIndex) {
        let job = self.jobs.get(index);
        if !std::mem::replace(&mut job.has_pieces_later, true) {
            job.outstanding += 1;
            self.partly_submitted.push_back(index);
        }
    }

    /// Goes on with jobs that have such pieces, as far as this turn has room.
    pub(super) fn submit_later_pieces(&mut self) {
        for _ in 0..self.partly_submitted.len().min(JOBS_MAX) {
            let Some(index) = self.partly_submitted.pop_front() else { return };
            match self.submit_window(index) {
                PieceSubmitResult::MoreLater => self.partly_submitted.push_back(index),
                PieceSubmitResult::AllBegun => {
                    let job = self.jobs.get(index);
                    job.has_pieces_later = false;
                    job.outstanding -= 1;
                    self.advance(index);
                }
            }
        }
    }

    /// Begins some of a job's next pieces.
    fn submit_window(&mut self, index: RequestIndex) -> PieceSubmitResult {
        let Self { jobs, kernel, lanes, copy_budget, .. } = self;
        let mut storages = FileAndChannelBackends { kernel, channels: &mut lanes.channels };
        let job = jobs.get(index);
        if job.failure.is_some() {
            // Nobody waits for the rest of what has failed.
            job.next_piece = job.pieces.len();
            job.moved = 0;
        }
        let end = PieceRun::window(&job.pieces, job.next_piece);
        while job.next_piece < end {
            let place = job.next_piece;
            let piece = &job.pieces[place];
            let tag = KernelEventTarget::Job(index, PieceIndex::new(place));
            match (&piece.target, job.operation) {
                (_, Operation::Status(_)) => {
                    job.begin_status_piece(place, &mut storages, tag.to_tag());
                }
                (Target::Zeroes | Target::Memory { .. }, Operation::Read(_))
                | (Target::Memory { .. }, Operation::Write(..)) => {
                    if !copy_inline(job, place, copy_budget) {
                        return PieceSubmitResult::MoreLater;
                    }
                }
                (Target::Memory { .. } | Target::Status(_), _) => {
                    panic!("only reads find bytes in memory, and writes leave them there")
                }
                (
                    Target::Zeroes,
                    Operation::Write(..)
                    | Operation::Discard(..)
                    | Operation::WriteZeroes(..)
                    | Operation::Flush,
                )
                | (Target::Nothing, _) => {}
                // A flush has no bytes; it only syncs.
                (Target::File { .. } | Target::Channel { .. }, _) if piece.count.0 == 0 => {}
                (Target::File { .. } | Target::Channel { .. }, operation) => {
                    let IoRequest { pieces, next_piece, memory, copy, staged, outstanding, .. } =
                        &mut *job;
                    let memory = copy.as_ref().map_or(&*memory, RequestMemoryCopy::buffers);
                    let run = PieceRun::of(pieces, place, operation);
                    let run = run.expect("it begins with a piece in storage");
                    *next_piece += run.pieces.len() - 1;
                    *outstanding += submit_run(&mut storages, operation, run, memory, staged, tag);
                }
            }
            job.next_piece += 1;
        }
        if job.next_piece < job.pieces.len() {
            return PieceSubmitResult::MoreLater;
        }
        PieceSubmitResult::AllBegun
    }
}

/// Gives a read the next bytes of a piece that are in no file, or takes them from a write; whether those were the last.
fn copy_inline(job: &mut IoRequest, place: usize, copy_budget: &mut InlineBudget) -> bool {
    let bytes = |number: u64| usize::try_from(number).expect("64-bit host");
    let IoRequest { operation, pieces, memory, copy, moved, .. } = job;
    let piece = &pieces[place];
    let left = piece.count.0 - *moved;
    let count = copy_budget.charge(left);
    let (from, skip) = (bytes(*moved), bytes(piece.skip + *moved));
    match piece.in_memory() {
        _ if operation.is_change() => {
            let memory = copy.as_ref().map_or(&*memory, RequestMemoryCopy::buffers);
            piece.put_in_memory(memory, from, bytes(count));
        }
        Some(found) => {
            memory.copy_from(skip, &found[from..from + bytes(count)]);
        }
        None if count > 0 => memory.zero(skip, bytes(count)),
        None => {}
    }
    let is_over = count == left;
    *moved = if is_over { 0 } else { *moved + count };
    if is_over {
        // The memory is not needed any more.
        pieces[place].target = Target::Nothing;
    }
    is_over
}
