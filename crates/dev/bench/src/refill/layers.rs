//! Disks with a layer in between, beside the same disks without: what a layer costs that has little to do.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use bitmaps::{Granularity, NewBitmap, NodeBitmaps, Persistence};
use block::{Access, ByteCount, Child, DiskSize, Node, SystemClock};
use disk::{NullNode, ReadContent};
use kernel_io::FileTable;
use layers::{
    ChunkSize, DelayNode, DelayOrder, DelaySettings, Distribution, LimitKind, RecorderNode,
    StripeDiscards, StripeNode, ThrottleGroup, ThrottleLimits, ThrottleNode, ThrottleSettings,
};

use super::{SATURATED, Stage, WRITING, measure_on, node};
use crate::disks::{DISK_BYTES, DiskFile};
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
    /// Limits of operations and bytes that are never reached.
    Throttle,
}

impl Layer {
    /// One sample of rings that refill themselves, one on each of so many iothreads.
    pub(crate) fn measure(self, threads: u16, runtime: Duration) -> Result<Values> {
        let files = Arc::new(FileTable::default());
        let node = match self {
            Self::None => node(None, &files)?,
            Self::Stripe => stripe()?,
            Self::Delay => delay(node(None, &files)?),
            Self::Throttle => throttle(node(None, &files)?)?,
        };
        measure_on(&Stage::over(node, files)?, SATURATED, (threads, 1), runtime)
    }
}

/// Whether what is written is recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Recording {
    /// In no bitmap: nothing is there that could.
    Off,
    /// In a dirty bitmap of 64 KiB.
    On,
}

/// One sample of so many rings on one iothread that write at random, 4 KiB each.
pub(crate) fn measure_writes(
    recording: Recording,
    rings: u16,
    file: Option<DiskFile<'_>>,
    runtime: Duration,
) -> Result<Values> {
    let files = Arc::new(FileTable::default());
    let below = node(file, &files)?;
    let node = match recording {
        Recording::Off => below,
        Recording::On => recorder(below)?,
    };
    measure_on(&Stage::over(node, files)?, WRITING, (1, rings), runtime)
}

fn recorder(below: Arc<dyn Node>) -> Result<Arc<dyn Node>> {
    let bitmaps = NodeBitmaps::new(below.size());
    let _stays = bitmaps.add(&NewBitmap {
        name: "bitmap".to_owned(),
        granularity: Granularity::DEFAULT,
        recording: bitmaps::Recording::On,
        persistence: Persistence::Volatile,
    })?;
    Ok(Arc::new(RecorderNode::new(Child::new(below), bitmaps)))
}

fn stripe() -> Result<Arc<dyn Node>> {
    const MEMBERS: u64 = 2;
    let access = Access::ReadWrite;
    let null = |name: &str| -> Arc<Child> {
        let size = DiskSize(ByteCount(DISK_BYTES / MEMBERS));
        Child::new(Arc::new(NullNode::new(name, size, access, ReadContent::Untouched)))
    };
    let children = vec![null("null0"), null("null1")];
    let chunk = ChunkSize::new(ByteCount(64 << 10)).context("a chunk of md")?;
    let node = StripeNode::new("disk", children, chunk, access, StripeDiscards::Passed)?;
    Ok(Arc::new(node))
}

fn delay(below: Arc<dyn Node>) -> Arc<dyn Node> {
    let [read, write, flush] = [Distribution::NONE; 3];
    let settings = DelaySettings { read, write, flush, order: DelayOrder::Any };
    let (access, clock) = (Access::ReadWrite, Arc::new(SystemClock));
    Arc::new(DelayNode::new("delay", Child::new(below), access, settings, 0, clock))
}

fn throttle(below: Arc<dyn Node>) -> Result<Arc<dyn Node>> {
    let mut settings = ThrottleSettings::default();
    settings.limit_mut(LimitKind::IopsTotal).rate = 100_000_000;
    settings.limit_mut(LimitKind::BpsTotal).rate = 1_000_000_000_000;
    let limits = ThrottleLimits::check(settings)?;
    let group = ThrottleGroup::new("group", limits, Arc::new(SystemClock));
    Ok(Arc::new(ThrottleNode::new("disk", Child::new(below), group, Access::ReadWrite)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::Metric;

    #[test]
    fn writes_are_measured_with_a_bitmap_and_without() {
        for recording in [Recording::Off, Recording::On] {
            let values = measure_writes(recording, 2, None, Duration::from_millis(50)).unwrap();
            assert!(values[&Metric::RequestsPerS] > 1000.0, "{recording:?}: {values:?}");
        }
    }

    #[test]
    fn every_layer_is_measured() {
        for layer in [Layer::None, Layer::Stripe, Layer::Delay, Layer::Throttle] {
            let values = layer.measure(1, Duration::from_millis(50)).unwrap();
            assert!(values[&Metric::RequestsPerS] > 1000.0, "{layer:?}: {values:?}");
        }
    }
}
