//! Nodes that take changes although they were opened to be read, and the other way round: what a job writes to for a while.
//!
//! Where it stands: a change of the graph like others (`change`). What is written of the nodes stays as it was, so that a
//! restart opens them as before, until it is noted that they stay as they are.
//!
//! Invariants: a node and what its own bytes are in change together, each made anew over what is made anew below it; backing
//! files stay.

use std::collections::BTreeSet;
use std::sync::Arc;

use block::{Access, Child, Node};
use kernel_io::FileReplacement;
use layers::RecorderNode;
use serde_json::{Map, Value};

use super::change::{ChangedPlace, GraphChange, GraphChangeRefusal};
use super::filters::{FilterKind, ImplicitFilter};
use super::{ChildEdge, Graph, Vertex};
use crate::drivers::{Blockdev, on_off, pair};
use crate::model::{ChildRole, Edge, GraphModel, ModelError, NodeUser};

/// The key that says whether a node is only read.
const READ_ONLY: &str = "read-only";

/// What was written of nodes before it was noted whether they take changes, by name.
#[derive(Debug)]
pub struct AccessBefore(Vec<WrittenBefore>);

/// What was written of one node.
#[derive(Debug)]
struct WrittenBefore {
    node: String,
    written: Map<String, Value>,
    options: Vec<(String, String)>,
}

/// Whether what a node shows is in the one below.
fn has_its_bytes(edge: &Edge) -> bool {
    matches!(edge.role, ChildRole::Metadata | ChildRole::Data | ChildRole::Filtered)
}

impl Graph {
    /// The change that has a node, and what its bytes are in, take changes or not; none if that is so already. Blocks: files
    /// are opened.
    pub fn with_access(
        &self,
        node: &str,
        access: Access,
    ) -> Result<Option<GraphChange>, GraphChangeRefusal> {
        let mut names = Vec::new();
        self.parts_without(node, access, &mut names)?;
        if names.is_empty() {
            return Ok(None);
        }
        // Its filter would not be there any more.
        names.iter().try_for_each(|name| self.model.check_no_job(name))?;
        let mut model = self.model.clone();
        names.iter().for_each(|name| model.set_access(name, access));
        names.iter().try_for_each(|name| model.check_access(name))?;
        model.check_conflicts()?;
        let mut remade: Vec<(String, Vertex)> = Vec::new();
        for name in &names {
            let vertex = self.made_with(name, access, &remade)?;
            remade.push((name.clone(), vertex));
        }
        Ok(Some(self.access_change(model, remade)))
    }

    /// The nodes that are to change, lower ones first.
    fn parts_without(
        &self,
        name: &str,
        access: Access,
        names: &mut Vec<String>,
    ) -> Result<(), ModelError> {
        if self.model.access(name)? == access || names.iter().any(|known| known == name) {
            return Ok(());
        }
        for edge in self.below(name) {
            if has_its_bytes(edge) {
                self.parts_without(&edge.node, access, names)?;
            }
        }
        names.push(name.to_owned());
        Ok(())
    }

    /// A node made anew, over those below it that were.
    fn made_with(
        &self,
        name: &str,
        access: Access,
        remade: &[(String, Vertex)],
    ) -> Result<Vertex, GraphChangeRefusal> {
        let before = &self.vertices[name];
        let fixed = || ModelError::FixedOption { node: name.to_owned(), key: READ_ONLY.to_owned() };
        let (Some(driver), Some(options)) = (before.driver, before.own.clone()) else {
            return Err(fixed().into());
        };
        // Who else may write cannot be forbidden.
        if before.base.force_share {
            return Err(fixed().into());
        }
        let mut base = before.base;
        base.read_only = access == Access::ReadOnly;
        let blockdev = Blockdev {
            node_name: None,
            driver,
            options,
            children: Vec::new(),
            base,
            activity: self.model.activity(name)?,
            written: before.written.clone(),
        };
        let user = NodeUser::Node(name.to_owned());
        let below = self.below(name).iter().map(|edge| {
            let new = remade.iter().find(|(known, _)| *known == edge.node);
            let place = new.map_or_else(
                || Arc::clone(self.place(&user, &edge.key)),
                |(_, vertex)| Child::new(Arc::clone(vertex.shown())),
            );
            ChildEdge { edge: edge.clone(), place }
        });
        let mut vertex = self.make(name, &blockdev, below.collect(), Some(&before.made))?;
        vertex.options.clone_from(&before.options);
        let records = |filter: &ImplicitFilter| filter.kind() == FilterKind::Recorder;
        if vertex.filters.is_empty() && before.filters.iter().any(records) {
            let bitmaps = Arc::clone(&vertex.bitmaps);
            let make = |child| Arc::new(RecorderNode::new(child, bitmaps)) as Arc<dyn Node>;
            let filter = ImplicitFilter::first(FilterKind::Recorder, &vertex.made.node, make);
            vertex.filters.push(filter);
        }
        Ok(vertex)
    }

    fn access_change(&self, model: GraphModel, remade: Vec<(String, Vertex)>) -> GraphChange {
        let (mut places, mut successions, mut filtered) = (Vec::new(), Vec::new(), Vec::new());
        let (mut exports, mut jobs) = (BTreeSet::new(), BTreeSet::new());
        let is_remade =
            |user: &NodeUser| remade.iter().any(|(name, _)| *user == NodeUser::Node(name.clone()));
        for (name, vertex) in &remade {
            let user = NodeUser::Node(name.clone());
            exports.extend(model.exports_above(&user));
            jobs.extend(model.jobs_above(&user));
            let files = self.vertices[name].made.file.clone().zip(vertex.made.file.clone());
            successions.extend(files.map(|(before, after)| FileReplacement { before, after }));
            let users = self.model.users_of(name).into_iter();
            places.extend(users.filter(|(user, _)| !is_remade(user)).map(|(user, key)| {
                let child = Arc::clone(self.place(&user, &key));
                ChangedPlace::Node { child, node: Arc::clone(vertex.shown()) }
            }));
            filtered.push((name.clone(), vertex.filters.clone()));
        }
        let is_of_filters = false;
        GraphChange { places, exports, jobs, successions, remade, filtered, is_of_filters, model }
    }

    /// Bitmaps that are in a node's image are not known here until it takes changes again.
    pub fn forget_stored_bitmaps(&self, node: &str) {
        if let Some(vertex) = self.vertices.get(node).filter(|vertex| vertex.made.image.is_some()) {
            vertex.bitmaps.forget_persistent();
        }
    }

    /// From now on it is written of a node, and of what its bytes are in, that they take changes or not; gives what was written
    /// before.
    pub fn note_access(&mut self, node: &str, access: Access) -> AccessBefore {
        let mut before = AccessBefore(Vec::new());
        self.note_access_of(node, access, &mut before);
        before
    }

    fn note_access_of(&mut self, node: &str, access: Access, before: &mut AccessBefore) {
        let below = self.below(node).iter().filter(|edge| has_its_bytes(edge));
        let below: Vec<String> = below.map(|edge| edge.node.clone()).collect();
        if let Some(vertex) = self.vertices.get_mut(node) {
            let (written, options) = (vertex.written.clone(), vertex.options.clone());
            before.0.push(WrittenBefore { node: node.to_owned(), written, options });
            let is_read_only = access == Access::ReadOnly;
            vertex.written.insert(READ_ONLY.to_owned(), is_read_only.into());
            vertex.options.retain(|(key, _)| key != READ_ONLY);
            vertex.options.push(pair(READ_ONLY, on_off(is_read_only)));
        }
        below.iter().for_each(|node| self.note_access_of(node, access, before));
    }

    /// It is written of nodes what was written before.
    pub fn restore_access(&mut self, before: AccessBefore) {
        // One node may be in it twice.
        for WrittenBefore { node, written, options } in before.0.into_iter().rev() {
            if let Some(vertex) = self.vertices.get_mut(&node) {
                (vertex.written, vertex.options) = (written, options);
            }
        }
    }
}
