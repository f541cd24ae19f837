//! A guest's side of one split ring, with memory in segments of any size and place.
//!
//! Invariants: each slot has its own descriptors, so it is known by its head. Memory between the segments of a read
//! must stay as it was.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use anyhow::{Context, Result, ensure};
use block::{Operation, ZeroTerms};
use rustix::event::{EventfdFlags, eventfd};
use testkit::conformance::workload::Request;
use testkit::memory::SharedMemory;
use testkit::rng::Rng;
use virtio::{
    GuestAddress, GuestMemory, Region, RegionSpec, RingAddresses, RingBase, RingLayout, RingSetup,
};

use super::segments::{SEGMENTS_MAX, SLOT_BYTES, SLOTS, lay_out, spread, take_in};

const RING_SIZE: usize = 512;
const SLOT_DESCRIPTORS: usize = SEGMENTS_MAX + 2;
const AVAILABLE: usize = 0x2000;
const USED: usize = 0x3000;
/// Of each slot: header, range of a discard, status.
const HEADERS: usize = 0x5000;
const HEADER_BYTES: usize = 64;
const RANGE: usize = 16;
const STATUS: usize = 32;
const DATA: usize = 0x1_0000;
const MEMORY: usize = DATA + SLOTS * SLOT_BYTES;
const USER_ADDRESS: u64 = 0x10_0000;
const UNSET: u8 = 0xaa;

const NEXT: u16 = 1;
const DEVICE_WRITES: u16 = 2;

#[derive(Debug)]
pub(crate) struct Guest {
    memory: SharedMemory,
    shared: Arc<GuestMemory>,
    kick: OwnedFd,
    call: OwnedFd,
    available: u16,
    used: u16,
    slots: [Option<Open>; SLOTS],
}

/// A request that the device has.
#[derive(Debug)]
struct Open {
    request: Request,
    /// Places in memory and lengths, in order.
    segments: Vec<(usize, usize)>,
}

impl Guest {
    pub(crate) fn new() -> Result<Self> {
        let memory = SharedMemory::new(MEMORY)?;
        let spec = RegionSpec {
            guest: GuestAddress(0),
            bytes: as_u64(MEMORY),
            user_address: USER_ADDRESS,
            file_offset: 0,
        };
        let region = Region::map(memory.file().try_clone_to_owned()?, spec, &Arc::default())?;
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Self {
            memory,
            shared: Arc::new(GuestMemory::new(vec![Arc::new(region)])?),
            kick: eventfd(0, flags)?,
            call: eventfd(0, flags)?,
            available: 0,
            used: 0,
            slots: std::array::from_fn(|_| None),
        })
    }

    pub(crate) fn memory(&self) -> Arc<GuestMemory> {
        Arc::clone(&self.shared)
    }

    /// How the ring is laid out, served up to there.
    pub(crate) fn setup(&self, base: RingBase) -> RingSetup {
        let at = |place: usize| USER_ADDRESS + as_u64(place);
        let addresses =
            RingAddresses { descriptors: at(0), available: at(AVAILABLE), used: at(USED) };
        RingSetup {
            layout: RingLayout::Split,
            size: u16::try_from(RING_SIZE).expect("a small number"),
            addresses,
            base,
            event_idx: false,
            indirect: false,
        }
    }

    pub(crate) fn kick_fd(&self) -> Result<OwnedFd> {
        Ok(self.kick.try_clone()?)
    }

    pub(crate) fn call_fd(&self) -> Result<OwnedFd> {
        Ok(self.call.try_clone()?)
    }

    /// What becomes readable when the device has something for the guest.
    pub(crate) fn call(&self) -> &OwnedFd {
        &self.call
    }

    pub(crate) fn has_room(&self) -> bool {
        self.slots.iter().any(Option::is_none)
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.slots.iter().flatten().count()
    }

    /// Makes a request available and kicks.
    pub(crate) fn submit(&mut self, request: Request, rng: &mut Rng) -> Result<()> {
        let slot = self.slots.iter().position(Option::is_none).context("a free slot")?;
        let header = HEADERS + slot * HEADER_BYTES;
        let extent = request.operation.extent();
        let sector = extent.map_or(0, |extent| extent.start().0 / block::SECTOR_BYTES);
        let kind: u32 = match request.operation {
            Operation::Read(_) => 0,
            Operation::Write(..) => 1,
            Operation::Flush => 4,
            Operation::Discard(..) => 11,
            Operation::WriteZeroes(..) => 13,
            Operation::Status(_) => anyhow::bail!("a guest cannot ask for block status"),
        };
        // What a discard is about stands in its data.
        let named = if kind < 2 { sector } else { 0 };
        self.memory.write(header, &kind.to_le_bytes());
        self.memory.write(header + 4, &[0; 4]);
        self.memory.write(header + 8, &named.to_le_bytes());
        self.memory.write(header + STATUS, &[UNSET]);
        let mut parts = vec![(header, 16, 0)];
        let mut segments = Vec::new();
        match request.operation {
            Operation::Read(_) | Operation::Write(..) => {
                segments = spread(DATA + slot * SLOT_BYTES, request.data.len(), rng);
                lay_out(&self.memory, &request, &segments);
                let flags = if kind == 0 { DEVICE_WRITES } else { 0 };
                parts.extend(segments.iter().map(|(at, count)| (*at, *count, flags)));
            }
            Operation::Discard(extent, _) | Operation::WriteZeroes(extent, _, _) => {
                let sectors = u32::try_from(extent.count().0 / block::SECTOR_BYTES)?;
                let unmap =
                    matches!(request.operation, Operation::WriteZeroes(_, ZeroTerms::UNMAP, _));
                self.memory.write(header + RANGE, &sector.to_le_bytes());
                self.memory.write(header + RANGE + 8, &sectors.to_le_bytes());
                self.memory.write(header + RANGE + 12, &u32::from(unmap).to_le_bytes());
                parts.push((header + RANGE, 16, 0));
            }
            Operation::Flush | Operation::Status(_) => {}
        }
        parts.push((header + STATUS, 1, DEVICE_WRITES));
        let head = slot * SLOT_DESCRIPTORS;
        for (place, &(at, count, flags)) in parts.iter().enumerate() {
            let more = if place + 1 < parts.len() { NEXT } else { 0 };
            self.write_descriptor(head + place, at, count, flags | more)?;
        }
        self.slots[slot] = Some(Open { request, segments });
        self.make_available(u16::try_from(head)?)
    }

    /// The requests that are over since the last call, with what reads have brought, and their status.
    pub(crate) fn collect(&mut self) -> Result<Vec<(Request, u8)>> {
        let mut count = [0; 8];
        // What it says does not matter, nor that it may say nothing.
        let _count = rustix::io::read(self.call.as_fd(), &mut count);
        let mut over = Vec::new();
        let until = self.memory.load_u16(USED + 2);
        while self.used != until {
            let entry = USED + 4 + usize::from(self.used) % RING_SIZE * 8;
            let head = self.memory.read(entry, 4);
            let head = u32::from_le_bytes(head.try_into().expect("four bytes"));
            let slot = usize::try_from(head)? / SLOT_DESCRIPTORS;
            let open = self.slots.get_mut(slot).and_then(Option::take);
            let Open { mut request, segments } =
                open.with_context(|| format!("head {head} was completed twice"))?;
            take_in(&self.memory, &mut request, &segments)?;
            let status = self.memory.read(HEADERS + slot * HEADER_BYTES + STATUS, 1)[0];
            ensure!(status != UNSET, "{:?} has no status", request.operation);
            over.push((request, status));
            self.used = self.used.wrapping_add(1);
        }
        Ok(over)
    }

    fn write_descriptor(&self, index: usize, at: usize, count: usize, flags: u16) -> Result<()> {
        let place = index * 16;
        self.memory.write(place, &as_u64(at).to_le_bytes());
        self.memory.write(place + 8, &u32::try_from(count)?.to_le_bytes());
        self.memory.write(place + 12, &flags.to_le_bytes());
        self.memory.write(place + 14, &u16::try_from(index + 1)?.to_le_bytes());
        Ok(())
    }

    fn make_available(&mut self, head: u16) -> Result<()> {
        let entry = AVAILABLE + 4 + usize::from(self.available) % RING_SIZE * 2;
        self.memory.write(entry, &head.to_le_bytes());
        self.available = self.available.wrapping_add(1);
        self.memory.store_u16(AVAILABLE + 2, self.available);
        fence(Ordering::SeqCst);
        if self.memory.load_u16(USED) & 1 == 0 {
            rustix::io::write(&self.kick, &1_u64.to_ne_bytes()).context("kick")?;
        }
        Ok(())
    }
}

fn as_u64(number: usize) -> u64 {
    u64::try_from(number).expect("a usize fits 64 bits")
}
