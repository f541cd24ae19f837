//! Nodes that are made anew with other options while exports stand on them (QEMU's `blockdev-reopen`).
//!
//! Where it stands: a part of a change of the graph (`change`): the new node goes into all places of the old one.
//!
//! Invariants: what a driver cannot change is as it was; nobody who writes is left on a read-only node. A file below an
//! image that is used stays: the image has claimed it, and knows how it is opened.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{ChildEdge, EdgeChange, Graph, GraphError, Vertex};
use crate::drivers::{BACKING, Blockdev, BlockdevRef, KeyedChild};
use crate::model::{GraphModel, ModelError, NodeUser};

/// The key of a file.
const FILENAME: &str = "filename";

/// What makes a node as it is described anew.
#[derive(Debug)]
pub struct NodeReopening {
    /// Other nodes below it.
    pub edges: Vec<EdgeChange>,
    /// The node itself, if its own options are others.
    pub node: Option<Blockdev>,
}

/// Whether that is what stands behind the name of a group of options.
fn is_inner(rest: &str) -> bool {
    rest.starts_with('.')
}

impl Graph {
    /// What makes a node that is there as it is described anew: other nodes below it, and itself, if other options are
    /// among those that its driver can change. All else must be as it was.
    pub fn reopen(&self, blockdev: &Blockdev) -> Result<NodeReopening, ModelError> {
        let name = blockdev.name_below("", "");
        self.node(&name)?;
        let vertex = &self.vertices[&name];
        let before: BTreeMap<_, _> = vertex.options.iter().cloned().collect();
        let after: BTreeMap<_, _> = blockdev.describe(&self.throttle_groups).into_iter().collect();
        let keys = before.keys().chain(after.keys());
        // Files are not among the options that are described.
        if vertex.written.get(FILENAME) != blockdev.written.get(FILENAME) {
            return Err(ModelError::FixedOption { node: name, key: FILENAME.to_owned() });
        }
        let mut changed = keys.filter(|key| before.get(*key) != after.get(*key)).peekable();
        let is_remade = changed.peek().is_some();
        let may_change = |key: &str| {
            let all = vertex.driver.map_or(&[][..], |driver| driver.changeable);
            all.iter().any(|known| key == *known || key.strip_prefix(known).is_some_and(is_inner))
        };
        if let Some(key) = changed.find(|key| !may_change(key)) {
            return Err(ModelError::FixedOption { node: name, key: key.clone() });
        }
        let user = NodeUser::Node(name.clone());
        let mut changes = Vec::new();
        for KeyedChild { key, node } in &blockdev.children {
            let BlockdevRef::Reference(by) = node else {
                return Err(ModelError::InlineChild { node: name, key: key.clone() });
            };
            let edges = self.model.below(&user);
            if edges.iter().all(|edge| edge.key != *key || edge.node != *by) {
                let (user, key) = (user.clone(), key.clone());
                changes.push(EdgeChange { user, key, by: Some(by.clone()) });
            }
        }
        let is_named = |key: &str| blockdev.children.iter().any(|child| child.key == key);
        if self.model.below(&user).iter().any(|edge| edge.key == BACKING) && !is_named(BACKING) {
            if !blockdev.written.contains_key(BACKING) {
                return Err(ModelError::NoBackingSaid(name));
            }
            changes.push(EdgeChange { user, key: BACKING.to_owned(), by: None });
        }
        Ok(NodeReopening { edges: changes, node: is_remade.then(|| blockdev.clone()) })
    }

    /// Notes in a model that these nodes have other options, and whether they may.
    pub(super) fn judge_reopened(
        &self,
        model: &mut GraphModel,
        changes: &[EdgeChange],
        reopened: &[Blockdev],
    ) -> Result<(), ModelError> {
        for (place, blockdev) in reopened.iter().enumerate() {
            let name = blockdev.name_below("", "");
            let is_it = |other: &Blockdev| other.name_below("", "") == name;
            let is_put = |change: &EdgeChange| change.by.as_ref() == Some(&name);
            if reopened[..place].iter().any(is_it) || changes.iter().any(is_put) {
                return Err(ModelError::ReopenedTwice(name));
            }
            if let Some(image) = self.image_in_use_above(model, &name) {
                return Err(ModelError::ReopenBelowImage { node: name, image });
            }
            let objects =
                blockdev.entry(&name, Vec::new(), crate::model::NodeOwner::Operator).objects;
            model.reopen_node(&name, blockdev.base.access(), &objects)?;
        }
        // Of several each may need the others.
        reopened.iter().try_for_each(|blockdev| model.check_access(&blockdev.name_below("", "")))
    }

    /// An image that an export uses, and that stands on this node.
    fn image_in_use_above(&self, model: &GraphModel, node: &str) -> Option<String> {
        model.users_of(node).into_iter().find_map(|(user, _)| {
            let NodeUser::Node(name) = &user else { return None };
            if self.is_image(&user) && !model.exports_above(&user).is_empty() {
                return Some(name.clone());
            }
            self.image_in_use_above(model, name)
        })
    }

    /// Makes these nodes anew over what is below them. Blocks.
    pub(super) fn remake(
        &self,
        reopened: &[Blockdev],
    ) -> Result<Vec<(String, Vertex)>, GraphError> {
        let make = |blockdev: &Blockdev| {
            let name = blockdev.name_below("", "");
            let user = NodeUser::Node(name.clone());
            let below = self.model.below(&user).iter().map(|edge| {
                let place = Arc::clone(self.place(&user, &edge.key));
                ChildEdge { edge: edge.clone(), place }
            });
            let before = &self.vertices[&name].made;
            let vertex = self.make(&name, blockdev, below.collect(), Some(before))?;
            let is_shown = |(user, _): &(NodeUser, String)| !self.is_image(user);
            if self.model.users_of(&name).iter().any(is_shown) {
                vertex.check_end(&name)?;
            }
            Ok((name, vertex))
        };
        reopened.iter().map(make).collect()
    }
}
