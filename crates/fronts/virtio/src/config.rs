//! The device configuration space of virtio-blk (virtio 1.2, 5.2.4), and the features that go with
//! it. Filled as qemu-storage-daemon 10.0 fills it, but for the byte that says that write-zeroes may
//! unmap, and for `writeback`, which qemu-storage-daemon leaves 0 although it writes back.
//!
//! Not here: secure erase and zones, which are not offered.

use block::{Access, DiskSize, Durability, SECTOR_BYTES};

use crate::Features;

/// Bytes of `struct virtio_blk_config` up to the fields of write-zeroes. A reader of more gets
/// zeroes.
pub const CONFIG_BYTES: usize = 60;

/// `seg_max`: the data segments of a request, which fit a ring of 128 with header and status.
pub const SEG_MAX: u32 = 128 - 2;

/// `max_discard_sectors` and `max_write_zeroes_sectors`.
pub const RANGE_SECTORS_MAX: u32 = 32768;

/// Where `writeback` lies, one byte and the only field that a driver may write.
pub const WRITEBACK_OFFSET: usize = 32;

/// When a change that was answered is safe from a power loss (virtio 1.2, 5.2.5: `writeback`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CacheMode {
    /// With the next flush.
    WriteBack,
    /// As soon as it is answered.
    WriteThrough,
}

impl CacheMode {
    /// The mode that a driver asks for by writing this to `writeback`. The specification knows 0 and
    /// 1; anything else counts as 1, as in QEMU.
    pub fn from_byte(byte: u8) -> Self {
        if byte == 0 { Self::WriteThrough } else { Self::WriteBack }
    }

    /// The mode as `writeback` shows it.
    pub fn to_byte(self) -> u8 {
        match self {
            Self::WriteBack => 1,
            Self::WriteThrough => 0,
        }
    }

    /// The mode in which a change is durable earlier.
    #[must_use]
    pub fn or_stronger(self, other: Self) -> Self {
        match (self, other) {
            (Self::WriteBack, Self::WriteBack) => Self::WriteBack,
            (Self::WriteThrough, _) | (_, Self::WriteThrough) => Self::WriteThrough,
        }
    }

    /// When changes must be durable that come from a driver with these features. One that does not
    /// know flushes expects its writes to stay (virtio 1.2, 5.2.6.2).
    pub fn durability(self, chosen: Features) -> Durability {
        match self {
            Self::WriteBack if chosen.contains(Features::BLK_FLUSH) => Durability::Cached,
            Self::WriteBack | Self::WriteThrough => Durability::Stable,
        }
    }

    /// What such a driver must be shown: with CONFIG_WCE but without FLUSH there is no write-back
    /// (virtio 1.2, 5.2.5.2).
    pub fn shown_to(self, chosen: Features) -> Self {
        let asks = chosen.contains(Features::BLK_CONFIG_WCE);
        if asks && !chosen.contains(Features::BLK_FLUSH) { Self::WriteThrough } else { self }
    }
}

/// What the guest is told about a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlkConfig {
    /// Its size.
    pub size: DiskSize,
    /// The logical block size: a power of two from 512.
    pub logical_block: u32,
    /// The physical block size: a power of two, at least the logical one.
    pub physical_block: u32,
    /// The number of queues.
    pub queues: u16,
    /// Whether it takes changes.
    pub access: Access,
    /// Whether it takes discards.
    pub discard: bool,
    /// What discards should be a multiple of, in bytes: a power of two, at least the logical block.
    pub discard_granularity: u32,
    /// Whether zeroing may give space back.
    pub unmap: bool,
    /// Whether it takes write-zeroes.
    pub write_zeroes: bool,
    /// When its changes are durable.
    pub cache: CacheMode,
}

impl BlkConfig {
    /// The device features and the ring features that go with this configuration.
    pub fn features(&self) -> Features {
        let mut features = Features::VERSION_1
            | Features::RING_INDIRECT_DESC
            | Features::RING_EVENT_IDX
            | Features::RING_PACKED
            | Features::BLK_SEG_MAX
            | Features::BLK_BLK_SIZE
            | Features::BLK_TOPOLOGY
            | Features::BLK_FLUSH
            | Features::BLK_CONFIG_WCE
            | Features::BLK_MQ;
        if self.access == Access::ReadOnly {
            features = features | Features::BLK_RO;
        }
        if self.discard {
            features = features | Features::BLK_DISCARD;
        }
        if self.write_zeroes {
            features = features | Features::BLK_WRITE_ZEROES;
        }
        features
    }

    /// The configuration space, little endian.
    pub fn to_bytes(&self) -> [u8; CONFIG_BYTES] {
        let mut space = ConfigSpace([0; CONFIG_BYTES]);
        space.put(0, self.size.sectors().to_le_bytes());
        space.put(12, SEG_MAX.to_le_bytes());
        space.put(20, self.logical_block.to_le_bytes());
        space.put(24, [self.physical_block_exp()]);
        // The least and the best size of a request, in logical blocks.
        space.put(26, 1_u16.to_le_bytes());
        space.put(28, 1_u32.to_le_bytes());
        space.put(WRITEBACK_OFFSET, [self.cache.to_byte()]);
        space.put(34, self.queues.to_le_bytes());
        if self.discard {
            space.put(36, RANGE_SECTORS_MAX.to_le_bytes());
            space.put(40, 1_u32.to_le_bytes());
            space.put(44, sectors(self.discard_granularity).to_le_bytes());
        }
        if self.write_zeroes {
            space.put(48, RANGE_SECTORS_MAX.to_le_bytes());
            space.put(52, 1_u32.to_le_bytes());
            space.put(56, [u8::from(self.unmap)]);
        }
        space.0
    }

    /// How many times the logical block doubles to make the physical one.
    fn physical_block_exp(&self) -> u8 {
        let exponent = self
            .physical_block
            .trailing_zeros()
            .saturating_sub(self.logical_block.trailing_zeros());
        u8::try_from(exponent).expect("a u32 has at most 32 trailing zeroes")
    }
}

fn sectors(bytes: u32) -> u32 {
    bytes / u32::try_from(SECTOR_BYTES).expect("512 is small")
}

/// The bytes of the configuration space while they are filled in.
struct ConfigSpace([u8; CONFIG_BYTES]);

impl ConfigSpace {
    fn put<const N: usize>(&mut self, offset: usize, bytes: [u8; N]) {
        self.0[offset..offset + N].copy_from_slice(&bytes);
    }
}
