//! Another L1 table: for a disk that gets larger, or without what lies behind the end of one that gets smaller.
//!
//! Where it stands: on a control thread that has the image for itself. The new tables are written beside the old ones;
//! then one sector of the header names the L1 table and the size. What only the old tables have is freed after that. The
//! image is loaded anew afterwards.
//!
//! Invariants: a loss of power leaves the old tables and size or the new ones, whole; what leaks is what was taken and is
//! not named yet, or is not named any more. What is behind the end of the disk is in no table: it cannot come back when the
//! disk grows.
//! Limits: an L1 table of more clusters than one refcount block counts is not made (`reserve_together`).

use std::sync::atomic::Ordering;

use block::FailKind;
use tasks::AsyncChild;

use super::{Image, SIZE_AT};
use crate::geometry::{COPIED, GuestCluster, HostClusterReference, OFFSET, StandardCluster};
use crate::refcount::{HostClusters, RefcountTablePlace};
use crate::table_reader::{table_bytes, words};

/// After so many tables what they named is freed.
const TABLES_AT_ONCE: usize = 64;

/// Where a header has the number of entries of the L1 table, and its place.
const L1_AT: usize = 36;

/// The L2 table that the end of the disk cuts, if it names anything behind that.
#[derive(Debug)]
struct CutTable {
    /// Its entry in the L1 table.
    number: usize,
    /// All its words, and how many of them stay.
    words: Vec<u64>,
    kept: usize,
}

impl Image {
    /// Makes an L1 table of so many entries that names the first `kept` bytes of the disk, and has the header name it and
    /// the size. If there is nothing to do, nothing is done. After an error the old tables are there, unless the image is
    /// not written any more.
    pub(crate) async fn cut(
        &self,
        storage: &AsyncChild,
        kept: u64,
        entries: usize,
        size: u64,
    ) -> Result<(), FailKind> {
        if self.slices.has_failed_writes() {
            return Err(FailKind::Io);
        }
        let l1: Vec<u64> = self.l1.iter().map(|entry| entry.load(Ordering::SeqCst)).collect();
        let (kept_clusters, in_table) = (kept.div_ceil(self.cluster_bytes()), self.table_entries());
        let tables =
            usize::try_from(kept_clusters.div_ceil(in_table)).expect("the L1 table has it");
        let kept_l1 = l1.len().min(tables);
        let cut_table = self.find_cut(storage, &l1, kept_clusters).await?;
        let is_same = entries == l1.len() && size == self.size && cut_table.is_none();
        if is_same && l1[kept_l1..].iter().all(|word| *word == 0) {
            return Ok(());
        }
        let mut taken = Vec::new();
        let mut new = l1[..kept_l1].to_vec();
        new.resize(entries, 0);
        let written = self.write_cut(storage, new, cut_table.as_ref(), &mut taken).await;
        let offset = match written {
            Ok(offset) => offset,
            Err(kind) => {
                let space = self.space()?;
                taken.into_iter().for_each(|clusters| space.free(clusters));
                return Err(kind);
            }
        };
        if let Err(kind) = self.name_l1(storage, offset, entries, size).await {
            self.metadata.set_damaged();
            self.log.error(format_args!(
                "nobody knows whether the disk has got another size; the image is not written any more"
            ));
            return Err(kind);
        }
        if self
            .free_cut(storage, &l1[kept_l1..], cut_table.map(|cut| (l1[cut.number], cut)))
            .await
            .is_err()
        {
            self.log.error(format_args!("some clusters behind the end of the disk leak"));
        }
        Ok(())
    }

    fn cluster_bytes(&self) -> u64 {
        self.geometry.cluster_bytes()
    }

    /// Entries of an L2 table.
    fn table_entries(&self) -> u64 {
        self.cluster_bytes() / (self.geometry.entry_words() as u64 * 8)
    }

    /// The words of an L2 table, none of which names metadata.
    async fn read_table(&self, storage: &AsyncChild, word: u64) -> Result<Vec<u64>, FailKind> {
        let start = word & OFFSET;
        let memory = storage.read(start..start + self.cluster_bytes()).await?;
        self.check_slice(storage, start, &memory).await?;
        Ok(words(&memory).collect())
    }

    async fn find_cut(
        &self,
        storage: &AsyncChild,
        l1: &[u64],
        kept_clusters: u64,
    ) -> Result<Option<CutTable>, FailKind> {
        let number = usize::try_from(kept_clusters / self.table_entries()).expect("it is small");
        let index = usize::try_from(kept_clusters % self.table_entries()).expect("it is small");
        let Some(&word) = l1.get(number).filter(|word| index > 0 && **word != 0) else {
            return Ok(None);
        };
        let words = self.read_table(storage, word).await?;
        let kept = index * self.geometry.entry_words();
        let is_cut = words[kept..].iter().any(|word| *word != 0);
        Ok(is_cut.then_some(CutTable { number, words, kept }))
    }

    /// Writes the tables, durably; where the L1 table is.
    async fn write_cut(
        &self,
        storage: &AsyncChild,
        mut l1: Vec<u64>,
        cut_table: Option<&CutTable>,
        taken: &mut Vec<HostClusters>,
    ) -> Result<u64, FailKind> {
        let bits = self.geometry.cluster_bits();
        if let Some(CutTable { number, words, kept }) = cut_table {
            let place = self.take_clusters(storage, 1).await?;
            taken.push(place.clone());
            // The rest of it reads as zeroes.
            let offset = place.start << bits;
            storage.write(offset, table_bytes(words[..*kept].iter().copied())).await?;
            l1[*number] = offset | COPIED;
        }
        let place = match (l1.len() as u64 * 8).div_ceil(self.cluster_bytes()) {
            1 => self.take_clusters(storage, 1).await?,
            count => {
                let name = async |table: RefcountTablePlace| {
                    self.name_refcount_table(storage, table).await
                };
                self.space()?.take_together(storage, count, name).await?
            }
        };
        taken.push(place.clone());
        let offset = place.start << bits;
        storage.write(offset, table_bytes(l1)).await?;
        self.sync(storage).await?;
        Ok(offset)
    }

    async fn name_l1(
        &self,
        storage: &AsyncChild,
        offset: u64,
        entries: usize,
        size: u64,
    ) -> Result<(), FailKind> {
        let entries = u32::try_from(entries).expect("an L1 table has at most 32 MiB");
        self.change_header(storage, |header| {
            header[SIZE_AT..SIZE_AT + 8].copy_from_slice(&size.to_be_bytes());
            header[L1_AT..L1_AT + 4].copy_from_slice(&entries.to_be_bytes());
            header[L1_AT + 4..L1_AT + 12].copy_from_slice(&offset.to_be_bytes());
        })
        .await?;
        self.sync(storage).await
    }

    /// Frees what only the old tables name, and these tables.
    async fn free_cut(
        &self,
        storage: &AsyncChild,
        behind: &[u64],
        cut_table: Option<(u64, CutTable)>,
    ) -> Result<(), FailKind> {
        let space = self.space()?;
        let first = self.geometry.cluster_of(self.l1_offset).0;
        let count = (self.l1.len() as u64 * 8).div_ceil(self.cluster_bytes());
        if count > 0 {
            space.free(first..first + count);
        }
        if let Some((word, CutTable { words, kept, .. })) = cut_table {
            self.free_table(word, &words[kept..])?;
        }
        let named = behind.iter().filter(|word| **word != 0).collect::<Vec<_>>();
        for tables in named.chunks(TABLES_AT_ONCE) {
            for word in tables {
                let words = self.read_table(storage, **word).await?;
                self.free_table(**word, &words)?;
            }
            space.reclaim(storage, true).await?;
        }
        Ok(())
    }

    /// Frees an L2 table and what those entries name.
    fn free_table(&self, word: u64, words: &[u64]) -> Result<(), FailKind> {
        let space = self.space()?;
        let table = self.geometry.cluster_of(word & OFFSET).0;
        space.free(table..table + 1);
        if self.geometry.has_data_file() {
            return Ok(());
        }
        let entries = words.iter().step_by(self.geometry.entry_words());
        let mut clusters: Vec<HostClusters> =
            entries.filter_map(|word| self.geometry.clusters_of(*word)).collect();
        clusters.sort_unstable_by_key(|clusters| clusters.start);
        // Compressed clusters may share one, which has as many references.
        for together in clusters.chunk_by(|one, next| one.end == next.start) {
            let end = together.last().map_or(0, |last| last.end);
            space.free(together[0].start..end);
        }
        Ok(())
    }

    /// Has the tables name each of these clusters of a data file that is the disk by itself.
    pub(crate) async fn map_raw(
        &self,
        storage: &AsyncChild,
        clusters: std::ops::Range<u64>,
    ) -> Result<(), FailKind> {
        let (mut at, data) = (clusters.start, self.geometry.all_subclusters());
        while at < clusters.end {
            // Those of one table.
            let end = clusters.end.min((at / self.table_entries() + 1) * self.table_entries());
            self.ensure_table(storage, GuestCluster(at)).await?;
            let entry = |cluster| {
                let host = self.geometry.start_of(GuestCluster(cluster));
                let place = Some(HostClusterReference { host, is_exclusive: true });
                let entry = self.geometry.write(StandardCluster { place, data, zero: 0 });
                (GuestCluster(cluster), entry)
            };
            let changes = (at..end).map(entry).collect::<Vec<_>>();
            self.link(storage, &changes).await?;
            at = end;
        }
        Ok(())
    }
}
