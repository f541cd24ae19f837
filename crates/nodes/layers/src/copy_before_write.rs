//! A disk that is kept as it was at an instant: what a guest is about to change is copied before it is changed
//! (drivers `copy-before-write` and `snapshot-access`).
//!
//! Where it stands in the life of a request: a change waits until the clusters that it touches are preserved on the target, and
//! is asked below then. A read of the snapshot asks the target where it has been preserved, and the source elsewhere. What
//! else comes passes.
//!
//! What can go wrong, and what holds it:
//! - A guest changes what a read of the snapshot is about to find on the source: both lock the range ([`SnapshotState`]).
//! - Two changes of one cluster on two iothreads: one of them copies, under the lock, and both wait for that.
//! - A copy fails, or the target is full: by [`CbwErrorPolicy`] the change fails and the snapshot stays whole, or the snapshot
//!   is broken for good and guests go on; then every read of it fails, also one that is under way.
//! - A copy takes too long: the same, after the timeout, while the copy goes on.
//! - A lane is closed in the middle of a copy: the cluster is not marked, and is copied again.
//! - The disk changes its size: that is refused, since the snapshot has the size of its instant.
//! - The snapshot's user discards what it has read: nothing of it is copied any more, and reads of it fail.
//!
//! Threads: lanes of all iothreads, on either side, share the state. Limits: [`CHUNK_BYTES`] of a copy at a time, or what the
//! target gives a place at once if that is more; [`COPIED_BYTES`] of a lane.

mod lane;
mod preserving;
mod snapshot;
mod state;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use block::{
    Access, BlockLimits, Child, Claim, ClaimError, Clock, DiscardPolicy, DiskSize, Lane,
    LaneContext, LaneError, Node, Permission, Permissions, ResizeError, Rights,
};

use lane::CopyBeforeWriteLane;
use preserving::PreservingTasks;
use snapshot::SnapshotNode;
pub use snapshot::{NoSnapshot, SnapshotAccessNode};
pub use state::{SnapshotNews, SnapshotState};

/// What is copied at a time, within a cluster or over several.
const CHUNK_BYTES: u64 = 1 << 20;

/// What the copies of a lane have in memory together.
const COPIED_BYTES: usize = 16 << 20;

/// The smallest cluster, as in QEMU.
const CLUSTER_BYTES_MIN: u64 = 64 << 10;

/// The largest one.
const CLUSTER_BYTES_MAX: u64 = 1 << 31;

/// What is done with the target: others may use it in any way, but give it no other size.
const USES_TARGET: Rights =
    Rights { uses: Permissions::WRITES, shares: Permissions::ALL.without(RESIZES) };

const RESIZES: Permissions = Permissions::NONE.and(Permission::Resize);

/// What becomes of a change whose clusters could not be preserved (`on-cbw-error=`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CbwErrorPolicy {
    /// It fails, and the snapshot stays whole.
    #[default]
    BreakGuestWrite,
    /// It is carried out, and the snapshot can never be read again.
    BreakSnapshot,
}

/// How a disk is kept as it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CopyBeforeWriteSettings {
    /// When a copy fails.
    pub on_error: CbwErrorPolicy,
    /// After what time a copy has failed; `None` is never.
    pub timeout: Option<Duration>,
    /// The fewest bytes that are copied at once, a power of two.
    pub min_cluster_bytes: u64,
}

/// A disk could not be kept as it is.
#[derive(Debug, thiserror::Error)]
pub enum CopyBeforeWriteError {
    /// A size of clusters that there is not. QEMU's sentence.
    #[error("min-cluster-size needs to be a power of 2, at most {CLUSTER_BYTES_MAX}: {0}")]
    Cluster(u64),
    /// The target does not have room for all of the disk.
    #[error("target '{target}' has {found} bytes, and '{source_name}' has {wanted}")]
    SmallTarget {
        /// The target.
        target: String,
        /// Its size.
        found: u64,
        /// The source.
        source_name: String,
        /// Its size.
        wanted: u64,
    },
    /// A bitmap of a disk of another size. QEMU's sentence.
    #[error(
        "Cannot create block-copy-state: Failed to merge bitmap '{name}' to internal copy-bitmap: {why}"
    )]
    OtherBitmap {
        /// Its name.
        name: String,
        /// What is wrong with it.
        why: bitmaps::BitmapRefusal,
    },
    /// There is no bitmap of that size.
    #[error(transparent)]
    Bitmap(#[from] bitmaps::BitmapError),
}

/// A node that preserves on a target what is about to be changed below it.
#[derive(Debug)]
pub struct CopyBeforeWriteNode {
    name: String,
    child: Arc<Child>,
    target: Arc<Child>,
    access: Access,
    discards: DiscardPolicy,
    settings: CopyBeforeWriteSettings,
    clock: Arc<dyn Clock>,
    state: Arc<SnapshotState>,
}

impl CopyBeforeWriteNode {
    /// Over a disk and a target that is as large at least. The instant is now, or later, when the first change can come this
    /// way.
    pub fn new(
        name: &str,
        children: (Arc<Child>, Arc<Child>),
        policies: (Access, DiscardPolicy),
        settings: CopyBeforeWriteSettings,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, CopyBeforeWriteError> {
        let (source, target) = (children.0.node(), children.1.node());
        let state = SnapshotState::of(name, (&*source, &*target), settings)?;
        Ok(Self::with_state(name, children, policies, settings, (state, clock)))
    }

    /// The same with what was made for these nodes.
    pub fn with_state(
        name: &str,
        (child, target): (Arc<Child>, Arc<Child>),
        (access, discards): (Access, DiscardPolicy),
        settings: CopyBeforeWriteSettings,
        (state, clock): (Arc<SnapshotState>, Arc<dyn Clock>),
    ) -> Self {
        let name = name.to_owned();
        Self { name, child, target, access, discards, settings, clock, state }
    }

    /// What was preserved, and what is still to be.
    pub fn state(&self) -> &Arc<SnapshotState> {
        &self.state
    }
}

impl Node for CopyBeforeWriteNode {
    fn name(&self) -> &str {
        &self.name
    }

    fn image_file(&self) -> Option<PathBuf> {
        self.child.node().image_file()
    }

    fn size(&self) -> DiskSize {
        self.child.node().size()
    }

    fn limits(&self) -> BlockLimits {
        let below = self.child.node().limits();
        BlockLimits { discard: below.discard && self.discards == DiscardPolicy::Unmap, ..below }
    }

    fn access(&self) -> Access {
        self.access
    }

    /// Not the target: as long as the process does not live, nobody knows what was preserved there.
    fn flush(&self) -> std::io::Result<()> {
        self.child.node().flush()
    }

    /// Reads the source and writes to the target, whatever its users do.
    fn claim(&self, rights: Rights) -> Result<Claim, ClaimError> {
        let uses = rights.uses.union(Permissions::READS);
        let source = self.child.node().claim(Rights { uses, ..rights })?;
        Ok(source.and(self.target.node().claim(USES_TARGET)?))
    }

    fn resize(&self, _: DiskSize) -> Result<(), ResizeError> {
        Err(ResizeError::refused(self, "it is kept as it was, and cannot have another size"))
    }

    fn snapshot(&self) -> Option<Arc<dyn Node>> {
        Some(Arc::new(SnapshotNode::new(
            &self.name,
            &self.child,
            &self.target,
            Arc::clone(&self.state),
        )))
    }

    fn open_lane(&self, io: &LaneContext) -> Result<Box<dyn Lane>, LaneError> {
        self.state.check_size(self, self.child.node().size())?;
        let source = snapshot::open_child(&self.child, io)?;
        // Another disk: how this one is to be stored is nothing to it.
        let target = snapshot::open_child(&self.target, &io.plain())?;
        let below = self.child.node().open_lane(io)?;
        let unit = u64::from(self.target.node().limits().allocation_unit.get());
        let tasks = PreservingTasks::new(source, target, Arc::clone(&self.state), unit);
        let policies = (self.access, self.discards);
        Ok(Box::new(CopyBeforeWriteLane::new(
            (below, io),
            tasks,
            policies,
            self.settings,
            Arc::clone(&self.clock),
        )))
    }
}
