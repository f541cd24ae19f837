//! A disk whose image gets what is read and was only in its backing files (driver `copy-on-read`).
//!
//! Where it stands in the life of a request: a read is held until its bytes are in the image below, and asked there then. What
//! else comes passes.
//!
//! Invariants: a copy never covers a change. It holds its range from before it looks whether there is something to copy to
//! after its write; a change holds its own from before it is asked below until it is carried out. A read fails if its copy
//! does, as in QEMU. Who holds a range waits for nothing but I/O below.
//! Threads: lanes of all iothreads share the locks. Limits: [`CHUNK_BYTES`] of a copy at a time, [`COPIED_BYTES`] of a lane.

mod lane;

use std::sync::Arc;

use block::{
    Access, BlockStatus, Child, Claim, ClaimError, Lane, LaneContext, LaneError, Node, Permission,
    RangeLock, Rights,
};
use tasks::AsyncChild;

use crate::child_node::same_as_child;
use lane::CopyOnReadLane;

/// What is copied at a time, or one unit of the image if that is larger.
const CHUNK_BYTES: u64 = 1 << 20;

/// What the copies of a lane have in memory together.
const COPIED_BYTES: usize = 16 << 20;

/// From which images bytes are copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CopySource {
    /// From all backing files below the image, and zeroes where none of them has anything.
    All,
    /// From so many backing files below the image, the nearest first.
    Nearest(u8),
}

impl CopySource {
    /// Whether bytes that are this to the image are to be copied.
    fn has(self, status: BlockStatus) -> bool {
        match self {
            // Zeroes for which the image asks nobody need no place in it.
            Self::All => status.depth > 0,
            Self::Nearest(most) => status.is_allocated && (1..=most).contains(&status.depth),
        }
    }
}

/// A node that copies what is read into the image below.
#[derive(Debug)]
pub struct CopyOnReadNode {
    name: String,
    child: Arc<Child>,
    access: Access,
    source: CopySource,
    ranges: RangeLock,
}

impl CopyOnReadNode {
    /// Copies into that child, which takes changes.
    pub fn new(name: &str, child: Arc<Child>, access: Access, source: CopySource) -> Self {
        Self { name: name.to_owned(), child, access, source, ranges: RangeLock::default() }
    }
}

impl Node for CopyOnReadNode {
    same_as_child!();

    /// Writes to the child what is there already, whatever its users do.
    fn claim(&self, rights: Rights) -> Result<Claim, ClaimError> {
        let uses = rights.uses.and(Permission::WriteUnchanged);
        self.child.node().claim(Rights { uses, ..rights })
    }

    fn open_lane(&self, io: &LaneContext) -> Result<Box<dyn Lane>, LaneError> {
        let child = self.child.node();
        let limits = child.limits();
        let alignment = limits.request_alignment.get().into();
        let storage = AsyncChild::new(child.open_lane(io)?, io, alignment);
        let unit = limits.allocation_unit.get().into();
        let copies =
            lane::CopyTasks::new(storage, self.ranges.clone(), self.source, child.size(), unit);
        Ok(Box::new(CopyOnReadLane::new(child.open_lane(io)?, io, copies, self.access)))
    }
}
