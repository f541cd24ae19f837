//! Nodes that spread their bytes over others in turn (driver `stripe`).
//!
//! Where it stands: above two or more children of one size. The layout is the one of md's RAID0 with
//! equal members and the same chunk, so md and ringloom read what the other one has written.
//!
//! Invariants: what a stripe shows of each child is the same number of whole chunks. A child that
//! fails fails only the requests that touch it.
//! Not here: arrays of unequal members, for which md has further layouts.

use std::sync::Arc;

use block::{
    Access, BlockLimits, ByteCount, Child, Claim, ClaimError, DiskSize, Lane, LaneContext,
    LaneError, Node, Rights,
};

mod join;
mod lane;
mod layout;

pub use layout::{ChunkSize, MEMBERS_MAX, MEMBERS_MIN};

use lane::StripeLane;
use layout::Layout;

/// Whether discards are passed to the children.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StripeDiscards {
    /// They do, and zeroings may give space back.
    Passed,
    /// They do nothing, and zeroings keep the space.
    Ignored,
}

/// A disk whose chunks are those of its children, in turn.
#[derive(Debug)]
pub struct StripeNode {
    name: String,
    children: Vec<Arc<Child>>,
    layout: Layout,
    access: Access,
    discards: StripeDiscards,
}

/// These nodes cannot be made a stripe.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StripeError {
    /// There are too few or too many.
    #[error("node {node}: {count} children; a stripe has {MEMBERS_MIN} to {MEMBERS_MAX}")]
    Count {
        /// The node-name.
        node: String,
        /// How many there are.
        count: usize,
    },
    /// One child stands in two places.
    #[error("node {node}: the node {child} is a child twice")]
    Twice {
        /// The node-name.
        node: String,
        /// The child.
        child: String,
    },
    /// A child does not hold a single chunk.
    #[error("node {node}: the node {child} has {bytes} bytes, fewer than one chunk of {chunk}")]
    Small {
        /// The node-name.
        node: String,
        /// The child.
        child: String,
        /// Its size.
        bytes: ByteCount,
        /// The size of a chunk.
        chunk: ByteCount,
    },
    /// A child holds more or fewer chunks than the first one.
    #[error(
        "node {node}: children of unequal size: {first} has {first_bytes} bytes, {child} has \
         {bytes} bytes (whole chunks of {chunk} bytes count)"
    )]
    Unequal {
        /// The node-name.
        node: String,
        /// The first child.
        first: String,
        /// Its size.
        first_bytes: ByteCount,
        /// Another child.
        child: String,
        /// The other child's size.
        bytes: ByteCount,
        /// The size of a chunk.
        chunk: ByteCount,
    },
    /// The stripe would have places that no file has.
    #[error("node {node}: {count} children of {bytes} bytes make a disk of 2^63 bytes or more")]
    Large {
        /// The node-name.
        node: String,
        /// How many there are.
        count: usize,
        /// The size of each.
        bytes: ByteCount,
    },
}

impl StripeNode {
    /// A stripe over these children, [`MEMBERS_MIN`] to [`MEMBERS_MAX`] of them, all different and,
    /// counted in whole chunks, of one size. Looks at the sizes that they have now.
    pub fn new(
        name: &str,
        children: Vec<Arc<Child>>,
        chunk: ChunkSize,
        access: Access,
        discards: StripeDiscards,
    ) -> Result<Self, StripeError> {
        let (node, count) = (name.to_owned(), children.len());
        if !(MEMBERS_MIN..=MEMBERS_MAX).contains(&count) {
            return Err(StripeError::Count { node, count });
        }
        let layout = Layout::new(chunk, count);
        check_children(&node, &children, chunk, layout)?;
        Ok(Self { name: node, children, layout, access, discards })
    }

    /// What is used of each child. It can grow with all of them.
    fn used(&self) -> ByteCount {
        let sizes = self.children.iter().map(|child| self.layout.used(child.node().size().0).0);
        let smallest = sizes.min().expect("a stripe has children");
        ByteCount(smallest.min(self.layout.member_bytes_max().0))
    }
}

fn check_children(
    node: &str,
    children: &[Arc<Child>],
    chunk: ChunkSize,
    layout: Layout,
) -> Result<(), StripeError> {
    let (node, count, chunk) = (node.to_owned(), children.len(), chunk.bytes());
    let nodes: Vec<_> = children.iter().map(|child| child.node()).collect();
    for (place, child) in nodes.iter().enumerate() {
        if nodes[..place].iter().any(|other| Arc::ptr_eq(other, child)) {
            return Err(StripeError::Twice { node, child: child.name().to_owned() });
        }
    }
    let first = &nodes[0];
    let first_bytes = first.size().0;
    for child in &nodes {
        let bytes = child.size().0;
        let used = layout.used(bytes);
        if used.0 == 0 {
            return Err(StripeError::Small { node, child: child.name().to_owned(), bytes, chunk });
        }
        if used != layout.used(first_bytes) {
            let (first, child) = (first.name().to_owned(), child.name().to_owned());
            return Err(StripeError::Unequal { node, first, first_bytes, child, bytes, chunk });
        }
    }
    if layout.used(first_bytes).0 > layout.member_bytes_max().0 {
        return Err(StripeError::Large { node, count, bytes: first_bytes });
    }
    Ok(())
}

impl Node for StripeNode {
    fn name(&self) -> &str {
        &self.name
    }

    fn size(&self) -> DiskSize {
        DiskSize(self.layout.size(self.used()))
    }

    /// What suits the most demanding child.
    fn limits(&self) -> BlockLimits {
        let below = self.children.iter().map(|child| child.node().limits());
        let mut limits = below
            .reduce(|one, other| BlockLimits {
                request_alignment: one.request_alignment.max(other.request_alignment),
                physical_block: one.physical_block.max(other.physical_block),
                discard: one.discard || other.discard,
                discard_granularity: one.discard_granularity.max(other.discard_granularity),
                allocation_unit: one.allocation_unit.max(other.allocation_unit),
            })
            .expect("a stripe has children");
        limits.discard &= self.discards == StripeDiscards::Passed;
        limits.discard_granularity = self.layout.granularity(limits.discard_granularity);
        limits
    }

    fn access(&self) -> Access {
        self.access
    }

    /// Tries all children; the first error counts.
    fn flush(&self) -> std::io::Result<()> {
        let mut result = Ok(());
        for child in &self.children {
            result = result.and(child.node().flush());
        }
        result
    }

    /// Needs of each child what is asked of it: all of them, in their order, or none.
    fn claim(&self, rights: Rights) -> Result<Claim, ClaimError> {
        self.children
            .iter()
            .try_fold(Claim::nothing(), |claim, child| Ok(claim.and(child.node().claim(rights)?)))
    }

    fn open_lane(&self, io: &LaneContext) -> Result<Box<dyn Lane>, LaneError> {
        let lanes: Result<Vec<_>, _> =
            self.children.iter().map(|child| child.node().open_lane(io)).collect();
        Ok(Box::new(StripeLane::new(self.layout, io, lanes?, self.access, self.discards)))
    }
}
