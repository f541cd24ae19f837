//! What a driver says of itself: the contract of the files beside this one.
//!
//! Where it stands: the options read nodes by [`Driver`], the graph makes them by [`DriverOptions`]. Nothing outside of
//! a driver's file knows which driver a node has.

use std::collections::HashMap;
use std::error::Error;
use std::fmt::{self, Debug};
use std::path::Path;
use std::sync::Arc;

use bitmaps::NodeBitmaps;
use block::{Child, Clock, Node};
use credentials::X509Credentials;
use disk::WriteThreshold;
use kernel_io::{FileKind, FileTable, OpenFile};
use layers::{DelayNode, ThrottleGroup};
use nbd_client::{KnownHosts, NbdNode, ServerAddress};
use qcow2::{CorruptionReports, Qcow2Node};
use rbd::ThreadFences;
use syntax::{ArgumentError, Keys, OptionFields};

use super::base::BaseOptions;
use crate::model::{ChildRole, TypedObjectId};
use crate::objects::Secret;
use crate::storage_watchdog::StorageWatchdog;

/// A block driver of `--blockdev`: its name, keys, children's roles, and how its options are read (QEMU's BlockDriver).
pub struct Driver {
    /// Its name, as in `driver=`.
    pub name: &'static str,
    /// All its keys. Those of nodes are its children, in the order in which it takes them.
    pub keys: Keys,
    /// Options that a node which is there can have changed, as they are described.
    pub(crate) changeable: &'static [&'static str],
    /// What each of these children is to it.
    pub(crate) roles: &'static [(&'static str, ChildRole)],
    /// How the help shows it.
    pub help: &'static str,
    /// If it is a format that an image can be said to have: its options when nothing else is said. The image is in the
    /// first of `roles`.
    pub(crate) as_format: Option<fn() -> Options>,
    /// Reads the keys that only this driver has, but its children.
    pub(crate) read: fn(&mut OptionFields, &BaseOptions) -> Result<Options, ArgumentError>,
}

impl Driver {
    /// What the child under this key is to it; one of a list has a number after the key (`children.0`).
    pub fn role(&self, key: &str) -> ChildRole {
        let key = key.split('.').next().unwrap_or_default();
        let role = self.roles.iter().find(|(known, _)| *known == key);
        role.unwrap_or_else(|| panic!("driver {} has no child '{key}'", self.name)).1
    }
}

impl Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// The options of a node that only its driver has.
pub(crate) type Options = Arc<dyn DriverOptions>;

/// The options of one node that only its driver has: what they need, how they are described, and how the node is made.
pub(crate) trait DriverOptions: Debug + Send + Sync {
    /// What it needs that is no node.
    fn needs(&self) -> NodeRequirements<'_>;

    /// All options but the children and files, in words that stay the same from version to version: what is served by two
    /// processes in turn is compared so.
    fn describe(&self, groups: &ThrottleGroups) -> Vec<(String, String)>;

    /// Makes the node. Blocks.
    fn make(&self, context: &NodeContext<'_>) -> Result<MadeNode, NodeError>;
}

/// What a driver says that its node needs besides child nodes: files, objects, and files that its image names.
#[derive(Default)]
pub(crate) struct NodeRequirements<'a> {
    /// Files that it opens: checked before anything is started, kept open if they are descriptors of the process, fenced.
    pub files: Vec<HostFileSpec<'a>>,
    /// The server that it connects to: fenced.
    pub server: Option<&'a ServerAddress>,
    /// Whether it becomes a client of a cluster, which connects to whatever servers that names: fenced, as far as such a
    /// client can be.
    pub joins_cluster: bool,
    /// Objects that it names.
    pub objects: Vec<TypedObjectId<'a>>,
    /// The node one of whose dirty bitmaps it takes when it is made.
    pub bitmaps_of: Option<&'a str>,
    /// The node that ends the part of its chain of backing files that it has to do with.
    pub bottom: Option<&'a str>,
    /// What finds files that are only named in the node's image, if there can be any.
    pub(crate) names_files: Option<&'a dyn ImageFileFinder>,
}

/// The host file that a node is to open: its path, and the kind that it must be.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HostFileSpec<'a> {
    /// Where it is.
    pub path: &'a Path,
    /// What it must be.
    pub kind: FileKind,
}

/// What finds the files that only a node's image names (backing file, data file).
pub(crate) trait ImageFileFinder {
    /// The files that are to stand below the node and that only its image names, lower ones last. Blocks.
    fn named(&self, context: &NodeContext<'_>) -> Result<Vec<ImageFileReference>, NodeError>;
}

/// A file that an image names: its backing file or its data file.
#[derive(Debug)]
pub(crate) enum ImageFileReference {
    /// What shows where the image has nothing.
    Backing {
        /// The key of the child that it becomes.
        key: &'static str,
        /// What the image calls it.
        name: String,
        /// Its format, if the image says it.
        format: Option<String>,
    },
    /// What the data are in.
    Data {
        /// The key of the child that it becomes.
        key: &'static str,
        /// What the image calls it, if it says so.
        name: Option<String>,
    },
}

/// The throttle groups by id.
pub(crate) type ThrottleGroups = HashMap<String, Arc<ThrottleGroup>>;

/// Certificates and keys by id.
pub(crate) type TlsCredentials = HashMap<String, X509Credentials>;

/// Secrets by id.
pub(crate) type Secrets = HashMap<String, Secret>;

/// What a driver makes a node from: name, options, children, file table, clock.
#[derive(Debug)]
pub(crate) struct NodeContext<'a> {
    /// The node's name.
    pub name: &'a str,
    /// What all nodes can be told.
    pub base: &'a BaseOptions,
    /// What stands below it, by key.
    pub children: Vec<(&'a str, &'a Arc<Child>)>,
    /// The node of the same name that it takes the place of.
    pub before: Option<&'a MadeNode>,
    /// The dirty bitmaps of the node one of whose bitmaps it takes, if there is that node.
    pub bitmaps: Option<&'a Arc<NodeBitmaps>>,
    /// How many backing files below its child the node is that it named as bottom, if it did.
    pub depth: Option<u8>,
    /// The throttle groups that there are.
    pub groups: &'a ThrottleGroups,
    /// The credentials for TLS that there are.
    pub credentials: &'a TlsCredentials,
    /// The secrets that there are.
    pub secrets: &'a Secrets,
    /// Behind what threads go that are started for nodes.
    pub fences: &'a ThreadFences,
    /// Where names of servers are looked up.
    pub hosts: &'a KnownHosts,
    /// Where files are opened.
    pub files: &'a Arc<FileTable>,
    /// What nodes that hold requests go by.
    pub clock: &'a Arc<dyn Clock>,
    /// Where damage of images is reported.
    pub corruptions: &'a Arc<CorruptionReports>,
    /// What waits for storage is told of.
    pub watch: &'a StorageWatchdog,
}

impl NodeContext<'_> {
    /// The child under this key, if there is one.
    pub(super) fn child(&self, key: &str) -> Option<Arc<Child>> {
        self.children.iter().find(|(known, _)| *known == key).map(|(_, child)| Arc::clone(child))
    }

    /// The child of a driver that requires one.
    pub(super) fn file(&self) -> Arc<Child> {
        self.child("file").expect("the reader has taken it")
    }

    /// What is wrong, with the node's name before it.
    pub(super) fn failed(&self, source: impl Into<NodeError>) -> NodeError {
        Box::new(NodeMakeError { node: self.name.to_owned(), source: source.into() })
    }
}

/// A node could not be made, or an image not be read. The message names the node.
pub(crate) type NodeError = Box<dyn Error + Send + Sync>;

/// An error of a driver, with the node's name.
#[derive(Debug, thiserror::Error)]
#[error("node {node}")]
struct NodeMakeError {
    node: String,
    source: NodeError,
}

/// A node that a driver has made, with the file that it has opened.
#[derive(Debug)]
pub(crate) struct MadeNode {
    /// The node.
    pub node: Arc<dyn Node>,
    /// What it has opened.
    pub file: Option<Arc<OpenFile>>,
    /// The node itself, if it is an image whose state another process can take over.
    pub image: Option<Arc<Qcow2Node>>,
    /// What tells when a change goes beyond a place, if it is a file.
    pub write_threshold: Option<Arc<WriteThreshold>>,
    /// The node itself, if it is a delay.
    pub delay: Option<Arc<DelayNode>>,
    /// The node itself, if it is a disk of a server.
    pub remote: Option<Arc<NbdNode>>,
}

impl MadeNode {
    /// A node that has opened nothing.
    pub(crate) fn of(node: Arc<dyn Node>) -> Self {
        Self { node, file: None, image: None, write_threshold: None, delay: None, remote: None }
    }
}
