//! Places and sizes on a disk, and the proof that a range lies inside it.
//!
//! Invariants: an [`Extent`] never wraps and never leaves the disk whose [`DiskSize`] made it;
//! behind [`DiskSize::check`] nobody checks again.

use std::fmt;
use std::ops::Range;

/// Bytes in a virtio-blk sector (virtio 1.2, 5.2.3), whatever the logical block size is.
pub const SECTOR_BYTES: u64 = 512;

/// An offset on a disk in units of 512 bytes, as virtio counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sector(pub u64);

impl Sector {
    /// The byte at which the sector starts; `None` if it lies beyond 2^64 bytes.
    pub fn to_offset(self) -> Option<ByteOffset> {
        self.0.checked_mul(SECTOR_BYTES).map(ByteOffset)
    }
}

/// An offset on a disk or in a file, in bytes from its start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteOffset(pub u64);

/// A number of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteCount(pub u64);

impl fmt::Display for ByteOffset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl fmt::Display for ByteCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// A range of bytes that was found to lie inside a disk. It may be empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Extent {
    start: u64,
    count: u64,
}

impl Extent {
    /// The first byte.
    pub fn start(self) -> ByteOffset {
        ByteOffset(self.start)
    }

    /// The number of bytes.
    pub fn count(self) -> ByteCount {
        ByteCount(self.count)
    }

    /// The bytes as a half-open range.
    pub fn bytes(self) -> Range<u64> {
        self.start..self.start + self.count
    }
}

/// The size of a disk, in bytes. It can change while the disk is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct DiskSize(pub ByteCount);

impl DiskSize {
    /// Proves that `count` bytes from `start` lie inside the disk.
    pub fn check(self, start: ByteOffset, count: ByteCount) -> Result<Extent, OutOfRange> {
        match start.0.checked_add(count.0) {
            Some(end) if end <= self.0.0 => Ok(Extent { start: start.0, count: count.0 }),
            Some(_) | None => Err(OutOfRange { start, count, size: self.0 }),
        }
    }

    /// Whole sectors on the disk, as the guest's configuration space names it.
    pub fn sectors(self) -> u64 {
        self.0.0 / SECTOR_BYTES
    }
}

/// A request reached beyond the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{count} bytes at byte {start} reach beyond the end of the disk at byte {size}")]
pub struct OutOfRange {
    start: ByteOffset,
    count: ByteCount,
    size: ByteCount,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(size: u64, start: u64, count: u64, inside: bool) {
        let result = DiskSize(ByteCount(size)).check(ByteOffset(start), ByteCount(count));
        assert_eq!(result.is_ok(), inside, "{count} bytes at {start} of {size}");
        if let Ok(extent) = result {
            assert_eq!(extent.bytes(), start..start + count);
        }
    }

    #[test]
    fn a_range_inside_the_disk_is_an_extent_and_any_other_is_not() {
        check(4096, 0, 4096, true);
        check(4096, 4096, 0, true);
        check(4096, 0, 4097, false);
        check(4096, 4095, 2, false);
        check(4096, 4097, 0, false);
        check(u64::MAX, u64::MAX - 1, 1, true);
        check(u64::MAX, u64::MAX, 1, false);
        check(0, 0, 0, true);
        check(0, 0, 1, false);
    }

    #[test]
    fn a_sector_beyond_the_largest_byte_has_no_offset() {
        assert_eq!(Sector(8).to_offset(), Some(ByteOffset(4096)));
        assert_eq!(Sector(u64::MAX / 512 + 1).to_offset(), None);
    }
}
