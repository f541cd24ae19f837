//! The block graph: nodes by name, built in the order of the command line, and the exports on them.
//!
//! Invariants: a node holds those it stands on, so upper ones are closed first, whoever lets go of them. Of
//! a node that cannot be made nothing is left, neither what is inside it.

mod change;
mod describe;
mod drivers;
mod named;
mod root;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;

use block::{Access, Clock, Node};
use disk::{DiscardPolicy, WindowError};
use kernel_io::{FileTable, Identity, OpenError, OpenFile};
use layers::{DelayNode, StripeError, ThrottleGroup};
use qcow2::Qcow2Node;

use crate::options::{Activity, Blockdev, Child, Discard, Driver, ExportOptions, NamedChild};
#[cfg(test)]
use crate::permissions::PassesOn;
use crate::permissions::{Conflict, Edge, IMAGE, Permissions, ROOT, User, Uses};
use crate::watch::Watch;
pub use change::ChangeFault;
pub(crate) use describe::{Description, Place, Storage};
pub use named::{NamedFault, What};
use root::RootNode;

/// The nodes of a daemon, and the exports that stand on them.
#[derive(Debug)]
pub(crate) struct Graph {
    vertices: HashMap<String, Vertex>,
    /// What is below each export, by id.
    roots: HashMap<String, Below>,
    uses: Uses,
    /// The nodes whose delays can be changed, by name.
    delays: HashMap<String, Arc<DelayNode>>,
    /// What the node that is being made has opened.
    opened: Vec<Arc<OpenFile>>,
    /// The image that the node is which is being made.
    image: Option<Arc<Qcow2Node>>,
    /// The files of the images whose named files are being opened, the upper ones first.
    naming: Vec<Identity>,
    throttle_groups: HashMap<String, Arc<ThrottleGroup>>,
    files: Arc<FileTable>,
    clock: Arc<dyn Clock>,
    watch: Arc<Watch>,
}

/// A node and what it stands on.
#[derive(Debug)]
struct Vertex {
    node: Arc<dyn Node>,
    below: Vec<Below>,
    activity: Activity,
    /// What it has opened itself.
    files: Vec<Arc<OpenFile>>,
    /// What it was made with, by key.
    options: Vec<(String, String)>,
    /// The node itself, if it is an image.
    image: Option<Arc<Qcow2Node>>,
}

/// A place below a node or an export, and who is there.
#[derive(Debug)]
struct Below {
    edge: Edge,
    place: Arc<block::Child>,
}

/// A node could not be made. Every message names the node.
#[derive(Debug, thiserror::Error)]
pub enum GraphError {
    /// Its file could not be opened.
    #[error("node {node}")]
    Open {
        /// The node-name.
        node: String,
        /// Why.
        #[source]
        source: OpenError,
    },
    /// There is one already: a node, or an export.
    #[error("{what} '{name}' exists already")]
    Duplicate {
        /// What.
        what: &'static str,
        /// Its name.
        name: String,
    },
    /// An inactive node below an active one. QEMU's sentence.
    #[error("Inactive '{child}' can't be a {role} child of active '{node}'")]
    InactiveChild {
        /// The node above.
        node: String,
        /// The key of the child.
        role: String,
        /// The child.
        child: String,
    },
    /// There is no node of this name.
    #[error("there is no node '{name}'")]
    Unknown {
        /// The name.
        name: String,
    },
    /// There is no throttle group of this name.
    #[error("node {node}: there is no throttle-group '{group}'")]
    UnknownThrottleGroup {
        /// The node-name.
        node: String,
        /// The group.
        group: String,
    },
    /// It is no image that can be served.
    #[error("node {node}")]
    Image {
        /// The node-name.
        node: String,
        /// Why.
        #[source]
        source: qcow2::OpenError,
    },
    /// A cache of its image that nobody can have. QEMU's sentence.
    #[error("node {node}: {what} too big")]
    Cache {
        /// The node-name.
        node: String,
        /// Which.
        what: &'static str,
    },
    /// What its image names cannot be opened.
    #[error("node {node}: image {}", image.display())]
    Named {
        /// The node-name.
        node: String,
        /// The image.
        image: PathBuf,
        /// Why.
        #[source]
        source: NamedFault,
    },
    /// Its file is that of an image above it which names it.
    #[error("node {node}: {} is an image that stands on itself", path.display())]
    StandsOnItself {
        /// The node-name.
        node: String,
        /// The file.
        path: PathBuf,
    },
    /// Its children make no stripe.
    #[error(transparent)]
    Stripe(#[from] StripeError),
    /// It would be used in a way which somebody else who uses it does not allow.
    #[error(transparent)]
    Conflict(#[from] Box<Conflict>),
    /// Its child has not the bytes that it is to show.
    #[error("node {node}")]
    Window {
        /// The node-name.
        node: String,
        /// Why.
        #[source]
        source: WindowError,
    },
    /// Direct I/O cannot reach the end of the file.
    #[error(
        "node {node}: the size of {path}, {bytes} bytes, is no multiple of the {alignment} bytes \
         that direct I/O needs here; use cache.direct=off"
    )]
    Size {
        /// The node-name.
        node: String,
        /// The file.
        path: PathBuf,
        /// Its size.
        bytes: u64,
        /// What it should be a multiple of.
        alignment: u32,
    },
}

impl Graph {
    /// An empty graph whose files go into that table. Nodes that hold requests go by that clock.
    pub(crate) fn new(files: Arc<FileTable>, clock: Arc<dyn Clock>) -> Self {
        let (vertices, roots) = (HashMap::new(), HashMap::new());
        let (uses, delays, throttle_groups) = (Uses::default(), HashMap::new(), HashMap::new());
        let (opened, naming) = (Vec::new(), Vec::new());
        Self {
            vertices,
            roots,
            uses,
            delays,
            opened,
            image: None,
            naming,
            throttle_groups,
            files,
            clock,
            watch: Arc::default(),
        }
    }

    /// What waits for storage is told of from now on.
    pub(crate) fn watch_by(&mut self, watch: &Arc<Watch>) {
        self.watch = Arc::clone(watch);
    }

    /// Who tells of it.
    pub(crate) fn watch(&self) -> &Watch {
        &self.watch
    }

    /// Makes the node that was asked for, and the nodes written inside it, or none of them. Blocks.
    pub(crate) fn add(&mut self, blockdev: &Blockdev) -> Result<(), GraphError> {
        let mut made = Vec::new();
        let result = self.build(blockdev, &blockdev.name_below("", ""), &mut made);
        if result.is_err() {
            // Upper ones first: each holds what it stands on.
            made.iter().rev().for_each(|name| self.forget(name));
        }
        result.map(drop)
    }

    /// The node that stands below an export from now on, in a place where others may be put.
    pub(crate) fn add_export(
        &mut self,
        options: &ExportOptions,
    ) -> Result<Arc<dyn Node>, GraphError> {
        let ExportOptions { id, node_name, .. } = options;
        if self.roots.contains_key(id) {
            return Err(GraphError::Duplicate { what: "export", name: id.clone() });
        }
        let place = block::Child::new(Arc::clone(self.node(node_name)?));
        self.check_end(node_name)?;
        self.uses.add_export(id, node_name, Permissions::of_export(options))?;
        let root = Arc::new(RootNode::new(node_name, Arc::clone(&place)));
        let edge = Edge { role: ROOT.to_owned(), node: node_name.clone() };
        self.roots.insert(id.clone(), Below { edge, place });
        Ok(root)
    }

    /// The node of that name.
    pub(crate) fn node(&self, name: &str) -> Result<&Arc<dyn Node>, GraphError> {
        self.vertex(name).map(|vertex| &vertex.node)
    }

    /// Which files are below that node now, each once.
    pub(crate) fn files_below(&self, name: &str) -> Vec<Arc<OpenFile>> {
        let mut files: Vec<Arc<OpenFile>> = Vec::new();
        let (mut seen, mut next) = (HashSet::new(), vec![name]);
        while let Some(name) = next.pop() {
            if let Some(vertex) = self.vertices.get(name).filter(|_| seen.insert(name)) {
                files.extend_from_slice(&vertex.files);
                next.extend(vertex.below.iter().map(|below| below.edge.node.as_str()));
            }
        }
        files
    }

    /// Which files are below that export now, each once.
    pub(crate) fn files_below_export(&self, id: &str) -> Vec<Arc<OpenFile>> {
        self.roots.get(id).map_or_else(Vec::new, |below| self.files_below(&below.edge.node))
    }

    /// Whether that node is held from the start.
    pub(crate) fn activity(&self, name: &str) -> Activity {
        self.vertices.get(name).map_or(Activity::Active, |vertex| vertex.activity)
    }

    /// Adds a node that no driver makes.
    #[cfg(test)]
    pub(crate) fn add_made(&mut self, node: Arc<dyn Node>) {
        let (name, below, files) = (node.name().to_owned(), Vec::new(), Vec::new());
        self.uses.add_node(&name, PassesOn::AsAsked, Vec::new()).expect("it stands on nothing");
        let (options, image, activity) = (Vec::new(), None, Activity::Active);
        self.vertices.insert(name, Vertex { node, below, activity, files, options, image });
    }

    fn vertex(&self, name: &str) -> Result<&Vertex, GraphError> {
        self.vertices.get(name).ok_or_else(|| GraphError::Unknown { name: name.to_owned() })
    }

    /// Makes a node, and notes the names of all that were made, the lower ones first.
    fn build(
        &mut self,
        blockdev: &Blockdev,
        name: &str,
        made: &mut Vec<String>,
    ) -> Result<Arc<dyn Node>, GraphError> {
        let mut blockdev = Cow::Borrowed(blockdev);
        let mut below = Vec::new();
        for NamedChild { name: role, node } in blockdev.children.clone() {
            let (node, child) = match node {
                Child::Reference(child) => (Arc::clone(self.node(&child)?), child),
                Child::Inline(inner) => {
                    let child = inner.name_below(name, &role);
                    (self.build(&inner, &child, made)?, child)
                }
            };
            if !(matches!(blockdev.driver, Driver::Qcow2 { .. }) && role == IMAGE) {
                self.check_end(&child)?;
            }
            if !blockdev.activity.may_stand_on(self.activity(&child)) {
                let node = name.to_owned();
                return Err(GraphError::InactiveChild { node, role, child });
            }
            // What stands on a read-only node is one, as in QEMU. Who wants to write to it is refused.
            let is_written = blockdev.driver.writes_to(&role);
            if is_written && node.access() == Access::ReadOnly && !blockdev.read_only {
                blockdev.to_mut().read_only = true;
            }
            below.push(Below { edge: Edge { role, node: child }, place: block::Child::new(node) });
        }
        if self.vertices.contains_key(name) {
            return Err(GraphError::Duplicate { what: "node-name", name: name.to_owned() });
        }
        self.add_named(name, &blockdev, &mut below, made)?;
        let edges = below.iter().map(|below| below.edge.clone()).collect();
        self.uses.add_node(name, blockdev.passes_on(), edges)?;
        made.push(name.to_owned());
        let node = self.make(name, &blockdev, &below)?;
        let files = std::mem::take(&mut self.opened);
        let (options, image) = (self.options_of(&blockdev), self.image.take());
        let activity = blockdev.activity;
        let vertex = Vertex { node: Arc::clone(&node), below, activity, files, options, image };
        self.vertices.insert(name.to_owned(), vertex);
        Ok(node)
    }

    fn forget(&mut self, name: &str) {
        self.vertices.remove(name);
        self.delays.remove(name);
        self.uses.remove(&User::Node(name.to_owned()));
    }
}

fn access(blockdev: &Blockdev) -> Access {
    if blockdev.read_only { Access::ReadOnly } else { Access::ReadWrite }
}

fn policy(discard: Discard) -> DiscardPolicy {
    match discard {
        Discard::Ignore => DiscardPolicy::Ignore,
        Discard::Unmap => DiscardPolicy::Unmap,
    }
}
