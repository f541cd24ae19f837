//! The memory that one chain names.
//!
//! Invariants: whatever the layout, a buffer is translated and checked here; nothing beyond
//! [`SEGMENTS_MAX`] segments is kept.

use block::Buffers;

use super::{RING_SIZE_MAX, RingError};
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

/// Collects the memory of a chain: translates and checks each buffer.
pub(crate) struct ChainBuilder<'a> {
    pub(crate) memory: &'a GuestMemory,
    pub(crate) hits: &'a mut TranslationHints,
    /// Where the chain starts, for the sentences about it.
    pub(crate) head: u16,
}

impl ChainBuilder<'_> {
    /// Adds the buffer of one descriptor to `chain`.
    pub(crate) fn add(
        &mut self,
        address: u64,
        bytes: u32,
        writable: bool,
        chain: &mut Chain,
    ) -> Result<(), RingError> {
        let head = self.head;
        if bytes == 0 {
            return Err(RingError::EmptyBuffer { head, address });
        }
        let buffers = if writable {
            &mut chain.writable
        } else if chain.writable.count() == 0 {
            &mut chain.readable
        } else {
            return Err(RingError::ReadableAfterWritable { head });
        };
        self.memory
            .translate(GuestAddress(address), bytes, &mut self.hits.buffer, |segment| {
                buffers.push(segment);
            })
            .map_err(|missing| RingError::NotMapped { head, missing })?;
        if chain.segments() > SEGMENTS_MAX {
            return Err(RingError::TooManySegments { head });
        }
        Ok(())
    }

    /// A copy of the descriptor at this place of the indirect table at `address`.
    pub(crate) fn table_entry(
        &mut self,
        address: u64,
        index: u16,
    ) -> Result<[u8; DESCRIPTOR_BYTES], RingError> {
        // A table that wraps ends at an address that no region covers.
        let address = address.wrapping_add(u64::from(index) * DESCRIPTOR_BYTES as u64);
        self.memory
            .read(GuestAddress(address), &mut self.hits.table)
            .map_err(|missing| RingError::NotMapped { head: self.head, missing })
    }
}

/// How many descriptors an indirect table of so many bytes has: 1 to [`RING_SIZE_MAX`], whole.
pub(crate) fn table_entries(head: u16, bytes: u32) -> Result<u16, RingError> {
    let each = u32::try_from(DESCRIPTOR_BYTES).expect("16 is small");
    match u16::try_from(bytes / each) {
        Ok(entries) if (1..=RING_SIZE_MAX).contains(&entries) && bytes.is_multiple_of(each) => {
            Ok(entries)
        }
        Ok(_) | Err(_) => Err(RingError::IndirectLength { head, bytes }),
    }
}
