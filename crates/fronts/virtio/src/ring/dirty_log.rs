//! What a ring marks in the dirty log, and where.
//!
//! Where it stands in the life of a request: a ring marks what it has written of itself right after
//! it has written it; `virtio_blk` has it mark the buffers of a request that is over.
//!
//! Invariants: a [`RingDirtyLog`] is made for one ring and one memory, and the log covers all that can be
//! marked through it. Threads: belongs to the ring.
//! Limits: pages are marked as a whole. More pages are marked than were written when a log comes
//! (all that the device writes of a ring), for reads that fail or that write only a part, and of a packed ring for the
//! slots that a chain skips.

use std::sync::Arc;

use block::Segment;

use super::{Area, DESCRIPTOR_BYTES, RingError, RingLayout, RingSetup};
use crate::{DirtyLog, GuestAddress, GuestMemory, TranslationHint};

/// Bytes of the used ring in front of its elements, and of an element (virtio 1.2, 2.7.8).
const USED_HEADER_BYTES: u64 = 4;
const USED_ELEMENT_BYTES: u64 = 8;
/// Bytes of an event suppression structure (virtio 1.2, 2.8.14).
const EVENTS_BYTES: u64 = 4;

/// What of a ring's writes is marked in the dirty log: buffers, the ring itself, or both.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DirtyLogScope {
    /// Data and status bytes (vhost-user, VHOST_F_LOG_ALL).
    Buffers,
    /// What is written of the ring itself; its used ring, or of a packed ring the device's event
    /// suppression, is at this guest address (vhost-user, VHOST_VRING_F_LOG).
    Ring(GuestAddress),
    /// Both.
    All(GuestAddress),
}

/// The dirty log as one ring uses it.
#[derive(Debug, Clone)]
pub struct RingDirtyLog {
    log: Arc<DirtyLog>,
    buffers: bool,
    ring: Option<LoggedAreas>,
}

/// The guest addresses of the areas that the device writes.
#[derive(Debug, Clone, Copy)]
struct LoggedAreas {
    used: GuestRange,
    /// Of a packed ring; of a split one the device writes none.
    descriptors: Option<GuestRange>,
}

/// A range of guest addresses.
#[derive(Debug, Clone, Copy)]
struct GuestRange {
    address: GuestAddress,
    bytes: u64,
}

impl RingDirtyLog {
    /// The log for the ring of this description in this memory. An error if the log has no bit for
    /// a page that may have to be marked.
    pub fn new(
        log: Arc<DirtyLog>,
        memory: &GuestMemory,
        setup: &RingSetup,
        marking: DirtyLogScope,
    ) -> Result<Self, RingError> {
        let (buffers, used) = match marking {
            DirtyLogScope::Buffers => (true, None),
            DirtyLogScope::Ring(used) => (false, Some(used)),
            DirtyLogScope::All(used) => (true, Some(used)),
        };
        let ring = used.map(|used| LoggedAreas::find(memory, setup, used)).transpose()?;
        let covered = |last: GuestAddress| {
            let bytes = log.bytes();
            if log.covers(last) { Ok(()) } else { Err(RingError::LogTooSmall { bytes, last }) }
        };
        // Buffers and descriptors are guest memory; where the used ring is, the front end says.
        memory.last_address().map_or(Ok(()), covered)?;
        // No log covers the last of all addresses.
        ring.map_or(Ok(()), |areas| covered(areas.used.last()))?;
        Ok(Self { log, buffers, ring })
    }

    fn mark(&self, run: GuestRange, offset: u64, bytes: u64) {
        self.log.mark(GuestAddress(run.address.0 + offset), bytes);
    }
}

impl GuestRange {
    fn last(self) -> GuestAddress {
        GuestAddress(self.address.0.saturating_add(self.bytes - 1))
    }
}

impl LoggedAreas {
    fn find(
        memory: &GuestMemory,
        setup: &RingSetup,
        used: GuestAddress,
    ) -> Result<Self, RingError> {
        let size = u64::from(setup.size);
        let used_of = |bytes| GuestRange { address: used, bytes };
        if setup.layout == RingLayout::Split {
            return Ok(Self {
                used: used_of(USED_HEADER_BYTES + USED_ELEMENT_BYTES * size + 2),
                descriptors: None,
            });
        }
        let (area, address, bytes) =
            (Area::DescriptorRing, setup.addresses.descriptors, size * DESCRIPTOR_BYTES as u64);
        let found = memory.guest_at_user_address(address, bytes);
        let found = found.ok_or(RingError::AreaNotMapped { area, address, bytes })?;
        let descriptors = Some(GuestRange { address: found, bytes });
        Ok(Self { used: used_of(EVENTS_BYTES), descriptors })
    }
}

/// Marks what a ring writes in the dirty log, if there is one. Without, all methods do nothing after one comparison.
/// Whatever is marked has been written before.
#[derive(Debug, Default)]
pub(crate) struct DirtyMarker {
    log: Option<RingDirtyLog>,
    hit: TranslationHint,
}

impl DirtyMarker {
    /// Uses this log from now on. All areas are marked, because something of them may have been
    /// written since the front end looked at them last, before this ring knew of the log.
    pub(crate) fn set(&mut self, log: Option<RingDirtyLog>) {
        self.log = log;
        if let Some(log) = &self.log
            && let Some(areas) = log.ring
        {
            for run in [Some(areas.used), areas.descriptors].into_iter().flatten() {
                log.mark(run, 0, run.bytes);
            }
        }
    }

    /// Whether the buffers of requests are to be marked.
    pub(crate) fn wants_buffers(&self) -> bool {
        self.log.as_ref().is_some_and(|log| log.buffers)
    }

    /// Whether marks were lost.
    pub(crate) fn are_lost(&self) -> bool {
        self.log.as_ref().is_some_and(|log| log.log.is_lost())
    }

    /// Marks memory of a request.
    pub(crate) fn buffer(&mut self, memory: &GuestMemory, segment: Segment) {
        if let Some(log) = &self.log
            && log.buffers
        {
            let address = memory.guest_address(segment, &mut self.hit);
            log.log.mark(address, segment.count() as u64);
        }
    }

    /// Marks bytes of the used ring, or of the device's event suppression.
    pub(crate) fn used(&self, offset: u64, bytes: u64) {
        if let Some(log) = &self.log
            && let Some(areas) = &log.ring
        {
            log.mark(areas.used, offset, bytes);
        }
    }

    /// Marks the header of the used ring and the elements from this one on, going round.
    pub(crate) fn used_elements(&self, first: u16, count: u16, size: u16) {
        if self.log.is_some() {
            self.used(0, USED_HEADER_BYTES);
            for (place, count) in runs(first, count, size) {
                let offset = USED_HEADER_BYTES + USED_ELEMENT_BYTES * place;
                self.used(offset, USED_ELEMENT_BYTES * count);
            }
        }
    }

    /// Marks the slots of a packed ring from this one on, going round.
    pub(crate) fn slots(&self, first: u16, count: u16, size: u16) {
        if let Some(log) = &self.log
            && let Some(LoggedAreas { descriptors: Some(descriptors), .. }) = log.ring
        {
            let bytes = DESCRIPTOR_BYTES as u64;
            for (place, count) in runs(first, count, size) {
                log.mark(descriptors, bytes * place, bytes * count);
            }
        }
    }
}

/// The entries from `first` on, `count` of a ring of `size`: one run, or two when it goes round. More
/// than all is all: a hostile driver can have more returned before it is shown any.
pub(crate) fn runs(first: u16, count: u16, size: u16) -> [(u64, u64); 2] {
    let count = count.min(size);
    let until_end = (size - first).min(count);
    [(first.into(), until_end.into()), (0, (count - until_end).into())]
}

#[cfg(test)]
mod tests {
    use super::runs;

    #[test]
    fn entries_that_go_round_are_two_runs() {
        assert_eq!(runs(0, 4, 8), [(0, 4), (0, 0)]);
        assert_eq!(runs(6, 2, 8), [(6, 2), (0, 0)]);
        assert_eq!(runs(6, 3, 8), [(6, 2), (0, 1)]);
        assert_eq!(runs(7, 8, 8), [(7, 1), (0, 7)]);
        assert_eq!(runs(0, 0, 8), [(0, 0), (0, 0)]);
        assert_eq!(runs(3, 64, 8), [(3, 5), (0, 3)]);
    }
}
