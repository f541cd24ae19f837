//! The raw format: a disk whose bytes are its child's bytes (driver `raw`).

use std::sync::Arc;

use block::{
    Access, Answer, Claim, ClaimError, DiskSize, Lane, LaneError, Limits, Mapping, Node, Operation,
    Pieces, Rights, Unmap,
};

use crate::DiscardPolicy;

/// A node that gives its child a format: none.
#[derive(Debug)]
pub struct RawNode {
    name: String,
    child: Arc<dyn Node>,
    access: Access,
    discard: DiscardPolicy,
}

impl RawNode {
    /// Shows the child as a disk of its own name.
    pub fn new(name: &str, child: Arc<dyn Node>, access: Access, discard: DiscardPolicy) -> Self {
        Self { name: name.to_owned(), child, access, discard }
    }
}

impl Node for RawNode {
    fn name(&self) -> &str {
        &self.name
    }

    fn size(&self) -> DiskSize {
        self.child.size()
    }

    fn limits(&self) -> Limits {
        let below = self.child.limits();
        Limits { discard: below.discard && self.discard == DiscardPolicy::Unmap, ..below }
    }

    fn access(&self) -> Access {
        self.access
    }

    fn flush(&self) -> std::io::Result<()> {
        self.child.flush()
    }

    /// Raw needs of its child what is asked of it.
    fn claim(&self, rights: Rights) -> Result<Claim, ClaimError> {
        self.child.claim(rights)
    }

    fn open_lane(&self) -> Result<Box<dyn Lane>, LaneError> {
        let below = self.child.open_lane()?;
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
    fn map(&mut self, batch: &mut [Mapping]) {
        for mapping in batch.iter_mut() {
            if let Operation::WriteZeroes(extent, Unmap::Allowed, durability) = mapping.operation {
                mapping.operation = Operation::WriteZeroes(extent, Unmap::Keep, durability);
            }
        }
        for run in batch.split_mut(is_discard) {
            if !run.is_empty() {
                self.below.map(run);
            }
        }
        for mapping in batch.iter_mut().filter(|mapping| is_discard(mapping)) {
            mapping.answer = Answer::Now(Pieces::none());
        }
    }
}

fn is_discard(mapping: &Mapping) -> bool {
    matches!(mapping.operation, Operation::Discard(..))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{NullNode, ReadContent};
    use block::{ByteCount, ByteOffset, Durability, FailKind};

    /// How many pieces raw over null answers with, for a zeroing, a discard and a flush.
    #[track_caller]
    fn check(discard: DiscardPolicy, expected: [usize; 3]) {
        let size = DiskSize(ByteCount(4096));
        let null = NullNode::new("null", size, Access::ReadWrite, ReadContent::Zeroes);
        let raw = RawNode::new("raw", Arc::new(null), Access::ReadWrite, discard);
        let extent = size.check(ByteOffset(0), ByteCount(512)).unwrap();
        let operations = [
            Operation::WriteZeroes(extent, Unmap::Allowed, Durability::Cached),
            Operation::Discard(extent, Durability::Cached),
            Operation::Flush,
        ];
        let answer = Answer::Refused(FailKind::Io);
        let mut batch = operations.map(|operation| Mapping { operation, answer });
        raw.open_lane().unwrap().map(&mut batch);
        let pieces = batch.map(|mapping| match mapping.answer {
            Answer::Now(pieces) => pieces.as_slice().len(),
            Answer::Refused(kind) => panic!("{kind:?}"),
        });
        assert_eq!(pieces, expected);
    }

    #[test]
    fn discards_pass_raw_only_if_it_may_unmap() {
        check(DiscardPolicy::Unmap, [1, 1, 1]);
        check(DiscardPolicy::Ignore, [1, 0, 1]);
    }
}
