//! The descriptor of a channel, as its iothread watches it.
//!
//! Invariants: a descriptor stays open as long as the kernel watches it, also if its channel has another one meanwhile.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use block::{ChannelId, Interest};
use kernel_io::EngineKernel;

use crate::io_request::KernelEventTarget;

/// The descriptor that is polled for a channel, and former ones until their polls have ended.
#[derive(Debug, Default)]
pub(crate) struct ChannelPoll {
    current: Option<(Arc<OwnedFd>, Interest)>,
    /// Those of which the kernel has not said yet that it does not watch them any more.
    former: VecDeque<Arc<OwnedFd>>,
}

impl ChannelPoll {
    /// Watches this descriptor from now on, and no other one.
    pub(crate) fn set(
        &mut self,
        wanted: Option<(&Arc<OwnedFd>, Interest)>,
        kernel: &mut impl EngineKernel,
        channel: ChannelId,
    ) {
        let is_same = match (&self.current, wanted) {
            (Some((fd, interest)), Some((wanted, wanted_interest))) => {
                Arc::ptr_eq(fd, wanted) && *interest == wanted_interest
            }
            (None, None) => true,
            (Some(_), None) | (None, Some(_)) => false,
        };
        if is_same {
            return;
        }
        let tag = KernelEventTarget::Channel(channel).to_tag();
        if let Some((fd, _)) = self.current.take() {
            self.former.push_back(fd);
            kernel.cancel_poll(tag);
        }
        if let Some((fd, interest)) = wanted {
            kernel.poll(fd.as_fd(), interest, tag);
            self.current = Some((Arc::clone(fd), interest));
        }
    }

    /// The first of the former descriptors is not watched any more.
    pub(crate) fn ended(&mut self) {
        self.former.pop_front();
    }

    /// Whether nothing is watched.
    pub(crate) fn is_over(&self) -> bool {
        self.current.is_none() && self.former.is_empty()
    }
}
