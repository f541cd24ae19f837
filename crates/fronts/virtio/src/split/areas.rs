//! The three parts of a split ring, as pointers into guest memory.
//!
//! Invariants: all pointers are aligned and stay inside the memory that the ring's table keeps
//! mapped; an index is masked or checked before it becomes an address. Every access is atomic or
//! volatile: the driver uses the same memory at the same time.
//! Threads: used by the ring's owner only.

#![expect(
    unsafe_code,
    reason = "ring memory is shared with the guest and only reachable through raw pointers"
)]

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};

use crate::GuestMemory;
use crate::fault_point::stored;
use crate::memory::read_descriptor;
use crate::ring::{Area, DESCRIPTOR_BYTES, RING_SIZE_MAX, RingAddresses, RingError};

/// Bytes of an element of the used ring (virtio 1.2, 2.7.8).
const USED_ELEMENT_BYTES: usize = 8;
/// Bytes in front of the elements of an available or used ring: flags and index.
const HEADER_BYTES: usize = 4;
/// Where the index lies behind the flags.
const INDEX_OFFSET: usize = 2;

/// Pointers to the three areas of a split ring in guest memory: descriptor table, available ring, used ring.
#[derive(Debug)]
pub(super) struct SplitAreas {
    descriptors: NonNull<u8>,
    available: NonNull<u8>,
    used: NonNull<u8>,
    size: u16,
}

// SAFETY: the pointers lead into mappings of the process, which any thread may use; the ring that
// holds the areas keeps them mapped and is used by one thread at a time.
unsafe impl Send for SplitAreas {}

impl SplitAreas {
    /// Finds the areas in `memory`. The caller keeps the table as long as the areas.
    pub(super) fn find(
        memory: &GuestMemory,
        addresses: &RingAddresses,
        size: u16,
    ) -> Result<Self, RingError> {
        if !size.is_power_of_two() || size > RING_SIZE_MAX {
            return Err(RingError::Size { size });
        }
        let entries = u64::from(size);
        let find =
            |area: Area, address, bytes, alignment| area.find(memory, address, bytes, alignment);
        // Both rings end with a field for EVENT_IDX, which is there without the feature too
        // (virtio 1.2, 2.7).
        Ok(Self {
            descriptors: find(Area::Descriptors, addresses.descriptors, 16 * entries, 16)?,
            available: find(Area::Available, addresses.available, 6 + 2 * entries, 2)?,
            used: find(Area::Used, addresses.used, 6 + 8 * entries, 4)?,
            size,
        })
    }

    pub(super) fn size(&self) -> u16 {
        self.size
    }

    /// What the driver has made available; the entries before it may be read afterwards.
    pub(super) fn available_index(&self) -> u16 {
        u16::from_le(self.u16_at(self.available, INDEX_OFFSET).load(Ordering::Acquire))
    }

    pub(super) fn available_flags(&self) -> u16 {
        u16::from_le(self.u16_at(self.available, 0).load(Ordering::Relaxed))
    }

    /// The head in the entry that this free-running index stands for.
    pub(super) fn available_entry(&self, index: u16) -> u16 {
        let offset = HEADER_BYTES + 2 * self.place(index);
        u16::from_le(self.u16_at(self.available, offset).load(Ordering::Relaxed))
    }

    /// The used index at which the driver wants the next interrupt (EVENT_IDX).
    pub(super) fn used_event(&self) -> u16 {
        let offset = HEADER_BYTES + 2 * usize::from(self.size);
        u16::from_le(self.u16_at(self.available, offset).load(Ordering::Relaxed))
    }

    pub(super) fn used_index(&self) -> u16 {
        u16::from_le(self.u16_at(self.used, INDEX_OFFSET).load(Ordering::Relaxed))
    }

    /// Makes all elements before `index` visible to the driver.
    pub(super) fn set_used_index(&self, index: u16) {
        self.u16_at(self.used, INDEX_OFFSET).store(index.to_le(), Ordering::Release);
        stored();
    }

    pub(super) fn set_used_flags(&self, flags: u16) {
        self.u16_at(self.used, 0).store(flags.to_le(), Ordering::Relaxed);
    }

    /// The available index at which the device wants the next kick (EVENT_IDX). Returns where in
    /// the used ring it stands.
    pub(super) fn set_available_event(&self, index: u16) -> u64 {
        let offset = HEADER_BYTES + USED_ELEMENT_BYTES * usize::from(self.size);
        self.u16_at(self.used, offset).store(index.to_le(), Ordering::Relaxed);
        offset as u64
    }

    /// Writes the element that this free-running index stands for.
    pub(super) fn set_used_element(&self, index: u16, head: u16, written: u32) {
        let offset = HEADER_BYTES + USED_ELEMENT_BYTES * self.place(index);
        self.u32_in_used(offset).store(u32::from(head).to_le(), Ordering::Relaxed);
        stored();
        self.u32_in_used(offset + 4).store(written.to_le(), Ordering::Relaxed);
        stored();
    }

    /// A copy of the descriptor. Panics if the table has no such one.
    pub(super) fn descriptor(&self, index: u16) -> [u8; DESCRIPTOR_BYTES] {
        assert!(index < self.size, "the caller checked");
        let offset = DESCRIPTOR_BYTES * usize::from(index);
        // SAFETY: the table has `size` descriptors (`find`) and `index` is less than that.
        let at = unsafe { self.descriptors.add(offset) };
        // SAFETY: the 16 bytes lie there, mapped and readable as long as the ring's table lives.
        unsafe { read_descriptor(at) }
    }

    fn place(&self, index: u16) -> usize {
        usize::from(index & (self.size - 1))
    }

    /// The field at an even offset inside the available or used ring.
    fn u16_at(&self, ring: NonNull<u8>, offset: usize) -> &AtomicU16 {
        // SAFETY: every caller's offset is a fixed field or an entry with a masked index, all
        // inside the bytes that `find` checked.
        let field = unsafe { ring.add(offset) };
        // SAFETY: `field` is aligned to 2 (the ring is, the offset is even), mapped and writable
        // as long as the ring's table lives. The other side is another process, which no Rust
        // rule binds; this side makes atomic accesses only.
        unsafe { AtomicU16::from_ptr(field.cast().as_ptr()) }
    }

    /// The field at an offset of the used ring that is a multiple of 4.
    fn u32_in_used(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: the offset is that of an element with a masked index, inside the bytes that
        // `find` checked.
        let field = unsafe { self.used.add(offset) };
        // SAFETY: `field` is aligned to 4 (the used ring is, and so is the offset), mapped and
        // writable as long as the ring's table lives; this side makes atomic accesses only.
        unsafe { AtomicU32::from_ptr(field.cast().as_ptr()) }
    }
}
