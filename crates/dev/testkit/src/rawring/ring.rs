//! A split ring (virtio 1.2, section 2.7) laid out by hand.
//!
//! Invariants: none on purpose, except that the ring itself lies inside the shared memory: a test may put any
//! descriptor, head and index into it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use anyhow::{Context, Result};
use rustix::event::{EventfdFlags, eventfd};

use crate::memory::SharedMemory;

/// Flags of a descriptor.
pub mod flag {
    #![expect(missing_docs, reason = "the names are the specification's")]
    pub const NEXT: u16 = 1;
    pub const WRITE: u16 = 2;
    pub const INDIRECT: u16 = 4;
}

/// Bytes of a descriptor.
const DESCRIPTOR_BYTES: usize = 16;

/// One descriptor as it lies in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor {
    /// Guest-physical address.
    pub address: u64,
    /// Bytes.
    pub length: u32,
    /// See `flag`.
    pub flags: u16,
    /// The next one, if the flags say that there is one.
    pub next: u16,
}

impl Descriptor {
    /// Its bytes in the table.
    pub fn bytes(&self) -> [u8; DESCRIPTOR_BYTES] {
        let mut bytes = [0; DESCRIPTOR_BYTES];
        bytes[..8].copy_from_slice(&self.address.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.length.to_le_bytes());
        bytes[12..14].copy_from_slice(&self.flags.to_le_bytes());
        bytes[14..].copy_from_slice(&self.next.to_le_bytes());
        bytes
    }
}

/// A piece of guest memory in a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Guest-physical address.
    pub address: u64,
    /// Bytes.
    pub length: u32,
    /// `flag::WRITE` if the device writes it, else 0.
    pub flags: u16,
}

/// An entry of the used ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Used {
    /// The head of the chain.
    pub head: u32,
    /// Bytes the device says it has written.
    pub written: u32,
}

/// One ring; offsets are into the shared memory.
#[derive(Debug)]
pub struct RawRing {
    memory: Arc<SharedMemory>,
    size: u16,
    table: usize,
    available: usize,
    used: usize,
    bells: Bells,
    available_next: u16,
    used_next: u16,
}

impl RawRing {
    /// A ring that starts at `offset`, a multiple of 4096, and takes at most `Self::room(size)` bytes.
    pub fn new(memory: &Arc<SharedMemory>, offset: usize, size: u16) -> Result<Self> {
        let slots = usize::from(size);
        let available = offset + slots * DESCRIPTOR_BYTES;
        let used = (available + 6 + slots * 2).next_multiple_of(4096);
        let bells = Bells::new()?;
        let memory = Arc::clone(memory);
        let (available_next, used_next) = (0, 0);
        memory.fill(offset, used + 6 + slots * 8 - offset, 0);
        Ok(Self { memory, size, table: offset, available, used, bells, available_next, used_next })
    }

    /// Room for a ring of this size.
    pub fn room(size: u16) -> usize {
        let slots = usize::from(size);
        (slots * DESCRIPTOR_BYTES + 6 + slots * 2).next_multiple_of(4096) + 6 + slots * 8
    }

    /// Descriptors in the table.
    pub fn size(&self) -> u16 {
        self.size
    }

    /// Offsets of descriptor table, used ring and available ring, in the order of SET_VRING_ADDR.
    pub fn offsets(&self) -> [usize; 3] {
        [self.table, self.used, self.available]
    }

    /// Starts over at this index, after SET_VRING_BASE with the same.
    pub fn restart(&mut self, index: u16) {
        self.available_next = index;
        self.used_next = index;
        self.memory.store_u16(self.available + 2, index);
        self.memory.store_u16(self.used + 2, index);
    }

    /// Puts a descriptor into the table.
    pub fn set_descriptor(&self, index: u16, descriptor: &Descriptor) {
        let place = self.table + usize::from(index) * DESCRIPTOR_BYTES;
        self.memory.write(place, &descriptor.bytes());
    }

    /// Puts a chain into the table, one descriptor after the other from `first`.
    pub fn set_chain(&self, first: u16, pieces: &[Piece]) {
        for (index, descriptor) in (first..).zip(chain(first, pieces)) {
            self.set_descriptor(index, &descriptor);
        }
    }

    /// Makes a chain available, whatever its head is.
    pub fn offer(&mut self, head: u16) {
        let slot = usize::from(self.available_next % self.size);
        self.memory.store_u16(self.available + 4 + slot * 2, head);
        self.available_next = self.available_next.wrapping_add(1);
        self.set_available_index(self.available_next);
    }

    /// Writes the available index, whatever it is.
    pub fn set_available_index(&self, index: u16) {
        self.memory.store_u16(self.available + 2, index);
    }

    /// Asks for an interrupt after the used entry with this index (VIRTIO_F_EVENT_IDX). The caller looks at the used
    /// ring once more before it sleeps.
    pub fn set_used_event(&self, index: u16) {
        self.memory.store_u16(self.available + 4 + usize::from(self.size) * 2, index);
        // The device publishes an entry and then looks at this index; without the fence both could miss the other.
        fence(Ordering::SeqCst);
    }

    /// Writes the flags of the available ring; 1 asks for no interrupts.
    pub fn set_available_flags(&self, flags: u16) {
        self.memory.store_u16(self.available, flags);
    }

    /// The index up to which used entries have been taken.
    pub fn used_next(&self) -> u16 {
        self.used_next
    }

    /// The index that the device has published in the used ring.
    pub fn used_index(&self) -> u16 {
        self.memory.load_u16(self.used + 2)
    }

    /// Takes the next used entry, if there is one.
    pub fn take_used(&mut self) -> Option<Used> {
        if self.used_index() == self.used_next {
            return None;
        }
        let slot = usize::from(self.used_next % self.size);
        let bytes = self.memory.read(self.used + 4 + slot * 8, 8);
        self.used_next = self.used_next.wrapping_add(1);
        let part =
            |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        Some(Used { head: part(0), written: part(4) })
    }

    /// The available index at which the device wants the next kick (VIRTIO_F_EVENT_IDX).
    pub fn available_event(&self) -> u16 {
        // The caller has published an index before; without the fence both sides could miss the other's.
        fence(Ordering::SeqCst);
        self.memory.load_u16(self.used + 4 + usize::from(self.size) * 8)
    }

    /// The flags of the used ring; 1 says that the device wants no kicks (without VIRTIO_F_EVENT_IDX).
    pub fn used_flags(&self) -> u16 {
        fence(Ordering::SeqCst);
        self.memory.load_u16(self.used)
    }

    /// The descriptors for kicks and interrupts.
    pub fn bells(&self) -> &Bells {
        &self.bells
    }

    /// Kicks the device, whether it wants it or not.
    pub fn kick(&self) -> Result<()> {
        self.bells.kick()
    }

    /// Takes the interrupts since the last look; true if there were any.
    pub fn take_calls(&self) -> Result<bool> {
        self.bells.take_calls()
    }

    /// The eventfd that tells the device of new requests.
    pub fn kick_fd(&self) -> BorrowedFd<'_> {
        self.bells.kick_fd()
    }

    /// The eventfd on which the device interrupts.
    pub fn call_fd(&self) -> BorrowedFd<'_> {
        self.bells.call_fd()
    }
}

/// The two eventfds of a ring.
#[derive(Debug)]
pub struct Bells {
    kick: OwnedFd,
    call: OwnedFd,
}

impl Bells {
    /// Two silent ones.
    pub fn new() -> Result<Self> {
        let descriptor = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let kick = descriptor().context("kick eventfd")?;
        let call = descriptor().context("call eventfd")?;
        Ok(Self { kick, call })
    }

    /// Kicks the device.
    pub fn kick(&self) -> Result<()> {
        rustix::io::write(&self.kick, &1_u64.to_ne_bytes()).context("kick")?;
        Ok(())
    }

    /// Takes the interrupts since the last look; true if there were any.
    pub fn take_calls(&self) -> Result<bool> {
        let mut count = [0; 8];
        match rustix::io::read(&self.call, &mut count) {
            Ok(_) => Ok(true),
            Err(rustix::io::Errno::AGAIN) => Ok(false),
            Err(error) => Err(error).context("read the call eventfd"),
        }
    }

    /// The eventfd that tells the device of new requests.
    pub fn kick_fd(&self) -> BorrowedFd<'_> {
        self.kick.as_fd()
    }

    /// The eventfd on which the device interrupts.
    pub fn call_fd(&self) -> BorrowedFd<'_> {
        self.call.as_fd()
    }
}

/// The descriptors of a chain that stands at `first` in its table.
pub(crate) fn chain(first: u16, pieces: &[Piece]) -> Vec<Descriptor> {
    let mut descriptors: Vec<Descriptor> = (first..)
        .zip(pieces)
        .map(|(index, piece)| Descriptor {
            address: piece.address,
            length: piece.length,
            flags: piece.flags | flag::NEXT,
            next: index + 1,
        })
        .collect();
    if let Some(last) = descriptors.last_mut() {
        last.flags &= !flag::NEXT;
        last.next = 0;
    }
    descriptors
}
