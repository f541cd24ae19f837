//! What was changed on a node, recorded in its dirty bitmaps: a filter without a name of its own.
//!
//! Where it stands in the life of a request: nothing is held or changed. Of each change the end is told here, and only then,
//! before the guest knows, is it recorded.
//!
//! Invariants: a change is in the bitmaps when its client is told of its end, also if it failed or was refused: a part of it
//! may have been carried out. It is recorded in those that record when it ends, so a change that is open while bitmaps are
//! cleared counts afterwards as well.
//! While a node has no bitmaps at all, nothing is looked at: the first one is added while nothing is in flight.
//! Threads: lanes of all iothreads mark the same bits; see [`bitmaps::DirtyBitmap`].

mod lane;

use std::sync::Arc;

use bitmaps::{BitmapRefusal, NodeBitmaps};
use block::{
    Access, BlockLimits, Child, Claim, ClaimError, DiskSize, InternalSnapshots, Lane, LaneContext,
    LaneError, Node, ResizeError, Rights,
};

use lane::RecorderLane;

/// A filter that records what is changed on the node below.
#[derive(Debug)]
pub struct RecorderNode {
    child: Arc<Child>,
    name: String,
    bitmaps: Arc<NodeBitmaps>,
}

impl RecorderNode {
    /// Records in these bitmaps, which are of that child.
    pub fn new(child: Arc<Child>, bitmaps: Arc<NodeBitmaps>) -> Self {
        let name = child.node().name().to_owned();
        Self { child, name, bitmaps }
    }
}

/// Why node and bitmaps were not given another size.
enum SizeRefusal {
    Bitmap(BitmapRefusal),
    Node(ResizeError),
}

impl From<BitmapRefusal> for SizeRefusal {
    fn from(refusal: BitmapRefusal) -> Self {
        Self::Bitmap(refusal)
    }
}

impl Node for RecorderNode {
    fn name(&self) -> &str {
        &self.name
    }

    fn image_file(&self) -> Option<std::path::PathBuf> {
        self.child.node().image_file()
    }

    fn size(&self) -> DiskSize {
        self.child.node().size()
    }

    fn limits(&self) -> BlockLimits {
        self.child.node().limits()
    }

    fn access(&self) -> Access {
        self.child.node().access()
    }

    fn flush(&self) -> std::io::Result<()> {
        self.child.node().flush()
    }

    fn claim(&self, rights: Rights) -> Result<Claim, ClaimError> {
        self.child.node().claim(rights)
    }

    fn resize(&self, size: DiskSize) -> Result<(), ResizeError> {
        let resize = || self.child.node().resize(size).map_err(SizeRefusal::Node);
        self.bitmaps.resize(size, resize).map_err(|refusal| match refusal {
            SizeRefusal::Node(error) => error,
            SizeRefusal::Bitmap(error) => {
                ResizeError::failed(self, "its dirty bitmaps cannot be resized", error)
            }
        })
    }

    fn snapshot(&self) -> Option<Arc<dyn Node>> {
        self.child.node().snapshot()
    }

    fn internal_snapshots(&self) -> Option<Arc<dyn InternalSnapshots>> {
        self.child.node().internal_snapshots()
    }

    fn open_lane(&self, io: &LaneContext) -> Result<Box<dyn Lane>, LaneError> {
        let below = self.child.node().open_lane(io)?;
        Ok(Box::new(RecorderLane::new(below, Arc::clone(&self.bitmaps))))
    }
}
