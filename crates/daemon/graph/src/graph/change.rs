//! What a change of the graph is, whether it may be, and that it was made.
//! Not here: options of nodes that change (`reopen`).
//!
//! Where it stands: asked before anything is touched. `build::change` carries a change out: it drains what
//! stands above, and tells how it ended.
//!
//! Invariants: the replacements are judged in their order on a copy of the model, where each may meet a circle or what is
//! read-only below a writer; permissions may not conflict when all are made. A node of another size is refused, but not a
//! file below an image.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use block::{Child, Node};
use kernel_io::{FileReplacement, OpenFile};
use qcow2::Qcow2Node;
use serde_json::Value;
use syntax::ValueType;

use super::filters::ImplicitFilter;
use super::{Graph, GraphError, Vertex};
use crate::drivers::{BACKING, Blockdev};
use crate::model::{ChildRole, GraphModel, ModelError, NodeUser};

/// Another node for one edge of the graph, a new edge, or the end of one.
#[derive(Debug, Clone)]
pub struct EdgeChange {
    /// What stands above.
    pub user: NodeUser,
    /// The key of the place, as `file`; `root` below an export.
    pub key: String,
    /// The node that goes there; none ends an edge that need not be (`backing`).
    pub by: Option<String>,
}

/// A change of the graph that was found to be possible: other nodes on some edges.
#[derive(Debug)]
pub struct GraphChange {
    pub(super) places: Vec<ChangedPlace>,
    /// Which exports stand above, by id.
    pub exports: BTreeSet<String>,
    /// Which jobs stand above, by id.
    pub jobs: BTreeSet<String>,
    /// Where a file takes the place of another one of the same image, which no export uses any more afterwards.
    pub successions: Vec<FileReplacement>,
    /// Nodes that are made anew, with other options.
    pub(super) remade: Vec<(String, Vertex)>,
    /// Nodes that have these filters then.
    pub(super) filtered: Vec<(String, Vec<ImplicitFilter>)>,
    /// Whether only filters come or go.
    pub(super) is_of_filters: bool,
    /// The graph with it.
    pub(super) model: GraphModel,
}

/// One edge of a change, with what goes there; what was there once it is done.
#[derive(Debug)]
pub(super) enum ChangedPlace {
    /// A node in the place of another one.
    Node { child: Arc<Child>, node: Arc<dyn Node> },
    /// A backing file where none was, or none where one was.
    Backing { user: String, image: Arc<Qcow2Node>, child: Option<Arc<Child>> },
}

/// A change of the graph that is not possible. Every message names the node.
#[derive(Debug, thiserror::Error)]
pub enum GraphChangeRefusal {
    /// The nodes do not fit together.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A node cannot be made anew.
    #[error(transparent)]
    Remake(#[from] GraphError),
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

/// Which node may take the place of another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SizePolicy {
    /// One of the same size.
    Equal,
    /// One that is not smaller.
    MayGrow,
}

impl SizePolicy {
    /// Whether a node may take the place of the other one below that user.
    fn check(
        self,
        user: &NodeUser,
        (before, node): (&dyn Node, &dyn Node),
    ) -> Result<(), GraphChangeRefusal> {
        let (found, wanted) = (node.size().0.0, before.size().0.0);
        let is_good = match self {
            Self::Equal => found == wanted,
            Self::MayGrow => found >= wanted,
        };
        if is_good {
            return Ok(());
        }
        let (child, user) = (node.name().to_owned(), user.clone());
        Err(GraphChangeRefusal::Size { child, found, wanted, user })
    }
}

impl GraphChange {
    /// One of nodes, with the exports and jobs that stand above.
    fn of_nodes(
        places: Vec<ChangedPlace>,
        [exports, jobs]: [BTreeSet<String>; 2],
        successions: Vec<FileReplacement>,
        remade: Vec<(String, Vertex)>,
        model: GraphModel,
    ) -> Self {
        let (filtered, is_of_filters) = (Vec::new(), false);
        Self { places, exports, jobs, successions, remade, filtered, is_of_filters, model }
    }

    /// The node below an export with it.
    pub fn root(&self, export: &str) -> Option<&str> {
        self.model.root(export)
    }

    /// Both changes, of which the other one only has filters come or go, on other nodes, at once.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        self.places.extend(other.places);
        self.exports.extend(other.exports);
        self.jobs.extend(other.jobs);
        self.filtered.extend(other.filtered);
        self.is_of_filters &= other.is_of_filters;
        self
    }

    /// The same after filters were put on nodes, for jobs that begin with it: whoever comes to stand on such a node by this change
    /// stands on its filter ([`Graph::change_above`]).
    #[must_use]
    pub fn above(self, mut filters: Self) -> Self {
        filters.model = self.model.clone();
        let Self { places, successions, remade, .. } = self;
        filters.is_of_filters = false;
        filters.places.extend(places);
        filters.exports.extend(self.exports);
        filters.jobs.extend(self.jobs);
        filters.successions.extend(successions);
        filters.remade.extend(remade);
        filters
    }

    /// The same, of filters alone, which change nothing in the model, where jobs were added since.
    #[must_use]
    pub fn in_model_of(mut self, graph: &Graph) -> Self {
        self.model.clone_from(&graph.model);
        self
    }

    /// The nodes that go into the places.
    pub fn nodes(&self) -> impl Iterator<Item = Arc<dyn Node>> {
        self.places.iter().filter_map(|place| match place {
            ChangedPlace::Node { node, .. } => Some(Arc::clone(node)),
            ChangedPlace::Backing { child, .. } => child.as_ref().map(|child| child.node()),
        })
    }

    /// The uppermost filter that a node has with it, if that is another one than before.
    fn top_of(&self, node: &str) -> Option<Arc<dyn Node>> {
        let (_, filters) = self.filtered.iter().find(|(name, _)| name == node)?;
        filters.last().map(|filter| Arc::clone(&filter.node))
    }

    /// Puts them there; what was there is put back by doing it again.
    pub fn swap(&mut self) {
        // One place can be in it twice: what came first is put back last.
        for place in &mut self.places {
            match place {
                ChangedPlace::Node { child, node } => *node = child.replace(Arc::clone(node)),
                ChangedPlace::Backing { image, child, .. } => {
                    *child = image.replace_backing(child.take());
                }
            }
        }
        self.places.reverse();
    }
}

impl Graph {
    /// Whether these nodes may be put in their places, one after the other, and those be made anew with other options.
    /// Nothing is changed. Blocks, if files are opened anew.
    pub fn change(
        &self,
        changes: &[EdgeChange],
        reopened: &[Blockdev],
    ) -> Result<GraphChange, GraphChangeRefusal> {
        self.change_of(self.model.clone(), changes, reopened, (SizePolicy::Equal, None))
    }

    /// The same with filters that are put on nodes at once, for jobs that begin with it and are in the model already.
    pub fn change_above(
        &self,
        changes: &[EdgeChange],
        filters: GraphChange,
        beginning: &BTreeSet<String>,
    ) -> Result<GraphChange, GraphChangeRefusal> {
        let (model, above) = (self.model.clone(), Some((&filters, beginning)));
        let change = self.change_of(model, changes, &[], (SizePolicy::Equal, above))?;
        Ok(change.above(filters))
    }

    /// The change that ends a job, and has all who stand on one of its nodes stand on the other, which may be larger.
    pub fn switch(
        &self,
        job: &str,
        from: &str,
        to: &str,
    ) -> Result<GraphChange, GraphChangeRefusal> {
        // What goes there may stand on what it takes the place of.
        let stays = [NodeUser::Job(job.to_owned()), NodeUser::Node(to.to_owned())];
        let is_other = |(user, _): &(NodeUser, String)| !stays.contains(user);
        let users = self.model.users_of(from).into_iter().filter(is_other);
        let moved = users.map(|(user, key)| EdgeChange { user, key, by: Some(to.to_owned()) });
        self.end_job(job, &moved.collect::<Vec<_>>())
    }

    /// The change that ends a job, and puts those nodes in their places, which may be larger than those that are there.
    pub fn end_job(
        &self,
        job: &str,
        changes: &[EdgeChange],
    ) -> Result<GraphChange, GraphChangeRefusal> {
        let mut model = self.model.clone();
        model.remove_job(job);
        let mut change = self.change_of(model, changes, &[], (SizePolicy::MayGrow, None))?;
        change.jobs.insert(job.to_owned());
        Ok(change)
    }

    fn change_of(
        &self,
        mut model: GraphModel,
        changes: &[EdgeChange],
        reopened: &[Blockdev],
        (sizes, above): (SizePolicy, Option<(&GraphChange, &BTreeSet<String>)>),
    ) -> Result<GraphChange, GraphChangeRefusal> {
        let (filters, no_jobs) = (above.map(|it| it.0), BTreeSet::new());
        let beginning = above.map_or(&no_jobs, |it| it.1);
        let (mut places, mut left) = (Vec::new(), Vec::new());
        let (mut exports, mut jobs) = (BTreeSet::new(), BTreeSet::new());
        for (place, EdgeChange { user, key, by }) in changes.iter().enumerate() {
            let optional = self.optional_child(user, key);
            let mut others = changes[..place].iter();
            if optional.is_some() && others.any(|other| other.user == *user && other.key == *key) {
                return Err(ModelError::EdgeTwice { user: user.clone(), key: key.clone() }.into());
            }
            let below = model.below(user).iter().find(|edge| edge.key == *key);
            if let Some(node) = below.map(|edge| edge.node.clone()) {
                model.check_no_job_but(&node, beginning)?;
            }
            let before =
                model.set_edge(user, key, by.as_deref(), optional.as_ref().map(|it| it.1))?;
            exports.extend(model.exports_above(user));
            jobs.extend(model.jobs_above(user));
            let node = by.as_deref().map(|by| self.top_with(by, filters)).transpose()?;
            match (before, node, optional) {
                (Some(before), Some(node), _) => {
                    let child = Arc::clone(self.place(user, key));
                    // The size of an image is what it says itself; its file grows.
                    if !self.is_image(user) {
                        sizes.check(user, (&*child.node(), &*node))?;
                    }
                    left.push(before);
                    places.push(ChangedPlace::Node { child, node });
                }
                (before, node, Some((image, _))) => {
                    left.extend(before);
                    let (NodeUser::Node(user) | NodeUser::Export(user) | NodeUser::Job(user)) =
                        user.clone();
                    let child = node.map(Child::new);
                    places.push(ChangedPlace::Backing { user, image, child });
                }
                (_, _, None) => unreachable!("the model knows which edges need not be"),
            }
        }
        model.check_conflicts()?;
        let new = changes.iter().filter_map(|change| change.by.as_deref());
        let mut successions = self.successions(&model, left.iter().map(String::as_str), new);
        self.judge_reopened(&mut model, changes, reopened)?;
        let remade = self.remake(reopened)?;
        for (name, vertex) in &remade {
            let user = NodeUser::Node(name.clone());
            exports.extend(model.exports_above(&user));
            jobs.extend(model.jobs_above(&user));
            let before = self.vertices[name].made.file.clone();
            let files = before.zip(vertex.made.file.clone());
            successions.extend(files.map(|(before, after)| FileReplacement { before, after }));
            let moved = |user: &NodeUser, key: &str| {
                changes.iter().any(|change| change.user == *user && change.key == key)
            };
            let node = &vertex.made.node;
            if let Some(filter) = self.vertices[name].filters.first() {
                places.push(filter.place_below(node));
                continue;
            }
            let users = self.model.users_of(name).into_iter();
            places.extend(users.filter(|(user, key)| !moved(user, key)).map(|(user, key)| {
                let child = Arc::clone(self.place(&user, &key));
                ChangedPlace::Node { child, node: Arc::clone(node) }
            }));
        }
        Ok(GraphChange::of_nodes(places, [exports, jobs], successions, remade, model))
    }

    /// What those who come to stand on a node stand on, if these filters are put there.
    fn top_with(
        &self,
        node: &str,
        filters: Option<&GraphChange>,
    ) -> Result<Arc<dyn Node>, ModelError> {
        let filter = filters.and_then(|filters| filters.top_of(node));
        filter.map_or_else(|| self.node(node).map(Arc::clone), Ok)
    }

    /// The changes that put an image on a node: all who stand on the node stand on the image then, and the node is its
    /// backing file.
    pub fn snapshot(&self, node: &str, overlay: &str) -> Result<Vec<EdgeChange>, ModelError> {
        self.node(node)?;
        self.node(overlay)?;
        let users = self.model.users_of(node);
        let is_backing = |(user, key): &(NodeUser, String)| match user {
            NodeUser::Node(user) if key == BACKING => Some(user.clone()),
            NodeUser::Node(_) | NodeUser::Export(_) | NodeUser::Job(_) => None,
        };
        if let Some(user) = users.iter().find_map(is_backing) {
            return Err(ModelError::IsBacking { node: node.to_owned(), user });
        }
        let image = NodeUser::Node(overlay.to_owned());
        if self.optional_child(&image, BACKING).is_none() {
            return Err(ModelError::NoOverlay(overlay.to_owned()));
        }
        if !self.model.users_of(overlay).is_empty() {
            return Err(ModelError::OverlayInUse);
        }
        if self.model.below(&image).iter().any(|edge| edge.key == BACKING) {
            return Err(ModelError::OverlayHasBacking);
        }
        let above = users.into_iter();
        let moved = above.map(|(user, key)| EdgeChange { user, key, by: Some(overlay.to_owned()) });
        let below = EdgeChange { user: image, key: BACKING.to_owned(), by: Some(node.to_owned()) };
        Ok(moved.chain([below]).collect())
    }

    /// An image that may have a child under that key or none, and what the child is to it.
    fn optional_child(&self, user: &NodeUser, key: &str) -> Option<(Arc<Qcow2Node>, ChildRole)> {
        let NodeUser::Node(name) = user else { return None };
        let Vertex { made, driver, .. } = self.vertices.get(name)?;
        let driver = (*driver)?;
        let mut keys = driver.keys.supported().filter(|known| known.name == key);
        keys.find(|known| matches!(known.takes, ValueType::NodeOrNull))?;
        Some((made.image.clone()?, driver.role(key)))
    }

    /// A change was made.
    pub fn changed(&mut self, change: GraphChange) {
        self.model = change.model;
        for (name, mut vertex) in change.remade {
            if let Some(before) = self.vertices.remove(&name) {
                (vertex.filters, vertex.bitmaps) = (before.filters, before.bitmaps);
            }
            self.vertices.insert(name, vertex);
        }
        for (name, filters) in change.filtered {
            self.vertices.get_mut(&name).expect("it was found before").filters = filters;
        }
        for place in change.places {
            if let ChangedPlace::Backing { user, image, .. } = place {
                let vertex = self.vertices.get_mut(&user).expect("it was found before");
                vertex.places.retain(|(key, _)| key != BACKING);
                vertex.places.extend(image.backing().map(|child| (BACKING.to_owned(), child)));
            }
        }
    }

    /// What the graph would be written as with a change.
    pub fn written_with(&self, change: &GraphChange) -> Result<Vec<Value>, ModelError> {
        self.written_as(&change.model, &change.remade)
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
    pub(super) fn place(&self, user: &NodeUser, key: &str) -> &Arc<Child> {
        let place = match user {
            NodeUser::Node(name) => {
                let mut places = self.vertices[name].places.iter();
                places.find(|(known, _)| known == key).map(|(_, place)| place)
            }
            NodeUser::Export(_) | NodeUser::Job(_) => {
                let root = self.roots.get(&(user.clone(), key.to_owned()));
                root.map(|root| &root.place)
            }
        };
        place.expect("every edge of the model has its place")
    }

    pub(super) fn is_image(&self, user: &NodeUser) -> bool {
        matches!(user, NodeUser::Node(name) if self.vertices[name].made.image.is_some())
    }
}
