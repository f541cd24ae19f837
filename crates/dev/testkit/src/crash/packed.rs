//! The driver's side of a packed ring (virtio 1.2, section 2.8).
//!
//! Invariants: `free` counts the descriptors that no chain holds; the buffer id of a chain is its slot.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use anyhow::{Result, ensure};

use super::rings::{Chains, DriverRing, Notification, Table, has_passed};
use crate::memory::SharedMemory;
use crate::rawring::ring::chain;
use crate::rawring::{Bells, Descriptor, Piece, flag};

/// Bytes of a descriptor, and places inside.
const DESCRIPTOR_BYTES: usize = 16;
const ID: usize = 12;
const FLAGS: usize = 14;
/// Flags of a descriptor that only packed rings have.
const AVAILABLE: u16 = 1 << 7;
const USED: u16 = 1 << 15;
/// Flags of the event suppression areas.
const EVENTS_ENABLE: u16 = 0;
const EVENTS_DISABLE: u16 = 1;
const EVENTS_AT: u16 = 2;
/// The wrap counter beside an index, and the base of a ring of which nothing was served.
const WRAP: u16 = 1 << 15;
const BASE_AT_FIRST: u32 = 0x8000_8000;
/// Where the areas of both sides stand behind the descriptors.
const DRIVER_AREA: usize = 0;
const DEVICE_AREA: usize = 64;

#[derive(Debug)]
pub(super) struct PackedRing {
    memory: Arc<SharedMemory>,
    table: usize,
    areas: usize,
    size: u16,
    bells: Bells,
    chains: Chains,
    notification: Notification,
    free: u16,
    next: Position,
    /// Descriptors made available since a kick was last thought about.
    added: u16,
    used: Position,
    base: u32,
}

/// A place in the ring and the wrap counter there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Position {
    index: u16,
    wrap: bool,
}

impl Position {
    const FIRST: Self = Self { index: 0, wrap: true };

    fn plus(self, count: u16, size: u16) -> Self {
        let index = self.index + count;
        if index < size {
            Self { index, ..self }
        } else {
            Self { index: index - size, wrap: !self.wrap }
        }
    }

    /// As SET_VRING_BASE and the event areas have it.
    fn packed(self) -> u16 {
        self.index | if self.wrap { WRAP } else { 0 }
    }
}

impl PackedRing {
    /// A ring of `size` descriptors for so many slots in the memory from `offset` on, a multiple of 4096.
    pub(super) fn new(
        memory: &Arc<SharedMemory>,
        offset: usize,
        size: u16,
        slots: u16,
        notification: Notification,
    ) -> Result<Self> {
        let areas = offset + usize::from(size) * DESCRIPTOR_BYTES;
        memory.fill(offset, Self::room(size), 0);
        Ok(Self {
            memory: Arc::clone(memory),
            table: offset,
            areas,
            size,
            bells: Bells::new()?,
            chains: Chains::new(slots),
            notification,
            free: size,
            next: Position::FIRST,
            added: 0,
            used: Position::FIRST,
            base: BASE_AT_FIRST,
        })
    }

    /// Bytes for a ring of this size.
    pub(super) fn room(size: u16) -> usize {
        (usize::from(size) * DESCRIPTOR_BYTES + 2 * DEVICE_AREA).next_multiple_of(4096)
    }

    fn place(&self, position: Position) -> usize {
        self.table + usize::from(position.index) * DESCRIPTOR_BYTES
    }

    /// Whether the descriptor there was completed by the device and not yet taken.
    fn is_used(&self, position: Position) -> bool {
        let flags = self.memory.load_u16(self.place(position) + FLAGS);
        let (available, used) = (flags & AVAILABLE != 0, flags & USED != 0);
        available == used && used == position.wrap
    }

    /// The completed chains that were not taken yet, and the place behind them.
    fn published_to(&self) -> (usize, Position) {
        let mut position = self.used;
        let mut count = 0;
        while count < usize::from(self.size) && self.is_used(position) {
            let id = self.memory.load_u16(self.place(position) + ID);
            // A chain that is not in flight is told when it is taken.
            let Some(length) = self.chains.length(id) else { break };
            position = position.plus(length, self.size);
            count += 1;
        }
        (count, position)
    }

    fn ask(&self, flags: u16, at: u16) {
        let area = self.areas + DRIVER_AREA;
        self.memory.store_u16(area, at);
        self.memory.store_u16(area + 2, flags);
        // The device publishes and then reads this; without the fence both could miss the other's.
        fence(Ordering::SeqCst);
    }
}

impl DriverRing for PackedRing {
    fn offer(&mut self, slot: u16, pieces: &[Piece], table: Option<Table>) -> Result<bool> {
        let pieces = match table {
            Some(table) => {
                let mut descriptors = chain(0, pieces);
                for descriptor in &mut descriptors {
                    // In a packed table the order alone links them.
                    descriptor.flags &= flag::WRITE;
                    descriptor.next = 0;
                }
                let bytes: Vec<u8> = descriptors.iter().flat_map(packed_bytes).collect();
                self.memory.write(table.offset, &bytes);
                let length = u32::try_from(bytes.len())?;
                vec![Piece { address: table.address, length, flags: flag::INDIRECT }]
            }
            None => pieces.to_vec(),
        };
        let count = u16::try_from(pieces.len())?;
        if count > self.free {
            return Ok(false);
        }
        let first = self.next;
        // The first descriptor's flags make the whole chain available, so they come last.
        for (index, piece) in (0..count).zip(&pieces).rev() {
            let position = first.plus(index, self.size);
            let place = self.place(position);
            let more = if index + 1 < count { flag::NEXT } else { 0 };
            let mark = if position.wrap { AVAILABLE } else { USED };
            let descriptor =
                Descriptor { address: piece.address, length: piece.length, flags: 0, next: slot };
            let bytes = packed_bytes(&descriptor);
            self.memory.write(place, &bytes[..FLAGS]);
            self.memory.store_u16(place + FLAGS, piece.flags | more | mark);
        }
        self.next = first.plus(count, self.size);
        self.free -= count;
        self.added += count;
        self.chains.start(slot, count);
        Ok(true)
    }

    fn wants_kick(&mut self) -> bool {
        let added = std::mem::take(&mut self.added);
        if added == 0 {
            return false;
        }
        fence(Ordering::SeqCst);
        let area = self.areas + DEVICE_AREA;
        match self.memory.load_u16(area + 2) & 3 {
            EVENTS_ENABLE => true,
            EVENTS_AT => {
                let at = self.memory.load_u16(area);
                let mut event = at & !WRAP;
                if (at & WRAP != 0) != self.next.wrap {
                    event = event.wrapping_sub(self.size);
                }
                let new = self.next.index;
                has_passed(event, new, new.wrapping_sub(added))
            }
            _ => false,
        }
    }

    fn take_used(&mut self) -> Result<Option<u16>> {
        if !self.is_used(self.used) {
            return Ok(None);
        }
        let id = self.memory.load_u16(self.place(self.used) + ID);
        let (slot, length) = self.chains.end(id.into())?;
        self.used = self.used.plus(length, self.size);
        self.free += length;
        Ok(Some(slot))
    }

    fn ask_for_call(&mut self) {
        match self.notification {
            Notification::EventIndex => self.ask(EVENTS_AT, self.used.packed()),
            Notification::Flags => self.ask(EVENTS_ENABLE, 0),
        }
    }

    fn refuse_calls(&mut self) {
        self.ask(EVENTS_DISABLE, 0);
    }

    fn published(&self) -> usize {
        self.published_to().0
    }

    /// There is nothing in the ring to restore it from, so QEMU sends what it knew last.
    fn base(&self) -> u32 {
        self.base
    }

    fn stopped_at(&mut self, base: u32) -> Result<()> {
        let used = u32::from(self.published_to().1.packed());
        let both = used | used << 16;
        ensure!(base == both, "drained to {both:#x}, but stopped at {base:#x}");
        self.base = base;
        Ok(())
    }

    fn areas(&self) -> [usize; 3] {
        [self.table, self.areas + DEVICE_AREA, self.areas + DRIVER_AREA]
    }

    fn size(&self) -> u16 {
        self.size
    }

    fn bells(&self) -> &Bells {
        &self.bells
    }

    #[cfg(test)]
    fn forge_used(&mut self, slot: u16) {
        let place = self.place(self.used);
        self.memory.store_u16(place + ID, slot);
        let both = if self.used.wrap { AVAILABLE | USED } else { 0 };
        self.memory.store_u16(place + FLAGS, both);
    }
}

/// A descriptor as it lies in a packed ring: id before flags. The id is in `next`.
fn packed_bytes(descriptor: &Descriptor) -> [u8; DESCRIPTOR_BYTES] {
    let mut bytes = [0; DESCRIPTOR_BYTES];
    bytes[..8].copy_from_slice(&descriptor.address.to_le_bytes());
    bytes[8..ID].copy_from_slice(&descriptor.length.to_le_bytes());
    bytes[ID..FLAGS].copy_from_slice(&descriptor.next.to_le_bytes());
    bytes[FLAGS..].copy_from_slice(&descriptor.flags.to_le_bytes());
    bytes
}
