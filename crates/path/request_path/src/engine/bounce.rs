//! The steps of transfers that go through a bounce buffer, one after the other; what is next is decided in
//! [`crate::bounce_transfer`].

use block::{EofPolicy, FailKind, Operation, RequestMemoryCopy};
use kernel_io::{BounceBuffer, EngineKernel, IoFailure};

use super::Engine;
use super::cancel::is_withdrawn;
use crate::LaneIndex;
use crate::bounce_transfer::{BounceAction, BounceChunk, BounceOperation, BounceStep};
use crate::failure_reporter::StorageFailureCause;
use crate::io_request::{KernelEventTarget, PieceIndex, RequestIndex};
use crate::storage_backends::FileAndChannelBackends;
use crate::submit::{may_hide_lost_data, write_durability};

impl<K: EngineKernel> Engine<K> {
    pub(super) fn staged_step_over(
        &mut self,
        index: RequestIndex,
        result: Result<(), IoFailure>,
        mut buffer: BounceBuffer,
    ) {
        let job = self.jobs.get(index);
        if job.failure == Some(FailKind::Cancelled) {
            // Nobody wants the rest; what this step has done is done.
            let lane = job.lane;
            self.note_lost_write(index, result);
            self.take_back(lane, buffer);
            return self.advance(index);
        }
        if let Operation::Status(_) = job.operation {
            return self.channel_told(index, result, buffer);
        }
        let staged = job.staged.last_mut().expect("a bounce buffer belongs to a staged transfer");
        let mut result = result;
        if let Err(IoFailure::EndOfFile { offset }) = result
            && staged.step == BounceStep::Reading
        {
            let chunk = staged.chunk();
            let found = usize::try_from(offset.0 - chunk.start.0).expect("inside the chunk");
            let has_all = staged.kind == BounceOperation::Read && found >= chunk.lead + chunk.body;
            // A disk may end inside a block.
            if has_all || job.eof_policy == EofPolicy::Zeroes {
                buffer.zero(found, chunk.count - found);
                result = Ok(());
            }
        }
        if let Err(failure) = result {
            return self.staged_step_failed(index, failure, Some(buffer));
        }
        if staged.kind == BounceOperation::Read && staged.step == BounceStep::Reading {
            let chunk = staged.chunk();
            buffer.drain(chunk.lead, &mut job.memory, staged.skip, chunk.body);
        }
        let next = staged.proceed();
        self.staged_next(index, next, buffer);
    }

    /// A step has failed. Without the buffer, the storage still has that.
    pub(super) fn staged_step_failed(
        &mut self,
        index: RequestIndex,
        failure: IoFailure,
        buffer: Option<BounceBuffer>,
    ) {
        let job = self.jobs.get(index);
        let staged = job.staged.last().expect("a step belongs to a staged transfer");
        let (storage, lane) = (staged.storage, job.lane);
        self.note_lost_write(index, Err(failure));
        self.fail(index, storage, StorageFailureCause::Failure(failure));
        if let Some(buffer) = buffer {
            self.take_back(lane, buffer);
        }
        self.advance(index);
    }

    /// After a step that wrote and failed, data may be lost of which no later sync tells.
    fn note_lost_write(&mut self, index: RequestIndex, result: Result<(), IoFailure>) {
        let job = self.jobs.get(index);
        let staged = job.staged.last().expect("a step belongs to a staged transfer");
        let (storage, step, operation) = (staged.storage, staged.step, job.operation);
        let Err(failure) = result else { return };
        if step != BounceStep::Writing || is_withdrawn(job.failure, failure) {
            return;
        }
        let mut storages = self.storages();
        let medium = storages.medium(storage);
        if may_hide_lost_data(write_durability(operation, medium), failure) {
            medium.remember_failed_sync();
        }
    }

    pub(super) fn staged_next(
        &mut self,
        index: RequestIndex,
        next: BounceAction,
        mut buffer: BounceBuffer,
    ) {
        let Self { jobs, kernel, lanes, .. } = self;
        let mut storages = FileAndChannelBackends { kernel, channels: &mut lanes.channels };
        let job = jobs.get(index);
        let staged = job.staged.last().expect("the current staged transfer");
        let tag = KernelEventTarget::Job(index, PieceIndex::FIRST).to_tag();
        match next {
            BounceAction::Read(_) if matches!(job.operation, Operation::Status(_)) => {
                self.ask_channel(index, buffer, tag);
            }
            BounceAction::Read(BounceChunk { start, count, .. }) => {
                storages.read_bounce((staged.storage, start), count, buffer, tag);
                job.outstanding += 1;
            }
            BounceAction::FillAndWrite(BounceChunk { start, count, lead, body }) => {
                if staged.kind == BounceOperation::Zero {
                    buffer.zero(lead, body);
                } else {
                    let memory = job.copy.as_ref().map_or(&job.memory, RequestMemoryCopy::buffers);
                    buffer.fill(lead, memory, staged.skip, body);
                }
                let medium = storages.medium(staged.storage);
                let durability = write_durability(job.operation, medium);
                storages.write_bounce((staged.storage, start), durability, count, buffer, tag);
                job.outstanding += 1;
            }
            BounceAction::Finished => {
                let lane = job.lane;
                job.staged.pop();
                self.take_back(lane, buffer);
                self.advance(index);
            }
        }
    }

    /// Goes on with those that wait for a buffer, as far as their lanes may have one.
    pub(super) fn hand_out_buffers(&mut self) {
        while let Some((size, index)) = self.buffer_waiters.take() {
            let buffer = self.bounce.take(size);
            let staged = self.jobs.get(index).staged.last_mut();
            let next = staged.expect("it waits for a buffer for that").begin();
            self.staged_next(index, next, buffer);
        }
    }

    /// Takes a buffer back that a job of that lane had.
    pub(super) fn take_back(&mut self, lane: LaneIndex, buffer: BounceBuffer) {
        self.buffer_waiters.done(lane.place(), buffer.size());
        self.bounce.put(buffer);
        self.hand_out_buffers();
    }
}
