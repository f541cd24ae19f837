//! What two processes do with their nodes while one takes the other's place.
//!
//! Where it stands: `takeover` says when. The old process describes its nodes, gives its open files and the state of
//! its images, and leaves them; the new one goes on with both, claims its nodes, and owns them in the end.
//!
//! Threads: the first one of both processes; no ring is served.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use bitmaps::{Persistence, StoredBitmap};
use block::{DiskSize, TakeoverOwner};
use exports::{ExportedDisk, WaitPolicy};
use graph::{ExportStorage, GraphPath, NodeDescription};
use kernel_io::{DescriptorInheritError, ImageLocks, OpenFile};
use qcow2::{ImageState, Qcow2Node};

use super::{BuildError, DaemonState, GraphChangeError, PreparedExport};

impl DaemonState {
    /// All that there is to say of the nodes below an export.
    pub fn describe(&self, export: &str) -> NodeDescription {
        self.graph.describe(export)
    }

    /// Whether a file is below both exports.
    pub fn share_files(&self, one: &ExportedDisk, other: &ExportedDisk) -> bool {
        let files = |offer: &ExportedDisk| self.graph.files_below_export(&offer.id);
        let theirs = files(other);
        let is_theirs =
            |file: &Arc<OpenFile>| theirs.iter().any(|other| other.identity() == file.identity());
        files(one).iter().any(is_theirs)
    }

    /// The open files below the exports that were started, each once.
    pub fn files_below(&self) -> Vec<(GraphPath, Arc<OpenFile>)> {
        self.each_once(|below| below.files)
    }

    /// The images below them, each once.
    pub fn images(&self) -> Vec<(GraphPath, Arc<Qcow2Node>)> {
        self.each_once(|below| below.images)
    }

    /// What stands below the exports, at the first place where it is found.
    fn each_once<T>(
        &self,
        of: impl Fn(ExportStorage) -> BTreeMap<String, Arc<T>>,
    ) -> Vec<(GraphPath, Arc<T>)> {
        let mut once: Vec<(GraphPath, Arc<T>)> = Vec::new();
        for id in self.exports.iter().map(|export| &export.disk().id) {
            for (place, one) in of(self.graph.storage_below(id)) {
                if !once.iter().any(|(_, other)| Arc::ptr_eq(other, &one)) {
                    once.push(((id.clone(), place), one));
                }
            }
        }
        once
    }

    /// From now on another process owns what is below the exports: nothing of it is changed or given back here.
    pub fn leave(&self) {
        self.files_below().iter().for_each(|(_, file)| file.leave());
        self.images().iter().for_each(|(_, image)| image.leave());
    }

    /// Goes on with the open files and images of another process, which owns them until [`DaemonState::own`]. What it
    /// says of places that are not here is left. After an error, says of which export.
    pub fn inherit(
        &self,
        files: BTreeMap<GraphPath, (OwnedFd, ImageLocks)>,
        images: BTreeMap<GraphPath, ImageState>,
    ) -> Result<(), (String, DescriptorInheritError)> {
        let exports: BTreeSet<&String> =
            files.keys().chain(images.keys()).map(|(export, _)| export).collect();
        let below: BTreeMap<String, ExportStorage> =
            exports.into_iter().map(|id| (id.clone(), self.graph.storage_below(id))).collect();
        for ((export, place), (theirs, locks)) in files {
            if let Some(file) = below[&export].files.get(&place) {
                file.inherit(theirs.as_fd(), locks).map_err(|error| (export, error))?;
            }
        }
        for ((export, place), state) in images {
            if let Some(image) = below[&export].images.get(&place) {
                image.inherit(state);
            }
        }
        Ok(())
    }

    /// The dirty bitmaps of all nodes, the oldest of each first, for another process. Nothing is in flight.
    pub fn dirty_bitmaps(&self) -> Vec<(String, Persistence, StoredBitmap)> {
        let of_node = |node: &str| {
            let all = self.graph.bitmaps(node).map(|bitmaps| bitmaps.all()).unwrap_or_default();
            let node = node.to_owned();
            all.into_iter().map(move |(persistence, bitmap)| (node.clone(), persistence, bitmap))
        };
        self.graph.nodes_with_bitmaps().into_iter().flat_map(of_node).collect()
    }

    /// The size of a node that has dirty bitmaps in another process; from now on what is changed on it is recorded here, too.
    /// Before it is claimed: no export is served.
    pub fn record_inherited(&mut self, node: &str) -> Result<DiskSize, GraphChangeError> {
        let size = self.graph.node(node)?.size();
        self.put_recorder(node)?;
        Ok(size)
    }

    /// Proves that the other process owns every file below an export: none can be changed here.
    pub fn check_inherited(&self, export: &str) -> Result<(), DescriptorInheritError> {
        let ExportStorage { files, images: _ } = self.graph.storage_below(export);
        match files.into_values().find(|file| file.medium().owner() == TakeoverOwner::This) {
            Some(file) => Err(DescriptorInheritError::Missing(file.path().to_path_buf())),
            None => Ok(()),
        }
    }

    /// Claims for an export what the other process holds for it. Nothing is changed on any file.
    pub fn claim_inherited(
        &mut self,
        prepared: &PreparedExport,
        policy: &mut WaitPolicy<'_>,
    ) -> Result<(), BuildError> {
        prepared.disk.claim.take(policy)?;
        self.claimed.push(Arc::clone(&prepared.disk));
        Ok(())
    }

    /// From now on this process owns what it has inherited.
    pub fn own(&self) {
        self.graph.images().for_each(|image| image.own());
        self.files.all().iter().for_each(|file| file.own());
    }
}
