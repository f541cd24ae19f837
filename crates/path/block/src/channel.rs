//! One iothread's way to storage that is no file of the kernel: a server behind a socket, a library, a device whose
//! queues are in user space.
//!
//! Where it stands in the life of a request: a node of such storage enters a channel with the [`crate::LaneContext`] of
//! each lane that is opened on it, and its lanes answer with pieces on that ([`crate::Target::Channel`]). The engine
//! cuts, stages, locks and syncs as it does for files, by what the [`Medium`] says, and begins here what is left of
//! that.
//!
//! Invariants: each tag that was begun is collected once, and is new again only after that. Guest memory is lent only to
//! a channel that can take its operations back ([`CancellationSupport::Possible`]), so no stop waits for storage that is gone.
//! Threads: a channel belongs to the iothread that opened the lane. A library that calls back on threads of its own
//! leaves there what is over, for [`Channel::collect`], and uses the waker of the lane.
//! Limits: what a channel has room for is its own matter; the engine keeps what it refuses, and asks again.

use std::fmt::Debug;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::{IoFailure, Medium, Operation, Segment, WakeTime};

/// The identifier of a channel on one iothread. Never used again there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChannelId(pub u32);

/// The submitter's identifier of an operation or a poll; comes back with its end (io_uring's user_data).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tag(pub u64);

/// What a descriptor is polled for: reading, or reading and writing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interest {
    /// Something to read.
    Read,
    /// The same, or room to write.
    ReadOrWrite,
}

/// One iothread's connection to storage that is no file of the kernel: a server behind a socket, a library, a device
/// with queues in user space.
pub trait Channel: Debug {
    /// What does not depend on what storage it is, the same for the channels of all iothreads.
    fn medium(&self) -> &Arc<Medium>;

    /// Whether operations can be taken back. Always the same.
    fn cancel(&self) -> CancellationSupport;

    /// Begins an operation on bytes of the storage, if there is room. Does not block. Reads and writes are aligned and no
    /// longer than the medium says, ranges to discard or zero are aligned; of those that cannot be done the failure says
    /// so ([`IoFailure::is_unsupported`]). A flush makes durable what is over by now on any channel of the medium, on whichever
    /// iothread. A status leaves [`crate::StatusRecord`]s in the memory, from the first byte on and as far as it likes; if it
    /// cannot tell and says so, the bytes are taken for data. A change has to be durable when it is over only if it is a write, and
    /// the medium says that it can be ([`crate::DurableWriteMethod::ByThemselves`]).
    ///
    /// The memory of a read or a write is as long as the bytes. It is there until the tag is collected, or, if operations
    /// can be taken back, until [`Channel::abandon`] has been called; it must not be used any more then.
    fn begin(&mut self, operation: Operation, memory: &[Segment], tag: Tag) -> BeginResult;

    /// Does what can be done without waiting, and adds what is over. Called after operations were begun, when a descriptor
    /// is ready, when the waker of the lane was used, and as [`Channel::wants`] says; also for nothing.
    fn collect(&mut self, done: &mut Vec<(Tag, Result<(), IoFailure>)>);

    /// When to call it next. Asked again after each of the other calls.
    fn wants(&self) -> ChannelWakeCondition<'_>;

    /// The storage is given up by whoever waits for it: ends all operations that can be taken back, which the next
    /// [`Channel::collect`] tells as failed, and sees to it that they are not carried out later, as far as the storage has
    /// a way to. Those that cannot be taken back it ends when it can. What is begun afterwards is tried as at the
    /// beginning.
    fn abandon(&mut self);
}

/// Whether the operations of a channel can be cancelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CancellationSupport {
    /// After [`Channel::abandon`] nothing uses their memory, and all of them end with the next [`Channel::collect`].
    Possible,
    /// They end when the storage says so, perhaps never. They get memory of the engine, not of guests.
    Impossible,
}

/// Whether a channel began an operation, or has no room for it now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "what was not begun is begun later"]
pub enum BeginResult {
    /// Yes: its tag will be collected.
    Started,
    /// No: there is no room before something that is under way is over.
    Full,
}

/// When a channel has to be called: a descriptor that becomes ready, the next round, a time.
#[derive(Debug, Clone, Copy)]
pub struct ChannelWakeCondition<'a> {
    /// Whenever this becomes ready; not again if it stays so. The engine keeps it open as long as it watches it.
    pub descriptor: Option<(&'a Arc<OwnedFd>, Interest)>,
    /// In the next round, for which nobody sleeps: it is polled, or has more to do than one call may take. Only as long as
    /// operations are under way.
    pub again: bool,
    /// At that time.
    pub due: Option<WakeTime>,
}
