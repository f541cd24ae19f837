//! Disks whose lanes are a test's own.

use std::fmt;
use std::sync::Arc;

use block::{
    Access, BlockLimits, Claim, ClaimError, DiskSize, Lane, LaneContext, LaneError, Node, Rights,
};
use disk::{NullNode, ReadContent};

/// A disk like another one, but for its lanes.
struct WithLanes<F> {
    below: Arc<dyn Node>,
    open: F,
}

/// A disk that is like the one below, with lanes which this opens beside one of the disk below.
pub(crate) fn with_lanes<F>(below: Arc<dyn Node>, open: F) -> Arc<dyn Node>
where
    F: Fn(Box<dyn Lane>, &LaneContext) -> Box<dyn Lane> + Send + Sync + 'static,
{
    Arc::new(WithLanes { below, open })
}

/// A disk of so many bytes that stores nothing.
pub(crate) fn null_disk(bytes: u64, content: ReadContent) -> Arc<dyn Node> {
    let size = DiskSize(block::ByteCount(bytes));
    Arc::new(NullNode::new("null", size, Access::ReadWrite, content))
}

impl<F> fmt::Debug for WithLanes<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WithLanes({:?})", self.below)
    }
}

impl<F> Node for WithLanes<F>
where
    F: Fn(Box<dyn Lane>, &LaneContext) -> Box<dyn Lane> + Send + Sync,
{
    fn name(&self) -> &str {
        self.below.name()
    }

    fn size(&self) -> DiskSize {
        self.below.size()
    }

    fn limits(&self) -> BlockLimits {
        self.below.limits()
    }

    fn access(&self) -> Access {
        self.below.access()
    }

    fn flush(&self) -> std::io::Result<()> {
        self.below.flush()
    }

    fn claim(&self, rights: Rights) -> Result<Claim, ClaimError> {
        self.below.claim(rights)
    }

    fn open_lane(&self, io: &LaneContext) -> Result<Box<dyn Lane>, LaneError> {
        Ok((self.open)(self.below.open_lane(io)?, io))
    }
}
