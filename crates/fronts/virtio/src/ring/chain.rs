//! Descriptors, and the memory that a chain of them names.
//!
//! Invariants: whatever the layout, a buffer is translated and checked here; nothing beyond
//! [`SEGMENTS_MAX`] segments is kept.

use block::Buffers;

use super::{ChainProblem, RING_SIZE_MAX};
use crate::{GuestAddress, GuestMemory, TranslationHint};

/// The most segments a chain may have: QEMU's bound of 1024, a header and a status byte.
pub const SEGMENTS_MAX: usize = 1024 + 2;

/// Bytes of a descriptor (virtio 1.2, 2.7.5 and 2.8.13).
pub(crate) const DESCRIPTOR_BYTES: usize = 16;

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
pub(crate) struct TranslationHints {
    buffer: TranslationHint,
    table: TranslationHint,
}

/// A descriptor of either layout (struct virtq_desc, struct pvirtq_desc).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Descriptor {
    pub(crate) address: u64,
    pub(crate) bytes: u32,
    pub(crate) flags: u16,
    /// The next descriptor of a chain in a split ring, the buffer id in a packed one.
    pub(crate) next_or_id: u16,
}

impl Descriptor {
    /// VIRTQ_DESC_F_NEXT.
    const NEXT: u16 = 1;
    /// VIRTQ_DESC_F_WRITE.
    const WRITE: u16 = 2;
    /// VIRTQ_DESC_F_INDIRECT.
    const INDIRECT: u16 = 4;

    /// As it lies in a split ring (virtio 1.2, 2.7.5).
    pub(crate) fn split(bytes: [u8; DESCRIPTOR_BYTES]) -> Self {
        let [address @ .., l0, l1, l2, l3, f0, f1, n0, n1] = bytes;
        Self {
            address: u64::from_le_bytes(address),
            bytes: u32::from_le_bytes([l0, l1, l2, l3]),
            flags: u16::from_le_bytes([f0, f1]),
            next_or_id: u16::from_le_bytes([n0, n1]),
        }
    }

    /// As it lies in a packed ring (virtio 1.2, 2.8.13): buffer id and flags stand the other way round.
    pub(crate) fn packed(bytes: [u8; DESCRIPTOR_BYTES]) -> Self {
        let Self { flags: next_or_id, next_or_id: flags, .. } = Self::split(bytes);
        Self { flags, next_or_id, ..Self::split(bytes) }
    }

    pub(crate) fn has_next(self) -> bool {
        self.flags & Self::NEXT != 0
    }

    pub(crate) fn is_indirect(self) -> bool {
        self.flags & Self::INDIRECT != 0
    }
}

/// Collects the memory of a chain: translates and checks each buffer.
pub(crate) struct ChainBuilder<'a> {
    pub(crate) memory: &'a GuestMemory,
    pub(crate) hints: &'a mut TranslationHints,
    pub(crate) is_indirect_allowed: bool,
}

impl ChainBuilder<'_> {
    /// Adds the buffer of one descriptor to `chain`.
    pub(crate) fn add(
        &mut self,
        descriptor: Descriptor,
        chain: &mut Chain,
    ) -> Result<(), ChainProblem> {
        let Descriptor { address, bytes, flags, .. } = descriptor;
        if bytes == 0 {
            return Err(ChainProblem::EmptyBuffer { address });
        }
        let buffers = if flags & Descriptor::WRITE != 0 {
            &mut chain.writable
        } else if chain.writable.count() == 0 {
            &mut chain.readable
        } else {
            return Err(ChainProblem::ReadableAfterWritable);
        };
        let push = |segment| buffers.push(segment);
        self.memory.translate(GuestAddress(address), bytes, &mut self.hints.buffer, push)?;
        if chain.segments() > SEGMENTS_MAX {
            return Err(ChainProblem::TooManySegments);
        }
        Ok(())
    }

    /// A copy of the descriptor at this place of the indirect table at `address`.
    pub(crate) fn table_entry(
        &mut self,
        address: u64,
        index: u16,
    ) -> Result<[u8; DESCRIPTOR_BYTES], ChainProblem> {
        // A table that wraps ends at an address that no region covers.
        let address = address.wrapping_add(u64::from(index) * DESCRIPTOR_BYTES as u64);
        Ok(self.memory.read_descriptor(GuestAddress(address), &mut self.hints.table)?)
    }

    /// How many descriptors the table of an indirect one has: 1 to [`RING_SIZE_MAX`], whole. `misplaced` says why
    /// there must be none where it stands.
    pub(crate) fn table_entries(
        &self,
        indirect: Descriptor,
        misplaced: Option<ChainProblem>,
    ) -> Result<u16, ChainProblem> {
        let bytes = indirect.bytes;
        if !self.is_indirect_allowed {
            return Err(ChainProblem::IndirectNotNegotiated);
        }
        misplaced.map_or(Ok(()), Err)?;
        if indirect.has_next() {
            return Err(ChainProblem::IndirectWithNext);
        }
        let each = u32::try_from(DESCRIPTOR_BYTES).expect("16 is small");
        match u16::try_from(bytes / each) {
            Ok(entries) if (1..=RING_SIZE_MAX).contains(&entries) && bytes.is_multiple_of(each) => {
                Ok(entries)
            }
            Ok(_) | Err(_) => Err(ChainProblem::IndirectLength { bytes }),
        }
    }
}
