//! What a change of the graph is, whether it may be, and that it was made.
//!
//! Where it stands: asked before anything is touched. `build::change` carries a change out: it drains what
//! stands above, and tells how it ended.
//!
//! Invariants: the replacements are judged in their order on a copy of the model, where each may meet a circle, permissions
//! that conflict, or what is read-only below a writer. A node of another size is refused, but not a file below an image.

use std::collections::BTreeSet;
use std::sync::Arc;

use block::{Child, Node};
use kernel_io::{OpenFile, Succession};

use super::Graph;
use crate::model::{Model, ModelFault, User};

/// Another node for one place.
#[derive(Debug, Clone)]
pub(crate) struct Replacement {
    /// What stands above.
    pub(crate) user: User,
    /// The key of the place, as `file`; `root` below an export.
    pub(crate) key: String,
    /// The node that goes there.
    pub(crate) by: String,
}

/// A change that may be made: other nodes in some places.
#[derive(Debug)]
pub(crate) struct Change {
    places: Vec<Place>,
    /// Which exports stand above, by id.
    pub(crate) exports: BTreeSet<String>,
    /// Where a file takes the place of another one of the same image, which no export uses any more afterwards.
    pub(crate) successions: Vec<Succession>,
    /// The graph with it.
    model: Model,
}

#[derive(Debug)]
struct Place {
    replacement: Replacement,
    child: Arc<Child>,
    node: Arc<dyn Node>,
}

/// A change cannot be. Every message names the node.
#[derive(Debug, thiserror::Error)]
pub enum ChangeFault {
    /// The nodes do not fit together.
    #[error(transparent)]
    Model(#[from] ModelFault),
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
        user: User,
    },
}

impl Change {
    /// The nodes that go into the places.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = &Arc<dyn Node>> {
        self.places.iter().map(|place| &place.node)
    }

    /// Puts them there; what was there is put back by doing it again.
    pub(crate) fn swap(&mut self) {
        // One place can be in it twice: what came first is put back last.
        for place in &mut self.places {
            place.node = place.child.replace(Arc::clone(&place.node));
        }
        self.places.reverse();
    }
}

impl Graph {
    /// Whether these nodes may be put in their places, one after the other. Nothing is changed.
    pub(crate) fn change(&self, replacements: &[Replacement]) -> Result<Change, ChangeFault> {
        let mut model = self.model.clone();
        let (mut exports, mut places, mut left) = (BTreeSet::new(), Vec::new(), Vec::new());
        for replacement in replacements {
            let Replacement { user, key, by } = replacement;
            left.push(model.replace(user, key, by)?);
            exports.extend(model.exports_above(user));
            let child = Arc::clone(self.place(user, key));
            let node = Arc::clone(self.node(by)?);
            let (found, wanted) = (node.size().0.0, child.node().size().0.0);
            // The size of an image is what it says itself; its file grows.
            if found != wanted && !self.is_image(user) {
                let (child, user) = (by.clone(), user.clone());
                return Err(ChangeFault::Size { child, found, wanted, user });
            }
            places.push(Place { replacement: replacement.clone(), child, node });
        }
        let succession =
            |(old, place): (&String, &Place)| self.successions(&model, old, &place.replacement.by);
        let successions = left.iter().zip(&places).flat_map(succession).collect();
        Ok(Change { places, exports, successions, model })
    }

    /// A change was made.
    pub(crate) fn changed(&mut self, change: Change) {
        self.model = change.model;
    }

    /// The files below the one node that take the place of files below the other. Not those below an image: what it
    /// knows of its file would be from before the change.
    fn successions(&self, after: &Model, old: &str, new: &str) -> Vec<Succession> {
        let mut leaving = self.plain_files_below(old);
        leaving.retain(|(node, _)| after.exports_above(&User::Node((*node).to_owned())).is_empty());
        let succession = |(_, file): (&str, &Arc<OpenFile>)| {
            let same = |(_, other): &&(&str, &Arc<OpenFile>)| {
                other.identity() == file.identity() && !Arc::ptr_eq(other, file)
            };
            let (_, before) = leaving.iter().find(same)?;
            Some(Succession { before: Arc::clone(before), after: Arc::clone(file) })
        };
        self.plain_files_below(new).into_iter().filter_map(succession).collect()
    }

    /// The files below a node, with the nodes that opened them, without those below an image.
    fn plain_files_below<'a>(&'a self, name: &'a str) -> Vec<(&'a str, &'a Arc<OpenFile>)> {
        let (mut files, mut next) = (Vec::new(), vec![name]);
        while let Some(name) = next.pop() {
            let vertex = &self.vertices[name];
            if vertex.made.image.is_none() {
                files.extend(vertex.made.file.iter().map(|file| (name, file)));
                next.extend(self.below(name).iter().map(|edge| edge.node.as_str()));
            }
        }
        files
    }

    /// The place below a user, which the model knows.
    fn place(&self, user: &User, key: &str) -> &Arc<Child> {
        let place = match user {
            User::Node(name) => {
                let mut places = self.vertices[name].places.iter();
                places.find(|(known, _)| known == key).map(|(_, place)| place)
            }
            User::Export(id) => self.roots.get(id),
        };
        place.expect("every edge of the model has its place")
    }

    fn is_image(&self, user: &User) -> bool {
        matches!(user, User::Node(name) if self.vertices[name].made.image.is_some())
    }
}
