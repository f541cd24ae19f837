//! `copy-on-read`: the child's bytes, some of which are said to come from a backing file.
//!
//! What is copied is read and written at one place, so a copy that comes after a change loses it.

use std::num::NonZeroU32;
use std::sync::Arc;

use anyhow::{Context, Result};
use block::{
    Access, BatchPieces, BlockLimits, Child, Claim, ClaimError, DiskSize, Lane, LaneContext,
    LaneError, Mapping, Node, Operation, Rights, Target,
};
use layers::{CopyOnReadNode, CopySource};
use testkit::conformance::stack::{Chosen, Home, Parts, Shape, Subject};
use testkit::rng::Rng;

#[derive(Debug)]
pub(crate) struct CopyOnRead;

impl Subject for CopyOnRead {
    fn name(&self) -> &'static str {
        "copy-on-read"
    }

    fn children(&self) -> (usize, usize) {
        (1, 1)
    }

    fn choose(&self, rng: &mut Rng, below: &Shape) -> Option<Arc<dyn Chosen>> {
        let (size, unit) = (below.size, 512 << rng.below(6));
        Some(Arc::new(ChosenCopy { size, unit, depth: u8::try_from(rng.below(3)).ok()? }))
    }
}

#[derive(Clone, Copy, Debug)]
struct ChosenCopy {
    size: u64,
    unit: u32,
    /// How deep the bytes are said to be that the child says it has itself.
    depth: u8,
}

impl Chosen for ChosenCopy {
    fn describe(&self) -> String {
        format!("unit {}, depth {}", self.unit, self.depth)
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn home(&self, at: u64) -> Home {
        Home::Child(0, at)
    }

    fn build(&self, parts: Parts<'_>) -> Result<Arc<dyn Node>> {
        let child = Arc::clone(parts.children.first().context("what is below")?);
        let unit = NonZeroU32::new(self.unit).context("a unit")?;
        let below = Child::new(Arc::new(Deeper { child, unit, depth: self.depth }));
        let (access, source) = (Access::ReadWrite, CopySource::Nearest(1));
        Ok(Arc::new(CopyOnReadNode::new(parts.name, below, access, source)))
    }

    fn has_errands(&self) -> bool {
        true
    }

    fn copies_on_read(&self) -> bool {
        true
    }
}

/// A node that says its bytes are in a backing file.
#[derive(Debug)]
struct Deeper {
    child: Arc<Child>,
    unit: NonZeroU32,
    depth: u8,
}

impl Node for Deeper {
    fn name(&self) -> &str {
        "deeper"
    }

    fn size(&self) -> DiskSize {
        self.child.node().size()
    }

    fn limits(&self) -> BlockLimits {
        BlockLimits { allocation_unit: self.unit, ..self.child.node().limits() }
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

    fn open_lane(&self, io: &LaneContext) -> Result<Box<dyn Lane>, LaneError> {
        Ok(Box::new(DeeperLane { below: self.child.node().open_lane(io)?, depth: self.depth }))
    }
}

#[derive(Debug)]
struct DeeperLane {
    below: Box<dyn Lane>,
    depth: u8,
}

impl Lane for DeeperLane {
    fn map(&mut self, batch: &mut [Mapping], pieces: &mut BatchPieces) {
        self.below.map(batch, pieces);
        for mapping in batch {
            self.deepen(mapping, pieces);
        }
    }

    fn due(&self) -> Option<block::WakeTime> {
        self.below.due()
    }

    fn resume(
        &mut self,
        now: std::time::Instant,
        late: &mut Vec<Mapping>,
        pieces: &mut BatchPieces,
    ) {
        let first = late.len();
        self.below.resume(now, late, pieces);
        late[first..].iter_mut().for_each(|mapping| self.deepen(mapping, pieces));
    }

    fn release(&mut self) {
        self.below.release();
    }

    fn completed(
        &mut self,
        token: block::Token,
        outcome: block::Outcome,
    ) -> block::LaneCompletionDecision {
        self.below.completed(token, outcome)
    }
}

impl DeeperLane {
    fn deepen(&self, mapping: &mut Mapping, pieces: &mut BatchPieces) {
        let (Operation::Status(_), block::Answer::Now(range)) = (mapping.operation, mapping.answer)
        else {
            return;
        };
        let found = pieces.get(range).to_vec();
        let mark = pieces.end();
        for piece in found {
            let mut status = piece.target.status();
            for _ in 0..self.depth {
                status = status.of_overlay();
            }
            pieces.push(block::Piece { target: Target::Status(status), ..piece });
        }
        mapping.answer = block::Answer::Now(pieces.since(mark));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::time::Instant;

    use block::{LaneCompletionDecision, Outcome, Token, WakeTime};
    use testkit::conformance::play::play;
    use testkit::conformance::stack::Which;

    use super::*;

    /// Which way changes go.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Changes {
        /// As reads do.
        Through,
        /// Past the node: they hold no range.
        Past,
    }

    /// A node that copies on read, with another way beside it.
    #[derive(Debug)]
    struct Fork(Changes);

    #[derive(Debug)]
    struct ChosenFork(ChosenCopy, Changes);

    #[derive(Debug)]
    struct ForkNode {
        copies: Arc<dyn Node>,
        child: Arc<Child>,
        changes: Changes,
    }

    #[derive(Debug)]
    struct ForkLane {
        copies: Box<dyn Lane>,
        past: Box<dyn Lane>,
        changes: Changes,
        /// Whether it goes past, by name.
        is_past: HashMap<Token, bool>,
    }

    impl Subject for Fork {
        fn name(&self) -> &'static str {
            "fork"
        }

        fn children(&self) -> (usize, usize) {
            (1, 1)
        }

        fn choose(&self, _: &mut Rng, below: &Shape) -> Option<Arc<dyn Chosen>> {
            let copy = ChosenCopy { size: below.size, unit: 4096, depth: 1 };
            Some(Arc::new(ChosenFork(copy, self.0)))
        }
    }

    impl Chosen for ChosenFork {
        fn describe(&self) -> String {
            self.0.describe()
        }

        fn size(&self) -> u64 {
            self.0.size()
        }

        fn home(&self, at: u64) -> Home {
            self.0.home(at)
        }

        fn build(&self, parts: Parts<'_>) -> Result<Arc<dyn Node>> {
            let child = Arc::clone(parts.children.first().context("what is below")?);
            Ok(Arc::new(ForkNode { copies: self.0.build(parts)?, child, changes: self.1 }))
        }

        fn has_errands(&self) -> bool {
            true
        }

        fn copies_on_read(&self) -> bool {
            true
        }
    }

    impl Node for ForkNode {
        testkit::same_node_as!(copies);

        fn open_lane(&self, io: &LaneContext) -> Result<Box<dyn Lane>, LaneError> {
            let (copies, past) = (self.copies.open_lane(io)?, self.child.node().open_lane(io)?);
            let (changes, is_past) = (self.changes, HashMap::new());
            Ok(Box::new(ForkLane { copies, past, changes, is_past }))
        }
    }

    impl Lane for ForkLane {
        fn map(&mut self, batch: &mut [Mapping], pieces: &mut BatchPieces) {
            for mapping in batch {
                let is_past = mapping.operation.is_change() && self.changes == Changes::Past;
                self.is_past.insert(mapping.token, is_past);
                let lane = if is_past { &mut self.past } else { &mut self.copies };
                lane.map(std::slice::from_mut(mapping), pieces);
            }
        }

        fn due(&self) -> Option<WakeTime> {
            WakeTime::first(self.copies.due(), self.past.due())
        }

        fn resume(&mut self, now: Instant, late: &mut Vec<Mapping>, pieces: &mut BatchPieces) {
            self.copies.resume(now, late, pieces);
            self.past.resume(now, late, pieces);
        }

        fn release(&mut self) {
            self.copies.release();
            self.past.release();
        }

        fn completed(&mut self, token: Token, outcome: Outcome) -> LaneCompletionDecision {
            let lane = if self.is_past[&token] { &mut self.past } else { &mut self.copies };
            lane.completed(token, outcome)
        }
    }

    #[test]
    fn a_copy_that_covers_a_change_is_found() {
        let played = |changes, seed| {
            let fork = Fork(changes);
            play(seed, &[Arc::new(Fork(changes)) as Arc<dyn Subject>], Which::Alone(&fork))
        };
        for seed in 0..100 {
            played(Changes::Through, seed).unwrap_or_else(|error| panic!("{error:#}"));
        }
        let mut errors = (0..100).filter_map(|seed| played(Changes::Past, seed).err());
        let is_stale =
            |error: anyhow::Error| format!("{error:#}").contains("expected what request");
        assert!(errors.any(is_stale), "changes that hold no range are not found");
    }
}
