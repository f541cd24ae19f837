//! The metadata of an image, one instance for all lanes: tables, claims on what is being changed, space.
//!
//! Where it stands: tasks of any lane work on it, each through the storage of its own lane.
//!
//! Invariants, in this order: a cluster's refcount is durable; its bytes are handed to the kernel (and
//! durable, if what was there before was not zeroes); the table entry is handed to the kernel; others
//! see it. A table is linked into the L1 table likewise. The specification is
//! `docs/interop/qcow2.rst`, "Cluster mapping".
//! Threads: any. Locks are held for a few instructions; what takes longer is claimed.

pub(crate) mod backing_name;
mod cut;
mod file_space;
pub(crate) mod stored_bitmaps;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::{Duration, Instant};

use block::{FailKind, RangeGuard, RangeLock};
use tasks::{AsyncChild, AsyncMutex};

use crate::background_tasks::BackgroundTasks;
use crate::cluster_allocator::{ClusterAllocator, FreedClusterDiscards};
use crate::compressed::{CompressedError, CompressionMethod};
use crate::epoch::Epochs;
use crate::geometry::{COPIED, Geometry, GuestCluster, L2Entry, OFFSET, RawL2Entry, SliceNumber};
use crate::header::{Header, INCOMPATIBLE_LOW_AT};
use crate::image_log::ImageLog;
use crate::overlap::MetadataClusters;
use crate::refcount::{HostClusters, Refcounts};
use crate::slice::{CacheLookup, L2Slice, PinnedSlice, SliceCache, WriteResult, WriteTurn};
use crate::table_reader::{may_have, words, write_table_word};

/// Where fields are in the header.
const SIZE_AT: usize = 24;
pub(crate) const AUTOCLEAR_AT: usize = 88;
/// The incompatible bit that says that the image is damaged.
const CORRUPT: u8 = 2;
/// The autoclear bit that says that the bitmaps are consistent.
const BITMAPS: u64 = 1;

/// The autoclear bit that says that the data file is the disk by itself.
const RAW_EXTERNAL: u64 = 2;

/// How many L2 slices and refcount blocks are cached.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CacheSizes {
    /// Slices of L2 tables.
    pub(crate) slices: usize,
    /// After how long without use a slice goes.
    pub(crate) clean_after: Option<Duration>,
    /// Refcount blocks.
    pub(crate) blocks: usize,
}

/// The metadata of an open image, one instance for all lanes: L1 table, cached L2 slices, refcounts, epochs.
#[derive(Debug)]
pub(crate) struct Image {
    /// What is said of it.
    pub(crate) log: Arc<ImageLog>,
    pub(crate) geometry: Geometry,
    /// The size of the disk in bytes.
    size: u64,
    version: u32,
    is_raw_external: bool,
    /// How clusters are compressed.
    pub(crate) compression: CompressionMethod,
    /// The bytes of the file when the image was loaded, or that were used for compressed clusters since.
    file_bytes: AtomicU64,
    l1_offset: u64,
    l1: Box<[AtomicU64]>,
    /// One writer of the L1 table at a time.
    l1_writes: AsyncMutex<()>,
    header_writes: AsyncMutex<()>,
    pub(crate) slices: SliceCache,
    clean_after: Option<Duration>,
    /// When slices without use went last.
    cleaned: Mutex<Option<Instant>>,
    /// Clusters of the disk that are being changed.
    clusters: RangeLock,
    /// L2 tables that are being made.
    tables: RangeLock,
    pub(crate) epochs: Arc<Epochs>,
    /// `None` if the image was never written.
    space: Option<ClusterAllocator>,
    /// Whether it may be written now: somebody has claimed it for that.
    is_writing: AtomicBool,
    /// Whether its files may be somebody else's: then nothing is read or written any more.
    is_closed: AtomicBool,
    /// Empty if the image is not written.
    metadata: Arc<MetadataClusters>,
    /// How many tasks are at work that no request waits for.
    pub(crate) background_tasks: BackgroundTasks,
}

impl Image {
    /// Reads what is always in memory. With `writing`, also what is needed to change the image.
    pub(crate) async fn load(
        display_name: String,
        header: &Header,
        storage: &AsyncChild,
        file_bytes: u64,
        caches: CacheSizes,
        writing: Option<(FreedClusterDiscards, MetadataClusters)>,
    ) -> Result<Self, FailKind> {
        let log = Arc::new(ImageLog::new(display_name));
        let end = header.l1_offset + u64::from(header.l1_entries) * 8;
        let memory = storage.read(header.l1_offset..end).await?;
        // What names nothing has no owner either.
        let clean = |word: u64| if word & OFFSET == 0 { 0 } else { word & (OFFSET | COPIED) };
        let l1: Box<[u64]> = words(&memory).map(clean).collect();
        let geometry = Geometry::new(header);
        let is_bad = |word: &&u64| **word & OFFSET & (geometry.cluster_bytes() - 1) != 0;
        if let Some(word) = l1.iter().find(is_bad) {
            log.error(format_args!("the L1 entry {word:#018x} names no cluster"));
            return Err(FailKind::Io);
        }
        let epochs = Arc::new(Epochs::default());
        let (space, metadata) = match writing {
            None => (None, Arc::default()),
            Some((discards, metadata)) => {
                let metadata = Arc::new(metadata);
                let known = Arc::clone(&metadata);
                let said = Arc::clone(&log);
                let refcounts =
                    Refcounts::load(header, storage, file_bytes, caches.blocks, known, said)
                        .await?;
                let bits = header.cluster_bits;
                (
                    Some(ClusterAllocator::new(bits, refcounts, Arc::clone(&epochs), discards)),
                    metadata,
                )
            }
        };
        Ok(Self {
            log,
            geometry,
            size: header.size,
            version: header.version,
            is_raw_external: header.features.raw_external,
            compression: if header.features.zstd {
                CompressionMethod::Zstd
            } else {
                CompressionMethod::Deflate
            },
            file_bytes: AtomicU64::new(may_have(file_bytes)),
            l1_offset: header.l1_offset,
            l1: l1.into_iter().map(AtomicU64::new).collect(),
            l1_writes: AsyncMutex::new(()),
            header_writes: AsyncMutex::new(()),
            slices: SliceCache::new(caches.slices),
            clean_after: caches.clean_after,
            cleaned: Mutex::default(),
            clusters: RangeLock::default(),
            tables: RangeLock::default(),
            epochs,
            is_writing: AtomicBool::new(space.is_some()),
            is_closed: AtomicBool::new(false),
            space,
            metadata,
            background_tasks: BackgroundTasks::default(),
        })
    }

    /// The size of the disk in bytes.
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// Whether a cluster can be marked as zeroes.
    pub(crate) fn has_zero_clusters(&self) -> bool {
        self.version >= 3
    }

    /// When tables without use shall go, if they were in use now.
    pub(crate) fn next_clean(&self, now: Instant) -> Option<Instant> {
        now.checked_add(self.clean_after?)
    }

    /// Lets tables go that were not used for an interval. Each lane calls it; the first one does it.
    pub(crate) fn clean(&self, now: Instant) {
        let Some(interval) = self.clean_after else { return };
        let mut cleaned = self.cleaned.lock().expect("nobody panics here");
        let is_due = |last: Instant| now.saturating_duration_since(last) >= interval / 2;
        if cleaned.is_none_or(is_due) {
            *cleaned = Some(now);
            self.slices.clean();
        }
    }

    /// Says what is wrong with a compressed cluster, now and then; what a guest is told.
    pub(crate) fn refuse_compressed(
        &self,
        cluster: GuestCluster,
        error: &CompressedError,
    ) -> FailKind {
        self.log.error(format_args!("cluster {} of the disk: {error}", cluster.0));
        FailKind::Io
    }

    /// The clusters of the file; `ReadOnly` if the image is not written.
    pub(crate) fn space(&self) -> Result<&ClusterAllocator, FailKind> {
        if self.metadata.is_damaged() || self.is_closed() {
            return Err(FailKind::Io);
        }
        self.space.as_ref().filter(|_| self.is_written()).ok_or(FailKind::ReadOnly)
    }

    /// Whether to free clusters now that nobody can find any more; asked after each request.
    pub(crate) fn begin_reclaim(&self) -> bool {
        let may = self.space.as_ref().is_some_and(ClusterAllocator::may_reclaim);
        may && self.space().is_ok_and(ClusterAllocator::begin_reclaim)
    }

    /// Whether any of these clusters of the file is metadata.
    pub(crate) fn is_metadata(&self, clusters: HostClusters) -> bool {
        self.metadata.first_of(std::iter::once(clusters)).is_some()
    }

    /// Whether requests are counted: clusters may be freed while they are under way.
    pub(crate) fn is_written(&self) -> bool {
        // Claims change it; requests that it matters for begin after that and end before.
        self.is_writing.load(Ordering::Relaxed)
    }

    /// Whether it was written before, and nobody else had its files since.
    pub(crate) fn was_written(&self) -> bool {
        self.space.is_some()
    }

    /// From now on it may be written, or may not.
    pub(crate) fn set_writing(&self, is_writing: bool) {
        self.is_writing.store(is_writing, Ordering::Relaxed);
    }

    /// Its files are given back. A lane that is still there meets an error instead of somebody else's bytes.
    pub(crate) fn set_closed(&self) {
        self.is_closed.store(true, Ordering::Release);
    }

    /// Whether its files may be somebody else's.
    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    /// What a request is told that comes after that.
    pub(crate) fn refuse_closed(&self) -> FailKind {
        self.log.error(format_args!("the image is closed; a request came too late"));
        FailKind::Io
    }

    /// Waits until nobody else changes what these clusters are.
    pub(crate) async fn claim(&self, clusters: std::ops::Range<u64>) -> RangeGuard {
        self.clusters.lock(clusters).await
    }

    /// The slice of that number, pinned; loads it if it is not in memory.
    pub(crate) async fn slice(
        &self,
        storage: &AsyncChild,
        number: SliceNumber,
    ) -> Result<PinnedSlice, FailKind> {
        match self.slices.pin(number) {
            Some(pinned) if !pinned.slice().is_absent() => Ok(pinned),
            // What is rare has memory of its own: tasks stay small.
            Some(_) | None => Box::pin(self.load_slice(storage, number)).await,
        }
    }

    async fn load_slice(
        &self,
        storage: &AsyncChild,
        number: SliceNumber,
    ) -> Result<PinnedSlice, FailKind> {
        loop {
            let found =
                std::future::poll_fn(|context| match self.slices.find(number, context.waker()) {
                    CacheLookup::Wait => Poll::Pending,
                    found @ (CacheLookup::Here(_) | CacheLookup::Missing(_)) => Poll::Ready(found),
                });
            match found.await {
                // Its table was made since.
                CacheLookup::Here(pinned) if pinned.slice().is_absent() && self.l1(number) != 0 => {
                    self.slices.forget_absent(std::iter::once(number));
                }
                CacheLookup::Here(pinned) => return Ok(pinned),
                CacheLookup::Wait => {}
                CacheLookup::Missing(loading) => {
                    let table = self.l1(number) & OFFSET;
                    if table == 0 {
                        // Unless it was made meanwhile.
                        let is_absent = || self.l1(number) & OFFSET == 0;
                        if let Some(pinned) = loading.done_if(L2Slice::absent(number), is_absent) {
                            return Ok(pinned);
                        }
                        continue;
                    }
                    let start = table + self.geometry.place_in_table(number);
                    let memory = storage.read(start..start + self.geometry.slice_bytes()).await?;
                    self.check_slice(storage, start, &memory).await?;
                    let words = self.geometry.entry_words();
                    return Ok(loading.done(L2Slice::loaded(number, &memory, words)));
                }
            }
        }
    }

    /// Proves that no entry of a slice names metadata: it would be written like data.
    async fn check_slice(
        &self,
        storage: &AsyncChild,
        at: u64,
        slice: &[u8],
    ) -> Result<(), FailKind> {
        // Those of a new table name nothing.
        let is_empty = words(slice).all(|word| word == 0);
        if is_empty || self.space.is_none() || self.geometry.has_data_file() {
            return Ok(());
        }
        let words = words(slice).step_by(self.geometry.entry_words());
        let clusters = words.filter_map(|word| self.geometry.clusters_of(word));
        let Some(cluster) = self.metadata.first_of(clusters) else { return Ok(()) };
        let offset = self.geometry.start_of(GuestCluster(cluster));
        if self.metadata.set_damaged() {
            let what = format_args!(
                "the L2 table at byte {at:#x} of the image names the metadata at {offset:#x}; it is \
                 marked corrupt and not written any more"
            );
            self.log.corrupt(true, Some(offset), what);
            self.mark_corrupt(storage).await?;
        }
        Err(FailKind::Io)
    }

    /// Says in the file that it is damaged.
    async fn mark_corrupt(&self, storage: &AsyncChild) -> Result<(), FailKind> {
        if self.version >= 3 {
            self.change_header(storage, |header| header[INCOMPATIBLE_LOW_AT] |= CORRUPT).await?;
            storage.sync().await?;
        }
        Ok(())
    }

    fn l1(&self, number: SliceNumber) -> u64 {
        let entry = self.l1.get(self.geometry.table_of(number));
        entry.map_or(0, |entry| entry.load(Ordering::SeqCst))
    }

    /// What the tables say of a cluster.
    pub(crate) fn entry(
        &self,
        slice: &L2Slice,
        cluster: GuestCluster,
    ) -> Result<L2Entry, FailKind> {
        let words = slice.entry(self.geometry.index_of(cluster));
        self.geometry.read(words).map_err(|bad| {
            let what = format_args!("cluster {} of the disk: {bad}", cluster.0);
            self.log.corrupt(false, None, what);
            FailKind::Io
        })
    }

    /// Changes the first block of the header, in the file.
    async fn change_header(
        &self,
        storage: &AsyncChild,
        change: impl FnOnce(&mut [u8]),
    ) -> Result<(), FailKind> {
        let _turn = self.header_writes.take().await;
        let mut memory = storage.read(0..512).await?;
        change(&mut memory);
        storage.write(0, memory).await.map(drop)
    }

    /// Has the header name the size of the disk, durably.
    pub(crate) async fn name_size(&self, storage: &AsyncChild) -> Result<(), FailKind> {
        self.change_header(storage, |header| {
            header[SIZE_AT..SIZE_AT + 8].copy_from_slice(&self.size.to_be_bytes());
        })
        .await?;
        storage.sync().await
    }

    /// Says in the file, durably, that somebody changes the image who does not know what these bits
    /// promise, and no longer that its refcounts may be wrong.
    pub(crate) async fn begin_writing(&self, storage: &AsyncChild) -> Result<(), FailKind> {
        if self.version < 3 {
            // What is found in the tables is durable from now on, whoever has written it.
            return storage.sync().await;
        }
        // That a data file is the disk by itself stays true.
        let kept = if self.is_raw_external { RAW_EXTERNAL } else { 0 };
        self.change_header(storage, |header| {
            // Bitmaps that would have to reflect changes are in use, so the rest is consistent.
            let bitmaps = u64::from(header[AUTOCLEAR_AT + 7]) & BITMAPS;
            let kept = kept | bitmaps;
            header[AUTOCLEAR_AT..AUTOCLEAR_AT + 8].copy_from_slice(&kept.to_be_bytes());
        })
        .await?;
        storage.sync().await
    }

    /// Whether the table that names these clusters is ours.
    pub(crate) fn has_table(&self, cluster: GuestCluster) -> bool {
        self.l1(self.geometry.slice_of(cluster)) & COPIED != 0
    }

    /// Has the table that names these clusters be ours: makes it, or a copy if a snapshot has it too.
    pub(crate) async fn ensure_table(
        &self,
        storage: &AsyncChild,
        cluster: GuestCluster,
    ) -> Result<(), FailKind> {
        let number = self.geometry.slice_of(cluster);
        let table = self.geometry.table_of(number);
        if self.l1(number) & COPIED != 0 {
            return Ok(());
        }
        let place = table as u64;
        let _claimed = self.tables.lock(place..place + 1).await;
        let old = self.l1(number);
        if old & COPIED != 0 {
            return Ok(());
        }
        let taken = self.take_clusters(storage, 1).await?;
        let offset = self.geometry.start_of(GuestCluster(taken.start));
        self.metadata.add(taken.clone());
        if old & OFFSET != 0 {
            let start = old & OFFSET;
            let memory = storage.read(start..start + self.geometry.cluster_bytes()).await?;
            storage.write(offset, memory).await?;
            // A lost table would take all its clusters along.
            self.sync(storage).await?;
        }
        // A new table is empty, and its cluster reads as zeroes.
        self.write_l1(storage, table, offset | COPIED).await?;
        if old & OFFSET == 0 {
            self.slices.forget_absent(self.geometry.slices_of(table));
        } else {
            let start = self.geometry.cluster_of(old & OFFSET).0;
            self.metadata.remove(start..start + 1);
            self.space()?.free(start..start + 1);
        }
        Ok(())
    }

    async fn write_l1(
        &self,
        storage: &AsyncChild,
        table: usize,
        word: u64,
    ) -> Result<(), FailKind> {
        let _turn = self.l1_writes.take().await;
        let old = |at: usize| self.l1.get(at).map(|entry| entry.load(Ordering::Relaxed));
        let result = write_table_word(storage, self.l1_offset, old, table, word).await;
        self.count_table_write();
        result?;
        self.l1[table].store(word, Ordering::SeqCst);
        Ok(())
    }

    /// Writes entries, whose clusters are claimed and whose tables are ours; then others see them.
    pub(crate) async fn link(
        &self,
        storage: &AsyncChild,
        changes: &[(GuestCluster, RawL2Entry)],
    ) -> Result<(), FailKind> {
        let slice_of = |change: &(GuestCluster, RawL2Entry)| self.geometry.slice_of(change.0);
        let begin = |(pinned, changes): (PinnedSlice, &[(GuestCluster, RawL2Entry)])| {
            let words = changes.iter().map(|(at, entry)| (self.geometry.index_of(*at), *entry));
            let ending = pinned.slice().change(words);
            (pinned, ending)
        };
        if let (Some(first), Some(last)) = (changes.first(), changes.last())
            && slice_of(first) == slice_of(last)
        {
            let (pinned, ending) = begin((self.slice(storage, slice_of(first)).await?, changes));
            return self.write_slice(storage, pinned.slice(), &ending).await;
        }
        let mut pinned = Vec::new();
        for changes in changes.chunk_by(|one, other| slice_of(one) == slice_of(other)) {
            pinned.push((self.slice(storage, slice_of(&changes[0])).await?, changes));
        }
        let begun: Vec<(PinnedSlice, WriteResult)> = pinned.into_iter().map(begin).collect();
        let mut result = Ok(());
        for (pinned, ending) in begun {
            result = result.and(self.write_slice(storage, pinned.slice(), &ending).await);
        }
        result
    }

    /// Has the file say what memory says of the entries in a slice, if a write of it has failed.
    pub(crate) async fn settle(
        &self,
        storage: &AsyncChild,
        slice: &L2Slice,
    ) -> Result<(), FailKind> {
        if !slice.has_failed_write() {
            return Ok(());
        }
        let ending = slice.change(std::iter::empty());
        Box::pin(self.write_slice(storage, slice, &ending)).await
    }

    async fn write_slice(
        &self,
        storage: &AsyncChild,
        slice: &L2Slice,
        ending: &WriteResult,
    ) -> Result<(), FailKind> {
        loop {
            let turn =
                std::future::poll_fn(|context| match slice.begin_write(ending, context.waker()) {
                    WriteTurn::Wait => Poll::Pending,
                    turn @ (WriteTurn::Write(_) | WriteTurn::Written(_)) => Poll::Ready(turn),
                });
            match turn.await {
                WriteTurn::Written(result) => return result,
                WriteTurn::Wait => {}
                WriteTurn::Write(write) => {
                    let block = storage.alignment().min(self.geometry.slice_bytes());
                    let Some((start, memory)) = write.bytes(block, &self.slices.spare) else {
                        write.finish(Ok(()));
                        continue;
                    };
                    let table = self.l1(slice.number()) & OFFSET;
                    let at = table + self.geometry.place_in_table(slice.number()) + start;
                    let written = storage.write(at, memory).await;
                    let result = written.map(|memory| self.slices.spare.give(memory));
                    self.count_table_write();
                    write.finish(result);
                }
            }
        }
    }

    /// The kernel has a write of a table, or a part of one that failed.
    fn count_table_write(&self) {
        if let Some(space) = &self.space {
            space.count_table_write();
        }
    }

    /// Whether all is durable that the tables in memory say, as the caller has seen them. If not, a
    /// stable write in place ends with [`LaneCore::sync`](crate::lane_core::LaneCore::sync).
    pub(crate) fn table_writes_are_durable(&self) -> bool {
        self.space.as_ref().is_none_or(ClusterAllocator::table_writes_are_durable)
    }

    /// Makes durable what was written so far.
    pub(crate) async fn sync(&self, storage: &AsyncChild) -> Result<(), FailKind> {
        let mark = self.space.as_ref().map(ClusterAllocator::mark);
        storage.sync().await?;
        if let (Some(space), Some(mark)) = (&self.space, mark) {
            space.is_durable(mark);
        }
        Ok(())
    }

    /// Nobody writes to the image any more: gives back what was taken ahead.
    pub(crate) async fn close(&self, storage: &AsyncChild) -> Result<(), FailKind> {
        match &self.space {
            Some(space) if !self.metadata.is_damaged() => space.close(storage).await,
            // Of a damaged image nothing is changed any more.
            Some(_) | None => Ok(()),
        }
    }
}
