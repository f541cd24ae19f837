//! What becomes of a request when the host fails it: another way, a failure of the request, a sentence
//! for the operator.

use std::fmt;
use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use block::{
    ByteCount, ByteOffset, EofPolicy, FailKind, Node, Operation, Outcome, Piece, StorageId, Target,
};
use kernel_io::{Alarm, EngineKernel, Interest, IoFailure};

use super::Engine;
use super::cancel::is_withdrawn;
use crate::bounce_transfer::{BounceOperation, BounceTransfer};
use crate::failure_reporter::StorageFailureCause;
use crate::io_request::{KernelEventTarget, PieceIndex, RequestIndex, RequestPhase};
use crate::storage_backends::FileAndChannelBackends;
use crate::submit::{PieceRun, may_hide_lost_data, write_durability};

impl<K: EngineKernel> Engine<K> {
    /// A piece failed: some failures mean another way, the others are the guest's.
    pub(super) fn piece_failed(
        &mut self,
        index: RequestIndex,
        piece: PieceIndex,
        failure: IoFailure,
    ) {
        let Self { jobs, kernel, lanes, .. } = self;
        let job = jobs.get(index);
        if is_withdrawn(job.failure, failure) {
            return;
        }
        if let IoFailure::EndOfFile { offset } = failure
            && job.eof_policy == EofPolicy::Zeroes
        {
            return self.zero_behind_end(index, piece, offset);
        }
        let Piece { target, count, .. } = &job.pieces[piece.place()];
        let (storage, offset) = target.storage().expect("only operations on storage fail");
        let mut storages = FileAndChannelBackends { kernel, channels: &mut lanes.channels };
        let medium = storages.medium(storage);
        if job.phase == RequestPhase::Sync {
            medium.remember_failed_sync();
        } else if failure.is_unsupported() {
            match job.operation {
                // A hint that the file system cannot take.
                Operation::Discard(..) => return,
                Operation::WriteZeroes(..) if job.operation.is_only_if_fast() => {
                    job.failure.get_or_insert(FailKind::Unsupported);
                    return;
                }
                Operation::WriteZeroes(..) => {
                    let whole = medium.allocation_blocks(&(offset.0..offset.0 + count.0));
                    let (at, left) = (whole.start, whole.end - whole.start);
                    let place = (storage, medium);
                    job.staged.push(BounceTransfer::new(BounceOperation::Zero, place, at, 0, left));
                    return;
                }
                Operation::Read(_)
                | Operation::Status(_)
                | Operation::Write(..)
                | Operation::Flush => {}
            }
        } else if may_hide_lost_data(write_durability(job.operation, medium), failure) {
            medium.remember_failed_sync();
        }
        self.fail(index, storage, StorageFailureCause::Failure(failure));
    }

    /// Of the run that begins with this piece, a read has found the end of the file there. What lies behind it becomes
    /// pieces of zeroes.
    fn zero_behind_end(&mut self, index: RequestIndex, first: PieceIndex, end: ByteOffset) {
        let job = self.jobs.get(index);
        let (lane, before) = (job.lane, job.pieces.len());
        let run = PieceRun::of(&job.pieces, first.place(), job.operation);
        let count = run.expect("it begins with a piece in a file").pieces.len();
        for place in first.place()..first.place() + count {
            let Piece { skip, count, target } = &job.pieces[place];
            let Some((_, offset)) = target.storage() else { continue };
            let (skip, count) = (*skip, *count);
            let found = end.0.saturating_sub(offset.0).min(count.0);
            let (skip, count) = (skip + found, count.0 - found);
            match job.pieces[before..].last_mut() {
                Some(last) if last.skip + last.count.0 == skip => last.count.0 += count,
                Some(_) | None if count > 0 => {
                    let target = Target::Zeroes;
                    job.pieces.push(Piece { skip, count: ByteCount(count), target });
                }
                Some(_) | None => {}
            }
        }
        let more = job.pieces.len() - before;
        self.pieces_open += more;
        self.lanes.add_pieces(lane, more);
        self.add_pieces_later(index);
    }

    /// Notes that a request fails, and says so; only once for each request.
    pub(super) fn fail(
        &mut self,
        index: RequestIndex,
        storage: StorageId,
        cause: StorageFailureCause,
    ) {
        let Self { jobs, kernel, lanes, report, .. } = self;
        let job = jobs.get(index);
        if job.failure.is_some() {
            return;
        }
        job.failure = Some(match cause {
            StorageFailureCause::Failure(failure) => failure.kind(),
            StorageFailureCause::EarlierSync
            | StorageFailureCause::GivenUp
            | StorageFailureCause::Unfenced
            | StorageFailureCause::Foreign => FailKind::Io,
        });
        let (operation, phase) = (job.operation, job.phase);
        let mut storages = FileAndChannelBackends { kernel, channels: &mut lanes.channels };
        let name = storages.medium(storage).name();
        let wait = report.failed(name, operation, phase, cause);
        self.catch_up_after(wait);
    }

    /// A lane does not carry a request out, or says in the end that it has failed.
    pub(super) fn refused(&mut self, index: RequestIndex, kind: FailKind) {
        let job = self.jobs.get(index);
        let is_an_answer = kind == FailKind::Unsupported && job.operation.is_only_if_fast();
        if !is_an_answer {
            let node = &**self.lanes.node(job.lane);
            let wait = self.report.refused(node, job.operation, kind);
            self.catch_up_after(wait);
        }
        self.finish(index, Outcome::Failed(kind));
    }

    /// A client has asked for what cannot be done.
    pub(crate) fn refused_by_front(
        &mut self,
        node: &dyn Node,
        what: &dyn fmt::Display,
        kind: FailKind,
    ) {
        let wait = self.report.refused_by_front(node, what, kind);
        self.catch_up_after(wait);
    }

    fn catch_up_after(&mut self, wait: Option<Duration>) {
        if let Some(wait) = wait {
            self.set_alarm(wait);
        }
    }

    /// Has the report catch up after this time, if nothing fails meanwhile.
    fn set_alarm(&mut self, after: Duration) {
        if let Err(error) = self.try_set_alarm(after) {
            // Then it is told with the next sentence, or at the end.
            tracing::debug!("no timer: {error}");
        }
    }

    fn try_set_alarm(&mut self, after: Duration) -> io::Result<()> {
        if let Some(alarm) = &self.alarm {
            return alarm.set(after);
        }
        let alarm = Alarm::new()?;
        self.kernel.poll(alarm.as_fd(), Interest::Read, KernelEventTarget::Alarm.to_tag());
        let set = alarm.set(after);
        self.alarm = Some(alarm);
        set
    }

    pub(super) fn alarm_rang(&mut self) {
        if let Some(alarm) = &self.alarm {
            alarm.clear();
        }
        let wait = self.report.report_suppressed();
        self.catch_up_after(wait);
    }
}
