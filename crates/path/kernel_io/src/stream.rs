//! A transfer on a stream socket: its memory, and how far it has got.
//!
//! Where it stands: a front end makes one for each direction and uses it again and again. While it is under way it lies
//! in the in-flight table, memory and all, and comes back with [`crate::Event::Transferred`].
//!
//! Invariants: what the kernel may touch is owned by the transfer, and whoever began the transfer does not have it until
//! it is over. One that ended early goes on where it stopped when it is begun again. Not here: how it is carried out
//! (`kernel::streams`).

#![expect(unsafe_code, reason = "the memory of a transfer is named for the kernel")]

use std::ops::Range;
use std::os::fd::RawFd;
use std::ptr::NonNull;

use block::{HostMemory, Segment, Tag};
use rustix::io::Errno;

/// Which way the bytes of a transfer go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamDirection {
    /// From the peer.
    Receive,
    /// To the peer.
    Send,
}

/// When a transfer is over that nothing goes wrong with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamGoal {
    /// As soon as there are some bytes.
    Some,
    /// When all of its memory was filled or sent.
    All,
}

/// How a transfer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamEnd {
    /// Its goal was reached.
    Done,
    /// The peer sends nothing any more.
    EndOfStream,
    /// It was cancelled before.
    Cancelled,
    /// The kernel said so.
    Failed(Errno),
}

/// A transfer on a stream socket, with its memory; made once and used again.
#[derive(Debug, Default)]
pub struct StreamTransfer(Box<Content>);

/// What is behind the box: small to move, in the tables of those who have it.
#[derive(Debug)]
struct Content {
    parts: Vec<StreamPart>,
    /// How many of the bytes of all parts have been transferred.
    transferred: usize,
    op: StreamOp,
    end: StreamEnd,
}

/// Memory and which of its bytes are transferred.
#[derive(Debug)]
struct StreamPart {
    memory: HostMemory,
    bytes: Range<usize>,
}

/// What the kernel is asked for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StreamOp {
    pub(crate) direction: StreamDirection,
    pub(crate) goal: StreamGoal,
    /// Open until the transfer is over.
    pub(crate) socket: RawFd,
    pub(crate) tag: Tag,
    pub(crate) phase: StreamPhase,
    /// Whether nobody wants the rest.
    pub(crate) is_cancelled: bool,
}

/// Whether the kernel has the call, or the socket is watched until a call can do something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StreamPhase {
    InKernel,
    Watched,
}

impl Default for Content {
    fn default() -> Self {
        let op = StreamOp {
            direction: StreamDirection::Receive,
            goal: StreamGoal::Some,
            socket: -1,
            tag: Tag(0),
            phase: StreamPhase::InKernel,
            is_cancelled: false,
        };
        Self { parts: Vec::new(), transferred: 0, op, end: StreamEnd::Done }
    }
}

impl StreamTransfer {
    /// Adds bytes of this memory behind the others.
    pub fn push(&mut self, memory: HostMemory, bytes: Range<usize>) {
        assert!(bytes.start <= bytes.end && bytes.end <= memory.len(), "{bytes:?} of {memory:?}");
        self.0.parts.push(StreamPart { memory, bytes });
    }

    /// The memory and its bytes, in order.
    pub fn parts(&self) -> impl Iterator<Item = (&HostMemory, Range<usize>)> {
        self.0.parts.iter().map(|part| (&part.memory, part.bytes.clone()))
    }

    /// Takes the memory out again; a new transfer can be put together.
    pub fn take_parts(&mut self) -> impl Iterator<Item = (HostMemory, Range<usize>)> + '_ {
        self.0.transferred = 0;
        self.0.parts.drain(..).map(|part| (part.memory, part.bytes))
    }

    /// How many bytes were transferred, counted over all parts and all times that it was begun.
    pub fn transferred(&self) -> usize {
        self.0.transferred
    }

    /// How many bytes are left.
    pub fn left(&self) -> usize {
        self.parts().map(|(_, bytes)| bytes.len()).sum::<usize>() - self.0.transferred
    }

    /// Which way it went when it was last begun.
    pub fn direction(&self) -> StreamDirection {
        self.0.op.direction
    }

    /// How it ended when it was last begun.
    pub fn end(&self) -> StreamEnd {
        self.0.end
    }

    /// Whose it is.
    pub(crate) fn tag(&self) -> Tag {
        self.0.op.tag
    }

    pub(crate) fn op(&mut self) -> &mut StreamOp {
        &mut self.0.op
    }

    pub(crate) fn ended(&mut self, end: StreamEnd) {
        self.0.end = end;
    }

    pub(crate) fn advance(&mut self, count: usize) {
        self.0.transferred += count;
    }

    /// Names what is left for the kernel. Whoever has it named keeps the transfer until nothing of it is under way.
    pub(crate) fn name_left(&mut self, into: &mut Vec<Segment>) {
        let mut skip = self.0.transferred;
        for StreamPart { memory, bytes } in &mut self.0.parts {
            let skipped = skip.min(bytes.len());
            skip -= skipped;
            let left = &mut memory[bytes.start + skipped..bytes.end];
            if !left.is_empty() {
                // SAFETY: the bytes are ours, and the caller keeps them where they are.
                into.push(unsafe { Segment::new(NonNull::from(&mut *left).cast(), left.len()) });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_named_is_what_was_not_transferred() {
        let mut transfer = StreamTransfer::default();
        transfer.push(HostMemory::of(b"abcdef"), 1..4);
        transfer.push(HostMemory::of(b"ghi"), 0..0);
        transfer.push(HostMemory::of(b"jkl"), 0..3);
        let counts = |transfer: &mut StreamTransfer| {
            let mut named = Vec::new();
            transfer.name_left(&mut named);
            named.iter().map(|segment| segment.count()).collect::<Vec<_>>()
        };
        assert_eq!((counts(&mut transfer), transfer.left()), (vec![3, 3], 6));
        transfer.advance(2);
        assert_eq!((counts(&mut transfer), transfer.left()), (vec![1, 3], 4));
        transfer.advance(3);
        assert_eq!((counts(&mut transfer), transfer.left()), (vec![1], 1));
        transfer.advance(1);
        assert_eq!((counts(&mut transfer), transfer.left()), (vec![], 0));
        assert_eq!(transfer.take_parts().count(), 3);
        assert_eq!((transfer.transferred(), transfer.left()), (0, 0));
    }
}
