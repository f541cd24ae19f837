//! The block graph: nodes by name, built in the order of the command line.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use block::{Access, ByteCount, DiskSize, Node};
use disk::{DiscardPolicy, FileNode, NullNode, RawNode, ReadContent};
use kernel_io::{
    Aio, Caching, FileKind, FileTable, Flushes, Identity, LockOptions, Locking, OpenError,
    OpenOptions, Sharing,
};

use rustix::io::Errno;

use crate::options::{self, Activity, AioEngine, Blockdev, Child, Discard, Driver};
use crate::sandbox::{Outside, Sandbox};

/// The nodes of a daemon.
#[derive(Debug)]
pub(crate) struct Graph {
    nodes: HashMap<String, Arc<dyn Node>>,
    activities: HashMap<String, Activity>,
    /// The files below each node.
    storage: HashMap<String, Vec<Identity>>,
    files: Arc<FileTable>,
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
    /// A writable node would stand on a read-only one.
    #[error("node {node} is writable, but the node {child} below it is read-only")]
    ChildReadOnly {
        /// The upper node.
        node: String,
        /// The lower node.
        child: String,
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
    /// An empty graph whose files go into that table, and come from inside the sandbox.
    pub(crate) fn new(files: Arc<FileTable>, sandbox: Option<Arc<Sandbox>>) -> Self {
        let (nodes, activities, storage) = (HashMap::new(), HashMap::new(), HashMap::new());
        Self { nodes, activities, storage, files, sandbox }
    }

    /// Makes the node that was asked for, and the nodes written inside it. Blocks.
    pub(crate) fn add(&mut self, blockdev: &Blockdev) -> Result<(), GraphError> {
        self.build(blockdev, "").map(drop)
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

    fn build(&mut self, blockdev: &Blockdev, parent: &str) -> Result<Arc<dyn Node>, GraphError> {
        // A node written inside another one may have no name; messages still need one.
        let given = blockdev.node_name.clone();
        let name = given.clone().unwrap_or_else(|| format!("{parent}/file"));
        let access = access(blockdev);
        let files_before = self.files.all().len();
        let node: Arc<dyn Node> = match &blockdev.driver {
            Driver::File { filename, aio, locking } => {
                let options = open_options(filename, FileKind::Regular, *aio, *locking, blockdev);
                self.open(&name, &options, blockdev)?
            }
            Driver::HostDevice { filename, aio, locking } => {
                let kind = FileKind::BlockDevice;
                let options = open_options(filename, kind, *aio, *locking, blockdev);
                self.open(&name, &options, blockdev)?
            }
            Driver::NullCo { size, read_zeroes } => {
                let content =
                    if *read_zeroes { ReadContent::Zeroes } else { ReadContent::Untouched };
                Arc::new(NullNode::new(&name, DiskSize(ByteCount(*size)), access, content))
            }
            Driver::Raw { file } => {
                let child = match file {
                    Child::Reference(child) => Arc::clone(self.node(child)?),
                    Child::Inline(child) => self.build(child, &name)?,
                };
                if access == Access::ReadWrite && child.access() == Access::ReadOnly {
                    let child = child.name().to_owned();
                    return Err(GraphError::ChildReadOnly { node: name, child });
                }
                Arc::new(RawNode::new(
                    &name,
                    block::Child::new(child),
                    access,
                    policy(blockdev.discard),
                ))
            }
        };
        if let Some(given) = given {
            self.activities.insert(given.clone(), blockdev.activity);
            let storage = self.storage_of(blockdev, files_before);
            self.storage.insert(given.clone(), storage);
            self.nodes.insert(given, Arc::clone(&node));
        }
        Ok(node)
    }

    /// The files that were opened for a node, and those of a node that it refers to.
    fn storage_of(&self, blockdev: &Blockdev, files_before: usize) -> Vec<Identity> {
        let opened = &self.files.all()[files_before..];
        let opened = opened.iter().map(|file| file.identity());
        self.referred(blockdev).iter().copied().chain(opened).collect()
    }

    fn referred(&self, blockdev: &Blockdev) -> &[Identity] {
        match &blockdev.driver {
            Driver::Raw { file: Child::Reference(child) } => self.storage(child),
            Driver::Raw { file: Child::Inline(child) } => self.referred(child),
            Driver::File { .. } | Driver::HostDevice { .. } | Driver::NullCo { .. } => &[],
        }
    }

    fn open(
        &self,
        name: &str,
        options: &OpenOptions,
        blockdev: &Blockdev,
    ) -> Result<Arc<dyn Node>, GraphError> {
        let discard = policy(blockdev.discard);
        let node = FileNode::open(name, options, discard, &self.files)
            .map_err(|source| self.explain(name, options, source))?;
        let alignment = node.limits().request_alignment.get();
        let bytes = node.size().0.0;
        // What 512-byte blocks need is checked by the export, which has a say in the block size.
        let direct = options.caching == Caching::Direct;
        if direct && alignment > 512 && !bytes.is_multiple_of(alignment.into()) {
            let (node, path) = (name.to_owned(), options.path.clone());
            return Err(GraphError::Size { node, path, bytes, alignment });
        }
        Ok(Arc::new(node))
    }

    /// Says what the operator can do about it where the sandbox is in the way.
    fn explain(&self, node: &str, options: &OpenOptions, error: OpenError) -> GraphError {
        let node = node.to_owned();
        if let OpenError::Open { source: Errno::ACCESS, .. } = error
            && let Some(sandbox) = &self.sandbox
            && let Err(source) = sandbox.judge(&options.path, options.access)
        {
            return GraphError::Outside { node, source };
        }
        GraphError::Open { node, source: error }
    }
}

fn open_options(
    path: &Path,
    kind: FileKind,
    aio: Option<AioEngine>,
    locking: options::Locking,
    blockdev: &Blockdev,
) -> OpenOptions {
    OpenOptions {
        path: path.to_path_buf(),
        kind,
        access: access(blockdev),
        caching: if blockdev.cache_direct { Caching::Direct } else { Caching::Buffered },
        aio: match aio {
            None => Aio::Automatic,
            Some(AioEngine::IoUring) => Aio::IoUring,
            Some(AioEngine::Native) => Aio::Native,
            Some(AioEngine::Threads) => Aio::Threads,
        },
        flushes: match blockdev.flushes {
            options::Flushes::Obeyed => Flushes::Obeyed,
            options::Flushes::Ignored => Flushes::Ignored,
        },
        lock: LockOptions {
            locking: match locking {
                options::Locking::Automatic => Locking::Automatic,
                options::Locking::On => Locking::On,
                options::Locking::Off => Locking::Off,
            },
            sharing: if blockdev.force_share { Sharing::Forced } else { Sharing::AsClaimed },
        },
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
