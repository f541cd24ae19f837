//! The messages about guest memory.
//!
//! Invariants: every ring is stopped before the table changes and goes on after where it
//! was. The old table is unmapped when its last user, a ring or this session, has let
//! go of it: when these methods return, unless the device kept something in flight.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use virtio::{GuestMemory, REGIONS_MAX, Region, RegionSpec};

use super::Session;
use crate::{Device, MessageRefusal};

impl<D: Device> Session<D> {
    /// Replaces all memory (SET_MEM_TABLE).
    pub fn set_memory(
        &mut self,
        regions: Vec<(OwnedFd, RegionSpec)>,
    ) -> Result<(), MessageRefusal> {
        self.pause_all()?;
        // Given back before the new one is mapped: what a session may map need not be twice its memory.
        self.memory = Arc::default();
        let rules = self.device.memory_rules();
        let regions = regions
            .into_iter()
            .map(|(fd, spec)| Region::map(fd, spec, rules).map(Arc::new))
            .collect::<Result<_, _>>()?;
        self.share(GuestMemory::new(regions)?);
        self.start_all_ready()
    }

    /// Adds a region (ADD_MEM_REG).
    pub fn add_region(&mut self, fd: OwnedFd, spec: RegionSpec) -> Result<(), MessageRefusal> {
        let memory = self.memory.with(Region::map(fd, spec, self.device.memory_rules())?)?;
        self.replace(memory)
    }

    /// Takes a region away; it is unmapped when this returns (REM_MEM_REG).
    pub fn remove_region(&mut self, spec: &RegionSpec) -> Result<(), MessageRefusal> {
        let memory = self.memory.without(spec)?;
        self.replace(memory)
    }

    /// How many regions there may be (GET_MAX_MEM_SLOTS).
    pub fn regions_max(&self) -> u64 {
        REGIONS_MAX as u64
    }

    fn replace(&mut self, memory: GuestMemory) -> Result<(), MessageRefusal> {
        self.pause_all()?;
        self.share(memory);
        self.start_all_ready()
    }

    pub(super) fn share(&mut self, memory: GuestMemory) {
        self.has_shared |= !memory.is_empty();
        self.memory = Arc::new(memory);
    }
}
