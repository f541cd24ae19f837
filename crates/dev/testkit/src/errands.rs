//! Internal I/Os that are carried out while the caller waits, on an engine of their own.
//!
//! Where it stands: for tests that play an iothread with one lane by hand, and leave what it submits to a real engine.

use std::num::NonZeroU32;
use std::sync::Arc;

use block::{
    Access, BatchPieces, BlockLimits, ByteCount, Claim, ClaimError, DiskSize, EngineFactory,
    FailKind, HostMemory, InternalOperation, Lane, LaneContext, LaneError, LeafLane, Mapping, Node,
    Operation, Outcome, Piece, Rights,
};

/// Carries an operation out on these pieces, with this memory, as an internal I/O of a lane; returns the memory as it
/// left it.
pub fn carry_out(
    engines: &dyn EngineFactory,
    operation: Operation,
    pieces: &[Piece],
    memory: HostMemory,
) -> Result<HostMemory, FailKind> {
    let mut engine = engines.make().expect("there are descriptors");
    let mut io = None;
    let node = Arc::new(Nowhere) as Arc<dyn Node>;
    let opened = engine.open(&node, &mut |lane_io| {
        io = Some(lane_io.clone());
        node.open_lane(lane_io)
    });
    opened.expect("the lane needs nothing");
    let io = io.expect("the engine has opened it");
    let mut result = None;
    engine.run(std::pin::pin!(async {
        result = Some(io.submit(operation, pieces, memory).await);
    }));
    result.expect("it is over")
}

/// Carries out an internal I/O that some other lane has submitted.
pub fn run(engines: &dyn EngineFactory, mut errand: InternalOperation) {
    let mut memory = HostMemory::zeroed(errand.memory().count());
    errand.memory().copy_to(0, &mut memory);
    let (operation, pieces) = (errand.operation(), errand.pieces().to_vec());
    let outcome = match carry_out(engines, operation, &pieces, memory) {
        Ok(memory) => {
            errand.memory().copy_from(0, &memory);
            Outcome::Done
        }
        Err(kind) => Outcome::Failed(kind),
    };
    errand.finish(outcome);
}

/// A node without a disk, whose lane only has internal I/Os.
#[derive(Debug)]
struct Nowhere;

impl Node for Nowhere {
    fn name(&self) -> &'static str {
        "nowhere"
    }

    fn size(&self) -> DiskSize {
        DiskSize(ByteCount(0))
    }

    fn limits(&self) -> BlockLimits {
        let least = NonZeroU32::new(512).expect("512 is not zero");
        BlockLimits {
            request_alignment: least,
            physical_block: least,
            discard: false,
            discard_granularity: least,
            allocation_unit: least,
        }
    }

    fn access(&self) -> Access {
        Access::ReadOnly
    }

    fn flush(&self) -> std::io::Result<()> {
        Ok(())
    }

    fn claim(&self, _: Rights) -> Result<Claim, ClaimError> {
        Ok(Claim::nothing())
    }

    fn open_lane(&self, _: &LaneContext) -> Result<Box<dyn Lane>, LaneError> {
        Ok(Box::new(Self))
    }
}

impl LeafLane for Nowhere {
    fn answer(&mut self, mapping: &mut Mapping, _: &mut BatchPieces) {
        panic!("there is no disk for {mapping:?}");
    }
}
