//! Disks whose lanes are a test's own.

use std::fmt;
use std::sync::Arc;

use block::{Access, DiskSize, Lane, LaneContext, LaneError, Node};
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
    testkit::same_node_as!(below);

    fn open_lane(&self, io: &LaneContext) -> Result<Box<dyn Lane>, LaneError> {
        Ok((self.open)(self.below.open_lane(io)?, io))
    }
}
