//! What is there: nodes, the graph, counters, commands, the schema, the version; and `quit`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use bitmaps::{Persistence, Recording};
use block::{Access, FlushPolicy, Permission, Permissions};
use graph::{Activity, Graph, GraphModel, JobFilter, NODE, NodeInfo, NodeUser, UsedEdge};
use request_path::SourceGauges;
use serde_json::{Map, Value};
use syntax::{Keys, OptionFields, ValueType, optional};

use super::{COMMANDS, CommandContext, answer, done};
use crate::monitors::DaemonFate;
use crate::qmp_error::QmpError;
use crate::schema::Schema;
use crate::types::{
    BlockDeviceInfo, BlockDeviceStats, BlockDirtyInfo, BlockGraph, BlockGraphEdge, BlockGraphNode,
    BlockInfo, BlockStats, CacheInfo, CommandInfo, CompressionType, DetectZeroes, FileInfo,
    GraphNodeType, ImageInfo, ImageInfoSpecific, PermissionName, Qcow2Info, SchemaInfo,
    SnapshotInfo, version as this_version,
};

pub(super) static CAPABILITIES: Keys =
    Keys { of: "qmp_capabilities", supported: &[&[optional("enable", ENABLED)]], later: &[] };

/// What can be negotiated.
const ENABLED: ValueType = ValueType::List(&ValueType::Word(&["oob"]));

pub(super) static NAMED_NODES: Keys = Keys {
    of: "query-named-block-nodes",
    supported: &[&[optional("flat", ValueType::Flag)]],
    later: &[],
};

pub(super) static BLOCKSTATS: Keys = Keys {
    of: "query-blockstats",
    supported: &[&[optional("query-nodes", ValueType::Flag)]],
    later: &[],
};

/// What a session lets through comes too late.
pub(super) fn negotiated(_: &mut CommandContext<'_>, _: OptionFields) -> Result<Value, QmpError> {
    Err(QmpError::no_command("Capabilities negotiation is already complete, command ignored"))
}

pub(super) fn version(_: &mut CommandContext<'_>, _: OptionFields) -> Result<Value, QmpError> {
    answer(this_version())
}

pub(super) fn commands(_: &mut CommandContext<'_>, _: OptionFields) -> Result<Value, QmpError> {
    answer(COMMANDS.iter().map(|it| CommandInfo { name: it.name }).collect::<Vec<_>>())
}

pub(super) fn schema(_: &mut CommandContext<'_>, _: OptionFields) -> Result<Value, QmpError> {
    answer(Schema::of_all().into_iter().map(SchemaInfo).collect::<Vec<_>>())
}

pub(super) fn quit(context: &mut CommandContext<'_>, _: OptionFields) -> Result<Value, QmpError> {
    context.fate = DaemonFate::Ends;
    done()
}

/// A storage daemon has no devices of its own.
pub(super) fn block(_: &mut CommandContext<'_>, _: OptionFields) -> Result<Value, QmpError> {
    answer(Vec::<BlockInfo>::new())
}

pub(super) fn named_block_nodes(
    context: &mut CommandContext<'_>,
    mut fields: OptionFields,
) -> Result<Value, QmpError> {
    let is_flat = fields.flag("flat")?.unwrap_or(false);
    let graph = context.state.graph();
    let names = graph.model().names(NODE).into_iter();
    let reader = GraphReader { graph, is_flat };
    let filters = graph.model().job_filters().filter_map(|filter| reader.job_filter(filter));
    let nodes = names.filter_map(|name| reader.block_device(name));
    answer(nodes.chain(filters).collect::<Vec<_>>())
}

/// The driver of images of a cluster.
const CLUSTER_DRIVER: &str = "rbd";

/// The options by which QEMU says what a node shows, by driver; keys below these belong to them.
const NAMING_OPTIONS: &[(&str, &[&str])] = &[
    (CLUSTER_DRIVER, &["pool", "namespace", "image", "conf", "snapshot", "user", "server"]),
    ("throttle", &["throttle-group"]),
];

/// What a guest sees of a disk is a number of sectors.
const SECTOR_BYTES: u64 = 512;

/// Reads what there is to say of nodes.
pub(super) struct GraphReader<'a> {
    pub(super) graph: &'a Graph,
    /// Whether backing files are left out.
    pub(super) is_flat: bool,
}

impl GraphReader<'_> {
    fn child(&self, name: &str, key: &str) -> Option<String> {
        let below = self.graph.model().below(&NodeUser::Node(name.to_owned()));
        below.iter().find(|edge| edge.key == key).map(|edge| edge.node.clone())
    }

    /// The file in which the bytes of a node are, if they are in one.
    pub(super) fn path(&self, name: &str) -> Option<PathBuf> {
        let info = self.graph.node_info(name).ok()?;
        match info.file {
            Some(file) => Some(file.path().to_owned()),
            None => self.path(&self.child(name, "file")?),
        }
    }

    /// The backing file of a chain that a client means by a name: that which the image above gives it, its path, or another name
    /// of its file. A name that is no path from the root is looked for beside the image above, as in QEMU.
    pub(super) fn backing_file_called(&self, chain: &[String], name: &str) -> Option<String> {
        let is_it = |above: &str, below: &str| {
            let image = self.graph.node_info(above).ok().and_then(|info| info.image);
            let Some(path) = self.path(below) else { return false };
            if path.as_os_str() == name
                || image.and_then(|image| image.header().backing.clone()).as_deref() == Some(name)
            {
                return true;
            }
            let folder = self.path(above).and_then(|path| Some(path.parent()?.to_owned()));
            let meant = folder.unwrap_or_default().join(name).canonicalize().ok();
            meant.is_some() && meant == path.canonicalize().ok()
        };
        let found = chain.windows(2).find(|pair| is_it(&pair[0], &pair[1]));
        found.map(|pair| pair[1].clone())
    }

    /// Whether a node is that one, or stands below it as the disk that it shows or its backing file.
    pub(super) fn is_in_chain(&self, top: &str, name: &str) -> bool {
        let mut next = Some(top.to_owned());
        while let Some(node) = next {
            if node == name {
                return true;
            }
            next = self.child(&node, "backing").or_else(|| self.child(&node, "file"));
        }
        false
    }

    /// The format of what stands below an image as its backing file.
    pub(super) fn backing_format(&self, name: &str) -> Option<&'static str> {
        let below = self.child(name, "backing")?;
        let info = self.graph.node_info(&below).ok()?;
        Some(if info.image.is_some() { info.driver } else { "raw" })
    }

    /// How QEMU calls what is behind a node: by a path, by options if it is an image of a cluster, or by the driver.
    fn file_name(&self, name: &str, info: &NodeInfo<'_>) -> String {
        if let Some(path) = self.path(name) {
            return path.display().to_string();
        }
        match self.naming_options(name, info) {
            Some(options) => format!("json:{}", Value::from(options)),
            None => format!("{}://", info.driver),
        }
    }

    /// The options that say which image of a cluster a node shows, with those of the nodes on the way to it.
    fn naming_options(&self, name: &str, info: &NodeInfo<'_>) -> Option<Map<String, Value>> {
        let mut all = Map::new();
        all.insert("driver".to_owned(), info.driver.into());
        let known = NAMING_OPTIONS.iter().filter(|(driver, _)| *driver == info.driver);
        let known: Vec<&str> = known.flat_map(|(_, keys)| *keys).copied().collect();
        let own = info.options.iter().filter(|(key, value)| {
            let key = key.split_once('.').map_or(key.as_str(), |(list, _)| list);
            !value.is_empty() && known.contains(&key)
        });
        all.extend(own.map(|(key, value)| (key.clone(), value.as_str().into())));
        if info.driver != CLUSTER_DRIVER {
            let below = self.child(name, "file")?;
            let below = self.naming_options(&below, &self.graph.node_info(&below).ok()?)?;
            all.insert("file".to_owned(), below.into());
        }
        Some(all)
    }

    fn block_device(&self, name: &str) -> Option<BlockDeviceInfo> {
        let info = self.graph.node_info(name).ok()?;
        let backing = self.child(name, "backing");
        let mut depth = 0;
        let mut below = backing.clone();
        while let Some(node) = below.filter(|_| !self.is_flat) {
            depth += 1;
            below = self.child(&node, "backing");
        }
        let named = |image: &qcow2::Header| image.backing.clone();
        let backing_file = match &backing {
            Some(node) => self.path(node).map(|path| path.display().to_string()),
            None => info.image.and_then(|image| named(&image.header())),
        };
        Some(BlockDeviceInfo {
            file: self.file_name(name, &info),
            node_name: Some(name.to_owned()),
            is_read_only: info.access == Access::ReadOnly,
            driver: info.driver.to_owned(),
            backing_file,
            backing_depth: depth,
            is_active: info.activity == Activity::Active,
            is_encrypted: false,
            detect_zeroes: DetectZeroes("off"),
            bps: 0,
            bps_read: 0,
            bps_written: 0,
            iops: 0,
            iops_read: 0,
            iops_written: 0,
            image: self.image(name, &info),
            cache: CacheInfo {
                is_write_back: true,
                is_direct: info.base.cache_direct,
                ignores_flushes: info.base.flushes == FlushPolicy::Ignored,
            },
            write_threshold: info.write_threshold.map_or(0, |threshold| threshold.get()),
            bitmaps: self.bitmaps(name),
        })
    }

    /// What a job has put on a node, as if it were a node of the name that it was given.
    fn job_filter(&self, filter: &JobFilter) -> Option<BlockDeviceInfo> {
        let below = self.block_device(&filter.node)?;
        let depth = if self.is_flat { 0 } else { below.backing_depth + 1 };
        let image = ImageInfo {
            format: filter.driver.to_owned(),
            is_dirty: Some(false),
            cluster_size: None,
            backing: None,
            full_backing: None,
            backing_format: None,
            specific: None,
            backing_image: None,
            ..self.image(&filter.node, &self.graph.node_info(&filter.node).ok()?)
        };
        let backing_image = (!self.is_flat).then(|| Box::new(below.image));
        Some(BlockDeviceInfo {
            node_name: Some(filter.name.clone()),
            driver: filter.driver.to_owned(),
            is_read_only: filter.driver == "commit_top",
            backing_file: None,
            backing_depth: depth,
            image: ImageInfo { backing_image, ..image },
            write_threshold: 0,
            bitmaps: None,
            ..below
        })
    }

    fn bitmaps(&self, name: &str) -> Option<Vec<BlockDirtyInfo>> {
        let bitmaps = self.graph.bitmaps(name).ok()?.describe();
        let described = bitmaps.into_iter().map(|it| BlockDirtyInfo {
            name: Some(it.name),
            is_recording: it.recording == Recording::On,
            is_persistent: it.persistence == Persistence::Kept,
            is_inconsistent: it.is_inconsistent.then_some(true),
            is_busy: it.is_busy,
            granularity: it.granularity.bytes(),
            count: it.count,
        });
        Some(described.collect::<Vec<_>>()).filter(|all| !all.is_empty())
    }

    /// The internal snapshots of the image that a node shows.
    fn snapshots(&self, name: &str) -> Option<Vec<SnapshotInfo>> {
        let (_, snapshots) = self.graph.internal_snapshots(name)?;
        let all: Vec<SnapshotInfo> = snapshots.snapshots().iter().map(SnapshotInfo::of).collect();
        Some(all).filter(|all| !all.is_empty())
    }

    fn image(&self, name: &str, info: &NodeInfo<'_>) -> ImageInfo {
        let header = info.image.map(|image| image.header());
        let backing = self.child(name, "backing");
        let full_backing = backing.as_deref().and_then(|node| self.path(node));
        let specific = match (header.clone(), info.driver) {
            (Some(header), _) => Some(ImageInfoSpecific::Qcow2(qcow2_info(&header))),
            (None, "file" | "host_device") => {
                Some(ImageInfoSpecific::File(FileInfo { extent_size_hint: None }))
            }
            (None, _) => None,
        };
        let below = backing.as_deref().filter(|_| !self.is_flat).and_then(|node| {
            let info = self.graph.node_info(node).ok()?;
            Some(Box::new(self.image(node, &info)))
        });
        ImageInfo {
            file_name: self.file_name(name, info),
            format: info.driver.to_owned(),
            is_dirty: Some(header.as_ref().is_some_and(|header| header.features.dirty)),
            actual_size: self.path(name).as_deref().and_then(allocated),
            virtual_size: info.node.size().0.0.next_multiple_of(SECTOR_BYTES),
            cluster_size: header.as_ref().map(|header| 1 << header.cluster_bits),
            backing: header.as_ref().and_then(|header| header.backing.clone()),
            full_backing: full_backing.map(|path| path.display().to_string()),
            backing_format: header.and_then(|header| header.backing_format.clone()),
            snapshots: self.snapshots(name),
            specific,
            backing_image: below,
        }
    }
}

/// How many bytes a file takes on its file system.
fn allocated(path: &Path) -> Option<u64> {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(path).ok().map(|it| it.blocks() * 512)
}

fn qcow2_info(header: &qcow2::Header) -> Qcow2Info {
    let features = header.features;
    let is_new = header.version >= 3;
    let flag = |is_set: bool| is_new.then_some(is_set);
    Qcow2Info {
        compat: if is_new { "1.1" } else { "0.10" },
        data_file: header.data_file.clone(),
        is_data_file_raw: features.external_data.then_some(features.raw_external),
        has_extended_l2: flag(features.extended_l2),
        has_lazy_refcounts: flag(features.lazy_refcounts),
        is_corrupt: flag(features.corrupt),
        refcount_bits: 1 << header.refcount_order,
        compression: CompressionType(if features.zstd { "zstd" } else { "zlib" }),
    }
}

/// Counters of nodes: those below an export have the sum of what its queues have done since their clients came. A storage
/// daemon has no devices, so without `query-nodes` there is nothing.
pub(super) fn blockstats(
    context: &mut CommandContext<'_>,
    mut fields: OptionFields,
) -> Result<Value, QmpError> {
    if !fields.flag("query-nodes")?.unwrap_or(false) {
        return answer(Vec::<BlockStats>::new());
    }
    let graph = context.state.graph();
    let mut stats = BTreeMap::<&str, BlockDeviceStats>::new();
    for source in context.state.sources() {
        if let Some(root) = graph.root(&source.name().export) {
            stats.entry(root).or_default().add(source.gauges());
        }
    }
    let names = graph.model().names(NODE).into_iter();
    let all = names.map(|name| BlockStats {
        device: None,
        node_name: Some(name.to_owned()),
        stats: stats.remove(name).unwrap_or_default(),
        parent: None,
        backing: None,
    });
    answer(all.collect::<Vec<_>>())
}

impl BlockDeviceStats {
    /// Adds what a queue has done.
    fn add(&mut self, gauges: &SourceGauges) {
        self.reads += gauges.reads.get();
        self.writes += gauges.writes.get();
        self.flushes += gauges.flushes.get();
        self.discards += gauges.discards.get();
        self.read_bytes += gauges.read_bytes.get();
        self.written_bytes += gauges.written_bytes.get();
    }
}

pub(super) fn graph(context: &mut CommandContext<'_>, _: OptionFields) -> Result<Value, QmpError> {
    let model = context.state.graph().model();
    let exports = model.exports().map(|id| NodeUser::Export(id.to_owned()));
    let nodes = model.names(NODE).into_iter().map(|name| NodeUser::Node(name.to_owned()));
    let jobs = model.jobs().map(|id| NodeUser::Job(id.to_owned()));
    let filters = model.job_filters().map(|filter| NodeUser::Node(filter.name.clone()));
    let users: Vec<NodeUser> = nodes.chain(filters).chain(exports).chain(jobs).collect();
    let id = |user: &NodeUser| {
        users.iter().position(|known| known == user).map_or(0, |place| place as u64 + 1)
    };
    let vertex = |user: &NodeUser| {
        let (kind, name) = match user {
            NodeUser::Node(name) => ("block-driver", name),
            NodeUser::Export(id) => ("block-backend", id),
            NodeUser::Job(id) => ("block-job", id),
        };
        BlockGraphNode { id: id(user), kind: GraphNodeType(kind), name: name.clone() }
    };
    let edges = edges_with_filters(model).into_iter().map(|edge| BlockGraphEdge {
        parent: id(&edge.user),
        child: id(&NodeUser::Node(edge.node)),
        name: edge.key,
        uses: names(edge.uses),
        shares: names(edge.shares),
    });
    answer(BlockGraph { nodes: users.iter().map(vertex).collect(), edges: edges.collect() })
}

/// All edges, with those above a node on which a job has put a filter with a name at the filter.
fn edges_with_filters(model: &GraphModel) -> Vec<UsedEdge> {
    let mut edges = model.edges();
    for filter in model.job_filters() {
        let is_above = |edge: &&mut UsedEdge| {
            edge.node == filter.node && !matches!(edge.user, NodeUser::Job(_))
        };
        let mut above = Permissions::NONE;
        for edge in edges.iter_mut().filter(is_above) {
            above = above.union(edge.uses);
            edge.node.clone_from(&filter.name);
        }
        let user = NodeUser::Node(filter.name.clone());
        let edge = |key: &str, node: &str, uses| UsedEdge {
            user: user.clone(),
            key: key.to_owned(),
            node: node.to_owned(),
            uses,
            shares: Permissions::ALL,
        };
        let uses = match filter.driver {
            // As in QEMU, what is above it sees nothing of what happens to the images meanwhile.
            _ if filter.is_commit => Permissions::NONE,
            "copy-on-read" => above.and(Permission::ConsistentRead).and(Permission::WriteUnchanged),
            _ => above.and(Permission::ConsistentRead),
        };
        edges.push(edge(filter.key, &filter.node, uses));
        let writes = Permissions::NONE.and(Permission::Write);
        edges.extend(filter.target.as_ref().map(|target| edge("target", target, writes)));
    }
    edges
}

fn names(permissions: Permissions) -> Vec<PermissionName> {
    let name = |permission| {
        PermissionName(match permission {
            Permission::ConsistentRead => "consistent-read",
            Permission::Write => "write",
            Permission::WriteUnchanged => "write-unchanged",
            Permission::Resize => "resize",
        })
    };
    permissions.iter().map(name).collect()
}
