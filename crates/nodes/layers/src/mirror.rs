//! What a mirror has on its source: changes are noted for the copy that is under way, or carried out on the target as well.
//!
//! Where it stands: a filter on the source, below all its users, as long as the job lasts. QEMU's `mirror_top`.
//!
//! Invariants: a change that is only noted is noted after it has ended, also with an error, and before its client is told.
//! One that is written to both has its range from before it begins until it is on the target, so that no copy of older
//! bytes comes later; the bytes of both are those of one moment. A target that fails is no matter of the client: what was
//! not written there is noted.
//! Threads: lanes of all iothreads share the backlog. Limits: a change of each request in flight.

mod lane;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bitmaps::CopyBacklog;
use block::{Access, Child, Claim, ClaimError, Lane, LaneContext, LaneError, Node, Rights};

use crate::child_node::same_as_child;
use lane::MirrorLane;

/// When the target has what a client writes (QEMU's MirrorCopyMode).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MirrorMode {
    /// When it was copied from the source some time later.
    Background,
    /// Before the client is told that it is written.
    WriteBlocking,
}

/// A filter on the source of a mirror.
#[derive(Debug)]
pub struct MirrorNode {
    name: String,
    child: Arc<Child>,
    target: Arc<dyn Node>,
    access: Access,
    backlog: Arc<CopyBacklog>,
    is_blocking: Arc<AtomicBool>,
}

impl MirrorNode {
    /// Notes changes of that child in the backlog of a copy to that target.
    pub fn new(
        child: Arc<Child>,
        target: Arc<dyn Node>,
        backlog: Arc<CopyBacklog>,
        mode: MirrorMode,
    ) -> Self {
        let (name, access) = (child.node().name().to_owned(), child.node().access());
        let is_blocking = Arc::new(AtomicBool::new(mode == MirrorMode::WriteBlocking));
        Self { name, child, target, access, backlog, is_blocking }
    }

    /// Another mode for changes that begin from now on.
    pub fn set_mode(&self, mode: MirrorMode) {
        self.is_blocking.store(mode == MirrorMode::WriteBlocking, Ordering::Relaxed);
    }

    /// The mode of changes that begin now.
    pub fn mode(&self) -> MirrorMode {
        match self.is_blocking.load(Ordering::Relaxed) {
            true => MirrorMode::WriteBlocking,
            false => MirrorMode::Background,
        }
    }
}

impl Node for MirrorNode {
    same_as_child!();

    fn claim(&self, rights: Rights) -> Result<Claim, ClaimError> {
        self.child.node().claim(rights)
    }

    fn open_lane(&self, io: &LaneContext) -> Result<Box<dyn Lane>, LaneError> {
        let source = self.child.node().open_lane(io)?;
        // Another disk: how the source is to be stored is nothing to it.
        let target = self.target.open_lane(&io.plain())?;
        let (backlog, is_blocking) = (Arc::clone(&self.backlog), Arc::clone(&self.is_blocking));
        Ok(Box::new(MirrorLane::new(source, target, io, backlog, is_blocking)))
    }
}
