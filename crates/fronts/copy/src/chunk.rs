//! A part of the disk while it is copied or compared: what has to be done next for it.
//!
//! Where it stands in the life of a request: each step of a chunk is a request of its slot; when that was answered, the
//! next one is decided here.
//!
//! Invariants: a chunk has one request at a time. Not here: who brings it (`worker`).

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use bitmaps::CopyClaim;
use block::{RequestMemory, Unmap};

use crate::job::CopySide;

/// What is done next for a chunk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    /// Ask the source what these bytes are.
    Status(Range<u64>),
    /// Read the chunk from a side, into its own memory of that side.
    Read(CopySide),
    /// Write these bytes of the chunk to the target.
    Write(Range<usize>),
    /// Make these bytes of the disk zeroes on the target.
    Zero(Range<u64>, Unmap),
}

/// A part of the disk that is worked on.
#[derive(Debug)]
pub(crate) struct Chunk {
    /// Which bytes of the disk.
    pub(crate) bytes: Range<u64>,
    /// Steps that are left, without the one that is under way.
    pub(crate) steps: VecDeque<Step>,
    /// The step that is under way, or due.
    pub(crate) step: Step,
    /// Memory for what is read from the source, or what it says of its bytes.
    pub(crate) source: Option<RequestMemory>,
    /// Memory for what is read from the target.
    pub(crate) target: Option<RequestMemory>,
    /// What it is a part of, if it is of a backlog.
    pub(crate) claim: Option<Arc<CopyClaim>>,
}

impl Chunk {
    pub(crate) fn len(&self) -> usize {
        usize::try_from(self.bytes.end - self.bytes.start).expect("a chunk fits memory")
    }

    /// The memory that a step uses.
    pub(crate) fn memory_of(&mut self, step: &Step) -> Option<&mut RequestMemory> {
        match step {
            Step::Status(_) | Step::Read(CopySide::Source) | Step::Write(_) => self.source.as_mut(),
            Step::Read(CopySide::Target) => self.target.as_mut(),
            Step::Zero(..) => None,
        }
    }
}
