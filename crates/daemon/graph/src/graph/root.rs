//! What an export or a job stands on: the place where its node is, and may be replaced.
//!
//! Where it stands in the life of a request: nowhere. The lane of a root is that of the node below.

use std::path::PathBuf;
use std::sync::Arc;

use block::{
    Access, BlockLimits, Child, Claim, ClaimError, DiskSize, Lane, LaneContext, LaneError, Node,
    Rights,
};

/// What one export, or one edge of a job, stands on.
#[derive(Debug)]
pub(super) struct Root {
    /// Where the node is.
    pub(super) place: Arc<Child>,
    /// What is used.
    pub(super) node: Arc<dyn Node>,
}

impl Root {
    /// On that node of that name.
    pub(super) fn new(name: &str, node: &Arc<dyn Node>) -> Self {
        let place = Child::new(Arc::clone(node));
        let node = Arc::new(RootNode { name: name.to_owned(), place: Arc::clone(&place) });
        Self { place, node }
    }
}

/// The top of the graph below one export, or of what a job uses.
#[derive(Debug)]
struct RootNode {
    /// The node that it was made of, by which its operator knows it.
    name: String,
    place: Arc<Child>,
}

impl Node for RootNode {
    fn name(&self) -> &str {
        &self.name
    }

    fn image_file(&self) -> Option<PathBuf> {
        self.place.node().image_file()
    }

    fn size(&self) -> DiskSize {
        self.place.node().size()
    }

    fn limits(&self) -> BlockLimits {
        self.place.node().limits()
    }

    fn access(&self) -> Access {
        self.place.node().access()
    }

    fn flush(&self) -> std::io::Result<()> {
        self.place.node().flush()
    }

    fn claim(&self, rights: Rights) -> Result<Claim, ClaimError> {
        self.place.node().claim(rights)
    }

    fn open_lane(&self, io: &LaneContext) -> Result<Box<dyn Lane>, LaneError> {
        self.place.node().open_lane(io)
    }
}
