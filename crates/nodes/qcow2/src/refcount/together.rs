//! Clusters that follow each other, for an L1 table of several.
//!
//! Limits: no more than one refcount block counts. A new block takes the first cluster that it counts for itself.

use block::FailKind;
use tasks::AsyncChild;

use super::{ClusterReservation, HostClusters, RefcountTablePlace, Refcounts};

impl Refcounts {
    /// [`Refcounts::reserve`], with a run of so many clusters behind the end of the file; `NoSpace` if a block does not count
    /// as many beside itself.
    pub(crate) async fn reserve_together(
        &mut self,
        storage: &AsyncChild,
        count: u64,
        name: impl AsyncFn(RefcountTablePlace) -> Result<(), FailKind>,
    ) -> Result<ClusterReservation, FailKind> {
        self.end_doubt(&name).await?;
        if count + 1 > self.per_block() {
            return Err(FailKind::NoSpace);
        }
        let cursor = self.cursor;
        self.cursor = cursor.max(self.file_end.div_ceil(self.cluster_bytes()));
        let mut left = Vec::new();
        let is_long = |run: &HostClusters| run.end - run.start >= count;
        let mut result = Ok(());
        while result.is_ok() && !self.raised.iter().any(is_long) {
            result = match self.find_free(storage, count + 1).await {
                // The block ends before.
                Ok(found) if found.end - found.start <= count => Ok(()),
                Ok(found) => self.take(storage, found, &name, &mut left).await,
                Err(kind) => Err(kind),
            };
        }
        // What was passed over is free.
        self.cursor = self.cursor.min(cursor);
        result?;
        self.write_changed(storage).await?;
        storage.sync().await?;
        Ok(ClusterReservation { runs: std::mem::take(&mut self.raised), left })
    }
}
