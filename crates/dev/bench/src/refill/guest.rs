//! The guest's side of a ring: so many reads or writes that are made available again as they are answered.
//!
//! Descriptors, headers' kinds and buffers are written once; a refill changes a sector and two rings'
//! indices, so that next to nothing of what is measured is the guest.
//!
//! Invariants: a slot is rewritten only between its answer and its next turn in the available ring;
//! all accesses lie inside the mapping, whose layout the constants give.
#![expect(unsafe_code, reason = "a guest works on memory it shares with the device")]

use std::ffi::c_void;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering, fence};

use anyhow::Result;
use load::Random;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use virtio::{
    GuestAddress, GuestMemory, Region, RegionSpec, RingAddresses, RingBase, RingLayout, RingSetup,
};

const SECTOR: usize = 512;
const RING_SIZE: u16 = 256;
/// The most requests in flight of a ring with 256 descriptors, three for each.
const SLOTS_MAX: u16 = 64;
const AVAILABLE: usize = 0x1000;
const USED: usize = 0x2000;
/// Header and status of a slot share a cache line.
const HEADERS: usize = 0x3000;
const HEADER_BYTES: usize = 64;
const STATUS: usize = 16;
const DATA: usize = 0x4000;
/// Where the front end claims to have its memory.
const USER_ADDRESS: u64 = 0x10_0000;

const NEXT: u16 = 1;
const WRITE: u16 = 2;

/// What a guest asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    Read,
    Write,
}

/// What a guest keeps in flight.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    pub(super) direction: Direction,
    /// So many of them; 1 to 64.
    pub(super) depth: u16,
    /// Of so many bytes each; a multiple of 512.
    pub(super) block: usize,
}

impl Shape {
    fn memory(self) -> usize {
        DATA + usize::from(self.depth) * self.block
    }
}

/// A guest and its memory.
#[derive(Debug)]
pub(super) struct Guest {
    shape: Shape,
    base: NonNull<u8>,
    memory: Arc<GuestMemory>,
    random: Random,
    blocks: u64,
    available: u16,
    used: u16,
}

// SAFETY: the mapping belongs to the value and depends on no thread; accesses need `&mut self`.
unsafe impl Send for Guest {}

impl Guest {
    /// A guest whose requests all wait in the ring.
    pub(super) fn new(shape: Shape, seed: u64, disk_bytes: u64) -> Result<Self> {
        assert!((1..=SLOTS_MAX).contains(&shape.depth) && shape.block.is_multiple_of(SECTOR));
        let file = memfd_create("ringloom-bench", MemfdFlags::CLOEXEC)?;
        ftruncate(&file, shape.memory() as u64)?;
        let base = map(&file, shape.memory())?;
        let spec = RegionSpec {
            guest: GuestAddress(0),
            bytes: shape.memory() as u64,
            user_address: USER_ADDRESS,
            file_offset: 0,
        };
        let memory =
            Arc::new(GuestMemory::new(vec![Arc::new(Region::map(file, spec, &Arc::default())?)])?);
        let (random, blocks) = (Random::new(seed), disk_bytes / shape.block as u64);
        let mut guest = Self { shape, base, memory, random, blocks, available: 0, used: 0 };
        for slot in 0..shape.depth {
            guest.describe(slot);
            guest.offer(slot * 3);
        }
        guest.publish();
        Ok(guest)
    }

    pub(super) fn memory(&self) -> Arc<GuestMemory> {
        Arc::clone(&self.memory)
    }

    pub(super) fn setup(&self) -> RingSetup {
        let at = |place: usize| USER_ADDRESS + place as u64;
        RingSetup {
            size: RING_SIZE,
            addresses: RingAddresses {
                descriptors: at(0),
                available: at(AVAILABLE),
                used: at(USED),
            },
            layout: RingLayout::Split,
            base: RingBase::start(RingLayout::Split),
            event_idx: true,
            indirect: false,
        }
    }

    /// How many answers wait to be taken.
    pub(super) fn answers(&self) -> u16 {
        u16::from_le(self.field(USED + 2).load(Ordering::Acquire)).wrapping_sub(self.used)
    }

    /// Takes every answer and makes as many requests; returns how many.
    pub(super) fn refill(&mut self) -> u64 {
        let answered = self.answers();
        let until = self.used.wrapping_add(answered);
        if answered == 0 {
            return 0;
        }
        while self.used != until {
            let element = USED + 4 + usize::from(self.used % RING_SIZE) * 8;
            let head = u16::from_le(self.field(element).load(Ordering::Relaxed));
            self.offer(head);
            self.used = self.used.wrapping_add(1);
        }
        self.publish();
        u64::from(answered)
    }

    /// Whether the device wants a kick for the last of what was published, of which there was one
    /// (virtio 1.2, 2.7.10.1).
    pub(super) fn wants_kick(&self) -> bool {
        // The index must be visible before the device's wish is read (2.7.13.4.1).
        fence(Ordering::SeqCst);
        let event = USED + 4 + usize::from(RING_SIZE) * 8;
        let event = u16::from_le(self.field(event).load(Ordering::Relaxed));
        event == self.available.wrapping_sub(1)
    }

    /// Writes what never changes: a header, its bytes, a status.
    fn describe(&self, slot: u16) {
        let header = HEADERS + usize::from(slot) * HEADER_BYTES;
        let block = self.shape.block;
        let data = DATA + usize::from(slot) * block;
        self.write_descriptor(slot * 3, header, 16, NEXT);
        // The kind of a request (virtio 1.2, 5.2.6), and whether the device writes its bytes.
        let (kind, flags) = match self.shape.direction {
            Direction::Read => (0_u64, NEXT | WRITE),
            Direction::Write => (1, NEXT),
        };
        self.write_descriptor(slot * 3 + 1, data, block, flags);
        self.write_descriptor(slot * 3 + 2, header + STATUS, 1, WRITE);
        self.double(header).store(kind.to_le(), Ordering::Relaxed);
    }

    fn write_descriptor(&self, index: u16, address: usize, bytes: usize, flags: u16) {
        let place = usize::from(index) * 16;
        self.double(place).store((address as u64).to_le(), Ordering::Relaxed);
        let rest = bytes as u64 | u64::from(flags) << 32 | u64::from(index + 1) << 48;
        self.double(place + 8).store(rest.to_le(), Ordering::Relaxed);
    }

    /// Aims the request of this head at another block and puts it into the available ring.
    fn offer(&mut self, head: u16) {
        let sector = self.random.below(self.blocks) * (self.shape.block / SECTOR) as u64;
        let header = HEADERS + usize::from(head / 3 % self.shape.depth) * HEADER_BYTES;
        self.double(header + 8).store(sector.to_le(), Ordering::Relaxed);
        let entry = AVAILABLE + 4 + usize::from(self.available % RING_SIZE) * 2;
        self.field(entry).store(head.to_le(), Ordering::Relaxed);
        self.available = self.available.wrapping_add(1);
    }

    /// Shows the device what was offered. The event index stays behind: no interrupt is wanted.
    fn publish(&self) {
        let event = AVAILABLE + 4 + usize::from(RING_SIZE) * 2;
        self.field(event).store(self.used.wrapping_sub(1).to_le(), Ordering::Relaxed);
        self.field(AVAILABLE + 2).store(self.available.to_le(), Ordering::Release);
    }

    fn field(&self, place: usize) -> &AtomicU16 {
        assert!(place + 2 <= self.shape.memory() && place.is_multiple_of(2));
        // SAFETY: inside the mapping, as just checked.
        let pointer = unsafe { self.base.add(place) };
        // SAFETY: aligned, mapped as long as `self`, and accessed atomically.
        unsafe { AtomicU16::from_ptr(pointer.as_ptr().cast()) }
    }

    fn double(&self, place: usize) -> &AtomicU64 {
        assert!(place + 8 <= self.shape.memory() && place.is_multiple_of(8));
        // SAFETY: inside the mapping, as just checked.
        let pointer = unsafe { self.base.add(place) };
        // SAFETY: aligned, mapped as long as `self`, and accessed atomically.
        unsafe { AtomicU64::from_ptr(pointer.as_ptr().cast()) }
    }
}

fn map(file: &OwnedFd, bytes: usize) -> Result<NonNull<u8>> {
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice replaces no memory.
    let base = unsafe { mmap(std::ptr::null_mut(), bytes, access, MapFlags::SHARED, file, 0) }?;
    Ok(NonNull::new(base.cast::<u8>()).expect("the kernel never maps at address 0"))
}

impl Drop for Guest {
    fn drop(&mut self) {
        let base = self.base.as_ptr().cast::<c_void>();
        // SAFETY: address and length are those of `mmap`; no reference into it outlives a method,
        // and the device has a mapping of its own.
        let unmapped = unsafe { munmap(base, self.shape.memory()) };
        debug_assert!(unmapped.is_ok(), "unmapping our own mapping cannot fail");
    }
}
