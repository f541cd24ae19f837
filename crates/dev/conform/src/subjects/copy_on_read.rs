//! `copy-on-read`: the child's bytes, some of which are said to come from a backing file.
//!
//! What is copied is read and written at one place, so a copy that comes after a change loses it.

use std::num::NonZeroU32;
use std::sync::Arc;

use anyhow::{Context, Result};
use block::{
    Access, Child, Claim, ClaimError, DiskSize, Lane, LaneError, LaneIo, Limits, Mapping, Node,
    Operation, PieceList, Rights, Target,
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

    fn limits(&self) -> Limits {
        Limits { allocation_unit: self.unit, ..self.child.node().limits() }
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

    fn open_lane(&self, io: &LaneIo) -> Result<Box<dyn Lane>, LaneError> {
        Ok(Box::new(DeeperLane { below: self.child.node().open_lane(io)?, depth: self.depth }))
    }
}

#[derive(Debug)]
struct DeeperLane {
    below: Box<dyn Lane>,
    depth: u8,
}

impl Lane for DeeperLane {
    fn map(&mut self, batch: &mut [Mapping], pieces: &mut PieceList) {
        self.below.map(batch, pieces);
        for mapping in batch {
            self.deepen(mapping, pieces);
        }
    }

    fn due(&self) -> Option<block::Due> {
        self.below.due()
    }

    fn resume(&mut self, now: std::time::Instant, late: &mut Vec<Mapping>, pieces: &mut PieceList) {
        let first = late.len();
        self.below.resume(now, late, pieces);
        late[first..].iter_mut().for_each(|mapping| self.deepen(mapping, pieces));
    }

    fn release(&mut self) {
        self.below.release();
    }

    fn carried_out(&mut self, token: block::Token, outcome: block::Outcome) -> block::Told {
        self.below.carried_out(token, outcome)
    }
}

impl DeeperLane {
    fn deepen(&self, mapping: &mut Mapping, pieces: &mut PieceList) {
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
