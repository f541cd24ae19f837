//! The bits of persistent bitmaps, between memory and the file.
//!
//! Where it stands: on a control thread, before the image is written and when nobody writes to it any more. The specification
//! is `docs/interop/qcow2.rst`, "Bitmaps extension", "Bitmap table" and "Bitmap data".
//!
//! Invariants, for a loss of power at any time: the header names the old directory, in which all bitmaps are in use, or the
//! new one with what it names, all durable: one sector says which. What the other one had leaks, and nothing else. A
//! bitmap of which nobody knows the bits keeps its entry, in use.
//! Limits: a table of as many entries as one refcount block counts clusters for; otherwise it is not stored.

use bitmaps::{DirtyBitmap, Granularity, Recording, StoredBitmap};
use block::{DiskSize, FailKind, HostMemory, LaneError};
use tasks::AsyncChild;

use super::backing_name::{BackingNameError, extensions, header_steps, write_step};
use super::{AUTOCLEAR_AT, BITMAPS, Image};
use crate::bitmaps::{self as directory, Bitmap};
use crate::header::{self, FEATURE_NAMES, Header, HeaderError};
use crate::header_writer::Extension;
use crate::refcount::{HostClusters, RefcountTablePlace};
use crate::table_reader::{MetadataError, TableReader, table_bytes, words};

/// The cluster that an entry of a table names.
const ENTRY_OFFSET: u64 = 0x00ff_ffff_ffff_fe00;
/// Without a cluster: all bits are set.
const ENTRY_ONES: u64 = 1;

/// The granularities that the format's users know: 512 bytes to 2 GiB.
const GRANULARITY_BITS: std::ops::RangeInclusive<u8> = 9..=31;

/// Bitmaps could not be stored.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StoreError {
    /// The file could not be read or written; the operator was told why.
    #[error("the image cannot be read or written ({0:?})")]
    Io(FailKind),
    /// What is there is no directory of bitmaps any more.
    #[error(transparent)]
    Metadata(#[from] MetadataError),
    /// The header is not what it was.
    #[error(transparent)]
    Header(#[from] HeaderError),
    /// The header could not be written: nobody knows what it says.
    #[error("the header cannot be written ({0:?})")]
    Unnamed(FailKind),
    /// The header has no room for it.
    #[error("the header has no room for them: {0}")]
    NoRoom(BackingNameError),
    /// The file cannot be used.
    #[error(transparent)]
    Lane(#[from] LaneError),
    /// Something else.
    #[error("{0}")]
    Other(Box<dyn std::error::Error + Send + Sync>),
}

impl StoreError {
    pub(crate) fn other(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Other(error.into())
    }
}

impl From<FailKind> for StoreError {
    fn from(kind: FailKind) -> Self {
        Self::Io(kind)
    }
}

/// Reads all bitmaps of an image, the oldest first. Those that cannot be trusted come without bits.
pub(crate) async fn load(
    tables: &TableReader<'_>,
    size: DiskSize,
) -> Result<Vec<StoredBitmap>, MetadataError> {
    let mut loaded = Vec::new();
    for bitmap in directory::read(tables).await? {
        let recording = if bitmap.is_recording() { Recording::On } else { Recording::Off };
        let is_known = GRANULARITY_BITS.contains(&bitmap.granularity_bits);
        let granularity = Granularity::new(1 << bitmap.granularity_bits.min(62));
        let granularity = granularity.unwrap_or(Granularity::DEFAULT);
        let bits = if is_known && bitmap.is_consistent() {
            load_bits(tables, &bitmap, size, granularity).await?
        } else {
            None
        };
        let bits = bits.map(Into::into);
        loaded.push(StoredBitmap { name: bitmap.name, granularity, recording, bits });
    }
    Ok(loaded)
}

/// How many clusters the bits take.
fn cluster_count(bits: &DirtyBitmap, cluster: u64) -> u64 {
    let granules = bits.size().0.0.div_ceil(bits.granularity().bytes());
    granules.div_ceil(8).div_ceil(cluster)
}

/// Reads the bits of a bitmap; none if they are not of a disk of that size, or too many.
async fn load_bits(
    tables: &TableReader<'_>,
    bitmap: &Bitmap,
    size: DiskSize,
    granularity: Granularity,
) -> Result<Option<DirtyBitmap>, MetadataError> {
    let cluster = tables.cluster_bytes();
    let Ok(bits) = DirtyBitmap::new(size, granularity) else { return Ok(None) };
    if cluster_count(&bits, cluster) != bitmap.table_entries {
        return Ok(None);
    }
    let Some(entries) = entries(tables, bitmap).await? else { return Ok(None) };
    let per_cluster = usize::try_from(cluster / 8).expect("a cluster is in memory");
    for (number, entry) in entries.into_iter().enumerate() {
        let found = match entry & ENTRY_OFFSET {
            0 if entry & ENTRY_ONES == 0 => continue,
            0 => vec![u64::MAX; per_cluster],
            offset => {
                let memory = tables.read("a bitmap", offset, cluster).await?;
                words(&memory).map(u64::swap_bytes).collect()
            }
        };
        bits.merge_words(number * per_cluster, &found);
    }
    Ok(Some(bits))
}

/// The entries of a table; none if one of them is none.
async fn entries(
    tables: &TableReader<'_>,
    bitmap: &Bitmap,
) -> Result<Option<Vec<u64>>, MetadataError> {
    let mut entries = Vec::new();
    let table_bytes = bitmap.table_entries * 8;
    tables
        .for_words("a bitmap table", bitmap.table_offset, table_bytes, |word, _| {
            entries.push(word);
            Ok(())
        })
        .await?;
    let is_one = |entry: &u64| {
        let offset = entry & ENTRY_OFFSET;
        let is_known = entry & !(ENTRY_OFFSET | ENTRY_ONES) == 0;
        is_known
            && offset.is_multiple_of(tables.cluster_bytes())
            && (offset == 0 || entry & ENTRY_ONES == 0)
    };
    Ok(Some(entries).filter(|entries| entries.iter().all(is_one)))
}

/// A directory that is written, with what it names.
#[derive(Debug, Default)]
struct NewDirectory {
    bytes: Vec<u8>,
    count: u32,
    /// Clusters of the directory and of tables.
    metadata: Vec<HostClusters>,
    /// Clusters of bits.
    bits: Vec<HostClusters>,
    /// The names of those whose old tables stay.
    kept: Vec<String>,
}

impl Image {
    /// Writes the bitmaps and has the header name them, durably; what was named before is freed. Nobody changes the disk, but
    /// the image may still be written.
    pub(crate) async fn store_bitmaps(
        &self,
        storage: &AsyncChild,
        file_bytes: u64,
        stored: &[StoredBitmap],
    ) -> Result<(), StoreError> {
        let cluster = storage.read(0..self.geometry.cluster_bytes()).await?.to_vec();
        let header = Header::parse(&cluster)?;
        let tables = TableReader::new(&header, storage, file_bytes.max(self.file_bytes()));
        let old = directory::read(&tables).await?;
        let mut new = NewDirectory::default();
        let written = self.write_bitmaps(storage, stored, &old, &mut new).await;
        let named = match written {
            Ok(offset) => self.name_bitmaps(storage, &new, offset).await,
            Err(error) => Err(error),
        };
        if let Err(error) = named {
            // Whether the header names them is not known if that failed: then they leak.
            if !matches!(error, StoreError::Unnamed(_)) {
                self.give_up_new(&new);
            }
            return Err(error);
        }
        self.free_old(&tables, &old, &new).await
    }

    /// Writes all but the header; where the directory is.
    async fn write_bitmaps(
        &self,
        storage: &AsyncChild,
        stored: &[StoredBitmap],
        old: &[Bitmap],
        new: &mut NewDirectory,
    ) -> Result<u64, StoreError> {
        for StoredBitmap { name, granularity, recording, bits } in stored {
            let entry = match bits {
                Some(bits) => {
                    let table = self.write_bits(storage, bits, new).await?;
                    let granularity = u8::try_from(granularity.bytes().ilog2()).expect("63");
                    directory::entry(name, granularity, *recording == Recording::On, table)
                }
                None => match old.iter().find(|old| old.name == *name) {
                    Some(old) => {
                        new.kept.push(name.clone());
                        old.inconsistent_entry()
                    }
                    None => continue,
                },
            };
            new.bytes.extend(entry);
            new.count += 1;
        }
        if new.count == 0 {
            return Ok(0);
        }
        let place = self.write_table(storage, HostMemory::of(&new.bytes)).await?;
        new.metadata.push(place.clone());
        self.sync(storage).await?;
        Ok(place.start << self.geometry.cluster_bits())
    }

    /// Writes bits and their table; where it is, and how many entries it has.
    async fn write_bits(
        &self,
        storage: &AsyncChild,
        bits: &DirtyBitmap,
        new: &mut NewDirectory,
    ) -> Result<(u64, u32), StoreError> {
        let cluster = self.geometry.cluster_bytes();
        let count = cluster_count(bits, cluster);
        let mut found = vec![0; usize::try_from(cluster / 8).expect("a cluster is in memory")];
        let mut table = Vec::new();
        for number in 0..usize::try_from(count).expect("its bits are in memory") {
            bits.load_words(number * found.len(), &mut found);
            if found.iter().all(|word| *word == 0) {
                table.push(0);
                continue;
            }
            let place = self.take_clusters(storage, 1).await?;
            let offset = place.start << self.geometry.cluster_bits();
            new.bits.push(place);
            let memory = table_bytes(found.iter().map(|word| word.swap_bytes()));
            storage.write(offset, memory).await?;
            table.push(offset);
        }
        let place = self.write_table(storage, table_bytes(table)).await?;
        let offset = place.start << self.geometry.cluster_bits();
        new.metadata.push(place);
        Ok((offset, u32::try_from(count).expect("its bits are in memory")))
    }

    /// Writes something into clusters that follow each other.
    async fn write_table(
        &self,
        storage: &AsyncChild,
        memory: HostMemory,
    ) -> Result<HostClusters, StoreError> {
        let place = match (memory.len() as u64).div_ceil(self.geometry.cluster_bytes()) {
            0 | 1 => self.take_clusters(storage, 1).await?,
            count => {
                let name = async |table: RefcountTablePlace| {
                    self.name_refcount_table(storage, table).await
                };
                self.space()?.take_together(storage, count, name).await?
            }
        };
        // What is behind it in its last cluster reads as zeroes.
        storage.write(place.start << self.geometry.cluster_bits(), memory).await?;
        Ok(place)
    }

    /// Has the header name the directory, or none, durably.
    async fn name_bitmaps(
        &self,
        storage: &AsyncChild,
        new: &NewDirectory,
        offset: u64,
    ) -> Result<(), StoreError> {
        let _turn = self.header_writes.take().await;
        let mut cluster = storage.read(0..self.geometry.cluster_bytes()).await?.to_vec();
        let header = Header::parse(&cluster)?;
        for step in bitmap_steps(&header, &cluster, new, offset).map_err(StoreError::NoRoom)? {
            // A part of it may be there after an error.
            write_step(storage, &cluster, &step).await.map_err(StoreError::Unnamed)?;
            cluster = step;
        }
        new.metadata.iter().for_each(|clusters| self.metadata.add(clusters.clone()));
        Ok(())
    }

    /// What was taken is named nowhere.
    fn give_up_new(&self, new: &NewDirectory) {
        if let Ok(space) = self.space() {
            new.metadata.iter().chain(&new.bits).for_each(|place| space.free(place.clone()));
        }
    }

    /// What the old directory names is named nowhere any more, but what stays.
    async fn free_old(
        &self,
        tables: &TableReader<'_>,
        old: &[Bitmap],
        new: &NewDirectory,
    ) -> Result<(), StoreError> {
        let space = self.space()?;
        let clusters = |offset: u64, bytes: u64| {
            let first = offset >> self.geometry.cluster_bits();
            first..first + bytes.div_ceil(self.geometry.cluster_bytes())
        };
        let free = |clusters: HostClusters| {
            self.metadata.remove(clusters.clone());
            space.free(clusters);
        };
        for bitmap in old.iter().filter(|bitmap| !new.kept.contains(&bitmap.name)) {
            let entries = entries(tables, bitmap).await?.unwrap_or_default();
            let named = entries.into_iter().map(|entry| entry & ENTRY_OFFSET);
            named.filter(|offset| *offset != 0).for_each(|offset| space.free(clusters(offset, 1)));
            free(clusters(bitmap.table_offset, bitmap.table_entries * 8));
        }
        if let Some(extension) = tables.header.bitmaps {
            free(clusters(extension.directory_offset, extension.directory_bytes));
        }
        Ok(())
    }
}

/// The first cluster of an image as it becomes with another directory of bitmaps, or none.
fn bitmap_steps(
    header: &Header,
    cluster: &[u8],
    new: &NewDirectory,
    offset: u64,
) -> Result<Vec<Vec<u8>>, BackingNameError> {
    let mut fields = cluster[..header.header_bytes as usize].to_vec();
    let (old, old_end) = extensions(cluster, fields.len());
    let others = old.into_iter().filter(|extension| extension.0 != header::BITMAPS);
    let is_feature_names = |extension: &Extension| extension.0 == FEATURE_NAMES;
    let (names, others): (Vec<_>, Vec<_>) = others.partition(is_feature_names);
    let bit = u8::try_from(BITMAPS).expect("the lowest bit");
    let autoclear = &mut fields[AUTOCLEAR_AT + 7];
    *autoclear &= !bit;
    let mut short = Vec::new();
    if new.count > 0 {
        *autoclear |= bit;
        let mut data = new.count.to_be_bytes().to_vec();
        data.extend(0_u32.to_be_bytes());
        data.extend((new.bytes.len() as u64).to_be_bytes());
        data.extend(offset.to_be_bytes());
        short.push((header::BITMAPS, data));
    }
    short.extend(others);
    let name = header.backing.clone().unwrap_or_default();
    header_steps(cluster, old_end, &fields, (&short, &names), &name)
}
