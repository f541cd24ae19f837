//! A layer that writes everything twice: to what it stands on, and to a disk behind channels, as an active mirror does.
//!
//! Where it stands: above anything, which answers reads, and may hold requests and want to be told. The other disk answers
//! at once.
//!
//! Invariants: each piece of a write that is carried out below is followed by one of the other disk, in the same answer. A
//! discard does nothing, since what it leaves is not known.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use block::{
    Access, Answer, BatchPieces, BlockLimits, BufferCopyPolicy, Child, Claim, ClaimError, DiskSize,
    Lane, LaneCompletionDecision, LaneContext, LaneError, Mapping, Node, Operation, Outcome, Piece,
    Rights, Target, Token, WakeTime,
};

use crate::channel::{Remote, RemoteNode};

/// A node of that kind.
#[derive(Debug)]
pub struct TwiceNode {
    name: String,
    below: Arc<Child>,
    other: RemoteNode,
    memory: BufferCopyPolicy,
}

impl TwiceNode {
    /// Above a child; the other disk is as long at least. With [`BufferCopyPolicy::Live`] the copies may differ.
    pub fn new(
        name: &str,
        below: &Arc<Child>,
        other: &Arc<Remote>,
        memory: BufferCopyPolicy,
    ) -> Self {
        let (below, other) = (Arc::clone(below), RemoteNode::new("other", other));
        Self { name: name.to_owned(), below, other, memory }
    }
}

impl Node for TwiceNode {
    fn name(&self) -> &str {
        &self.name
    }

    fn size(&self) -> DiskSize {
        self.below.node().size()
    }

    fn limits(&self) -> BlockLimits {
        let (one, other) = (self.below.node().limits(), self.other.limits());
        BlockLimits { request_alignment: one.request_alignment.max(other.request_alignment), ..one }
    }

    fn access(&self) -> Access {
        Access::ReadWrite
    }

    fn flush(&self) -> std::io::Result<()> {
        self.below.node().flush()?;
        self.other.flush()
    }

    fn claim(&self, rights: Rights) -> Result<Claim, ClaimError> {
        self.below.node().claim(rights)
    }

    fn open_lane(&self, io: &LaneContext) -> Result<Box<dyn Lane>, LaneError> {
        let (below, other) = (self.below.node().open_lane(io)?, self.other.open_lane(io)?);
        Ok(Box::new(TwiceLane { below, other, memory: self.memory, asked: HashMap::new() }))
    }
}

#[derive(Debug)]
struct TwiceLane {
    below: Box<dyn Lane>,
    other: Box<dyn Lane>,
    memory: BufferCopyPolicy,
    /// What was asked, of changes and flushes that are not over.
    asked: HashMap<Token, Operation>,
}

impl TwiceLane {
    /// Doubles what the lane below has answered.
    fn double(&mut self, mapping: &mut Mapping, pieces: &mut BatchPieces) {
        let range = match mapping.answer {
            Answer::Held => return,
            Answer::Refused(_) => {
                self.asked.remove(&mapping.token);
                return;
            }
            Answer::Now(range) => range,
        };
        let Some(asked) = self.asked.get(&mapping.token) else { return };
        let mut other = [Mapping::new(mapping.token, *asked)];
        self.other.map(&mut other, pieces);
        let Answer::Now(there) = other[0].answer else { panic!("{:?}", other[0]) };
        let there = pieces.at(there, 0).expect("the other disk answers with one piece");
        let mark = pieces.end();
        let mut place = 0;
        while let Some(piece) = pieces.at(range, place) {
            if let Operation::Write(..) = asked {
                let target = there.target.behind(piece.skip);
                pieces.push(Piece { target, ..piece });
            }
            pieces.push(piece);
            place += 1;
        }
        if !matches!(asked, Operation::Write(..)) {
            pieces.push(there);
        }
        mapping.answer = Answer::Now(pieces.since(mark));
        mapping.memory = mapping.memory.and(self.memory);
        if mapping.after == block::AfterPiecesAction::Finish {
            self.asked.remove(&mapping.token);
        }
    }
}

impl Lane for TwiceLane {
    fn map(&mut self, batch: &mut [Mapping], pieces: &mut BatchPieces) {
        for mapping in batch.iter() {
            match mapping.operation {
                Operation::Read(_) | Operation::Status(_) | Operation::Discard(..) => {}
                Operation::Write(..) | Operation::WriteZeroes(..) | Operation::Flush => {
                    self.asked.insert(mapping.token, mapping.operation);
                }
            }
        }
        // Neighbours that are no discards go below together.
        let is_discard = |mapping: &Mapping| matches!(mapping.operation, Operation::Discard(..));
        for part in batch.chunk_by_mut(|one, next| is_discard(one) == is_discard(next)) {
            if let [Mapping { operation: Operation::Discard(..), .. }, ..] = part {
                for mapping in part {
                    let count = mapping.operation.extent().expect("it has bytes").count();
                    let piece = Piece { skip: 0, count, target: Target::Nothing };
                    mapping.answer = Answer::Now(pieces.one(piece));
                }
                continue;
            }
            self.below.map(part, pieces);
            part.iter_mut().for_each(|mapping| self.double(mapping, pieces));
        }
    }

    fn due(&self) -> Option<WakeTime> {
        self.below.due()
    }

    fn resume(&mut self, now: Instant, late: &mut Vec<Mapping>, pieces: &mut BatchPieces) {
        let before = late.len();
        self.below.resume(now, late, pieces);
        late[before..].iter_mut().for_each(|mapping| self.double(mapping, pieces));
    }

    fn release(&mut self) {
        self.below.release();
    }

    fn completed(&mut self, token: Token, outcome: Outcome) -> LaneCompletionDecision {
        let told = self.below.completed(token, outcome);
        if let LaneCompletionDecision::Finish(_) = told {
            self.asked.remove(&token);
        }
        told
    }
}
