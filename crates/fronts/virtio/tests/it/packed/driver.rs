//! A guest driver with a packed ring in the first region of its memory.

use std::ops::Deref;
use std::sync::Arc;

use virtio::{Chain, Ring, RingAddresses, RingBase, RingError, RingLayout, RingSetup};

use crate::guest::{GUEST, Guest, USER};

const DRIVER_EVENTS: u64 = 0x8_0000;
const DEVICE_EVENTS: u64 = 0x8_0010;

pub(crate) const NEXT: u16 = 1;
pub(crate) const WRITE: u16 = 2;
pub(crate) const INDIRECT: u16 = 4;
const AVAILABLE: u16 = 1 << 7;
const USED: u16 = 1 << 15;

/// Event suppression.
pub(crate) const ENABLE: u16 = 0;
pub(crate) const DISABLE: u16 = 1;
pub(crate) const AT_DESCRIPTOR: u16 = 2;

/// A slot and the wrap counter there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) slot: u16,
    pub(crate) wrap: bool,
}

impl Place {
    pub(crate) fn bits(self) -> u16 {
        self.slot | u16::from(self.wrap) << 15
    }

    pub(crate) fn forward(self, count: u16, size: u16) -> Self {
        let all = u32::from(self.slot) + u32::from(count);
        let rounds = all / u32::from(size);
        let slot = u16::try_from(all % u32::from(size)).expect("less than the size");
        Self { slot, wrap: self.wrap ^ (rounds % 2 == 1) }
    }
}

/// A descriptor as the driver writes it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Descriptor {
    pub(crate) address: u64,
    pub(crate) bytes: u32,
    pub(crate) id: u16,
    pub(crate) flags: u16,
}

impl Descriptor {
    pub(crate) fn to_bytes(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.address.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.bytes.to_le_bytes());
        bytes[12..14].copy_from_slice(&self.id.to_le_bytes());
        bytes[14..].copy_from_slice(&self.flags.to_le_bytes());
        bytes
    }
}

pub(crate) struct Driver {
    guest: Guest,
    pub(crate) size: u16,
    /// Where the next chain goes.
    pub(crate) available: Place,
    /// Where the next used descriptor is looked for.
    pub(crate) used: Place,
    /// How many descriptors the chain of each id has.
    descriptors: Vec<u16>,
}

impl Deref for Driver {
    type Target = Guest;

    fn deref(&self) -> &Guest {
        &self.guest
    }
}

impl Driver {
    /// A ring of which nothing was served.
    pub(crate) fn new(size: u16) -> Self {
        Self::at(size, Place { slot: 0, wrap: true })
    }

    /// A ring that was served up to this place. All slots are as a driver and a device leave them.
    pub(crate) fn at(size: u16, place: Place) -> Self {
        let driver = Self {
            guest: Guest::new(),
            size,
            available: place,
            used: place,
            descriptors: vec![0; usize::from(size)],
        };
        for slot in 0..size {
            // Used in this round before the place, in the round before from there on.
            let round = if slot < place.slot { place.wrap } else { !place.wrap };
            let flags = if round { AVAILABLE | USED } else { 0 };
            driver.set_descriptor(slot, Descriptor { address: 0, bytes: 0, id: 0, flags });
        }
        driver
    }

    pub(crate) fn base(&self) -> RingBase {
        RingBase(u32::from(self.available.bits()) | u32::from(self.used.bits()) << 16)
    }

    pub(crate) fn setup(&self) -> RingSetup {
        RingSetup {
            layout: RingLayout::Packed,
            size: self.size,
            addresses: RingAddresses {
                descriptors: USER,
                available: USER + DRIVER_EVENTS,
                used: USER + DEVICE_EVENTS,
            },
            base: self.base(),
            event_idx: false,
            indirect: true,
        }
    }

    /// The device side, with indirect descriptors and without EVENT_IDX.
    pub(crate) fn ring(&self) -> Ring {
        self.ring_with(self.setup())
    }

    pub(crate) fn event_ring(&self) -> Ring {
        self.ring_with(RingSetup { event_idx: true, ..self.setup() })
    }

    pub(crate) fn ring_with(&self, setup: RingSetup) -> Ring {
        Ring::new(Arc::clone(&self.guest.memory), setup).expect("the ring lies in memory")
    }

    pub(crate) fn set_descriptor(&self, slot: u16, descriptor: Descriptor) {
        self.write(GUEST + 16 * u64::from(slot), &descriptor.to_bytes());
    }

    /// A table of descriptors for an indirect one, written at `address`.
    pub(crate) fn set_table(&self, address: u64, descriptors: &[Descriptor]) {
        for (place, descriptor) in descriptors.iter().enumerate() {
            self.write(address + 16 * place as u64, &descriptor.to_bytes());
        }
    }

    /// How many descriptors more may be made available.
    pub(crate) fn room(&self) -> u16 {
        self.size - self.descriptors.iter().sum::<u16>()
    }

    /// Makes a chain of these buffers available, each a guest address, a length and flags, the
    /// first of them last. Only the last descriptor has the id.
    pub(crate) fn offer(&mut self, id: u16, buffers: &[(u64, u32, u16)]) {
        let mut at = self.available;
        let mut first = None;
        for (place, &(address, bytes, flags)) in buffers.iter().enumerate() {
            let last = place + 1 == buffers.len();
            let round = if at.wrap { AVAILABLE } else { USED };
            let flags = flags | round | if last { 0 } else { NEXT };
            let id = if last { id } else { 0xfefe };
            let descriptor = Descriptor { address, bytes, id, flags };
            match first {
                None => first = Some((at.slot, descriptor)),
                Some(_) => self.set_descriptor(at.slot, descriptor),
            }
            at = at.forward(1, self.size);
        }
        let (slot, descriptor) = first.expect("a chain has a descriptor");
        self.set_descriptor(slot, descriptor);
        self.available = at;
        if let Some(count) = self.descriptors.get_mut(usize::from(id)) {
            *count = u16::try_from(buffers.len()).expect("a chain is small");
        }
    }

    /// What was returned since the last call: ids and bytes written.
    pub(crate) fn take_used(&mut self) -> Vec<(u16, u32)> {
        let mut all = Vec::new();
        loop {
            let address = GUEST + 16 * u64::from(self.used.slot);
            let flags = self.read_u16(address + 14);
            let bits = (flags & AVAILABLE != 0, flags & USED != 0);
            let free = self.descriptors.iter().all(|count| *count == 0);
            if free || bits != (self.used.wrap, self.used.wrap) {
                return all;
            }
            let (id, written) = (self.read_u16(address + 12), self.read_u32(address + 8));
            assert_eq!(flags & WRITE != 0, written != 0, "the flag says whether it was written");
            let count = std::mem::take(&mut self.descriptors[usize::from(id)]);
            assert_ne!(count, 0, "id {id} is not in flight");
            self.used = self.used.forward(count, self.size);
            all.push((id, written));
        }
    }

    /// When the driver wants interrupts.
    pub(crate) fn set_events(&self, flags: u16, at: Place) {
        self.write(GUEST + DRIVER_EVENTS, &at.bits().to_le_bytes());
        self.write(GUEST + DRIVER_EVENTS + 2, &flags.to_le_bytes());
    }

    /// When the device wants kicks.
    pub(crate) fn device_events(&self) -> (u16, u16) {
        (self.read_u16(GUEST + DEVICE_EVENTS + 2), self.read_u16(GUEST + DEVICE_EVENTS))
    }

    /// Offers and pops one chain.
    pub(crate) fn chain(&mut self, buffers: &[(u64, u32, u16)]) -> Result<Chain, RingError> {
        let mut ring = self.ring();
        self.offer(0, buffers);
        let mut chain = Chain::default();
        let _head = ring.pop(&mut chain)?.expect("a chain was offered");
        Ok(chain)
    }
}
