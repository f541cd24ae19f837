//! The dirty log: in which pages of guest memory the device has written (vhost-user, "Migration").
//!
//! Where it stands in the life of a request: at its end. The ring that has written a page marks it;
//! the front end reads and clears the marks at the same time and sends the marked pages again.
//!
//! Invariants: a mark is set after the bytes are in the page, with one atomic operation that also
//! keeps the marks of others; whoever takes the mark away and then reads the page sees the bytes.
//! Threads: any number mark at a time. Nothing blocks.
//! Limits: as long as the front end made it, and no bit is set behind its end.
//! Not here: what is marked and when (`ring::dirty_log`, `virtio_blk`).

#![expect(unsafe_code, reason = "the log is shared with the front end")]

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use super::{GuestAddress, MemoryError, MemoryRules, Region, RegionSpec};

/// The bytes that one bit of the log stands for (vhost-user, "Migration").
pub const LOG_PAGE_BYTES: u64 = 4096;

/// The guest memory that one byte of the log stands for.
const BYTES_PER_BYTE: u64 = LOG_PAGE_BYTES * 8;

/// The mapped dirty log of a session: a bit for each page that the device has written.
#[derive(Debug)]
pub struct DirtyLog {
    /// Mapped, watched and guarded like guest memory; where it lies means nothing here.
    region: Region,
}

/// A dirty log could not be mapped as the front end describes it.
#[derive(Debug, thiserror::Error)]
#[error("cannot map a dirty log of {bytes} bytes at byte {file_offset} of its file")]
pub struct DirtyLogError {
    bytes: u64,
    file_offset: u64,
    #[source]
    source: MemoryError,
}

impl DirtyLogError {
    /// Whether this process takes no more memory, by a limit of its own.
    pub fn is_want_of_room(&self) -> bool {
        self.source.is_want_of_room()
    }
}

impl DirtyLog {
    /// Maps the log in this file (vhost-user, SET_LOG_BASE). The descriptor is closed.
    pub fn map(
        fd: OwnedFd,
        bytes: u64,
        file_offset: u64,
        rules: &Arc<MemoryRules>,
    ) -> Result<Self, DirtyLogError> {
        let spec = RegionSpec { guest: GuestAddress(0), bytes, user_address: 0, file_offset };
        let failed = |source| DirtyLogError { bytes, file_offset, source };
        let region = Region::map(fd, spec, rules).map_err(failed)?;
        Ok(Self { region })
    }

    /// The number of bytes.
    pub fn bytes(&self) -> u64 {
        self.region.spec().bytes
    }

    /// What it was mapped from: file, offset and size. It has no guest address.
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// Whether there is a bit for each page up to that of this guest address.
    pub fn covers(&self, last: GuestAddress) -> bool {
        last.0 / BYTES_PER_BYTE < self.bytes()
    }

    /// Whether a part of it was found gone when a mark was set: the front end has truncated the
    /// file. Marks are lost then.
    pub fn is_lost(&self) -> bool {
        self.region.is_lost()
    }

    /// Marks the pages of `count` bytes at `address`, which were written before. Panics if the log
    /// does not cover them.
    pub fn mark(&self, address: GuestAddress, count: u64) {
        let Some(more) = count.checked_sub(1) else { return };
        let last = address.0.checked_add(more).expect("guest memory does not wrap");
        let (first_page, last_page) = (address.0 / LOG_PAGE_BYTES, last / LOG_PAGE_BYTES);
        let (first_byte, last_byte) = (first_page / 8, last_page / 8);
        for place in first_byte..=last_byte {
            let from = if place == first_byte { first_page % 8 } else { 0 };
            let to = if place == last_byte { last_page % 8 } else { 7 };
            let bits = (0xff_u8 << from) & (0xff_u8 >> (7 - to));
            // Also where the bit is set already: it may be taken away before what was written is
            // visible, and only an atomic change of the byte comes either before or after that.
            self.byte(place).fetch_or(bits, Ordering::Release);
        }
    }

    fn byte(&self, place: u64) -> &AtomicU8 {
        assert!(place < self.bytes(), "whoever marks has asked what the log covers");
        let place = usize::try_from(place).expect("a mapping is smaller than the address space");
        // SAFETY: the place lies inside the region, as just checked.
        let byte = unsafe { self.region.base().add(place) };
        // SAFETY: a byte is aligned, mapped and writable as long as the region, which `self` owns.
        // The other side is another process, which no Rust rule binds; this side makes atomic
        // accesses only.
        unsafe { AtomicU8::from_ptr(byte.as_ptr()) }
    }
}
