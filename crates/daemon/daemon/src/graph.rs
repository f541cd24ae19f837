//! The block graph: nodes by name, built in the order of the command line, and the exports on them.
//!
//! Invariants: a node holds those it stands on, so upper ones are closed first, whoever lets go of them. Of
//! a node that cannot be made nothing is left, neither what is inside it.

mod change;
mod describe;
mod named;
mod root;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;

use block::{Access, Clock, Node};
use kernel_io::{Caching, FileTable, Identity, OpenFile};
use layers::{ThrottleGroup, ThrottleLimits};

use crate::drivers::{
    Activity, Blockdev, ChildNode, Made, Making, NamedChild, NodeError, ThrottleGroups,
};
use crate::permissions::{ChildRole, Conflict, Edge, Permissions, User, Uses};
use crate::watch::Watch;
pub use change::ChangeFault;
pub(crate) use describe::{Description, Place, Storage};
pub(crate) use named::NamedFiles;
pub use named::{NamedFault, What};
use root::RootNode;

/// The nodes of a daemon, and the exports that stand on them.
#[derive(Debug)]
pub(crate) struct Graph {
    vertices: HashMap<String, Vertex>,
    /// What is below each export, by id.
    roots: HashMap<String, Below>,
    uses: Uses,
    /// The files of the images whose named files are being opened, the upper ones first.
    naming: Vec<Identity>,
    named_files: NamedFiles,
    throttle_groups: ThrottleGroups,
    files: Arc<FileTable>,
    clock: Arc<dyn Clock>,
    watch: Arc<Watch>,
}

/// A node and what it stands on.
#[derive(Debug)]
struct Vertex {
    made: Made,
    below: Vec<Below>,
    activity: Activity,
    /// What it was made with, by key.
    options: Vec<(String, String)>,
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
    /// Its driver says why.
    #[error(transparent)]
    Driver(NodeError),
    /// There is one already: a node, or an export.
    #[error("{what} '{name}' exists already")]
    Duplicate {
        /// What.
        what: &'static str,
        /// Its name.
        name: String,
    },
    /// An inactive node below an active one. QEMU's sentence.
    #[error("Inactive '{child}' can't be a {key} child of active '{node}'")]
    InactiveChild {
        /// The node above.
        node: String,
        /// The key of the child.
        key: String,
        /// The child.
        child: String,
    },
    /// There is no node of this name.
    #[error("there is no node '{name}'")]
    Unknown {
        /// The name.
        name: String,
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
    /// It would be used in a way which somebody else who uses it does not allow.
    #[error(transparent)]
    Conflict(#[from] Box<Conflict>),
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
        Self {
            vertices: HashMap::new(),
            roots: HashMap::new(),
            uses: Uses::default(),
            naming: Vec::new(),
            named_files: NamedFiles::Refused,
            throttle_groups: HashMap::new(),
            files,
            clock,
            watch: Arc::default(),
        }
    }

    /// Files that only images name are opened from now on as far as this says.
    pub(crate) fn allow_named_files(&mut self, allowed: &NamedFiles) {
        self.named_files.clone_from(allowed);
    }

    /// What waits for storage is told of from now on.
    pub(crate) fn watch_by(&mut self, watch: &Arc<Watch>) {
        self.watch = Arc::clone(watch);
    }

    /// Who tells of it.
    pub(crate) fn watch(&self) -> &Watch {
        &self.watch
    }

    /// Makes a throttle group.
    pub(crate) fn add_throttle_group(&mut self, id: &str, limits: ThrottleLimits) {
        let group = ThrottleGroup::new(id, limits, Arc::clone(&self.clock));
        self.throttle_groups.insert(id.to_owned(), group);
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
        id: &str,
        node_name: &str,
        access: Access,
    ) -> Result<Arc<dyn Node>, GraphError> {
        if self.roots.contains_key(id) {
            return Err(GraphError::Duplicate { what: "export", name: id.to_owned() });
        }
        let place = block::Child::new(Arc::clone(self.node(node_name)?));
        self.check_end(node_name)?;
        self.uses.add_export(id, node_name, Permissions::of_export(access))?;
        let root = Arc::new(RootNode::new(node_name, Arc::clone(&place)));
        self.roots.insert(id.to_owned(), Below { edge: Edge::root(node_name), place });
        Ok(root)
    }

    /// The node of that name.
    pub(crate) fn node(&self, name: &str) -> Result<&Arc<dyn Node>, GraphError> {
        self.vertex(name).map(|vertex| &vertex.made.node)
    }

    /// Which files are below that node now, each once.
    pub(crate) fn files_below(&self, name: &str) -> Vec<Arc<OpenFile>> {
        let mut files: Vec<Arc<OpenFile>> = Vec::new();
        let (mut seen, mut next) = (HashSet::new(), vec![name]);
        while let Some(name) = next.pop() {
            if let Some(vertex) = self.vertices.get(name).filter(|_| seen.insert(name)) {
                files.extend(vertex.made.file.clone());
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
        let (name, below) = (node.name().to_owned(), Vec::new());
        self.uses.add_node(&name, node.access(), Vec::new()).expect("it stands on nothing");
        let made = Made { node, file: None, image: None };
        let (options, activity) = (Vec::new(), Activity::Active);
        self.vertices.insert(name, Vertex { made, below, activity, options });
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
        for NamedChild { key, node } in blockdev.children.clone() {
            let (node, child) = match node {
                ChildNode::Reference(child) => (Arc::clone(self.node(&child)?), child),
                ChildNode::Inline(inner) => {
                    let child = inner.name_below(name, &key);
                    (self.build(&inner, &child, made)?, child)
                }
            };
            let role = blockdev.driver.role(&key);
            // An image may end where it likes.
            if role != ChildRole::Metadata {
                self.check_end(&child)?;
            }
            if !blockdev.activity.may_stand_on(self.activity(&child)) {
                let node = name.to_owned();
                return Err(GraphError::InactiveChild { node, key, child });
            }
            // What stands on a read-only node is one, as in QEMU. Who wants to write to it is refused.
            if role.is_written() && node.access() == Access::ReadOnly && !blockdev.base.read_only {
                blockdev.to_mut().base.read_only = true;
            }
            let edge = Edge { key, role, node: child };
            below.push(Below { edge, place: block::Child::new(node) });
        }
        if self.vertices.contains_key(name) {
            return Err(GraphError::Duplicate { what: "node-name", name: name.to_owned() });
        }
        self.add_named(name, &blockdev, &mut below, made)?;
        let edges = below.iter().map(|below| below.edge.clone()).collect();
        self.uses.add_node(name, blockdev.base.access(), edges)?;
        made.push(name.to_owned());
        let vertex = self.make(name, &blockdev, below)?;
        let node = Arc::clone(&vertex.made.node);
        self.vertices.insert(name.to_owned(), vertex);
        Ok(node)
    }

    /// Makes a node of that name over what is below it. Blocks.
    fn make(
        &self,
        name: &str,
        blockdev: &Blockdev,
        below: Vec<Below>,
    ) -> Result<Vertex, GraphError> {
        let made = blockdev.options.make(&self.making(name, blockdev, &below));
        let made = made.map_err(GraphError::Driver)?;
        if let Some(file) = &made.file
            && self.naming.contains(&file.identity())
        {
            let (node, path) = (name.to_owned(), file.path().to_path_buf());
            return Err(GraphError::StandsOnItself { node, path });
        }
        let options = describe::options(blockdev, &self.throttle_groups);
        Ok(Vertex { made, below, activity: blockdev.activity, options })
    }

    fn making<'a>(
        &'a self,
        name: &'a str,
        blockdev: &'a Blockdev,
        below: &'a [Below],
    ) -> Making<'a> {
        let child = |below: &'a Below| (below.edge.key.as_str(), &below.place);
        Making {
            name,
            base: &blockdev.base,
            children: below.iter().map(child).collect(),
            groups: &self.throttle_groups,
            files: &self.files,
            clock: &self.clock,
            watch: &self.watch,
        }
    }

    /// Whether direct I/O reaches the end of what a node has opened. Whoever shows its bytes asks.
    fn check_end(&self, name: &str) -> Result<(), GraphError> {
        if let Some(file) = &self.vertex(name)?.made.file {
            let (alignment, bytes) = (file.offset_alignment(), file.bytes());
            // What 512-byte blocks need is checked by the export, which has a say in the block size.
            let direct = file.caching() == Caching::Direct;
            if direct && alignment > 512 && !bytes.is_multiple_of(alignment.into()) {
                let (node, path) = (name.to_owned(), file.path().to_path_buf());
                return Err(GraphError::Size { node, path, bytes, alignment });
            }
        }
        Ok(())
    }

    fn forget(&mut self, name: &str) {
        self.vertices.remove(name);
        self.uses.remove(&User::Node(name.to_owned()));
    }
}
