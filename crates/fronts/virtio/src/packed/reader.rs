//! From a chain of a packed ring to the memory it names.
//!
//! Invariants: a descriptor is copied once and checked after; a chain is no longer than the part of
//! the ring that the driver may write, so it ends.

use super::areas::Areas;
use crate::inflight::PackedTracker;
use crate::ring::{Chain, ChainBuilder, DESCRIPTOR_BYTES, RingError, table_entries};

/// VIRTQ_DESC_F_NEXT.
const NEXT: u16 = 1;
/// VIRTQ_DESC_F_WRITE.
const WRITE: u16 = 2;
/// VIRTQ_DESC_F_INDIRECT.
const INDIRECT: u16 = 4;

/// Where the flags of a descriptor start (virtio 1.2, 2.8.13).
const FLAGS_OFFSET: usize = 14;

/// Reads a chain's descriptors and gathers the memory that they name.
pub(super) struct ChainReader<'a> {
    pub(super) areas: &'a Areas,
    pub(super) gather: ChainBuilder<'a>,
    /// Gets a copy of every descriptor of the ring.
    pub(super) tracker: Option<&'a mut PackedTracker>,
    pub(super) indirect: bool,
    /// How many descriptors the driver can have made available.
    pub(super) free: u16,
}

/// The buffer id of a chain, and how many descriptors of the ring it takes.
#[derive(Debug, Clone, Copy)]
pub(super) struct ChainSpan {
    /// The driver's name for it.
    pub(super) id: u16,
    /// How many descriptors it has, from 1 on.
    pub(super) descriptors: u16,
}

/// A descriptor of a packed ring (struct pvirtq_desc).
#[derive(Clone, Copy)]
struct Descriptor {
    address: u64,
    bytes: u32,
    id: u16,
    flags: u16,
}

impl ChainReader<'_> {
    /// Adds the memory of the chain to `chain`. `flags` are those of its first descriptor, by which
    /// it was found available.
    pub(super) fn read(mut self, flags: u16, chain: &mut Chain) -> Result<ChainSpan, RingError> {
        let (areas, head, free) = (self.areas, self.gather.head, self.free);
        let mut tracker = self.tracker.take();
        if let Some(tracker) = &mut tracker {
            tracker.begin_chain();
        }
        let mut slot = head;
        self.gather(chain, |place| {
            if place == free {
                return Err(RingError::ChainTooLong { head, free });
            }
            let mut bytes = areas.descriptor(slot);
            if place == 0 {
                // What was checked counts, not what stands there now.
                bytes[FLAGS_OFFSET..].copy_from_slice(&flags.to_le_bytes());
            }
            if let Some(tracker) = &mut tracker {
                tracker.copy(bytes);
            }
            slot = if slot + 1 == areas.size() { 0 } else { slot + 1 };
            Ok(bytes)
        })
    }

    /// Adds the memory of a chain that was copied while it was in flight before. The ring has not
    /// got it any more.
    pub(super) fn read_saved(
        mut self,
        saved: &[[u8; DESCRIPTOR_BYTES]],
        chain: &mut Chain,
    ) -> Result<(), RingError> {
        let head = self.gather.head;
        let descriptors = u16::try_from(saved.len()).expect("at most the ring size");
        let too_long = RingError::ChainTooLong { head, free: descriptors };
        let read =
            self.gather(chain, |place| saved.get(usize::from(place)).copied().ok_or(too_long))?;
        if read.descriptors == descriptors { Ok(()) } else { Err(too_long) }
    }

    /// Adds the memory of a chain whose descriptors `fetch` gives, counted from 0.
    fn gather(
        &mut self,
        chain: &mut Chain,
        mut fetch: impl FnMut(u16) -> Result<[u8; DESCRIPTOR_BYTES], RingError>,
    ) -> Result<ChainSpan, RingError> {
        let mut descriptors = 0;
        loop {
            let descriptor = Descriptor::from_bytes(fetch(descriptors)?);
            descriptors += 1;
            if descriptor.has(INDIRECT) {
                self.read_table(descriptor, descriptors, chain)?;
                return Ok(ChainSpan { id: descriptor.id, descriptors });
            }
            self.add(descriptor, chain)?;
            if !descriptor.has(NEXT) {
                // The last descriptor has the chain's id (virtio 1.2, 2.8.6).
                return Ok(ChainSpan { id: descriptor.id, descriptors });
            }
        }
    }

    /// A chain has plain descriptors only or is one indirect one. In the table the writable flag
    /// is the only one that counts, and all descriptors belong to the chain (virtio 1.2, 2.8.7).
    fn read_table(
        &mut self,
        descriptor: Descriptor,
        descriptors: u16,
        chain: &mut Chain,
    ) -> Result<(), RingError> {
        let head = self.gather.head;
        if !self.indirect {
            return Err(RingError::IndirectNotNegotiated { head });
        }
        if descriptors != 1 {
            return Err(RingError::IndirectMixed { head });
        }
        if descriptor.has(NEXT) {
            return Err(RingError::IndirectWithNext { head });
        }
        for index in 0..table_entries(head, descriptor.bytes)? {
            let bytes = self.gather.table_entry(descriptor.address, index)?;
            self.add(Descriptor::from_bytes(bytes), chain)?;
        }
        Ok(())
    }

    fn add(&mut self, descriptor: Descriptor, chain: &mut Chain) -> Result<(), RingError> {
        let writable = descriptor.has(WRITE);
        self.gather.add(descriptor.address, descriptor.bytes, writable, chain)
    }
}

impl Descriptor {
    fn from_bytes(bytes: [u8; DESCRIPTOR_BYTES]) -> Self {
        let [a0, a1, a2, a3, a4, a5, a6, a7, l0, l1, l2, l3, i0, i1, f0, f1] = bytes;
        Self {
            address: u64::from_le_bytes([a0, a1, a2, a3, a4, a5, a6, a7]),
            bytes: u32::from_le_bytes([l0, l1, l2, l3]),
            id: u16::from_le_bytes([i0, i1]),
            flags: u16::from_le_bytes([f0, f1]),
        }
    }

    fn has(self, flag: u16) -> bool {
        self.flags & flag != 0
    }
}
