//! Reading tables of an image that nobody has checked: with a bound, and never outside the file.
//!
//! Where it stands: below whoever walks through an image before it is written (`repair`, `bitmaps`,
//! `snapshots`).
//!
//! Limits: [`TABLE_BYTES_MAX`] for one walk.

use std::cell::Cell;
use std::ops::Range;

use block::{FailKind, HostMemory};
use tasks::AsyncChild;

use crate::bitmaps::{self, Bitmap};
use crate::header::{BitmapsExtension, Header};
use crate::snapshots::{self, Snapshot};

/// How much of an image's tables is read in one walk: the L2 tables of 16 TiB with clusters of 64 KiB.
pub(crate) const TABLE_BYTES_MAX: u64 = 2 << 30;

/// Why the metadata of an image cannot be used: inconsistent, too large, or unreadable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MetadataError {
    /// A table or an entry of one is not what the format allows.
    #[error("{what} at byte {offset:#x} of the image {problem}")]
    Wrong {
        /// What.
        what: &'static str,
        /// Where it is, or where it points to.
        offset: u64,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// A cluster has more references than its refcount can say.
    #[error("the cluster at byte {offset:#x} of the image has more than {most} references")]
    References {
        /// The cluster.
        offset: u64,
        /// What can be said.
        most: u64,
    },
    /// It would take too much memory or time.
    #[error("{what} of the image take more than {bound} bytes")]
    TooMuch {
        /// What.
        what: &'static str,
        /// How much is allowed.
        bound: u64,
    },
    /// The file cannot be read or written; the operator was told why.
    #[error("the image cannot be read or written ({0:?})")]
    Io(FailKind),
}

impl From<FailKind> for MetadataError {
    fn from(kind: FailKind) -> Self {
        Self::Io(kind)
    }
}

pub(crate) fn wrong(what: &'static str, offset: u64, problem: &'static str) -> MetadataError {
    MetadataError::Wrong { what, offset, problem }
}

/// The largest block of direct I/O that files are opened with.
pub(crate) const BLOCK_MAX: u64 = 4096;

/// How long a file of that size may be: with direct I/O the size lacks what is left of a block at the end.
/// Behind the end are zeroes.
pub(crate) fn may_have(file_bytes: u64) -> u64 {
    file_bytes.saturating_add(BLOCK_MAX)
}

/// How much of a table is read at once.
pub(crate) const STEP: u64 = 1 << 20;

/// What of the metadata of an image names other metadata, or data.
#[derive(Debug)]
pub(crate) struct MetadataTables {
    /// Where the refcount blocks are; 0 where there is none.
    pub(crate) refcount_table: Vec<u64>,
    pub(crate) snapshots: Vec<Snapshot>,
    pub(crate) bitmaps: Vec<Bitmap>,
}

/// Reads the tables of an image that nobody has checked, with a bound.
#[derive(Debug)]
pub(crate) struct TableReader<'a> {
    pub(crate) header: &'a Header,
    pub(crate) storage: &'a AsyncChild,
    /// See [`may_have`].
    pub(crate) file_bytes: u64,
    /// How much may still be read.
    left: Cell<u64>,
}

impl<'a> TableReader<'a> {
    pub(crate) fn new(header: &'a Header, storage: &'a AsyncChild, file_bytes: u64) -> Self {
        let file_bytes = may_have(file_bytes);
        Self { header, storage, file_bytes, left: Cell::new(TABLE_BYTES_MAX) }
    }

    /// How long the file is.
    pub(crate) fn storage_bytes(&self) -> u64 {
        self.file_bytes - BLOCK_MAX
    }

    pub(crate) fn cluster_bytes(&self) -> u64 {
        1 << self.header.cluster_bits
    }

    /// Proves that something that begins a cluster is inside the file; its last cluster may be cut off.
    pub(crate) fn check_place(
        &self,
        what: &'static str,
        offset: u64,
        bytes: u64,
    ) -> Result<(), MetadataError> {
        if !offset.is_multiple_of(self.cluster_bytes()) {
            return Err(wrong(what, offset, "does not begin a cluster"));
        }
        let file_end = self.file_bytes.next_multiple_of(self.cluster_bytes());
        let is_inside = offset.checked_add(bytes).is_some_and(|end| end <= file_end);
        if is_inside { Ok(()) } else { Err(wrong(what, offset, "is outside the file")) }
    }

    /// Reads something that may have any place; what is behind the end of the file is zeroes.
    pub(crate) async fn read(
        &self,
        what: &'static str,
        offset: u64,
        bytes: u64,
    ) -> Result<HostMemory, MetadataError> {
        let left = self.left.get().checked_sub(bytes);
        self.left.set(
            left.ok_or(MetadataError::TooMuch { what: "the tables", bound: TABLE_BYTES_MAX })?,
        );
        let file_end = self.file_bytes.next_multiple_of(self.cluster_bytes());
        let end = offset.checked_add(bytes).filter(|end| *end <= file_end);
        let end = end.ok_or_else(|| wrong(what, offset, "is outside the file"))?;
        let there = end.min(self.file_bytes).max(offset);
        let memory = self.storage.read(offset..there).await?;
        Ok(with_zeroes(memory, usize::try_from(bytes).expect("one read is small")))
    }

    /// Calls this for each word of a table, with where the step begins in which it was read.
    pub(crate) async fn for_words(
        &self,
        what: &'static str,
        offset: u64,
        bytes: u64,
        mut each: impl FnMut(u64, u64) -> Result<(), MetadataError>,
    ) -> Result<(), MetadataError> {
        let (mut at, end) = (offset, offset + bytes);
        while at < end {
            let count = STEP.min(end - at);
            let memory = self.read(what, at, count).await?;
            words(&memory).try_for_each(|word| each(word, at))?;
            at += count;
        }
        Ok(())
    }

    /// Calls this for everything that the image has beside data and L2 tables: what it is, and its clusters.
    pub(crate) async fn metadata(
        &self,
        mut each: impl FnMut(&'static str, Range<u64>) -> Result<(), MetadataError>,
    ) -> Result<MetadataTables, MetadataError> {
        let (header, cluster) = (self.header, self.cluster_bytes());
        let mut note = |what, offset, bytes: u64| {
            if bytes == 0 {
                return Ok(());
            }
            self.check_place(what, offset, bytes)?;
            let first = offset / cluster;
            each(what, first..first + bytes.div_ceil(cluster))
        };
        note("the header", 0, header.header_bytes.into())?;
        note("the L1 table", header.l1_offset, u64::from(header.l1_entries) * 8)?;
        let snapshots = snapshots::read(self).await?;
        note("the snapshot table", header.snapshots_offset, snapshots.table_bytes)?;
        let snapshots = snapshots.snapshots;
        for snapshot in &snapshots {
            note("the L1 table of a snapshot", snapshot.l1_offset, snapshot.l1_entries * 8)?;
        }
        let (what, offset) = ("the refcount table", header.refcount_table_offset);
        let bytes = u64::from(header.refcount_table_clusters) << header.cluster_bits;
        note(what, offset, bytes)?;
        let refcount_table: Vec<u64> = words(&self.read(what, offset, bytes).await?).collect();
        for block in refcount_table.iter().filter(|block| **block != 0) {
            note("a refcount block", *block, cluster)?;
        }
        let bitmaps = bitmaps::read(self).await?;
        if let Some(BitmapsExtension { directory_offset, directory_bytes, .. }) = header.bitmaps {
            note("the bitmap directory", directory_offset, directory_bytes)?;
        }
        for bitmap in &bitmaps {
            note("a bitmap table", bitmap.table_offset, bitmap.table_entries * 8)?;
        }
        Ok(MetadataTables { refcount_table, snapshots, bitmaps })
    }
}

/// So many bytes: these, and zeroes behind them.
pub(crate) fn with_zeroes(memory: HostMemory, count: usize) -> HostMemory {
    if memory.len() >= count {
        return memory;
    }
    let mut longer = HostMemory::zeroed(count);
    longer[..memory.len()].copy_from_slice(&memory);
    longer
}

/// The bytes of a table of these words.
pub(crate) fn table_bytes(words: impl IntoIterator<Item = u64>) -> HostMemory {
    HostMemory::of(&words.into_iter().flat_map(u64::to_be_bytes).collect::<Vec<u8>>())
}

/// Writes one word of a table, which lies there, with those around it that are in the same block of the storage: `old` says
/// what they are, and where the table ends. The caller has the table for itself.
pub(crate) async fn write_table_word(
    storage: &AsyncChild,
    table_offset: u64,
    old: impl Fn(usize) -> Option<u64>,
    place: usize,
    word: u64,
) -> Result<(), FailKind> {
    let per_block = usize::try_from(storage.alignment() / 8).expect("a block fits into memory");
    let first = place - place % per_block;
    let new = |at| if at == place { Some(word) } else { old(at) };
    let bytes = table_bytes((first..first + per_block).map_while(new));
    storage.write(table_offset + first as u64 * 8, bytes).await.map(drop)
}

/// The big-endian words of a table.
pub(crate) fn words(bytes: &[u8]) -> impl Iterator<Item = u64> {
    bytes.chunks_exact(8).map(|word| u64::from_be_bytes(word.try_into().expect("8 bytes")))
}

/// A big-endian number inside an entry, which was found to be long enough.
pub(crate) fn number<const BYTES: usize>(entry: &[u8], at: usize) -> u64 {
    entry[at..at + BYTES].iter().fold(0, |value, byte| value << 8 | u64::from(*byte))
}
