//! From a descriptor chain of a split ring to the memory it names.
//!
//! Invariants: a descriptor is copied once and checked after; a chain visits no more descriptors
//! than its table has, so a loop ends.

use super::areas::Areas;
use crate::ring::{Chain, ChainBuilder, DESCRIPTOR_BYTES, RingError, table_entries};

/// VIRTQ_DESC_F_NEXT.
const NEXT: u16 = 1;
/// VIRTQ_DESC_F_WRITE.
const WRITE: u16 = 2;
/// VIRTQ_DESC_F_INDIRECT.
const INDIRECT: u16 = 4;

/// Reads a chain's descriptors and gathers the memory that they name.
pub(super) struct ChainReader<'a> {
    pub(super) areas: &'a Areas,
    pub(super) gather: ChainBuilder<'a>,
    pub(super) indirect: bool,
}

/// A descriptor of a split ring (struct virtq_desc).
#[derive(Clone, Copy)]
struct Descriptor {
    address: u64,
    bytes: u32,
    flags: u16,
    next: u16,
}

/// Which table a chain's descriptors come from: the ring's own or an indirect one.
#[derive(Clone, Copy)]
enum DescriptorTable {
    Ring { entries: u16 },
    Indirect { address: u64, entries: u16 },
}

impl ChainReader<'_> {
    /// Adds the memory of the chain to `chain`.
    pub(super) fn read(mut self, chain: &mut Chain) -> Result<(), RingError> {
        let head = self.gather.head;
        let mut table = DescriptorTable::Ring { entries: self.areas.size() };
        let mut index = head;
        let mut visited = 0;
        loop {
            let descriptor = self.descriptor(table, index)?;
            if visited == table.entries() {
                return Err(RingError::Loop { head, entries: table.entries().into() });
            }
            visited += 1;
            if descriptor.has(INDIRECT) {
                table = self.enter(table, descriptor)?;
                (index, visited) = (0, 0);
                continue;
            }
            let writable = descriptor.has(WRITE);
            self.gather.add(descriptor.address, descriptor.bytes, writable, chain)?;
            if !descriptor.has(NEXT) {
                return Ok(());
            }
            index = descriptor.next;
        }
    }

    fn descriptor(&mut self, table: DescriptorTable, index: u16) -> Result<Descriptor, RingError> {
        if index >= table.entries() {
            let (head, entries) = (self.gather.head, table.entries().into());
            return Err(RingError::DescriptorOutOfRange { head, index, entries });
        }
        let bytes = match table {
            DescriptorTable::Ring { .. } => self.areas.descriptor(index),
            DescriptorTable::Indirect { address, .. } => self.gather.table_entry(address, index)?,
        };
        Ok(Descriptor::from_bytes(bytes))
    }

    /// Zero or more plain descriptors may precede one indirect descriptor, which is the last
    /// (virtio 1.2, 2.7.5.3).
    fn enter(
        &self,
        from: DescriptorTable,
        descriptor: Descriptor,
    ) -> Result<DescriptorTable, RingError> {
        let head = self.gather.head;
        if !self.indirect {
            return Err(RingError::IndirectNotNegotiated { head });
        }
        if let DescriptorTable::Indirect { .. } = from {
            return Err(RingError::IndirectNested { head });
        }
        if descriptor.has(NEXT) {
            return Err(RingError::IndirectWithNext { head });
        }
        let entries = table_entries(head, descriptor.bytes)?;
        Ok(DescriptorTable::Indirect { address: descriptor.address, entries })
    }
}

impl DescriptorTable {
    fn entries(self) -> u16 {
        match self {
            Self::Ring { entries } | Self::Indirect { entries, .. } => entries,
        }
    }
}

impl Descriptor {
    fn from_bytes(bytes: [u8; DESCRIPTOR_BYTES]) -> Self {
        let [a0, a1, a2, a3, a4, a5, a6, a7, l0, l1, l2, l3, f0, f1, n0, n1] = bytes;
        Self {
            address: u64::from_le_bytes([a0, a1, a2, a3, a4, a5, a6, a7]),
            bytes: u32::from_le_bytes([l0, l1, l2, l3]),
            flags: u16::from_le_bytes([f0, f1]),
            next: u16::from_le_bytes([n0, n1]),
        }
    }

    fn has(self, flag: u16) -> bool {
        self.flags & flag != 0
    }
}
