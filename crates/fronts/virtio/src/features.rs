//! Feature bits: what device and driver agree on.

use std::fmt;
use std::ops::BitOr;

/// A set of feature bits (virtio 1.2, 2.2): of the device type, of the ring, of the transport.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Features(pub u64);

impl Features {
    /// No feature.
    pub const NONE: Self = Self(0);
    /// VIRTIO_BLK_F_SEG_MAX: `seg_max` bounds the segments of a request.
    pub const BLK_SEG_MAX: Self = Self(1 << 2);
    /// VIRTIO_BLK_F_RO: the disk takes no changes.
    pub const BLK_RO: Self = Self(1 << 5);
    /// VIRTIO_BLK_F_BLK_SIZE: `blk_size` is the logical block size.
    pub const BLK_BLK_SIZE: Self = Self(1 << 6);
    /// VIRTIO_BLK_F_FLUSH: the disk has a volatile write cache and a command to flush it.
    pub const BLK_FLUSH: Self = Self(1 << 9);
    /// VIRTIO_BLK_F_TOPOLOGY: the disk says how it likes requests aligned.
    pub const BLK_TOPOLOGY: Self = Self(1 << 10);
    /// VIRTIO_BLK_F_CONFIG_WCE: the driver may read and switch the cache mode (`writeback`).
    pub const BLK_CONFIG_WCE: Self = Self(1 << 11);
    /// VIRTIO_BLK_F_MQ: `num_queues` is the number of queues.
    pub const BLK_MQ: Self = Self(1 << 12);
    /// VIRTIO_BLK_F_DISCARD: the disk takes discards.
    pub const BLK_DISCARD: Self = Self(1 << 13);
    /// VIRTIO_BLK_F_WRITE_ZEROES: the disk takes write-zeroes.
    pub const BLK_WRITE_ZEROES: Self = Self(1 << 14);
    /// VIRTIO_RING_F_INDIRECT_DESC: descriptors may name tables of descriptors.
    pub const RING_INDIRECT_DESC: Self = Self(1 << 28);
    /// VIRTIO_RING_F_EVENT_IDX: notifications are bounded by indices instead of flags.
    pub const RING_EVENT_IDX: Self = Self(1 << 29);
    /// VIRTIO_F_VERSION_1: the device follows virtio 1.0 or later.
    pub const VERSION_1: Self = Self(1 << 32);
    /// VIRTIO_F_RING_PACKED: rings are packed instead of split.
    pub const RING_PACKED: Self = Self(1 << 34);

    /// Whether all of these are in the set.
    pub fn contains(self, features: Self) -> bool {
        self.0 & features.0 == features.0
    }

    /// The features that are not among these.
    pub fn without(self, features: Self) -> Self {
        Self(self.0 & !features.0)
    }

    /// Whether the set has no feature.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl BitOr for Features {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl fmt::Display for Features {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

impl fmt::Debug for Features {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Features({:#x})", self.0)
    }
}
