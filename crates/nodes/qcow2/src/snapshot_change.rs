//! An internal snapshot comes or goes: all tables that change are made anew beside those that are there, and one sector of the
//! header puts them in their place.
//!
//! Where it stands: on a control thread that has the image for itself; no lane is open on it, and nothing of it is only in
//! memory. The specification is `docs/interop/qcow2.rst`, "Snapshots".
//!
//! What could go wrong: refcounts, flags "copied", the L1 table of the snapshot, the table of snapshots and the header say one
//! thing together, and the power goes between any two writes; the disk is full, or a refcount too narrow, in the middle of it.
//! So nothing that the image has is written over: references are counted as they will be, and everything that differs is
//! written to clusters that nobody uses: L2 tables whose flags change, the L1 table, the snapshot's, the table of snapshots, all
//! refcount blocks and their table. Until the sector is written whatever fails has changed nothing, and nothing leaks; after
//! that the old tables are free. What is counted and named nowhere leaks as before: it may be somebody's whom nobody here knows.
//! Invariants: a table of L2 entries that changes its place is named by the tables that are written here, and by no others.
//! Limits: those of a repair: [`TABLE_BYTES_MAX`](crate::table_reader::TABLE_BYTES_MAX) of tables and [`BYTES_MAX`] of memory
//! for each of four kinds of counts; what is larger is refused.

use std::ops::Range;

use block::{FailKind, HostMemory, SnapshotInfo};
use tasks::AsyncChild;

use crate::cluster_allocator::FreedClusterDiscards;
use crate::geometry::{COPIED, OFFSET};
use crate::header::Header;
use crate::refcount::{HostClusters, RefcountBlock, RefcountTablePlace};
use crate::repair::{ImageWalk, RefcountLayout, ReferenceCounts};
use crate::snapshots::{self, Snapshot, SnapshotEntry};
use crate::table_reader::{MetadataError, MetadataTables, TableReader, wrong};

/// What is read and written of the header: its first sector.
const SECTOR: u64 = 512;

/// Where a header has the place of the L1 table, the number of snapshots and the place of their table.
const L1_OFFSET_AT: usize = 40;
const SNAPSHOTS_AT: usize = 60;

/// What becomes of the snapshots of an image.
#[derive(Debug)]
pub(crate) enum SnapshotChange {
    /// One more, behind all others.
    Create(SnapshotInfo),
    /// Without the one of that number.
    Delete(usize),
}

/// Why snapshots are as they were, or may not be.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SnapshotChangeError {
    /// Nothing was changed.
    #[error(transparent)]
    Unchanged(MetadataError),
    /// The table of snapshots would be larger than anybody reads.
    #[error("the table of snapshots is too large")]
    TooLarge,
    /// The header has the old tables or the new ones, and nobody knows which.
    #[error("the header cannot be written ({0:?})")]
    Unknown(FailKind),
}

impl From<MetadataError> for SnapshotChangeError {
    fn from(error: MetadataError) -> Self {
        // The child may end there.
        let is_end = error == MetadataError::Io(FailKind::OutOfRange);
        Self::Unchanged(if is_end { MetadataError::Io(FailKind::NoSpace) } else { error })
    }
}

impl From<FailKind> for SnapshotChangeError {
    fn from(kind: FailKind) -> Self {
        MetadataError::Io(kind).into()
    }
}

/// What the header names with the change.
struct NewMetadata {
    l1_offset: u64,
    snapshots: u32,
    snapshots_offset: u64,
    refcount_table: RefcountTablePlace,
}

/// Changes the snapshots of an image, durably, and gives the space back of what nobody uses any more. The entries are those
/// of its table.
pub(crate) async fn change(
    tables: &TableReader<'_>,
    entries: &[SnapshotEntry],
    change: &SnapshotChange,
    discards: FreedClusterDiscards,
) -> Result<(), SnapshotChangeError> {
    let mut builder = MetadataBuilder { walk: ImageWalk::new(tables), entries, change };
    builder.count().await?;
    let new = builder.write().await?;
    name(tables.storage, &new).await?;
    if discards == FreedClusterDiscards::Passed {
        let left = builder.walk.leaving.used().map(|(cluster, _)| cluster);
        for bytes in runs(left, tables.header.cluster_bits, tables.storage_bytes()) {
            if let Err(kind) = tables.storage.discard(bytes).await {
                tracing::warn!("space that no snapshot uses any more is not given back ({kind:?})");
                break;
            }
        }
    }
    Ok(())
}

/// Has the header name the new tables, durably.
async fn name(storage: &AsyncChild, new: &NewMetadata) -> Result<(), SnapshotChangeError> {
    let before = storage.read(0..SECTOR).await?;
    let mut after = before.to_vec();
    after[L1_OFFSET_AT..L1_OFFSET_AT + 8].copy_from_slice(&new.l1_offset.to_be_bytes());
    let at = SNAPSHOTS_AT;
    after[at..at + 4].copy_from_slice(&new.snapshots.to_be_bytes());
    after[at + 4..at + 12].copy_from_slice(&new.snapshots_offset.to_be_bytes());
    new.refcount_table.write_to(&mut after);
    let Err(kind) = write_header(storage, &after).await else { return Ok(()) };
    // The new one may be there all the same, now or later, until the old one is there again.
    match write_header(storage, &before).await {
        Ok(()) => Err(kind.into()),
        Err(_) => Err(SnapshotChangeError::Unknown(kind)),
    }
}

async fn write_header(storage: &AsyncChild, sector: &[u8]) -> Result<(), FailKind> {
    storage.write(0, HostMemory::of(sector)).await?;
    storage.sync().await
}

/// The metadata of an image as it becomes.
struct MetadataBuilder<'a> {
    walk: ImageWalk<'a>,
    entries: &'a [SnapshotEntry],
    change: &'a SnapshotChange,
}

impl<'a> MetadataBuilder<'a> {
    fn header(&self) -> &'a Header {
        self.walk.tables.header
    }

    /// How many L1 tables are written that name what the active one names.
    fn tables_written(&self) -> u16 {
        match self.change {
            SnapshotChange::Create(_) => 2,
            SnapshotChange::Delete(_) => 1,
        }
    }

    /// The snapshots that stay.
    fn kept(&self) -> impl Iterator<Item = &SnapshotEntry> {
        let deleted = self.deleted();
        let all = self.entries.iter().enumerate();
        all.filter(move |(number, _)| Some(*number) != deleted).map(|(_, entry)| entry)
    }

    fn deleted(&self) -> Option<usize> {
        match self.change {
            SnapshotChange::Create(_) => None,
            SnapshotChange::Delete(number) => Some(*number),
        }
    }

    /// Counts the references that there will be, but those to what is written anew, and finds what is not used then.
    async fn count(&mut self) -> Result<(), MetadataError> {
        let header = self.header();
        let (l1_offset, l1_entries) = (header.l1_offset, u64::from(header.l1_entries));
        let MetadataTables { refcount_table, .. } = self.walk.count_metadata().await?;
        self.walk.count_l1(l1_offset, l1_entries, self.tables_written()).await?;
        let kept: Vec<Snapshot> = self.kept().map(|entry| entry.place.clone()).collect();
        for Snapshot { l1_offset, l1_entries } in kept {
            self.walk.count_l1(l1_offset, l1_entries, 1).await?;
        }
        self.walk.count_l2().await?;
        self.walk.check_metadata()?;
        for clusters in self.replaced(&refcount_table) {
            for cluster in clusters {
                self.leave(cluster)?;
            }
        }
        self.walk.check_width()?;
        let released = self.released().await?;
        self.find_unused(&refcount_table, &released).await
    }

    /// What the snapshot has that is deleted.
    async fn released(&self) -> Result<ReferenceCounts, MetadataError> {
        let walked = self.walk.tables;
        let tables = TableReader::new(walked.header, walked.storage, walked.storage_bytes());
        let mut gone = ImageWalk::new(&tables);
        if let Some(number) = self.deleted() {
            let Snapshot { l1_offset, l1_entries } = self.entries[number].place;
            gone.count_l1(l1_offset, l1_entries, 1).await?;
            gone.count_l2().await?;
        }
        Ok(gone.counts)
    }

    /// What of the metadata has another place with the change, or none.
    fn replaced(&self, refcount_table: &[u64]) -> Vec<HostClusters> {
        let (header, bits) = (self.header(), self.header().cluster_bits);
        let table_bytes = self.entries.iter().map(|entry| entry.bytes.len() as u64).sum();
        let mut replaced = vec![
            (header.l1_offset, u64::from(header.l1_entries) * 8),
            (header.snapshots_offset, table_bytes),
            (header.refcount_table_offset, u64::from(header.refcount_table_clusters) << bits),
        ];
        let blocks = refcount_table.iter().filter(|block| **block != 0);
        replaced.extend(blocks.map(|block| (*block, 1 << bits)));
        let deleted = self.deleted().map(|number| &self.entries[number].place);
        replaced.extend(deleted.map(|place| (place.l1_offset, place.l1_entries * 8)));
        let clusters = |(offset, bytes): (u64, u64)| {
            let first = offset >> bits;
            first..first + bytes.div_ceil(1 << bits)
        };
        replaced.into_iter().map(clusters).collect()
    }

    /// A cluster is used until the header is written, and not afterwards.
    fn leave(&mut self, cluster: u64) -> Result<(), MetadataError> {
        self.walk.counts.forget(cluster);
        self.walk.leaving.add(cluster, 1)
    }

    /// Finds what is used now and will not be: what only the deleted snapshot has. What leaks keeps its refcounts.
    async fn find_unused(
        &mut self,
        refcount_table: &[u64],
        released: &ReferenceCounts,
    ) -> Result<(), MetadataError> {
        let (per_block, order) = (self.walk.per_block(), self.header().refcount_order);
        let tables = self.walk.tables;
        let (mut counted, mut gone) = (Vec::new(), Vec::new());
        for (offset, number) in refcount_table.iter().zip(0_u64..).filter(|(it, _)| **it != 0) {
            let memory = tables.read("a refcount block", *offset, tables.cluster_bytes()).await?;
            if memory.iter().all(|byte| *byte == 0) {
                continue;
            }
            let block = RefcountBlock::of(memory.to_vec());
            let first = number * per_block;
            self.walk.counts.copy_to(first..first + per_block, &mut counted);
            released.copy_to(first..first + per_block, &mut gone);
            for ((count, gone), index) in counted.iter().zip(&gone).zip(0_u64..) {
                let (cluster, old) = (first + index, block.get(order, index));
                if *count > 0 || old == 0 || self.walk.leaving.get(cluster) > 0 {
                    continue;
                }
                if *gone > 0 {
                    self.walk.leaving.add(cluster, 1)?;
                } else {
                    self.walk.counts.add(cluster, u16::try_from(old).unwrap_or(u16::MAX))?;
                }
            }
        }
        Ok(())
    }

    /// Writes everything but the header, durably.
    async fn write(&mut self) -> Result<NewMetadata, SnapshotChangeError> {
        let l1 = self.write_l2().await?;
        let l1_bytes: Vec<u8> = l1.iter().copied().flat_map(u64::to_be_bytes).collect();
        let l1_offset = self.write_clusters(&l1_bytes).await?;
        let mut table: Vec<u8> = self.kept().flat_map(|entry| entry.bytes.clone()).collect();
        let mut snapshots = self.kept().count();
        if let SnapshotChange::Create(info) = self.change {
            let place = Snapshot {
                l1_offset: self.write_clusters(&l1_bytes).await?,
                l1_entries: l1.len() as u64,
            };
            table.extend(snapshots::new_entry(&place, info, self.header().size));
            snapshots += 1;
        }
        if table.len() > snapshots::TABLE_BYTES_MAX {
            return Err(SnapshotChangeError::TooLarge);
        }
        let snapshots_offset = self.write_clusters(&table).await?;
        let refcount_table = self.write_refcounts().await?;
        self.walk.tables.storage.sync().await?;
        let snapshots = u32::try_from(snapshots).expect("an image has at most 65536");
        Ok(NewMetadata { l1_offset, snapshots, snapshots_offset, refcount_table })
    }

    /// Has L2 tables say what is the disk's alone with the change: those of which that is news get another place. The words
    /// of an L1 table that names them all.
    async fn write_l2(&mut self) -> Result<Vec<u64>, MetadataError> {
        let (header, file_bytes) = (self.header(), self.walk.tables.storage_bytes());
        // They are read a second time.
        let tables = TableReader::new(header, self.walk.tables.storage, file_bytes);
        let mut l1: Vec<u64> = Vec::new();
        let keep = |word, _| {
            l1.push(word & OFFSET);
            Ok(())
        };
        let (offset, bytes) = (header.l1_offset, u64::from(header.l1_entries) * 8);
        tables.for_words("the L1 table", offset, bytes, keep).await?;
        let bits = header.cluster_bits;
        for word in l1.iter_mut().filter(|word| **word != 0) {
            let users = self.walk.l2.get(*word >> bits);
            let memory = tables.read("an L2 table", *word, tables.cluster_bytes()).await?;
            if let Some(table) = self.walk.with_flags(&memory) {
                *word = self.place_l2(*word, users, table).await?;
            }
            if users == 1 {
                *word |= COPIED;
            }
        }
        Ok(l1)
    }

    /// Writes an L2 table that was at that place; where it is now. What snapshots name that stay cannot move, but there the
    /// flags can only go, and are as right before that.
    async fn place_l2(
        &mut self,
        old: u64,
        users: u16,
        table: HostMemory,
    ) -> Result<u64, MetadataError> {
        let bits = self.header().cluster_bits;
        let new = if users == self.tables_written() {
            let cluster = self.walk.allocate(1)?;
            self.walk.counts.add(cluster, users - 1)?;
            self.leave(old >> bits)?;
            cluster << bits
        } else {
            old
        };
        self.walk.tables.storage.write(new, table).await?;
        Ok(new)
    }

    /// Writes bytes to clusters of their own, with zeroes behind them; where they are, and 0 if there are none.
    async fn write_clusters(&mut self, bytes: &[u8]) -> Result<u64, MetadataError> {
        let bits = self.header().cluster_bits;
        let count = (bytes.len() as u64).div_ceil(1 << bits);
        if count == 0 {
            return Ok(0);
        }
        let offset = self.walk.allocate(count)? << bits;
        let whole = usize::try_from(count << bits).expect("it is in memory");
        let mut memory = HostMemory::zeroed(whole);
        memory[..bytes.len()].copy_from_slice(bytes);
        self.walk.tables.storage.write(offset, memory).await?;
        Ok(offset)
    }

    /// Writes all refcounts.
    async fn write_refcounts(&mut self) -> Result<RefcountTablePlace, MetadataError> {
        let layout: RefcountLayout = self.walk.make_room(0)?;
        self.walk.write_blocks(&layout).await?;
        self.walk.write_table(&layout).await?;
        let bits = self.header().cluster_bits;
        let (first, count) = layout.moved.ok_or_else(|| {
            wrong("the refcount table", self.header().refcount_table_offset, "has no other place")
        })?;
        let clusters = u32::try_from(count).expect("at most 8 MiB");
        Ok(RefcountTablePlace { offset: first << bits, clusters })
    }
}

/// The bytes of these clusters, in order, as far as the file has them, and together what follows each other.
fn runs(
    clusters: impl Iterator<Item = u64>,
    cluster_bits: u32,
    file_bytes: u64,
) -> Vec<Range<u64>> {
    let mut runs: Vec<Range<u64>> = Vec::new();
    // Of a stranger's image refcounts may count what no file can have.
    let end = file_bytes.div_ceil(1 << cluster_bits);
    for cluster in clusters.take_while(|cluster| *cluster < end) {
        let bytes = cluster << cluster_bits..file_bytes.min((cluster + 1) << cluster_bits);
        match runs.last_mut() {
            Some(last) if last.end == bytes.start => last.end = bytes.end,
            Some(_) | None => runs.push(bytes),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clusters_beside_each_other_are_discarded_together_and_none_behind_the_file() {
        let clusters = [1, 2, 4, 5, 6, 1 << 48, 1 << 55];
        let found = runs(clusters.into_iter(), 16, (5 << 16) + 512);
        assert_eq!(found, [1 << 16..3 << 16, 4 << 16..(5 << 16) + 512]);
    }
}
