//! The clusters of the file: runs that were taken ahead, and those that were given back and may still be
//! in use.
//!
//! Where it stands: writes take clusters from a run, for nothing; when the runs are used up, one task
//! fetches the next ([`Refcounts::reserve`]). What leaves the tables goes into limbo, and is free when
//! its going is durable and no request can be on its way to it. Compressed clusters share clusters (`packing`).
//!
//! Invariants: clusters of a run read as zeroes, and their refcounts are durable. A cluster in limbo
//! keeps its refcount. Crashes leak what is in runs and in limbo.
//! Threads: any.

mod packing;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use block::FailKind;
use tasks::{AsyncChild, AsyncMutex, AsyncMutexGuard};

use crate::epoch::{Epochs, MappingEpoch};
use crate::handover::ImageState;
use crate::refcount::{ClusterReservation, HostClusters, RefcountTablePlace, Refcounts};

use packing::PackedCluster;

/// The first run of an image, in clusters; each is twice as long as the one before.
const RUN_FIRST: u64 = 16;

/// The longest run, in clusters.
const RUN_MAX: u64 = 1024;

/// The longest run, in bytes.
const RUN_BYTES_MAX: u64 = 256 << 20;

/// With so many clusters in limbo their going is made durable without waiting for a guest's flush.
const LIMBO_MAX: u64 = 1024;

/// The allocator of host clusters: free runs, clusters in limbo, refcounts.
#[derive(Debug)]
pub(crate) struct ClusterAllocator {
    cluster_bits: u32,
    epochs: Arc<Epochs>,
    runs: Mutex<PreallocatedRuns>,
    refcounts: AsyncMutex<Refcounts>,
    /// Where the next compressed cluster goes. Taken before the refcounts.
    packing: AsyncMutex<PackedCluster>,
    /// How often a cluster was begun for compressed ones.
    packed: AtomicU64,
    limbo: Mutex<Limbo>,
    /// Whether something in limbo may be free by now. A hint.
    may_reclaim: AtomicBool,
    /// How many writes of tables the kernel has, and how many of them are durable.
    links: AtomicU64,
    durable_table_writes: AtomicU64,
    discards: FreedClusterDiscards,
}

/// Whether freed clusters are discarded on the host (`discard=`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FreedClusterDiscards {
    /// It is.
    Passed,
    /// It stays in the file.
    Ignored,
}

/// Runs of clusters that were taken ahead of need and read as zeroes.
#[derive(Debug)]
struct PreallocatedRuns {
    clean: VecDeque<HostClusters>,
    /// How long the next run should be.
    next: u64,
}

/// Freed clusters that requests in flight may still use, or whose freeing is not durable yet.
#[derive(Debug, Default)]
struct Limbo {
    freed: VecDeque<FreedClusters>,
    clusters: u64,
    /// The number of the next one.
    next: u64,
    /// Those with smaller numbers are durably out of the tables.
    durable: u64,
}

/// Clusters that were freed, and in which epoch.
#[derive(Debug)]
struct FreedClusters {
    number: u64,
    epoch: MappingEpoch,
    clusters: HostClusters,
}

impl FreedClusters {
    fn count(&self) -> u64 {
        self.clusters.end - self.clusters.start
    }
}

/// Clusters that nobody can find any more, whose refcounts still are to be lowered. Dropped, they are in limbo again: a lane
/// may be dropped with the task that frees them.
#[derive(Debug)]
struct UnusedClusters<'a> {
    limbo: &'a Mutex<Limbo>,
    /// None is empty.
    freed: VecDeque<FreedClusters>,
}

impl UnusedClusters<'_> {
    fn first(&self) -> Option<u64> {
        self.freed.front().map(|freed| freed.clusters.start)
    }

    /// The first is lowered.
    fn forget_first(&mut self) {
        if let Some(freed) = self.freed.front_mut() {
            freed.clusters.start += 1;
            if freed.clusters.is_empty() {
                self.freed.pop_front();
            }
        }
    }
}

impl Drop for UnusedClusters<'_> {
    fn drop(&mut self) {
        if self.freed.is_empty() {
            return;
        }
        let mut limbo = self.limbo.lock().expect("nobody panics here");
        limbo.clusters += self.freed.iter().map(FreedClusters::count).sum::<u64>();
        // Before all others, which may not have passed.
        self.freed.drain(..).for_each(|freed| limbo.freed.push_front(freed));
    }
}

/// Which table writes and freed clusters a sync makes durable that begins now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SyncMark {
    freed: u64,
    links: u64,
}

impl ClusterAllocator {
    pub(crate) fn new(
        cluster_bits: u32,
        refcounts: Refcounts,
        epochs: Arc<Epochs>,
        discards: FreedClusterDiscards,
    ) -> Self {
        Self {
            cluster_bits,
            epochs,
            runs: Mutex::new(PreallocatedRuns { clean: VecDeque::new(), next: RUN_FIRST }),
            refcounts: AsyncMutex::new(refcounts),
            packing: AsyncMutex::new(PackedCluster::default()),
            packed: AtomicU64::new(0),
            limbo: Mutex::default(),
            may_reclaim: AtomicBool::new(false),
            links: AtomicU64::new(0),
            durable_table_writes: AtomicU64::new(0),
            discards,
        }
    }

    /// Takes clusters that follow each other and read as zeroes: at most `count`, at least one. If the
    /// refcount table moves for that, `name` has the header name it, durably.
    pub(crate) async fn take(
        &self,
        storage: &AsyncChild,
        count: u64,
        name: impl AsyncFn(RefcountTablePlace) -> Result<(), FailKind>,
    ) -> Result<HostClusters, FailKind> {
        let mut has_reclaimed = false;
        loop {
            if let Some(clusters) = self.take_from_runs(count) {
                return Ok(clusters);
            }
            let mut refcounts = self.refcounts.take().await;
            // Whoever had the turn before may have fetched enough.
            if let Some(clusters) = self.take_from_runs(count) {
                return Ok(clusters);
            }
            let want = self.runs().next.max(count).min(self.run_max());
            let mark = self.mark();
            let reserved = match refcounts.reserve(storage, want, &name).await {
                Err(FailKind::NoSpace) if !has_reclaimed => {
                    has_reclaimed = true;
                    drop(refcounts);
                    self.reclaim(storage, true).await?;
                    continue;
                }
                reserved => reserved?,
            };
            self.is_durable(mark);
            reserved.left.into_iter().for_each(|clusters| self.free(clusters));
            let mut runs = self.runs();
            runs.next = (runs.next * 2).min(self.run_max());
            runs.clean.extend(reserved.runs);
        }
    }

    /// Takes so many clusters that follow each other and read as zeroes, for a table; `NoSpace` if one refcount block does
    /// not count as many.
    pub(crate) async fn take_together(
        &self,
        storage: &AsyncChild,
        count: u64,
        name: impl AsyncFn(RefcountTablePlace) -> Result<(), FailKind>,
    ) -> Result<HostClusters, FailKind> {
        let mut refcounts = self.refcounts.take().await;
        let mark = self.mark();
        let reserved = refcounts.reserve_together(storage, count, name).await;
        let ClusterReservation { mut runs, left } = reserved?;
        self.is_durable(mark);
        left.into_iter().for_each(|clusters| self.free(clusters));
        let is_it = |run: &HostClusters| run.end - run.start >= count;
        let place = runs.iter().position(is_it).ok_or(FailKind::NoSpace)?;
        let taken = runs[place].start..runs[place].start + count;
        runs[place].start = taken.end;
        self.runs().clean.extend(runs.into_iter().filter(|run| !run.is_empty()));
        Ok(taken)
    }

    fn run_max(&self) -> u64 {
        RUN_MAX.min(RUN_BYTES_MAX >> self.cluster_bits)
    }

    /// Takes clusters like [`ClusterAllocator::take`], if some were taken ahead.
    pub(crate) fn take_from_runs(&self, count: u64) -> Option<HostClusters> {
        let mut runs = self.runs();
        let run = runs.clean.front_mut()?;
        let end = run.end.min(run.start + count);
        let taken = run.start..end;
        run.start = end;
        if run.is_empty() {
            runs.clean.pop_front();
        }
        Some(taken)
    }

    fn runs(&self) -> MutexGuard<'_, PreallocatedRuns> {
        self.runs.lock().expect("nobody panics here")
    }

    fn limbo(&self) -> MutexGuard<'_, Limbo> {
        self.limbo.lock().expect("nobody panics here")
    }

    /// These clusters are no longer in the tables, as far as requests that come now can see, and that
    /// was handed to the kernel.
    pub(crate) fn free(&self, clusters: HostClusters) {
        let epoch = self.epochs.end();
        let mut limbo = self.limbo();
        let number = limbo.next;
        limbo.next += 1;
        limbo.clusters += clusters.end - clusters.start;
        limbo.freed.push_back(FreedClusters { number, epoch, clusters });
        if limbo.clusters >= LIMBO_MAX {
            self.may_reclaim.store(true, Ordering::Relaxed);
        }
    }

    /// The kernel has a write of a table. Call it before others see what was written.
    pub(crate) fn count_table_write(&self) {
        self.links.fetch_add(1, Ordering::Release);
    }

    /// Whether all is durable that the tables in memory say, as the caller has seen them.
    pub(crate) fn table_writes_are_durable(&self) -> bool {
        // Whoever has seen an entry sees that it was counted.
        self.durable_table_writes.load(Ordering::Acquire) >= self.links.load(Ordering::Acquire)
    }

    /// Before a sync begins.
    pub(crate) fn mark(&self) -> SyncMark {
        SyncMark { freed: self.limbo().next, links: self.links.load(Ordering::Acquire) }
    }

    /// The sync has succeeded.
    pub(crate) fn is_durable(&self, mark: SyncMark) {
        if self.note_durable(mark) {
            self.may_reclaim.store(true, Ordering::Relaxed);
        }
    }

    /// The same; whether anything is in limbo.
    fn note_durable(&self, mark: SyncMark) -> bool {
        self.durable_table_writes.fetch_max(mark.links, Ordering::Release);
        let mut limbo = self.limbo();
        limbo.durable = limbo.durable.max(mark.freed);
        !limbo.freed.is_empty()
    }

    /// Whether something in limbo may be free by now. Mostly only a load: the line stays shared.
    pub(crate) fn may_reclaim(&self) -> bool {
        self.may_reclaim.load(Ordering::Relaxed)
    }

    /// Whether to call [`ClusterAllocator::reclaim`] now: the first one who asks does it.
    pub(crate) fn begin_reclaim(&self) -> bool {
        self.may_reclaim.swap(false, Ordering::Relaxed)
    }

    /// Frees what is in limbo and can be. With `all`, or when it is much, syncs first.
    pub(crate) async fn reclaim(&self, storage: &AsyncChild, all: bool) -> Result<(), FailKind> {
        if self.must_sync(all) {
            let mark = self.mark();
            storage.sync().await?;
            // Not a reason to come back: what is still in use comes with the next flush.
            self.note_durable(mark);
        }
        let mut refcounts = self.refcounts.take().await;
        let passed = self.take_passed();
        if passed.freed.is_empty() {
            return Ok(());
        }
        self.give_up(storage, &mut refcounts, passed).await
    }

    /// Whether what is in limbo has to be made durable without waiting for others.
    fn must_sync(&self, all: bool) -> bool {
        let limbo = self.limbo();
        limbo.durable < limbo.next && (all || limbo.clusters >= LIMBO_MAX)
    }

    /// Takes what nobody can find any more out of limbo.
    fn take_passed(&self) -> UnusedClusters<'_> {
        let oldest = self.epochs.oldest();
        let mut limbo = self.limbo();
        let durable = limbo.durable;
        // Both numbers rise along the queue.
        let passed = |freed: &FreedClusters| freed.number < durable && freed.epoch < oldest;
        let count = limbo.freed.iter().take_while(|freed| passed(freed)).count();
        let mut freed: Vec<FreedClusters> = limbo.freed.drain(..count).collect();
        limbo.clusters -= freed.iter().map(FreedClusters::count).sum::<u64>();
        freed.sort_unstable_by_key(|freed| freed.clusters.start);
        UnusedClusters { limbo: &self.limbo, freed: freed.into() }
    }

    /// Lowers the refcounts of clusters that nobody can find, and gives their space back before that:
    /// afterwards they may be used again.
    async fn give_up(
        &self,
        storage: &AsyncChild,
        refcounts: &mut AsyncMutexGuard<'_, Refcounts>,
        mut unused: UnusedClusters<'_>,
    ) -> Result<(), FailKind> {
        let given_up = self.discard_and_lower(storage, refcounts, &mut unused).await;
        // After an error the rest leaks.
        unused.freed.clear();
        given_up
    }

    /// The same; what is left is what is not lowered.
    async fn discard_and_lower(
        &self,
        storage: &AsyncChild,
        refcounts: &mut AsyncMutexGuard<'_, Refcounts>,
        clusters: &mut UnusedClusters<'_>,
    ) -> Result<(), FailKind> {
        if self.discards == FreedClusterDiscards::Passed {
            let mut unused: Vec<HostClusters> = Vec::new();
            let freed = clusters.freed.iter().flat_map(|freed| freed.clusters.clone());
            let mut freed: Vec<u64> = freed.collect();
            freed.sort_unstable();
            // Of one that several compressed clusters are in, several references may go.
            for references in freed.chunk_by(|one, other| one == other) {
                let (cluster, going) = (references[0], references.len() as u64);
                // Others may be a snapshot's as well.
                if refcounts.get(storage, cluster).await? != going {
                    continue;
                }
                match unused.last_mut() {
                    Some(last) if last.end == cluster => last.end += 1,
                    Some(_) | None => unused.push(cluster..cluster + 1),
                }
            }
            for clusters in unused {
                let bytes = clusters.start << self.cluster_bits..clusters.end << self.cluster_bits;
                storage.discard(bytes).await?;
            }
        }
        while let Some(cluster) = clusters.first() {
            refcounts.lower(storage, cluster..cluster + 1).await?;
            clusters.forget_first();
        }
        refcounts.write_changed(storage).await
    }

    /// What the file does not say. Fails if a write of refcounts has failed.
    pub(crate) async fn state(&self) -> Result<ImageState, FailKind> {
        let packed = self.packing.take().await.clusters(self.cluster_bits);
        let refcounts = self.refcounts.take().await;
        let (raised, is_written) = refcounts.raised();
        if !is_written {
            return Err(FailKind::Io);
        }
        let freed =
            self.limbo().freed.iter().map(|freed| freed.clusters.clone()).collect::<Vec<_>>();
        Ok(ImageState {
            reserved: self.runs().clean.iter().cloned().collect(),
            // Refcounts that may not be durable yet are lowered like those of what was freed; and where compressed clusters
            // went, no more go.
            freed: [freed.as_slice(), raised, packed.as_slice()].concat(),
            tables_durable: self.table_writes_are_durable(),
        })
    }

    /// Goes on from what another process knew. Nobody uses the image yet.
    pub(crate) fn inherit(&self, state: ImageState) {
        let ImageState { reserved, freed, tables_durable } = state;
        self.runs().clean.extend(reserved);
        freed.into_iter().for_each(|clusters| self.free(clusters));
        if !tables_durable {
            self.count_table_write();
        }
    }

    /// Gives back all that was taken ahead or is in limbo, durably: nothing leaks. Nobody uses the image
    /// any more.
    pub(crate) async fn close(&self, storage: &AsyncChild) -> Result<(), FailKind> {
        self.end_packing().await;
        self.reclaim(storage, true).await?;
        let clean: Vec<HostClusters> = self.runs().clean.drain(..).collect();
        let mut refcounts = self.refcounts.take().await;
        for clusters in clean.into_iter().chain(refcounts.take_raised()) {
            refcounts.lower(storage, clusters).await?;
        }
        refcounts.write_changed(storage).await?;
        storage.sync().await
    }
}
