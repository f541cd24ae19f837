//! Clusters of the file that an image takes, whole or for compressed ones.
//!
//! Where it stands: between tasks that need a place and the allocator, which has the header name its table if that moves.

use std::sync::atomic::Ordering;

use block::FailKind;
use tasks::AsyncChild;

use super::Image;
use crate::cluster_allocator::ClusterAllocator;
use crate::refcount::{HostClusters, RefcountTablePlace};

impl Image {
    /// How many bytes the file has at most that tables may name.
    pub(crate) fn file_bytes(&self) -> u64 {
        self.file_bytes.load(Ordering::Acquire)
    }

    /// How often places of compressed clusters were used again.
    pub(crate) fn compressed_generation(&self) -> u64 {
        self.space.as_ref().map_or(0, ClusterAllocator::compressed_generation)
    }

    /// Takes clusters that follow each other and read as zeroes: at most `count`, at least one.
    pub(crate) async fn take_clusters(
        &self,
        storage: &AsyncChild,
        count: u64,
    ) -> Result<HostClusters, FailKind> {
        let space = self.space()?;
        if let Some(clusters) = space.take_from_runs(count) {
            return Ok(clusters);
        }
        let name = async |table: RefcountTablePlace| self.name_refcount_table(storage, table).await;
        Box::pin(space.take(storage, count, name)).await
    }

    /// Takes room for compressed clusters of so many bytes ([`ClusterAllocator::take_bytes`]).
    pub(crate) async fn take_bytes(
        &self,
        storage: &AsyncChild,
        counts: &[u64],
    ) -> Result<Vec<u64>, FailKind> {
        let name = async |table: RefcountTablePlace| self.name_refcount_table(storage, table).await;
        let starts = Box::pin(self.space()?.take_bytes(storage, counts, name)).await?;
        for (start, count) in starts.iter().zip(counts) {
            // A file ends at least with the clusters that were taken of it.
            let end = (start + count).next_multiple_of(self.geometry.cluster_bytes());
            self.file_bytes.fetch_max(end, Ordering::Release);
        }
        Ok(starts)
    }

    pub(super) async fn name_refcount_table(
        &self,
        storage: &AsyncChild,
        table: RefcountTablePlace,
    ) -> Result<(), FailKind> {
        self.change_header(storage, |header| table.write_to(header)).await?;
        storage.sync().await
    }
}
