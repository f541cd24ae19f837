//! The second half of a repair: writes what was counted, in an order that any crash may cut.

use block::HostMemory;

use crate::geometry::{COPIED, L2Entry, OFFSET, RawL2Entry, StandardCluster};
use crate::header::INCOMPATIBLE_LOW_AT;
use crate::refcount::{RefcountBlock, RefcountTablePlace};
use crate::repair::{ImageWalk, RepairSummary};
use crate::table_reader::{MetadataError, STEP, table_bytes, words};

/// Where the repaired refcount table and blocks will be.
#[derive(Debug)]
pub(crate) struct RefcountLayout {
    /// The place of each block.
    pub(crate) table: Vec<u64>,
    /// The first cluster of a new table and how many it has.
    pub(crate) moved: Option<(u64, u64)>,
}

/// The incompatible feature of an image that was not closed.
const DIRTY: u8 = 1;
const HEADER_BYTES: u64 = 512;

impl ImageWalk<'_> {
    pub(super) async fn write(
        &self,
        target: &RefcountLayout,
    ) -> Result<RepairSummary, MetadataError> {
        self.check_width()?;
        let storage = self.tables.storage;
        let blocks = self.write_blocks(target).await?;
        let tables = self.write_flags().await?;
        // Blocks are durable before a table names them, and all of it before the header says so.
        storage.sync().await?;
        self.write_table(target).await?;
        storage.sync().await?;
        self.write_header(target).await?;
        storage.sync().await?;
        Ok(RepairSummary { blocks, tables })
    }

    /// Proves that a refcount can say what was counted.
    pub(crate) fn check_width(&self) -> Result<(), MetadataError> {
        let header = self.tables.header;
        let most = 1_u64.checked_shl(1 << header.refcount_order).map_or(u64::MAX, |end| end - 1);
        let too_many = self.counts.used().find(|(_, count)| u64::from(*count) > most);
        too_many.map_or(Ok(()), |(cluster, _)| {
            Err(MetadataError::References { offset: cluster << header.cluster_bits, most })
        })
    }

    /// Writes the blocks that are not there as they shall be; how many.
    pub(crate) async fn write_blocks(&self, target: &RefcountLayout) -> Result<u64, MetadataError> {
        let (bytes, per_block) = (self.tables.cluster_bytes(), self.per_block());
        let mut written = 0;
        for (offset, number) in target.table.iter().zip(0_u64..).filter(|(offset, _)| **offset > 0)
        {
            let mut block = RefcountBlock::zeroed(usize::try_from(bytes).expect("at most 2 MiB"));
            let first = number * per_block;
            for (cluster, count) in self.counts.used_in(first..first + per_block) {
                block.set(self.tables.header.refcount_order, cluster - first, count.into());
            }
            let old = usize::try_from(number).ok().and_then(|at| self.refcount_table.get(at));
            let is_same = old == Some(offset) && {
                let old = self.tables.read("a refcount block", *offset, bytes).await?;
                *old == *block.bytes()
            };
            if !is_same {
                let memory = HostMemory::of(block.bytes());
                self.tables.storage.write(*offset, memory).await?;
                written += 1;
            }
        }
        Ok(written)
    }

    /// Says in the active tables what is ours alone. Returns how many parts of tables changed.
    async fn write_flags(&self) -> Result<u64, MetadataError> {
        let header = self.tables.header;
        let bits = header.cluster_bits;
        let mut changed = 0;
        let mut active: Vec<u64> = Vec::new();
        let end = header.l1_offset + u64::from(header.l1_entries) * 8;
        let mut at = header.l1_offset;
        while at < end {
            let count = STEP.min(end - at).next_multiple_of(self.tables.storage.alignment());
            let count = count.min(self.tables.file_bytes.saturating_sub(at).max(end - at));
            let memory = self.tables.read("the L1 table", at, count).await?;
            let valid = usize::try_from((end - at).min(STEP) / 8).expect("at most a step");
            active
                .extend(words(&memory).take(valid).map(|word| word & OFFSET).filter(|it| *it > 0));
            let flag = |place: usize, words: &[u64]| {
                let table = words[0] & OFFSET;
                (place < valid && table > 0).then(|| self.counts.get(table >> bits) == 1)
            };
            if let Some(flagged) = flagged(&memory, 1, flag) {
                self.tables.storage.write(at, flagged).await?;
                changed += 1;
            }
            at += STEP.min(end - at);
        }
        active.sort_unstable();
        active.dedup();
        for table in active {
            let memory =
                self.tables.read("an L2 table", table, self.tables.cluster_bytes()).await?;
            if let Some(flagged) = self.with_flags(&memory) {
                self.tables.storage.write(table, flagged).await?;
                changed += 1;
            }
        }
        Ok(changed)
    }

    /// Whether the entry's cluster is ours alone; `None` if that cannot be said of it.
    fn flag_of_entry(&self, words: RawL2Entry) -> Option<bool> {
        if self.tables.header.features.external_data {
            return None;
        }
        match self.geometry.read(words).ok()? {
            L2Entry::Cluster(StandardCluster { place: None, .. }) => None,
            L2Entry::Compressed { .. } => Some(false),
            L2Entry::Cluster(StandardCluster { place: Some(place), .. }) => {
                Some(self.counts.get(place.host >> self.tables.header.cluster_bits) == 1)
            }
        }
    }

    /// An L2 table with flags "copied" as references were counted, if that is news.
    pub(crate) fn with_flags(&self, memory: &[u8]) -> Option<HostMemory> {
        let flag = |_: usize, words: &[u64]| {
            let bitmap = words.get(1).copied().unwrap_or_default();
            self.flag_of_entry(RawL2Entry { word: words[0], bitmap })
        };
        flagged(memory, self.geometry.entry_words(), flag)
    }

    /// Writes the table, if it is not there as it shall be.
    pub(crate) async fn write_table(&self, target: &RefcountLayout) -> Result<(), MetadataError> {
        if target.moved.is_none() && target.table == self.refcount_table {
            return Ok(());
        }
        let header = self.tables.header;
        let offset = match target.moved {
            Some((cluster, _)) => cluster << header.cluster_bits,
            None => header.refcount_table_offset,
        };
        self.tables.storage.write(offset, table_bytes(target.table.iter().copied())).await?;
        Ok(())
    }

    async fn write_header(&self, target: &RefcountLayout) -> Result<(), MetadataError> {
        let storage = self.tables.storage;
        let mut memory = storage.read(0..HEADER_BYTES).await?;
        memory[INCOMPATIBLE_LOW_AT] &= !DIRTY;
        if let Some((cluster, count)) = target.moved {
            let offset = cluster << self.tables.header.cluster_bits;
            let clusters = u32::try_from(count).expect("at most 8 MiB");
            RefcountTablePlace { offset, clusters }.write_to(&mut memory);
        }
        storage.write(0, memory).await?;
        Ok(())
    }
}

/// A table of entries of so many words with other flags "copied", if that is news.
fn flagged(
    memory: &[u8],
    entry_words: usize,
    flag: impl Fn(usize, &[u64]) -> Option<bool>,
) -> Option<HostMemory> {
    let mut table: Vec<u64> = words(memory).collect();
    let mut is_changed = false;
    for (place, entry) in table.chunks_exact_mut(entry_words).enumerate() {
        let word = match flag(place, entry) {
            None => continue,
            Some(true) => entry[0] | COPIED,
            Some(false) => entry[0] & !COPIED,
        };
        is_changed |= word != entry[0];
        entry[0] = word;
    }
    is_changed.then(|| table_bytes(table))
}
