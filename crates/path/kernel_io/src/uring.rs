//! An io_uring: what is queued for the kernel, and what it completed.
//!
//! Where it stands in the life of a request: [`crate::Kernel`] queues parked operations and polls
//! here by the number of their slot, and takes completions out by the same number.
//!
//! Invariants: a file has a slot of the ring's file table, if there is one, until it is given up. The ring
//! does the operations that are queued here and no others, whoever writes to its memory: a filter
//! of system calls does not see what goes through a ring ([`restrict`]).
//! Threads: belongs to the thread that enabled it (SINGLE_ISSUER); only [`Uring::wait`] blocks.
//! Limits: beyond [`COMPLETIONS`] the kernel keeps completions aside (NODROP), which is slower
//! but loses none; files beyond [`REGISTERED_MAX`] are used by their descriptors.

#![expect(unsafe_code, reason = "a submission names memory that the kernel will use")]

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

use block::{ByteOffset, Durability};
use io_uring::register::Restriction;
use io_uring::{IoUring, cqueue, opcode, squeue, types};
use rustix::io::Errno;

use crate::blocking_calls::{Iovecs, NOWAIT, write_flags};
use crate::in_flight::{IoKind, SlotIndex};
use crate::reactor::Completion;
use crate::{Caching, Interest, KernelError, OpenFile, StreamDirection, WaitMode};

/// Submission entries: a batch; more are submitted on the way.
const SUBMISSIONS: u32 = 256;

/// Completion entries: the operations of sixteen full rings of 256, and the polls.
const COMPLETIONS: u32 = 8192;

/// The largest transfer through the page cache: what is in memory is copied when it is submitted, by the iothread.
const CACHED_BYTES_MAX: usize = 128 << 10;

/// The slots of the ring's file table.
const REGISTERED_MAX: u32 = 256;

/// What the ring does (io_uring_register(2), IORING_REGISTER_RESTRICTIONS).
const OPERATIONS: [u8; 6] = [
    opcode::Read::CODE,
    opcode::Write::CODE,
    opcode::Readv::CODE,
    opcode::Writev::CODE,
    opcode::PollAdd::CODE,
    opcode::AsyncCancel::CODE,
];

/// IORING_UNREGISTER_FILES and IORING_REGISTER_FILES_UPDATE, which the library does not name.
const REGISTER_OPERATIONS: [u8; 2] = [3, 6];

/// User data of submissions whose completion means nothing.
const UNNAMED: u64 = u64::MAX;

/// How the ring names a file: by its slot in the registered table (fixed file) or by its descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UringFd {
    /// By its slot in the ring's table, which saves a look-up and a reference count per operation.
    Registered(u32),
    /// By its descriptor.
    Descriptor(RawFd),
}

/// Which transfers of a file io_uring can do without a kernel worker (NOWAIT).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NowaitTransferSupport {
    /// All, past the page cache.
    Direct,
    /// Reads through the page cache: the kernel goes on when the pages are there.
    CachedReads,
    /// Writes too: they are copied, or would have to wait.
    Cached,
}

impl NowaitTransferSupport {
    /// Those of a file on storage that has NOWAIT.
    pub(crate) fn of(file: &OpenFile) -> Self {
        match file.caching() {
            Caching::Direct => Self::Direct,
            Caching::Buffered if file.supports_nowait_writes() => Self::Cached,
            Caching::Buffered => Self::CachedReads,
        }
    }
}

/// A read or write that io_uring does, past the page cache or through it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UringTransfer {
    /// Past the page cache; EAGAIN if it would have to wait.
    Read,
    /// The same.
    Write(Durability),
    /// Through the page cache.
    CachedRead,
    /// The same; EAGAIN if it would have to wait.
    CachedWrite(Durability),
    /// From a socket, which the kernel watches until there is something; EAGAIN if its owner does not want that.
    StreamRead,
    /// To a socket; the same.
    StreamWrite,
}

impl UringTransfer {
    /// What of this work a ring does, for a file with these transfers.
    pub(crate) fn new(
        work: IoKind,
        transfers: NowaitTransferSupport,
        bytes: impl FnOnce() -> usize,
    ) -> Option<Self> {
        match (work, transfers) {
            (IoKind::Read, NowaitTransferSupport::Direct) => Some(Self::Read),
            (IoKind::Write(durability), NowaitTransferSupport::Direct) => {
                Some(Self::Write(durability))
            }
            (IoKind::Read, NowaitTransferSupport::CachedReads | NowaitTransferSupport::Cached) => {
                (bytes() <= CACHED_BYTES_MAX).then_some(Self::CachedRead)
            }
            // A write that is durable waits for the device.
            (IoKind::Write(durability @ Durability::Cached), NowaitTransferSupport::Cached) => {
                (bytes() <= CACHED_BYTES_MAX).then_some(Self::CachedWrite(durability))
            }
            // The kernel hands all of these to its workers.
            (
                IoKind::Write(_),
                NowaitTransferSupport::CachedReads | NowaitTransferSupport::Cached,
            )
            | (IoKind::Sync | IoKind::Space(_) | IoKind::Extent(_), _) => None,
        }
    }

    /// What a ring does for a transfer on a socket.
    pub(crate) fn of_stream(direction: StreamDirection) -> Self {
        match direction {
            StreamDirection::Receive => Self::StreamRead,
            StreamDirection::Send => Self::StreamWrite,
        }
    }

    /// Whether it is copied when it is submitted, by the iothread.
    pub(crate) fn is_cached(self) -> bool {
        matches!(self, Self::CachedRead | Self::CachedWrite(_))
    }

    fn flags(self) -> libc::c_int {
        match self {
            Self::Read => NOWAIT,
            Self::Write(durability) | Self::CachedWrite(durability) => {
                NOWAIT | write_flags(durability)
            }
            Self::CachedRead | Self::StreamRead | Self::StreamWrite => 0,
        }
    }
}

/// Whether the ring has a registered file table, and whether it takes more files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FileRegistration {
    On,
    /// There is one, which takes no more files.
    Closed,
    Off,
}

/// One iothread's io_uring.
pub(crate) struct Uring {
    ring: IoUring,
    registration: FileRegistration,
    /// The slots of the file table that are free.
    free: Vec<u32>,
    /// Completions that were taken from the ring and not yet worked off, in order.
    completed: VecDeque<cqueue::Entry>,
    /// See [`Uring::has_stale_flag`].
    misled: bool,
}

impl std::fmt::Debug for Uring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Uring").field("registration", &self.registration).finish()
    }
}

impl Uring {
    /// Makes the calling thread's io_uring.
    pub(crate) fn new() -> Result<Self, KernelError> {
        Self::disabled()?.enable()
    }

    /// Makes an io_uring that does nothing before it is enabled.
    pub(crate) fn disabled() -> Result<Self, KernelError> {
        let ring = build(SUBMISSIONS, COMPLETIONS)?;
        let registration = match ring.submitter().register_files_sparse(REGISTERED_MAX) {
            Ok(()) => FileRegistration::On,
            Err(error) => {
                not_registered(&error);
                FileRegistration::Off
            }
        };
        restrict(&ring).map_err(KernelError::Uring)?;
        let free = (0..REGISTERED_MAX).rev().collect();
        Ok(Self { ring, registration, free, completed: VecDeque::new(), misled: false })
    }

    /// Lets it begin; it is the calling thread's from now on.
    pub(crate) fn enable(self) -> Result<Self, KernelError> {
        self.ring.submitter().register_enable_rings().map_err(KernelError::Uring)?;
        Ok(self)
    }

    /// Whether the host lets this process have an io_uring.
    pub(crate) fn probe() -> Result<(), KernelError> {
        build(1, 2).map(drop)
    }

    /// Enters a file in the ring's table if that can be. The descriptor must stay open until the place is given up.
    pub(crate) fn place(&mut self, fd: BorrowedFd<'_>) -> UringFd {
        let raw = fd.as_raw_fd();
        if self.registration != FileRegistration::On {
            return UringFd::Descriptor(raw);
        }
        let Some(slot) = self.free.pop() else { return UringFd::Descriptor(raw) };
        match self.ring.submitter().register_files_update(slot, &[raw]) {
            Ok(_) => UringFd::Registered(slot),
            Err(error) => {
                not_registered(&error);
                self.registration = FileRegistration::Closed;
                UringFd::Descriptor(raw)
            }
        }
    }

    /// Takes a file out of the ring's table, of which nothing is in flight or queued.
    pub(crate) fn unregister_file(&mut self, place: UringFd) {
        let UringFd::Registered(slot) = place else { return };
        match self.ring.submitter().register_files_update(slot, &[-1]) {
            Ok(_) => self.free.push(slot),
            Err(error) => tracing::debug!("io_uring keeps a file until the ring is gone: {error}"),
        }
    }

    /// Queues a transfer.
    ///
    /// # Safety
    /// The iovecs, and the memory they name, must stay as they are until the completion of this
    /// slot has been taken; a read writes to that memory.
    pub(crate) unsafe fn push_transfer(
        &mut self,
        index: SlotIndex,
        transfer: UringTransfer,
        place: UringFd,
        offset: ByteOffset,
        (iovecs, segments): Iovecs,
    ) {
        let (fd, flags) = match place {
            UringFd::Registered(slot) => (slot.cast_signed(), squeue::Flags::FIXED_FILE),
            UringFd::Descriptor(fd) => (fd, squeue::Flags::empty()),
        };
        let (fd, count) = (types::Fd(fd), segments.cast_unsigned());
        // SAFETY: the caller keeps the iovecs as they are.
        let single = (segments == 1).then(|| unsafe { *iovecs }).and_then(whole);
        let rw_flags = transfer.flags();
        let entry = match (transfer, single) {
            (
                UringTransfer::Read | UringTransfer::CachedRead | UringTransfer::StreamRead,
                Some((base, bytes)),
            ) => {
                let read = opcode::Read::new(fd, base, bytes).offset(offset.0);
                read.rw_flags(rw_flags).build()
            }
            (UringTransfer::Read | UringTransfer::CachedRead | UringTransfer::StreamRead, None) => {
                let read = opcode::Readv::new(fd, iovecs, count).offset(offset.0);
                read.rw_flags(rw_flags).build()
            }
            (
                UringTransfer::Write(_)
                | UringTransfer::CachedWrite(_)
                | UringTransfer::StreamWrite,
                Some((base, bytes)),
            ) => {
                let write = opcode::Write::new(fd, base, bytes).offset(offset.0);
                write.rw_flags(rw_flags).build()
            }
            (
                UringTransfer::Write(_)
                | UringTransfer::CachedWrite(_)
                | UringTransfer::StreamWrite,
                None,
            ) => {
                let write = opcode::Writev::new(fd, iovecs, count).offset(offset.0);
                write.rw_flags(rw_flags).build()
            }
        };
        // SAFETY: the caller keeps what the entry names until its completion.
        unsafe { self.push(&entry.flags(flags).user_data(u64::from(index.0))) };
    }

    /// Queues a multishot poll.
    pub(crate) fn push_poll(&mut self, index: SlotIndex, fd: RawFd, interest: Interest) {
        let events = match interest {
            Interest::Read => libc::POLLIN,
            Interest::ReadOrWrite => libc::POLLIN | libc::POLLOUT,
        };
        let events = u32::try_from(events).expect("positive constants");
        let poll = opcode::PollAdd::new(types::Fd(fd), events).multi(true).build();
        // SAFETY: a poll names no memory.
        unsafe { self.push(&poll.user_data(u64::from(index.0))) };
    }

    /// Queues a poll that ends with its first completion, for a transfer whose socket is in the mode not to wait.
    pub(crate) fn push_stream_poll(
        &mut self,
        index: SlotIndex,
        socket: RawFd,
        direction: StreamDirection,
    ) {
        let events = match direction {
            StreamDirection::Receive => libc::POLLIN,
            StreamDirection::Send => libc::POLLOUT,
        };
        let events = u32::try_from(events).expect("positive constants");
        let poll = opcode::PollAdd::new(types::Fd(socket), events).build();
        // SAFETY: a poll names no memory.
        unsafe { self.push(&poll.user_data(u64::from(index.0))) };
    }

    /// Queues the end of a poll, or of a transfer on a socket. Its last completion follows.
    pub(crate) fn push_cancel(&mut self, index: SlotIndex) {
        // POLL_REMOVE gives up (EALREADY) when the poll is about to fire; ASYNC_CANCEL does not.
        let entry = opcode::AsyncCancel::new(u64::from(index.0)).build().user_data(UNNAMED);
        // SAFETY: a cancellation names no memory.
        unsafe { self.push(&entry) };
    }

    /// Submits what is queued and waits for a completion, if told so and none is there.
    pub(crate) fn wait(&mut self, wait: WaitMode) -> io::Result<()> {
        let want = usize::from(wait != WaitMode::Poll && self.completed.is_empty());
        let enters = want == 1 || self.must_enter();
        if enters {
            let entered = match wait {
                WaitMode::AtMost(limit) => {
                    let limit = types::Timespec::from(limit);
                    let limit = types::SubmitArgs::new().timespec(&limit);
                    self.ring.submitter().submit_with_args(want, &limit)
                }
                WaitMode::Block | WaitMode::Poll => self.ring.submit_and_wait(want),
            };
            match entered {
                Ok(_) => {}
                // Over in time, interrupted, or the kernel wants completions collected first, as is
                // done below.
                Err(error) if is_passing(&error) => {}
                Err(error) => return Err(error),
            }
        }
        let before = self.completed.len();
        self.completed.extend(self.ring.completion());
        let in_vain = enters && self.completed.len() == before;
        self.misled = in_vain && self.ring.submission().taskrun();
        Ok(())
    }

    /// Whether the kernel says that there is deferred work, and there was none. It adds work first
    /// and raises the flag after; if the work is done in between, the flag stays up until there
    /// is other work.
    pub(crate) fn has_stale_flag(&self) -> bool {
        self.misled
    }

    /// The next completion, in order.
    pub(crate) fn next(&mut self) -> Option<Completion> {
        let named = |entry: &cqueue::Entry| entry.user_data() != UNNAMED;
        let entry = std::iter::from_fn(|| self.completed.pop_front()).find(named)?;
        let index = u32::try_from(entry.user_data()).expect("user data is a slot's number");
        let (result, more) = (entry.result().into(), cqueue::more(entry.flags()));
        Some(Completion { index: SlotIndex(index), result, more })
    }

    /// Whether waiting without blocking would do anything: submit, or bring completions.
    pub(crate) fn has_pending(&mut self) -> bool {
        !self.completed.is_empty() || self.must_enter() || !self.ring.completion().is_empty()
    }

    /// Whether the kernel has to be entered: to take submissions, to run deferred work
    /// (DEFER_TASKRUN) or to hand over completions that it keeps aside.
    fn must_enter(&mut self) -> bool {
        let submissions = self.ring.submission();
        !submissions.is_empty() || submissions.taskrun() || submissions.cq_overflow()
    }

    /// Queues an entry, submitting and collecting if the queue is full.
    ///
    /// # Safety
    /// What the entry names must live until its completion has been collected.
    unsafe fn push(&mut self, entry: &squeue::Entry) {
        loop {
            // SAFETY: the caller's promise is the callee's duty.
            if unsafe { self.ring.submission().push(entry) }.is_ok() {
                return;
            }
            match self.ring.submit() {
                Ok(_) => {}
                // Make room; what was completed keeps its order behind what is being worked off.
                Err(error) if is_passing(&error) => self.completed.extend(self.ring.completion()),
                // All that is left of what io_uring_enter(2) lists is about the call itself: the descriptor, the
                // flags, who calls.
                Err(error) => panic!("io_uring refuses a well-formed submission: {error}"),
            }
        }
    }
}

impl Drop for Uring {
    fn drop(&mut self) {
        // The kernel takes a ring down later; the files' descriptions must not live on in it.
        if self.registration != FileRegistration::Off
            && let Err(error) = self.ring.submitter().unregister_files()
        {
            tracing::debug!("io_uring: files stay registered until the ring is gone: {error}");
        }
    }
}

fn build(submissions: u32, completions: u32) -> Result<IoUring, KernelError> {
    IoUring::builder()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .setup_taskrun_flag()
        .setup_submit_all()
        .setup_r_disabled()
        .setup_cqsize(completions)
        .build(submissions)
        .map_err(KernelError::Uring)
}

/// A segment that can be named without a list, which the kernel then need not copy and check.
fn whole(segment: libc::iovec) -> Option<(*mut u8, u32)> {
    Some((segment.iov_base.cast(), u32::try_from(segment.iov_len).ok()?))
}

/// Leaves the ring only what is needed once it is enabled, for good. Every kernel that has DEFER_TASKRUN (6.1) has this
/// (5.10).
fn restrict(ring: &IoUring) -> io::Result<()> {
    let operations = OPERATIONS.into_iter().map(Restriction::sqe_op);
    let registers = REGISTER_OPERATIONS.into_iter().map(Restriction::register_op);
    let flags = Restriction::sqe_flags_allowed(squeue::Flags::FIXED_FILE.bits());
    let mut all: Vec<Restriction> = operations.chain(registers).chain([flags]).collect();
    ring.submitter().register_restrictions(&mut all)
}

fn not_registered(error: &io::Error) {
    tracing::warn!("io_uring takes no registered files, so descriptors are used: {error}");
}

/// Whether the same call works later, perhaps after completions were collected: also without memory.
fn is_passing(error: &io::Error) -> bool {
    match Errno::from_io_error(error) {
        Some(Errno::INTR | Errno::AGAIN | Errno::BUSY | Errno::TIME | Errno::NOMEM) => true,
        Some(Errno::BADR) => {
            // The kernel had no memory to keep aside what the ring had no room for, and says so once.
            tracing::error!("io_uring has lost completions: their requests never end");
            true
        }
        Some(_) | None => false,
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    /// What the kernel answers to an entry that nothing here would queue.
    fn result_of(entry: squeue::Entry) -> Option<i64> {
        let Ok(mut uring) = Uring::new() else {
            return None;
        };
        // SAFETY: the entries of these tests are refused, or name constants, which live for ever.
        unsafe { uring.push(&entry.user_data(7)) };
        uring.wait(WaitMode::Block).expect("the ring can wait");
        uring.next().map(|completion| completion.result)
    }

    #[test]
    fn the_ring_does_nothing_but_transfers_and_polls() {
        let here = types::Fd(libc::AT_FDCWD);
        let path = c"/dev/null".as_ptr();
        for entry in [
            opcode::OpenAt::new(here, path).build(),
            opcode::Socket::new(libc::AF_INET, libc::SOCK_STREAM, 0).build(),
            opcode::UnlinkAt::new(here, path).build(),
            opcode::Nop::new().build(),
            // With commands, whoever has the ring sets options of sockets.
            opcode::UringCmd16::new(here, 0).build(),
            // What the kernel leaves to its workers.
            opcode::Fsync::new(here).build(),
            opcode::Fallocate::new(here, 1).build(),
        ] {
            if let Some(result) = result_of(entry.clone()) {
                assert_eq!(result, i64::from(-Errno::ACCESS.raw_os_error()), "{entry:?}");
            }
        }
    }

    /// As docs/sandbox.md says.
    #[test]
    fn a_ring_can_be_given_every_descriptor() {
        let Ok(mut uring) = Uring::new() else { return };
        let (socket, other) = std::os::unix::net::UnixStream::pair().unwrap();
        io::Write::write_all(&mut &other, b"x").unwrap();
        assert_eq!(uring.place(socket.as_fd()), UringFd::Registered(0));
        let mut byte = [0; 1];
        let read = opcode::Read::new(types::Fd(0), byte.as_mut_ptr(), 1).build();
        let read = read.flags(squeue::Flags::FIXED_FILE).user_data(7);
        // SAFETY: the byte lives until the completion, which is waited for.
        unsafe { uring.push(&read) };
        uring.wait(WaitMode::Block).unwrap();
        assert_eq!(uring.next().unwrap().result, 1);
        assert_eq!(byte, *b"x");
    }

    #[test]
    fn the_ring_takes_no_flags_but_that_of_registered_files() {
        let (mut byte, fd) = ([0; 1], types::Fd(-1));
        let entry = opcode::Read::new(fd, byte.as_mut_ptr(), 1).build().flags(squeue::Flags::ASYNC);
        if let Some(result) = result_of(entry) {
            assert_eq!(result, i64::from(-Errno::ACCESS.raw_os_error()));
        }
    }

    #[test]
    fn the_ring_cannot_be_widened_again() {
        let Ok(uring) = Uring::new() else { return };
        let mut open = [Restriction::sqe_op(opcode::OpenAt::CODE)];
        assert!(uring.ring.submitter().register_restrictions(&mut open).is_err());
        assert!(uring.ring.submitter().register_eventfd(0).is_err());
    }

    #[test]
    fn a_place_that_is_given_up_is_had_by_another_file() {
        let Ok(mut uring) = Uring::new() else { return };
        let file = rustix::fs::memfd_create("file", rustix::fs::MemfdFlags::CLOEXEC).expect("one");
        for _ in 0..3 * REGISTERED_MAX {
            let place = uring.place(file.as_fd());
            assert!(matches!(place, UringFd::Registered(_)), "{place:?}");
            uring.unregister_file(place);
        }
        let places: Vec<_> = (0..REGISTERED_MAX).map(|_| uring.place(file.as_fd())).collect();
        assert!(places.iter().all(|place| matches!(place, UringFd::Registered(_))));
        assert!(matches!(uring.place(file.as_fd()), UringFd::Descriptor(_)));
    }

    #[test]
    fn a_table_that_takes_no_more_files_still_lets_go_of_its_own() {
        let Ok(mut uring) = Uring::new() else { return };
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        assert!(matches!(uring.place(writer.as_fd()), UringFd::Registered(_)));
        drop(writer);
        uring.registration = FileRegistration::Closed;
        drop(uring);
        // The pipe ends when nobody has its other end any more.
        assert_eq!(rustix::io::read(&reader, &mut [0; 1]).unwrap(), 0);
    }
}
