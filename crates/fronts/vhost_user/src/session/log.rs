//! The messages about the dirty log, and what of it each ring uses.
//!
//! A front end that migrates gives a log (SET_LOG_BASE), has buffers marked (VHOST_F_LOG_ALL, in
//! SET_FEATURES) and the rings themselves (VHOST_VRING_F_LOG, in SET_VRING_ADDR), while all rings
//! are served; and it takes all that back in any order.
//!
//! Invariants: when a message is answered, every ring that is served does what the message says and
//! nobody uses the log before. A ring that cannot mark all that it may write is not served.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use virtio::{DirtyLog, DirtyLogScope, Features, GuestAddress, RingAddresses, RingDirtyLog};

use super::ring::RingState;
use super::{Session, UnmappedRingPolicy};
use crate::{Device, MessageRefusal, QueueIndex};

/// VHOST_F_LOG_ALL: what the device writes to buffers is marked. A feature bit of the transport.
pub(super) const LOG_ALL: Features = Features(1 << 26);

impl<D: Device> Session<D> {
    /// Marks in another log from now on (SET_LOG_BASE).
    pub fn set_log(
        &mut self,
        fd: OwnedFd,
        bytes: u64,
        file_offset: u64,
    ) -> Result<(), MessageRefusal> {
        let log = DirtyLog::map(fd, bytes, file_offset, self.device.memory_rules())?;
        self.log = Some(Arc::new(log));
        self.log_all()
    }

    /// Where a ring lies (SET_VRING_ADDR), and at which guest address what the device writes of it
    /// is marked, if it is. While the ring is served only the latter may change.
    pub fn set_ring_addresses(
        &mut self,
        queue: u32,
        addresses: RingAddresses,
        logged_at: Option<GuestAddress>,
    ) -> Result<(), MessageRefusal> {
        let index = self.check(queue)?;
        let ring = self.ring(index);
        if ring.state == RingState::Served && ring.addresses == Some(addresses) {
            ring.logged_at = logged_at;
            return self.log_served(index);
        }
        let queue = self.stopped_queue(queue, "SET_VRING_ADDR")?;
        let ring = self.ring(queue);
        (ring.addresses, ring.logged_at) = (Some(addresses), logged_at);
        self.check_description(queue)?;
        self.start_if_ready(queue, UnmappedRingPolicy::Refuse)
    }

    /// What a ring marks, as far as it is described.
    pub(super) fn ring_log(
        &mut self,
        queue: QueueIndex,
    ) -> Result<Option<RingDirtyLog>, MessageRefusal> {
        let features = self.features;
        let ring = self.ring(queue);
        let marking = match (features.contains(LOG_ALL), ring.logged_at) {
            (true, Some(used)) => DirtyLogScope::All(used),
            (true, None) => DirtyLogScope::Buffers,
            (false, Some(used)) => DirtyLogScope::Ring(used),
            (false, None) => return Ok(None),
        };
        // The base says nothing about what is written.
        match (ring.setup(features, None), &self.log) {
            (Some(setup), Some(log)) => {
                RingDirtyLog::new(Arc::clone(log), &self.memory, &setup, marking)
                    .map(Some)
                    .map_err(|source| MessageRefusal::Ring { queue, source })
            }
            // QEMU starts a device in mid-migration with the log last, before it enables a ring.
            (_, None) | (None, _) => Ok(None),
        }
    }

    /// Has all rings that are served mark what is to be marked now.
    pub(super) fn log_all(&mut self) -> Result<(), MessageRefusal> {
        let served: Vec<QueueIndex> = self.served().collect();
        served.into_iter().try_for_each(|queue| self.log_served(queue))
    }

    fn log_served(&mut self, queue: QueueIndex) -> Result<(), MessageRefusal> {
        let log = self.ring_log(queue)?;
        self.device.set_log(queue, log);
        Ok(())
    }
}
