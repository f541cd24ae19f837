//! Two regions of guest memory, reached through their file as another process does.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use virtio::{GuestAddress, GuestMemory, Region, RegionSpec};

/// Where guest memory starts.
pub(crate) const GUEST: u64 = 0x10_0000;
/// The size of each of the two regions.
pub(crate) const REGION: u64 = 1 << 20;
/// Where buffers may be put: behind the largest ring, on both sides of the regions' border.
pub(crate) const BUFFERS: u64 = GUEST + 0xf_0000;
/// The first guest address behind all memory.
pub(crate) const END: u64 = GUEST + 2 * REGION;

/// Where the first region lies in the front end.
pub(crate) const USER: u64 = 0x7f00_0000_0000;

pub(crate) struct Guest {
    file: File,
    pub(crate) memory: Arc<GuestMemory>,
}

pub(crate) fn memfd(bytes: u64) -> OwnedFd {
    let fd = memfd_create("guest", MemfdFlags::CLOEXEC).expect("memory is available");
    ftruncate(&fd, bytes).expect("the file may grow");
    fd
}

pub(crate) fn map(fd: &OwnedFd, spec: RegionSpec) -> Arc<Region> {
    let fd = fd.try_clone().expect("descriptors are available");
    Arc::new(Region::map(fd, spec, &Arc::default()).expect("the region lies in the file"))
}

impl Guest {
    pub(crate) fn new() -> Self {
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
        Self { file: fd.into(), memory: Arc::new(memory) }
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

    pub(crate) fn read_u16(&self, address: u64) -> u16 {
        let bytes = self.read(address, 2);
        u16::from_le_bytes([bytes[0], bytes[1]])
    }

    pub(crate) fn read_u32(&self, address: u64) -> u32 {
        let bytes = self.read(address, 4);
        u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
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
