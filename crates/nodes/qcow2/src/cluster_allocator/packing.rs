//! Where compressed clusters go: one behind the other, several in a cluster of the file.
//!
//! Where it stands: a task that has compressed a cluster takes bytes for it ([`ClusterAllocator::take_bytes`]), writes there, has
//! that made durable, and then has a table name it (`serve::compress`).
//!
//! What can go wrong, and what holds it:
//! - The power goes between data, refcount and table entry. An entry that names bytes which were lost is a cluster that nobody
//!   can decode, whatever was there before; one whose refcount was lost is a cluster that others take. So both are handed to the
//!   kernel first, and one sync makes them durable before any entry is written. It is shared by all who wait for one.
//!   A crash before the entry leaks the reference, and no more.
//! - A compressed cluster is written over, or discarded. Its references leave as those of others do, when that is durable and
//!   nobody is on his way there (limbo); its bytes are not used again before the whole cluster of the file is free. The
//!   cluster that is being filled has one reference more, which belongs to this, so that it cannot become free meanwhile. It is
//!   given up, or becomes that of the last compressed cluster, when no more go there.
//! - Two lanes compress at once: one after the other takes bytes here, each whole sectors of its own, in which it packs what it
//!   has; what they write of one larger block of the storage is its medium's affair (read-modify-write under a range lock).
//! - A reader has decoded what was at a place before: [`ClusterAllocator::compressed_generation`] tells him to forget it.
//! - A refcount cannot say that there is one reference more: nothing more goes there. With refcounts of one bit each compressed
//!   cluster has a cluster of the file for itself.
//! - The image changes hands, or is closed: nothing more goes there, either.
//!
//! Threads: any; one at a time takes bytes.

use std::sync::atomic::Ordering;

use block::FailKind;
use tasks::AsyncChild;

use super::ClusterAllocator;
use crate::refcount::{HostClusters, RefcountTablePlace};

/// What no two tasks write a part of each.
const SECTOR: u64 = 512;

/// The cluster of the file that is filled with compressed ones, if there is one: the first byte of it that is free, which is
/// not the first of it. It has a reference that is nobody else's.
#[derive(Debug, Default)]
pub(super) struct PackedCluster {
    free: Option<u64>,
}

impl PackedCluster {
    /// That cluster.
    pub(super) fn clusters(&self, cluster_bits: u32) -> Vec<HostClusters> {
        let one = |free: u64| (free >> cluster_bits)..(free >> cluster_bits) + 1;
        self.free.map(one).into_iter().collect()
    }
}

impl ClusterAllocator {
    /// How often a cluster of the file was begun that compressed ones go to: what was read there before is not there any more.
    pub(crate) fn compressed_generation(&self) -> u64 {
        self.packed.load(Ordering::Acquire)
    }

    /// Takes room for compressed clusters of so many bytes, fewer than a cluster has, one behind the other where that is
    /// possible, and for each a reference to each cluster that it touches: where they begin. What follows each other may be
    /// written up to the end of its last sector; nobody else has a part of that. The references are in the hands of the
    /// kernel. `name` as in [`ClusterAllocator::take`].
    pub(crate) async fn take_bytes(
        &self,
        storage: &AsyncChild,
        counts: &[u64],
        name: impl AsyncFn(RefcountTablePlace) -> Result<(), FailKind>,
    ) -> Result<Vec<u64>, FailKind> {
        let mut packing = self.packing.take().await;
        self.skip_sector(&mut packing);
        let mut starts = Vec::with_capacity(counts.len());
        let mut result = Ok(());
        for count in counts {
            match self.take_next(storage, &mut packing, *count, &name).await {
                Ok(start) => starts.push(start),
                Err(kind) => {
                    result = Err(kind);
                    break;
                }
            }
        }
        if result.is_ok() {
            result = self.refcounts.take().await.write_changed(storage).await;
        }
        if let Err(kind) = result {
            for (start, count) in starts.iter().zip(counts) {
                self.free(self.clusters_of(*start, *count));
            }
            return Err(kind);
        }
        Ok(starts)
    }

    /// The clusters of the file that so many bytes touch which begin there.
    pub(crate) fn clusters_of(&self, start: u64, count: u64) -> HostClusters {
        start >> self.cluster_bits..((start + count - 1) >> self.cluster_bits) + 1
    }

    /// What is written from now on begins with a sector that nobody else writes.
    fn skip_sector(&self, packing: &mut PackedCluster) {
        let Some(at) = packing.free else { return };
        let next = at.next_multiple_of(SECTOR);
        if next >> self.cluster_bits == at >> self.cluster_bits {
            packing.free = Some(next);
        } else {
            self.stop_filling(packing);
        }
    }

    async fn take_next(
        &self,
        storage: &AsyncChild,
        packing: &mut PackedCluster,
        count: u64,
        name: &impl AsyncFn(RefcountTablePlace) -> Result<(), FailKind>,
    ) -> Result<u64, FailKind> {
        let cluster_bytes = 1 << self.cluster_bits;
        if let Some(at) = packing.free {
            let room = cluster_bytes - at % cluster_bytes;
            if count == room {
                // The reference of its own becomes that of these bytes.
                packing.free = None;
                return Ok(at);
            }
            if count < room && self.share(storage, at >> self.cluster_bits).await? {
                packing.free = Some(at + count);
                return Ok(at);
            }
            if count < room {
                self.stop_filling(packing);
            }
        }
        let fresh = self.take(storage, 1, name).await?.start;
        self.packed.fetch_add(1, Ordering::Release);
        let start = match packing.free {
            // It goes on where the other one ends, whose reference becomes that of these bytes.
            Some(at) if (at >> self.cluster_bits) + 1 == fresh => at,
            Some(_) | None => {
                self.stop_filling(packing);
                fresh << self.cluster_bits
            }
        };
        packing.free = None;
        match self.share(storage, fresh).await {
            Ok(true) => packing.free = Some(start + count),
            // One reference is all that it can have.
            Ok(false) => {}
            Err(kind) => {
                self.free(self.clusters_of(start, count));
                return Err(kind);
            }
        }
        Ok(start)
    }

    /// One reference more to a cluster; whether its refcount can say that.
    async fn share(&self, storage: &AsyncChild, cluster: u64) -> Result<bool, FailKind> {
        self.refcounts.take().await.share(storage, cluster).await
    }

    fn stop_filling(&self, packing: &mut PackedCluster) {
        packing.clusters(self.cluster_bits).into_iter().for_each(|clusters| self.free(clusters));
        packing.free = None;
    }

    /// No more compressed clusters go where the last ones went.
    pub(super) async fn end_packing(&self) {
        let mut packing = self.packing.take().await;
        self.stop_filling(&mut packing);
    }
}
