//! Linux AIO (`aio=native`): asynchronous direct I/O without io_uring.
//!
//! Where it stands in the life of a request: [`crate::Kernel`] queues parked operations here,
//! submits them once per turn, polls the notifier that the kernel signals for completions, and takes
//! those out when it rings.
//!
//! Limits: [`EVENTS_MAX`] operations at once per iothread, as in QEMU; `fs.aio-max-nr` bounds
//! them over all processes. What is more than its file may have of them ([`OPERATIONS`]) waits, in order. Of storage
//! that has NOWAIT nothing is submitted that would have to wait: EAGAIN, and a worker does it.

#![expect(unsafe_code, reason = "Linux AIO has no safe form")]

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use block::{ByteOffset, FileId};
use rustix::io::Errno;

use crate::blocking_calls::{Iovecs, NOWAIT, write_flags};
use crate::in_flight::{IoKind, SlotIndex};
use crate::reactor::Completion;
use crate::{Caching, FairShareLimit, Notifier, OpenFile, PartyQueues, StorageBlockingKind};

/// The most operations in flight.
const EVENTS_MAX: u32 = 1024;

/// Those of the files: each may have one while fewer than [`EVENTS_MAX`] files hang.
const OPERATIONS: FairShareLimit = FairShareLimit::new(EVENTS_MAX as usize / 2, 1);

/// Completions taken with one call.
const BATCH: usize = 128;

const IOCB_CMD_PREAD: u16 = 0;
const IOCB_CMD_PREADV: u16 = 7;
const IOCB_CMD_PWRITEV: u16 = 8;
const IOCB_FLAG_RESFD: u32 = 1;

const _: () = assert!(cfg!(target_endian = "little"), "the order of `key` and `flags`");

/// The kernel's `struct iocb` (linux/aio_abi.h).
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct ControlBlock {
    data: u64,
    key: u32,
    flags: i32,
    opcode: u16,
    priority: i16,
    fd: u32,
    iovecs: u64,
    segments: u64,
    offset: i64,
    reserved: u64,
    block_flags: u32,
    notifier: u32,
}

/// The kernel's `struct io_event`.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct IoEvent {
    data: u64,
    control_block: u64,
    result: i64,
    second: i64,
}

impl ControlBlock {
    /// Reads no bytes from the start of a file.
    pub(crate) fn read_nothing(file: BorrowedFd<'_>) -> Self {
        Self { opcode: IOCB_CMD_PREAD, fd: file.as_raw_fd().cast_unsigned(), ..Self::default() }
    }

    /// Has the kernel add one to this eventfd on completion.
    pub(crate) fn ring(&mut self, notifier: BorrowedFd<'_>) {
        self.block_flags = IOCB_FLAG_RESFD;
        self.notifier = notifier.as_raw_fd().cast_unsigned();
    }
}

/// A Linux AIO context (`aio_context_t`, io_setup(2)). Nothing may be in flight when it is dropped.
#[derive(Debug)]
pub(crate) struct AioContext(libc::c_ulong);

impl AioContext {
    /// A context that can hold so many completions.
    pub(crate) fn new(events: u32) -> io::Result<Self> {
        let mut context: libc::c_ulong = 0;
        // SAFETY: the call writes the context, which is zero as it must be, and nothing else.
        match unsafe { libc::syscall(libc::SYS_io_setup, events, &raw mut context) } {
            0 => Ok(Self(context)),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Submits operations, and says how many of them the kernel took.
    ///
    /// # Safety
    /// The pointers must be valid during the call. What the blocks name must stay as it is, and its
    /// file open, until the completion has been taken; a read writes to the memory it names.
    pub(crate) unsafe fn submit(&self, blocks: &mut [*mut ControlBlock]) -> io::Result<usize> {
        // SAFETY: the list is the caller's slice, and what is in it is as the caller promises.
        let taken = unsafe {
            libc::syscall(libc::SYS_io_submit, self.0, blocks.len(), blocks.as_mut_ptr())
        };
        usize::try_from(taken).map_err(|_negative| io::Error::last_os_error())
    }

    /// Takes the completions there are, as far as there is room for them.
    pub(crate) fn take(&self, events: &mut [IoEvent]) -> io::Result<usize> {
        loop {
            let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
            // SAFETY: there is room for as many events as asked for, and the time is only read.
            let taken = unsafe {
                libc::syscall(
                    libc::SYS_io_getevents,
                    self.0,
                    0_i64,
                    events.len(),
                    events.as_mut_ptr(),
                    &raw const now,
                )
            };
            if let Ok(taken) = usize::try_from(taken) {
                return Ok(taken);
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
    }
}

impl Drop for AioContext {
    fn drop(&mut self) {
        // SAFETY: the context is given up here; the call waits for what is in flight.
        let result = unsafe { libc::syscall(libc::SYS_io_destroy, self.0) };
        assert!(result == 0, "a context of our own cannot be destroyed");
    }
}

/// One iothread's Linux AIO context (`aio=native`). Nothing may be in flight when it is dropped.
#[derive(Debug)]
pub(crate) struct LinuxAio {
    context: AioContext,
    notifier: Notifier,
    /// Those for which their files have no room, by file.
    waiting: PartyQueues<ControlBlock>,
    /// Those that the kernel gets next.
    queue: VecDeque<ControlBlock>,
    in_flight: usize,
    /// Whether the kernel had no room, and nothing has been completed since.
    no_room: bool,
    events: Vec<IoEvent>,
}

impl LinuxAio {
    /// A context for a full iothread.
    pub(crate) fn new() -> io::Result<Self> {
        let notifier = Notifier::new()?;
        let context = AioContext::new(EVENTS_MAX)?;
        let events = vec![IoEvent::default(); BATCH];
        let (waiting, queue) = (PartyQueues::new(OPERATIONS), VecDeque::new());
        Ok(Self { context, notifier, waiting, queue, in_flight: 0, no_room: false, events })
    }

    /// Whether the host has Linux AIO.
    pub(crate) fn probe() -> io::Result<()> {
        AioContext::new(1).map(drop)
    }

    /// Whether it can do such work.
    pub(crate) fn suits(work: IoKind) -> bool {
        match work {
            IoKind::Read | IoKind::Write(_) => true,
            // Syncs would be done by kernel threads that all of the host shares.
            IoKind::Sync | IoKind::Space(_) | IoKind::Extent(_) => false,
        }
    }

    /// Rings when [`LinuxAio::take_done`] has something; each time anew, never cleared.
    pub(crate) fn notifier(&self) -> BorrowedFd<'_> {
        self.notifier.as_fd()
    }

    /// Whether something is queued that no completion will bring on its way.
    pub(crate) fn is_stuck(&self) -> bool {
        !self.queue.is_empty() && self.in_flight == 0
    }

    /// Whether something is queued and the kernel may have room for it.
    pub(crate) fn can_submit(&self) -> bool {
        !self.queue.is_empty() && self.in_flight < EVENTS_MAX as usize && !self.no_room
    }

    /// Queues an operation, which [`LinuxAio::suits`], for the next [`LinuxAio::submit`].
    ///
    /// # Safety
    /// The file must stay open, and the iovecs, and the memory they name, must stay as they are,
    /// until the completion of this slot has been taken; a read writes to that memory.
    pub(crate) unsafe fn push(
        &mut self,
        index: SlotIndex,
        work: IoKind,
        (id, file): (FileId, &OpenFile),
        offset: ByteOffset,
        (iovecs, segments): Iovecs,
    ) {
        let (opcode, flags) = match work {
            IoKind::Read => (IOCB_CMD_PREADV, 0),
            IoKind::Write(durability) => (IOCB_CMD_PWRITEV, write_flags(durability)),
            IoKind::Sync | IoKind::Space(_) | IoKind::Extent(_) => {
                panic!("Linux AIO is given transfers only")
            }
        };
        // Otherwise the submission itself sleeps, and the iothread with it.
        let nowait = match (file.residence(), file.caching()) {
            (StorageBlockingKind::Device, Caching::Direct) => NOWAIT,
            (_, Caching::Direct | Caching::Buffered) => 0,
        };
        let mut block = ControlBlock {
            data: u64::from(index.0) | u64::from(id.0) << 32,
            flags: flags | nowait,
            opcode,
            iovecs: iovecs.expose_provenance() as u64,
            segments: u64::from(segments.cast_unsigned()),
            // What does not fit is refused by the kernel as negative.
            offset: offset.0.cast_signed(),
            fd: file.as_fd().as_raw_fd().cast_unsigned(),
            ..ControlBlock::default()
        };
        block.ring(self.notifier.as_fd());
        self.waiting.push(id.0 as usize, block);
        self.queue_next();
    }

    /// Queues what its file has room for.
    fn queue_next(&mut self) {
        self.queue.extend(std::iter::from_fn(|| self.waiting.take()).map(|(_, block)| block));
    }

    /// An operation is over.
    fn over(&mut self, data: u64, result: i64) -> Completion {
        let file = usize::try_from(data >> 32).expect("the upper half");
        self.waiting.done(file);
        // Some file systems say so of a write that would have to wait, as io_uring knows too.
        let result =
            if result == -i64::from(libc::EOPNOTSUPP) { -i64::from(libc::EAGAIN) } else { result };
        let index = u32::try_from(data & u64::from(u32::MAX)).expect("masked to 32 bits");
        Completion { index: SlotIndex(index), result, more: false }
    }

    /// Hands what is queued to the kernel, as far as there is room. What the kernel refuses is
    /// added to `refused`.
    pub(crate) fn submit(&mut self, refused: &mut Vec<Completion>) {
        loop {
            let room = EVENTS_MAX as usize - self.in_flight;
            let batch = self.queue.len().min(room).min(BATCH);
            if batch == 0 {
                return;
            }
            let mut blocks: [*mut ControlBlock; BATCH] = [std::ptr::null_mut(); BATCH];
            for (block, place) in self.queue.iter_mut().zip(&mut blocks).take(batch) {
                *place = block;
            }
            // SAFETY: the blocks are the queue's, which nobody touches during the call; the
            // kernel copies them. What they name is kept as `push` demands.
            let errno = match unsafe { self.context.submit(&mut blocks[..batch]) } {
                Ok(taken @ 1..) => {
                    self.in_flight += taken;
                    self.queue.drain(..taken);
                    continue;
                }
                Ok(0) => Errno::IO,
                Err(error) => Errno::from_io_error(&error).unwrap_or(Errno::IO),
            };
            if errno == Errno::AGAIN && self.in_flight > 0 {
                self.no_room = true;
                return;
            }
            // The first one is what the kernel did not like.
            let block = self.queue.pop_front().expect("a batch is not empty");
            refused.push(self.over(block.data, (-errno.raw_os_error()).into()));
            self.queue_next();
            if errno == Errno::AGAIN {
                return;
            }
        }
    }

    /// Adds the completions there are to `done`.
    pub(crate) fn take_done(&mut self, done: &mut Vec<Completion>) -> io::Result<()> {
        loop {
            let taken = self.context.take(&mut self.events)?;
            self.in_flight -= taken;
            self.no_room &= taken == 0;
            for place in 0..taken {
                let IoEvent { data, result, .. } = self.events[place];
                done.push(self.over(data, result));
            }
            if taken < BATCH {
                self.queue_next();
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Or a look for news would enter the kernel in vain all the time.
    #[test]
    fn what_the_kernel_has_no_room_for_is_not_tried_before_a_completion() {
        // A host without Linux AIO.
        let Ok(mut native) = LinuxAio::new() else { return };
        assert!(!native.can_submit());
        native.queue.push_back(ControlBlock::default());
        assert!(native.can_submit());
        native.in_flight = EVENTS_MAX as usize;
        assert!(!native.can_submit());
        native.in_flight = 1;
        assert!(native.can_submit());
        native.no_room = true;
        assert!(!native.can_submit());
        // No completion has come.
        native.take_done(&mut Vec::new()).unwrap();
        assert!(!native.can_submit());
        native.queue.clear();
        native.in_flight = 0;
    }

    #[test]
    fn files_that_hang_leave_another_one_its_operations() {
        let Ok(mut native) = LinuxAio::new() else { return };
        let block = |file: u64| ControlBlock { data: file << 32, ..ControlBlock::default() };
        let healthy = 100;
        for file in 0..healthy {
            (0..4000).for_each(|_| native.waiting.push(file, block(file as u64)));
        }
        native.queue_next();
        // They are with the kernel, and none of them ever comes back.
        native.in_flight = native.queue.drain(..).count();
        native.waiting.push(healthy, block(healthy as u64));
        native.queue_next();
        assert_eq!(native.queue.len(), 1);
        assert!(native.can_submit(), "{} operations fly", native.in_flight);
        // What is over makes room again.
        for _ in 0..3 {
            let over = native.over(block(7).data, 0);
            assert_eq!(over, Completion { index: SlotIndex(0), result: 0, more: false });
        }
        native.queue_next();
        assert!(native.queue.len() > 1);
    }
}
