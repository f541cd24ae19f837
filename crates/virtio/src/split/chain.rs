//! From a descriptor chain to the memory it names.
//!
//! Invariants: a descriptor is copied once and checked after; a chain visits no more descriptors
//! than its table has, so a loop ends; nothing beyond [`SEGMENTS_MAX`] segments is kept.

use block::Buffers;

use super::areas::{Areas, DESCRIPTOR_BYTES};
use super::{RING_SIZE_MAX, RingError};
use crate::{GuestAddress, GuestMemory, LastHit};

/// The most segments a chain may have: QEMU's bound of 1024, a header and a status byte.
pub const SEGMENTS_MAX: usize = 1024 + 2;

/// VIRTQ_DESC_F_NEXT.
const NEXT: u16 = 1;
/// VIRTQ_DESC_F_WRITE.
const WRITE: u16 = 2;
/// VIRTQ_DESC_F_INDIRECT.
const INDIRECT: u16 = 4;

/// The memory of one popped chain. Kept by the caller and filled again for every chain, so that
/// nothing is allocated once it has grown.
#[derive(Debug, Default)]
pub struct Chain {
    /// What the driver wrote for the device.
    pub readable: Buffers,
    /// What the device may write for the driver.
    pub writable: Buffers,
}

impl Chain {
    /// Forgets all memory, keeps the room.
    pub fn clear(&mut self) {
        self.readable.clear();
        self.writable.clear();
    }

    fn segments(&self) -> usize {
        self.readable.segments().len() + self.writable.segments().len()
    }
}

/// The regions in which the last buffer and the last indirect table were found.
#[derive(Debug, Default)]
pub(super) struct Hits {
    buffer: LastHit,
    table: LastHit,
}

/// What a chain is read with.
pub(super) struct Reader<'a> {
    pub(super) areas: &'a Areas,
    pub(super) memory: &'a GuestMemory,
    pub(super) hits: &'a mut Hits,
    pub(super) indirect: bool,
    pub(super) head: u16,
}

#[derive(Clone, Copy)]
struct Descriptor {
    address: u64,
    bytes: u32,
    flags: u16,
    next: u16,
}

/// Where descriptors come from.
#[derive(Clone, Copy)]
enum Table {
    Ring { entries: u32 },
    Indirect { address: u64, entries: u32 },
}

impl Reader<'_> {
    /// Adds the memory of the chain to `chain`.
    pub(super) fn read(mut self, chain: &mut Chain) -> Result<(), RingError> {
        let mut table = Table::Ring { entries: self.areas.size().into() };
        let mut index = self.head;
        let mut visited = 0;
        loop {
            let descriptor = self.descriptor(table, index)?;
            if visited == table.entries() {
                return Err(RingError::Loop { head: self.head, entries: table.entries() });
            }
            visited += 1;
            if descriptor.has(INDIRECT) {
                table = self.enter(table, descriptor)?;
                (index, visited) = (0, 0);
                continue;
            }
            self.add(descriptor, chain)?;
            if !descriptor.has(NEXT) {
                return Ok(());
            }
            index = descriptor.next;
        }
    }

    fn descriptor(&mut self, table: Table, index: u16) -> Result<Descriptor, RingError> {
        let out_of_range =
            RingError::DescriptorOutOfRange { head: self.head, index, entries: table.entries() };
        let bytes = match table {
            Table::Ring { .. } => self.areas.descriptor(index).ok_or(out_of_range)?,
            Table::Indirect { address, entries } => {
                if u32::from(index) >= entries {
                    return Err(out_of_range);
                }
                // A table that wraps ends at an address that no region covers.
                let address = address.wrapping_add(u64::from(index) * DESCRIPTOR_BYTES as u64);
                self.memory
                    .read(GuestAddress(address), &mut self.hits.table)
                    .map_err(|missing| RingError::NotMapped { head: self.head, missing })?
            }
        };
        Ok(Descriptor::from_bytes(bytes))
    }

    /// Zero or more plain descriptors may precede one indirect descriptor, which is the last
    /// (virtio 1.2, 2.7.5.3).
    fn enter(&self, from: Table, descriptor: Descriptor) -> Result<Table, RingError> {
        let head = self.head;
        if !self.indirect {
            return Err(RingError::IndirectNotNegotiated { head });
        }
        if let Table::Indirect { .. } = from {
            return Err(RingError::IndirectNested { head });
        }
        if descriptor.has(NEXT) {
            return Err(RingError::IndirectWithNext { head });
        }
        let bytes = descriptor.bytes;
        let each = u32::try_from(DESCRIPTOR_BYTES).expect("16 is small");
        let entries = bytes / each;
        if entries == 0 || !bytes.is_multiple_of(each) || entries > RING_SIZE_MAX.into() {
            return Err(RingError::IndirectLength { head, bytes });
        }
        Ok(Table::Indirect { address: descriptor.address, entries })
    }

    fn add(&mut self, descriptor: Descriptor, chain: &mut Chain) -> Result<(), RingError> {
        let head = self.head;
        if descriptor.bytes == 0 {
            return Err(RingError::EmptyBuffer { head, address: descriptor.address });
        }
        let buffers = if descriptor.has(WRITE) {
            &mut chain.writable
        } else if chain.writable.count() == 0 {
            &mut chain.readable
        } else {
            return Err(RingError::ReadableAfterWritable { head });
        };
        self.memory
            .translate(
                GuestAddress(descriptor.address),
                descriptor.bytes,
                &mut self.hits.buffer,
                |segment| buffers.push(segment),
            )
            .map_err(|missing| RingError::NotMapped { head, missing })?;
        if chain.segments() > SEGMENTS_MAX {
            return Err(RingError::TooManySegments { head });
        }
        Ok(())
    }
}

impl Table {
    fn entries(self) -> u32 {
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
