//! How many bytes of a disk share a bit.

use std::ops::Range;

use block::SECTOR_BYTES;

/// The bytes that one bit of a bitmap stands for: a power of two, at least a sector.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Granularity {
    shift: u32,
}

impl Granularity {
    /// What QEMU takes for images without clusters: 64 KiB.
    pub const DEFAULT: Self = Self { shift: 16 };

    /// Of so many bytes; `None` if that is no power of two, or less than a sector.
    pub fn new(bytes: u64) -> Option<Self> {
        let is_good = bytes.is_power_of_two() && bytes >= SECTOR_BYTES;
        is_good.then(|| Self { shift: bytes.trailing_zeros() })
    }

    /// The number of bytes.
    pub fn bytes(self) -> u64 {
        1 << self.shift
    }

    /// The granule that has this byte.
    pub(crate) fn granule_of(self, byte: u64) -> u64 {
        byte >> self.shift
    }

    /// The granules that have a part of these bytes.
    pub(crate) fn granules_of(self, bytes: &Range<u64>) -> Range<u64> {
        if bytes.is_empty() {
            return 0..0;
        }
        self.granule_of(bytes.start)..self.granule_of(bytes.end - 1) + 1
    }

    /// The first byte of a granule, or the byte behind the last of the disk.
    pub(crate) fn start_of(self, granule: u64, disk_bytes: u64) -> u64 {
        granule.checked_mul(self.bytes()).map_or(disk_bytes, |start| start.min(disk_bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_granularity_is_a_power_of_two_of_at_least_a_sector() {
        for bytes in [0, 1, 256, 511, 513, 1536, u64::MAX] {
            assert_eq!(Granularity::new(bytes), None, "{bytes}");
        }
        for bytes in [512, 4096, 65536, 1 << 31, 1 << 63] {
            assert_eq!(Granularity::new(bytes).map(Granularity::bytes), Some(bytes));
        }
        assert_eq!(Granularity::DEFAULT.bytes(), 65536);
    }

    #[test]
    fn bytes_touch_the_granules_they_have_a_part_of() {
        let small = Granularity::new(512).expect("it is one");
        for (bytes, granules) in
            [(0..512, 0..1), (511..513, 0..2), (512..1024, 1..2), (512..1025, 1..3), (7..7, 0..0)]
        {
            assert_eq!(small.granules_of(&bytes), granules, "{bytes:?}");
        }
        let large = Granularity::new(1 << 63).expect("it is one");
        assert_eq!((large.start_of(1, 700), large.start_of(2, 700)), (700, 700));
    }
}
