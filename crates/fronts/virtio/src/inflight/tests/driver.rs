//! A driver that survives crashes: its state can be copied, its rings lie in one page.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use rustix::fs::{MemfdFlags, memfd_create};

use crate::{
    GuestAddress, GuestMemory, Region, RegionSpec, RingAddresses, RingBase, RingLayout, RingSetup,
};

pub(super) const GUEST_BYTES: usize = 4096;
/// Descriptors of the ring; a packed one has any number.
const SPLIT_SIZE: u16 = 4;
const PACKED_SIZE: u16 = 5;
/// Where a split ring starts: its indices wrap soon.
const START: u16 = 0xfffc;

const AVAILABLE: u64 = 0x200;
const USED: u64 = 0x300;
const EVENTS: u64 = 0x200;
/// Eight bytes for each head or buffer id, with the number of its request.
const NUMBERS: u64 = 0x800;

const NEXT: u16 = 1;
const AVAILABLE_FLAG: u16 = 1 << 7;
const USED_FLAG: u16 = 1 << 15;

/// A file that is memory.
pub(super) struct Image {
    file: File,
    bytes: u64,
}

impl Image {
    pub(super) fn new(content: &[u8]) -> Self {
        let file = File::from(memfd_create("image", MemfdFlags::CLOEXEC).expect("memory"));
        file.write_all_at(content, 0).expect("the file is memory");
        Self { file, bytes: content.len() as u64 }
    }

    pub(super) fn fd(&self) -> OwnedFd {
        self.file.try_clone().expect("descriptors are available").into()
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn content(&self) -> Vec<u8> {
        let mut all = vec![0; usize::try_from(self.bytes).expect("small")];
        self.file.read_exact_at(&mut all, 0).expect("the file is memory");
        all
    }

    pub(super) fn cut(&self, bytes: u64) {
        self.file.set_len(bytes).expect("the file may shrink");
    }

    pub(super) fn memory(&self) -> Arc<GuestMemory> {
        let spec = RegionSpec {
            guest: GuestAddress(0),
            bytes: self.bytes,
            user_address: 0,
            file_offset: 0,
        };
        let region = Region::map(self.fd(), spec, &Arc::default()).expect("it lies in the file");
        Arc::new(GuestMemory::new(vec![Arc::new(region)]).expect("one region"))
    }

    pub(super) fn put(&self, at: u64, bytes: &[u8]) {
        self.file.write_all_at(bytes, at).expect("the file is memory");
    }

    fn u16_at(&self, at: u64) -> u16 {
        let mut bytes = [0; 2];
        self.file.read_exact_at(&mut bytes, at).expect("the file is memory");
        u16::from_le_bytes(bytes)
    }

    fn u32_at(&self, at: u64) -> u32 {
        u32::from(self.u16_at(at)) | u32::from(self.u16_at(at + 2)) << 16
    }
}

/// A slot of a packed ring and the wrap counter there.
#[derive(Debug, Clone, Copy)]
struct Place {
    slot: u16,
    wrap: bool,
}

impl Place {
    fn forward(self, count: u16) -> Self {
        let slot = self.slot + count;
        if slot < PACKED_SIZE {
            Self { slot, ..self }
        } else {
            Self { slot: slot - PACKED_SIZE, wrap: !self.wrap }
        }
    }
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    Split { available: u16, used: u16 },
    Packed { available: Place, used: Place },
}

/// A request that was not returned yet.
#[derive(Debug, Clone)]
struct Request {
    number: u32,
    descriptors: Vec<u16>,
}

#[derive(Debug, Clone)]
pub(super) struct Driver {
    kind: Kind,
    last_number: u32,
    /// By head or buffer id.
    open: BTreeMap<u16, Request>,
    free: Vec<u16>,
}

impl Driver {
    pub(super) fn new(layout: RingLayout, guest: &Image) -> Self {
        let (kind, size) = match layout {
            RingLayout::Split => {
                guest.put(AVAILABLE + 2, &START.to_le_bytes());
                guest.put(USED + 2, &START.to_le_bytes());
                (Kind::Split { available: START, used: START }, SPLIT_SIZE)
            }
            RingLayout::Packed => {
                let start = Place { slot: 0, wrap: true };
                (Kind::Packed { available: start, used: start }, PACKED_SIZE)
            }
        };
        Self { kind, last_number: 0, open: BTreeMap::new(), free: (0..size).collect() }
    }

    /// The ring as it was described before anybody served it.
    pub(super) fn setup(&self) -> RingSetup {
        let (layout, size, base) = match self.kind {
            Kind::Split { .. } => (RingLayout::Split, SPLIT_SIZE, RingBase(START.into())),
            Kind::Packed { .. } => {
                (RingLayout::Packed, PACKED_SIZE, RingBase::start(RingLayout::Packed))
            }
        };
        let addresses = match layout {
            RingLayout::Split => RingAddresses { descriptors: 0, available: AVAILABLE, used: USED },
            RingLayout::Packed => {
                RingAddresses { descriptors: 0, available: EVENTS, used: EVENTS + 4 }
            }
        };
        RingSetup { layout, size, addresses, base, event_idx: false, indirect: true }
    }

    /// The numbers of the requests that were not returned.
    pub(super) fn waits_for(&self) -> Vec<u32> {
        self.open.values().map(|request| request.number).collect()
    }

    /// Makes a request of so many descriptors available, if there are as many.
    pub(super) fn offer(&mut self, guest: &Image, count: u16) -> bool {
        if self.free.len() < usize::from(count) {
            return false;
        }
        self.last_number += 1;
        let number = self.last_number;
        let descriptors: Vec<u16> = self.free.drain(..usize::from(count)).collect();
        let id = match &mut self.kind {
            Kind::Split { available, .. } => {
                offer_split(guest, &descriptors, available);
                descriptors[0]
            }
            Kind::Packed { available, .. } => {
                // The driver's own names; where a chain lies has nothing to do with them.
                offer_packed(guest, descriptors[0], count, available);
                descriptors[0]
            }
        };
        guest.put(NUMBERS + 8 * u64::from(id), &number.to_le_bytes());
        self.open.insert(id, Request { number, descriptors });
        true
    }

    /// Takes what was returned. Panics at anything that was not asked for or comes twice.
    pub(super) fn take_used(&mut self, guest: &Image) {
        while let Some((id, written)) = self.next_used(guest) {
            let request =
                self.open.remove(&id).unwrap_or_else(|| panic!("{id} was returned twice"));
            assert_eq!(written, request.number, "chain {id}");
            if let Kind::Packed { used, .. } = &mut self.kind {
                let count = u16::try_from(request.descriptors.len()).expect("few");
                *used = used.forward(count);
            }
            self.free.extend(request.descriptors);
        }
    }

    fn next_used(&mut self, guest: &Image) -> Option<(u16, u32)> {
        match &mut self.kind {
            Kind::Split { used, .. } => {
                if *used == guest.u16_at(USED + 2) {
                    return None;
                }
                let at = USED + 4 + 8 * u64::from(*used % SPLIT_SIZE);
                *used = used.wrapping_add(1);
                Some((guest.u16_at(at), guest.u32_at(at + 4)))
            }
            Kind::Packed { used, .. } => {
                let at = 16 * u64::from(used.slot);
                let flags = guest.u16_at(at + 14);
                let bits = [flags & AVAILABLE_FLAG != 0, flags & USED_FLAG != 0];
                // Linux takes a descriptor as used by its flags alone. One of a round that has
                // not been offered looks the same as long as nothing is open.
                let taken = bits == [used.wrap; 2] && !self.open.is_empty();
                taken.then(|| (guest.u16_at(at + 12), guest.u32_at(at + 8)))
            }
        }
    }
}

/// The first buffer has the number, further ones are there to be counted.
fn buffer(id: u16, place: usize) -> (u64, u32) {
    if place == 0 { (NUMBERS + 8 * u64::from(id), 4) } else { (0xc00, 1) }
}

fn descriptor(address: u64, bytes: u32, third: u16, fourth: u16) -> Vec<u8> {
    let mut all = address.to_le_bytes().to_vec();
    all.extend(bytes.to_le_bytes());
    all.extend(third.to_le_bytes());
    all.extend(fourth.to_le_bytes());
    all
}

fn offer_split(guest: &Image, descriptors: &[u16], available: &mut u16) {
    let head = descriptors[0];
    for (place, &at) in descriptors.iter().enumerate() {
        let (address, bytes) = buffer(head, place);
        // The number is the first four bytes, whatever follows.
        let writable = if place == 0 { 0 } else { 2 };
        let (flags, next) = match descriptors.get(place + 1) {
            Some(&next) => (NEXT | writable, next),
            None => (writable, 0),
        };
        guest.put(16 * u64::from(at), &descriptor(address, bytes, flags, next));
    }
    let entry = u64::from(*available % SPLIT_SIZE);
    guest.put(AVAILABLE + 4 + 2 * entry, &head.to_le_bytes());
    *available = available.wrapping_add(1);
    guest.put(AVAILABLE + 2, &available.to_le_bytes());
}

fn offer_packed(guest: &Image, id: u16, count: u16, available: &mut Place) {
    let mut at = *available;
    for place in 0..count {
        let (address, bytes) = buffer(id, place.into());
        let writable = if place == 0 { 0 } else { 2 };
        let round = if at.wrap { AVAILABLE_FLAG } else { USED_FLAG };
        let last = place + 1 == count;
        let flags = round | writable | if last { 0 } else { NEXT };
        // Only the last descriptor has the id.
        let id = if last { id } else { 0xfefe };
        guest.put(16 * u64::from(at.slot), &descriptor(address, bytes, id, flags));
        at = at.forward(1);
    }
    *available = at;
}
