//! How an image is cut: clusters, subclusters, tables, slices of tables, and the words in them.
//!
//! Where it stands: the arithmetic of the format, without any state. The specification is QEMU's
//! `docs/interop/qcow2.rst`, "Cluster mapping" and "Extended L2 Entries". An image without subclusters
//! is one whose clusters have one each.

use std::ops::Range;

use crate::compressed;
use crate::header::{Header, OFFSET_END};

/// How large a slice of an L2 table is at most, in bytes: what is loaded and kept together.
pub(crate) const SLICE_BYTES_MAX: u64 = 4096;

/// Subclusters of a cluster of an image with extended L2 entries.
const SUBCLUSTERS: u32 = 32;

/// The number of a cluster of the guest's disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct GuestCluster(pub(crate) u64);

/// The number of a slice, counted over the tables of the whole disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct SliceNumber(pub(crate) u64);

/// The sizes of an image: bits of clusters, L2 tables, slices and entries. All are powers of two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Geometry {
    cluster_bits: u32,
    /// Entries of an L2 table.
    table_bits: u32,
    /// Entries of a slice.
    slice_bits: u32,
    /// Bytes of an entry.
    entry_bits: u32,
    version: u32,
    has_data_file: bool,
}

/// The words of an L2 entry as they are in the file, with the subcluster bitmap if there is one. Without subclusters
/// the bitmap is 0 and means nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct RawL2Entry {
    pub(crate) word: u64,
    pub(crate) bitmap: u64,
}

impl RawL2Entry {
    /// Stands for an entry that is not in memory, where an entry of compressed data is as good.
    pub(crate) const UNKNOWN: Self = Self { word: COMPRESSED, bitmap: 0 };
}

impl Geometry {
    pub(crate) fn new(header: &Header) -> Self {
        let table_bits = header.l2_entries().ilog2();
        let entry_bits = header.l2_entry_bytes().ilog2();
        let slice_bits = (SLICE_BYTES_MAX >> entry_bits).ilog2().min(table_bits);
        let Header { cluster_bits, version, .. } = *header;
        let has_data_file = header.features.external_data;
        Self { cluster_bits, table_bits, slice_bits, entry_bits, version, has_data_file }
    }

    pub(crate) fn cluster_bytes(self) -> u64 {
        1 << self.cluster_bits
    }

    /// A cluster has 2 to the power of this many bytes.
    pub(crate) fn cluster_bits(self) -> u32 {
        self.cluster_bits
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

    /// The clusters that these bytes touch, each with those bytes of it, counted from its start.
    pub(crate) fn clusters_in(
        self,
        bytes: Range<u64>,
    ) -> impl Iterator<Item = (GuestCluster, Range<u64>)> {
        let mut at = bytes.start;
        std::iter::from_fn(move || {
            let cluster = self.cluster_of(at);
            let start = self.start_of(cluster);
            let within = at - start..(start + self.cluster_bytes()).min(bytes.end) - start;
            at = start + within.end;
            (within.start < within.end).then_some((cluster, within))
        })
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
        1 << (self.slice_bits + self.entry_bits)
    }

    /// Words of 8 bytes of an entry.
    pub(crate) fn entry_words(self) -> usize {
        1 << (self.entry_bits - 3)
    }

    pub(crate) fn has_subclusters(self) -> bool {
        self.entry_words() == 2
    }

    /// Subclusters of a cluster.
    pub(crate) fn subclusters(self) -> u32 {
        if self.has_subclusters() { SUBCLUSTERS } else { 1 }
    }

    /// Bytes of a subcluster.
    pub(crate) fn subcluster_bytes(self) -> u64 {
        1 << self.subcluster_bits()
    }

    fn subcluster_bits(self) -> u32 {
        self.cluster_bits - self.subclusters().ilog2()
    }

    /// The subclusters that bytes inside a cluster touch, counted in their cluster.
    #[inline]
    pub(crate) fn units_of(self, within: &Range<u64>) -> Range<u32> {
        let number = |unit: u64| u32::try_from(unit).expect("a cluster has at most 32");
        let bits = self.subcluster_bits();
        number(within.start >> bits)..number((within.end + self.subcluster_bytes() - 1) >> bits)
    }

    /// The place of a cluster all of which is data, by far the most frequent; `None` if the entry says anything else.
    #[inline]
    pub(crate) fn data_of(self, words: RawL2Entry) -> Option<HostClusterReference> {
        let RawL2Entry { word, bitmap } = words;
        let (host, is_exclusive) = (word & OFFSET, word & COPIED != 0);
        let bitmap_of_all = if self.has_subclusters() { u64::from(u32::MAX) } else { 0 };
        let is_plain = word & !(OFFSET | COPIED) == 0 && host & (self.cluster_bytes() - 1) == 0;
        (is_plain && host != 0 && bitmap == bitmap_of_all)
            .then_some(HostClusterReference { host, is_exclusive })
    }

    /// What an L2 entry says.
    #[inline]
    pub(crate) fn read(self, words: RawL2Entry) -> Result<L2Entry, BadL2Entry> {
        let RawL2Entry { word, bitmap } = words;
        let bad = Err(BadL2Entry { word, bitmap });
        if word & COMPRESSED != 0 {
            let descriptor = word & !(COPIED | COMPRESSED);
            return if bitmap == 0 && !self.has_data_file {
                Ok(L2Entry::Compressed { descriptor })
            } else {
                bad
            };
        }
        let host = word & OFFSET;
        let has_zero_bit = self.version >= 3 && !self.has_subclusters();
        let reserved = if has_zero_bit { RESERVED } else { RESERVED | ZERO };
        if word & reserved != 0 || !host.is_multiple_of(self.cluster_bytes()) {
            return bad;
        }
        let place = match (host, word & COPIED != 0) {
            // A data file has data at its beginning: there the bit says that this is a place.
            (0, is_exclusive) if !(is_exclusive && self.has_data_file) => None,
            (host, is_exclusive) => Some(HostClusterReference { host, is_exclusive }),
        };
        let (data, zero) = if self.has_subclusters() {
            let half = |bits: u64| u32::try_from(bits & u64::from(u32::MAX)).expect("masked");
            (half(bitmap), half(bitmap >> 32))
        } else {
            let is_zero = word & ZERO != 0;
            (u32::from(place.is_some() && !is_zero), u32::from(is_zero))
        };
        if data & zero != 0 || data != 0 && place.is_none() {
            return bad;
        }
        Ok(L2Entry::Cluster(StandardCluster { place, data, zero }))
    }

    /// The clusters of the file that the first word of an entry names.
    pub(crate) fn clusters_of(self, word: u64) -> Option<Range<u64>> {
        if word & COMPRESSED != 0 {
            return self.compressed_clusters(word & !(COPIED | COMPRESSED));
        }
        let host = word & OFFSET;
        let first = host >> self.cluster_bits;
        (host != 0).then_some(first..first + 1)
    }

    /// The clusters of the file that compressed data is in; none if it names no place.
    pub(crate) fn compressed_clusters(self, descriptor: u64) -> Option<Range<u64>> {
        let place = compressed::place(descriptor, self.cluster_bits).ok()?;
        Some(place.start >> self.cluster_bits..place.end.div_ceil(self.cluster_bytes()))
    }

    /// The entry that names compressed data of so many bytes, fewer than a cluster has, that begin there; none if no entry
    /// reaches so far.
    pub(crate) fn compressed(self, offset: u64, bytes: u64) -> Option<RawL2Entry> {
        let descriptor = compressed::descriptor(offset, bytes, self.cluster_bits)?;
        Some(RawL2Entry { word: COMPRESSED | descriptor, bitmap: 0 })
    }

    pub(crate) fn has_data_file(self) -> bool {
        self.has_data_file
    }

    /// The entry that says that.
    pub(crate) fn write(self, cluster: StandardCluster) -> RawL2Entry {
        let StandardCluster { place, data, zero } = cluster;
        let word =
            place.map_or(0, |place| place.host | if place.is_exclusive { COPIED } else { 0 });
        if self.has_subclusters() {
            RawL2Entry { word, bitmap: u64::from(zero) << 32 | u64::from(data) }
        } else {
            RawL2Entry { word: word | if zero == 0 { 0 } else { ZERO }, bitmap: 0 }
        }
    }

    /// Bytes inside a cluster, cut where it is something else.
    pub(crate) fn parts(
        self,
        cluster: StandardCluster,
        within: Range<u64>,
    ) -> impl Iterator<Item = (Subcluster, Range<u64>)> {
        let mut at = within.start;
        std::iter::from_fn(move || {
            if at >= within.end {
                return None;
            }
            let units = self.units_of(&(at..within.end));
            let unit = cluster.subcluster(units.start);
            let same = units.clone().find(|other| cluster.subcluster(*other) != unit);
            let end = u64::from(same.unwrap_or(units.end)) * self.subcluster_bytes();
            let part = at..end.min(within.end);
            at = part.end;
            Some((unit, part))
        })
    }

    /// What all of these bytes inside a cluster are, if they are the same.
    #[inline]
    pub(crate) fn whole(self, cluster: StandardCluster, within: &Range<u64>) -> Option<Subcluster> {
        let touched = bits_of(self.units_of(within));
        let StandardCluster { place, data, zero } = cluster;
        match (place, data & touched, zero & touched) {
            (Some(place), data, _) if data == touched => Some(Subcluster::Data(place)),
            (_, 0, zero) if zero == touched => Some(Subcluster::Zero),
            (_, 0, 0) => Some(Subcluster::Nothing),
            (_, _, _) => None,
        }
    }

    /// The bits of all subclusters.
    pub(crate) fn all_subclusters(self) -> u32 {
        bits_of(0..self.subclusters())
    }
}

/// Bits of an entry of an L1 or L2 table.
pub(crate) const COPIED: u64 = 1 << 63;
const COMPRESSED: u64 = 1 << 62;
const ZERO: u64 = 1;
/// Where it points to: bits 9 to 55.
pub(crate) const OFFSET: u64 = (OFFSET_END - 1) & !0x1ff;
const RESERVED: u64 = !(COPIED | COMPRESSED | OFFSET | ZERO);

/// What an L2 entry says of a guest cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum L2Entry {
    /// Each of its subclusters is something.
    Cluster(StandardCluster),
    /// Its data are there, compressed.
    Compressed { descriptor: u64 },
}

/// An uncompressed cluster: its host cluster, and which subclusters are data or zeroes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct StandardCluster {
    /// The cluster of the file that it has.
    pub(crate) place: Option<HostClusterReference>,
    /// The subclusters whose data are there; none without a place.
    pub(crate) data: u32,
    /// Those that are zeroes. What is neither is what the backing file has, or zeroes.
    pub(crate) zero: u32,
}

/// What a subcluster is: unallocated, zeroes or data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Subcluster {
    /// What the backing file has, or zeroes.
    Nothing,
    Zero,
    Data(HostClusterReference),
}

impl StandardCluster {
    /// What a subcluster is.
    pub(crate) fn subcluster(self, unit: u32) -> Subcluster {
        match self.place {
            Some(place) if self.data & 1 << unit != 0 => Subcluster::Data(place),
            _ if self.zero & 1 << unit != 0 => Subcluster::Zero,
            Some(_) | None => Subcluster::Nothing,
        }
    }

    /// The place if nobody else refers to it, so that it may be written.
    pub(crate) fn exclusive_host(self) -> Option<u64> {
        self.place.filter(|place| place.is_exclusive).map(|place| place.host)
    }

    /// What it is when it has no place and reads as zeroes, whatever is below.
    pub(crate) fn zeroes(geometry: Geometry) -> Self {
        Self { place: None, data: 0, zero: geometry.all_subclusters() }
    }
}

/// The bits of some subclusters.
#[inline]
pub(crate) fn bits_of(units: Range<u32>) -> u32 {
    let below = |unit: u32| if unit >= 32 { u32::MAX } else { (1 << unit) - 1 };
    below(units.end) & !below(units.start)
}

/// A host cluster, and whether nobody else refers to it (the flag "copied").
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HostClusterReference {
    /// Its first byte.
    pub(crate) host: u64,
    /// Whether nobody else refers to it, so that it may be written.
    pub(crate) is_exclusive: bool,
}

/// An L2 entry that the format does not allow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the L2 entry {word:#018x} {bitmap:#018x} is not one")]
pub(crate) struct BadL2Entry {
    word: u64,
    bitmap: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn geometry(entry_bits: u32) -> Geometry {
        let (table_bits, has_data_file) = (16 - entry_bits, false);
        Geometry {
            cluster_bits: 16,
            table_bits,
            slice_bits: 8,
            entry_bits,
            version: 3,
            has_data_file,
        }
    }

    #[track_caller]
    fn check(geometry: Geometry, word: u64, bitmap: u64, expected: Option<StandardCluster>) {
        let words = RawL2Entry { word, bitmap };
        let expected = expected.map(L2Entry::Cluster).ok_or(BadL2Entry { word, bitmap });
        assert_eq!(geometry.read(words), expected);
        if let Ok(L2Entry::Cluster(cluster)) = expected {
            assert_eq!(geometry.write(cluster), words);
        }
    }

    #[test]
    fn entries_say_what_a_cluster_is() {
        let plain = geometry(3);
        let place = |is_exclusive| Some(HostClusterReference { host: 0x50000, is_exclusive });
        let cluster = |place, data, zero| Some(StandardCluster { place, data, zero });
        check(plain, 0, 0, cluster(None, 0, 0));
        check(plain, 1, 0, cluster(None, 0, 1));
        check(plain, 0x50000 | COPIED, 0, cluster(place(true), 1, 0));
        check(plain, 0x50000, 0, cluster(place(false), 1, 0));
        check(plain, 0x50001 | COPIED, 0, cluster(place(true), 0, 1));
        check(plain, 0x50002, 0, None);
        check(plain, 0x50200, 0, None);
        check(Geometry { version: 2, ..plain }, 1, 0, None);
        let start = Some(HostClusterReference { host: 0, is_exclusive: true });
        check(Geometry { has_data_file: true, ..plain }, COPIED, 0, cluster(start, 1, 0));
        let fine = geometry(4);
        check(fine, 0x50000 | COPIED, 0x8000_0000_0000_0007, cluster(place(true), 7, 1 << 31));
        check(fine, 0x50000 | COPIED, 0x0000_0001_0000_0001, None);
        check(fine, 0, 1, None);
        check(fine, 1, 0, None);
        check(fine, 0, 0xffff_ffff_0000_0000, cluster(None, 0, u32::MAX));
    }

    #[test]
    fn bytes_touch_the_subclusters_that_they_are_in() {
        let fine = geometry(4);
        assert_eq!(fine.units_of(&(0..65536)), 0..32);
        assert_eq!(fine.units_of(&(2047..2049)), 0..2);
        assert_eq!(fine.units_of(&(4096..4608)), 2..3);
        assert_eq!((bits_of(0..32), bits_of(1..3), bits_of(4..4)), (u32::MAX, 6, 0));
        assert_eq!(geometry(3).units_of(&(5..6)), 0..1);
    }
}
