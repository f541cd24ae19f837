//! Disks with a layer in between, beside the same disks without: what a layer costs that has little to do.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use block::{Access, ByteCount, Child, DiskSize, Node, Order, SystemClock};
use disk::{NullNode, ReadContent};
use kernel_io::FileTable;
use layers::{Chunk, DelayNode, DelaySettings, Distribution, StripeDiscards, StripeNode};

use super::{Stage, measure_on, node};
use crate::disks::DISK_BYTES;
use crate::measure::Values;

/// Between the rings and null disks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Layer {
    /// Nothing.
    None,
    /// A stripe over two of them, whose chunks are larger than the requests.
    Stripe,
    /// A delay of nothing.
    Delay,
}

impl Layer {
    /// One sample of a ring that refills itself.
    pub(crate) fn measure(self, runtime: Duration) -> Result<Values> {
        let files = Arc::new(FileTable::default());
        let node = match self {
            Self::None => node(None, &files)?,
            Self::Stripe => stripe()?,
            Self::Delay => delay(node(None, &files)?),
        };
        measure_on(&Stage::over(node, files)?, 1, 1, runtime)
    }
}

fn stripe() -> Result<Arc<dyn Node>> {
    const MEMBERS: u64 = 2;
    let access = Access::ReadWrite;
    let null = |name: &str| -> Arc<Child> {
        let size = DiskSize(ByteCount(DISK_BYTES / MEMBERS));
        Child::new(Arc::new(NullNode::new(name, size, access, ReadContent::Untouched)))
    };
    let children = vec![null("null0"), null("null1")];
    let chunk = Chunk::new(ByteCount(64 << 10)).context("a chunk of md")?;
    let node = StripeNode::new("disk", children, chunk, access, StripeDiscards::Passed)?;
    Ok(Arc::new(node))
}

fn delay(below: Arc<dyn Node>) -> Arc<dyn Node> {
    let [read, write, flush] = [Distribution::NONE; 3];
    let settings = DelaySettings { read, write, flush, order: Order::Any };
    let (access, clock) = (Access::ReadWrite, Arc::new(SystemClock));
    Arc::new(DelayNode::new("delay", Child::new(below), access, settings, 0, clock))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::Metric;

    #[test]
    fn every_layer_is_measured() {
        for layer in [Layer::None, Layer::Stripe, Layer::Delay] {
            let values = layer.measure(Duration::from_millis(50)).unwrap();
            assert!(values[&Metric::RequestsPerS] > 1000.0, "{layer:?}: {values:?}");
        }
    }
}
