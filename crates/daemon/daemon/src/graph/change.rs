//! What a change of the graph is, whether it may be, and that it was made.
//!
//! Where it stands: asked before anything is touched. Who carries a change out (`build::change`) drains what
//! stands above, and tells how it ended.

use std::collections::BTreeSet;
use std::sync::Arc;

use block::{Access, Node};
use kernel_io::{OpenFile, Succession};

use super::{Below, Graph, GraphError};
use crate::permissions::{Conflict, User, Uses};

/// A change that may be made: another node in one place.
#[derive(Debug)]
pub(crate) struct Change {
    user: User,
    key: String,
    by: String,
    /// Where.
    pub(crate) place: Arc<block::Child>,
    /// What goes there.
    pub(crate) node: Arc<dyn Node>,
    /// Which exports stand above, by id.
    pub(crate) exports: BTreeSet<String>,
    /// Where a file takes the place of another one of the same image, which no export uses any more afterwards.
    pub(crate) successions: Vec<Succession>,
    /// The graph with it.
    uses: Uses,
}

/// A change cannot be. Every message names the node.
#[derive(Debug, thiserror::Error)]
pub enum ChangeFault {
    /// There is no such node.
    #[error(transparent)]
    Unknown(#[from] GraphError),
    /// There is no such place.
    #[error("{user} has no child '{key}'")]
    NoPlace {
        /// Who should have it.
        user: String,
        /// The key.
        key: String,
    },
    /// It would stand on itself.
    #[error("node '{}' would stand on itself: {}", way[0], way.join(" -> "))]
    Cycle {
        /// The way down from the node to itself; never empty.
        way: Vec<String>,
    },
    /// Users of a node could not meet there.
    #[error(transparent)]
    Conflict(#[from] Box<Conflict>),
    /// An inactive node below an active one.
    #[error("Inactive '{child}' can't be a {key} child of active '{node}'")]
    Inactive {
        /// The active one.
        node: String,
        /// The inactive one.
        child: String,
        /// The key that it would stand under.
        key: String,
    },
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
        /// Who is above.
        user: String,
    },
    /// Who is above writes.
    #[error("node {child} is read-only, and {user} is not")]
    ReadOnly {
        /// The node.
        child: String,
        /// Who is above.
        user: String,
    },
}

impl Graph {
    /// Whether that node may be put in the place below a user. Nothing is changed.
    pub(crate) fn change(&self, user: &User, key: &str, by: &str) -> Result<Change, ChangeFault> {
        let name = || user.to_string();
        let no_place = || ChangeFault::NoPlace { user: name(), key: key.to_owned() };
        let below = self.below(user, key).ok_or_else(no_place)?;
        let node = Arc::clone(self.node(by)?);
        let mut uses = self.uses.clone();
        let mut is_image = false;
        let (exports, writes) = match user {
            User::Node(user) => {
                if let Some(way) = uses.path(by, user) {
                    return Err(ChangeFault::Cycle { way: [vec![user.clone()], way].concat() });
                }
                if !self.activity(user).may_stand_on(self.activity(by)) {
                    let (node, child, key) = (user.clone(), by.to_owned(), key.to_owned());
                    return Err(ChangeFault::Inactive { node, child, key });
                }
                let vertex = self.vertex(user)?;
                is_image = vertex.made.image.is_some();
                (uses.exports_above(user), vertex.made.node.access() == Access::ReadWrite)
            }
            User::Export(id) => (BTreeSet::from([id.clone()]), uses.writes(user)),
        };
        if writes && node.access() == Access::ReadOnly {
            return Err(ChangeFault::ReadOnly { child: by.to_owned(), user: name() });
        }
        let (found, wanted) = (node.size().0.0, below.place.node().size().0.0);
        // The size of an image is what it says itself; its file grows.
        if found != wanted && !is_image {
            let (child, user) = (by.to_owned(), name());
            return Err(ChangeFault::Size { child, found, wanted, user });
        }
        uses.replace(user, key, by)?;
        let successions = self.successions(&uses, &below.edge.node, by);
        let (user, key, by) = (user.clone(), key.to_owned(), by.to_owned());
        let place = Arc::clone(&below.place);
        Ok(Change { user, key, by, place, node, exports, successions, uses })
    }

    /// A change was made.
    pub(crate) fn changed(&mut self, change: Change) {
        self.uses = change.uses;
        let below = match &change.user {
            User::Node(name) => {
                let vertex =
                    self.vertices.get_mut(name).expect("nodes stay while they are changed");
                vertex.below.iter_mut().find(|below| below.edge.key == change.key)
            }
            User::Export(id) => self.roots.get_mut(id),
        };
        below.expect("places stay while they are changed").edge.node = change.by;
    }

    /// The files below the one node that take the place of files below the other. Not those below an image: what it
    /// knows of its file would be from before the change.
    fn successions(&self, after: &Uses, old: &str, new: &str) -> Vec<Succession> {
        let mut leaving = self.plain_files_below(old);
        leaving.retain(|(node, _)| after.exports_above(node).is_empty());
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
            if let Some(vertex) =
                self.vertices.get(name).filter(|vertex| vertex.made.image.is_none())
            {
                files.extend(vertex.made.file.iter().map(|file| (name, file)));
                next.extend(vertex.below.iter().map(|below| below.edge.node.as_str()));
            }
        }
        files
    }

    fn below(&self, user: &User, key: &str) -> Option<&Below> {
        let places = match user {
            User::Node(name) => self.vertices.get(name)?.below.iter().collect(),
            User::Export(id) => vec![self.roots.get(id)?],
        };
        places.into_iter().find(|below| below.edge.key == key)
    }
}
