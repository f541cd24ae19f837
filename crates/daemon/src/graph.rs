//! The block graph: nodes by name, built in the order of the command line.

mod drivers;

use std::borrow::Cow;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use block::{Access, Clock, Node};
use disk::{DiscardPolicy, WindowError};
use kernel_io::{FileTable, Identity, OpenError};
use layers::{DelayNode, StripeError};

use crate::options::{Activity, Blockdev, Child, Discard, NamedChild};
use crate::sandbox::{Outside, Sandbox};

/// The nodes of a daemon.
#[derive(Debug)]
pub(crate) struct Graph {
    nodes: HashMap<String, Arc<dyn Node>>,
    activities: HashMap<String, Activity>,
    /// The files below each node.
    storage: HashMap<String, Vec<Identity>>,
    /// The nodes whose delays can be changed, by name.
    delays: HashMap<String, Arc<DelayNode>>,
    files: Arc<FileTable>,
    clock: Arc<dyn Clock>,
    sandbox: Option<Arc<Sandbox>>,
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
    /// Its file is fenced off.
    #[error("node {node}")]
    Outside {
        /// The node-name.
        node: String,
        /// Why.
        #[source]
        source: Outside,
    },
    /// There is no node of this name.
    #[error("there is no node '{name}'")]
    Unknown {
        /// The name.
        name: String,
    },
    /// Its children make no stripe.
    #[error(transparent)]
    Stripe(#[from] StripeError),
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
    /// An empty graph whose files go into that table, and come from inside the sandbox. Nodes that hold
    /// requests go by that clock.
    pub(crate) fn new(
        files: Arc<FileTable>,
        clock: Arc<dyn Clock>,
        sandbox: Option<Arc<Sandbox>>,
    ) -> Self {
        let (nodes, activities, storage) = (HashMap::new(), HashMap::new(), HashMap::new());
        let delays = HashMap::new();
        Self { nodes, activities, storage, delays, files, clock, sandbox }
    }

    /// Makes the node that was asked for, and the nodes written inside it. Blocks.
    pub(crate) fn add(&mut self, blockdev: &Blockdev) -> Result<(), GraphError> {
        self.build(blockdev, &blockdev.name_below("", "")).map(drop)
    }

    /// The node of that name.
    pub(crate) fn node(&self, name: &str) -> Result<&Arc<dyn Node>, GraphError> {
        self.nodes.get(name).ok_or_else(|| GraphError::Unknown { name: name.to_owned() })
    }

    /// Which files are below that node.
    pub(crate) fn storage(&self, name: &str) -> &[Identity] {
        self.storage.get(name).map_or(&[], Vec::as_slice)
    }

    /// Whether that node is held from the start.
    pub(crate) fn activity(&self, name: &str) -> Activity {
        self.activities.get(name).copied().unwrap_or(Activity::Active)
    }

    fn build(&mut self, blockdev: &Blockdev, name: &str) -> Result<Made, GraphError> {
        let mut blockdev = Cow::Borrowed(blockdev);
        let mut storage = Vec::new();
        let mut children = Vec::new();
        for NamedChild { name: role, node } in blockdev.children.clone() {
            let child = match &node {
                Child::Reference(child) => {
                    storage.extend_from_slice(self.storage(child));
                    Arc::clone(self.node(child)?)
                }
                Child::Inline(inner) => {
                    let made = self.build(inner, &inner.name_below(name, &role))?;
                    storage.extend(made.storage);
                    made.node
                }
            };
            // What stands on a read-only node is one, as in QEMU. Who wants to write to it is refused.
            if child.access() == Access::ReadOnly && !blockdev.read_only {
                blockdev.to_mut().read_only = true;
            }
            children.push(block::Child::new(child));
        }
        let files_before = self.files.all().len();
        let node = self.make(name, &blockdev, children)?;
        storage.extend(self.files.all()[files_before..].iter().map(|file| file.identity()));
        if let Some(given) = blockdev.node_name.clone() {
            self.activities.insert(given.clone(), blockdev.activity);
            self.storage.insert(given.clone(), storage.clone());
            self.nodes.insert(given, Arc::clone(&node));
        }
        Ok(Made { node, storage })
    }
}

/// A node, and the files below it.
struct Made {
    node: Arc<dyn Node>,
    storage: Vec<Identity>,
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
