//! Makes the node that a driver asks for: one arm and one function for each.
//!
//! Not here: names, children and what all nodes have in common ([`Graph`]).

mod delay;
mod file;
mod qcow2;
mod throttle;

use std::sync::Arc;

use block::{ByteCount, Child, DiskSize, Node};
use disk::{NullNode, RawNode, ReadContent, Window};
use kernel_io::FileKind;
use layers::{Chunk, StripeDiscards, StripeError, StripeNode};

use super::{Below, Graph, GraphError, access, policy};
use crate::options::{Blockdev, Discard, Driver};

impl Graph {
    /// Makes a node of that name over what is below it, in the order of the plan. Blocks.
    pub(super) fn make(
        &mut self,
        name: &str,
        blockdev: &Blockdev,
        below: &[Below],
    ) -> Result<Arc<dyn Node>, GraphError> {
        match &blockdev.driver {
            Driver::File { filename, aio, locking } => {
                let kind = FileKind::Regular;
                let options = file::options(filename, kind, *aio, *locking, blockdev);
                self.open(name, &options, blockdev)
            }
            Driver::HostDevice { filename, aio, locking } => {
                let kind = FileKind::BlockDevice;
                let options = file::options(filename, kind, *aio, *locking, blockdev);
                self.open(name, &options, blockdev)
            }
            Driver::NullCo { size, read_zeroes, latency } => {
                let null = null(name, *size, *read_zeroes, blockdev);
                Ok(Arc::new(null.with_latency(*latency, Arc::clone(&self.clock))))
            }
            Driver::Delay { settings, seed } => {
                Ok(self.make_delay(name, blockdev, only(below), (settings, *seed)))
            }
            Driver::Stripe { chunk } => Ok(stripe(name, *chunk, blockdev, below)?),
            Driver::Throttle { group } => self.make_throttle(name, group, blockdev, only(below)),
            Driver::Qcow2 { caches, .. } => self.make_qcow2(name, *caches, blockdev, below),
            Driver::Raw { offset, size } => {
                let window = Window { offset: *offset, size: *size };
                raw(name, window, blockdev, only(below))
            }
        }
    }
}

fn null(name: &str, size: u64, read_zeroes: bool, blockdev: &Blockdev) -> NullNode {
    let content = if read_zeroes { ReadContent::Zeroes } else { ReadContent::Untouched };
    NullNode::new(name, DiskSize(ByteCount(size)), access(blockdev), content)
}

fn raw(
    name: &str,
    window: Window,
    blockdev: &Blockdev,
    child: Arc<Child>,
) -> Result<Arc<dyn Node>, GraphError> {
    match RawNode::new(name, child, window, access(blockdev), policy(blockdev.discard)) {
        Ok(node) => Ok(Arc::new(node)),
        Err(source) => Err(GraphError::Window { node: name.to_owned(), source }),
    }
}

/// The child of a layer, which passes on all it is asked: with `discard=ignore` what would give space
/// back ends in between.
fn unmapping(name: &str, blockdev: &Blockdev, child: Arc<Child>) -> Arc<Child> {
    match blockdev.discard {
        Discard::Unmap => child,
        Discard::Ignore => {
            Child::new(raw(name, Window::WHOLE, blockdev, child).expect("all of it fits"))
        }
    }
}

fn stripe(
    name: &str,
    chunk: Chunk,
    blockdev: &Blockdev,
    below: &[Below],
) -> Result<Arc<dyn Node>, StripeError> {
    let children = below.iter().map(|below| Arc::clone(&below.place)).collect();
    let discards = match blockdev.discard {
        Discard::Ignore => StripeDiscards::Ignored,
        Discard::Unmap => StripeDiscards::Passed,
    };
    Ok(Arc::new(StripeNode::new(name, children, chunk, access(blockdev), discards)?))
}

/// The child of a driver that takes one.
fn only(below: &[Below]) -> Arc<Child> {
    let [only] = below else { panic!("the reader of this driver takes one child") };
    Arc::clone(&only.place)
}
