//! How an image is cut: clusters, tables, slices of tables, and the words in them.
//!
//! Where it stands: the arithmetic of the format, without any state. The specification is QEMU's
//! `docs/interop/qcow2.rst`, "Cluster mapping".

use crate::header::{Header, OFFSET_END};

/// How large a slice of an L2 table is at most, in bytes: what is loaded and kept together.
pub(crate) const SLICE_BYTES_MAX: u64 = 4096;

/// The cluster of the disk that a byte is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct GuestCluster(pub(crate) u64);

/// The number of a slice, counted over the tables of the whole disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct SliceNumber(pub(crate) u64);

/// How an image is cut. All are powers of two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shape {
    cluster_bits: u32,
    /// Entries of an L2 table.
    table_bits: u32,
    /// Entries of a slice.
    slice_bits: u32,
    version: u32,
}

impl Shape {
    pub(crate) fn new(header: &Header) -> Self {
        let table_bits = header.l2_entries().ilog2();
        let slice_bits = (SLICE_BYTES_MAX / 8).ilog2().min(table_bits);
        Self { cluster_bits: header.cluster_bits, table_bits, slice_bits, version: header.version }
    }

    pub(crate) fn cluster_bytes(self) -> u64 {
        1 << self.cluster_bits
    }

    /// The cluster that a byte of the disk is in.
    pub(crate) fn cluster_of(self, offset: u64) -> GuestCluster {
        GuestCluster(offset >> self.cluster_bits)
    }

    /// The first byte of a cluster of the disk.
    pub(crate) fn start_of(self, cluster: GuestCluster) -> u64 {
        cluster.0 << self.cluster_bits
    }

    /// Where a byte is in its cluster.
    pub(crate) fn within(self, offset: u64) -> u64 {
        offset & (self.cluster_bytes() - 1)
    }

    /// The slice that has the entry of a cluster.
    pub(crate) fn slice_of(self, cluster: GuestCluster) -> SliceNumber {
        SliceNumber(cluster.0 >> self.slice_bits)
    }

    /// Which entry of its slice it is.
    pub(crate) fn index_of(self, cluster: GuestCluster) -> usize {
        let index = cluster.0 & ((1 << self.slice_bits) - 1);
        usize::try_from(index).expect("a slice has at most 512 entries")
    }

    /// The L1 entry for a slice.
    pub(crate) fn table_of(self, slice: SliceNumber) -> usize {
        let table = slice.0 >> (self.table_bits - self.slice_bits);
        usize::try_from(table).expect("an L1 table fits into memory")
    }

    /// The slices of a table.
    pub(crate) fn slices_of(self, table: usize) -> impl Iterator<Item = SliceNumber> {
        let bits = self.table_bits - self.slice_bits;
        let first = (table as u64) << bits;
        (first..first + (1 << bits)).map(SliceNumber)
    }

    /// Where a slice begins in its table, in bytes.
    pub(crate) fn place_in_table(self, slice: SliceNumber) -> u64 {
        let bits = self.table_bits - self.slice_bits;
        (slice.0 & ((1 << bits) - 1)) * self.slice_bytes()
    }

    pub(crate) fn slice_bytes(self) -> u64 {
        8 << self.slice_bits
    }

    /// What an L2 entry says.
    pub(crate) fn read(self, word: u64) -> Result<Entry, BadEntry> {
        if word & COMPRESSED != 0 {
            return Ok(Entry::Compressed { descriptor: word & !(COPIED | COMPRESSED) });
        }
        let host = word & OFFSET;
        let is_zero = self.version >= 3 && word & ZERO != 0;
        let reserved = if self.version >= 3 { RESERVED } else { RESERVED | ZERO };
        if word & reserved != 0 || !host.is_multiple_of(self.cluster_bytes()) {
            return Err(BadEntry { word });
        }
        let place = match (host, word & COPIED != 0) {
            (0, _) => None,
            (host, is_ours) => Some(Place { host, is_ours }),
        };
        Ok(match (is_zero, place) {
            (true, place) => Entry::Zero { place },
            (false, Some(place)) => Entry::Data(place),
            (false, None) => Entry::Nothing,
        })
    }
}

/// Bits of an entry of an L1 or L2 table.
pub(crate) const COPIED: u64 = 1 << 63;
const COMPRESSED: u64 = 1 << 62;
pub(crate) const ZERO: u64 = 1;
/// Where it points to: bits 9 to 55.
pub(crate) const OFFSET: u64 = (OFFSET_END - 1) & !0x1ff;
const RESERVED: u64 = !(COPIED | COMPRESSED | OFFSET | ZERO);

/// What an L2 entry says of a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Entry {
    /// It is what the backing file has, or zeroes.
    Nothing,
    /// Zeroes; a place may be kept for it.
    Zero { place: Option<Place> },
    /// Its data are there.
    Data(Place),
    /// Its data are there, compressed.
    Compressed { descriptor: u64 },
}

/// A cluster of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    /// Its first byte.
    pub(crate) host: u64,
    /// Whether nobody else refers to it, so that it may be written.
    pub(crate) is_ours: bool,
}

/// An entry that the format does not allow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the L2 entry {word:#018x} is not one")]
pub(crate) struct BadEntry {
    word: u64,
}

/// The entry of a cluster whose data are in a place of its own.
pub(crate) fn data_at(host: u64) -> u64 {
    host | COPIED
}

/// The entry of a cluster of zeroes.
pub(crate) fn zero_at(place: Option<Place>) -> u64 {
    match place {
        None => ZERO,
        Some(Place { host, is_ours }) => host | ZERO | if is_ours { COPIED } else { 0 },
    }
}
