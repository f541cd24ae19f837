//! The messages about the in-flight region.
//!
//! Invariants: every ring is stopped before the region changes and goes on after where it was, or
//! where the new region says that it is.
//! Not here: what lies in a region (`virtio`).

use std::os::fd::OwnedFd;
use std::sync::Arc;

use virtio::{InflightQueue, InflightRegion, InflightShape, RingSetup};

use super::{OutsideMemory, Session};
use crate::{Device, QueueIndex, Refusal};

impl<D: Device> Session<D> {
    /// Makes a region for so many queues of that size, and tracks requests there from now on. The
    /// front end gets its size and its descriptor, to keep it (GET_INFLIGHT_FD). The features say
    /// how its rings lie in memory and must be known before.
    pub fn create_inflight(
        &mut self,
        queues: u16,
        queue_size: u16,
    ) -> Result<(u64, OwnedFd), Refusal> {
        let shape = InflightShape::check(queues, queue_size)?;
        let layout = self.layout();
        let (region, fd) = InflightRegion::create(shape, layout)?;
        self.track_in(region)?;
        Ok((shape.bytes(layout), fd))
    }

    /// Tracks requests in a region that the front end has kept, from now on. What is in flight
    /// there is served again when its ring starts (SET_INFLIGHT_FD).
    pub fn set_inflight(
        &mut self,
        fd: OwnedFd,
        queues: u16,
        queue_size: u16,
        bytes: u64,
        offset: u64,
    ) -> Result<(), Refusal> {
        let shape = InflightShape::check(queues, queue_size)?;
        self.track_in(InflightRegion::map(fd, shape, bytes, offset)?)
    }

    fn track_in(&mut self, region: InflightRegion) -> Result<(), Refusal> {
        self.halt_all()?;
        self.inflight = Some(Arc::new(region));
        for queue in (0..).take(self.rings.len()).map(QueueIndex) {
            self.settle(queue, OutsideMemory::Wait)?;
        }
        Ok(())
    }

    /// Where a ring is tracked that is about to be served.
    pub(super) fn inflight_of(
        &self,
        queue: QueueIndex,
        setup: &RingSetup,
    ) -> Result<Option<InflightQueue>, Refusal> {
        let Some(region) = &self.inflight else { return Ok(None) };
        let inflight = InflightQueue { region: Arc::clone(region), queue: queue.0 };
        inflight
            .check(setup.layout, setup.size)
            .map_err(|source| Refusal::InflightQueue { queue, source })?;
        Ok(Some(inflight))
    }
}
