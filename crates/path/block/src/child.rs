//! What stands below a node, and may be replaced while the node stays.

use std::sync::{Arc, Mutex};

use crate::Node;

/// The edge from a node or an export to the node below it, which can be replaced (QEMU's BdrvChild).
///
/// Replaced only while no lane is open on what stands above: lanes keep what they found when they were
/// opened. Threads: any but iothreads, except to open a lane.
#[derive(Debug)]
pub struct Child {
    node: Mutex<Arc<dyn Node>>,
}

impl Child {
    /// A place with that node in it.
    pub fn new(node: Arc<dyn Node>) -> Arc<Self> {
        Arc::new(Self { node: Mutex::new(node) })
    }

    /// The node that is there now.
    pub fn node(&self) -> Arc<dyn Node> {
        Arc::clone(&self.node.lock().expect("no holder of this lock panics"))
    }

    /// Puts another node there, and returns the one that was.
    pub fn replace(&self, node: Arc<dyn Node>) -> Arc<dyn Node> {
        std::mem::replace(&mut self.node.lock().expect("no holder of this lock panics"), node)
    }
}
