//! The raw format: a disk whose bytes are its child's bytes (driver `raw`).

use std::sync::Arc;
use std::time::Instant;

use block::{
    Access, Answer, Child, Claim, ClaimError, DiskSize, Due, Lane, LaneError, Limits, Mapping,
    Node, Operation, PieceList, Rights, Unmap,
};

use crate::DiscardPolicy;

/// A node that gives its child a format: none.
#[derive(Debug)]
pub struct RawNode {
    name: String,
    child: Arc<Child>,
    access: Access,
    discard: DiscardPolicy,
}

impl RawNode {
    /// Shows the child as a disk of its own name.
    pub fn new(name: &str, child: Arc<Child>, access: Access, discard: DiscardPolicy) -> Self {
        Self { name: name.to_owned(), child, access, discard }
    }
}

impl Node for RawNode {
    fn name(&self) -> &str {
        &self.name
    }

    fn size(&self) -> DiskSize {
        self.child.node().size()
    }

    fn limits(&self) -> Limits {
        let below = self.child.node().limits();
        Limits { discard: below.discard && self.discard == DiscardPolicy::Unmap, ..below }
    }

    fn access(&self) -> Access {
        self.access
    }

    fn flush(&self) -> std::io::Result<()> {
        self.child.node().flush()
    }

    /// Raw needs of its child what is asked of it.
    fn claim(&self, rights: Rights) -> Result<Claim, ClaimError> {
        self.child.node().claim(rights)
    }

    fn open_lane(&self) -> Result<Box<dyn Lane>, LaneError> {
        let below = self.child.node().open_lane()?;
        Ok(match self.discard {
            // Raw changes nothing about a request, so its lane is the child's.
            DiscardPolicy::Unmap => below,
            DiscardPolicy::Ignore => Box::new(KeepingLane { below }),
        })
    }
}

/// A lane that gives no space back, whatever the lane below would do.
#[derive(Debug)]
struct KeepingLane {
    below: Box<dyn Lane>,
}

impl Lane for KeepingLane {
    fn map(&mut self, batch: &mut [Mapping], pieces: &mut PieceList) {
        for mapping in batch.iter_mut() {
            if let Operation::WriteZeroes(extent, Unmap::Allowed, durability) = mapping.operation {
                mapping.operation = Operation::WriteZeroes(extent, Unmap::Keep, durability);
            }
        }
        for run in batch.split_mut(is_discard) {
            if !run.is_empty() {
                self.below.map(run, pieces);
            }
        }
        for mapping in batch.iter_mut().filter(|mapping| is_discard(mapping)) {
            mapping.answer = Answer::Now(pieces.none());
        }
    }

    fn due(&self) -> Option<Due> {
        self.below.due()
    }

    fn resume(&mut self, now: Instant, late: &mut Vec<Mapping>, pieces: &mut PieceList) {
        self.below.resume(now, late, pieces);
    }

    fn release(&mut self) {
        self.below.release();
    }
}

fn is_discard(mapping: &Mapping) -> bool {
    matches!(mapping.operation, Operation::Discard(..))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{NullNode, ReadContent};
    use block::{ByteCount, ByteOffset, Durability, Token};

    /// How many pieces raw over null answers with, for a zeroing, a discard and a flush.
    #[track_caller]
    fn check(discard: DiscardPolicy, expected: [usize; 3]) {
        let size = DiskSize(ByteCount(4096));
        let null = NullNode::new("null", size, Access::ReadWrite, ReadContent::Zeroes);
        let raw = RawNode::new("raw", Child::new(Arc::new(null)), Access::ReadWrite, discard);
        let extent = size.check(ByteOffset(0), ByteCount(512)).unwrap();
        let operations = [
            Operation::WriteZeroes(extent, Unmap::Allowed, Durability::Cached),
            Operation::Discard(extent, Durability::Cached),
            Operation::Flush,
        ];
        let mut batch = operations.map(|operation| Mapping::new(Token(0), operation));
        let mut list = PieceList::default();
        raw.open_lane().unwrap().map(&mut batch, &mut list);
        let pieces = batch.map(|mapping| match mapping.answer {
            Answer::Now(range) => list.get(range).len(),
            Answer::Held | Answer::Refused(_) => panic!("{:?}", mapping.answer),
        });
        assert_eq!(pieces, expected);
    }

    #[test]
    fn discards_pass_raw_only_if_it_may_unmap() {
        check(DiscardPolicy::Unmap, [1, 1, 1]);
        check(DiscardPolicy::Ignore, [1, 0, 1]);
    }
}
