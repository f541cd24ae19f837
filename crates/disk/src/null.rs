//! A disk of any size that stores nothing (driver `null-co`), to measure what is above it.

use std::num::NonZeroU32;

use block::{
    Access, Answer, ByteCount, Claim, ClaimError, DiskSize, FailKind, Lane, LaneError, Limits,
    Mapping, Node, Piece, PieceList, Rights, Target,
};

/// What reads from a null disk do (`read-zeroes=`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadContent {
    /// They leave the guest's memory as it is.
    Untouched,
    /// They return zeroes.
    Zeroes,
}

/// A disk that stores nothing.
#[derive(Debug)]
pub struct NullNode {
    name: String,
    size: DiskSize,
    access: Access,
    content: ReadContent,
}

impl NullNode {
    /// A null disk of that size.
    pub fn new(name: &str, size: DiskSize, access: Access, content: ReadContent) -> Self {
        Self { name: name.to_owned(), size, access, content }
    }
}

impl Node for NullNode {
    fn name(&self) -> &str {
        &self.name
    }

    fn size(&self) -> DiskSize {
        self.size
    }

    fn limits(&self) -> Limits {
        let block = NonZeroU32::new(512).expect("512 is not zero");
        Limits { request_alignment: block, physical_block: block, discard: true }
    }

    fn access(&self) -> Access {
        self.access
    }

    fn flush(&self) -> std::io::Result<()> {
        Ok(())
    }

    /// Nobody else can reach it.
    fn claim(&self, _: Rights) -> Result<Claim, ClaimError> {
        Ok(Claim::nothing())
    }

    fn open_lane(&self) -> Result<Box<dyn Lane>, LaneError> {
        let target = match self.content {
            ReadContent::Untouched => Target::Nothing,
            ReadContent::Zeroes => Target::Zeroes,
        };
        Ok(Box::new(NullLane { target, access: self.access }))
    }
}

#[derive(Debug)]
struct NullLane {
    target: Target,
    access: Access,
}

impl Lane for NullLane {
    fn map(&mut self, batch: &mut [Mapping], pieces: &mut PieceList) {
        for mapping in batch {
            let refused = mapping.operation.is_change() && self.access == Access::ReadOnly;
            mapping.answer = if refused {
                Answer::Refused(FailKind::ReadOnly)
            } else {
                let count =
                    mapping.operation.extent().map_or(ByteCount(0), |extent| extent.count());
                Answer::Now(pieces.one(Piece { skip: 0, count, target: self.target }))
            };
        }
    }
}
