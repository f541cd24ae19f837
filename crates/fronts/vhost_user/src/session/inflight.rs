//! The messages about the in-flight region.
//!
//! Invariants: every ring is stopped before the region changes and goes on after where it was, or
//! where the new region says that it is.
//! The region never notes a weaker cache mode than the driver relies on: write-through is noted
//! before the switch is answered, write-back after that. So whenever this process dies, the mode that
//! a successor finds is at least as strong as the one that the front end has heard of.
//! Not here: what lies in a region (`virtio`).

use std::os::fd::OwnedFd;
use std::sync::Arc;

use block::DiskSize;
use tracing::debug;
use virtio::{
    CacheMode, CacheModeAndSizeRecord, InflightDescription, InflightGeometry, InflightQueue,
    InflightRegion, RingSetup,
};

use super::Session;
use crate::{Device, MessageRefusal, QueueIndex};

/// The in-flight region of a session, and the cache mode that is recorded there.
#[derive(Debug)]
pub(super) struct InflightTracking {
    region: Arc<InflightRegion>,
    /// Where the cache mode is noted; a region that another back end has made has no room for it.
    note: Option<CacheModeAndSizeRecord>,
    /// What the note says.
    noted: CacheMode,
}

impl InflightTracking {
    pub(super) fn region(&self) -> &InflightRegion {
        &self.region
    }

    /// The size that another back end has told.
    fn announced_size(&self) -> Option<DiskSize> {
        self.note.as_ref().and_then(CacheModeAndSizeRecord::announced_size)
    }

    fn record_announced_size(&mut self, size: DiskSize) {
        if let Some(note) = &mut self.note {
            note.store_announced_size(size);
        }
    }

    fn note(&mut self, mode: CacheMode) {
        if let Some(note) = &mut self.note
            && mode != self.noted
        {
            note.store(mode);
            self.noted = mode;
        }
    }
}

impl<D: Device> Session<D> {
    /// Makes a region for so many queues of that size, and tracks requests there from now on. The
    /// front end gets its size and its descriptor, to keep it (GET_INFLIGHT_FD).
    pub fn create_inflight(
        &mut self,
        queues: u16,
        queue_size: u16,
    ) -> Result<(u64, OwnedFd), MessageRefusal> {
        let shape = InflightGeometry::check(queues, queue_size)?;
        let (region, fd) = InflightRegion::create(shape, self.device.memory_rules())?;
        let region = Arc::new(region);
        let noted = self.device.cache_mode();
        let note = Some(CacheModeAndSizeRecord::begin(&region, noted));
        self.track_in(InflightTracking { region, note, noted })?;
        Ok((shape.region_bytes(), fd))
    }

    /// Tracks requests in a region that the front end has kept, from now on. What is in flight
    /// there is served again when its ring starts (SET_INFLIGHT_FD). If write-through is noted there,
    /// the device is in write-through from now on.
    pub fn set_inflight(&mut self, region: InflightDescription) -> Result<(), MessageRefusal> {
        let tracking = self.map_inflight(region)?;
        self.track_in(tracking)
    }

    /// The same while no ring is served, and none will be before [`Session::go_on`].
    pub(super) fn adopt_inflight(
        &mut self,
        region: InflightDescription,
    ) -> Result<(), MessageRefusal> {
        let tracking = self.map_inflight(region)?;
        self.track(tracking)
    }

    /// Maps a region where somebody else has tracked; what is noted there is what was noted last.
    fn map_inflight(
        &self,
        region: InflightDescription,
    ) -> Result<InflightTracking, MessageRefusal> {
        let InflightDescription { queues, queue_size, bytes, offset, file } = region;
        let shape = InflightGeometry::check(queues, queue_size)?;
        let region = InflightRegion::map(file, shape, bytes, offset, self.device.memory_rules())?;
        let region = Arc::new(region);
        let (note, noted) = match CacheModeAndSizeRecord::open(&region) {
            Some((note, noted)) => (Some(note), noted),
            None => (None, self.device.cache_mode()),
        };
        Ok(InflightTracking { region, note, noted })
    }

    fn track_in(&mut self, tracking: InflightTracking) -> Result<(), MessageRefusal> {
        self.pause_all()?;
        self.track(tracking)?;
        self.start_all_ready()
    }

    fn track(&mut self, mut tracking: InflightTracking) -> Result<(), MessageRefusal> {
        // Never weaker than either: the driver may rely on what is noted, the operator on what is so.
        let mode = self.device.cache_mode().or_stronger(tracking.noted);
        tracking.note(mode);
        match (self.device.announced_size(), tracking.announced_size()) {
            (Some(size), _) => tracking.record_announced_size(size),
            (None, Some(size)) => self.device.set_announced_size(size),
            (None, None) => {}
        }
        self.inflight = Some(tracking);
        if mode != self.device.cache_mode() {
            debug!("write-through is noted in the in-flight region");
            self.device.set_cache_mode(mode)?;
        }
        Ok(())
    }

    /// Notes the size that the front end is told just now.
    pub(super) fn record_announced_size(&mut self) {
        if let (Some(tracking), Some(size)) = (&mut self.inflight, self.device.announced_size()) {
            tracking.record_announced_size(size);
        }
    }

    /// Notes the mode before it is switched to and answered, if it is the stronger one.
    pub(super) fn record_before_switch(&mut self, mode: CacheMode) {
        let stronger = mode.or_stronger(self.device.cache_mode());
        if let Some(tracking) = &mut self.inflight {
            tracking.note(stronger);
        }
    }

    /// To be called when the last message was answered: only now a weaker cache mode may be noted. A
    /// front end that has not heard of it goes on with the stronger one, with whoever serves it then.
    pub fn answered(&mut self) {
        if let Some(tracking) = &mut self.inflight {
            tracking.note(self.device.cache_mode());
        }
    }

    /// Where a ring is tracked that is about to be served.
    pub(super) fn inflight_of(
        &self,
        queue: QueueIndex,
        setup: &RingSetup,
    ) -> Result<Option<InflightQueue>, MessageRefusal> {
        let Some(InflightTracking { region, .. }) = &self.inflight else { return Ok(None) };
        let inflight = InflightQueue { region: Arc::clone(region), queue: queue.0 };
        inflight
            .check(setup.layout, setup.size)
            .map_err(|source| MessageRefusal::InflightQueue { queue, source })?;
        Ok(Some(inflight))
    }
}
