//! Refcounts of an image whose last writer did not get to write them (the dirty bit) are made anew.
//!
//! Where it stands: on a control thread, after the image was locked and before it is written; nothing
//! else uses it. The specification is `docs/interop/qcow2.rst`, "Host cluster management" and
//! `incompatible_features`, bit 0.
//!
//! Invariants: everything that refers to clusters is walked through before the first write. What no
//! crash leaves behind (a table outside the file, one cluster with two meanings) is refused and nothing
//! is changed. The dirty bit goes last, when all else is durable, and in one sector with the place of
//! the refcount table: until then another repair finds what this one has found.
//! Limits: [`REFCOUNT_TABLE_BYTES_MAX`] of the table are read, those of each kind by a pass over the file and not by a
//! pass for each snapshot; counts take [`BYTES_MAX`] of memory, twice.
//! Whoever changes internal snapshots counts in the same way (`snapshot_change`).
//! Not here: data that is lost, and refcounts of images that claim to be clean: `qemu-img check`.

mod counts;
mod write;

use block::FailKind;
use tasks::AsyncChild;

use crate::compressed;
use crate::geometry::{COPIED, Geometry, L2Entry, OFFSET, RawL2Entry, StandardCluster};
use crate::header::{Header, OFFSET_END, REFCOUNT_TABLE_BYTES_MAX};
use crate::overlap::PROBLEM;
use crate::refcount::HostClusters;
use crate::snapshots::Snapshot;
use crate::table_reader::{MetadataError, MetadataTables, TableReader, number, wrong};

pub(crate) use counts::{BYTES_MAX, ReferenceCounts};
pub(crate) use write::RefcountLayout;

/// Bits of an L1 entry that are reserved.
const L1_RESERVED: u64 = !(COPIED | OFFSET);

/// Bits of an entry of a bitmap table that are reserved, and the one that says "all ones".
const BITMAP_RESERVED: u64 = 0xff00_0000_0000_01fe;

/// What a repair has written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct RepairSummary {
    /// Refcount blocks that were wrong or missing.
    pub(crate) blocks: u64,
    /// L1 and L2 tables with wrong flags.
    pub(crate) tables: u64,
}

/// Makes the refcounts anew, and the flags that depend on them, and clears the dirty bit. The header has
/// to be read again.
pub(crate) async fn repair(
    header: &Header,
    storage: &AsyncChild,
    file_bytes: u64,
) -> Result<RepairSummary, MetadataError> {
    let tables = TableReader::new(header, storage, file_bytes);
    let mut walk = ImageWalk::new(&tables);
    walk.count().await?;
    walk.check_metadata()?;
    let target = walk.make_room(header.refcount_table_clusters.into())?;
    walk.write(&target).await
}

/// A walk through all tables of an image, which counts references to clusters.
#[derive(Debug)]
pub(crate) struct ImageWalk<'a> {
    pub(crate) tables: &'a TableReader<'a>,
    pub(crate) geometry: Geometry,
    pub(crate) counts: ReferenceCounts,
    /// Clusters that are not counted, and not free yet either.
    pub(crate) leaving: ReferenceCounts,
    /// Where the last search for free clusters ended: none begins at the start again.
    searched: u64,
    /// How many L1 entries name each L2 table.
    pub(crate) l2: ReferenceCounts,
    /// What has a cluster for itself: what it is, its first cluster and the one behind its last.
    metadata: Vec<(&'static str, HostClusters)>,
    /// The blocks that stay where they are.
    pub(crate) refcount_table: Vec<u64>,
}

impl<'a> ImageWalk<'a> {
    pub(crate) fn new(tables: &'a TableReader<'a>) -> Self {
        let bits = tables.header.cluster_bits;
        Self {
            tables,
            geometry: Geometry::new(tables.header),
            counts: ReferenceCounts::new(bits, BYTES_MAX),
            leaving: ReferenceCounts::new(bits, BYTES_MAX),
            searched: 0,
            l2: ReferenceCounts::new(bits, BYTES_MAX),
            metadata: Vec::new(),
            refcount_table: Vec::new(),
        }
    }

    /// Counts all references there are.
    async fn count(&mut self) -> Result<(), MetadataError> {
        let header = self.tables.header;
        let MetadataTables { refcount_table, snapshots, .. } = self.count_metadata().await?;
        self.refcount_table = refcount_table;
        self.count_l1(header.l1_offset, header.l1_entries.into(), 1).await?;
        for Snapshot { l1_offset, l1_entries } in snapshots {
            self.count_l1(l1_offset, l1_entries, 1).await?;
        }
        self.count_l2().await
    }

    /// Counts all but L2 tables and what they name.
    pub(crate) async fn count_metadata(&mut self) -> Result<MetadataTables, MetadataError> {
        let tables = self.tables;
        let note = |what, clusters: HostClusters| {
            clusters.clone().try_for_each(|cluster| self.counts.add(cluster, 1))?;
            self.metadata.push((what, clusters));
            Ok(())
        };
        let found = tables.metadata(note).await?;
        for bitmap in &found.bitmaps {
            let (offset, bytes) = (bitmap.table_offset, bitmap.table_entries * 8);
            let count = |word, at| self.count_bitmap_entry(word, at);
            tables.for_words("a bitmap table", offset, bytes, count).await?;
        }
        Ok(found)
    }

    /// Counts what an L1 table names, as if there were so many of it.
    pub(crate) async fn count_l1(
        &mut self,
        offset: u64,
        entries: u64,
        times: u16,
    ) -> Result<(), MetadataError> {
        let (tables, l2) = (self.tables, &mut self.l2);
        let count = |word, at| {
            if word & L1_RESERVED != 0 {
                return Err(wrong("an entry of the L1 table", at, "has reserved bits"));
            }
            match word & OFFSET {
                0 => Ok(()),
                table => {
                    tables.check_place("an L2 table", table, tables.cluster_bytes())?;
                    l2.add(table >> tables.header.cluster_bits, times)
                }
            }
        };
        tables.for_words("an L1 table", offset, entries * 8, count).await
    }

    fn count_bitmap_entry(&mut self, word: u64, at: u64) -> Result<(), MetadataError> {
        let offset = word & OFFSET;
        if word & BITMAP_RESERVED != 0 || (offset != 0 && word & 1 != 0) {
            return Err(wrong("an entry of the bitmap table", at, "has reserved bits"));
        }
        if offset == 0 {
            return Ok(());
        }
        self.tables.check_place("a cluster of a bitmap", offset, self.tables.cluster_bytes())?;
        self.counts.add(offset >> self.tables.header.cluster_bits, 1)
    }

    /// Counts the L2 tables and what they name: each is read once, however many snapshots have it.
    pub(crate) async fn count_l2(&mut self) -> Result<(), MetadataError> {
        let bits = self.tables.header.cluster_bits;
        // Of a hostile image most are holes.
        let empty = vec![0; usize::try_from(1_u64 << bits).expect("at most 2 MiB")];
        let l2 = std::mem::replace(&mut self.l2, ReferenceCounts::new(bits, 0));
        for (cluster, times) in l2.used() {
            self.counts.add(cluster, times)?;
            let offset = cluster << bits;
            let memory =
                self.tables.read("an L2 table", offset, self.tables.cluster_bytes()).await?;
            if *memory == *empty {
                continue;
            }
            for (words, at) in self.entries(&memory).zip(0_u64..) {
                let entry_at = offset + at * self.tables.header.l2_entry_bytes();
                self.count_entry(words, times, entry_at)?;
            }
        }
        self.l2 = l2;
        Ok(())
    }

    /// The entries of an L2 table.
    fn entries<'b>(&self, table: &'b [u8]) -> impl Iterator<Item = RawL2Entry> + use<'b> {
        let has_bitmaps = self.geometry.has_subclusters();
        let entry_bytes = self.geometry.entry_words() * 8;
        table.chunks_exact(entry_bytes).map(move |entry| RawL2Entry {
            word: number::<8>(entry, 0),
            bitmap: if has_bitmaps { number::<8>(entry, 8) } else { 0 },
        })
    }

    fn count_entry(&mut self, words: RawL2Entry, times: u16, at: u64) -> Result<(), MetadataError> {
        if words == RawL2Entry::default() {
            return Ok(());
        }
        let (header, cluster_bytes) = (self.tables.header, self.tables.cluster_bytes());
        let what = "the L2 entry";
        let bad = |_bad| wrong(what, at, "has reserved bits");
        match self.geometry.read(words).map_err(bad)? {
            L2Entry::Cluster(StandardCluster { place: None, .. }) => Ok(()),
            L2Entry::Cluster(StandardCluster { place: Some(place), .. }) => {
                if header.features.external_data {
                    return Ok(());
                }
                if self.tables.check_place(what, place.host, cluster_bytes).is_err() {
                    return Err(wrong(what, at, "names a cluster outside the file"));
                }
                self.counts.add(place.host / cluster_bytes, times)
            }
            L2Entry::Compressed { descriptor } => {
                let outside = wrong(what, at, "names compressed data outside the file");
                let place = compressed::place(descriptor, header.cluster_bits);
                let place = place.map_err(|_reserved| outside.clone())?;
                let file_end = self.tables.file_bytes.next_multiple_of(cluster_bytes);
                if place.end > file_end || header.features.external_data {
                    return Err(outside);
                }
                let clusters = place.start / cluster_bytes..place.end.div_ceil(cluster_bytes);
                let mut clusters = clusters;
                clusters.try_for_each(|cluster| self.counts.add(cluster, times))
            }
        }
    }

    /// Proves that no cluster of metadata is anything else.
    pub(crate) fn check_metadata(&self) -> Result<(), MetadataError> {
        let bits = self.tables.header.cluster_bits;
        for (what, clusters) in &self.metadata {
            let is_shared = |cluster: &u64| self.counts.get(*cluster) != 1;
            if let Some(cluster) = clusters.clone().find(is_shared) {
                return Err(wrong(what, cluster << bits, PROBLEM));
            }
        }
        let shared = self.l2.used().find(|(cluster, times)| self.counts.get(*cluster) != *times);
        shared.map_or(Ok(()), |(cluster, _)| Err(wrong("an L2 table", cluster << bits, PROBLEM)))
    }

    /// Finds free clusters for refcount blocks that are missing, and for a larger table if the one that is there, which has
    /// so many clusters, is too small.
    pub(crate) fn make_room(
        &mut self,
        table_clusters: u64,
    ) -> Result<RefcountLayout, MetadataError> {
        let bits = self.tables.header.cluster_bits;
        let mut table = self.refcount_table.clone();
        let mut moved: Option<(u64, u64)> = None;
        loop {
            let is_there = |number: &u64| {
                let place = usize::try_from(*number).ok();
                place.and_then(|place| table.get(place)).is_some_and(|block| *block != 0)
            };
            let mut missing: Vec<u64> = Vec::new();
            for (cluster, _) in self.counts.used() {
                let number = cluster / self.per_block();
                if missing.last() != Some(&number) && !is_there(&number) {
                    missing.push(number);
                }
            }
            if missing.is_empty() {
                break;
            }
            let entries = missing.iter().max().expect("there is one") + 1;
            if entries * 8 > REFCOUNT_TABLE_BYTES_MAX {
                let bound = REFCOUNT_TABLE_BYTES_MAX;
                return Err(MetadataError::TooMuch { what: "the refcounts", bound });
            }
            let entries = usize::try_from(entries).expect("at most a million");
            table.resize(table.len().max(entries), 0);
            for number in missing {
                let place = usize::try_from(number).expect("an entry of the table");
                table[place] = self.allocate(1)? << bits;
            }
            let clusters = (table.len() as u64 * 8).div_ceil(self.tables.cluster_bytes());
            let there = moved.map_or(table_clusters, |it| it.1);
            if clusters > there {
                if let Some((first, count)) = moved {
                    (first..first + count).for_each(|cluster| self.counts.forget(cluster));
                }
                moved = Some((self.allocate(clusters)?, clusters));
            }
        }
        if let Some((_, clusters)) = moved {
            let old = self.tables.header.refcount_table_offset >> bits;
            let count = u64::from(self.tables.header.refcount_table_clusters);
            (old..old + count).for_each(|cluster| self.counts.forget(cluster));
            let bytes = usize::try_from(clusters << bits).expect("at most 8 MiB and a cluster");
            table.resize(bytes / 8, 0);
        }
        Ok(RefcountLayout { table, moved })
    }

    /// Takes free clusters that follow each other, which are counted once then; the first of them.
    pub(crate) fn allocate(&mut self, count: u64) -> Result<u64, MetadataError> {
        let first = self.counts.free_beside(&self.leaving, self.searched, count);
        self.searched = first + count;
        if (first + count) << self.tables.header.cluster_bits > OFFSET_END {
            return Err(MetadataError::Io(FailKind::NoSpace));
        }
        (first..first + count).try_for_each(|cluster| self.counts.add(cluster, 1))?;
        Ok(first)
    }

    /// Refcounts in a block.
    pub(crate) fn per_block(&self) -> u64 {
        (self.tables.cluster_bytes() * 8) >> self.tables.header.refcount_order
    }
}
