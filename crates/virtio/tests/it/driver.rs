//! A guest driver: two regions of guest memory and a split ring in the first of them.
//!
//! It reaches guest memory through the file, the device through its mapping, as two processes do.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use virtio::{
    Chain, GuestAddress, GuestMemory, Head, Region, RegionSpec, RingAddresses, RingError,
    RingSetup, SplitRing,
};

/// Where guest memory starts.
pub(crate) const GUEST: u64 = 0x10_0000;
/// The size of each of the two regions.
pub(crate) const REGION: u64 = 1 << 20;
/// Where buffers may be put: behind the largest ring, on both sides of the regions' border.
pub(crate) const BUFFERS: u64 = GUEST + 0xf_0000;
/// The first guest address behind all memory.
pub(crate) const END: u64 = GUEST + 2 * REGION;

const USER: u64 = 0x7f00_0000_0000;
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
    file: File,
    pub(crate) memory: Arc<GuestMemory>,
    pub(crate) size: u16,
    /// The next available index.
    pub(crate) available: u16,
    used: u16,
}

pub(crate) fn memfd(bytes: u64) -> OwnedFd {
    let fd = memfd_create("guest", MemfdFlags::CLOEXEC).expect("memory is available");
    ftruncate(&fd, bytes).expect("the file may grow");
    fd
}

pub(crate) fn map(fd: &OwnedFd, spec: RegionSpec) -> Arc<Region> {
    let fd = fd.try_clone().expect("descriptors are available");
    Arc::new(Region::map(fd, spec).expect("the region lies in the file"))
}

impl Driver {
    /// A ring of `size`, with both indices at `index`.
    pub(crate) fn new(size: u16, index: u16) -> Self {
        let fd = memfd(2 * REGION);
        // Adjacent for the guest, swapped in the file and apart in the front end.
        let low = RegionSpec {
            guest: GuestAddress(GUEST),
            bytes: REGION,
            user_address: USER,
            file_offset: REGION,
        };
        let high = RegionSpec {
            guest: GuestAddress(GUEST + REGION),
            bytes: REGION,
            user_address: USER + 4 * REGION,
            file_offset: 0,
        };
        let memory = GuestMemory::new(vec![map(&fd, high), map(&fd, low)])
            .expect("the regions do not overlap");
        let driver =
            Self { file: fd.into(), memory: Arc::new(memory), size, available: index, used: index };
        driver.write(GUEST + AVAILABLE + 2, &index.to_le_bytes());
        driver.write(GUEST + USED + 2, &index.to_le_bytes());
        driver
    }

    pub(crate) fn setup(&self) -> RingSetup {
        RingSetup {
            size: self.size,
            addresses: RingAddresses {
                descriptors: USER,
                available: USER + AVAILABLE,
                used: USER + USED,
            },
            next_available: self.available,
            event_idx: false,
            indirect: true,
        }
    }

    /// The device side, with indirect descriptors and without EVENT_IDX.
    pub(crate) fn ring(&self) -> SplitRing {
        self.ring_with(self.setup())
    }

    pub(crate) fn event_ring(&self) -> SplitRing {
        self.ring_with(RingSetup { event_idx: true, ..self.setup() })
    }

    pub(crate) fn ring_with(&self, setup: RingSetup) -> SplitRing {
        SplitRing::new(Arc::clone(&self.memory), setup).expect("the ring lies in memory")
    }

    /// Cuts the file of all memory; the ring lies in the second half.
    pub(crate) fn truncate(&self, bytes: u64) {
        self.file.set_len(bytes).expect("the file may shrink");
    }

    pub(crate) fn write(&self, address: u64, bytes: &[u8]) {
        let (low, high) = bytes.split_at(before_border(address, bytes.len()));
        for (address, bytes) in [(address, low), (address + low.len() as u64, high)] {
            if !bytes.is_empty() {
                self.file.write_all_at(bytes, file_offset(address)).expect("the file is memory");
            }
        }
    }

    pub(crate) fn read(&self, address: u64, count: usize) -> Vec<u8> {
        let mut all = vec![0; count];
        let (low, high) = all.split_at_mut(before_border(address, count));
        let border = address + low.len() as u64;
        for (address, bytes) in [(address, low), (border, high)] {
            if !bytes.is_empty() {
                self.file.read_exact_at(bytes, file_offset(address)).expect("the file is memory");
            }
        }
        all
    }

    fn read_u16(&self, address: u64) -> u16 {
        let bytes = self.read(address, 2);
        u16::from_le_bytes([bytes[0], bytes[1]])
    }

    fn read_u32(&self, address: u64) -> u32 {
        let bytes = self.read(address, 4);
        u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
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

/// How many of the bytes at `address` lie below the border of the regions, if any do.
fn before_border(address: u64, count: usize) -> usize {
    match usize::try_from((GUEST + REGION).saturating_sub(address)) {
        Ok(below) if below > 0 => count.min(below),
        Ok(_) | Err(_) => count,
    }
}

fn file_offset(address: u64) -> u64 {
    assert!((GUEST..END).contains(&address), "no memory at {address:#x}");
    let offset = address - GUEST;
    if offset < REGION { offset + REGION } else { offset - REGION }
}

pub(crate) fn bytes(buffers: &block::Buffers) -> Vec<u8> {
    let mut all = vec![0; buffers.count()];
    assert_eq!(buffers.copy_to(0, &mut all), all.len());
    all
}
