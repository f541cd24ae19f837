//! What a driver writes to its ring: descriptors, chains, wishes. Right in form where the input
//! does not say otherwise, so that more than the first check is reached.

use virtio::{RingLayout, RingSetup};

use crate::guest::{GUEST, Guest, LARGE};
use crate::input::Input;

const NEXT: u16 = 1;
const INDIRECT: u16 = 4;
const AVAILABLE: u16 = 1 << 7;
const USED: u16 = 1 << 15;

/// The places that indirect tables are written to and named by.
const TABLES: u64 = GUEST + 0x1000;

/// The driver of a ring.
pub(super) struct Driver {
    setup: RingSetup,
    /// The available index of a split ring, or the slot and wrap counter of a packed one.
    next: u16,
}

/// A descriptor as the input describes it.
struct Descriptor {
    address: u64,
    bytes: u32,
    flags: u16,
    /// The next descriptor of a split ring, the buffer id of a packed one.
    link: u16,
}

impl Descriptor {
    fn take(input: &mut Input<'_>) -> Self {
        let shape = input.u8();
        let address = match shape >> 6 {
            0 => GUEST + u64::from(input.u16()),
            1 => TABLES + 16 * u64::from(input.u8()),
            2 => LARGE + u64::from(input.u32()),
            _ => input.u64(),
        };
        let bytes = match shape >> 4 & 3 {
            0 => u32::from(input.u8()),
            1 => 16 * u32::from(input.u8()),
            2 => u32::from(input.u16()),
            _ => input.u32(),
        };
        let flags = u16::from(shape & 7);
        let link = if shape & 8 == 0 { u16::from(input.u8()) } else { input.u16() };
        Self { address, bytes, flags, link }
    }

    fn to_bytes(&self, layout: RingLayout) -> [u8; 16] {
        let [third, fourth] = match layout {
            RingLayout::Split => [self.flags, self.link],
            RingLayout::Packed => [self.link, self.flags],
        };
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.address.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.bytes.to_le_bytes());
        bytes[12..14].copy_from_slice(&third.to_le_bytes());
        bytes[14..].copy_from_slice(&fourth.to_le_bytes());
        bytes
    }
}

impl Driver {
    pub(super) fn new(setup: RingSetup) -> Self {
        let [low, high, ..] = setup.base.0.to_le_bytes();
        Self { setup, next: u16::from_le_bytes([low, high]) }
    }

    /// Writes a descriptor to the ring or to a table.
    pub(super) fn describe(&self, guest: &Guest, input: &mut Input<'_>) {
        let place = input.u8();
        let bytes = Descriptor::take(input).to_bytes(self.setup.layout);
        let slot = 16 * u64::from(place & 0x7f);
        if place & 0x80 == 0 {
            guest.write_user(self.setup.addresses.descriptors + slot, &bytes);
        } else {
            guest.write(TABLES + slot, &bytes);
        }
    }

    /// Makes chains available.
    pub(super) fn offer(&mut self, guest: &Guest, input: &mut Input<'_>) {
        match self.setup.layout {
            RingLayout::Split => self.offer_split(guest, input.u8()),
            RingLayout::Packed => self.offer_packed(guest, input),
        }
    }

    fn offer_split(&mut self, guest: &Guest, head: u8) {
        let available = self.setup.addresses.available;
        let place = self.next % self.setup.size;
        guest.write_user(available + 4 + 2 * u64::from(place), &u16::from(head).to_le_bytes());
        self.next = self.next.wrapping_add(1);
        guest.write_user(available + 2, &self.next.to_le_bytes());
    }

    /// One to four descriptors, each as the input says but for the flags that make them a chain.
    fn offer_packed(&mut self, guest: &Guest, input: &mut Input<'_>) {
        let count = input.u8() % 4 + 1;
        for place in 1..=count {
            let (slot, wrap) = (self.next & 0x7fff, self.next & 0x8000 != 0);
            let mut descriptor = Descriptor::take(input);
            descriptor.flags |= if wrap { AVAILABLE } else { USED };
            descriptor.flags &= !NEXT;
            if place < count {
                descriptor.flags = descriptor.flags & !INDIRECT | NEXT;
            }
            let at = self.setup.addresses.descriptors + 16 * u64::from(slot);
            guest.write_user(at, &descriptor.to_bytes(RingLayout::Packed));
            self.next = if slot + 1 == self.setup.size {
                (self.next & 0x8000) ^ 0x8000
            } else {
                self.next + 1
            };
        }
    }

    /// Says when the driver wants interrupts.
    pub(super) fn wish(&self, guest: &Guest, input: &mut Input<'_>) {
        let available = self.setup.addresses.available;
        match self.setup.layout {
            RingLayout::Split => {
                let event = available + 4 + 2 * u64::from(self.setup.size);
                guest.write_user(event, &input.u16().to_le_bytes());
                guest.write_user(available, &u16::from(input.u8()).to_le_bytes());
            }
            RingLayout::Packed => guest.write_user(available, &input.u32().to_le_bytes()),
        }
    }
}
