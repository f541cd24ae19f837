//! Makes a new image in a file, whatever is in it (QEMU's `blockdev-create`).
//!
//! Where it stands: on a control thread. The file is a node that is open and claimed, and nobody else uses it. Its order:
//! the first sector is zeroed, durably, so that the file is no image; all tables are written; the header follows, whose
//! first sector is the last that is written ([`header_writer::write`]). So the file is the image or none.
//!
//! Invariants: nothing of what was in the file shows through. What the tables name reads as zeroes, and what they do not
//! is zeroed when it is taken. An image that is not preallocated has its tables one after another behind the header.
//! Limits: those of [`crate::header`]. Sentences that refuse are QEMU's.

use std::ops::Range;
use std::sync::Arc;

use block::{
    ByteCount, DiskSize, EngineFactory, FailKind, HostMemory, LaneError, Node, display_name,
};
use tasks::{AsyncChild, ControlExecutor};

use crate::compressed::CompressionMethod;
use crate::geometry::COPIED;
use crate::header::{
    BACKING_NAME_MAX, DATA_FILE, FORMAT_NAME_MAX, L1_BYTES_MAX, MAGIC, OFFSET_END,
    REFCOUNT_TABLE_BYTES_MAX,
};
use crate::header_writer::{
    self, Extension, SECTOR, backing_format, feature_names, name_backing, with_extensions,
};
use crate::refcount::RefcountBlock;
use crate::table_reader::{BLOCK_MAX, table_bytes};

/// What is zeroed with one operation, in bytes.
const ZEROED_AT_ONCE: u64 = 256 << 20;

/// The format's version (`version=`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImageVersion {
    /// Which QEMU before 1.1 reads, too.
    V2,
    /// Which has features.
    V3,
}

/// What has a place from the beginning (`preallocation=`). The space is the host's affair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImagePreallocation {
    /// Nothing.
    Off,
    /// All tables are there and name a place for each cluster.
    Metadata,
}

/// What an image is to be like: QAPI's `BlockdevCreateOptionsQcow2`. The default is QEMU's, of a disk without bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CreateOptions {
    /// The bytes of the disk.
    pub size: DiskSize,
    /// Which version.
    pub version: ImageVersion,
    /// Bytes of a cluster.
    pub cluster_size: ByteCount,
    /// The name of the backing file, as it shall stand there. Nobody looks for it.
    pub backing_file: Option<String>,
    /// Its format, which only stands beside a backing file.
    pub backing_format: Option<String>,
    /// Bits of a refcount.
    pub refcount_bits: u64,
    /// Whether clusters have subclusters.
    pub extended_l2: bool,
    /// The name of the data file, as it shall stand there. The caller gives that file the size of the disk.
    pub data_file: Option<String>,
    /// Whether the data file is the disk by itself: then what it has is what the disk has.
    pub data_file_raw: bool,
    /// Whether refcounts may be written late by others; here they never are.
    pub lazy_refcounts: bool,
    /// What has a place.
    pub preallocation: ImagePreallocation,
    /// How clusters will be compressed by whoever compresses any (`compression-type=`).
    pub compression: CompressionMethod,
}

impl Default for CreateOptions {
    fn default() -> Self {
        Self {
            size: DiskSize(ByteCount(0)),
            version: ImageVersion::V3,
            cluster_size: ByteCount(64 << 10),
            backing_file: None,
            backing_format: None,
            refcount_bits: 16,
            extended_l2: false,
            data_file: None,
            data_file_raw: false,
            lazy_refcounts: false,
            preallocation: ImagePreallocation::Off,
            compression: CompressionMethod::Deflate,
        }
    }
}

/// Why an image was not made.
#[derive(Debug, thiserror::Error)]
pub enum CreateError {
    /// There is no such image; the file is as it was.
    #[error("{0}")]
    Options(&'static str),
    /// The header has no room for the names; the file is as it was.
    #[error("Could not assign backing file '{name}': {why}")]
    Backing {
        /// The name of the backing file.
        name: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The file cannot be written; the operator was told why. It is no image now.
    #[error("{image}: Could not write the image ({kind:?})")]
    Io {
        /// What the image is known as: its file.
        image: String,
        /// What a guest would be told.
        kind: FailKind,
    },
    /// The file cannot be used; it is as it was.
    #[error(transparent)]
    Lane(#[from] LaneError),
}

/// Makes an image in the file, which takes changes and is claimed for writing; nobody else uses it. Blocks. Durable when it
/// returns.
pub fn create(
    file: &Arc<dyn Node>,
    engines: &dyn EngineFactory,
    options: &CreateOptions,
) -> Result<(), CreateError> {
    options.check()?;
    let layout = Layout::new(options)?;
    let header = layout.header(options)?;
    let mut control = ControlExecutor::open(engines, file)?;
    let storage = control.storage();
    let written = control.run(layout.write(&storage, file.size().0.0, &header));
    written.map_err(|kind| CreateError::Io { image: display_name(&**file), kind })
}

/// Refuses with this sentence, unless that is so.
fn require(is_so: bool, sentence: &'static str) -> Result<(), CreateError> {
    if is_so { Ok(()) } else { Err(CreateError::Options(sentence)) }
}

impl CreateOptions {
    fn check(&self) -> Result<(), CreateError> {
        let (has_backing, is_3) = (self.backing_file.is_some(), self.version == ImageVersion::V3);
        let preallocates = self.preallocation == ImagePreallocation::Metadata;
        let DiskSize(ByteCount(size)) = self.size;
        let ByteCount(cluster) = self.cluster_size;
        require(size.is_multiple_of(512), "Image size must be a multiple of 512 bytes")?;
        require(
            is_3 || !self.extended_l2,
            "Extended L2 entries are only supported with compatibility level 1.1 and above (use version=v3 or greater)",
        )?;
        require(
            cluster.is_power_of_two() && (512..=2 << 20).contains(&cluster),
            "Cluster size must be a power of two between 512 and 2048k",
        )?;
        require(
            !self.extended_l2 || cluster >= 16384,
            "Extended L2 entries are only supported with cluster sizes of at least 16384 bytes",
        )?;
        require(
            !has_backing || !preallocates || self.extended_l2,
            "Backing file and preallocation can only be used at the same time if extended_l2 is on",
        )?;
        require(
            has_backing || self.backing_format.is_none(),
            "Backing format cannot be used without backing file",
        )?;
        require(
            is_3 || !self.lazy_refcounts,
            "Lazy refcounts only supported with compatibility level 1.1 and above (use version=v3 or greater)",
        )?;
        require(
            self.refcount_bits.is_power_of_two() && self.refcount_bits <= 64,
            "Refcount width must be a power of two and may not exceed 64 bits",
        )?;
        require(
            is_3 || self.refcount_bits == 16,
            "Different refcount widths than 16 bits require compatibility level 1.1 or above (use version=v3 or greater)",
        )?;
        require(
            self.data_file.is_some() || !self.data_file_raw,
            "data-file-raw requires data-file",
        )?;
        require(
            !self.data_file_raw || !has_backing,
            "Backing file and data-file-raw cannot be used at the same time",
        )?;
        require(
            is_3 || self.data_file.is_none(),
            "External data files are only supported with compatibility level 1.1 and above (use version=v3 or greater)",
        )?;
        require(
            is_3 || self.compression == CompressionMethod::Deflate,
            "Non-zlib compression type is only supported with compatibility level 1.1 and above (use version=v3 or greater)",
        )
    }

    /// Like QEMU, an image whose data file is the disk by itself names all of that.
    fn names_all_clusters(&self) -> bool {
        self.data_file_raw || self.preallocation == ImagePreallocation::Metadata
    }
}

/// Where everything is in the file, in clusters: the header, the refcount table and its blocks, the L1 table, and if all
/// has a place the L2 tables and the data. All of it is in use, once.
#[derive(Debug)]
struct Layout {
    cluster_bits: u32,
    refcount_order: u32,
    l1_entries: u64,
    /// Clusters of the disk, if the tables name them all.
    named: u64,
    has_data_file: bool,
    /// Words of an L2 entry, and what its bitmap says.
    entry_words: u64,
    bitmap: u64,
    table: Range<u64>,
    blocks: Range<u64>,
    l1: Range<u64>,
    l2: Range<u64>,
    /// Where the data begin, and where all ends.
    data: Range<u64>,
}

impl Layout {
    fn new(options: &CreateOptions) -> Result<Self, CreateError> {
        let ByteCount(cluster) = options.cluster_size;
        let cluster_bits = cluster.trailing_zeros();
        let refcount_order = options.refcount_bits.trailing_zeros();
        let entry_words = if options.extended_l2 { 2 } else { 1 };
        let clusters = options.size.0.0.div_ceil(cluster);
        let l1_entries = clusters.div_ceil(cluster / (entry_words * 8));
        let too_large = "Could not resize image: Failed to grow the L1 table: File too large";
        require(l1_entries * 8 <= L1_BYTES_MAX, too_large)?;
        let named = if options.names_all_clusters() { clusters } else { 0 };
        let has_data_file = options.data_file.is_some();
        let l1_clusters = (l1_entries * 8).div_ceil(cluster);
        let l2_clusters = if named > 0 { l1_entries } else { 0 };
        let others = 1 + l1_clusters + l2_clusters + if has_data_file { 0 } else { named };
        let per_block = (cluster * 8) >> refcount_order;
        let (mut blocks, mut table) = (1, 1);
        // Refcounts are counted, too.
        loop {
            let needed = (others + table + blocks).div_ceil(per_block);
            if needed == blocks {
                break;
            }
            blocks = needed;
            table = (blocks * 8).div_ceil(cluster);
        }
        let too_large = "Could not resize image: Allocating clusters failed: File too large";
        let end = others + table + blocks;
        let fits = table << cluster_bits <= REFCOUNT_TABLE_BYTES_MAX && end < OFFSET_END / cluster;
        require(fits, too_large)?;
        let behind = |before: &Range<u64>, count| before.end..before.end + count;
        let table = 1..1 + table;
        let blocks = behind(&table, blocks);
        let l1 = behind(&blocks, l1_clusters);
        let l2 = behind(&l1, l2_clusters);
        let data = l2.end..end;
        // The bytes of a data file that is the disk are there; other clusters have a place and nothing in it.
        let bitmap = if options.data_file_raw { u32::MAX.into() } else { 0 };
        Ok(Self {
            cluster_bits,
            refcount_order,
            l1_entries,
            named,
            has_data_file,
            entry_words,
            bitmap,
            table,
            blocks,
            l1,
            l2,
            data,
        })
    }

    fn cluster_bytes(&self) -> u64 {
        1 << self.cluster_bits
    }

    /// The first bytes of the image.
    fn header(&self, options: &CreateOptions) -> Result<Vec<u8>, CreateError> {
        let mut extensions: Vec<Extension> = Vec::new();
        extensions.extend(options.backing_format.as_deref().map(backing_format));
        let data_file = options.data_file.as_ref();
        extensions.extend(data_file.map(|name| (DATA_FILE, name.as_bytes().to_vec())));
        if options.version == ImageVersion::V3 && self.cluster_bytes() > 4096 {
            extensions.push(feature_names());
        }
        let mut bytes = with_extensions(&self.fields(options), &extensions);
        let fits = bytes.len() as u64 <= self.cluster_bytes();
        require(fits, "Could not update qcow2 header: No space left on device")?;
        let name = options.backing_file.as_deref().unwrap_or_default();
        let refuse = |why| Err(CreateError::Backing { name: name.to_owned(), why });
        let format_bytes = options.backing_format.as_ref().map_or(0, String::len);
        if name.len() > BACKING_NAME_MAX as usize || format_bytes > FORMAT_NAME_MAX {
            return refuse("Invalid argument");
        }
        let at = bytes.len();
        name_backing(&mut bytes, at, name);
        bytes.extend(name.as_bytes());
        if bytes.len() as u64 > self.cluster_bytes() {
            return refuse("No space left on device");
        }
        bytes.resize(bytes.len().next_multiple_of(SECTOR), 0);
        Ok(bytes)
    }

    /// The header without extensions, as in `docs/interop/qcow2.rst`.
    fn fields(&self, options: &CreateOptions) -> Vec<u8> {
        let is_3 = options.version == ImageVersion::V3;
        let is_zstd = options.compression == CompressionMethod::Zstd;
        let bit = |is_set: bool, bit: u32| u64::from(is_set) << bit;
        let incompatible =
            bit(self.has_data_file, 2) | bit(is_zstd, 3) | bit(options.extended_l2, 4);
        let compatible = bit(options.lazy_refcounts, 0);
        let autoclear = bit(options.data_file_raw, 1);
        let count = |count: u64| u32::try_from(count).expect("tables have at most 32 MiB");
        let l1_offset = if self.l1.is_empty() { 0 } else { self.l1.start << self.cluster_bits };
        let mut bytes = vec![0; if is_3 { 112 } else { 72 }];
        let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
        put(0, &MAGIC.to_be_bytes());
        put(4, &(if is_3 { 3_u32 } else { 2 }).to_be_bytes());
        put(20, &self.cluster_bits.to_be_bytes());
        put(24, &options.size.0.0.to_be_bytes());
        put(36, &count(self.l1_entries).to_be_bytes());
        put(40, &l1_offset.to_be_bytes());
        put(48, &(self.table.start << self.cluster_bits).to_be_bytes());
        put(56, &count(self.table.end - self.table.start).to_be_bytes());
        if is_3 {
            put(72, &incompatible.to_be_bytes());
            put(80, &compatible.to_be_bytes());
            put(88, &autoclear.to_be_bytes());
            put(96, &self.refcount_order.to_be_bytes());
            put(100, &112_u32.to_be_bytes());
            put(104, &[u8::from(is_zstd)]);
        }
        bytes
    }

    async fn write(
        &self,
        storage: &AsyncChild,
        file_bytes: u64,
        header: &[u8],
    ) -> Result<(), FailKind> {
        storage.write(0, HostMemory::zeroed(SECTOR)).await?;
        storage.sync().await?;
        self.make_room(storage, file_bytes).await?;
        self.write_refcounts(storage).await?;
        self.write_tables(storage).await?;
        header_writer::write(storage, header).await
    }

    /// Makes the file long enough, and has it read as zeroes behind the header.
    async fn make_room(&self, storage: &AsyncChild, file_bytes: u64) -> Result<(), FailKind> {
        let end = self.data.end << self.cluster_bits;
        if end > file_bytes {
            let block = storage.alignment().min(end - file_bytes);
            let memory = HostMemory::zeroed(usize::try_from(block).expect("a block is small"));
            storage.write(end - block, memory).await?;
        }
        // What counts as the size may lack a part of a block.
        let written = file_bytes + storage.alignment().max(BLOCK_MAX);
        let mut at = self.cluster_bytes();
        while at < end.min(written) {
            let next = end.min(written).min(at + ZEROED_AT_ONCE);
            storage.zero(at..next).await?;
            at = next;
        }
        Ok(())
    }

    async fn write_refcounts(&self, storage: &AsyncChild) -> Result<(), FailKind> {
        let bits = self.cluster_bits;
        let blocks = self.blocks.clone().map(|cluster| cluster << bits);
        storage.write(self.table.start << bits, table_bytes(blocks)).await?;
        let per_block = (self.cluster_bytes() * 8) >> self.refcount_order;
        let bytes = usize::try_from(self.cluster_bytes()).expect("at most 2 MiB");
        for (cluster, number) in self.blocks.clone().zip(0_u64..) {
            let mut block = RefcountBlock::zeroed(bytes);
            let used = (self.data.end - number * per_block).min(per_block);
            (0..used).for_each(|index| block.set(self.refcount_order, index, 1));
            storage.write(cluster << bits, HostMemory::of(block.bytes())).await?;
        }
        Ok(())
    }

    /// Writes the L1 table and the L2 tables, if they name anything.
    async fn write_tables(&self, storage: &AsyncChild) -> Result<(), FailKind> {
        if self.l2.is_empty() {
            return Ok(());
        }
        let bits = self.cluster_bits;
        let l1 = self.l2.clone().map(|cluster| cluster << bits | COPIED);
        storage.write(self.l1.start << bits, table_bytes(l1)).await?;
        let entries = self.cluster_bytes() / (self.entry_words * 8);
        for (table, number) in self.l2.clone().zip(0_u64..) {
            let first = number * entries;
            let words = (first..self.named.min(first + entries)).flat_map(|cluster| {
                let place = if self.has_data_file { cluster } else { self.data.start + cluster };
                let bitmap = (self.entry_words == 2).then_some(self.bitmap);
                std::iter::once(place << bits | COPIED).chain(bitmap)
            });
            storage.write(table << bits, table_bytes(words)).await?;
        }
        Ok(())
    }
}
