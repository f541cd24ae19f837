//! From a chain of a packed ring to the memory it names.
//!
//! Invariants: a descriptor is copied once and checked after; a chain is no longer than the part of
//! the ring that the driver may write, so it ends.

use super::areas::Areas;
use crate::ring::{Chain, DESCRIPTOR_BYTES, Gather, RingError, table_entries};

/// VIRTQ_DESC_F_NEXT.
const NEXT: u16 = 1;
/// VIRTQ_DESC_F_WRITE.
const WRITE: u16 = 2;
/// VIRTQ_DESC_F_INDIRECT.
const INDIRECT: u16 = 4;

/// What a chain is read with; it starts at the slot `gather.head`.
pub(super) struct Reader<'a> {
    pub(super) areas: &'a Areas,
    pub(super) gather: Gather<'a>,
    pub(super) indirect: bool,
    /// How many descriptors the driver can have made available.
    pub(super) free: u16,
}

/// What a chain takes of the ring.
#[derive(Debug, Clone, Copy)]
pub(super) struct Span {
    /// The driver's name for it.
    pub(super) id: u16,
    /// How many descriptors it has, from 1 on.
    pub(super) descriptors: u16,
}

#[derive(Clone, Copy)]
struct Descriptor {
    address: u64,
    bytes: u32,
    id: u16,
    flags: u16,
}

impl Reader<'_> {
    /// Adds the memory of the chain to `chain`. `flags` are those of its first descriptor, by which
    /// it was found available.
    pub(super) fn read(mut self, flags: u16, chain: &mut Chain) -> Result<Span, RingError> {
        let head = self.gather.head;
        let mut slot = head;
        let mut descriptors = 0;
        loop {
            if descriptors == self.free {
                return Err(RingError::ChainTooLong { head, free: self.free });
            }
            let mut descriptor = Descriptor::from_bytes(self.areas.descriptor(slot));
            if descriptors == 0 {
                // What was checked counts, not what stands there now.
                descriptor.flags = flags;
            }
            descriptors += 1;
            if descriptor.has(INDIRECT) {
                self.read_table(descriptor, descriptors, chain)?;
                return Ok(Span { id: descriptor.id, descriptors });
            }
            self.add(descriptor, chain)?;
            if !descriptor.has(NEXT) {
                // The last descriptor has the chain's id (virtio 1.2, 2.8.6).
                return Ok(Span { id: descriptor.id, descriptors });
            }
            slot = if slot + 1 == self.areas.size() { 0 } else { slot + 1 };
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
