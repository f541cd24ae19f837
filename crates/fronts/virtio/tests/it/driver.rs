//! A guest driver with a split ring in the first region of its memory.

use std::ops::Deref;
use std::sync::Arc;

use virtio::{Chain, Head, Ring, RingAddresses, RingBase, RingError, RingLayout, RingSetup};

use crate::guest::{GUEST, Guest, USER};

const AVAILABLE: u64 = 0x8_0000;
const USED: u64 = 0xa_0000;

pub(crate) const NEXT: u16 = 1;
pub(crate) const WRITE: u16 = 2;
pub(crate) const INDIRECT: u16 = 4;

/// A descriptor as the driver writes it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Descriptor {
    pub(crate) address: u64,
    pub(crate) bytes: u32,
    pub(crate) flags: u16,
    pub(crate) next: u16,
}

impl Descriptor {
    pub(crate) fn to_bytes(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.address.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.bytes.to_le_bytes());
        bytes[12..14].copy_from_slice(&self.flags.to_le_bytes());
        bytes[14..].copy_from_slice(&self.next.to_le_bytes());
        bytes
    }
}

pub(crate) struct Driver {
    pub(crate) guest: Guest,
    pub(crate) size: u16,
    /// The next available index.
    pub(crate) available: u16,
    used: u16,
}

impl Deref for Driver {
    type Target = Guest;

    fn deref(&self) -> &Guest {
        &self.guest
    }
}

impl Driver {
    /// A ring of `size`, with both indices at `index`.
    pub(crate) fn new(size: u16, index: u16) -> Self {
        let driver = Self { guest: Guest::new(), size, available: index, used: index };
        driver.write(GUEST + AVAILABLE + 2, &index.to_le_bytes());
        driver.write(GUEST + USED + 2, &index.to_le_bytes());
        driver
    }

    pub(crate) fn setup(&self) -> RingSetup {
        RingSetup {
            layout: RingLayout::Split,
            size: self.size,
            addresses: RingAddresses {
                descriptors: USER,
                available: USER + AVAILABLE,
                used: USER + USED,
            },
            base: RingBase(self.available.into()),
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
        Ring::new(Arc::clone(&self.memory), setup).expect("the ring lies in memory")
    }

    pub(crate) fn set_descriptor(&self, index: u16, descriptor: Descriptor) {
        self.write(GUEST + 16 * u64::from(index), &descriptor.to_bytes());
    }

    /// A table of descriptors for an indirect one, written at `address`.
    pub(crate) fn set_table(&self, address: u64, descriptors: &[Descriptor]) {
        for (place, descriptor) in descriptors.iter().enumerate() {
            self.write(address + 16 * place as u64, &descriptor.to_bytes());
        }
    }

    /// Chains these buffers, each a guest address, a length and flags, in descriptors from `head`
    /// on, and makes the chain available.
    pub(crate) fn offer(&mut self, head: u16, buffers: &[(u64, u32, u16)]) {
        for (place, &(address, bytes, flags)) in (head..).zip(buffers) {
            let last = usize::from(place - head) + 1 == buffers.len();
            self.set_descriptor(
                place,
                Descriptor {
                    address,
                    bytes,
                    flags: flags | if last { 0 } else { NEXT },
                    next: place + 1,
                },
            );
        }
        self.make_available(head);
    }

    pub(crate) fn make_available(&mut self, head: u16) {
        let entry = u64::from(self.available & (self.size - 1));
        self.write(GUEST + AVAILABLE + 4 + 2 * entry, &head.to_le_bytes());
        self.available = self.available.wrapping_add(1);
        self.set_available_index(self.available);
    }

    pub(crate) fn set_available_index(&self, index: u16) {
        self.write(GUEST + AVAILABLE + 2, &index.to_le_bytes());
    }

    pub(crate) fn set_available_flags(&self, flags: u16) {
        self.write(GUEST + AVAILABLE, &flags.to_le_bytes());
    }

    pub(crate) fn set_used_event(&self, index: u16) {
        let address = GUEST + AVAILABLE + 4 + 2 * u64::from(self.size);
        self.write(address, &index.to_le_bytes());
    }

    pub(crate) fn used_flags(&self) -> u16 {
        self.read_u16(GUEST + USED)
    }

    pub(crate) fn used_index(&self) -> u16 {
        self.read_u16(GUEST + USED + 2)
    }

    pub(crate) fn available_event(&self) -> u16 {
        self.read_u16(GUEST + USED + 4 + 8 * u64::from(self.size))
    }

    /// What was returned since the last call: heads and bytes written.
    pub(crate) fn take_used(&mut self) -> Vec<(u32, u32)> {
        let mut all = Vec::new();
        while self.used != self.used_index() {
            let entry = u64::from(self.used & (self.size - 1));
            let address = GUEST + USED + 4 + 8 * entry;
            all.push((self.read_u32(address), self.read_u32(address + 4)));
            self.used = self.used.wrapping_add(1);
        }
        all
    }

    /// Offers and pops one chain.
    pub(crate) fn chain(
        &mut self,
        buffers: &[(u64, u32, u16)],
    ) -> Result<(Head, Chain), RingError> {
        let mut ring = self.ring();
        self.offer(0, buffers);
        let mut chain = Chain::default();
        let head = ring.pop(&mut chain)?.expect("a chain was offered");
        Ok((head, chain))
    }
}
