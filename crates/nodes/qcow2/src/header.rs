//! The header of an image: what it says, and whether ringloom can serve it.
//!
//! Where it stands: read when a node is made and again when it is claimed. The specification is QEMU's
//! `docs/interop/qcow2.rst`, sections "Header" and "Header extensions".
//!
//! Invariants: every number was checked against what the format allows and what memory it may take;
//! whoever has a [`Header`] need not check again. Nothing is taken on trust: the image may come from a
//! stranger.

use std::ops::Range;

/// `QFI\xfb`.
pub(crate) const MAGIC: u32 = 0x5146_49fb;

/// The size of the header of version 2, which does not say so.
const BYTES_V2: u32 = 72;

/// The largest L1 table, as in QEMU: 32 MiB.
pub(crate) const L1_BYTES_MAX: u64 = 32 << 20;

/// The largest refcount table, as in QEMU: 8 MiB.
pub(crate) const REFCOUNT_TABLE_BYTES_MAX: u64 = 8 << 20;

/// No offset in an image has more bits (bits 9 to 55 of a table entry).
pub(crate) const OFFSET_END: u64 = 1 << 56;

/// Where a header has the lowest 8 of its incompatible features.
pub(crate) const INCOMPATIBLE_LOW_AT: usize = 72 + 7;

const PLACE_OF_A_TABLE: &str = "it is a multiple of the cluster size below 2^56";

/// The most snapshots, as in QEMU.
pub(crate) const SNAPSHOTS_MAX: u32 = 65536;

/// The most bitmaps, as in QEMU.
const BITMAPS_MAX: u32 = 65535;

/// The largest directory of bitmaps, as in QEMU.
const BITMAP_DIRECTORY_BYTES_MAX: u64 = 1024 * 65535;

/// The longest name of a format, as in QEMU.
pub(crate) const FORMAT_NAME_MAX: usize = 15;

/// The longest name of a backing file (specification: 1023 bytes).
pub(crate) const BACKING_NAME_MAX: u32 = 1023;

/// The feature bits of an image, known here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a bit of the header")]
pub struct Features {
    /// Refcounts may be wrong; they are made anew before the image is written.
    pub dirty: bool,
    /// Metadata is known to be wrong: never written.
    pub corrupt: bool,
    /// Data is in a file of its own.
    pub external_data: bool,
    /// Compressed clusters are zstd.
    pub zstd: bool,
    /// Clusters consist of 32 subclusters with a state each (extended L2 entries).
    pub extended_l2: bool,
    /// Refcounts may be left alone under the dirty bit.
    pub lazy_refcounts: bool,
    /// The bitmaps are consistent with the data (autoclear).
    pub bitmaps: bool,
    /// The data file is a raw image of the disk (autoclear).
    pub raw_external: bool,
}

/// The header of a qcow2 image, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// 2 or 3.
    pub version: u32,
    /// The size of the disk, in bytes; a multiple of 512 it need not be.
    pub size: u64,
    /// Bits of an offset inside a cluster: 9 to 21.
    pub cluster_bits: u32,
    /// Entries of the L1 table.
    pub l1_entries: u32,
    /// Where the L1 table is.
    pub l1_offset: u64,
    /// Where the refcount table is.
    pub refcount_table_offset: u64,
    /// How many clusters it has.
    pub refcount_table_clusters: u32,
    /// A refcount has 2 to the power of this many bits: 0 to 6.
    pub refcount_order: u32,
    /// Internal snapshots.
    pub snapshots: u32,
    /// Where their table is.
    pub snapshots_offset: u64,
    /// What is in the image.
    pub features: Features,
    /// The name of the backing file, as it stands there.
    pub backing: Option<String>,
    /// Its format.
    pub backing_format: Option<String>,
    /// The name of the data file.
    pub data_file: Option<String>,
    /// The bitmaps extension, if it is consistent with the data.
    pub(crate) bitmaps: Option<BitmapsExtension>,
    /// How long the header is.
    pub(crate) header_bytes: u32,
    /// Autoclear bits that are set and unknown here: cleared before the image is written.
    pub(crate) unknown_autoclear: u64,
}

/// Where the directory of persistent bitmaps is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BitmapsExtension {
    pub(crate) count: u32,
    reserved: u32,
    pub(crate) directory_bytes: u64,
    pub(crate) directory_offset: u64,
}

/// Why the header of an image rules out that it is served: no qcow2, damaged, or a feature that is not supported.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// It is something else.
    #[error("it is not a qcow2 image")]
    Magic,
    /// It is too short to have a header.
    #[error("it is too short for a qcow2 image: {bytes} bytes")]
    Short {
        /// Its size.
        bytes: u64,
    },
    /// A version that nobody knows.
    #[error("qcow version {version} is not supported; 2 and 3 are")]
    Version {
        /// Which.
        version: u32,
    },
    /// It is encrypted.
    #[error("it is encrypted ({method}), which is not supported")]
    Encrypted {
        /// How.
        method: &'static str,
    },
    /// It has incompatible features that are unknown here.
    #[error("it has unknown incompatible features: {names}")]
    UnknownFeatures {
        /// Their names, from the image's feature table, or their bits.
        names: String,
    },
    /// A field has a value that the format does not allow.
    #[error("{field} is {value}, but {rule}")]
    Field {
        /// Its name in the specification.
        field: &'static str,
        /// What it is.
        value: u64,
        /// What it may be.
        rule: &'static str,
    },
    /// A name in it is not text.
    #[error("the {what} is not valid UTF-8")]
    Text {
        /// Which.
        what: &'static str,
    },
}

impl Header {
    /// How many bytes of the file are needed for [`Header::parse`]: the first cluster. `start` are the
    /// first bytes of the file, as many as there are of 512.
    pub fn bytes_needed(start: &[u8]) -> Result<u64, HeaderError> {
        let fields = HeaderReader(start);
        fields.check_magic()?;
        Ok(1 << cluster_bits(fields)?)
    }

    /// Reads the header out of the first cluster of the file; less of it if the file is shorter: what is
    /// not there is zeroes, but for the fields of the header.
    pub fn parse(cluster: &[u8]) -> Result<Self, HeaderError> {
        let fields = HeaderReader(cluster);
        fields.check_magic()?;
        let version = fields.u32(4)?;
        let cluster_bits = cluster_bits(fields)?;
        let header_bytes = match version {
            2 => BYTES_V2,
            3 => header_bytes(fields.u32(100)?, cluster_bits)?,
            version => return Err(HeaderError::Version { version }),
        };
        fields.bytes(0..header_bytes as usize)?;
        let cluster_bytes = 1 << cluster_bits;
        if cluster.len() < cluster_bytes {
            let mut whole = cluster.to_vec();
            whole.resize(cluster_bytes, 0);
            return Self::parse_whole(HeaderReader(&whole), version, header_bytes);
        }
        Self::parse_whole(HeaderReader(&cluster[..cluster_bytes]), version, header_bytes)
    }

    fn parse_whole(
        fields: HeaderReader<'_>,
        version: u32,
        header_bytes: u32,
    ) -> Result<Self, HeaderError> {
        let extensions = HeaderExtensions::read(fields, header_bytes, backing_name_place(fields)?)?;
        let (features, unknown_autoclear) = features(fields, version, header_bytes, &extensions)?;
        match fields.u32(32)? {
            0 if !extensions.has_encryption => {}
            0 => return Err(field("crypt_method", 0_u32, "the image has an encryption header")),
            1 => return Err(HeaderError::Encrypted { method: "AES" }),
            2 => return Err(HeaderError::Encrypted { method: "LUKS" }),
            other => return Err(field("crypt_method", other, "0, 1 or 2 are known")),
        }
        let header = Self {
            version,
            size: fields.u64(24)?,
            cluster_bits: cluster_bits(fields)?,
            l1_entries: fields.u32(36)?,
            l1_offset: fields.u64(40)?,
            refcount_table_offset: fields.u64(48)?,
            refcount_table_clusters: fields.u32(56)?,
            refcount_order: if version == 3 { fields.u32(96)? } else { 4 },
            snapshots: fields.u32(60)?,
            snapshots_offset: fields.u64(64)?,
            features,
            backing: backing_name(fields)?,
            backing_format: extensions.backing_format,
            data_file: extensions.data_file,
            bitmaps: extensions.bitmaps.filter(|_| features.bitmaps),
            header_bytes,
            unknown_autoclear,
        };
        header.check_bitmaps()?;
        header.check_tables()?;
        Ok(header)
    }

    fn check_bitmaps(&self) -> Result<(), HeaderError> {
        let Some(bitmaps) = self.bitmaps else { return Ok(()) };
        let BitmapsExtension { count, reserved, directory_bytes, directory_offset } = bitmaps;
        require(reserved == 0, "bitmaps extension's reserved field", reserved, "it is 0")?;
        let is_count = (1..=BITMAPS_MAX).contains(&count);
        require(is_count, "nb_bitmaps", count, "an image has 1 to 65535 bitmaps")?;
        self.check_place("bitmap_directory_offset", directory_offset)?;
        let fits = directory_bytes <= BITMAP_DIRECTORY_BYTES_MAX;
        let rule = "a directory has at most 1024 bytes for each of 65535 bitmaps";
        require(fits, "bitmap_directory_size", directory_bytes, rule)
    }

    fn check_tables(&self) -> Result<(), HeaderError> {
        let (bits, entries) = (self.cluster_bits, self.l1_entries);
        require(
            self.refcount_order <= 6,
            "refcount_order",
            self.refcount_order,
            "it is at most 6",
        )?;
        let is_large = !self.features.extended_l2 || bits >= 14;
        require(is_large, "cluster_bits", bits, "subclusters need 14 at least")?;
        self.check_place("l1_table_offset", self.l1_offset)?;
        self.check_place("refcount_table_offset", self.refcount_table_offset)?;
        self.check_place("snapshots_offset", self.snapshots_offset)?;
        let rule = "an image has at most 65536 snapshots";
        require(self.snapshots <= SNAPSHOTS_MAX, "nb_snapshots", self.snapshots, rule)?;
        let fits = u64::from(entries) * 8 <= L1_BYTES_MAX;
        require(fits, "l1_size", entries, "an L1 table has at most 32 MiB")?;
        let clusters = self.refcount_table_clusters;
        let fits = (1..=REFCOUNT_TABLE_BYTES_MAX).contains(&(u64::from(clusters) << bits));
        let rule = "a refcount table has 1 cluster to 8 MiB";
        require(fits, "refcount_table_clusters", clusters, rule)?;
        let fits = self.size <= i64::MAX as u64;
        require(fits, "size", self.size, "a disk has less than 2^63 bytes")?;
        let needed = self.size.div_ceil(1 << bits).div_ceil(self.l2_entries());
        let fits = needed <= u64::from(entries);
        require(fits, "l1_size", entries, "it is too small for the size of the disk")?;
        let is_behind = |offset: u64, name| require(offset > 0, name, 0_u64, "the header is there");
        if entries > 0 {
            is_behind(self.l1_offset, "l1_table_offset")?;
        }
        is_behind(self.refcount_table_offset, "refcount_table_offset")
    }

    fn check_place(&self, name: &'static str, offset: u64) -> Result<(), HeaderError> {
        let is_place = offset.is_multiple_of(1 << self.cluster_bits) && offset < OFFSET_END;
        require(is_place, name, offset, PLACE_OF_A_TABLE)
    }

    /// Bytes of an L2 entry.
    pub(crate) fn l2_entry_bytes(&self) -> u64 {
        if self.features.extended_l2 { 16 } else { 8 }
    }

    /// Entries of an L2 table, which is one cluster.
    pub(crate) fn l2_entries(&self) -> u64 {
        (1 << self.cluster_bits) / self.l2_entry_bytes()
    }
}

fn field(field: &'static str, value: impl Into<u64>, rule: &'static str) -> HeaderError {
    HeaderError::Field { field, value: value.into(), rule }
}

/// Refuses a field of this value, unless it keeps to the rule.
fn require(
    keeps: bool,
    name: &'static str,
    value: impl Into<u64>,
    rule: &'static str,
) -> Result<(), HeaderError> {
    if keeps { Ok(()) } else { Err(field(name, value, rule)) }
}

fn cluster_bits(fields: HeaderReader<'_>) -> Result<u32, HeaderError> {
    match fields.u32(20)? {
        bits @ 9..=21 => Ok(bits),
        other => Err(field("cluster_bits", other, "it is 9 to 21")),
    }
}

fn header_bytes(bytes: u32, cluster_bits: u32) -> Result<u32, HeaderError> {
    let fits = (104..=1 << cluster_bits).contains(&bytes) && bytes.is_multiple_of(8);
    let rule = "it is 104 at least, a multiple of 8, and inside the first cluster";
    require(fits, "header_length", bytes, rule).map(|()| bytes)
}

/// Where the backing file's name is; the extensions end there.
fn backing_name_place(fields: HeaderReader<'_>) -> Result<Option<Range<usize>>, HeaderError> {
    let (offset, bytes) = (fields.u64(8)?, fields.u32(16)?);
    if offset == 0 {
        return Ok(None);
    }
    let fits = bytes <= BACKING_NAME_MAX;
    require(fits, "backing_file_size", bytes, "a name has at most 1023 bytes")?;
    let place = usize::try_from(offset).ok().and_then(|start| {
        let end = start.checked_add(bytes as usize)?;
        (end <= fields.0.len()).then_some(start..end)
    });
    let rule = "the name is in the first cluster";
    place.map(Some).ok_or_else(|| field("backing_file_offset", offset, rule))
}

fn backing_name(fields: HeaderReader<'_>) -> Result<Option<String>, HeaderError> {
    let Some(place) = backing_name_place(fields)? else { return Ok(None) };
    if place.is_empty() {
        return Ok(None);
    }
    text(&fields.0[place], "name of the backing file").map(Some)
}

fn text(bytes: &[u8], what: &'static str) -> Result<String, HeaderError> {
    String::from_utf8(bytes.to_vec()).map_err(|_not_text| HeaderError::Text { what })
}

/// For sentences: a stranger's text without what a terminal would act on.
fn printable(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    text.chars().map(|it| if it.is_control() { '\u{fffd}' } else { it }).collect()
}

fn features(
    fields: HeaderReader<'_>,
    version: u32,
    header_bytes: u32,
    extensions: &HeaderExtensions,
) -> Result<(Features, u64), HeaderError> {
    if version == 2 {
        return Ok((Features::default(), 0));
    }
    let (incompatible, compatible, autoclear) = (fields.u64(72)?, fields.u64(80)?, fields.u64(88)?);
    let unknown = incompatible & !0x1f;
    if unknown != 0 {
        let names = extensions.feature_names(unknown);
        return Err(HeaderError::UnknownFeatures { names });
    }
    let has = |bits: u64, bit: u32| bits & 1 << bit != 0;
    let compression = if header_bytes > 104 { fields.u8(104)? } else { 0 };
    // The bit says that the field is not 0.
    let has_data_file = !has(autoclear, 1) || has(incompatible, 2);
    let rule = "raw external data (bit 1) needs an external data file";
    require(has_data_file, "autoclear_features", autoclear, rule)?;
    let is_known = compression == u8::from(has(incompatible, 3));
    let rule = "0 (zlib) and 1 (zstd, with its incompatible bit) are known";
    require(is_known, "compression_type", compression, rule)?;
    let features = Features {
        dirty: has(incompatible, 0),
        corrupt: has(incompatible, 1),
        external_data: has(incompatible, 2),
        zstd: compression == 1,
        extended_l2: has(incompatible, 4),
        lazy_refcounts: has(compatible, 0),
        bitmaps: has(autoclear, 0),
        raw_external: has(autoclear, 1),
    };
    Ok((features, autoclear & !3))
}

/// The header extensions that are known here. Others are left as they are.
#[derive(Debug, Default)]
struct HeaderExtensions {
    backing_format: Option<String>,
    data_file: Option<String>,
    bitmaps: Option<BitmapsExtension>,
    /// Type, bit and name of each feature.
    names: Vec<(u8, u8, String)>,
    has_encryption: bool,
}

pub(crate) const END: u32 = 0;
pub(crate) const BACKING_FORMAT: u32 = 0xe279_2aca;
pub(crate) const FEATURE_NAMES: u32 = 0x6803_f857;
pub(crate) const BITMAPS: u32 = 0x2385_2875;
pub(crate) const DATA_FILE: u32 = 0x4441_5441;
const ENCRYPTION: u32 = 0x0537_be77;

impl HeaderExtensions {
    fn read(
        fields: HeaderReader<'_>,
        header_bytes: u32,
        backing_name: Option<Range<usize>>,
    ) -> Result<Self, HeaderError> {
        let mut extensions = Self::default();
        let end = backing_name.map_or(fields.0.len(), |place| place.start);
        let mut at = header_bytes as usize;
        let rule = "a header extension ends before the backing file's name and the first cluster";
        while at < end {
            let start = at + 8;
            if start > end {
                return Err(field("header extension offset", at as u64, rule));
            }
            let (kind, bytes) = (fields.u32(at)?, fields.u32(at + 4)?);
            let stop = start
                .checked_add(bytes as usize)
                .filter(|stop| *stop <= end)
                .ok_or_else(|| field("header extension length", bytes, rule))?;
            if kind == END {
                break;
            }
            extensions.take(kind, &fields.0[start..stop])?;
            at = stop.next_multiple_of(8);
        }
        Ok(extensions)
    }

    fn take(&mut self, kind: u32, data: &[u8]) -> Result<(), HeaderError> {
        match kind {
            BACKING_FORMAT if data.len() > FORMAT_NAME_MAX => {
                let rule = "the name of the backing file's format has at most 15 bytes";
                return Err(field("header extension length", data.len() as u64, rule));
            }
            BACKING_FORMAT => self.backing_format = Some(text(data, "backing file format")?),
            DATA_FILE => self.data_file = Some(text(data, "name of the data file")?),
            FEATURE_NAMES => {
                let name = |entry: &[u8]| {
                    let name = entry[2..].split(|byte| *byte == 0).next().unwrap_or_default();
                    (entry[0], entry[1], printable(name))
                };
                self.names = data.chunks_exact(48).map(name).collect();
            }
            BITMAPS => {
                let (fields, count) = (HeaderReader(data), data.len() as u64);
                let rule = "the bitmaps extension has 24 bytes";
                require(count == 24, "header extension length", count, rule)?;
                self.bitmaps = Some(BitmapsExtension {
                    count: fields.u32(0)?,
                    reserved: fields.u32(4)?,
                    directory_bytes: fields.u64(8)?,
                    directory_offset: fields.u64(16)?,
                });
            }
            ENCRYPTION => self.has_encryption = true,
            _ => {}
        }
        Ok(())
    }

    fn feature_names(&self, bits: u64) -> String {
        let name = |bit: u8| {
            let known = self.names.iter().find(|(kind, at, _)| *kind == 0 && *at == bit);
            known.map_or_else(|| format!("bit {bit}"), |(_, _, name)| name.clone())
        };
        let set = (0..64_u8).filter(|bit| bits & 1 << bit != 0);
        set.map(name).collect::<Vec<_>>().join(", ")
    }
}

/// Reads big-endian numbers out of a header.
#[derive(Clone, Copy)]
struct HeaderReader<'a>(&'a [u8]);

impl HeaderReader<'_> {
    fn check_magic(self) -> Result<(), HeaderError> {
        if self.u32(0)? == MAGIC { Ok(()) } else { Err(HeaderError::Magic) }
    }

    fn u8(self, at: usize) -> Result<u8, HeaderError> {
        self.array::<1>(at).map(|[byte]| byte)
    }

    fn u32(self, at: usize) -> Result<u32, HeaderError> {
        self.array(at).map(u32::from_be_bytes)
    }

    fn u64(self, at: usize) -> Result<u64, HeaderError> {
        self.array(at).map(u64::from_be_bytes)
    }

    fn bytes(&self, place: Range<usize>) -> Result<&[u8], HeaderError> {
        self.0.get(place).ok_or(HeaderError::Short { bytes: self.0.len() as u64 })
    }

    fn array<const COUNT: usize>(self, at: usize) -> Result<[u8; COUNT], HeaderError> {
        let bytes = self.0.get(at..at + COUNT).and_then(|bytes| bytes.try_into().ok());
        bytes.ok_or(HeaderError::Short { bytes: self.0.len() as u64 })
    }
}
