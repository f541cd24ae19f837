//! The dirty bitmaps of nodes, and what records in them.
//!
//! Invariants: what is changed on a node that has bitmaps passes its recorder.

use std::sync::Arc;

use bitmaps::{Granularity, NodeBitmaps};
use block::{Access, InternalSnapshots, Node};
use layers::RecorderNode;
use qcow2::Qcow2Node;

use super::{FilterKind, Graph, GraphChange, ImplicitFilter, NodeInfo};
use crate::drivers::MadeNode;
use crate::model::{ChildRole, Edge, ModelError, NodeUser};

/// The smallest granularity that is taken for an image because of its clusters, as in QEMU.
const CLUSTER_MIN: u64 = 4096;

/// What records the changes of an image that may have bitmaps in it: from the beginning, since they are found only when it is
/// claimed.
fn recorder_of_image(made: &MadeNode, bitmaps: &Arc<NodeBitmaps>) -> Option<ImplicitFilter> {
    let image = made.image.as_ref()?;
    if made.node.access() == Access::ReadOnly || image.check_bitmaps().is_err() {
        return None;
    }
    image.record_in(bitmaps);
    let make = |child| Arc::new(RecorderNode::new(child, Arc::clone(bitmaps))) as Arc<dyn Node>;
    Some(ImplicitFilter::first(FilterKind::Recorder, &made.node, make))
}

impl Graph {
    /// What a new node begins with. One that takes the place of another has its bitmaps, and gets its filters.
    pub(super) fn recording_of(
        &self,
        name: &str,
        made: &MadeNode,
        before: Option<&MadeNode>,
    ) -> (Vec<ImplicitFilter>, Arc<NodeBitmaps>) {
        let known = self.vertices.get(name).filter(|_| before.is_some());
        let bitmaps = known.map(|it| Arc::clone(&it.bitmaps));
        let bitmaps = bitmaps.unwrap_or_else(|| NodeBitmaps::new(made.node.size()));
        (Vec::from_iter(recorder_of_image(made, &bitmaps)), bitmaps)
    }

    /// The bitmaps of a node, of the size that it has by now.
    pub fn bitmaps(&self, name: &str) -> Result<&Arc<NodeBitmaps>, ModelError> {
        let size = self.node(name)?.size();
        let bitmaps = &self.vertices[name].bitmaps;
        // Who uses them finds those of before.
        if let Err(error) = bitmaps.catch_up(size) {
            tracing::error!("node {name}: its dirty bitmaps cannot grow with it: {error}");
        }
        Ok(bitmaps)
    }

    /// The names of the nodes that have bitmaps.
    pub fn nodes_with_bitmaps(&self) -> Vec<&str> {
        let with = self.vertices.iter().filter(|(_, vertex)| !vertex.bitmaps.is_empty());
        let mut names: Vec<_> = with.map(|(name, _)| name.as_str()).collect();
        names.sort_unstable();
        names
    }

    /// The change that has what is changed on a node recorded in its bitmaps, if it is not yet.
    pub fn put_recorder(&self, name: &str) -> Result<Option<GraphChange>, ModelError> {
        if self.has_filter(name, FilterKind::Recorder)? {
            return Ok(None);
        }
        let bitmaps = Arc::clone(&self.vertices[name].bitmaps);
        self.put_filter(name, FilterKind::Recorder, |child| {
            Arc::new(RecorderNode::new(child, bitmaps))
        })
        .map(Some)
    }

    /// The granularity of a bitmap for which none is said: that of the image's clusters, as in QEMU.
    pub fn default_granularity(&self, name: &str) -> Granularity {
        let mut at = name;
        loop {
            let Some(vertex) = self.vertices.get(at) else { return Granularity::DEFAULT };
            if let Some(image) = &vertex.made.image {
                let cluster = 1_u64 << image.header().cluster_bits;
                return Granularity::new(cluster.max(CLUSTER_MIN)).unwrap_or(Granularity::DEFAULT);
            }
            let same = |edge: &&Edge| edge.role.is_same_disk();
            match self.below(at).iter().find(same) {
                Some(edge) => at = &edge.node,
                None => return Granularity::DEFAULT,
            }
        }
    }

    /// The internal snapshots of the disk that a node shows, with the name of the node that has them: itself, or what filters
    /// without anything else below them lead down to.
    pub fn internal_snapshots<'a>(
        &'a self,
        name: &'a str,
    ) -> Option<(&'a str, Arc<dyn InternalSnapshots>)> {
        let mut at = name;
        loop {
            if let Some(snapshots) = self.node_info(at).ok()?.node.internal_snapshots() {
                return Some((at, snapshots));
            }
            match self.below(at) {
                [edge] if edge.role.is_same_disk() => at = &edge.node,
                _ => return None,
            }
        }
    }

    /// The image that can compress what is written to a node: itself, or what filters lead down to that pass on how it is to be
    /// stored (QEMU's `bdrv_supports_compressed_writes`).
    pub fn compressing_image(&self, name: &str) -> Option<&Arc<Qcow2Node>> {
        let mut at = name;
        loop {
            let NodeInfo { driver, image, .. } = self.node_info(at).ok()?;
            if let Some(image) = image {
                return Some(image).filter(|image| !image.header().features.external_data);
            }
            match self.below(at) {
                [edge] if matches!(driver, "throttle" | "copy-on-read") => at = &edge.node,
                _ => return None,
            }
        }
    }

    /// A node, what it passes on if it is a filter, and their backing files: where a bitmap of that disk may be.
    pub fn chain_below<'a>(&'a self, name: &'a str) -> Vec<&'a str> {
        let mut chain = vec![name];
        while let Some(at) = chain.last() {
            let is_filter = self.model.is_filter(at);
            let leads_down = |edge: &&Edge| match edge.role {
                ChildRole::Backing => true,
                ChildRole::CopiedTo | ChildRole::Filtered | ChildRole::Preserved => is_filter,
                ChildRole::Member
                | ChildRole::Metadata
                | ChildRole::Data
                | ChildRole::PreservedTo
                | ChildRole::AtInstant
                | ChildRole::JobSource
                | ChildRole::JobTarget
                | ChildRole::JobOverlay
                | ChildRole::JobBase => false,
            };
            match self.below(at).iter().find(leads_down) {
                Some(edge) => chain.push(&edge.node),
                None => break,
            }
        }
        chain
    }
}

impl GraphChange {
    /// Whether no node is left that something was written to: a filter is none.
    pub fn leaves_nothing(&self) -> bool {
        self.places.is_empty() || self.is_of_filters
    }

    /// Has what stands above these nodes stand still too while it is made.
    pub fn reach_to(&mut self, nodes: &[String]) {
        for node in nodes {
            let user = NodeUser::Node(node.clone());
            self.exports.extend(self.model.exports_above(&user));
            self.jobs.extend(self.model.jobs_above(&user));
        }
    }
}
