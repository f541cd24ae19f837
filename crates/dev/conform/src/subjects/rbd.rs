//! `rbd`: an image of a Ceph cluster, the end of the stacks that are played on one.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result};
use block::{
    Access, Claim, DiscardPolicy, FlushPolicy, Lane, LaneContext, LaneError, Node, Rights,
    StoragePolicy,
};
use rbd::{RbdNode, RbdOptions, ThreadFences};
use testkit::ceph::{Cluster, POOL};
use testkit::conformance::stack::{Chosen, Home, Parts, Shape, Subject};
use testkit::rng::Rng;

use super::file::{FetchBytes, Medium};

/// The longest image.
const SECTORS_MAX: u64 = 8192;

/// The bytes of an object, as options of rbd: one that is smaller than most requests, and larger than all images.
const OBJECT_SIZES: [&str; 2] = ["16K", "4M"];

/// Images of a cluster, whose bytes come to a medium in the end.
#[derive(Debug)]
pub(crate) struct RbdEnd {
    medium: Arc<Medium>,
    cluster: Arc<Cluster>,
    /// What sets the images of one stack apart from those of others.
    stack: u64,
}

impl RbdEnd {
    /// Images of the cluster, for this stack.
    pub(crate) fn new(medium: &Arc<Medium>, cluster: &Arc<Cluster>, stack: u64) -> Self {
        Self { medium: Arc::clone(medium), cluster: Arc::clone(cluster), stack }
    }
}

impl Subject for RbdEnd {
    fn name(&self) -> &'static str {
        "rbd"
    }

    fn choose(&self, rng: &mut Rng, _: &Shape) -> Option<Arc<dyn Chosen>> {
        let ceiling = SECTORS_MAX >> rng.below(5);
        let size = (1 + rng.below(ceiling)) * block::SECTOR_BYTES;
        let discard = if rng.one_in(3) { DiscardPolicy::Ignore } else { DiscardPolicy::Unmap };
        let object = OBJECT_SIZES[rng.index(OBJECT_SIZES.len())];
        let (medium, cluster) = (Arc::clone(&self.medium), Arc::clone(&self.cluster));
        Some(Arc::new(ChosenRbd { medium, cluster, stack: self.stack, size, object, discard }))
    }
}

#[derive(Debug)]
struct ChosenRbd {
    medium: Arc<Medium>,
    cluster: Arc<Cluster>,
    stack: u64,
    size: u64,
    object: &'static str,
    discard: DiscardPolicy,
}

impl Chosen for ChosenRbd {
    fn describe(&self) -> String {
        format!("{} B, objects of {}, discard {:?}", self.size, self.object, self.discard)
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn home(&self, at: u64) -> Home {
        Home::File(at)
    }

    fn build(&self, parts: Parts<'_>) -> Result<Arc<dyn Node>> {
        let path = self.medium.write_stamped(parts.file, self.size)?;
        let name = format!("stack{:x}-{}", self.stack, parts.file);
        let text = path.to_str().context("a path of a test is text")?;
        let size = ["--object-size", self.object];
        let words = ["import", "--no-progress", size[0], size[1], text, &name];
        self.cluster.rbd(&words)?;
        let (cluster, image) = (Arc::clone(&self.cluster), name.clone());
        self.medium.add_fetch(Box::new(Export { cluster, image, path }));
        let options = RbdOptions {
            pool: POOL.to_owned(),
            namespace: String::new(),
            image: name,
            snapshot: None,
            conf: Some(self.cluster.conf()),
            user: None,
            authentication: Vec::new(),
            key: None,
            monitors: Vec::new(),
        };
        let (access, flushes) = (Access::ReadWrite, FlushPolicy::Obeyed);
        let policy = StoragePolicy { access, discard: self.discard, flushes };
        let node = RbdNode::open(parts.name, &options, policy, &ThreadFences::default())?;
        let claim = node.claim(Rights::of_user(Access::ReadWrite))?;
        Ok(Arc::new(LockedNode { _claim: claim, node }))
    }

    fn drops_discards(&self) -> bool {
        self.discard == DiscardPolicy::Ignore
    }
}

/// What brings the bytes of an image into its file.
#[derive(Debug)]
struct Export {
    cluster: Arc<Cluster>,
    image: String,
    path: PathBuf,
}

impl FetchBytes for Export {
    fn fetch(&self) -> Result<()> {
        let bytes = self.cluster.export(&self.image)?;
        std::fs::write(&self.path, bytes).with_context(|| self.path.display().to_string())
    }
}

/// A node with the lock of its image.
#[derive(Debug)]
struct LockedNode {
    /// Given back first.
    _claim: Claim,
    node: RbdNode,
}

impl Node for LockedNode {
    testkit::same_node_as!(node);

    fn open_lane(&self, io: &LaneContext) -> Result<Box<dyn Lane>, LaneError> {
        self.node.open_lane(io)
    }
}
