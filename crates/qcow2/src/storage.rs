//! A child of the image as one lane's tasks use it: reads, writes and syncs that are waited for.
//!
//! Where it stands: between a task and the lane below, which says where the bytes are, at once or later;
//! then an errand moves them.
//!
//! Limits: offsets below 2^63. Where the child ends is the child's affair.

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::Instant;

use block::{
    After, Answer, ByteCount, ByteOffset, DiskSize, Due, Durability, Extent, FailKind, HostMemory,
    Lane, LaneIo, Mapping, Operation, Piece, PieceList, Token, Unmap,
};

/// One lane's handle on a child. Clones are the same.
#[derive(Debug, Clone)]
pub(crate) struct Storage(Rc<Shared>);

#[derive(Debug)]
struct Shared {
    io: LaneIo,
    state: RefCell<State>,
    /// What writes should be a multiple of, in bytes.
    alignment: u64,
}

#[derive(Debug)]
struct State {
    lane: Box<dyn Lane>,
    pieces: PieceList,
    late: Vec<Mapping>,
    asked: Vec<Asked>,
    free: Vec<usize>,
}

/// What became of a question to the lane below.
#[derive(Debug)]
enum Asked {
    /// Nobody asks under this name.
    Nothing,
    /// It is held.
    Held(Option<Waker>),
    /// It is answered.
    Answered(Operation, Result<Vec<Piece>, FailKind>),
}

/// The extent of these bytes, on a disk that may grow.
pub(crate) fn extent(bytes: Range<u64>) -> Result<Extent, FailKind> {
    let count = bytes.end.checked_sub(bytes.start).ok_or(FailKind::OutOfRange)?;
    let largest = DiskSize(ByteCount(i64::MAX as u64));
    largest
        .check(ByteOffset(bytes.start), ByteCount(count))
        .map_err(|_too_large| FailKind::OutOfRange)
}

impl Storage {
    pub(crate) fn new(lane: Box<dyn Lane>, io: &LaneIo, alignment: u64) -> Self {
        let (pieces, late, asked, free) =
            (PieceList::default(), Vec::new(), Vec::new(), Vec::new());
        let state = RefCell::new(State { lane, pieces, late, asked, free });
        Self(Rc::new(Shared { io: io.clone(), state, alignment }))
    }

    /// What the lane uses of its iothread.
    pub(crate) fn io(&self) -> &LaneIo {
        &self.0.io
    }

    /// What writes should be a multiple of, in bytes; a power of two, 512 at least.
    pub(crate) fn alignment(&self) -> u64 {
        self.0.alignment
    }

    /// Asks the lane below about a batch, at once. What it holds is waited for by [`Storage::answer`].
    pub(crate) fn map(&self, batch: &mut [Mapping], pieces: &mut PieceList) {
        let state = &mut *self.0.state.borrow_mut();
        state.lane.map(batch, pieces);
        for mapping in batch {
            match mapping.answer {
                Answer::Held => {
                    state.asked[mapping.token.0 as usize] = Asked::Held(None);
                }
                Answer::Now(range) if mapping.after == After::Tell => {
                    self.0.io.let_go(pieces.get(range));
                    // A format below, which would have to be told.
                    mapping.answer = Answer::Refused(FailKind::Unsupported);
                }
                Answer::Now(_) | Answer::Refused(_) => {}
            }
        }
    }

    /// A name for a question, until it is given back.
    pub(crate) fn name(&self) -> Token {
        let state = &mut *self.0.state.borrow_mut();
        let place = state.free.pop().unwrap_or_else(|| {
            state.asked.push(Asked::Nothing);
            state.asked.len() - 1
        });
        Token(u32::try_from(place).expect("questions are few"))
    }

    /// Gives it back.
    pub(crate) fn give_back(&self, token: Token) {
        let state = &mut *self.0.state.borrow_mut();
        let place = token.0 as usize;
        state.asked[place] = Asked::Nothing;
        state.free.push(place);
    }

    /// Waits for the answer to a question that is held, and gives its name back.
    pub(crate) async fn answer(&self, token: Token) -> Result<(Operation, Vec<Piece>), FailKind> {
        let place = token.0 as usize;
        let answered = std::future::poll_fn(|context| {
            let asked = &mut self.0.state.borrow_mut().asked[place];
            match std::mem::replace(asked, Asked::Nothing) {
                Asked::Answered(operation, answer) => Poll::Ready((operation, answer)),
                Asked::Held(_) => {
                    *asked = Asked::Held(Some(context.waker().clone()));
                    Poll::Pending
                }
                Asked::Nothing => panic!("nobody asked under the name {place}"),
            }
        });
        let (operation, answer) = answered.await;
        self.give_back(token);
        Ok((operation, answer?))
    }

    /// Asks where the bytes of an operation are.
    pub(crate) async fn resolve(
        &self,
        operation: Operation,
    ) -> Result<(Operation, Vec<Piece>), FailKind> {
        let token = self.name();
        let mut batch = [Mapping::new(token, operation)];
        let mut pieces = std::mem::take(&mut self.0.state.borrow_mut().pieces);
        self.map(&mut batch, &mut pieces);
        let [mapping] = batch;
        let answer = match mapping.answer {
            Answer::Held => None,
            Answer::Refused(kind) => Some(Err(kind)),
            Answer::Now(range) => Some(Ok((mapping.operation, pieces.get(range).to_vec()))),
        };
        pieces.clear();
        self.0.state.borrow_mut().pieces = pieces;
        match answer {
            None => self.answer(token).await,
            Some(answer) => {
                self.give_back(token);
                answer
            }
        }
    }

    /// Carries out an operation on memory of our own.
    pub(crate) async fn run(
        &self,
        operation: Operation,
        memory: HostMemory,
    ) -> Result<HostMemory, FailKind> {
        let (operation, pieces) = self.resolve(operation).await?;
        self.0.io.submit(operation, &pieces, memory).await
    }

    pub(crate) async fn read(&self, bytes: Range<u64>) -> Result<HostMemory, FailKind> {
        let count =
            usize::try_from(bytes.end - bytes.start).map_err(|_too_large| FailKind::OutOfRange)?;
        self.run(Operation::Read(extent(bytes)?), HostMemory::zeroed(count)).await
    }

    pub(crate) async fn write(&self, at: u64, memory: HostMemory) -> Result<HostMemory, FailKind> {
        let end = at.checked_add(memory.len() as u64).ok_or(FailKind::OutOfRange)?;
        self.run(Operation::Write(extent(at..end)?, Durability::Cached), memory).await
    }

    /// Zeroes a range in the best way there is.
    pub(crate) async fn zero(&self, bytes: Range<u64>) -> Result<(), FailKind> {
        let zero = Operation::WriteZeroes(extent(bytes)?, Unmap::Allowed, Durability::Cached);
        self.run(zero, HostMemory::zeroed(0)).await.map(drop)
    }

    /// Gives the space of a range back, if the child can.
    pub(crate) async fn discard(&self, bytes: Range<u64>) -> Result<(), FailKind> {
        let discard = Operation::Discard(extent(bytes)?, Durability::Cached);
        self.run(discard, HostMemory::zeroed(0)).await.map(drop)
    }

    /// Makes durable what was written.
    pub(crate) async fn sync(&self) -> Result<(), FailKind> {
        self.run(Operation::Flush, HostMemory::zeroed(0)).await.map(drop)
    }

    /// When [`Storage::resume`] has something to do.
    pub(crate) fn due(&self) -> Option<Due> {
        self.0.state.borrow().lane.due()
    }

    /// Takes what the lane below answers late.
    pub(crate) fn resume(&self, now: Instant) {
        let mut wakers = Vec::new();
        {
            let state = &mut *self.0.state.borrow_mut();
            let State { lane, pieces, late, asked, .. } = state;
            lane.resume(now, late, pieces);
            for mapping in late.drain(..) {
                let answer = match mapping.answer {
                    Answer::Now(range) if mapping.after == After::Tell => {
                        self.0.io.let_go(pieces.get(range));
                        Err(FailKind::Unsupported)
                    }
                    Answer::Now(range) => Ok(pieces.get(range).to_vec()),
                    Answer::Refused(kind) => Err(kind),
                    Answer::Held => panic!("a lane answers what it held, or does not mention it"),
                };
                let place = &mut asked[mapping.token.0 as usize];
                let answered = Asked::Answered(mapping.operation, answer);
                if let Asked::Held(Some(waker)) = std::mem::replace(place, answered) {
                    wakers.push(waker);
                }
            }
            pieces.clear();
        }
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Makes due at once what the lane below holds.
    pub(crate) fn release(&self) {
        self.0.state.borrow_mut().lane.release();
    }
}
