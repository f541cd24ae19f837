//! I/O that a lane needs for itself: tables to load, what to copy before a write, metadata to write.
//!
//! Where it stands in the life of a request: a format that cannot answer at once holds the request and
//! runs its slow path, which submits [`InternalOperation`]s through the [`LaneContext`] it was opened with and waits for
//! their [`InternalIoFuture`]. The iothread takes them after each call of the lane, carries them out like
//! requests, and calls [`crate::Lane::resume`] when something is over.
//!
//! Invariants: an internal I/O owns its memory while it is under way; dropped unfinished, it never frees it,
//! because the kernel may be at it. Whoever stops waiting leaves it under way.
//! Threads: belongs to the iothread that opened the lane. Its waker may be used by any.

use std::cell::{Cell, RefCell};
use std::fmt::Debug;
use std::io;
use std::mem::ManuallyDrop;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use crate::answer_memory::MemoryCounter;
use crate::{
    AnswerBuffer, AnswerMemoryError, Buffers, Channel, ChannelId, ComputeThreads, FailKind,
    HostMemory, Lane, LaneError, Node, Operation, Outcome, Piece,
};

/// What a lane uses of its iothread: internal I/O, memory for its answers, and a waker that has it called. Clones share
/// it.
#[derive(Debug, Clone)]
pub struct LaneContext {
    shared: Rc<Shared>,
    waker: Waker,
    stage: NodeClaimState,
    /// Where what is written is compressed, if it is.
    compression: Option<Arc<dyn ComputeThreads>>,
}

/// Whether the nodes are claimed that a lane is opened on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NodeClaimState {
    Claimed,
    Unclaimed,
}

/// What all clones of a [`LaneContext`] share: I/O that was submitted and not taken, and the memory of answers.
#[derive(Debug, Default)]
struct Shared {
    submitted: RefCell<Vec<InternalOperation>>,
    kept: MemoryCounter,
    entered: RefCell<Vec<(ChannelId, Box<dyn Channel>)>>,
    numbers: ChannelIds,
}

/// The source of an iothread's [`ChannelId`]s. Clones share it.
#[derive(Debug, Default, Clone)]
pub struct ChannelIds(Rc<Cell<u32>>);

impl LaneContext {
    /// Of an iothread that calls [`crate::Lane::resume`] after the waker was used.
    pub fn new(waker: Waker) -> Self {
        Self::numbered(waker, &ChannelIds::default())
    }

    /// The same, of an iothread that numbers the channels of all its lanes so.
    pub fn numbered(waker: Waker, numbers: &ChannelIds) -> Self {
        let shared = Shared { numbers: numbers.clone(), ..Shared::default() };
        let stage = NodeClaimState::Claimed;
        Self { shared: Rc::new(shared), waker, stage, compression: None }
    }

    /// The same for a thread that owns no ring and looks at nodes before anybody claims them: it only reads,
    /// and what it reads may change at any time. Opening a lane may block.
    #[must_use]
    pub fn before_claim(&self) -> Self {
        Self { stage: NodeClaimState::Unclaimed, ..self.clone() }
    }

    /// Whether nodes may not be claimed.
    pub fn is_before_claim(&self) -> bool {
        self.stage == NodeClaimState::Unclaimed
    }

    /// The same for lanes whose writes are stored compressed where the format below can do that; these threads do it (QEMU's
    /// BDRV_REQ_WRITE_COMPRESSED, of all writes).
    #[must_use]
    pub fn compressing(&self, threads: &Arc<dyn ComputeThreads>) -> Self {
        Self { compression: Some(Arc::clone(threads)), ..self.clone() }
    }

    /// The same for lanes of other disks: those below a format, which decides itself what they are asked, and those to which
    /// a filter copies.
    #[must_use]
    pub fn plain(&self) -> Self {
        Self { compression: None, ..self.clone() }
    }

    /// The threads that compress what is written, if it is to be compressed.
    pub fn compression(&self) -> Option<&Arc<dyn ComputeThreads>> {
        self.compression.as_ref()
    }

    /// For lanes that neither have internal I/Os nor wait for other threads.
    pub fn idle() -> Self {
        Self::new(Waker::noop().clone())
    }

    /// Has the iothread carry out an operation on these pieces, which some lane has answered with, and
    /// on this memory, if it is a read or a write. It begins when the lane returns. Behind the end of a
    /// file a read finds zeroes ([`crate::EofPolicy`]). What the pieces of a read name of memory is copied at once, so
    /// its internal I/O has files alone.
    pub fn submit(
        &self,
        operation: Operation,
        pieces: &[Piece],
        memory: HostMemory,
    ) -> InternalIoFuture {
        let end = Rc::new(RefCell::new(CompletionCell { over: None, waker: None }));
        let done = InternalIoFuture { end: Rc::clone(&end) };
        let mut memory = ManuallyDrop::new(memory);
        let mut in_files = Vec::with_capacity(pieces.len());
        for piece in pieces {
            let is_read = matches!(operation, Operation::Read(_));
            match piece.in_memory().filter(|_| is_read) {
                Some(bytes) => {
                    let skip = usize::try_from(piece.skip).expect("64-bit host");
                    memory[skip..skip + bytes.len()].copy_from_slice(bytes);
                }
                None => in_files.push(piece.clone()),
            }
        }
        let errand = InternalOperation { operation, pieces: in_files, memory, end };
        self.shared.submitted.borrow_mut().push(errand);
        done
    }

    /// Counts memory for one answer, whose pieces name it with [`crate::Target::Memory`].
    pub fn keep(&self, memory: Rc<HostMemory>) -> Result<AnswerBuffer, AnswerMemoryError> {
        self.shared.kept.add(memory)
    }

    /// Counts memory of so many bytes that a write is copied into, or a part of one, whose pieces name it with
    /// [`crate::Target::Memory`].
    pub fn capture(&self, bytes: usize) -> Result<AnswerBuffer, AnswerMemoryError> {
        self.shared.kept.capture(bytes)
    }

    /// How many bytes answers keep now.
    pub fn answer_memory_bytes(&self) -> usize {
        self.shared.kept.bytes()
    }

    /// Has the iothread use a channel, which pieces name from now on ([`crate::Target::Channel`]). Only while a lane is
    /// opened; the channel goes with that lane.
    pub fn enter(&self, channel: Box<dyn Channel>) -> ChannelId {
        let id = ChannelId(self.shared.numbers.0.get());
        self.shared.numbers.0.set(id.0 + 1);
        self.shared.entered.borrow_mut().push((id, channel));
        id
    }

    /// For the iothread: takes the channels that were entered.
    pub fn take_entered(&self) -> Vec<(ChannelId, Box<dyn Channel>)> {
        self.shared.entered.take()
    }

    /// Has the iothread call [`crate::Lane::resume`] soon, and collect from the channels. Clones of it may be used by any thread.
    pub fn waker(&self) -> &Waker {
        &self.waker
    }

    /// For the iothread: whether there is anything to take.
    pub fn has_submitted(&self) -> bool {
        !self.shared.submitted.borrow().is_empty()
    }

    /// For the iothread: takes what was submitted, in order.
    pub fn take_submitted(&self, into: &mut Vec<InternalOperation>) {
        into.append(&mut self.shared.submitted.borrow_mut());
    }
}

/// An operation that a lane needs for itself, such as loading a table or copying on write, with the pieces and the
/// memory that it works on.
#[derive(Debug)]
#[must_use = "somebody waits for its end"]
pub struct InternalOperation {
    operation: Operation,
    pieces: Vec<Piece>,
    memory: ManuallyDrop<HostMemory>,
    end: Rc<RefCell<CompletionCell>>,
}

/// Where the outcome of one internal I/O waits for its future.
#[derive(Debug)]
struct CompletionCell {
    over: Option<(Outcome, HostMemory)>,
    waker: Option<Waker>,
}

impl InternalOperation {
    /// What is to be done.
    pub fn operation(&self) -> Operation {
        self.operation
    }

    /// Where: in files or nowhere.
    pub fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    /// With which memory; stays as it is until [`InternalOperation::finish`].
    pub fn memory(&mut self) -> Buffers {
        self.memory.name()
    }

    /// Tells whoever waits how it ended. Nothing uses the memory any more.
    pub fn finish(self, outcome: Outcome) {
        let Self { memory, end, .. } = self;
        let mut end = end.borrow_mut();
        end.over = Some((outcome, ManuallyDrop::into_inner(memory)));
        if let Some(waker) = end.waker.take() {
            waker.wake();
        }
    }
}

/// The completion of an [`InternalOperation`], as a future. Dropped, the operation goes on.
#[derive(Debug)]
#[must_use = "an errand may fail"]
pub struct InternalIoFuture {
    end: Rc<RefCell<CompletionCell>>,
}

impl Future for InternalIoFuture {
    type Output = Result<HostMemory, FailKind>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut end = self.end.borrow_mut();
        match end.over.take() {
            Some((Outcome::Done, memory)) => Poll::Ready(Ok(memory)),
            Some((Outcome::Failed(kind), _)) => Poll::Ready(Err(kind)),
            None => {
                end.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

/// Makes engines for control threads, which own no ring: to open an image, to inspect it, to close it.
pub trait EngineFactory: Debug + Send + Sync {
    /// An engine for the calling thread, without any lane yet. Made for one use and dropped after it.
    fn make(&self) -> io::Result<Box<dyn ControlEngine>>;
}

/// A function that opens a lane with the context that its engine gives it.
pub type LaneOpener<'a> = dyn FnMut(&LaneContext) -> Result<Box<dyn Lane>, LaneError> + 'a;

/// An engine for a thread that owns no ring: it carries out what its lanes submit, and calls those that were woken and
/// those that are due. No client brings requests to them. Belongs to the thread that made it.
pub trait ControlEngine: Debug {
    /// Opens a lane on that node. It is closed with the engine.
    fn open(&mut self, node: &Arc<dyn Node>, make: &mut LaneOpener<'_>) -> Result<(), LaneError>;

    /// Runs a future that uses those lanes to its end, and whatever they have begun meanwhile. Blocks.
    fn run(&mut self, future: Pin<&mut (dyn Future<Output = ()> + '_)>);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ByteCount, ByteOffset, DiskSize, Target};

    #[test]
    fn an_errand_takes_its_memory_along_and_brings_it_back() {
        let io = LaneContext::idle();
        let extent = DiskSize(ByteCount(4096)).check(ByteOffset(0), ByteCount(4)).unwrap();
        let mut done = io.submit(Operation::Read(extent), &[], HostMemory::zeroed(4));
        let mut context = Context::from_waker(Waker::noop());
        assert!(Pin::new(&mut done).poll(&mut context).is_pending());
        let mut errands = Vec::new();
        assert!(io.has_submitted());
        io.take_submitted(&mut errands);
        let mut errand = errands.pop().unwrap();
        errand.memory().copy_from(0, b"here");
        errand.finish(Outcome::Done);
        let Poll::Ready(Ok(memory)) = Pin::new(&mut done).poll(&mut context) else {
            panic!("it is over")
        };
        assert_eq!(&*memory, b"here");
    }

    #[test]
    fn what_is_in_memory_reaches_an_errand_at_once() {
        let io = LaneContext::idle();
        let lane_below = io.clone();
        let memory = lane_below.keep(Rc::new(HostMemory::of(b"from memory"))).unwrap();
        let target = Target::Memory { memory, offset: 5 };
        let pieces = [
            Piece { skip: 2, count: ByteCount(6), target },
            Piece { skip: 0, count: ByteCount(2), target: Target::Zeroes },
        ];
        let extent = DiskSize(ByteCount(4096)).check(ByteOffset(0), ByteCount(8)).unwrap();
        let read = Operation::Read(extent);
        let mut done = io.submit(read, &pieces, HostMemory::zeroed(8));
        let mut errands = Vec::new();
        io.take_submitted(&mut errands);
        let errand = errands.pop().unwrap();
        assert_eq!(errand.pieces(), &pieces[1..]);
        errand.finish(Outcome::Done);
        let mut context = Context::from_waker(Waker::noop());
        let Poll::Ready(Ok(memory)) = Pin::new(&mut done).poll(&mut context) else {
            panic!("it is over")
        };
        assert_eq!(&*memory, b"\0\0memory");
        drop(pieces);
        assert_eq!(io.answer_memory_bytes(), 0);
    }

    #[test]
    fn an_errand_ends_also_when_nobody_waits() {
        let io = LaneContext::idle();
        drop(io.submit(Operation::Flush, &[], HostMemory::zeroed(0)));
        let mut errands = Vec::new();
        io.take_submitted(&mut errands);
        errands.pop().unwrap().finish(Outcome::Failed(FailKind::Io));
    }
}
