//! A node gets another size while guests use what stands above it.
//!
//! Invariants: the exports above stand still meanwhile; they and their front ends are told when it is done. Whoever uses the
//! node must allow it: an image does not allow it of its file, nor of what it stands on.
//! Threads: the first one.

use std::sync::Arc;

use block::{ByteCount, DiskSize, Permission, Permissions, Rights, SystemClock};
use graph::{ModelError, NodeUser};
use iothread::DrainedSection;
use qcow2::{ChangeBackingError, Qcow2Node};

use super::{AffectedExport, DRAIN_MAX, GraphChangeError};
use crate::fault_point::{CommandStep, reached};
use crate::{ControlError, DaemonState};

/// What is done with an image whose header changes, which its users do not see.
const RENAMES: Rights = Rights { uses: Permissions::WRITES, shares: Permissions::ALL };

/// What is done with a node that gets another size; others may go on as the graph lets them.
const RESIZES: Rights =
    Rights { uses: Permissions::WRITES.and(Permission::Resize), shares: Permissions::ALL };

impl DaemonState {
    /// Has an image, which that node is, name another backing file in its header, also one that is only read. Requests go on
    /// meanwhile. Blocks.
    pub fn change_backing_file(
        &mut self,
        name: &str,
        backing: &str,
        format: Option<&str>,
    ) -> Result<(), ControlError> {
        self.while_writable(name, |state| {
            let image = state.graph.node_info(name)?.image.map(Arc::clone);
            let image = image.ok_or_else(|| ModelError::NoOverlay(name.to_owned()))?;
            state.name_backing(name, &image, backing, format)
        })
    }

    /// [`DaemonState::change_backing_file`], with any error that says why not. With an empty name it has none.
    pub(in crate::state) fn name_backing<E>(
        &self,
        name: &str,
        image: &Qcow2Node,
        backing: &str,
        format: Option<&str>,
    ) -> Result<(), E>
    where
        E: From<GraphChangeError> + From<ChangeBackingError>,
    {
        let node = self.graph.node(name).map_err(GraphChangeError::from)?;
        let claim = node.claim(RENAMES).map_err(GraphChangeError::from)?;
        image.change_backing(backing, format)?;
        claim
            .flush()
            .map_err(|source| GraphChangeError::Flush { export: name.to_owned(), source }.into())
    }

    /// Gives a node that many bytes. Blocks, as long as the longest request in flight, or 30 seconds.
    pub fn resize_node(&mut self, name: &str, bytes: u64) -> Result<(), GraphChangeError> {
        let model = self.graph.model();
        if model.access(name)? == block::Access::ReadOnly {
            return Err(ModelError::ReadOnlyResize(name.to_owned()).into());
        }
        let mut above = model.edges().into_iter().filter(|edge| edge.node == name);
        if let Some(edge) = above.find(|edge| !edge.shares.has(Permission::Resize)) {
            let (user, key) = (edge.user, edge.key);
            return Err(GraphChangeError::SizeInUse { node: name.to_owned(), user, key });
        }
        self.resize_for_all(name, bytes)
    }

    /// The same, whoever uses the node: the caller knows that they do not mind.
    pub(in crate::state) fn resize_for_all(
        &mut self,
        name: &str,
        bytes: u64,
    ) -> Result<(), GraphChangeError> {
        let node = Arc::clone(self.graph.node(name)?);
        let exports = self.graph.model().exports_above(&NodeUser::Node(name.to_owned()));
        let before = node.size().0.0;
        if let Some(export) = exports.first().filter(|_| bytes < before) {
            let (node, export) = (name.to_owned(), export.clone());
            return Err(GraphChangeError::Shrunk { node, bytes: before, export, wanted: bytes });
        }
        let disks = self.exports.iter().map(|export| &**export.disk());
        let above = disks.filter(|disk| exports.contains(&disk.id));
        let mut above = above.map(AffectedExport::of).collect::<Result<Vec<_>, _>>()?;
        above.iter_mut().try_for_each(AffectedExport::flush)?;
        let nodes = above.iter().map(|above| Arc::clone(&above.disk.node)).collect();
        let drained = DrainedSection::begin(&self.sources, nodes, DRAIN_MAX, &SystemClock)?;
        let claim = node.claim(RESIZES)?;
        let resized = node.resize(DiskSize(ByteCount(bytes)));
        reached(CommandStep::Resized);
        let flushed = claim.flush();
        drop(claim);
        // They go on with whatever size it has.
        drained.end().map_err(|refused| {
            let (iothread, source) = (refused.iothread, refused.source);
            GraphChangeError::Lane { iothread, source }
        })?;
        let disks: Vec<_> = above.iter().map(|above| above.disk).collect();
        drop(above);
        disks.iter().for_each(|disk| disk.size.review());
        resized?;
        flushed.map_err(|source| GraphChangeError::Flush { export: name.to_owned(), source })?;
        tracing::info!("node {name}: {before} bytes are {bytes} now");
        Ok(())
    }
}
