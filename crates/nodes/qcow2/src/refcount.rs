//! Refcounts: which clusters of the file are in use, and how often.
//!
//! Where it stands: runs of free clusters are taken ahead of need ([`Refcounts::reserve`]), and what is
//! given back waits elsewhere (`cluster_allocator`) until nobody can find it any more. One task at a time works
//! here, across all threads.
//!
//! Invariants, for a power loss at any time: a refcount in the file is never lower than the references
//! to its cluster. So it is raised, and that is durable, before a reference is written; and a new block
//! is durable before the table names it. The specification is `docs/interop/qcow2.rst`, "Host cluster
//! management".
//! Not here: how a block holds its refcounts (`packed`).
//! Limits: as many blocks in memory as the cache was given; one is as large as a cluster.

mod packed;
mod together;

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use block::{FailKind, HostMemory};
use tasks::AsyncChild;

pub(crate) use self::packed::RefcountBlock;
use crate::header::{Header, OFFSET_END, REFCOUNT_TABLE_BYTES_MAX};
use crate::image_log::ImageLog;
use crate::overlap::MetadataClusters;
use crate::table_reader::{BLOCK_MAX, table_bytes, words, write_table_word};

/// How many blocks are looked through for free clusters before a run that was found is taken.
const BLOCKS_LOOKED_THROUGH: u64 = 8;

/// The refcount table and cached refcount blocks of an image.
#[derive(Debug)]
pub(crate) struct Refcounts {
    cluster_bits: u32,
    /// A refcount has 2 to the power of this many bits.
    order: u32,
    table_offset: u64,
    /// The place of each block; 0 if there is none.
    table: Vec<u64>,
    blocks: HashMap<u64, RefcountBlock>,
    /// In the order in which they came.
    loaded: VecDeque<u64>,
    blocks_max: usize,
    /// No cluster before this one is known to be free.
    cursor: u64,
    /// The end of the file as far as it is known. What lies behind reads as zeroes once the file is
    /// longer.
    file_end: u64,
    /// Behind it nobody has written: of a file with direct I/O the size may lack a part of a block.
    written_end: u64,
    metadata: Arc<MetadataClusters>,
    /// Taken, but perhaps not yet durably.
    raised: Vec<HostClusters>,
    /// Whether the header may name another table than this one.
    is_header_in_doubt: bool,
    log: Arc<ImageLog>,
}

/// A range of host clusters (clusters of the image file).
pub(crate) type HostClusters = Range<u64>;

/// The offset and size of the refcount table, for the header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RefcountTablePlace {
    pub(crate) offset: u64,
    pub(crate) clusters: u32,
}

impl RefcountTablePlace {
    /// Has a header name it.
    pub(crate) fn write_to(self, header: &mut [u8]) {
        header[48..56].copy_from_slice(&self.offset.to_be_bytes());
        header[56..60].copy_from_slice(&self.clusters.to_be_bytes());
    }
}

/// What one reservation took: zeroed clusters with refcount 1, and the clusters that a moved refcount table has left.
#[derive(Debug, Default)]
pub(crate) struct ClusterReservation {
    /// Clusters that read as zeroes, whose refcount is 1, durably.
    pub(crate) runs: Vec<HostClusters>,
    /// Those of a table that has moved.
    pub(crate) left: Vec<HostClusters>,
}

impl Refcounts {
    /// Reads the table. `file_end` is the size of the file, `blocks_max` how many blocks are kept.
    pub(crate) async fn load(
        header: &Header,
        storage: &AsyncChild,
        file_end: u64,
        blocks_max: usize,
        metadata: Arc<MetadataClusters>,
        log: Arc<ImageLog>,
    ) -> Result<Self, FailKind> {
        let bytes = u64::from(header.refcount_table_clusters) << header.cluster_bits;
        let start = header.refcount_table_offset;
        let memory = storage.read(start..start + bytes).await?;
        let table: Vec<u64> = words(&memory).collect();
        let is_bad = |offset: &u64| {
            *offset >= OFFSET_END || !offset.is_multiple_of(1 << header.cluster_bits)
        };
        if let Some(offset) = table.iter().find(|offset| is_bad(offset)) {
            log.error(format_args!(
                "the refcount table names a block at {offset:#x}, which is no place for one"
            ));
            return Err(FailKind::Io);
        }
        Ok(Self {
            cluster_bits: header.cluster_bits,
            order: header.refcount_order,
            table_offset: start,
            table,
            blocks: HashMap::new(),
            loaded: VecDeque::new(),
            blocks_max: blocks_max.max(4),
            cursor: 0,
            file_end,
            written_end: file_end + storage.alignment().max(BLOCK_MAX),
            metadata,
            raised: Vec::new(),
            is_header_in_doubt: false,
            log,
        })
    }

    fn cluster_bytes(&self) -> u64 {
        1 << self.cluster_bits
    }

    /// Refcounts in a block.
    fn per_block(&self) -> u64 {
        (self.cluster_bytes() * 8) >> self.order
    }

    /// The largest refcount.
    fn most(&self) -> u64 {
        if self.order == 6 { u64::MAX } else { (1 << (1_u32 << self.order)) - 1 }
    }

    /// How often a cluster is in use.
    pub(crate) async fn get(
        &mut self,
        storage: &AsyncChild,
        cluster: u64,
    ) -> Result<u64, FailKind> {
        let (block, index) = (cluster / self.per_block(), cluster % self.per_block());
        let order = self.order;
        Ok(self.block(storage, block).await?.map_or(0, |block| block.get(order, index)))
    }

    /// The block of that number, if there is one.
    async fn block(
        &mut self,
        storage: &AsyncChild,
        number: u64,
    ) -> Result<Option<&mut RefcountBlock>, FailKind> {
        let place = usize::try_from(number).ok().and_then(|number| self.table.get(number));
        let Some(&offset) = place else { return Ok(None) };
        if offset == 0 {
            return Ok(None);
        }
        if !self.blocks.contains_key(&number) {
            let end = offset + self.cluster_bytes();
            let memory = storage.read(offset..end).await?;
            self.keep(number, RefcountBlock { bytes: memory.to_vec(), changed: None });
        }
        Ok(self.blocks.get_mut(&number))
    }

    fn keep(&mut self, number: u64, block: RefcountBlock) {
        // Of those that were changed some are written; then all may go.
        let mut looks = self.loaded.len();
        while self.blocks.len() >= self.blocks_max && looks > 0 {
            looks -= 1;
            let Some(oldest) = self.loaded.pop_front() else { break };
            if self.blocks.get(&oldest).is_some_and(|block| block.changed.is_some()) {
                self.loaded.push_back(oldest);
            } else {
                self.blocks.remove(&oldest);
            }
        }
        self.blocks.insert(number, block);
        self.loaded.push_back(number);
    }

    /// Takes free clusters, about `want` and at least one, makes them zeroes and raises their refcounts,
    /// all of it durable. `NoSpace` if there are none and the file cannot grow. `name` has the header name
    /// the refcount table, durably. What was taken before an error comes with the next call.
    pub(crate) async fn reserve(
        &mut self,
        storage: &AsyncChild,
        want: u64,
        name: impl AsyncFn(RefcountTablePlace) -> Result<(), FailKind>,
    ) -> Result<ClusterReservation, FailKind> {
        self.end_doubt(&name).await?;
        let mut left = Vec::new();
        let mut looked_through = 0;
        // Less of it may still have room.
        let mut most = want;
        while self.taken() < want && (self.taken() == 0 || looked_through < BLOCKS_LOOKED_THROUGH) {
            let number = self.cursor / self.per_block();
            let clusters = self.find_free(storage, most.min(want - self.taken())).await?;
            looked_through += self.cursor / self.per_block() - number;
            if clusters.is_empty() {
                continue;
            }
            let (start, count) = (clusters.start, clusters.end - clusters.start);
            if let Err(kind) = self.take(storage, clusters, &name, &mut left).await {
                self.cursor = self.cursor.min(start);
                if kind == FailKind::NoSpace && count > 1 {
                    most = count / 2;
                    continue;
                }
                // What was found before is good.
                if self.taken() == 0 {
                    return Err(kind);
                }
                break;
            }
        }
        self.write_changed(storage).await?;
        storage.sync().await?;
        Ok(ClusterReservation { runs: std::mem::take(&mut self.raised), left })
    }

    /// Has the header name this table if it may name another one: of two only this one is kept.
    async fn end_doubt(
        &mut self,
        name: &impl AsyncFn(RefcountTablePlace) -> Result<(), FailKind>,
    ) -> Result<(), FailKind> {
        if self.is_header_in_doubt {
            name(self.table_place()).await?;
            self.is_header_in_doubt = false;
        }
        Ok(())
    }

    /// How many clusters were taken and not handed out.
    fn taken(&self) -> u64 {
        self.raised.iter().map(|clusters| clusters.end - clusters.start).sum()
    }

    /// Gives back what an error has kept from being handed out.
    pub(crate) fn take_raised(&mut self) -> Vec<HostClusters> {
        std::mem::take(&mut self.raised)
    }

    /// What an error has kept from being handed out, and whether the file has all that is known here.
    pub(crate) fn raised(&self) -> (&[HostClusters], bool) {
        let is_written = self.blocks.values().all(|block| block.changed.is_none());
        (&self.raised, is_written && !self.is_header_in_doubt)
    }

    /// Takes these clusters, which are free. Some of them may become metadata.
    async fn take(
        &mut self,
        storage: &AsyncChild,
        mut clusters: HostClusters,
        name: &impl AsyncFn(RefcountTablePlace) -> Result<(), FailKind>,
        left: &mut Vec<HostClusters>,
    ) -> Result<(), FailKind> {
        self.check_free(&clusters)?;
        self.prepare(storage, clusters.clone()).await?;
        let number = clusters.start / self.per_block();
        let place = usize::try_from(number).ok().and_then(|number| self.table.get(number));
        match place.copied() {
            None => {
                let (end, old) = self.move_table(storage, number, name).await?;
                left.push(old);
                // It may have taken all of them.
                clusters.start = clusters.start.max(end).min(clusters.end);
            }
            Some(0) => {
                self.add_block(storage, clusters.start).await?;
                clusters.start += 1;
            }
            Some(_) => {}
        }
        self.raise(storage, clusters.clone()).await?;
        if !clusters.is_empty() {
            self.raised.push(clusters);
        }
        Ok(())
    }

    fn table_place(&self) -> RefcountTablePlace {
        let clusters = (self.table.len() as u64 * 8).div_ceil(self.cluster_bytes());
        let clusters = u32::try_from(clusters).expect("a table has at most 8 MiB");
        RefcountTablePlace { offset: self.table_offset, clusters }
    }

    /// The next free clusters behind the cursor, at most `want`, all of one block; moves the cursor
    /// behind them. None if there are none in the block where it was.
    async fn find_free(
        &mut self,
        storage: &AsyncChild,
        want: u64,
    ) -> Result<HostClusters, FailKind> {
        let (per_block, order) = (self.per_block(), self.order);
        let (number, from) = (self.cursor / per_block, self.cursor % per_block);
        let (free, used) = match self.block(storage, number).await? {
            None => (from, per_block.min(from + want)),
            Some(block) => {
                let free = (from..per_block).find(|index| block.get(order, *index) == 0);
                let free = free.unwrap_or(per_block);
                let end = per_block.min(free + want);
                (free, (free..end).find(|index| block.get(order, *index) != 0).unwrap_or(end))
            }
        };
        let start = number * per_block;
        self.cursor = start + used;
        Ok(start + free..start + used)
    }

    /// Proves that clusters whose refcount is 0 are not metadata all the same.
    fn check_free(&self, clusters: &HostClusters) -> Result<(), FailKind> {
        match self.metadata.first_of(std::iter::once(clusters.clone())) {
            None => Ok(()),
            Some(cluster) => {
                let offset = cluster << self.cluster_bits;
                let what =
                    format_args!("the metadata at byte {offset:#x} of the image has refcount 0");
                self.log.corrupt(false, Some(offset), what);
                Err(FailKind::Io)
            }
        }
    }

    /// Makes clusters read as zeroes, and the file long enough for them. Not yet durable.
    async fn prepare(
        &mut self,
        storage: &AsyncChild,
        clusters: HostClusters,
    ) -> Result<(), FailKind> {
        let (start, end) = (clusters.start << self.cluster_bits, clusters.end << self.cluster_bits);
        if end >= OFFSET_END {
            return Err(FailKind::NoSpace);
        }
        let written = self.written_end;
        if end > self.file_end {
            // Nothing but what is taken now is written over, also if its block is larger.
            let block = storage.alignment().min(end - start.max(self.file_end));
            let memory =
                HostMemory::zeroed(usize::try_from(block).expect("a block fits into memory"));
            let grown = storage.write(end - block, memory).await;
            // The child may end there.
            let is_end = |kind| kind == FailKind::OutOfRange;
            grown.map_err(|kind| if is_end(kind) { FailKind::NoSpace } else { kind })?;
            self.file_end = end;
            self.written_end = written.max(end);
        }
        if start < written {
            storage.zero(start..end.min(written)).await?;
        }
        Ok(())
    }

    /// Makes the block that counts this cluster, there, and names it in the table.
    async fn add_block(&mut self, storage: &AsyncChild, cluster: u64) -> Result<(), FailKind> {
        let number = cluster / self.per_block();
        let block = (number, cluster << self.cluster_bits);
        self.enter_block(number, cluster..cluster + 1);
        let added = self.write_block(storage, block).await;
        match added {
            Ok(()) => self.metadata.add(cluster..cluster + 1),
            // Named or not, it counts nothing that is in use.
            Err(_) => self.forget(&[block]),
        }
        added
    }

    async fn write_block(
        &mut self,
        storage: &AsyncChild,
        block: (u64, u64),
    ) -> Result<(), FailKind> {
        // It is durable before it is named: otherwise all it counts would be free.
        self.write_changed_as(storage, &[block]).await?;
        storage.sync().await?;
        self.name_block(storage, block).await
    }

    fn forget(&mut self, blocks: &[(u64, u64)]) {
        for (number, _) in blocks {
            self.blocks.remove(number);
        }
    }

    /// A block in memory that counts these clusters once, and nothing else.
    fn enter_block(&mut self, number: u64, used: HostClusters) {
        let (per_block, order) = (self.per_block(), self.order);
        let bytes = usize::try_from(self.cluster_bytes()).expect("at most 2 MiB");
        let mut block = RefcountBlock::zeroed(bytes);
        for cluster in used {
            if cluster / per_block == number {
                block.set(order, cluster % per_block, 1);
            }
        }
        block.changed = Some(0..block.bytes.len());
        self.keep(number, block);
    }

    /// Writes an entry of the table.
    async fn name_block(
        &mut self,
        storage: &AsyncChild,
        (number, offset): (u64, u64),
    ) -> Result<(), FailKind> {
        let place = usize::try_from(number).expect("the table has it");
        let old = |at| self.table.get(at).copied();
        write_table_word(storage, self.table_offset, old, place, offset).await?;
        self.table[place] = offset;
        Ok(())
    }

    /// Makes a larger table that has block `number`, with the blocks that count it, where that block
    /// begins to count. Returns the first cluster behind all that, and the clusters of the old table.
    async fn move_table(
        &mut self,
        storage: &AsyncChild,
        number: u64,
        name: &impl AsyncFn(RefcountTablePlace) -> Result<(), FailKind>,
    ) -> Result<(u64, HostClusters), FailKind> {
        let (per_block, cluster_bytes) = (self.per_block(), self.cluster_bytes());
        let start = number * per_block;
        // Half as many entries again as are needed, so that tables move seldom.
        let mut blocks = 1;
        let (entries, table_clusters) = loop {
            let entries = (number + blocks) + (number + blocks) / 2;
            let table_clusters = (entries * 8).div_ceil(cluster_bytes);
            if blocks * per_block >= blocks + table_clusters {
                break (table_clusters * cluster_bytes / 8, table_clusters);
            }
            blocks += 1;
        };
        let clusters = u32::try_from(table_clusters).map_err(|_too_many| FailKind::NoSpace)?;
        if entries * 8 > REFCOUNT_TABLE_BYTES_MAX {
            // QEMU opens no larger one.
            return Err(FailKind::NoSpace);
        }
        let end = start + blocks + table_clusters;
        self.check_free(&(start..end))?;
        self.prepare(storage, start..end).await?;
        let named: Vec<(u64, u64)> =
            (0..blocks).map(|at| (number + at, (start + at) << self.cluster_bits)).collect();
        for (number, _) in &named {
            self.enter_block(*number, start..end);
        }
        let mut table = self.table.clone();
        table.resize(usize::try_from(entries).expect("at most a million"), 0);
        for (number, offset) in &named {
            table[usize::try_from(*number).expect("among the entries")] = *offset;
        }
        let offset = (start + blocks) << self.cluster_bits;
        let written = self.write_table(storage, &named, &table, offset).await;
        if let Err(kind) = written {
            self.forget(&named);
            return Err(kind);
        }
        // Until the header has named it, and perhaps afterwards, either table may be found.
        self.is_header_in_doubt = true;
        if let Err(kind) = name(RefcountTablePlace { offset, clusters }).await {
            self.forget(&named);
            return Err(kind);
        }
        self.is_header_in_doubt = false;
        let old = self.table_place();
        let old_first = old.offset >> self.cluster_bits;
        self.table = table;
        self.table_offset = offset;
        self.cursor = end;
        let old = old_first..old_first + u64::from(old.clusters);
        self.metadata.remove(old.clone());
        self.metadata.add(start..end);
        Ok((end, old))
    }

    /// Writes a new table and its new blocks, durably.
    async fn write_table(
        &mut self,
        storage: &AsyncChild,
        blocks: &[(u64, u64)],
        table: &[u64],
        offset: u64,
    ) -> Result<(), FailKind> {
        self.write_changed_as(storage, blocks).await?;
        storage.write(offset, table_bytes(table.iter().copied())).await?;
        storage.sync().await
    }

    /// Counts each cluster once more.
    async fn raise(
        &mut self,
        storage: &AsyncChild,
        clusters: HostClusters,
    ) -> Result<(), FailKind> {
        let (order, most) = (self.order, self.most());
        for cluster in clusters {
            let (number, index) = (cluster / self.per_block(), cluster % self.per_block());
            let block = self.block(storage, number).await?.ok_or(FailKind::Io)?;
            let count = block.get(order, index);
            if count == most {
                return Err(FailKind::Io);
            }
            block.set(order, index, count + 1);
        }
        Ok(())
    }

    /// Counts a cluster once more that is in use; not yet written. Whether its refcount can say that.
    pub(crate) async fn share(
        &mut self,
        storage: &AsyncChild,
        cluster: u64,
    ) -> Result<bool, FailKind> {
        if self.get(storage, cluster).await? == self.most() {
            return Ok(false);
        }
        self.raise(storage, cluster..cluster + 1).await.map(|()| true)
    }

    /// Counts each cluster once less. Those that nobody uses any more are free. Their references must
    /// be gone, durably. Not yet written.
    pub(crate) async fn lower(
        &mut self,
        storage: &AsyncChild,
        clusters: HostClusters,
    ) -> Result<(), FailKind> {
        let order = self.order;
        for cluster in clusters {
            let (number, index) = (cluster / self.per_block(), cluster % self.per_block());
            let Some(block) = self.block(storage, number).await? else { continue };
            let count = block.get(order, index);
            if count > 0 {
                block.set(order, index, count - 1);
            } else {
                self.log.error(format_args!(
                    "cluster {cluster} of the image was in use, with refcount 0"
                ));
            }
            if count <= 1 {
                self.cursor = self.cursor.min(cluster);
            }
        }
        Ok(())
    }

    /// Hands to the kernel what was changed.
    pub(crate) async fn write_changed(&mut self, storage: &AsyncChild) -> Result<(), FailKind> {
        self.write_changed_as(storage, &[]).await
    }

    /// The same; new blocks go where it says there, the others where the table says.
    async fn write_changed_as(
        &mut self,
        storage: &AsyncChild,
        new: &[(u64, u64)],
    ) -> Result<(), FailKind> {
        let changed: Vec<u64> = self
            .blocks
            .iter()
            .filter(|(_, block)| block.changed.is_some())
            .map(|(number, _)| *number)
            .collect();
        for number in changed {
            let named = new.iter().find(|(new, _)| *new == number).map(|(_, offset)| *offset);
            let place =
                usize::try_from(number).ok().and_then(|number| self.table.get(number).copied());
            let Some(offset) = named.or(place).filter(|offset| *offset != 0) else { continue };
            let block = self.blocks.get_mut(&number).expect("just found");
            let alignment = usize::try_from(storage.alignment()).expect("a block fits into memory");
            let bytes = block.changed.clone().expect("just found");
            let start = bytes.start - bytes.start % alignment;
            let end = bytes.end.next_multiple_of(alignment).min(block.bytes.len());
            storage.write(offset + start as u64, HostMemory::of(&block.bytes[start..end])).await?;
            block.changed = None;
        }
        Ok(())
    }
}
