//! A guest's side of one split ring, in memory that the test and the iothread share.
//!
//! Each request uses three chained descriptors (header, data, status) at fixed places, so a slot
//! is known by its head.

use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering, fence};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::fs::{FallocateFlags, MemfdFlags};
use rustix::mm::{MapFlags, ProtFlags};
use virtio::{
    DirtyLog, DirtyLogScope, GuestAddress, GuestMemory, Region, RegionSpec, RingAddresses,
    RingBase, RingDirtyLog, RingLayout, RingSetup,
};

pub(crate) const BLOCK: usize = 4096;
pub(crate) const RING_SIZE: u16 = 64;
/// Requests that can be in flight: a ring of 64 holds 21 chains of three.
pub(crate) const SLOTS: u16 = RING_SIZE / 3;

const AVAILABLE: usize = 0x1000;
const USED: usize = 0x2000;
const HEADERS: usize = 0x4000;
const DATA: usize = 0x10000;
const MEMORY: usize = DATA + (SLOTS as usize + WIDE - 1) * BLOCK;
const STATUS_UNSET: u8 = 0xaa;

/// The slots that have a bulk of memory, if there is any.
pub(crate) const BULKS: u16 = 8;

/// How many blocks a wide request is about.
pub(crate) const WIDE: usize = 8;

/// What to ask the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ask {
    Read,
    Write,
    Flush,
    /// Reads into the slot's page and those behind it, which others use as well.
    WideRead,
    /// Writes from there.
    WideWrite,
    /// Reads into the slot's bulk, all of it.
    BulkRead,
}

/// What changes the data of a guest while its requests are under way.
#[derive(Debug)]
pub(crate) struct Scribbler {
    file: OwnedFd,
}

impl Scribbler {
    /// Makes all of it this byte.
    pub(crate) fn fill(&self, byte: u8) {
        let written = rustix::io::pwrite(&self.file, &[byte; MEMORY - DATA], DATA as u64);
        assert_eq!(written, Ok(MEMORY - DATA));
    }
}

#[derive(Debug)]
pub(crate) struct Guest {
    base: NonNull<u8>,
    /// The bytes of all memory, and of a slot's bulk.
    size: usize,
    bulk: usize,
    file: OwnedFd,
    memory: Arc<GuestMemory>,
    kick: OwnedFd,
    call: OwnedFd,
    available: u16,
    used: u16,
    open: [bool; SLOTS as usize],
}

// SAFETY: the mapping is shared memory without an owner; a guest is used by one thread at a time.
unsafe impl Send for Guest {}

impl Guest {
    pub(crate) fn new() -> Self {
        Self::with_bulk(0)
    }

    /// With so many bytes more for each of some slots.
    pub(crate) fn with_bulk(bulk: usize) -> Self {
        let size = MEMORY + usize::from(BULKS) * bulk;
        let file = rustix::fs::memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, size as u64).unwrap();
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at a place the kernel chooses overlaps nothing; it is never
        // unmapped.
        let base = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), size, prot, MapFlags::SHARED, &file, 0)
        };
        let spec = RegionSpec {
            guest: GuestAddress(0),
            bytes: size as u64,
            user_address: 0x10_0000,
            file_offset: 0,
        };
        let region = Region::map(file.try_clone().unwrap(), spec, &Arc::default()).unwrap();
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let guest = Self {
            base: NonNull::new(base.unwrap().cast()).unwrap(),
            size,
            bulk,
            file,
            memory: Arc::new(GuestMemory::new(vec![Arc::new(region)]).unwrap()),
            kick: rustix::event::eventfd(0, flags).unwrap(),
            call: rustix::event::eventfd(0, flags).unwrap(),
            available: 0,
            used: 0,
            open: [false; SLOTS as usize],
        };
        for slot in 0..SLOTS {
            guest.write_descriptor(slot * 3, HEADERS + usize::from(slot) * 32, 16, 1);
        }
        guest
    }

    pub(crate) fn memory(&self) -> Arc<GuestMemory> {
        Arc::clone(&self.memory)
    }

    pub(crate) fn setup(&self) -> RingSetup {
        let at = |place: usize| 0x10_0000 + place as u64;
        let addresses =
            RingAddresses { descriptors: at(0), available: at(AVAILABLE), used: at(USED) };
        RingSetup {
            layout: RingLayout::Split,
            size: RING_SIZE,
            addresses,
            base: RingBase(self.available.into()),
            event_idx: false,
            indirect: false,
        }
    }

    pub(crate) fn kick_fd(&self) -> OwnedFd {
        self.kick.try_clone().unwrap()
    }

    pub(crate) fn call_fd(&self) -> OwnedFd {
        self.call.try_clone().unwrap()
    }

    /// The page that holds what a read of this slot brings.
    pub(crate) fn data_page(slot: u16) -> usize {
        DATA / BLOCK + usize::from(slot)
    }

    /// The pages with all status bytes and with the used ring.
    pub(crate) const ANSWER_PAGES: [usize; 2] = [USED / BLOCK, HEADERS / BLOCK];

    /// A log of all memory for this guest's ring.
    pub(crate) fn ring_log(&self, log: Arc<DirtyLog>) -> RingDirtyLog {
        let marking = DirtyLogScope::All(GuestAddress(USED as u64));
        RingDirtyLog::new(log, &self.memory, &self.setup(), marking).unwrap()
    }

    /// A slot that is not in flight.
    pub(crate) fn free_slot(&self) -> Option<u16> {
        let place = self.open.iter().position(|open| !open)?;
        Some(u16::try_from(place).unwrap())
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.open.iter().filter(|open| **open).count()
    }

    /// Makes a request available and kicks.
    pub(crate) fn submit(&mut self, slot: u16, ask: Ask, block: u64) {
        let place = usize::from(slot);
        assert!(!std::mem::replace(&mut self.open[place], true));
        let header = HEADERS + place * 32;
        let kind: u32 = match ask {
            Ask::Read | Ask::WideRead | Ask::BulkRead => 0,
            Ask::Write | Ask::WideWrite => 1,
            Ask::Flush => 4,
        };
        let sector = block * (BLOCK as u64 / 512);
        self.put(header, &kind.to_le_bytes());
        self.put(header + 4, &[0; 4]);
        self.put(header + 8, &sector.to_le_bytes());
        self.put(header + 16, &[STATUS_UNSET]);
        // Header, then data (a flush has none), then status.
        let last = slot * 3 + 2;
        let data = DATA + place * BLOCK;
        let (data, count, data_flags) = match ask {
            Ask::Read => (data, BLOCK, 1 | 2),
            Ask::Write | Ask::Flush => (data, BLOCK, 1),
            Ask::WideRead => (data, WIDE * BLOCK, 1 | 2),
            Ask::WideWrite => (data, WIDE * BLOCK, 1),
            Ask::BulkRead => (MEMORY + place * self.bulk, self.bulk, 1 | 2),
        };
        self.write_descriptor(slot * 3 + 1, data, count, data_flags);
        self.write_descriptor(last, header + 16, 1, 2);
        let next = if ask == Ask::Flush { last } else { slot * 3 + 1 };
        self.put(usize::from(slot) * 3 * 16 + 14, &next.to_le_bytes());
        let entry = AVAILABLE + 4 + usize::from(self.available % RING_SIZE) * 2;
        self.put(entry, &(slot * 3).to_le_bytes());
        self.available = self.available.wrapping_add(1);
        self.index(AVAILABLE + 2).store(self.available.to_le(), Ordering::Release);
        fence(Ordering::SeqCst);
        if self.index(USED).load(Ordering::Relaxed) & 1 == 0 {
            rustix::io::write(&self.kick, &1_u64.to_ne_bytes()).unwrap();
        }
    }

    /// Waits for completions and returns their slots; panics if none comes for a minute: a flush may take
    /// long on a busy disk.
    pub(crate) fn completions(&mut self) -> Vec<u16> {
        loop {
            let done = self.poll();
            if !done.is_empty() {
                return done;
            }
            assert!(self.wait(60), "no completion for a minute: {self:?}");
        }
    }

    /// Sleeps until the guest is interrupted, at most that many seconds.
    pub(crate) fn wait(&self, seconds: i64) -> bool {
        let mut fds = [PollFd::new(&self.call, PollFlags::IN)];
        let limit = Timespec { tv_sec: seconds, tv_nsec: 0 };
        let ready = rustix::event::poll(&mut fds, Some(&limit)).unwrap();
        let mut count = [0; 8];
        if ready > 0 {
            rustix::io::read(self.call.as_fd(), &mut count).unwrap();
        }
        ready > 0
    }

    /// The slots completed since the last call; each completion is checked to be the only one.
    pub(crate) fn poll(&mut self) -> Vec<u16> {
        let mut done = Vec::new();
        let until = u16::from_le(self.index(USED + 2).load(Ordering::Acquire));
        while self.used != until {
            let mut head = [0; 4];
            self.get(USED + 4 + usize::from(self.used % RING_SIZE) * 8, &mut head);
            let slot = u16::try_from(u32::from_le_bytes(head) / 3).unwrap();
            let open = std::mem::replace(&mut self.open[usize::from(slot)], false);
            assert!(open, "slot {slot} was completed twice");
            done.push(slot);
            self.used = self.used.wrapping_add(1);
        }
        done
    }

    pub(crate) fn status(&self, slot: u16) -> u8 {
        let mut status = [0];
        self.get(HEADERS + usize::from(slot) * 32 + 16, &mut status);
        status[0]
    }

    pub(crate) fn fill(&self, slot: u16, data: &[u8; BLOCK]) {
        self.put(DATA + usize::from(slot) * BLOCK, data);
    }

    pub(crate) fn data(&self, slot: u16) -> Box<[u8; BLOCK]> {
        let mut data = Box::new([0; BLOCK]);
        self.get(DATA + usize::from(slot) * BLOCK, &mut data[..]);
        data
    }

    /// The memory, to see how much of it was touched.
    pub(crate) fn memory_file(&self) -> OwnedFd {
        self.file.try_clone().unwrap()
    }

    /// The data of all slots, to be changed by another thread.
    pub(crate) fn scribbler(&self) -> Scribbler {
        Scribbler { file: self.memory_file() }
    }

    /// Gives the pages of a slot's bulk up.
    pub(crate) fn give_up_bulk(&self, slot: u16) {
        let start = (MEMORY + usize::from(slot) * self.bulk) as u64;
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&self.file, flags, start, self.bulk as u64).unwrap();
    }

    /// Fills a slot's bulk.
    pub(crate) fn fill_bulk(&self, slot: u16, byte: u8) {
        self.put(MEMORY + usize::from(slot) * self.bulk, &vec![byte; self.bulk]);
    }

    /// What is in it.
    pub(crate) fn bulk(&self, slot: u16) -> Vec<u8> {
        let mut bytes = vec![0; self.bulk];
        self.get(MEMORY + usize::from(slot) * self.bulk, &mut bytes);
        bytes
    }

    fn write_descriptor(&self, index: u16, address: usize, count: usize, flags: u16) {
        let place = usize::from(index) * 16;
        self.put(place, &(address as u64).to_le_bytes());
        self.put(place + 8, &u32::try_from(count).unwrap().to_le_bytes());
        self.put(place + 12, &flags.to_le_bytes());
        self.put(place + 14, &(index + 1).to_le_bytes());
    }

    fn index(&self, place: usize) -> &AtomicU16 {
        assert!(place + 2 <= MEMORY && place.is_multiple_of(2));
        // SAFETY: inside the mapping, as just checked.
        let pointer = unsafe { self.base.add(place) };
        // SAFETY: aligned, mapped for ever, and accessed only atomically from here on.
        unsafe { AtomicU16::from_ptr(pointer.as_ptr().cast()) }
    }

    fn put(&self, place: usize, bytes: &[u8]) {
        assert!(place + bytes.len() <= self.size);
        // SAFETY: inside the mapping, as just checked.
        let to = unsafe { self.base.add(place) };
        // SAFETY: `to` has room as checked; `bytes` lies outside the mapping.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.as_ptr(), bytes.len()) };
    }

    fn get(&self, place: usize, bytes: &mut [u8]) {
        assert!(place + bytes.len() <= self.size);
        // SAFETY: inside the mapping, as just checked.
        let from = unsafe { self.base.add(place) };
        // SAFETY: `from` has as many bytes as checked; `bytes` lies outside the mapping.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), bytes.as_mut_ptr(), bytes.len()) };
    }
}
