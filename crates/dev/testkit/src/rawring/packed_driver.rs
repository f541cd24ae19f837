//! The driver of a packed ring (virtio 1.2, 2.8) in the place that a `RawRing` has.
//!
//! Where it stands: a device that agreed on packed rings is connected as any other; this lays chains out for it. The
//! descriptor table is the descriptor ring, the available ring the driver's event suppression (all zero: interrupts are
//! wanted), the used ring the device's.

use std::sync::Arc;

use super::ring::{Piece, RawRing, Used, flag};
use crate::memory::SharedMemory;

const AVAILABLE: u16 = 1 << 7;
const USED: u16 = 1 << 15;
const DESCRIPTOR_BYTES: usize = 16;

/// A driver that begins at slot 0 with wrap counter 0, as base 0 says.
#[derive(Debug)]
pub struct PackedDriver {
    memory: Arc<SharedMemory>,
    table: usize,
    available: Position,
    used: Position,
    /// The descriptors of the chain of each id.
    lengths: Vec<u16>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Position {
    slot: u16,
    wrap: bool,
}

impl Position {
    fn after(self, count: u16, size: u16) -> Self {
        let slot = self.slot + count;
        if slot < size {
            Self { slot, ..self }
        } else {
            Self { slot: slot - size, wrap: !self.wrap }
        }
    }
}

impl PackedDriver {
    /// The driver of the ring that lies there, of which nothing was served.
    pub fn new(memory: &Arc<SharedMemory>, ring: &RawRing) -> Self {
        let [table, ..] = ring.offsets();
        let lengths = vec![0; usize::from(ring.size())];
        let (available, used) = Default::default();
        Self { memory: Arc::clone(memory), table, available, used, lengths }
    }

    fn size(&self) -> u16 {
        u16::try_from(self.lengths.len()).expect("a ring's size")
    }

    fn at(&self, slot: u16) -> usize {
        self.table + usize::from(slot) * DESCRIPTOR_BYTES
    }

    /// Makes a chain available under this id, which is not in flight.
    pub fn offer(&mut self, id: u16, pieces: &[Piece]) {
        let mut at = self.available;
        let mut first = None;
        for (place, piece) in pieces.iter().enumerate() {
            let next = if place + 1 == pieces.len() { 0 } else { flag::NEXT };
            let flags = piece.flags | next | if at.wrap { AVAILABLE } else { USED };
            let descriptor = self.at(at.slot);
            self.memory.write(descriptor, &piece.address.to_le_bytes());
            self.memory.write(descriptor + 8, &piece.length.to_le_bytes());
            self.memory.write(descriptor + 12, &id.to_le_bytes());
            // The device looks at the flags of the first one only once they are written, last.
            match first {
                None => first = Some((descriptor, flags)),
                Some(_) => self.memory.store_u16(descriptor + 14, flags),
            }
            at = at.after(1, self.size());
        }
        if let Some((descriptor, flags)) = first {
            self.memory.store_u16(descriptor + 14, flags);
        }
        self.available = at;
        self.lengths[usize::from(id)] = u16::try_from(pieces.len()).expect("a chain is small");
    }

    /// Takes the next used descriptor, if there is one.
    pub fn take_used(&mut self) -> Option<Used> {
        let descriptor = self.at(self.used.slot);
        let flags = self.memory.load_u16(descriptor + 14);
        if (flags & AVAILABLE != 0) != self.used.wrap || (flags & USED != 0) != self.used.wrap {
            return None;
        }
        let bytes = self.memory.read(descriptor + 8, 6);
        let written = u32::from_le_bytes(bytes[..4].try_into().expect("four bytes"));
        let id = u16::from_le_bytes(bytes[4..].try_into().expect("two bytes"));
        self.used = self.used.after(self.lengths[usize::from(id)], self.size());
        Some(Used { head: id.into(), written })
    }
}
