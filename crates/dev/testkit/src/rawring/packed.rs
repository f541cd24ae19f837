//! A packed ring (virtio 1.2, section 2.8) laid out by hand, for a driver that keeps the rules.
//!
//! Invariants: a used descriptor is known by its flags alone, as in Linux: one that a device has left behind by
//! mistake is taken for a completion.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use rustix::event::{EventfdFlags, eventfd};

use super::ring::{Piece, Used, flag};
use crate::memory::SharedMemory;

const DESCRIPTOR_BYTES: usize = 16;
/// Where a descriptor has its flags.
const FLAGS_OFFSET: usize = 14;
const AVAILABLE: u16 = 1 << 7;
const USED: u16 = 1 << 15;

/// A slot and the wrap counter there.
#[derive(Clone, Copy, Debug)]
struct Place {
    slot: u16,
    wrap: bool,
}

/// One ring; offsets are into the shared memory.
#[derive(Debug)]
pub struct RawPackedRing {
    memory: Arc<SharedMemory>,
    size: u16,
    table: usize,
    kick: OwnedFd,
    call: OwnedFd,
    available: Place,
    used: Place,
    /// Descriptors of the chain of each buffer id; 0 if it is not offered.
    chains: Vec<u16>,
}

impl RawPackedRing {
    /// An empty ring at `offset`, a multiple of 16; it takes `Self::room(size)` bytes.
    pub fn new(memory: &Arc<SharedMemory>, offset: usize, size: u16) -> Result<Self> {
        let descriptor = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        memory.fill(offset, Self::room(size), 0);
        let start = Place { slot: 0, wrap: true };
        Ok(Self {
            memory: Arc::clone(memory),
            size,
            table: offset,
            kick: descriptor().context("kick eventfd")?,
            call: descriptor().context("call eventfd")?,
            available: start,
            used: start,
            chains: vec![0; usize::from(size)],
        })
    }

    /// Room for a ring of this size: descriptors and both event areas.
    pub fn room(size: u16) -> usize {
        usize::from(size) * DESCRIPTOR_BYTES + 8
    }

    /// Descriptors in the ring.
    pub fn size(&self) -> u16 {
        self.size
    }

    /// Offsets of the descriptors, of the device's and of the driver's events, in the order of SET_VRING_ADDR.
    pub fn offsets(&self) -> [usize; 3] {
        let events = self.table + usize::from(self.size) * DESCRIPTOR_BYTES;
        [self.table, events + 4, events]
    }

    /// Makes a chain available, its first descriptor last.
    pub fn offer(&mut self, id: u16, pieces: &[Piece]) {
        let first = self.available;
        let mut at = first;
        for (place, piece) in pieces.iter().enumerate() {
            let mut bytes = [0; DESCRIPTOR_BYTES];
            bytes[..8].copy_from_slice(&piece.address.to_le_bytes());
            bytes[8..12].copy_from_slice(&piece.length.to_le_bytes());
            bytes[12..14].copy_from_slice(&id.to_le_bytes());
            let offset = self.descriptor(at.slot);
            self.memory.write(offset, &bytes[..FLAGS_OFFSET]);
            if place > 0 {
                self.memory.store_u16(offset + FLAGS_OFFSET, flags(at, piece, place, pieces.len()));
            }
            at = self.after(at, 1);
        }
        let flags = flags(first, &pieces[0], 0, pieces.len());
        self.memory.store_u16(self.descriptor(first.slot) + FLAGS_OFFSET, flags);
        self.chains[usize::from(id)] = u16::try_from(pieces.len()).expect("a chain is small");
        self.available = at;
    }

    /// Takes the next used descriptor, if there is one; an error if nobody waits for what it says.
    pub fn take_used(&mut self) -> Result<Option<Used>> {
        let offset = self.descriptor(self.used.slot);
        let flags = self.memory.load_u16(offset + FLAGS_OFFSET);
        let nothing_offered = self.chains.iter().all(|count| *count == 0);
        if nothing_offered || [flags & AVAILABLE != 0, flags & USED != 0] != [self.used.wrap; 2] {
            return Ok(None);
        }
        let bytes = self.memory.read(offset + 8, 6);
        let written = u32::from_le_bytes(bytes[..4].try_into().expect("four bytes"));
        let id = u16::from_le_bytes(bytes[4..].try_into().expect("two bytes"));
        let count = self.chains.get_mut(usize::from(id)).map_or(0, std::mem::take);
        ensure!(count != 0, "buffer id {id} was returned and is not offered");
        self.used = self.after(self.used, count);
        Ok(Some(Used { head: id.into(), written }))
    }

    /// The eventfd that tells the device of new requests.
    pub fn kick_fd(&self) -> BorrowedFd<'_> {
        self.kick.as_fd()
    }

    /// The eventfd on which the device interrupts.
    pub fn call_fd(&self) -> BorrowedFd<'_> {
        self.call.as_fd()
    }

    fn descriptor(&self, slot: u16) -> usize {
        self.table + usize::from(slot) * DESCRIPTOR_BYTES
    }

    fn after(&self, place: Place, count: u16) -> Place {
        match (place.slot + count).checked_sub(self.size) {
            None => Place { slot: place.slot + count, ..place },
            Some(slot) => Place { slot, wrap: !place.wrap },
        }
    }
}

fn flags(at: Place, piece: &Piece, place: usize, count: usize) -> u16 {
    let round = if at.wrap { AVAILABLE } else { USED };
    let next = if place + 1 == count { 0 } else { flag::NEXT };
    piece.flags | round | next
}
