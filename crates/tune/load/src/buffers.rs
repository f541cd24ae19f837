//! The memory that requests read into and write from: one memfd mapping, one page-aligned slot per request.
//!
//! Invariants: the mapping lives as long as the value; slots do not overlap and begin on a page, as
//! O_DIRECT asks. No Rust reference into the mapping exists once a load runs: the daemon or the
//! kernel may write to it at any time.
//! Not here: who may use which slot; a job uses each of its slots for one request at a time (`drive`).
#![expect(unsafe_code, reason = "maps the memory that the kernel and the daemon write to")]

use std::ffi::c_void;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::{Random, Workload};

/// Slots begin on a multiple of this; no disk asks for more with O_DIRECT.
const SLOT_ALIGNMENT: usize = 4096;

/// All buffers of a run.
#[derive(Debug)]
pub(crate) struct Buffers {
    memory: NonNull<u8>,
    bytes: usize,
    slot_bytes: usize,
    slots_per_job: usize,
    file: OwnedFd,
}

// SAFETY: the value owns its mapping and hands out only raw pointers; nothing depends on the thread.
unsafe impl Send for Buffers {}
// SAFETY: shared access computes addresses and never touches the mapped bytes.
unsafe impl Sync for Buffers {}

impl Buffers {
    /// Maps one slot per request in flight and fills them with incompressible data.
    pub(crate) fn new(workload: &Workload) -> io::Result<Self> {
        let shape = workload.shape();
        let slots_per_job = usize::from(shape.iodepth());
        let block = usize::try_from(shape.block().get()).expect("a block size fits usize");
        let slot_bytes = block.next_multiple_of(SLOT_ALIGNMENT);
        let bytes = slot_bytes * slots_per_job * usize::from(shape.jobs());
        let file = memfd_create("ringloom-load", MemfdFlags::CLOEXEC)?;
        ftruncate(&file, u64::try_from(bytes).expect("usize fits u64"))?;
        let memory = map(&file, bytes)?;
        // SAFETY: the mapping is readable, writable, `bytes` long, zeroed and known to nobody else
        // yet; the slice ends before the value is handed out.
        let fresh = unsafe { std::slice::from_raw_parts_mut(memory.as_ptr(), bytes) };
        Random::new(workload.seed()).fill(fresh);
        Ok(Self { memory, bytes, slot_bytes, slots_per_job, file })
    }

    /// Where the slot of a job begins; valid for one block while `self` lives.
    pub(crate) fn slot(&self, job: u16, slot: u16) -> NonNull<u8> {
        let slot = usize::from(slot);
        assert!(slot < self.slots_per_job, "slot {slot} is beyond the iodepth");
        let start = (usize::from(job) * self.slots_per_job + slot) * self.slot_bytes;
        assert!(start < self.bytes, "job {job} has no buffers");
        // SAFETY: `start` was just checked to lie inside the mapping.
        unsafe { self.memory.add(start) }
    }

    /// The whole mapping: address and length.
    pub(crate) fn region(&self) -> (usize, usize) {
        (self.memory.as_ptr().addr(), self.bytes)
    }

    /// The memfd behind the mapping.
    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

fn map(file: &OwnedFd, bytes: usize) -> io::Result<NonNull<u8>> {
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice replaces no memory of this process.
    let memory = unsafe { mmap(std::ptr::null_mut(), bytes, access, MapFlags::SHARED, file, 0) }?;
    Ok(NonNull::new(memory.cast::<u8>()).expect("the kernel never maps at address 0"))
}

impl Drop for Buffers {
    fn drop(&mut self) {
        let memory = self.memory.as_ptr().cast::<c_void>();
        // SAFETY: address and length are those of `mmap`. Nobody uses the memory any more: each
        // engine holds the buffers until its requests are complete, and the daemon maps the file
        // on its own.
        let unmapped = unsafe { munmap(memory, self.bytes) };
        debug_assert!(unmapped.is_ok(), "unmapping our own mapping cannot fail");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BlockBytes, Shape};

    fn buffers(block: u64, jobs: u16, iodepth: u16) -> Buffers {
        let block = BlockBytes::try_from(block).unwrap();
        let shape = Shape::new("randread".parse().unwrap(), block, jobs, iodepth).unwrap();
        Buffers::new(&Workload::new(shape, 1 << 30, 5).unwrap()).unwrap()
    }

    #[test]
    fn slots_are_aligned_and_apart() {
        let buffers = buffers(5 * 512, 2, 3);
        let mut starts = Vec::new();
        for job in 0..2 {
            starts.extend((0..3).map(|slot| buffers.slot(job, slot).as_ptr().addr()));
        }
        let (base, bytes) = buffers.region();
        assert_eq!(starts, (0..6).map(|n| base + n * 4096).collect::<Vec<_>>());
        assert_eq!(bytes, 6 * 4096);
        assert_eq!(base % 4096, 0);
    }

    #[test]
    #[should_panic(expected = "beyond the iodepth")] // Using a foreign slot would be our mistake.
    fn a_slot_of_another_job_is_out_of_reach() {
        buffers(512, 2, 3).slot(0, 3);
    }
}
