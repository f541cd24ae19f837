//! Operations on storage that is no file, as far as they end otherwise than those of the kernel.
//!
//! Where it stands in the life of a request: channels are called once after each batch and each wait; what has ended goes
//! on as if the kernel had told it.

use std::sync::Arc;

use block::{ChannelId, IoFailure, Node, Tag};

use super::Engine;
use crate::EngineKernel;
use crate::channels::Ended;
use crate::job::Addressee;

impl<K: EngineKernel> Engine<K> {
    /// Gives up the storage behind the channels of the lane on that node, if there is one: all its operations end now,
    /// whatever the storage does. For whoever does not want to wait for a server any more.
    pub fn abandon(&mut self, node: &Arc<dyn Node>) {
        if let Some(lane) = self.lanes.find(node) {
            self.lanes.channels.abandon(lane);
        }
    }

    /// Calls channels that have something to do; whether there were any.
    pub(super) fn attend_channels(&mut self) -> bool {
        let Self { lanes, kernel, .. } = self;
        let any = lanes.channels.attend(kernel);
        while let Some(ended) = self.lanes.channels.next_ended() {
            match ended {
                Ended::Over { tag, result, bounce } => self.operation_over(tag, result, bounce),
                Ended::Abandoned { channel, tag, failure, is_staged } => {
                    self.abandoned(channel, tag, failure, is_staged);
                }
                Ended::Returned { lane, bounce } => self.take_back(lane, bounce),
            }
        }
        any
    }

    /// An operation ends that the storage may still carry out. What its job has locked stays locked.
    fn abandoned(&mut self, channel: ChannelId, tag: Tag, failure: IoFailure, is_staged: bool) {
        let Addressee::Job(index, _) = Addressee::from_tag(tag) else {
            return self.operation_over(tag, Err(failure), None);
        };
        let Self { jobs, lanes, .. } = self;
        let job = jobs.get(index);
        if job.operation.is_change() {
            lanes.channels.keep_locked(channel, &mut job.holds);
        }
        if is_staged {
            job.outstanding -= 1;
            self.staged_step_failed(index, failure, None);
        } else {
            self.operation_over(tag, Err(failure), None);
        }
    }
}
