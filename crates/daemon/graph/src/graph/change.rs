//! What a change of the graph is, whether it may be, and that it was made.
//!
//! Where it stands: asked before anything is touched. `build::change` carries a change out: it drains what
//! stands above, and tells how it ended.
//!
//! Invariants: the replacements are judged in their order on a copy of the model, where each may meet a circle, permissions
//! that conflict, or what is read-only below a writer. A node of another size is refused, but not a file below an image.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use block::{Child, Node};
use kernel_io::{FileReplacement, OpenFile};

use super::Graph;
use crate::model::{GraphModel, ModelError, NodeUser};

/// Another node for one edge of the graph.
#[derive(Debug, Clone)]
pub struct NodeReplacement {
    /// What stands above.
    pub user: NodeUser,
    /// The key of the place, as `file`; `root` below an export.
    pub key: String,
    /// The node that goes there.
    pub by: String,
}

/// A change of the graph that was found to be possible: other nodes on some edges.
#[derive(Debug)]
pub struct GraphChange {
    places: Vec<ReplacedChild>,
    /// Which exports stand above, by id.
    pub exports: BTreeSet<String>,
    /// Where a file takes the place of another one of the same image, which no export uses any more afterwards.
    pub successions: Vec<FileReplacement>,
    /// The graph with it.
    model: GraphModel,
}

/// One edge of a change, with the node that goes there.
#[derive(Debug)]
struct ReplacedChild {
    child: Arc<Child>,
    node: Arc<dyn Node>,
}

/// A change of the graph that is not possible. Every message names the node.
#[derive(Debug, thiserror::Error)]
pub enum GraphChangeRefusal {
    /// The nodes do not fit together.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// Guests know the size.
    #[error(
        "node {child} has {found} bytes, and {wanted} bytes are wanted in its place below {user}"
    )]
    Size {
        /// The node.
        child: String,
        /// Its size.
        found: u64,
        /// The size of the node that is there.
        wanted: u64,
        /// What stands above.
        user: NodeUser,
    },
}

impl GraphChange {
    /// The nodes that go into the places.
    pub fn nodes(&self) -> impl Iterator<Item = &Arc<dyn Node>> {
        self.places.iter().map(|place| &place.node)
    }

    /// Puts them there; what was there is put back by doing it again.
    pub fn swap(&mut self) {
        // One place can be in it twice: what came first is put back last.
        for place in &mut self.places {
            place.node = place.child.replace(Arc::clone(&place.node));
        }
        self.places.reverse();
    }
}

impl Graph {
    /// Whether these nodes may be put in their places, one after the other. Nothing is changed.
    pub fn change(
        &self,
        replacements: &[NodeReplacement],
    ) -> Result<GraphChange, GraphChangeRefusal> {
        let mut model = self.model.clone();
        let (mut exports, mut places, mut left) = (BTreeSet::new(), Vec::new(), Vec::new());
        for replacement in replacements {
            let NodeReplacement { user, key, by } = replacement;
            left.push(model.replace(user, key, by)?);
            exports.extend(model.exports_above(user));
            let child = Arc::clone(self.place(user, key));
            let node = Arc::clone(self.node(by)?);
            let (found, wanted) = (node.size().0.0, child.node().size().0.0);
            // The size of an image is what it says itself; its file grows.
            if found != wanted && !self.is_image(user) {
                let (child, user) = (by.clone(), user.clone());
                return Err(GraphChangeRefusal::Size { child, found, wanted, user });
            }
            places.push(ReplacedChild { child, node });
        }
        let new = replacements.iter().map(|replacement| &*replacement.by);
        let successions = self.successions(&model, left.iter().map(String::as_str), new);
        Ok(GraphChange { places, exports, successions, model })
    }

    /// A change was made.
    pub fn changed(&mut self, change: GraphChange) {
        self.model = change.model;
    }

    /// The files below new nodes that take the place of files below old ones, as the model is after the change. Not those
    /// below an image: what it knows of its file would be from before the change.
    fn successions<'a>(
        &'a self,
        after: &'a GraphModel,
        old: impl Iterator<Item = &'a str>,
        new: impl Iterator<Item = &'a str>,
    ) -> Vec<FileReplacement> {
        let mut leaving = self.plain_files_below(&self.model, old);
        leaving
            .retain(|node, _| after.exports_above(&NodeUser::Node((*node).to_owned())).is_empty());
        let succession = |file: &Arc<OpenFile>| {
            let same = |other: &&&Arc<OpenFile>| {
                other.identity() == file.identity() && !Arc::ptr_eq(other, file)
            };
            let before = Arc::clone(leaving.values().find(same)?);
            Some(FileReplacement { before, after: Arc::clone(file) })
        };
        self.plain_files_below(after, new).into_values().filter_map(succession).collect()
    }

    /// The files below nodes of a model, by the names of the nodes that opened them, without those below an image.
    fn plain_files_below<'a>(
        &'a self,
        model: &'a GraphModel,
        nodes: impl Iterator<Item = &'a str>,
    ) -> BTreeMap<&'a str, &'a Arc<OpenFile>> {
        let (mut files, mut next) = (BTreeMap::new(), nodes.collect::<Vec<_>>());
        while let Some(name) = next.pop() {
            let vertex = &self.vertices[name];
            if vertex.made.image.is_none() {
                files.extend(vertex.made.file.iter().map(|file| (name, file)));
                let below = model.below(&NodeUser::Node(name.to_owned()));
                next.extend(below.iter().map(|edge| edge.node.as_str()));
            }
        }
        files
    }

    /// The place below a user, which the model knows.
    fn place(&self, user: &NodeUser, key: &str) -> &Arc<Child> {
        let place = match user {
            NodeUser::Node(name) => {
                let mut places = self.vertices[name].places.iter();
                places.find(|(known, _)| known == key).map(|(_, place)| place)
            }
            NodeUser::Export(id) => self.roots.get(id),
        };
        place.expect("every edge of the model has its place")
    }

    fn is_image(&self, user: &NodeUser) -> bool {
        matches!(user, NodeUser::Node(name) if self.vertices[name].made.image.is_some())
    }
}
