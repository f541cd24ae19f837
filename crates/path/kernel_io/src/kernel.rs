//! One iothread's way to the kernel: operations, waiting, and the events that come back.
//!
//! Where it stands in the life of a request: `request_path` submits operations, the iothread's
//! event loop waits and hands the events back to it.
//!
//! Invariants: what an operation works on is parked until its last completion; short transfers
//! and interrupted calls are carried on here, so an event is final. Threads: belongs to the
//! thread that made it (SINGLE_ISSUER); only [`EngineKernel::wait`] blocks.
//! Limits: the caller bounds the operations in flight.
//! Files that live in memory are read and written inline (`inline`), which bounds each turn.
//! Not here: which engine a file is given (`io_engine`), descriptors that are watched (`polls`), sockets (`streams`).

#![expect(unsafe_code, reason = "a submission names memory that the kernel will use")]

mod io_engine;
mod polls;
mod start;
mod streams;
mod withdraw;

use std::collections::VecDeque;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Arc;

use block::{ByteCount, ByteOffset, Durability, FileId, Medium, Segment};
use rustix::io::Errno;

use self::io_engine::{BlockingCallPolicy, IoEngine, IothreadFile};
use crate::allocation::{DiscardOrZeroAttempt, follow};
use crate::blocking_calls::{iovecs, perform};
use crate::completion_kind::{CompletionVerdict, classify};
use crate::extent::FileExtent;
use crate::guest_notifier::GuestNotifier;
use crate::in_flight::{
    EngineOrWorker, InFlightOp, InFlightTable, IoKind, PollOwner, SlotContent, SlotIndex,
    TransferProgress,
};
use crate::inline::{self, InlineQueue, ServedRings};
use crate::linux_aio::LinuxAio;
use crate::reactor::{Completion, Reactor, ReactorKind};
use crate::uring::{UringFd, UringTransfer};
use crate::workers::Workers;
use crate::{
    BounceBuffer, DiscardOrZeroGoal, EngineKernel, FairShareLimit, FileTable, Interest, IoFailure,
    PartyQueues, StreamTransfer, Tag, WaitMode,
};

/// Transfers through the page cache that io_uring has at once: for one file 32, if it is alone. For reads the kernel reads ahead
/// in the iothread, which sleeps if the device has no tag left, so a device that hangs must not get to that.
const CACHED_READS: FairShareLimit = FairShareLimit::new(32, 8);

/// What the kernel reports to an iothread: an operation finished, or a descriptor is ready.
#[derive(Debug)]
pub enum Event {
    /// An operation is over, completely or with a failure.
    Finished {
        /// Whose.
        tag: Tag,
        /// How.
        result: Result<(), IoFailure>,
        /// The bounce buffer it worked on, if it did.
        bounce: Option<BounceBuffer>,
    },
    /// What a file has at a place.
    Extent {
        /// Whose operation it is.
        tag: Tag,
        /// It.
        found: FileExtent,
    },
    /// A polled descriptor is ready for what it is polled for, or was a moment ago.
    Ready {
        /// Whose.
        tag: Tag,
    },
    /// The same, and all that it is ready for is to be written: there is nothing to read, and it has not failed.
    Writable {
        /// Whose.
        tag: Tag,
    },
    /// A transfer on a socket is over; it says how.
    Transferred {
        /// Whose.
        tag: Tag,
        /// It.
        transfer: StreamTransfer,
    },
    /// A cancelled poll is over: no [`Event::Ready`] of it comes any more.
    PollEnded {
        /// Whose.
        tag: Tag,
    },
}

/// io_uring, epoll or an eventfd could not be created.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    /// No io_uring.
    #[error("io_uring is not available")]
    Uring(#[source] io::Error),
    /// Not even epoll.
    #[error("epoll is not available")]
    Epoll(#[source] io::Error),
    /// No eventfd for the workers.
    #[error("no eventfd for worker threads")]
    Workers(#[source] io::Error),
}

/// One iothread's kernel interface: submits file I/O (io_uring, Linux AIO, worker threads), waits, and returns events.
#[derive(Debug)]
pub struct Kernel {
    reactor: ManuallyDrop<Reactor>,
    waits_with: ReactorKind,
    calls: BlockingCallPolicy,
    ringer: GuestNotifier,
    in_flight: ManuallyDrop<InFlightTable>,
    table: Arc<FileTable>,
    files: Vec<Option<IothreadFile>>,
    /// How many files had been taken out of the table when those here were last looked at.
    removed: u64,
    inline: InlineQueue,
    /// Transfers through the page cache that wait for their file's turns at the ring.
    cached: PartyQueues<SlotIndex>,
    /// Made when a file first needs it.
    native: Option<LinuxAio>,
    /// Their threads are started when an operation first needs them.
    workers: ManuallyDrop<Workers>,
    /// An empty list, kept for its room.
    done: Vec<Completion>,
    events: VecDeque<Event>,
}

impl Kernel {
    fn with(
        table: Arc<FileTable>,
        (reactor, waits_with): (Reactor, ReactorKind),
        calls: BlockingCallPolicy,
    ) -> Result<Self, KernelError> {
        // Made at once: there may be no descriptor left when an operation first needs it.
        let workers = Workers::new().map_err(KernelError::Workers)?;
        let notifier = workers.notifier().as_raw_fd();
        let mut kernel = Self {
            reactor: ManuallyDrop::new(reactor),
            waits_with,
            calls,
            ringer: match calls {
                BlockingCallPolicy::OnWorkers => GuestNotifier::of_host(),
                BlockingCallPolicy::OnThisThread => GuestNotifier::that_may_sleep(),
            },
            in_flight: ManuallyDrop::new(InFlightTable::default()),
            table,
            files: Vec::new(),
            removed: 0,
            inline: InlineQueue::default(),
            cached: PartyQueues::new(CACHED_READS),
            native: None,
            workers: ManuallyDrop::new(workers),
            done: Vec::new(),
            events: VecDeque::new(),
        };
        kernel.watch(notifier, Interest::Read, PollOwner::Workers);
        Ok(kernel)
    }

    /// What it waits with.
    pub fn waits_with(&self) -> &ReactorKind {
        &self.waits_with
    }
}

impl EngineKernel for Kernel {
    fn medium(&mut self, id: FileId) -> &Medium {
        self.iothread_file(id).file.medium()
    }

    fn read(
        &mut self,
        file: FileId,
        offset: ByteOffset,
        memory: impl Iterator<Item = Segment>,
        tag: Tag,
    ) {
        self.start(IoKind::Read, file, offset, memory, None, tag);
    }

    fn write(
        &mut self,
        file: FileId,
        offset: ByteOffset,
        durability: Durability,
        memory: impl Iterator<Item = Segment>,
        tag: Tag,
    ) {
        self.start(IoKind::Write(durability), file, offset, memory, None, tag);
    }

    fn read_bounce(
        &mut self,
        file: FileId,
        offset: ByteOffset,
        count: usize,
        buffer: BounceBuffer,
        tag: Tag,
    ) {
        assert!(count <= buffer.size().bytes(), "{count} bytes do not fit into {buffer:?}");
        let memory = std::iter::once(buffer.segment(count));
        self.start(IoKind::Read, file, offset, memory, Some(buffer), tag);
    }

    fn write_bounce(
        &mut self,
        file: FileId,
        offset: ByteOffset,
        durability: Durability,
        count: usize,
        buffer: BounceBuffer,
        tag: Tag,
    ) {
        assert!(count <= buffer.size().bytes(), "{count} bytes do not fit into {buffer:?}");
        let memory = std::iter::once(buffer.segment(count));
        self.start(IoKind::Write(durability), file, offset, memory, Some(buffer), tag);
    }

    fn sync(&mut self, file: FileId, tag: Tag) {
        self.start(IoKind::Sync, file, ByteOffset(0), std::iter::empty(), None, tag);
    }

    fn allocate(
        &mut self,
        file: FileId,
        offset: ByteOffset,
        count: ByteCount,
        how: DiscardOrZeroGoal,
        tag: Tag,
    ) {
        let open = &self.iothread_file(file).file;
        match DiscardOrZeroAttempt::begin(how, open.kind(), count.0, open.missing_methods()) {
            Some(space) => {
                self.start(IoKind::Space(space), file, offset, std::iter::empty(), None, tag);
            }
            None => {
                let result = Err(IoFailure::Errno { offset, errno: Errno::OPNOTSUPP });
                self.events.push_back(Event::Finished { tag, result, bounce: None });
            }
        }
    }

    fn find_extent(&mut self, file: FileId, offset: ByteOffset, count: ByteCount, tag: Tag) {
        match self.iothread_file(file).file.known_extent(offset, count) {
            Ok(found) => self.events.push_back(Event::Extent { tag, found }),
            Err(query) => {
                self.start(IoKind::Extent(query), file, offset, std::iter::empty(), None, tag);
            }
        }
    }

    fn forget_files(&mut self) {
        self.close_removed_files();
    }

    fn poll(&mut self, fd: BorrowedFd<'_>, interest: Interest, tag: Tag) {
        self.watch(fd.as_raw_fd(), interest, PollOwner::Caller(tag));
    }

    fn cancel_poll(&mut self, tag: Tag) {
        self.unwatch(tag);
    }

    fn ring(&mut self, fd: BorrowedFd<'_>) -> io::Result<()> {
        self.ringer.ring(fd)
    }

    fn share_inline(&mut self, share: ServedRings) {
        self.inline.budget().share(share);
    }

    fn wait(&mut self, wait: WaitMode) -> io::Result<()> {
        self.inline.budget().begin();
        self.work_inline();
        self.submit_native();
        let stuck = self.native.as_ref().is_some_and(LinuxAio::is_stuck);
        let idle = self.events.is_empty() && self.inline.is_empty() && !stuck;
        self.reactor.wait(if idle { wait } else { WaitMode::Poll })?;
        while let Some(completion) = self.reactor.next() {
            self.complete(completion)?;
        }
        Ok(())
    }

    fn has_pending(&mut self) -> bool {
        !self.events.is_empty()
            || !self.inline.is_empty()
            || self.native.as_ref().is_some_and(LinuxAio::can_submit)
            || self.reactor.has_pending()
    }

    fn inline_waiting(&self) -> usize {
        self.inline.waiting()
    }

    fn has_stale_flag(&self) -> bool {
        self.reactor.has_stale_flag()
    }

    fn next_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    fn next_finished(&mut self) -> Option<(Tag, Result<(), IoFailure>, Option<BounceBuffer>)> {
        let finished = self.events.pop_front_if(|event| matches!(event, Event::Finished { .. }));
        let Some(Event::Finished { tag, result, bounce }) = finished else { return None };
        Some((tag, result, bounce))
    }
}

impl Kernel {
    fn submit_native(&mut self) {
        if let Some(native) = &mut self.native {
            let mut refused = std::mem::take(&mut self.done);
            native.submit(&mut refused);
            self.conclude_all(refused);
        }
    }

    fn conclude_all(&mut self, mut done: Vec<Completion>) {
        for Completion { index, result, .. } in done.drain(..) {
            if self.conclude(index, result) == RetryDecision::Retry {
                self.submit(index);
            }
        }
        self.done = done;
    }

    fn start(
        &mut self,
        work: IoKind,
        file: FileId,
        offset: ByteOffset,
        memory: impl Iterator<Item = Segment>,
        bounce: Option<BounceBuffer>,
        tag: Tag,
    ) {
        let parked = InFlightOp {
            work,
            tag,
            file,
            offset,
            bounce,
            retries: 0,
            stage: EngineOrWorker::Tries,
        };
        let index = self.in_flight.park(parked, memory);
        self.submit(index);
    }

    /// Starts what is left of a parked operation.
    fn submit(&mut self, index: SlotIndex) {
        let Some(SlotContent::Operation(parked)) = self.in_flight.get(index) else {
            panic!("slot {} holds no operation", index.0)
        };
        let (work, file) = (parked.work, parked.file);
        let IothreadFile { inline, way, .. } = *self.iothread_file(file);
        match way {
            _ if inline && inline::suits(work) => {
                if self.inline.overtakes(work, self.in_flight.memory(index)) {
                    self.perform_inline(index, InlineAmount::All);
                } else {
                    self.inline.push(index);
                }
                self.work_inline();
            }
            IoEngine::ByThread => {
                while self.perform(index, InlineAmount::All) == RetryDecision::Retry {}
            }
            IoEngine::Uring(..) | IoEngine::Native | IoEngine::Workers => {
                self.push_operation(index, way)
            }
        }
    }

    /// Does as much inline as this turn has room for.
    fn work_inline(&mut self) {
        while let Some(index) = self.inline.next() {
            self.perform_inline(index, InlineAmount::OfTurn);
        }
    }

    fn perform_inline(&mut self, index: SlotIndex, amount: InlineAmount) {
        if self.perform(index, amount) == RetryDecision::Retry {
            self.go_on_inline(index);
        }
    }

    /// Does as much of an operation with one call of this thread.
    fn perform(&mut self, index: SlotIndex, amount: InlineAmount) -> RetryDecision {
        let Some(SlotContent::Operation(parked)) = self.in_flight.get(index) else {
            panic!("slot {} holds no operation", index.0)
        };
        let (work, file, offset) = (parked.work, parked.file, parked.offset);
        let iothread_file = self.files[file.0 as usize].as_ref();
        let file = &iothread_file.expect("it was opened when the operation was submitted").file;
        let left = self.in_flight.memory(index);
        let memory = match amount {
            InlineAmount::All => left,
            InlineAmount::OfTurn => self.inline.charge(work, left),
        };
        // SAFETY: the list of segments is the slot's or the turn's; guest memory is mapped
        // until its request has completed (`Segment::new`), a bounce buffer is parked.
        let result = unsafe { perform(work, file.as_fd(), offset, iovecs(memory)) };
        self.conclude(index, result)
    }

    /// What was begun inline goes on there, unless what is left would take too long.
    fn go_on_inline(&mut self, index: SlotIndex) {
        let Some(SlotContent::Operation(InFlightOp { work, file, .. })) = self.in_flight.get(index)
        else {
            panic!("slot {} holds no operation", index.0)
        };
        let (work, file) = (*work, *file);
        if inline::suits(work) {
            self.inline.push(index);
        } else {
            let way = self.iothread_file(file).way;
            self.push_operation(index, way);
        }
    }

    /// Hands an operation to its file's engine, or to the workers if that one cannot do it, or not without waiting.
    fn push_operation(&mut self, index: SlotIndex, way: IoEngine) {
        let Some(SlotContent::Operation(parked)) = self.in_flight.get(index) else {
            panic!("slot {} holds no operation", index.0)
        };
        let (work, id, offset, stage) = (parked.work, parked.file, parked.offset, parked.stage);
        let memory = self.in_flight.memory(index);
        match way {
            IoEngine::Uring(place, transfers) if stage != EngineOrWorker::Waits => {
                let bytes = || memory.iter().map(|segment| segment.count()).sum();
                match UringTransfer::new(work, transfers, bytes) {
                    Some(transfer) if transfer.is_cached() => return self.push_cached(index, id),
                    Some(transfer) => return self.push_transfer(index, transfer, place),
                    None => {}
                }
            }
            IoEngine::Native if stage != EngineOrWorker::Waits && LinuxAio::suits(work) => {
                let memory = iovecs(memory);
                let file = self.files[id.0 as usize].as_ref().expect("the file is open");
                let native = self.native.as_mut().expect("made with the file");
                // SAFETY: see `push_transfer`.
                unsafe { native.push(index, work, (id, &file.file), offset, memory) };
                return;
            }
            IoEngine::Uring(..) | IoEngine::Native | IoEngine::Workers | IoEngine::ByThread => {}
        }
        let memory = iovecs(memory);
        let file = Arc::clone(&self.iothread_file(id).file);
        // SAFETY: see `push_transfer`.
        unsafe { self.workers.push(index, work, (id, file), offset, memory) };
    }

    /// Queues a transfer for the ring.
    fn push_transfer(&mut self, index: SlotIndex, transfer: UringTransfer, place: UringFd) {
        let Some(SlotContent::Operation(InFlightOp { offset, .. })) = self.in_flight.get(index)
        else {
            panic!("slot {} holds no operation", index.0)
        };
        let offset = *offset;
        let memory = iovecs(self.in_flight.memory(index));
        let Reactor::Uring(uring) = &mut *self.reactor else {
            panic!("the file was given an engine there is")
        };
        // SAFETY: what each engine demands: the list of segments is the slot's and stays untouched until
        // the completion; guest memory is mapped until its request has completed
        // (`Segment::new`), a bounce buffer is parked in the slot; `files` keeps the file open.
        unsafe { uring.push_transfer(index, transfer, place, offset, memory) };
    }

    /// Has a transfer through the page cache wait for its file's turn.
    fn push_cached(&mut self, index: SlotIndex, file: FileId) {
        self.cached.push(file.0 as usize, index);
        self.take_turns();
    }

    /// Queues the transfers through the page cache whose files have turns.
    fn take_turns(&mut self) {
        while let Some((file, index)) = self.cached.take() {
            let Some(SlotContent::Operation(parked)) = self.in_flight.get(index) else {
                panic!("slot {} holds no operation", index.0)
            };
            parked.stage = EngineOrWorker::TakesTurn;
            let way = self.files[file].as_ref().expect("the file is open").way;
            let IoEngine::Uring(place, _) = way else { panic!("only the ring's files take turns") };
            let transfer = match parked.work {
                IoKind::Write(durability) => UringTransfer::CachedWrite(durability),
                IoKind::Read | IoKind::Sync | IoKind::Space(_) | IoKind::Extent(_) => {
                    UringTransfer::CachedRead
                }
            };
            self.push_transfer(index, transfer, place);
        }
    }

    fn complete(&mut self, completion: Completion) -> io::Result<()> {
        let index = completion.index;
        match self.in_flight.get(index) {
            Some(SlotContent::Poll(poll)) => {
                let poll = *poll;
                return self.complete_poll(poll, completion);
            }
            Some(SlotContent::Operation(parked)) => {
                if parked.stage == EngineOrWorker::TakesTurn {
                    parked.stage = EngineOrWorker::Tries;
                    let file = parked.file.0 as usize;
                    self.cached.done(file);
                    self.take_turns();
                }
                if self.conclude(index, completion.result) == RetryDecision::Retry {
                    self.submit(index);
                }
            }
            Some(SlotContent::Transfer(_)) => self.complete_transfer(index, completion.result),
            None => panic!("the kernel completed slot {} twice", index.0),
        }
        Ok(())
    }

    /// Works a result off: the operation is over and an event, or has to be started again.
    fn conclude(&mut self, index: SlotIndex, result: i64) -> RetryDecision {
        let Some(SlotContent::Operation(parked)) = self.in_flight.get(index) else {
            panic!("slot {} holds no operation", index.0)
        };
        if let IoKind::Extent(query) = parked.work {
            let (tag, found) = (parked.tag, FileExtent::of_result(result));
            let file = self.files[parked.file.0 as usize].as_ref().expect("it was opened before");
            let found = file.file.found_extent(parked.offset, query, found);
            self.in_flight.take(index);
            self.events.push_back(Event::Extent { tag, found });
            return RetryDecision::Done;
        }
        let result = match (classify(parked, result), parked.work) {
            (CompletionVerdict::Retry, _) => return RetryDecision::Retry,
            (CompletionVerdict::Partial(count), _) => match self.in_flight.advance(index, count) {
                TransferProgress::Partial => return RetryDecision::Retry,
                TransferProgress::Complete => Ok(()),
            },
            (CompletionVerdict::Final(result), IoKind::Space(space)) => {
                let iothread_file = self.files[parked.file.0 as usize].as_ref();
                let file =
                    &iothread_file.expect("it was opened when the operation was submitted").file;
                file.known_data().forget();
                match follow(parked, space, result, file) {
                    Some(result) => result,
                    None => return RetryDecision::Retry,
                }
            }
            (CompletionVerdict::Final(result), _) => result,
        };
        let InFlightOp { tag, bounce, .. } = self.in_flight.take(index);
        self.events.push_back(Event::Finished { tag, result, bounce });
        RetryDecision::Done
    }
}

/// Whether an operation is finished or has to be started again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "an operation that is not over has to be started again"]
enum RetryDecision {
    Done,
    Retry,
}

/// How much of an inline operation one call does: all that is left, or what the turn has room for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum InlineAmount {
    All,
    OfTurn,
}

impl Drop for Kernel {
    fn drop(&mut self) {
        self.cancel_transfers();
        while self.in_flight.operations() > 0 {
            if let Err(error) = self.wait(WaitMode::Block) {
                let operations = self.in_flight.operations();
                tracing::error!("{error}: {operations} operations stay in flight, leaked");
                // Workers and Linux AIO would wait for what they have.
                let _leaked = ManuallyDrop::new(self.native.take());
                return;
            }
            self.events.clear();
        }
        // SAFETY: dropped once, here, and not used afterwards.
        unsafe { ManuallyDrop::drop(&mut self.reactor) };
        // SAFETY: as above.
        unsafe { ManuallyDrop::drop(&mut self.workers) };
        // SAFETY: as above; no operation is in flight, so the kernel touches nothing in it.
        unsafe { ManuallyDrop::drop(&mut self.in_flight) };
    }
}
