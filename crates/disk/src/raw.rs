//! The raw format: a disk whose bytes are its child's bytes (driver `raw`).

use std::sync::Arc;

use block::{Access, DiskSize, Lane, LaneError, Limits, Node};

/// A node that gives its child a format: none.
#[derive(Debug)]
pub struct RawNode {
    name: String,
    child: Arc<dyn Node>,
    access: Access,
}

impl RawNode {
    /// Shows the child as a disk of its own name.
    pub fn new(name: &str, child: Arc<dyn Node>, access: Access) -> Self {
        Self { name: name.to_owned(), child, access }
    }
}

impl Node for RawNode {
    fn name(&self) -> &str {
        &self.name
    }

    fn size(&self) -> DiskSize {
        self.child.size()
    }

    fn limits(&self) -> Limits {
        self.child.limits()
    }

    fn access(&self) -> Access {
        self.access
    }

    fn open_lane(&self) -> Result<Box<dyn Lane>, LaneError> {
        // Raw changes nothing about a request, so its lane is the child's.
        self.child.open_lane()
    }
}
