//! What an iothread waits with.
//!
//! Where it stands in the life of a request: [`crate::Kernel`] watches descriptors with it and
//! sleeps in it; completions come back by the number of their slot.

use std::io;
use std::os::fd::RawFd;

use crate::parked::SlotIndex;
use crate::uring::Uring;

/// Something that has happened to a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Completion {
    pub(crate) index: SlotIndex,
    /// What it gave, or minus the errno.
    pub(crate) result: i32,
    /// Whether more completions of a poll will come.
    pub(crate) more: bool,
}

/// The way of an iothread to wait.
#[derive(Debug)]
pub(crate) enum Reactor {
    /// An io_uring, which does I/O as well.
    Uring(Uring),
}

impl Reactor {
    /// Watches a descriptor until [`Reactor::unwatch`]: a completion each time that it becomes
    /// readable, or one without more to come when that cannot be, or not any longer.
    pub(crate) fn watch(&mut self, index: SlotIndex, fd: RawFd) {
        match self {
            Self::Uring(uring) => uring.push_poll(index, fd),
        }
    }

    /// Ends watching; the last completion of the slot follows.
    pub(crate) fn unwatch(&mut self, index: SlotIndex, _fd: RawFd) {
        match self {
            Self::Uring(uring) => uring.push_cancel(index),
        }
    }

    /// Hands over what is queued, and waits for a completion if told so and none is there.
    pub(crate) fn wait(&mut self, block: bool) -> io::Result<()> {
        match self {
            Self::Uring(uring) => uring.wait(block),
        }
    }

    /// The next completion, in order.
    pub(crate) fn next(&mut self) -> Option<Completion> {
        match self {
            Self::Uring(uring) => uring.next(),
        }
    }
}
