//! An operation under way, and the queue where it is when it is over.
//!
//! Where it stands in the life of a request: a channel makes a request of an operation, hands it to the library or to the
//! thread that asks for block status, and finds it in its queue. It is used again then.
//!
//! Invariants: a request has one owner at a time: channel, library, queue. Threads: the queue is filled by threads of the
//! library, and emptied by the iothread of the channel, which is woken when it was empty. Limits: the channel has a bound
//! of requests, and the queue has no more; [`RANGE_BYTES_MAX`].

#![expect(unsafe_code, reason = "a list of memory for a C library goes from thread to thread")]
#![expect(clippy::vec_box, reason = "a request keeps its address while the library has it")]

use std::ffi::c_int;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Waker;

use block::{
    Buffers, ByteOffset, FailKind, IoFailure, Operation, Segment, StatusRuns, Tag, Unmap, ZeroCost,
};
use libc::iovec;
use rustix::io::Errno;

use crate::library::ZEROES_KEEP_SPACE;

/// The most bytes that are discarded or zeroed at once: the library makes an operation of each object at once, and has all
/// of them in memory.
const RANGE_BYTES_MAX: u64 = 1 << 30;

/// What is asked of the library.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LibraryCall {
    Read { offset: u64 },
    Write { offset: u64 },
    Discard { offset: u64, count: u64 },
    Zeroes { offset: u64, count: usize, flags: c_int },
    Flush,
}

/// Memory as the library takes it.
#[derive(Debug, Default)]
struct MemoryList(Vec<iovec>);

// SAFETY: the list is addresses and lengths. Whoever uses what they name has to be allowed to, and by the contract of
// `Channel::begin` that is whoever has the request.
unsafe impl Send for MemoryList {}

/// An operation under way.
#[derive(Debug)]
pub(crate) struct Request {
    tag: Tag,
    operation: Operation,
    memory: Buffers,
    list: MemoryList,
    /// How many bytes of a range are discarded or zeroed, and how many are now.
    done: u64,
    part: u64,
    /// What a block status has found.
    pub(crate) runs: StatusRuns,
    result: Result<u64, Errno>,
    queue: Option<Arc<CompletionQueue>>,
}

/// What comes after the end of a call.
#[derive(Debug)]
pub(crate) enum AfterCall {
    /// The rest of a range.
    Rest(Box<Request>),
    /// It is over, and can be used again.
    Over(Box<Request>, Result<(), IoFailure>),
}

impl Request {
    /// A request that asks for nothing.
    pub(crate) fn empty() -> Box<Self> {
        Box::new(Self {
            tag: Tag(0),
            operation: Operation::Flush,
            memory: Buffers::default(),
            list: MemoryList::default(),
            done: 0,
            part: 0,
            runs: StatusRuns::default(),
            result: Ok(0),
            queue: None,
        })
    }

    /// Makes it a request for that, which goes to that queue when it is over.
    pub(crate) fn set(&mut self, tag: Tag, operation: Operation, memory: &[Segment]) {
        self.memory.clear();
        memory.iter().for_each(|segment| self.memory.push(*segment));
        let vector = |segment: &Segment| iovec {
            iov_base: segment.base().as_ptr().cast(),
            iov_len: segment.count(),
        };
        self.list.0.clear();
        self.list.0.extend(memory.iter().filter(|segment| segment.count() > 0).map(vector));
        (self.tag, self.operation) = (tag, operation);
        (self.done, self.part) = (0, 0);
        self.runs.clear(0);
    }

    /// It is about to be handed over, and ends in that queue.
    pub(crate) fn join(&mut self, queue: &Arc<CompletionQueue>) {
        self.part = (self.bytes().end - self.bytes().start - self.done).min(RANGE_BYTES_MAX);
        queue.in_flight.fetch_add(1, Ordering::AcqRel);
        self.queue = Some(Arc::clone(queue));
    }

    /// It was not handed over.
    pub(crate) fn leave(&mut self, errno: Errno) {
        let queue = self.queue.take().expect("it has joined one");
        queue.in_flight.fetch_sub(1, Ordering::AcqRel);
        self.result = Err(errno);
    }

    /// It is over; leaves it in its queue.
    pub(crate) fn end(mut self: Box<Self>, result: Result<u64, Errno>) {
        self.result = result;
        let queue = self.queue.take().expect("it has joined one");
        queue.push(self);
    }

    /// The bytes that it is about.
    pub(crate) fn bytes(&self) -> Range<u64> {
        self.operation.extent().map_or(0..0, |it| it.start().0..it.start().0 + it.count().0)
    }

    /// How many records of block status its memory has room for.
    pub(crate) fn room_for_status(&self) -> usize {
        self.memory.count() / block::StatusRecord::BYTES
    }

    /// What is asked of the library next.
    pub(crate) fn call(&self) -> LibraryCall {
        let offset = self.bytes().start + self.done;
        match self.operation {
            Operation::Read(_) => LibraryCall::Read { offset },
            Operation::Write(..) => LibraryCall::Write { offset },
            Operation::Discard(..) => LibraryCall::Discard { offset, count: self.part },
            Operation::WriteZeroes(_, terms, _) => {
                let flags = if terms.unmap == Unmap::Keep { ZEROES_KEEP_SPACE } else { 0 };
                let count = usize::try_from(self.part).expect("a part is short");
                LibraryCall::Zeroes { offset, count, flags }
            }
            Operation::Flush => LibraryCall::Flush,
            Operation::Status(_) => panic!("a block status is no call that goes on by itself"),
        }
    }

    /// Whether the cluster has no way to do it: zeroes that keep their space are written.
    pub(crate) fn is_unsupported(&self) -> bool {
        let Operation::WriteZeroes(_, terms, _) = self.operation else { return false };
        terms.unmap == Unmap::Keep && terms.cost == ZeroCost::Fast
    }

    /// Whether it asks what the bytes are.
    pub(crate) fn is_status(&self) -> bool {
        matches!(self.operation, Operation::Status(_))
    }

    /// The list of its memory, and how many entries it has.
    pub(crate) fn list(&self) -> (*const iovec, c_int) {
        let count = c_int::try_from(self.list.0.len()).expect("a request has some segments");
        (self.list.0.as_ptr(), count)
    }

    /// What comes after a call that is over.
    pub(crate) fn after(mut self: Box<Self>) -> AfterCall {
        let start = self.bytes().start;
        let at = move |skip: u64| start + skip;
        let failed = move |skip, errno| IoFailure::Errno { offset: ByteOffset(at(skip)), errno };
        let result = match (self.operation, self.result) {
            (_, Err(errno)) => Err(failed(self.done, errno)),
            // It is shorter than it was.
            (Operation::Read(extent), Ok(count)) if count < extent.count().0 => {
                Err(IoFailure::EndOfFile { offset: ByteOffset(at(count)) })
            }
            (Operation::Discard(extent, _) | Operation::WriteZeroes(extent, _, _), Ok(_)) => {
                self.done += self.part;
                if self.done < extent.count().0 {
                    return AfterCall::Rest(self);
                }
                Ok(())
            }
            (Operation::Status(_), Ok(_)) => {
                let told = self.runs.write(&mut self.memory);
                told.map_err(|_no_room: FailKind| failed(0, Errno::OPNOTSUPP))
            }
            (Operation::Read(_) | Operation::Write(..) | Operation::Flush, Ok(_)) => Ok(()),
        };
        AfterCall::Over(self, result)
    }

    /// The identifier of the operation.
    pub(crate) fn tag(&self) -> Tag {
        self.tag
    }
}

/// Where the requests of a channel are that are over.
#[derive(Debug)]
pub(crate) struct CompletionQueue {
    over: Mutex<Vec<Box<Request>>>,
    waker: Waker,
    /// How many requests of all queues of the image are not over.
    in_flight: Arc<AtomicUsize>,
}

impl CompletionQueue {
    /// A queue whose owner is woken so.
    pub(crate) fn new(waker: &Waker, in_flight: &Arc<AtomicUsize>) -> Arc<Self> {
        let (over, in_flight) = (Mutex::default(), Arc::clone(in_flight));
        Arc::new(Self { over, waker: waker.clone(), in_flight })
    }

    fn push(&self, request: Box<Request>) {
        let mut over = self.over.lock().expect("no holder of this lock panics");
        let was_empty = over.is_empty();
        over.push(request);
        drop(over);
        self.in_flight.fetch_sub(1, Ordering::AcqRel);
        if was_empty {
            self.waker.wake_by_ref();
        }
    }

    /// Takes what is over; the list is empty.
    pub(crate) fn take(&self, into: &mut Vec<Box<Request>>) {
        assert!(into.is_empty(), "what was taken before is dealt with");
        std::mem::swap(&mut *self.over.lock().expect("no holder of this lock panics"), into);
    }
}
