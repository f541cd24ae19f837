//! The NBD exports of the daemon, by name.
//!
//! Threads: the first one adds and takes away; those of connections look.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use nbd::{ExportCatalog, ExportOffer, ExportSummary};

use crate::export::ExportShared;

/// All NBD exports, by the names that clients use.
#[derive(Debug, Default)]
pub struct NbdCatalog {
    exports: Mutex<BTreeMap<String, Arc<ExportShared>>>,
}

impl NbdCatalog {
    pub(crate) fn enter(&self, export: &Arc<ExportShared>) {
        let name = export.name().as_str().to_owned();
        let before = self.exports().insert(name, Arc::clone(export));
        assert!(before.is_none(), "the model refuses a name that is taken");
    }

    pub(crate) fn leave(&self, export: &ExportShared) {
        self.exports().remove(export.name().as_str());
    }

    /// The export of that name; the empty name is that of the only one, too.
    pub(crate) fn get(&self, name: &str) -> Option<Arc<ExportShared>> {
        let exports = self.exports();
        match exports.get(name) {
            Some(export) => Some(Arc::clone(export)),
            None if name.is_empty() && exports.len() == 1 => exports.values().next().cloned(),
            None => None,
        }
    }

    fn exports(&self) -> MutexGuard<'_, BTreeMap<String, Arc<ExportShared>>> {
        self.exports.lock().expect("no holder of this lock panics")
    }
}

/// The exports, as the clients of a server see them.
#[derive(Debug)]
pub(crate) struct ServerCatalog<'a> {
    pub(crate) exports: &'a NbdCatalog,
    /// Whether a client may use several connections.
    pub(crate) multi_conn: bool,
}

impl ExportCatalog for ServerCatalog<'_> {
    fn list(&self) -> Vec<ExportSummary> {
        self.exports.exports().values().map(|export| export.summary()).collect()
    }

    fn find(&self, name: &str) -> Option<ExportOffer> {
        self.exports.get(name).map(|export| export.offer(self.multi_conn))
    }
}
