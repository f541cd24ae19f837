//! Who gives a layer another size gives it to the child, if there is one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use block::{
    Access, BlockLimits, ByteCount, Child, Claim, ClaimError, DiskSize, Lane, LaneContext,
    LaneError, Node, ResizeError, Rights,
};
use layers::{ChunkSize, CopyOnReadNode, CopySource, StripeDiscards, StripeNode};

use crate::stripe::child::limits;

/// A node that is as large as it shall be.
#[derive(Debug)]
struct Elastic(AtomicU64);

impl Node for Elastic {
    fn name(&self) -> &'static str {
        "child"
    }

    fn size(&self) -> DiskSize {
        DiskSize(ByteCount(self.0.load(Ordering::Relaxed)))
    }

    fn limits(&self) -> BlockLimits {
        limits(512, 512)
    }

    fn access(&self) -> Access {
        Access::ReadWrite
    }

    fn flush(&self) -> std::io::Result<()> {
        Ok(())
    }

    fn claim(&self, _: Rights) -> Result<Claim, ClaimError> {
        Ok(Claim::nothing())
    }

    fn resize(&self, DiskSize(ByteCount(bytes)): DiskSize) -> Result<(), ResizeError> {
        self.0.store(bytes, Ordering::Relaxed);
        Ok(())
    }

    fn open_lane(&self, _: &LaneContext) -> Result<Box<dyn Lane>, LaneError> {
        panic!("nobody opens a lane")
    }
}

#[test]
fn a_layer_with_one_child_has_its_size_and_a_stripe_keeps_its_own() {
    let child = || Arc::new(Elastic(AtomicU64::new(1 << 20)));
    let size = DiskSize(ByteCount(3 << 20));
    let below = || Child::new(child());
    let layer = CopyOnReadNode::new("layer", below(), Access::ReadWrite, CopySource::All);
    layer.resize(size).unwrap();
    assert_eq!(layer.size(), size);
    let layer = CopyOnReadNode::new("layer", below(), Access::ReadOnly, CopySource::All);
    let refused = layer.resize(size).unwrap_err();
    assert_eq!(refused.to_string(), "node layer: Image is read-only");
    let chunk = ChunkSize::new(ByteCount(4096)).unwrap();
    let (access, discards) = (Access::ReadWrite, StripeDiscards::Ignored);
    let stripe =
        StripeNode::new("stripe", vec![below(), below()], chunk, access, discards).unwrap();
    let refused = stripe.resize(size).unwrap_err();
    assert_eq!(refused.to_string(), "node stripe: Image format driver does not support resize");
}
