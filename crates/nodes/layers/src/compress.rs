//! A node as whoever sees it that writes to it and has that compressed (QEMU's filter `compress`): a filter without a name of
//! its own.
//!
//! Where it stands in the life of a request: nowhere. Its lane is that of the node below, opened such that the format there
//! compresses what is written ([`block::LaneContext::compressing`]).
//!
//! Threads: those that compress are the node's, behind the fences of the thread that makes it, and end with it. They compete with
//! iothreads for CPUs, and keep none of them from its work otherwise. Limits: [`THREADS_MAX`].

use std::io;
use std::num::{NonZero, NonZeroU32};
use std::path::PathBuf;
use std::sync::Arc;

use block::{
    Access, BlockLimits, Claim, ClaimError, ComputeThreads, DiskSize, Lane, LaneContext, LaneError,
    Node, ResizeError, Rights,
};
use tasks::ComputePool;

/// How many threads compress at most, as in QEMU.
const THREADS_MAX: usize = 4;

/// A node whose lanes compress what is written.
#[derive(Debug)]
pub struct CompressNode {
    node: Arc<dyn Node>,
    cluster: NonZeroU32,
    pool: Arc<ComputePool>,
    threads: Arc<dyn ComputeThreads>,
}

impl CompressNode {
    /// Over that node, which compresses so many bytes together, a power of two. Fails if there are no threads to be had for that.
    pub fn new(node: Arc<dyn Node>, cluster: NonZeroU32) -> io::Result<Self> {
        let cpus = std::thread::available_parallelism().map_or(1, NonZero::get);
        let pool = Arc::new(ComputePool::start("compress", cpus.min(THREADS_MAX))?);
        Ok(Self { node, cluster, threads: Arc::clone(&pool) as _, pool })
    }

    /// The same node, with the same threads, for those who come first: what they write is compressed before all that waits for
    /// that.
    #[must_use]
    pub fn first(&self) -> Self {
        let (node, pool) = (Arc::clone(&self.node), Arc::clone(&self.pool));
        let threads = Arc::new(ComputePool::first(&pool));
        Self { node, cluster: self.cluster, pool, threads }
    }

    /// The same over a node in the place of that one.
    #[must_use]
    pub fn over(self, node: Arc<dyn Node>) -> Self {
        Self { node, ..self }
    }
}

impl Node for CompressNode {
    fn name(&self) -> &str {
        self.node.name()
    }

    fn image_file(&self) -> Option<PathBuf> {
        self.node.image_file()
    }

    fn size(&self) -> DiskSize {
        self.node.size()
    }

    fn limits(&self) -> BlockLimits {
        let below = self.node.limits();
        BlockLimits { allocation_unit: self.cluster.max(below.allocation_unit), ..below }
    }

    fn access(&self) -> Access {
        self.node.access()
    }

    fn flush(&self) -> io::Result<()> {
        self.node.flush()
    }

    fn claim(&self, rights: Rights) -> Result<Claim, ClaimError> {
        self.node.claim(rights)
    }

    fn resize(&self, size: DiskSize) -> Result<(), ResizeError> {
        self.node.resize(size)
    }

    fn open_lane(&self, io: &LaneContext) -> Result<Box<dyn Lane>, LaneError> {
        self.node.open_lane(&io.compressing(&self.threads))
    }
}
