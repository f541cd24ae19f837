//! What an engine asks of the kernel.
//!
//! Where it stands in the life of a request: below the engine, which begins operations on files here and takes the events
//! that they end with. Always a type that is known when the engine is compiled: no call goes through a table.
//!
//! Invariants: an operation that was begun ends with one [`Event::Finished`] under its tag; until then its memory belongs
//! to the kernel. Threads: belongs to that of its engine; only [`EngineKernel::wait`] blocks.

use std::fmt::Debug;
use std::io;
use std::os::fd::BorrowedFd;

use block::{ByteCount, ByteOffset, Durability, FileId, Interest, IoFailure, Medium, Segment, Tag};

use crate::{BounceBuffer, DiscardOrZeroGoal, Event, ServedRings, WaitMode};

/// What an engine uses of its iothread's kernel interface: file I/O, polls of descriptors, waiting for events.
pub trait EngineKernel: Debug {
    /// What does not depend on the kind of storage.
    fn medium(&mut self, file: FileId) -> &Medium;

    /// Reads from the file into the memory.
    fn read(
        &mut self,
        file: FileId,
        offset: ByteOffset,
        memory: impl Iterator<Item = Segment>,
        tag: Tag,
    );

    /// Writes the memory to the file.
    fn write(
        &mut self,
        file: FileId,
        offset: ByteOffset,
        durability: Durability,
        memory: impl Iterator<Item = Segment>,
        tag: Tag,
    );

    /// Reads `count` bytes into a bounce buffer, which comes back with the event.
    fn read_bounce(
        &mut self,
        file: FileId,
        offset: ByteOffset,
        count: usize,
        buffer: BounceBuffer,
        tag: Tag,
    );

    /// Writes the first `count` bytes of a bounce buffer, which comes back with the event.
    fn write_bounce(
        &mut self,
        file: FileId,
        offset: ByteOffset,
        durability: Durability,
        count: usize,
        buffer: BounceBuffer,
        tag: Tag,
    );

    /// Makes the file's data durable.
    fn sync(&mut self, file: FileId, tag: Tag);

    /// Discards or zeroes a range of the file, whose size stays as it is, in the best way that the host has. Fails with
    /// EOPNOTSUPP if it has none; then the range may hold zeroes already.
    fn allocate(
        &mut self,
        file: FileId,
        offset: ByteOffset,
        count: ByteCount,
        how: DiscardOrZeroGoal,
        tag: Tag,
    );

    /// Looks what a file has from there on, of so many bytes: an [`Event::Extent`] follows. Devices do not tell.
    fn find_extent(&mut self, file: FileId, offset: ByteOffset, count: ByteCount, tag: Tag);

    /// Closes the files that were taken out of the table, as far as nothing of them is in flight any more. For when the
    /// table rang.
    fn forget_files(&mut self);

    /// Watches a descriptor until [`EngineKernel::cancel_poll`]: an [`Event::Ready`] each time that it becomes ready, which
    /// need not come if it stays so. The kernel keeps the descriptor's file alive meanwhile. Neither its counter nor its
    /// flags are touched: the front end shares them.
    fn poll(&mut self, fd: BorrowedFd<'_>, interest: Interest, tag: Tag);

    /// Ends watching; [`Event::PollEnded`] follows. The descriptor must stay open until then.
    fn cancel_poll(&mut self, tag: Tag);

    /// Adds one to the counter of an eventfd that another process shares. Does not sleep for it.
    fn ring(&mut self, fd: BorrowedFd<'_>) -> io::Result<()>;

    /// How much may be done inline from the next turn on.
    fn share_inline(&mut self, share: ServedRings);

    /// Begins a turn: does what waits to be done inline, submits what is queued, and waits as told unless events, or work
    /// for another turn, are there already.
    fn wait(&mut self, wait: WaitMode) -> io::Result<()>;

    /// Whether waiting without blocking would do anything, as far as can be seen without a system call: bring something,
    /// or hand over what is queued.
    fn has_pending(&mut self) -> bool;

    /// How many operations wait to be done inline in the next turns.
    fn inline_waiting(&self) -> usize;

    /// Whether [`EngineKernel::has_pending`] keeps saying so without reason, until a watched descriptor becomes readable:
    /// make one so.
    fn has_stale_flag(&self) -> bool;

    /// The next event, if there is one.
    fn next_event(&mut self) -> Option<Event>;

    /// The next event, if it says that an operation is over: whose, how, and its bounce buffer. So what was done at once
    /// can be worked off before the next turn.
    fn next_finished(&mut self) -> Option<(Tag, Result<(), IoFailure>, Option<BounceBuffer>)>;
}
