//! A reader of qcow2 images, written from the specification (docs/interop/qcow2 of QEMU): the plainest way, without
//! caches and without I/O.
//!
//! Where it stands: after each life of the rig it says what each sector of the disk holds.
//!
//! Not here: whether the metadata is consistent ([`super::check`]).

use std::io::Read;
use std::ops::Range;

use super::disk::Snapshot;
use crate::conformance::{index, number};

/// Header, 0: "QFI" and 0xfb.
pub(crate) const MAGIC: u32 = 0x5146_49fb;
/// Incompatible features, bit 0: refcounts may be wrong.
pub(crate) const DIRTY: u64 = 1;
/// Bit 1: nobody may write.
pub(crate) const CORRUPT: u64 = 2;
/// Bit 2: guest clusters are in another file.
pub(crate) const DATA_FILE: u64 = 4;
/// Bit 3: the header says how clusters are compressed.
pub(crate) const COMPRESSION: u64 = 8;
/// Bit 4: entries of L2 tables have 128 bits.
pub(crate) const EXTENDED_L2: u64 = 16;
/// Autoclear features, bit 0: bitmaps are valid.
pub(crate) const BITMAPS: u64 = 1;
/// Entries of L1 and L2: the refcount is exactly one.
pub(crate) const COPIED: u64 = 1 << 63;
/// Entries of L2: the cluster is compressed.
pub(crate) const COMPRESSED: u64 = 1 << 62;
/// Entries of L2: the cluster reads as zeroes.
pub(crate) const ZERO: u64 = 1;
/// Entries of L1 and L2: the place in the file.
pub(crate) const OFFSET: u64 = 0x00ff_ffff_ffff_fe00;
/// The kind of a header extension.
pub(crate) const BITMAPS_EXTENSION: u32 = 0x2385_2875;

/// What the header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// 2 or 3.
    pub version: u32,
    /// The size of a cluster is 2 to this.
    pub cluster_bits: u32,
    /// The bytes of the disk.
    pub size: u64,
    /// Whether the name of a backing file is there.
    pub has_backing: bool,
    /// Entries of the L1 table, and where it is.
    pub l1_size: u32,
    /// In bytes.
    pub l1_offset: u64,
    /// Where the refcount table is, in bytes.
    pub refcount_offset: u64,
    /// And its clusters.
    pub refcount_clusters: u32,
    /// How many snapshots there are.
    pub snapshots: u32,
    /// Where their table is, in bytes.
    pub snapshots_offset: u64,
    /// The features that a reader must know.
    pub incompatible: u64,
    /// Those that it need not.
    pub compatible: u64,
    /// Those that a writer clears if it does not know them.
    pub autoclear: u64,
    /// A refcount has 2 to this bits.
    pub refcount_order: u32,
    /// Of the header, in bytes.
    pub length: u32,
}

impl Header {
    /// Reads it.
    pub fn read(image: &Snapshot) -> Result<Self, String> {
        let word = |at| be32(image, at);
        let long = |at| be64(image, at);
        if word(0) != MAGIC {
            return Err(format!("the magic is {:#x}", word(0)));
        }
        let version = word(4);
        let is_3 = match version {
            2 => false,
            3 => true,
            _ => return Err(format!("the version is {version}")),
        };
        let of_3 = |value: u64, otherwise| if is_3 { value } else { otherwise };
        let header = Self {
            version,
            cluster_bits: word(20),
            size: long(24),
            has_backing: long(8) != 0,
            l1_size: word(36),
            l1_offset: long(40),
            refcount_offset: long(48),
            refcount_clusters: word(56),
            snapshots: word(60),
            snapshots_offset: long(64),
            incompatible: of_3(long(72), 0),
            compatible: of_3(long(80), 0),
            autoclear: of_3(long(88), 0),
            refcount_order: if is_3 { word(96) } else { 4 },
            length: if is_3 { word(100) } else { 72 },
        };
        if !(9..=21).contains(&header.cluster_bits) || header.refcount_order > 6 || word(32) != 0 {
            return Err(format!("{header:?} cannot be"));
        }
        Ok(header)
    }

    /// Bytes of a cluster.
    pub fn cluster(&self) -> u64 {
        1 << self.cluster_bits
    }

    /// Whether an incompatible feature is there.
    pub fn has(&self, feature: u64) -> bool {
        self.incompatible & feature != 0
    }

    /// Bytes of an entry of an L2 table.
    pub fn l2_entry_bytes(&self) -> u64 {
        if self.has(EXTENDED_L2) { 16 } else { 8 }
    }

    /// Entries of an L2 table.
    pub fn l2_entries(&self) -> u64 {
        self.cluster() / self.l2_entry_bytes()
    }

    /// What the L2 entry means that names this cluster of the disk.
    pub fn entry(&self, image: &Snapshot, l1_offset: u64, cluster: u64) -> L2Entry {
        let entries = self.l2_entries();
        let l2 = be64(image, l1_offset + cluster / entries * 8) & OFFSET;
        if l2 == 0 {
            return L2Entry { at: 0, word: 0, bitmap: 0 };
        }
        self.entry_at(image, l2 + cluster % entries * self.l2_entry_bytes())
    }

    /// The L2 entry at that place.
    pub fn entry_at(&self, image: &Snapshot, at: u64) -> L2Entry {
        let bitmap = if self.has(EXTENDED_L2) { be64(image, at + 8) } else { 0 };
        L2Entry { at, word: be64(image, at), bitmap }
    }

    /// Where an entry says that a cluster's bytes are: `None` if it has none in a file.
    pub fn host(&self, entry: L2Entry) -> Option<u64> {
        let offset = entry.word & OFFSET;
        let is_zero_offset_valid = self.has(DATA_FILE) && entry.word & COPIED != 0;
        (offset != 0 || is_zero_offset_valid).then_some(offset)
    }

    /// Where a compressed entry says that the cluster is: up to the end of a sector.
    pub fn compressed_bytes(&self, entry: L2Entry) -> Range<u64> {
        let split = 62 - (self.cluster_bits - 8);
        let at = entry.word & ((1 << split) - 1);
        let sectors = (entry.word & (COMPRESSED - 1)) >> split;
        at..(at & !511) + (sectors + 1) * 512
    }

    /// A compressed cluster as it was.
    fn decompressed(&self, image: &Snapshot, place: Range<u64>) -> Result<Vec<u8>, String> {
        let mut bytes = vec![0; index(place.end - place.start)];
        image.read(place.start, &mut bytes);
        let mut cluster = vec![0; index(self.cluster())];
        let result = if self.has(COMPRESSION) {
            let mut context = zstd_safe::DCtx::create();
            let mut output = zstd_safe::OutBuffer::around(&mut cluster[..]);
            let mut input = zstd_safe::InBuffer::around(&bytes);
            match context.decompress_stream(&mut output, &mut input) {
                Ok(0) => Ok(()),
                Ok(_) => Err("it goes on".to_owned()),
                Err(code) => Err(zstd_safe::get_error_name(code).to_owned()),
            }
        } else {
            let mut stream = flate2::read::DeflateDecoder::new(&bytes[..]);
            stream.read_exact(&mut cluster).map_err(|error| error.to_string())
        };
        result.map_err(|error| format!("compressed bytes {place:x?}: {error}"))?;
        Ok(cluster)
    }

    /// What one part of a cluster holds: the whole is one part, or has 32.
    pub fn content(&self, entry: L2Entry, part: u32) -> Result<Content, String> {
        if entry.word & COMPRESSED != 0 {
            return Ok(Content::Compressed(self.compressed_bytes(entry)));
        }
        let host = self.host(entry);
        if !self.has(EXTENDED_L2) {
            let is_zero = self.version == 3 && entry.word & ZERO != 0;
            return Ok(match host {
                _ if is_zero => Content::Zeroes,
                Some(offset) => Content::At(offset),
                None => Content::Backing,
            });
        }
        let (allocated, zero) = (entry.bitmap >> part & 1, entry.bitmap >> (32 + part) & 1);
        match (allocated, zero, host) {
            (1, 0, Some(offset)) => Ok(Content::At(offset)),
            (0, 1, _) => Ok(Content::Zeroes),
            (0, 0, _) => Ok(Content::Backing),
            _ => Err(format!("subcluster {part} of {entry:x?} is both or nowhere")),
        }
    }
}

/// An entry of an L2 table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct L2Entry {
    /// Where it is in the file; 0 if there is no table.
    pub at: u64,
    /// The entry, or its first half.
    pub word: u64,
    /// Of an extended one the second half.
    pub bitmap: u64,
}

/// Where bytes of the disk are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// In the cluster at this place.
    At(u64),
    /// Compressed, in these bytes of the image.
    Compressed(Range<u64>),
    /// Nowhere.
    Zeroes,
    /// In the backing file; nowhere, if there is none or it is too short.
    Backing,
}

/// An internal snapshot, as the table says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InternalSnapshot {
    /// Its identity.
    pub id: String,
    /// Its name.
    pub name: String,
    /// Where its L1 table is.
    pub l1_offset: u64,
    /// How large the disk was.
    pub disk_bytes: u64,
}

/// The internal snapshots of an image.
pub fn snapshots(image: &Snapshot) -> Result<Vec<InternalSnapshot>, String> {
    let header = Header::read(image)?;
    bound(header.snapshots.into(), image.bytes())?;
    let mut at = header.snapshots_offset;
    let mut all = Vec::new();
    for _ in 0..header.snapshots {
        let (id, name) = (u64::from(be16(image, at + 12)), u64::from(be16(image, at + 14)));
        let extra = u64::from(be32(image, at + 36));
        let text = |at: u64, count: u64| {
            let mut bytes = vec![0; index(count)];
            image.read(at, &mut bytes);
            String::from_utf8_lossy(&bytes).into_owned()
        };
        let names = at + 40 + extra;
        all.push(InternalSnapshot {
            id: text(names, id),
            name: text(names + id, name),
            l1_offset: be64(image, at),
            disk_bytes: if extra >= 16 { be64(image, at + 48) } else { header.size },
        });
        at = (names + id + name).next_multiple_of(8);
    }
    Ok(all)
}

/// Reads what an internal snapshot holds.
pub fn read_snapshot(
    image: &Snapshot,
    backing: Option<&[u8]>,
    snapshot: &InternalSnapshot,
) -> Result<Vec<u8>, String> {
    let header = Header::read(image)?;
    let InternalSnapshot { l1_offset, disk_bytes, .. } = *snapshot;
    read_table(image, None, backing, Header { l1_offset, size: disk_bytes, ..header })
}

/// Reads the whole disk.
pub fn read_all(
    image: &Snapshot,
    data: Option<&Snapshot>,
    backing: Option<&[u8]>,
) -> Result<Vec<u8>, String> {
    read_table(image, data, backing, Header::read(image)?)
}

/// Reads what the L1 table names that the header says.
fn read_table(
    image: &Snapshot,
    data: Option<&Snapshot>,
    backing: Option<&[u8]>,
    header: Header,
) -> Result<Vec<u8>, String> {
    let from = match (header.has(DATA_FILE), data) {
        (false, _) => image,
        (true, Some(data)) => data,
        (true, None) => return Err("the data file is not there".to_owned()),
    };
    let parts: u32 = if header.has(EXTENDED_L2) { 32 } else { 1 };
    let part_bytes = header.cluster() / u64::from(parts);
    let mut all = vec![0; index(header.size)];
    for (at, into) in (0..).step_by(index(part_bytes)).zip(all.chunks_mut(index(part_bytes))) {
        let at: u64 = at;
        let cluster = at / header.cluster();
        let inside = at % header.cluster();
        let part = u32::try_from(inside / part_bytes).expect("at most 32");
        let entry = header.entry(image, header.l1_offset, cluster);
        match header.content(entry, part)? {
            Content::At(offset) => from.read(offset + inside, into),
            Content::Zeroes => {}
            Content::Compressed(place) => {
                let cluster = header.decompressed(image, place)?;
                into.copy_from_slice(&cluster[index(inside)..index(inside) + into.len()]);
            }
            Content::Backing => {
                let behind = backing.unwrap_or_default().get(index(at)..).unwrap_or_default();
                let count = behind.len().min(into.len());
                into[..count].copy_from_slice(&behind[..count]);
            }
        }
    }
    Ok(all)
}

/// A word of the file.
pub(crate) fn be32(image: &Snapshot, at: u64) -> u32 {
    let mut bytes = [0; 4];
    image.read(at, &mut bytes);
    u32::from_be_bytes(bytes)
}

/// A long word of the file.
pub(crate) fn be64(image: &Snapshot, at: u64) -> u64 {
    let mut bytes = [0; 8];
    image.read(at, &mut bytes);
    u64::from_be_bytes(bytes)
}

/// A half word of the file.
pub(crate) fn be16(image: &Snapshot, at: u64) -> u16 {
    let mut bytes = [0; 2];
    image.read(at, &mut bytes);
    u16::from_be_bytes(bytes)
}

/// The refcount of a cluster of the file.
pub(crate) fn refcount(image: &Snapshot, header: &Header, cluster: u64) -> u64 {
    let bits = 1_u64 << header.refcount_order;
    let per_block = header.cluster() * 8 / bits;
    let table = cluster / per_block;
    if table >= u64::from(header.refcount_clusters) * header.cluster() / 8 {
        return 0;
    }
    let block = be64(image, header.refcount_offset + table * 8) & !0x1ff;
    if block == 0 {
        return 0;
    }
    let bit = cluster % per_block * bits;
    let mut bytes = [0; 8];
    let count = index(bits.div_ceil(8));
    image.read(block + bit / 8, &mut bytes[..count]);
    get_refcount(&bytes[..count], header.refcount_order, if bits < 8 { bit % 8 / bits } else { 0 })
}

/// A refcount of a block.
pub(crate) fn get_refcount(block: &[u8], order: u32, place: u64) -> u64 {
    let bits = 1_u64 << order;
    let byte = index(place * bits / 8);
    if bits < 8 {
        return u64::from(block[byte]) >> (place * bits % 8) & ((1 << bits) - 1);
    }
    let bytes = &block[byte..byte + index(bits / 8)];
    bytes.iter().fold(0, |value, byte| value << 8 | u64::from(*byte))
}

/// Puts a refcount into a table's block.
pub(crate) fn put_refcount(block: &mut [u8], order: u32, place: u64, value: u64) {
    let bits = 1_u64 << order;
    let (byte, shift) = (index(place * bits / 8), place * bits % 8);
    if bits < 8 {
        let mask = u8::try_from((1 << bits) - 1).expect("less than a byte");
        let value = u8::try_from(value).expect("it fits its width");
        block[byte] = block[byte] & !(mask << shift) | value << shift;
    } else {
        let count = index(bits / 8);
        let bytes = value.to_be_bytes();
        block[byte..byte + count].copy_from_slice(&bytes[8 - count..]);
    }
}

/// The largest refcount of that width.
pub(crate) fn refcount_max(order: u32) -> u64 {
    let bits = 1_u32 << order;
    if bits == 64 { u64::MAX } else { (1 << bits) - 1 }
}

/// How many clusters of the disk there are.
pub(crate) fn clusters(header: &Header) -> u64 {
    header.size.div_ceil(header.cluster())
}

/// Sizes in the header that nobody could have: so that a broken image ends no test by its memory.
pub(crate) fn bound(count: u64, file: u64) -> Result<usize, String> {
    let fits = count <= file.max(number(1 << 20));
    if fits {
        Ok(index(count))
    } else {
        Err(format!("{count} of something in a file of {file} bytes"))
    }
}
