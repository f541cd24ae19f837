//! What a server offers: exports with names, sizes and rights, as a client is told of them.
//!
//! Where it stands: between the daemon, which knows its exports, and the negotiation.
//!
//! Invariants: a [`ProtocolString`] can be sent; [`BlockSizes`] keep the rules of the specification ("Size constraints").

use block::{Access, DiskSize, SECTOR_BYTES};

use crate::wire::STRING_BYTES_MAX;

/// A string as the protocol has them: at most 4096 bytes, none of them 0.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProtocolString(String);

/// A string is none of the protocol's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum StringRefusal {
    /// Too long.
    #[error("a string of {0} bytes, and NBD allows {STRING_BYTES_MAX}")]
    TooLong(usize),
    /// With a zero.
    #[error("a string with a byte 0")]
    HasZero,
}

impl ProtocolString {
    /// Checks a string.
    pub fn new(string: impl Into<String>) -> Result<Self, StringRefusal> {
        let string = string.into();
        if string.len() > STRING_BYTES_MAX {
            return Err(StringRefusal::TooLong(string.len()));
        }
        if string.contains('\0') {
            return Err(StringRefusal::HasZero);
        }
        Ok(Self(string))
    }

    /// The string.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The sizes that suit an export; each a power of two but the last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockSizes {
    minimum: u32,
    preferred: u32,
    maximum: u32,
}

impl BlockSizes {
    /// The largest minimum that may be told.
    pub const MINIMUM_MAX: u32 = 1 << 16;

    /// The most data that a request may have: what clients use who were told nothing. Larger ones are refused.
    pub const PAYLOAD_MAX: u32 = 32 << 20;

    /// Of a disk with blocks of so many bytes; a block is at least a sector and at most [`BlockSizes::MINIMUM_MAX`]
    /// bytes, whatever is asked, and the preferred size at least a page.
    pub fn of_block(bytes: u32) -> Self {
        let sector = u32::try_from(SECTOR_BYTES).expect("512");
        let minimum = bytes.clamp(sector, Self::MINIMUM_MAX).next_power_of_two();
        Self { minimum, preferred: minimum.max(4096), maximum: Self::PAYLOAD_MAX }
    }

    /// The same, with another preferred size; it is made a power of two between the minimum and the maximum.
    #[must_use]
    pub fn preferring(self, bytes: u32) -> Self {
        let preferred = bytes.clamp(self.minimum, self.maximum).next_power_of_two();
        Self { preferred, ..self }
    }

    /// What changes are made of: requests that cut it are refused.
    pub fn minimum(self) -> u32 {
        self.minimum
    }

    /// What is carried out without a detour.
    pub fn preferred(self) -> u32 {
        self.preferred
    }

    /// The most data of a request.
    pub fn maximum(self) -> u32 {
        self.maximum
    }

    /// Whether a client that keeps to 512 bytes, as all do that were told nothing, keeps to them.
    pub fn is_default(self) -> bool {
        u64::from(self.minimum) <= SECTOR_BYTES
    }
}

/// An export, as a client is told of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportOffer {
    /// Its canonical name.
    pub name: ProtocolString,
    /// For people.
    pub description: Option<ProtocolString>,
    /// The size of the disk; clients are told whole sectors of it.
    pub size: DiskSize,
    /// Whether clients may change it.
    pub access: Access,
    /// What sizes suit it.
    pub block_sizes: BlockSizes,
    /// Whether clients may ask how deep in its backing chain bytes are (`qemu:allocation-depth`).
    pub allocation_depth: bool,
    /// The bitmaps of which clients may ask what is marked (`qemu:dirty-bitmap:NAME`), at most
    /// [`BITMAPS_MAX`](crate::BITMAPS_MAX).
    pub bitmaps: Vec<String>,
    /// Whether a client may use several connections at once.
    pub multi_conn: bool,
}

/// An export in a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportSummary {
    /// Its canonical name.
    pub name: ProtocolString,
    /// For people.
    pub description: Option<ProtocolString>,
}

/// The exports of a server, at the time that a client asks.
pub trait ExportCatalog {
    /// All that this client may see, in the order in which it is told of them.
    fn list(&self) -> Vec<ExportSummary>;

    /// The export of that name; the empty name is that of the default export. `None` for those that this client may not
    /// use, too. What is returned need not be there any more when the transmission begins: who begins it looks again.
    fn find(&self, name: &str) -> Option<ExportOffer>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(sizes: BlockSizes, expected: (u32, u32, u32)) {
        assert_eq!((sizes.minimum(), sizes.preferred(), sizes.maximum()), expected);
    }

    #[test]
    fn block_sizes_keep_the_rules_whatever_a_disk_says() {
        check(BlockSizes::of_block(0), (512, 4096, 32 << 20));
        check(BlockSizes::of_block(512), (512, 4096, 32 << 20));
        check(BlockSizes::of_block(4096), (4096, 4096, 32 << 20));
        check(BlockSizes::of_block(5000), (8192, 8192, 32 << 20));
        check(BlockSizes::of_block(u32::MAX), (65536, 65536, 32 << 20));
        check(BlockSizes::of_block(512).preferring(65536), (512, 65536, 32 << 20));
        check(BlockSizes::of_block(4096).preferring(1), (4096, 4096, 32 << 20));
        check(BlockSizes::of_block(512).preferring(u32::MAX), (512, 32 << 20, 32 << 20));
    }

    #[test]
    fn strings_are_short_and_have_no_zeroes() {
        assert_eq!(ProtocolString::new("ä").map(|it| it.as_str().to_owned()), Ok("ä".to_owned()));
        assert!(ProtocolString::new("x".repeat(4096)).is_ok());
        assert_eq!(ProtocolString::new("x".repeat(4097)), Err(StringRefusal::TooLong(4097)));
        assert_eq!(ProtocolString::new("a\0"), Err(StringRefusal::HasZero));
    }
}
