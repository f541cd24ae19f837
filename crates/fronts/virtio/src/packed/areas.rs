//! The three parts of a packed ring, as pointers into guest memory.
//!
//! Invariants: all pointers are aligned and stay inside the memory that the ring's table keeps
//! mapped; a slot is checked before it becomes an address. Every access is atomic or volatile: the
//! driver uses the same memory at the same time.
//! Threads: used by the ring's owner only.

#![expect(
    unsafe_code,
    reason = "ring memory is shared with the guest and only reachable through raw pointers"
)]

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};

use super::position::Position;
use crate::GuestMemory;
use crate::fault_point::stored;
use crate::memory::read_descriptor;
use crate::ring::{Area, DESCRIPTOR_BYTES, RING_SIZE_MAX, RingAddresses, RingError};

/// Where a descriptor has its length, its buffer id and its flags (virtio 1.2, 2.8.13).
const LENGTH_OFFSET: usize = 8;
const ID_OFFSET: usize = 12;
const FLAGS_OFFSET: usize = 14;

/// Bytes of an event suppression structure (virtio 1.2, 2.8.14).
const EVENTS_BYTES: u64 = 4;
/// RING_EVENT_FLAGS_ENABLE, _DISABLE and _DESC, in the upper half of the structure.
const ENABLE: u16 = 0;
const DISABLE: u16 = 1;
const AT_DESCRIPTOR: u16 = 2;
/// The bits of the flags that are not reserved.
const EVENT_FLAGS: u16 = 3;

/// An event suppression structure: whether one side wants to be notified, and at which descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EventSuppression {
    /// Each time.
    All,
    /// Never.
    None,
    /// When the descriptor at this position is made available or used. Only with EVENT_IDX.
    At(Position),
}

impl EventSuppression {
    fn from_bits(bits: u32) -> Self {
        let [p0, p1, f0, f1] = bits.to_le_bytes();
        match u16::from_le_bytes([f0, f1]) & EVENT_FLAGS {
            DISABLE => Self::None,
            AT_DESCRIPTOR => Self::At(Position::from_bits(u16::from_le_bytes([p0, p1]))),
            // One notification too many does no harm where the value is reserved.
            _ => Self::All,
        }
    }

    fn to_bits(self) -> u32 {
        let (position, flags) = match self {
            Self::All => (0, ENABLE),
            Self::None => (0, DISABLE),
            Self::At(position) => (position.to_bits(), AT_DESCRIPTOR),
        };
        u32::from(position) | u32::from(flags) << 16
    }
}

/// Pointers to the three areas of a packed ring in guest memory: descriptors, driver and device event suppression.
#[derive(Debug)]
pub(super) struct PackedAreas {
    descriptors: NonNull<u8>,
    driver_events: NonNull<u8>,
    device_events: NonNull<u8>,
    size: u16,
}

// SAFETY: the pointers lead into mappings of the process, which any thread may use; the ring that
// holds the areas keeps them mapped and is used by one thread at a time.
unsafe impl Send for PackedAreas {}

impl PackedAreas {
    /// Finds the areas in `memory`. The caller keeps the table as long as the areas.
    pub(super) fn find(
        memory: &GuestMemory,
        addresses: &RingAddresses,
        size: u16,
    ) -> Result<Self, RingError> {
        if size == 0 || size > RING_SIZE_MAX {
            return Err(RingError::PackedSize { size });
        }
        let find_events = |area: Area, address| area.find(memory, address, EVENTS_BYTES, 4);
        let bytes = u64::from(size) * DESCRIPTOR_BYTES as u64;
        Ok(Self {
            descriptors: Area::DescriptorRing.find(memory, addresses.descriptors, bytes, 16)?,
            driver_events: find_events(Area::DriverEvents, addresses.available)?,
            device_events: find_events(Area::DeviceEvents, addresses.used)?,
            size,
        })
    }

    pub(super) fn size(&self) -> u16 {
        self.size
    }

    /// The flags of a slot; if they say that it is available, the chain behind it may be read
    /// afterwards.
    pub(super) fn flags(&self, slot: u16) -> u16 {
        u16::from_le(self.u16_at(slot, FLAGS_OFFSET).load(Ordering::Acquire))
    }

    /// A copy of the descriptor in a slot.
    pub(super) fn descriptor(&self, slot: u16) -> [u8; DESCRIPTOR_BYTES] {
        let at = self.descriptor_at(slot);
        // SAFETY: the 16 bytes lie there, mapped and readable as long as the ring's table lives.
        unsafe { read_descriptor(at) }
    }

    /// Writes a used descriptor except for its flags.
    pub(super) fn set_used(&self, slot: u16, id: u16, written: u32) {
        self.length_at(slot).store(written.to_le(), Ordering::Relaxed);
        stored();
        self.u16_at(slot, ID_OFFSET).store(id.to_le(), Ordering::Relaxed);
        stored();
    }

    /// Writes the flags of a descriptor that the driver does not look at yet.
    pub(super) fn set_flags(&self, slot: u16, flags: u16) {
        self.u16_at(slot, FLAGS_OFFSET).store(flags.to_le(), Ordering::Relaxed);
        stored();
    }

    /// Writes the flags that the driver waits for: it sees everything written before.
    pub(super) fn publish_flags(&self, slot: u16, flags: u16) {
        self.u16_at(slot, FLAGS_OFFSET).store(flags.to_le(), Ordering::Release);
        stored();
    }

    /// When the driver wants an interrupt.
    pub(super) fn driver_events(&self) -> EventSuppression {
        EventSuppression::from_bits(u32::from_le(
            self.events(self.driver_events).load(Ordering::Relaxed),
        ))
    }

    /// Says when the device wants a kick; flags and position in one store.
    pub(super) fn set_device_events(&self, wish: EventSuppression) {
        self.events(self.device_events).store(wish.to_bits().to_le(), Ordering::Relaxed);
    }

    /// The descriptor in a slot. Panics if the ring has no such one.
    fn descriptor_at(&self, slot: u16) -> NonNull<u8> {
        assert!(slot < self.size, "a position of ours is in the ring");
        let offset = DESCRIPTOR_BYTES * usize::from(slot);
        // SAFETY: the ring has `size` descriptors (`find`) and `slot` is less than that.
        unsafe { self.descriptors.add(offset) }
    }

    /// The field of a descriptor at this even offset, less than its size.
    fn u16_at(&self, slot: u16, offset: usize) -> &AtomicU16 {
        // SAFETY: every caller's offset is that of a field of the descriptor, inside the ring.
        let field = unsafe { self.descriptor_at(slot).add(offset) };
        // SAFETY: `field` is aligned to 2 (the ring is to 16, the offset is even), mapped and
        // writable as long as the ring's table lives. The other side is another process, which no
        // Rust rule binds; this side makes atomic accesses and volatile copies only.
        unsafe { AtomicU16::from_ptr(field.cast().as_ptr()) }
    }

    fn length_at(&self, slot: u16) -> &AtomicU32 {
        // SAFETY: the length is a field of the descriptor, inside the ring.
        let field = unsafe { self.descriptor_at(slot).add(LENGTH_OFFSET) };
        // SAFETY: `field` is aligned to 4 (the ring is to 16, the offset is 8), mapped and writable
        // as long as the ring's table lives; this side makes atomic accesses and volatile copies
        // only.
        unsafe { AtomicU32::from_ptr(field.cast().as_ptr()) }
    }

    /// One of the two event suppression structures.
    fn events(&self, area: NonNull<u8>) -> &AtomicU32 {
        // SAFETY: both callers give an area that `find` found: 4 bytes, aligned to 4, mapped and
        // writable as long as the ring's table lives; this side makes atomic accesses only.
        unsafe { AtomicU32::from_ptr(area.cast().as_ptr()) }
    }
}
