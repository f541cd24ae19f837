//! A warm lane allocates nothing for a request, however many chunks and members it is spread over, and
//! whether they hold it or not.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Instant;

use block::{
    Access, Answer, BatchPieces, BlockLimits, ByteCount, ByteOffset, Child, Claim, ClaimError,
    DiskSize, Durability, FileId, Lane, LaneCompletionDecision, LaneContext, LaneError, Mapping,
    Node, Operation, Outcome, Piece, Rights, Target, Token, WakeTime,
};
use layers::{ChunkSize, StripeDiscards, StripeNode};

use super::child::{Start, extent};
use testkit::counting::allocations;

const CHUNK: u64 = 4096;

/// A child that answers in one piece without allocating, at once or when it is asked again.
#[derive(Debug, Clone, Copy)]
struct Plain {
    holds: Holds,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Holds {
    Nothing,
    Everything,
}

impl Node for Plain {
    fn name(&self) -> &str {
        "plain"
    }

    fn size(&self) -> DiskSize {
        DiskSize(ByteCount(1 << 30))
    }

    fn limits(&self) -> BlockLimits {
        let block = NonZeroU32::new(512).unwrap();
        BlockLimits {
            request_alignment: block,
            physical_block: block,
            discard: true,
            discard_granularity: block,
            allocation_unit: block,
        }
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

    fn open_lane(&self, _: &LaneContext) -> Result<Box<dyn Lane>, LaneError> {
        Ok(Box::new(PlainLane { holds: self.holds, held: Vec::new() }))
    }
}

#[derive(Debug)]
struct PlainLane {
    holds: Holds,
    held: Vec<Mapping>,
}

impl PlainLane {
    fn answer(mapping: &mut Mapping, pieces: &mut BatchPieces) {
        let bytes = mapping.operation.extent().map_or(0..0, |extent| extent.bytes());
        let (count, offset) = (ByteCount(bytes.end - bytes.start), ByteOffset(bytes.start));
        let target = Target::File { file: FileId(0), offset };
        mapping.answer = Answer::Now(pieces.one(Piece { skip: 0, count, target }));
    }
}

impl Lane for PlainLane {
    fn map(&mut self, batch: &mut [Mapping], pieces: &mut BatchPieces) {
        for mapping in batch {
            match self.holds {
                Holds::Nothing => Self::answer(mapping, pieces),
                Holds::Everything => {
                    self.held.push(*mapping);
                    mapping.answer = Answer::Held;
                }
            }
        }
    }

    fn due(&self) -> Option<WakeTime> {
        let slack = std::time::Duration::ZERO;
        (!self.held.is_empty()).then(|| WakeTime { at: Instant::start(), slack })
    }

    fn resume(&mut self, _: Instant, late: &mut Vec<Mapping>, pieces: &mut BatchPieces) {
        for mut mapping in self.held.drain(..) {
            Self::answer(&mut mapping, pieces);
            late.push(mapping);
        }
    }

    fn release(&mut self) {}

    fn completed(&mut self, _: Token, outcome: Outcome) -> LaneCompletionDecision {
        LaneCompletionDecision::Finish(outcome)
    }
}

/// Asks for batches of requests over so many chunks.
#[track_caller]
fn check(members: usize, chunks: u64, holding: usize) {
    let child = |place| {
        let holds = if place < holding { Holds::Everything } else { Holds::Nothing };
        Child::new(Arc::new(Plain { holds }))
    };
    let children = (0..members).map(child).collect();
    let chunk = ChunkSize::new(ByteCount(CHUNK)).unwrap();
    let (access, discards) = (Access::ReadWrite, StripeDiscards::Passed);
    let node = StripeNode::new("stripe", children, chunk, access, discards).unwrap();
    let mut lane = node.open_lane(&LaneContext::idle()).unwrap();
    let (mut pieces, mut late) = (BatchPieces::default(), Vec::new());
    let mut counts = [0; 3];
    for count in &mut counts {
        let before = allocations();
        for round in 0..100 {
            let mut batch = [Mapping::new(Token(0), Operation::Flush); 16];
            for (mapping, number) in batch.iter_mut().zip(0_u32..) {
                let start = (round + u64::from(number)) * 512;
                let bytes = extent(start..start + chunks * CHUNK);
                mapping.token = Token(number);
                mapping.operation = match number % 8 {
                    0 => Operation::Flush,
                    1..4 => Operation::Write(bytes, Durability::Cached),
                    4 => Operation::Discard(bytes, Durability::Cached),
                    _ => Operation::Read(bytes),
                };
            }
            pieces.clear();
            lane.map(&mut batch, &mut pieces);
            let mut answered = batch.iter().filter(|it| it.answer != Answer::Held).count();
            while lane.due().is_some() {
                lane.resume(Instant::start(), &mut late, &mut pieces);
                answered += late.drain(..).count();
            }
            assert_eq!(answered, batch.len());
        }
        *count = allocations() - before;
    }
    assert!(counts[0] > 0, "the rig does not count");
    assert_eq!(counts[1..], [0, 0], "allocations of 1600 requests");
}

#[test]
fn a_request_in_one_chunk_allocates_nothing() {
    check(2, 1, 0);
}

#[test]
fn a_request_over_eight_chunks_allocates_nothing() {
    check(8, 8, 0);
    check(2, 8, 0);
    check(64, 8, 0);
}

#[test]
fn a_request_that_members_hold_allocates_nothing() {
    check(8, 8, 8);
    check(8, 8, 1);
    check(2, 8, 1);
}
