//! Memory that a test shares with the device under test, as a guest shares its memory.
//!
//! Where it stands: `client` takes its data buffers from here; `rawring` lays whole rings out in it.
//!
//! Invariants: every access is checked against the length; no Rust reference into the memory ever exists, because the
//! other process may change it at any time.
//! Threads: the memory may be used from several threads; what they write to the same place is then undefined but
//! never unsafe for them, as it is for a guest's CPUs.
#![expect(unsafe_code, reason = "maps a memfd and copies from and to it by raw pointer")]

use std::ffi::c_void;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};

use anyhow::{Context, Result};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// A mapped memfd.
#[derive(Debug)]
pub struct SharedMemory {
    base: NonNull<u8>,
    length: usize,
    file: OwnedFd,
}

// SAFETY: the mapping belongs to the process, not to a thread, and lives as long as the value.
unsafe impl Send for SharedMemory {}
// SAFETY: all access goes through raw pointers or atomics; a race is one the device could cause as well.
unsafe impl Sync for SharedMemory {}

impl SharedMemory {
    /// New zeroed memory of this length.
    pub fn new(length: usize) -> Result<Self> {
        let file = memfd_create("testkit-memory", MemfdFlags::CLOEXEC).context("memfd_create")?;
        let size = u64::try_from(length).context("memory size")?;
        ftruncate(&file, size).context("ftruncate of the memfd")?;
        // SAFETY: a fresh mapping at an address the kernel chooses touches no existing memory.
        let address = unsafe {
            mmap(
                std::ptr::null_mut(),
                length,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                &file,
                0,
            )
        }
        .context("mmap of the memfd")?;
        let base = NonNull::new(address.cast::<u8>()).context("mmap gave address zero")?;
        Ok(Self { base, length, file })
    }

    /// The number of bytes.
    pub fn length(&self) -> usize {
        self.length
    }

    /// The memfd behind the mapping, for the device.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// The address of the byte at `offset` in this process; the range must lie inside.
    pub fn address(&self, offset: usize, length: usize) -> *mut u8 {
        let end = offset.checked_add(length).expect("a range inside memory does not wrap");
        assert!(end <= self.length, "range {offset}+{length} exceeds memory of {}", self.length);
        // SAFETY: the offset was just checked to lie inside the mapping, which is one allocation.
        unsafe { self.base.as_ptr().add(offset) }
    }

    /// Copies the bytes into the memory.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        let target = self.address(offset, bytes.len());
        // SAFETY: `address` checked the target's range; the source is a live slice of ordinary memory, which does
        // not overlap the mapping, since no reference into the mapping exists.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), target, bytes.len()) }
    }

    /// Copies bytes out of the memory.
    pub fn read_into(&self, offset: usize, bytes: &mut [u8]) {
        let source = self.address(offset, bytes.len());
        // SAFETY: `address` checked the source's range; the target is a live exclusive slice outside the mapping.
        unsafe { std::ptr::copy_nonoverlapping(source, bytes.as_mut_ptr(), bytes.len()) }
    }

    /// Copies bytes out of the memory into a new vector.
    pub fn read(&self, offset: usize, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.read_into(offset, &mut bytes);
        bytes
    }

    /// Sets every byte of the range.
    pub fn fill(&self, offset: usize, length: usize, value: u8) {
        let target = self.address(offset, length);
        // SAFETY: `address` checked the range, and any byte is a valid value for it.
        unsafe { std::ptr::write_bytes(target, value, length) }
    }

    /// Reads a little-endian word that the device may write, ordered before all later reads.
    pub fn load_u16(&self, offset: usize) -> u16 {
        u16::from_le(self.atomic(offset).load(Ordering::Acquire))
    }

    /// Writes a little-endian word that the device may read, ordered after all earlier writes.
    pub fn store_u16(&self, offset: usize, value: u16) {
        self.atomic(offset).store(value.to_le(), Ordering::Release);
    }

    /// Takes a little-endian word that the device may change at the same time, and leaves zero.
    pub fn take_u64(&self, offset: usize) -> u64 {
        assert!(offset.is_multiple_of(8), "a 64-bit word at offset {offset}");
        let word = self.address(offset, 8).cast::<u64>();
        // SAFETY: `address` checked the range and the assertion the alignment (the mapping starts at a page); the word
        // is accessed atomically or by the copies above, and lives as long as `self`.
        u64::from_le(unsafe { AtomicU64::from_ptr(word) }.swap(0, Ordering::AcqRel))
    }

    fn atomic(&self, offset: usize) -> &AtomicU16 {
        assert!(offset.is_multiple_of(2), "a 16-bit word at odd offset {offset}");
        let word = self.address(offset, 2).cast::<u16>();
        // SAFETY: `address` checked the range and the assertion the alignment (the mapping starts at a page); the word
        // is only ever accessed atomically or by the copies above, and lives as long as `self`.
        unsafe { AtomicU16::from_ptr(word) }
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // SAFETY: the range is exactly the mapping made in `new`; no reference into it outlives `self`.
        let result = unsafe { munmap(self.base.as_ptr().cast::<c_void>(), self.length) };
        debug_assert!(result.is_ok(), "munmap of the whole mapping: {result:?}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_back_from_any_offset() {
        let memory = SharedMemory::new(8192).expect("memory");
        memory.write(4093, b"across");
        assert_eq!(memory.read(4093, 6), b"across");
        memory.store_u16(2, 0xabcd);
        assert_eq!(memory.load_u16(2), 0xabcd);
        assert_eq!(memory.read(2, 2), [0xcd, 0xab]);
    }

    #[test]
    #[should_panic(expected = "exceeds memory")] // The check is what keeps this module sound.
    fn a_range_past_the_end_is_refused() {
        SharedMemory::new(4096).expect("memory").write(4095, b"ab");
    }
}
