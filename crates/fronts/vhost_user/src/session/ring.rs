//! What the front end said of one ring.

use std::os::fd::OwnedFd;

use virtio::{Features, GuestAddress, RingAddresses, RingBase, RingLayout, RingSetup};

use super::PROTOCOL_FEATURES;
use super::vring_fd::{VringFdKind, duplicate};
use crate::{MessageRefusal, QueueIndex};

/// What the front end has said of one ring (SET_VRING_*).
#[derive(Debug)]
pub(super) struct SessionRing {
    pub(super) size: Option<u16>,
    pub(super) addresses: Option<RingAddresses>,
    /// Where its used ring is marked in the dirty log, if that is wanted (VHOST_VRING_F_LOG).
    pub(super) logged_at: Option<GuestAddress>,
    /// There is one if the ring is started.
    pub(super) kick: Option<OwnedFd>,
    pub(super) call: Option<OwnedFd>,
    pub(super) error: Option<OwnedFd>,
    pub(super) enabled: bool,
    pub(super) state: RingState,
}

/// Whether a ring is stopped, and at which base, or served by the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RingState {
    /// The session.
    Stopped {
        /// How far it was served, if that was ever said.
        base: Option<RingBase>,
    },
    /// The device.
    Served,
}

impl Default for SessionRing {
    fn default() -> Self {
        Self {
            size: None,
            addresses: None,
            logged_at: None,
            kick: None,
            call: None,
            error: None,
            enabled: false,
            state: RingState::Stopped { base: None },
        }
    }
}

impl SessionRing {
    /// Where the ring lies and goes on, if it is started, enabled and fully described, and not
    /// being served already.
    pub(super) fn ready(&self, features: Features) -> Option<RingSetup> {
        // Without protocol features there is no SET_VRING_ENABLE: rings start enabled.
        let enabled = self.enabled || !features.contains(PROTOCOL_FEATURES);
        if !enabled || self.kick.is_none() {
            return None;
        }
        self.described(features)
    }

    /// Where the ring lies and goes on, if it is fully described and not being served.
    pub(super) fn described(&self, features: Features) -> Option<RingSetup> {
        match self.state {
            RingState::Stopped { base } => self.setup(features, base),
            RingState::Served => None,
        }
    }

    /// Where the ring lies, if it is fully described, and where it goes on from this base.
    pub(super) fn setup(&self, features: Features, base: Option<RingBase>) -> Option<RingSetup> {
        let layout = RingLayout::of(features);
        Some(RingSetup {
            layout,
            size: self.size?,
            addresses: self.addresses?,
            base: base.unwrap_or(RingBase::start(layout)),
            event_idx: features.contains(Features::RING_EVENT_IDX),
            indirect: features.contains(Features::RING_INDIRECT_DESC),
        })
    }

    /// Copies of the kick, call and error descriptors for the device; the session keeps its own
    /// for the next start.
    pub(super) fn descriptors(
        &self,
        queue: QueueIndex,
    ) -> Result<[Option<OwnedFd>; 3], MessageRefusal> {
        Ok([
            duplicate(queue, VringFdKind::Kick, self.kick.as_ref())?,
            duplicate(queue, VringFdKind::Call, self.call.as_ref())?,
            duplicate(queue, VringFdKind::Error, self.error.as_ref())?,
        ])
    }
}
