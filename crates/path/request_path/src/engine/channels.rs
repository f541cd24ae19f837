//! Operations on storage that is no file, as far as they end otherwise than those of the kernel.
//!
//! Where it stands in the life of a request: channels are called once after each batch and each wait; what has ended goes
//! on as if the kernel had told it.

use std::collections::VecDeque;
use std::sync::Arc;

use block::{ChannelId, IoFailure, Node, Tag};
use kernel_io::EngineKernel;

use super::Engine;
use crate::LaneIndex;
use crate::channels::ChannelCompletion;
use crate::failure_reporter::StorageFailureCause;
use crate::io_request::{KernelEventTarget, RequestIndex};

impl<K: EngineKernel> Engine<K> {
    /// Gives up the storage behind the channels of the lane on that node, if there is one: all requests that are being
    /// carried out there fail now, whatever the storage does. For whoever does not want to wait for a server any more. A
    /// change among them that was to be durable counts as a sync that failed.
    pub fn abandon(&mut self, node: &Arc<dyn Node>) {
        if let Some(lane) = self.lanes.find(node) {
            self.abandon_lane(lane);
        }
    }

    /// The same if that storage was given up before and has carried out nothing since.
    pub fn abandon_unresponsive(&mut self, node: &Arc<dyn Node>) {
        let lane = self.lanes.find(node);
        if let Some(lane) = lane.filter(|lane| self.lanes.channels.is_unresponsive(Some(*lane))) {
            self.abandon_lane(lane);
        }
    }

    pub(super) fn abandon_lane(&mut self, lane: LaneIndex) {
        self.lanes.channels.abandon(lane);
        for (index, storage) in self.jobs.on_channels(lane) {
            self.fail(index, storage, StorageFailureCause::GivenUp);
        }
        self.settle_waiting(lane);
    }

    /// Ends those jobs of a lane that have failed and wait for something else than storage.
    fn settle_waiting(&mut self, lane: LaneIndex) {
        let Self { range_waiters, buffer_waiters, jobs, .. } = self;
        let mut has_failed = |index: &RequestIndex| {
            let job = jobs.get(*index);
            job.lane == lane && job.failure.is_some()
        };
        let (mut failed, waiting): (VecDeque<_>, VecDeque<_>) =
            range_waiters.drain(..).partition(&mut has_failed);
        *range_waiters = waiting;
        failed.extend(buffer_waiters.withdraw(lane.place(), has_failed));
        failed.into_iter().for_each(|index| self.advance(index));
    }

    /// Calls channels that have something to do; whether there were any.
    pub(super) fn attend_channels(&mut self) -> bool {
        let Self { lanes, kernel, .. } = self;
        let any = lanes.channels.attend(kernel);
        while let Some(ended) = self.lanes.channels.next_ended() {
            match ended {
                ChannelCompletion::Over { tag, result, bounce } => {
                    self.operation_over(tag, result, bounce)
                }
                ChannelCompletion::Abandoned { channel, tag, failure, is_staged } => {
                    self.abandoned(channel, tag, failure, is_staged);
                }
                ChannelCompletion::Returned { bounce } => self.bounce.put(bounce),
            }
        }
        any
    }

    /// An operation ends that the storage may still carry out. What its job has locked stays locked.
    fn abandoned(&mut self, channel: ChannelId, tag: Tag, failure: IoFailure, is_staged: bool) {
        let KernelEventTarget::Job(index, _) = KernelEventTarget::from_tag(tag) else {
            return self.operation_over(tag, Err(failure), None);
        };
        let Self { jobs, lanes, .. } = self;
        let job = jobs.get(index);
        if job.operation.is_change() {
            lanes.channels.keep_locked(channel, &mut job.range_guards);
        }
        if is_staged {
            job.outstanding -= 1;
            let staged = job.staged.last().expect("a bounce buffer belongs to a staged transfer");
            self.buffer_waiters.done(job.lane.place(), staged.size);
            self.staged_step_failed(index, failure, None);
            self.hand_out_buffers();
        } else {
            self.operation_over(tag, Err(failure), None);
        }
    }
}
