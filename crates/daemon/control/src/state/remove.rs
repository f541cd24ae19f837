//! Takes exports, nodes and objects away while others are served.
//!
//! Invariants: what something stands on, or names, stays; an export lets go of its node only when what was written is
//! durable.
//! Threads: the first one.

use std::sync::Arc;

use graph::ModelError;

use super::{DaemonState, GraphChangeError};

impl DaemonState {
    /// Ends an export: its clients are disconnected, its socket is removed. Blocks, as long as its requests in flight.
    /// If what was written cannot be made durable the export is gone all the same, and its claim stays, so that nobody
    /// goes on with an image that lacks something.
    pub fn remove_export(&mut self, id: &str) -> Result<(), GraphChangeError> {
        let place = self.exports.iter().position(|export| export.disk().id == id);
        let missing = || ModelError::NoExport(id.to_owned());
        let export = self.exports.remove(place.ok_or_else(missing)?);
        let disk = Arc::clone(export.disk());
        drop(export);
        self.served_disks.leave(id);
        self.sources.forget_sums(id);
        self.graph.remove_export(id)?;
        self.export_options.remove(id);
        self.pools.values().for_each(|pool| pool.remove(id));
        let failed = |source| GraphChangeError::Flush { export: id.to_owned(), source };
        disk.claim.release().map_err(failed)?;
        self.claimed.retain(|claimed| claimed.id != id);
        tracing::info!("export {id}: removed");
        Ok(())
    }

    /// Removes a node on which nothing stands, and what was written inside it and nothing else uses.
    pub fn remove_node(&mut self, name: &str) -> Result<(), ModelError> {
        self.graph.remove(name)
    }

    /// Removes an object that nothing names: an iothread ends.
    pub fn remove_object(&mut self, id: &str) -> Result<(), ModelError> {
        self.graph.remove_object(id)?;
        self.iothreads.remove(id);
        self.pools.remove(id);
        self.unused_pools.remove(id);
        self.credentials.remove(id);
        self.authorizations.remove(id);
        self.objects.remove(id);
        Ok(())
    }
}
