//! The block graph: nodes by name, built in the order of the command line, and the exports on them.
//!
//! Invariants: a node holds those it stands on, so upper ones are closed first, whoever lets go of them. Of
//! a node that cannot be made nothing is left, neither what is inside it.

mod access;
mod bitmaps;
mod change;
mod cluster_clients;
mod creation;
mod describe;
mod filters;
mod insertion;
mod jobs;
mod named_files;
mod remotes;
mod reopen;
mod root;
mod storage_files;
#[cfg(test)]
mod tests;
mod written;

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;

use ::bitmaps::NodeBitmaps;
use block::{Access, Clock, Node};
use credentials::X509Credentials;
use disk::WriteThreshold;
use kernel_io::{Caching, FileIdentity, FileTable, OpenFile};
use layers::{DelaySettings, ThrottleGroup, ThrottleLimits};
use nbd_client::KnownHosts;
use qcow2::{CorruptionReports, Qcow2Node};
use rbd::ThreadFences;
use serde_json::{Map, Value};
use syntax::{ArgumentError, OptionFields};

pub use access::AccessBefore;
pub use change::GraphChangeRefusal;
pub use change::{EdgeChange, GraphChange};
pub use creation::{ImageCreationError, ImageMaker};
pub use describe::{ExportStorage, GraphPath, NodeDescription};
pub use filters::FilterKind;
use filters::ImplicitFilter;
pub use named_files::NamedFilesPolicy;
pub use named_files::{NamedFileError, NamedFileRefusal, NamedFileRole};
pub use remotes::{RemoteCondition, RemoteFlushError};
pub use reopen::NodeReopening;
use root::Root;
pub use storage_files::StorageFiles;

use crate::drivers::{
    ACTIVE, BaseOptions, Blockdev, BlockdevRef, DELAY_SET, Driver, KeyedChild, MadeNode,
    NodeContext, NodeError, Options, Secrets, ThrottleGroups, TlsCredentials, delay_description,
    delay_settings, on_off, pair,
};
use crate::model::{
    Activity, ChildRole, Edge, GraphModel, ModelError, NewExport, NewNode, NodeOwner, NodeUser,
    ROOT, THROTTLE_GROUP, TypedObjectId,
};
use crate::storage_watchdog::StorageWatchdog;

/// The block graph: nodes by name, and the exports on them.
#[derive(Debug)]
pub struct Graph {
    /// What there is, and what stands on what.
    model: GraphModel,
    /// The nodes by name.
    vertices: HashMap<String, Vertex>,
    /// What exports and jobs stand on, by key.
    roots: HashMap<(NodeUser, String), Root>,
    /// The files of the images whose named files are being opened, the upper ones first.
    naming: Vec<FileIdentity>,
    /// Nodes that were made because an image names their files.
    named_by_images: HashSet<String>,
    /// Nodes that are not written unless something that is written, or an export, stands on them.
    volatile: HashSet<String>,
    named_files: NamedFilesPolicy,
    throttle_groups: ThrottleGroups,
    credentials: TlsCredentials,
    secrets: Secrets,
    fences: ThreadFences,
    hosts: KnownHosts,
    files: Arc<FileTable>,
    clock: Arc<dyn Clock>,
    corruptions: Arc<CorruptionReports>,
    watch: Arc<StorageWatchdog>,
}

/// A node of the graph, with the edges to its children.
#[derive(Debug)]
struct Vertex {
    made: MadeNode,
    /// What stands on it without a name of its own, the lower ones first.
    filters: Vec<ImplicitFilter>,
    bitmaps: Arc<NodeBitmaps>,
    places: Vec<(String, Arc<block::Child>)>,
    /// What it was made with, by key.
    options: Vec<(String, String)>,
    /// Its driver; none of a node that was made for a test.
    driver: Option<&'static Driver>,
    /// What only its driver was told; nothing of a node that was made for a test.
    own: Option<Options>,
    base: BaseOptions,
    /// The same as JSON, as it was written, but the nodes below.
    written: Map<String, Value>,
}

/// What a delay was before its settings were changed.
#[derive(Debug)]
#[must_use = "by it the settings are taken back"]
pub struct DelayBefore {
    node: String,
    settings: Arc<DelaySettings>,
    options: Vec<(String, String)>,
    written: Map<String, Value>,
}

/// A delay could not be given other settings.
#[derive(Debug, thiserror::Error)]
pub enum DelayError {
    /// They are no settings.
    #[error(transparent)]
    Argument(#[from] ArgumentError),
    /// There is no such node.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The node delays nothing.
    #[error("node '{0}' is no delay")]
    NoDelay(String),
}

/// What is known of a node, to be shown.
#[derive(Debug, Clone, Copy)]
pub struct NodeInfo<'a> {
    /// The name of its driver.
    pub driver: &'static str,
    /// Whether it takes changes.
    pub access: Access,
    /// Whether it is held from the start.
    pub activity: Activity,
    /// What nodes of all drivers are told.
    pub base: &'a BaseOptions,
    /// All options but the children and files, by key.
    pub options: &'a [(String, String)],
    /// The node.
    pub node: &'a Arc<dyn Node>,
    /// What it has opened.
    pub file: Option<&'a Arc<OpenFile>>,
    /// The node itself, if it is an image.
    pub image: Option<&'a Arc<Qcow2Node>>,
    /// What tells when a change goes beyond a place, if it is a file.
    pub write_threshold: Option<&'a Arc<WriteThreshold>>,
}

/// The edge to a child of a node that is being made.
#[derive(Debug)]
struct ChildEdge {
    edge: Edge,
    place: Arc<block::Child>,
}

/// A node could not be made. Every message names the node.
#[derive(Debug, thiserror::Error)]
pub enum GraphError {
    /// Its driver says why.
    #[error(transparent)]
    Driver(NodeError),
    /// It does not fit what there is.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// What its image names cannot be opened.
    #[error("node {node}: image {}", image.display())]
    Named {
        /// The node-name.
        node: String,
        /// The image.
        image: PathBuf,
        /// Why.
        #[source]
        source: NamedFileError,
    },
    /// Its file is that of an image above it which names it.
    #[error("node {node}: {} is an image that stands on itself", path.display())]
    StandsOnItself {
        /// The node-name.
        node: String,
        /// The file.
        path: PathBuf,
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
    /// An empty graph whose files go into that table. Nodes that hold requests go by that clock, files that only images
    /// name are opened as far as the policy says, and what waits for storage is told of.
    pub fn new(
        files: Arc<FileTable>,
        clock: Arc<dyn Clock>,
        named_files: NamedFilesPolicy,
        watch: Arc<StorageWatchdog>,
    ) -> Self {
        Self {
            model: GraphModel::default(),
            vertices: HashMap::new(),
            roots: HashMap::new(),
            naming: Vec::new(),
            named_by_images: HashSet::new(),
            volatile: HashSet::new(),
            named_files,
            throttle_groups: HashMap::new(),
            credentials: HashMap::new(),
            secrets: HashMap::new(),
            fences: ThreadFences::default(),
            hosts: KnownHosts::default(),
            files,
            clock,
            corruptions: Arc::default(),
            watch,
        }
    }

    /// Where damage of images is reported.
    pub fn corruptions(&self) -> &CorruptionReports {
        &self.corruptions
    }

    /// Who tells of it.
    pub fn watch(&self) -> &Arc<StorageWatchdog> {
        &self.watch
    }

    /// Notes an object that somebody else makes.
    pub fn add_object(&mut self, object: TypedObjectId<'_>) -> Result<(), ModelError> {
        self.model.add_object(object)
    }

    /// The names of hosts that were looked up.
    pub fn hosts(&self) -> &KnownHosts {
        &self.hosts
    }

    /// Notes credentials for TLS, which nodes may name from now on.
    pub fn add_credentials(
        &mut self,
        object: TypedObjectId<'_>,
        credentials: X509Credentials,
    ) -> Result<(), ModelError> {
        self.model.add_object(object)?;
        self.credentials.insert(object.id.to_owned(), credentials);
        Ok(())
    }

    /// Makes a throttle group.
    pub fn add_throttle_group(
        &mut self,
        id: &str,
        limits: ThrottleLimits,
    ) -> Result<(), ModelError> {
        self.model.add_object(TypedObjectId { kind: THROTTLE_GROUP, id })?;
        let group = ThrottleGroup::new(id, limits, Arc::clone(&self.clock));
        self.throttle_groups.insert(id.to_owned(), group);
        Ok(())
    }

    /// Gives a throttle group other limits.
    pub fn set_limits(&self, id: &str, limits: ThrottleLimits) {
        if let Some(group) = self.throttle_groups.get(id) {
            group.set_limits(limits);
        }
    }

    /// Gives a delay other settings, all anew; gives those of before. Requests that are delayed already stay so.
    pub fn set_delay(&mut self, mut fields: OptionFields) -> Result<DelayBefore, DelayError> {
        fields.check_keys(&DELAY_SET)?;
        let mut written = fields.written();
        let name = fields.required_text("node-name")?;
        let settings = delay_settings(&mut fields)?;
        self.model.activity(&name)?;
        let vertex = self.vertices.get_mut(&name).expect("the model knows it");
        let delay = vertex.made.delay.as_ref().ok_or_else(|| DelayError::NoDelay(name.clone()))?;
        let (options, json) = (vertex.options.clone(), vertex.written.clone());
        let before = DelayBefore { node: name, settings: delay.settings(), options, written: json };
        for (key, value) in delay_description(&settings) {
            vertex.options.retain(|(known, _)| *known != key);
            vertex.options.push((key, value));
        }
        delay.set(settings);
        for key in ["latency-ns", "read", "write", "flush", "ordered"] {
            vertex.written.remove(key);
        }
        written.remove("node-name");
        vertex.written.append(&mut written);
        Ok(before)
    }

    /// Gives a delay the settings that it had.
    pub fn restore_delay(&mut self, before: DelayBefore) {
        let DelayBefore { node, settings, options, written } = before;
        if let Some(vertex) = self.vertices.get_mut(&node) {
            (vertex.options, vertex.written) = (options, written);
            if let Some(delay) = &vertex.made.delay {
                delay.set((*settings).clone());
            }
        }
    }

    /// Lets go of an object that nothing names.
    pub fn remove_object(&mut self, id: &str) -> Result<(), ModelError> {
        self.model.remove_object(id)?;
        self.throttle_groups.remove(id);
        self.credentials.remove(id);
        self.secrets.remove(id);
        Ok(())
    }

    /// Makes the node that was asked for, and the nodes written inside it, or none of them. Blocks.
    pub fn add(&mut self, blockdev: &Blockdev) -> Result<(), GraphError> {
        let (mut made, before) = (Vec::new(), self.model.clone());
        let name = blockdev.name_below("", "");
        let result = self.build(blockdev, &name, NodeOwner::Operator, &mut made);
        if result.is_err() {
            self.model = before;
            // Upper ones first.
            for name in made.iter().rev() {
                self.vertices.remove(name);
                self.named_by_images.remove(name);
            }
        }
        result
    }

    /// Lets go of a node on which nothing stands, and of what was written inside it and nothing else uses. Its files are
    /// closed when nothing of it is in use any more.
    pub fn remove(&mut self, name: &str) -> Result<(), ModelError> {
        for name in self.model.remove_node(name)? {
            self.vertices.remove(&name);
            self.named_by_images.remove(&name);
            self.volatile.remove(&name);
        }
        Ok(())
    }

    /// The node that stands below an export from now on, in a place where others may be put.
    pub fn add_export(&mut self, export: NewExport<'_>) -> Result<Arc<dyn Node>, GraphError> {
        let NewExport { id, node, .. } = export;
        let root = Root::new(node, self.node(node)?);
        self.check_end(node)?;
        self.model.add_export(export)?;
        let node = Arc::clone(&root.node);
        self.roots.insert((NodeUser::Export(id.to_owned()), ROOT.to_owned()), root);
        Ok(node)
    }

    /// Has an export name other iothreads.
    pub fn set_export_iothreads(&mut self, id: &str, names: &[String]) -> Result<(), ModelError> {
        self.model.set_export_iothreads(id, names)
    }

    /// Lets go of an export.
    pub fn remove_export(&mut self, id: &str) -> Result<(), ModelError> {
        self.model.remove_export(id)?;
        self.roots.remove(&(NodeUser::Export(id.to_owned()), ROOT.to_owned()));
        Ok(())
    }

    /// The node below an export.
    pub fn root(&self, export: &str) -> Option<&str> {
        self.model.root(export)
    }

    /// What there is and what stands on what.
    pub fn model(&self) -> &GraphModel {
        &self.model
    }

    /// The node of that name.
    pub fn node(&self, name: &str) -> Result<&Arc<dyn Node>, ModelError> {
        self.model.activity(name)?;
        Ok(self.vertices[name].shown())
    }

    /// Which files are below that node now, each once.
    pub fn files_below(&self, name: &str) -> Vec<Arc<OpenFile>> {
        let (mut files, mut seen, mut next) = (Vec::new(), HashSet::new(), vec![name]);
        while let Some(name) = next.pop() {
            if let Some(vertex) = self.vertices.get(name).filter(|_| seen.insert(name)) {
                files.extend(vertex.made.file.clone());
                next.extend(self.below(name).iter().map(|edge| edge.node.as_str()));
            }
        }
        files
    }

    /// Which files are below that export now, each once.
    pub fn files_below_export(&self, id: &str) -> Vec<Arc<OpenFile>> {
        self.model.root(id).map_or_else(Vec::new, |node| self.files_below(node))
    }

    /// Whether that node is held from the start.
    pub fn activity(&self, name: &str) -> Result<Activity, ModelError> {
        self.model.activity(name)
    }

    /// Has nodes be active or inactive, as [`GraphModel::changing_activity`] says.
    pub fn set_activity(&mut self, nodes: &[String], to: Activity) {
        self.model.set_activity(nodes, to);
        let is_active = to == Activity::Active;
        for name in nodes {
            if let Some(Vertex { options, written, .. }) = self.vertices.get_mut(name) {
                options.retain(|(key, _)| key != ACTIVE);
                options.push(pair(ACTIVE, on_off(is_active)));
                written.insert(ACTIVE.to_owned(), is_active.into());
            }
        }
    }

    /// Adds a node that no driver makes and that stands on none, for tests.
    ///
    /// # Panics
    /// If its name is taken.
    pub fn add_made(&mut self, node: Arc<dyn Node>) {
        let name = node.name().to_owned();
        let (access, activity) = (node.access(), Activity::Active);
        let (edges, objects, owner) = (Vec::new(), Vec::new(), NodeOwner::Operator);
        let (bottom, is_filter) = (None, false);
        let new =
            NewNode { name: &name, access, activity, edges, objects, owner, bottom, is_filter };
        self.model.add_node(new).expect("it stands on nothing");
        let made = MadeNode::of(node);
        let (places, options, driver, written) = (Vec::new(), Vec::new(), None, Map::new());
        let (base, own) = (BaseOptions::DEFAULT, None);
        let (filters, bitmaps) = (Vec::new(), NodeBitmaps::new(made.node.size()));
        self.vertices.insert(
            name,
            Vertex { made, filters, bitmaps, places, options, driver, own, base, written },
        );
    }

    /// What stands below a node.
    fn below(&self, name: &str) -> &[Edge] {
        self.model.below(&NodeUser::Node(name.to_owned()))
    }

    /// Makes a node, and notes the names of all that were made, the lower ones first.
    fn build(
        &mut self,
        blockdev: &Blockdev,
        name: &str,
        owner: NodeOwner,
        made: &mut Vec<String>,
    ) -> Result<(), GraphError> {
        for KeyedChild { key, node } in &blockdev.children {
            match node {
                BlockdevRef::Reference(child) => self.model.check_child(child, name)?,
                BlockdevRef::Inline(inner) => {
                    self.build(inner, &inner.name_below(name, key), NodeOwner::Parent, made)?;
                }
            }
        }
        let mut blockdev = Cow::Borrowed(blockdev);
        let access = self.model.judge(&blockdev.entry(name, blockdev.edges(name), owner))?;
        let mut below = Vec::new();
        for edge in blockdev.edges(name) {
            // An image may end where it likes.
            if edge.role != ChildRole::Metadata {
                self.check_end(&edge.node)?;
            }
            let place = block::Child::new(Arc::clone(self.node(&edge.node)?));
            below.push(ChildEdge { edge, place });
        }
        if access == Access::ReadOnly && !blockdev.base.read_only {
            blockdev.to_mut().base.read_only = true;
        }
        self.add_named(name, &blockdev, &mut below, made)?;
        let edges = below.iter().map(|below| below.edge.clone()).collect();
        self.model.add_node(blockdev.entry(name, edges, owner))?;
        made.push(name.to_owned());
        let vertex = self.make(name, &blockdev, below, None)?;
        self.vertices.insert(name.to_owned(), vertex);
        Ok(())
    }

    /// Makes a node of that name over what is below it, which may take the place of one. Blocks.
    fn make(
        &self,
        name: &str,
        blockdev: &Blockdev,
        below: Vec<ChildEdge>,
        before: Option<&MadeNode>,
    ) -> Result<Vertex, GraphError> {
        let context = NodeContext { before, ..self.context(name, blockdev, &below) };
        let made = blockdev.options.make(&context);
        let made = made.map_err(GraphError::Driver)?;
        if let Some(file) = &made.file
            && self.naming.contains(&file.identity())
        {
            let (node, path) = (name.to_owned(), file.path().to_path_buf());
            return Err(GraphError::StandsOnItself { node, path });
        }
        let options = blockdev.describe(&self.throttle_groups);
        let places = below.into_iter().map(|below| (below.edge.key, below.place)).collect();
        let (driver, mut written) = (Some(blockdev.driver), blockdev.written.clone());
        if blockdev.options.needs().bitmaps_of.is_some() {
            // Whoever makes it again has another instant, and not that bitmap: all of the disk is preserved then.
            written.remove("bitmap");
        }
        if let Some(name) = &blockdev.node_name {
            written.insert("node-name".to_owned(), name.as_str().into());
        }
        let (base, own) = (blockdev.base, Some(Arc::clone(&blockdev.options)));
        let (filters, bitmaps) = self.recording_of(name, &made, before);
        Ok(Vertex { made, filters, bitmaps, places, options, driver, own, base, written })
    }

    fn context<'a>(
        &'a self,
        name: &'a str,
        blockdev: &'a Blockdev,
        below: &'a [ChildEdge],
    ) -> NodeContext<'a> {
        let child = |below: &'a ChildEdge| (below.edge.key.as_str(), &below.place);
        let needs = blockdev.options.needs();
        NodeContext {
            name,
            base: &blockdev.base,
            children: below.iter().map(child).collect(),
            before: None,
            bitmaps: needs.bitmaps_of.and_then(|node| self.bitmaps(node).ok()),
            depth: needs.bottom.and_then(|bottom| self.model.backing_steps(name, bottom)),
            groups: &self.throttle_groups,
            credentials: &self.credentials,
            secrets: &self.secrets,
            fences: &self.fences,
            hosts: &self.hosts,
            files: &self.files,
            clock: &self.clock,
            corruptions: &self.corruptions,
            watch: &self.watch,
        }
    }

    /// Whether direct I/O reaches the end of what a node has opened. Whoever shows its bytes asks.
    fn check_end(&self, name: &str) -> Result<(), GraphError> {
        self.vertices[name].check_end(name)
    }
}

impl Vertex {
    /// What those above see: the uppermost filter, or the node itself.
    fn shown(&self) -> &Arc<dyn Node> {
        self.filters.last().map_or(&self.made.node, |filter| &filter.node)
    }

    fn check_end(&self, name: &str) -> Result<(), GraphError> {
        if let Some(file) = &self.made.file {
            let (alignment, bytes) = (file.medium().alignments().offset, file.bytes());
            // What 512-byte blocks need is checked by the export, which has a say in the block size.
            let direct = file.caching() == Caching::Direct;
            if direct && alignment > 512 && !bytes.is_multiple_of(alignment.into()) {
                let (node, path) = (name.to_owned(), file.path().to_path_buf());
                return Err(GraphError::Size { node, path, bytes, alignment });
            }
        }
        Ok(())
    }
}
