//! A child of a node as one lane's tasks use it: reads, writes and syncs that are waited for.
//!
//! Where it stands: between a task and the lane below, which says where the bytes are, at once or later;
//! then an errand moves them, or the request that they are for ([`crate::parts`]).
//!
//! Invariants: a lane below that asks to be told of an answer is told once, also if nothing came of it, and
//! what it holds again is waited for. Limits: offsets below 2^63. Where the child ends is the child's affair.

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use block::{
    After, Answer, ByteCount, ByteOffset, DiskSize, Due, Durability, Extent, FailKind, HostMemory,
    Lane, LaneIo, Mapping, MemoryUse, Operation, Outcome, Piece, PieceList, StatusRecord,
    StatusRun, StatusRuns, Target, Token, Told, Unmap,
};

/// How many runs a file is asked for at once.
const EXTENTS_MAX: usize = 256;

/// One lane's handle on a child. Clones are the same.
#[derive(Debug, Clone)]
pub struct Storage(Rc<Shared>);

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
    /// Nobody waits for an answer under this name.
    Nothing,
    /// It is held.
    Held(Option<Waker>),
    /// It is held, and nobody wants the answer any more.
    Abandoned,
    /// It is answered.
    Answered(Operation, Result<(Vec<Piece>, MemoryUse, After), FailKind>),
}

/// The answer of the lane below: where the bytes of an operation are.
#[derive(Debug)]
pub struct Found {
    /// The operation as the lanes below leave it.
    pub operation: Operation,
    /// Where the bytes are.
    pub pieces: Vec<Piece>,
    /// How the memory of a write is used.
    pub memory: MemoryUse,
    /// There if the lane below asked to be told.
    pub telling: Option<Telling>,
}

/// What the lane below says to a question.
#[derive(Debug)]
pub enum Reply {
    /// Where the bytes are.
    Found(Found),
    /// That comes later.
    Held(Waiting),
}

/// What becomes of a question when the lane below was told.
#[derive(Debug)]
pub enum Next {
    /// It is over.
    Over(Outcome),
    /// The lane holds it again.
    Held(Waiting),
}

/// The lane below wants to be told what became of its answer. Dropped, it is told that nothing did: until
/// it is told it may keep others waiting.
#[derive(Debug)]
pub struct Telling(Option<Question>);

/// The lane below holds a question. Dropped, the answer is not used.
#[derive(Debug)]
pub struct Waiting(Option<Question>);

/// A question under its name, which is given back when nothing more comes of it.
#[derive(Debug)]
struct Question {
    storage: Storage,
    token: Token,
}

impl Telling {
    /// Tells the lane below.
    pub fn tell(mut self, outcome: Outcome) -> Next {
        self.0.take().expect("told once").tell(outcome)
    }
}

impl Drop for Telling {
    fn drop(&mut self) {
        if let Some(question) = self.0.take() {
            // What it holds again is abandoned.
            let _next = question.tell(Outcome::Failed(FailKind::Io));
        }
    }
}

impl Waiting {
    /// Takes the answer, if it is there.
    pub fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<Found, FailKind>> {
        let question = self.0.take().expect("an answer is taken once");
        let polled = question.storage.poll_answer(question.token, context);
        if polled.is_pending() {
            self.0 = Some(question);
        }
        polled
    }

    /// Waits for the answer.
    pub async fn answer(mut self) -> Result<Found, FailKind> {
        std::future::poll_fn(|context| self.poll(context)).await
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(Question { storage, token }) = self.0.take() {
            storage.abandon(token);
        }
    }
}

impl Question {
    fn tell(self, outcome: Outcome) -> Next {
        let state = &mut *self.storage.0.state.borrow_mut();
        match state.lane.carried_out(self.token, outcome) {
            Told::Over(outcome) => {
                state.give_back(self.token);
                Next::Over(outcome)
            }
            Told::Kept => {
                state.asked[self.token.0 as usize] = Asked::Held(None);
                let Self { ref storage, token } = self;
                Next::Held(Waiting(Some(Self { storage: storage.clone(), token })))
            }
        }
    }
}

impl State {
    fn give_back(&mut self, token: Token) {
        let place = token.0 as usize;
        self.asked[place] = Asked::Nothing;
        self.free.push(place);
    }
}

/// The extent of these bytes, on a disk that may grow.
pub fn extent(bytes: Range<u64>) -> Result<Extent, FailKind> {
    let count = bytes.end.checked_sub(bytes.start).ok_or(FailKind::OutOfRange)?;
    let largest = DiskSize(ByteCount(i64::MAX as u64));
    largest
        .check(ByteOffset(bytes.start), ByteCount(count))
        .map_err(|_too_large| FailKind::OutOfRange)
}

impl Storage {
    /// Over a lane; writes should be a multiple of that many bytes.
    pub fn new(lane: Box<dyn Lane>, io: &LaneIo, alignment: u64) -> Self {
        let (pieces, late, asked, free) =
            (PieceList::default(), Vec::new(), Vec::new(), Vec::new());
        let state = RefCell::new(State { lane, pieces, late, asked, free });
        Self(Rc::new(Shared { io: io.clone(), state, alignment }))
    }

    /// What the lane uses of its iothread.
    pub fn io(&self) -> &LaneIo {
        &self.0.io
    }

    /// What writes should be a multiple of, in bytes; a power of two, 512 at least.
    pub fn alignment(&self) -> u64 {
        self.0.alignment
    }

    /// Asks the lane below about a batch, at once. Whoever asked takes the answer of a question that is
    /// not over with [`Storage::reply`].
    pub fn map(&self, batch: &mut [Mapping], pieces: &mut PieceList) {
        let state = &mut *self.0.state.borrow_mut();
        state.lane.map(batch, pieces);
        for mapping in batch {
            if mapping.answer == Answer::Held {
                state.asked[mapping.token.0 as usize] = Asked::Held(None);
            }
        }
    }

    /// A name for a question, until it is given back.
    pub fn name(&self) -> Token {
        let state = &mut *self.0.state.borrow_mut();
        let place = state.free.pop().unwrap_or_else(|| {
            state.asked.push(Asked::Nothing);
            state.asked.len() - 1
        });
        Token(u32::try_from(place).expect("questions are few"))
    }

    /// Gives it back.
    pub fn give_back(&self, token: Token) {
        self.0.state.borrow_mut().give_back(token);
    }

    /// The answer to a question of a batch. Takes its name along, and gives it back when it is over.
    pub fn reply(&self, asked: &Mapping, pieces: &PieceList) -> Result<Reply, FailKind> {
        let Mapping { token, operation, answer, after, memory, .. } = *asked;
        match answer {
            Answer::Held => {
                Ok(Reply::Held(Waiting(Some(Question { storage: self.clone(), token }))))
            }
            Answer::Now(range) => {
                let pieces = pieces.get(range).to_vec();
                let telling = self.telling(token, after);
                Ok(Reply::Found(Found { operation, pieces, memory, telling }))
            }
            Answer::Refused(kind) => {
                self.give_back(token);
                Err(kind)
            }
        }
    }

    fn telling(&self, token: Token, after: After) -> Option<Telling> {
        match after {
            After::Tell => Some(Telling(Some(Question { storage: self.clone(), token }))),
            After::Over => {
                self.give_back(token);
                None
            }
        }
    }

    fn poll_answer(
        &self,
        token: Token,
        context: &mut Context<'_>,
    ) -> Poll<Result<Found, FailKind>> {
        let state = &mut *self.0.state.borrow_mut();
        let asked = &mut state.asked[token.0 as usize];
        match std::mem::replace(asked, Asked::Nothing) {
            Asked::Held(_) => {
                *asked = Asked::Held(Some(context.waker().clone()));
                Poll::Pending
            }
            Asked::Answered(operation, Ok((pieces, memory, After::Tell))) => {
                let telling = Some(Telling(Some(Question { storage: self.clone(), token })));
                Poll::Ready(Ok(Found { operation, pieces, memory, telling }))
            }
            Asked::Answered(operation, answer) => {
                state.give_back(token);
                Poll::Ready(answer.map(|(pieces, memory, _)| Found {
                    operation,
                    pieces,
                    memory,
                    telling: None,
                }))
            }
            Asked::Nothing | Asked::Abandoned => panic!("nobody asked under the name {token:?}"),
        }
    }

    /// Nobody waits for the answer to a question any more.
    fn abandon(&self, token: Token) {
        let is_held = {
            let asked = &mut self.0.state.borrow_mut().asked[token.0 as usize];
            let is_held = matches!(asked, Asked::Held(_));
            if is_held {
                *asked = Asked::Abandoned;
            }
            is_held
        };
        if is_held {
            return;
        }
        // What it was is not used.
        drop(self.poll_answer(token, &mut Context::from_waker(Waker::noop())));
    }

    /// Asks where the bytes of an operation are.
    pub fn ask(&self, operation: Operation) -> Result<Reply, FailKind> {
        let mut batch = [Mapping::new(self.name(), operation)];
        let mut pieces = std::mem::take(&mut self.0.state.borrow_mut().pieces);
        self.map(&mut batch, &mut pieces);
        let reply = self.reply(&batch[0], &pieces);
        pieces.clear();
        self.0.state.borrow_mut().pieces = pieces;
        reply
    }

    /// Asks, and waits for the answer.
    pub async fn resolve(&self, operation: Operation) -> Result<Found, FailKind> {
        match self.ask(operation)? {
            Reply::Found(found) => Ok(found),
            Reply::Held(waiting) => waiting.answer().await,
        }
    }

    /// Carries out an operation on memory of our own.
    pub async fn run(
        &self,
        operation: Operation,
        memory: HostMemory,
    ) -> Result<HostMemory, FailKind> {
        let mut memory = memory;
        self.in_rounds(operation, async |operation, pieces| {
            let given = std::mem::replace(&mut memory, HostMemory::zeroed(0));
            memory = self.0.io.submit(operation, pieces, given).await?;
            Ok(())
        })
        .await?;
        Ok(memory)
    }

    /// What these bytes are, in their order: all of them, or the first ones. Neighbours are different.
    pub async fn status(&self, bytes: Range<u64>) -> Result<Vec<StatusRun>, FailKind> {
        let mut runs = StatusRuns::default();
        self.in_rounds(Operation::Status(extent(bytes)?), async |_, pieces| {
            for piece in pieces {
                self.add_status(piece, &mut runs).await?;
            }
            Ok(())
        })
        .await?;
        let runs = runs.in_order();
        // Whoever asks goes on behind what was told.
        if runs.is_empty() { Err(FailKind::Io) } else { Ok(runs.to_vec()) }
    }

    /// Adds what the bytes of a piece are; of a file with many holes the first ones.
    async fn add_status(&self, piece: &Piece, runs: &mut StatusRuns) -> Result<(), FailKind> {
        let Target::File { .. } = piece.target else {
            runs.add(piece.skip, piece.count, piece.target.status());
            return Ok(());
        };
        let memory = HostMemory::zeroed(EXTENTS_MAX * StatusRecord::BYTES);
        let operation = Operation::Status(extent(0..piece.count.0)?);
        let there = [Piece { skip: 0, ..piece.clone() }];
        let memory = self.0.io.submit(operation, &there, memory).await?;
        let mut skip = piece.skip;
        for StatusRecord { count, status } in StatusRecord::read_all(&memory) {
            runs.add(skip, count, status);
            skip += count.0;
        }
        Ok(())
    }

    /// Carries out what the lane below answers, as often as it does.
    async fn in_rounds(
        &self,
        operation: Operation,
        mut carry_out: impl AsyncFnMut(Operation, &[Piece]) -> Result<(), FailKind>,
    ) -> Result<(), FailKind> {
        let mut found = self.resolve(operation).await?;
        loop {
            // What is carried out here is on memory that nobody changes.
            let Found { operation, pieces, telling, .. } = found;
            let result = carry_out(operation, &pieces).await;
            let Some(telling) = telling else { return result };
            let outcome = result.map_or_else(Outcome::Failed, |()| Outcome::Done);
            let waiting = match telling.tell(outcome) {
                Next::Over(Outcome::Done) => return result,
                Next::Over(Outcome::Failed(kind)) => return Err(kind),
                Next::Held(waiting) => waiting,
            };
            found = waiting.answer().await?;
            if let Err(kind) = result {
                return self.give_up(found, kind).await;
            }
        }
    }

    /// Lets the lane below end what has failed.
    async fn give_up(&self, mut found: Found, kind: FailKind) -> Result<(), FailKind> {
        loop {
            let Some(telling) = found.telling else { return Err(kind) };
            match telling.tell(Outcome::Failed(kind)) {
                Next::Over(_) => return Err(kind),
                Next::Held(waiting) => found = waiting.answer().await?,
            }
        }
    }

    /// Reads these bytes.
    pub async fn read(&self, bytes: Range<u64>) -> Result<HostMemory, FailKind> {
        let count =
            usize::try_from(bytes.end - bytes.start).map_err(|_too_large| FailKind::OutOfRange)?;
        self.run(Operation::Read(extent(bytes)?), HostMemory::zeroed(count)).await
    }

    /// Writes there; gives the memory back.
    pub async fn write(&self, at: u64, memory: HostMemory) -> Result<HostMemory, FailKind> {
        let end = at.checked_add(memory.len() as u64).ok_or(FailKind::OutOfRange)?;
        self.run(Operation::Write(extent(at..end)?, Durability::Cached), memory).await
    }

    /// Zeroes a range in the best way there is.
    pub async fn zero(&self, bytes: Range<u64>) -> Result<(), FailKind> {
        let zero = Operation::WriteZeroes(extent(bytes)?, Unmap::Allowed, Durability::Cached);
        self.run(zero, HostMemory::zeroed(0)).await.map(drop)
    }

    /// Gives the space of a range back, if the child can.
    pub async fn discard(&self, bytes: Range<u64>) -> Result<(), FailKind> {
        let discard = Operation::Discard(extent(bytes)?, Durability::Cached);
        self.run(discard, HostMemory::zeroed(0)).await.map(drop)
    }

    /// Makes durable what was written.
    pub async fn sync(&self) -> Result<(), FailKind> {
        self.run(Operation::Flush, HostMemory::zeroed(0)).await.map(drop)
    }

    /// When [`Storage::resume`] has something to do.
    pub fn due(&self) -> Option<Due> {
        self.0.state.borrow().lane.due()
    }

    /// Takes what the lane below answers late.
    pub fn resume(&self, now: Instant) {
        let (mut wakers, mut abandoned) = (Vec::new(), Vec::new());
        {
            let state = &mut *self.0.state.borrow_mut();
            let State { lane, pieces, late, asked, .. } = state;
            lane.resume(now, late, pieces);
            for Mapping { token, operation, answer, after, memory, .. } in late.drain(..) {
                let answer = match answer {
                    Answer::Now(range) => Ok((pieces.get(range).to_vec(), memory, after)),
                    Answer::Refused(kind) => Err(kind),
                    Answer::Held => panic!("a lane answers what it held, or does not mention it"),
                };
                let place = &mut asked[token.0 as usize];
                match std::mem::replace(place, Asked::Answered(operation, answer)) {
                    Asked::Held(waker) => wakers.extend(waker),
                    Asked::Abandoned => abandoned.push(token),
                    Asked::Nothing | Asked::Answered(..) => {
                        panic!("the lane below answers {token:?}, which it does not hold")
                    }
                }
            }
            pieces.clear();
        }
        wakers.into_iter().for_each(Waker::wake);
        abandoned.into_iter().for_each(|token| self.abandon(token));
    }

    /// Makes due at once what the lane below holds.
    pub fn release(&self) {
        self.0.state.borrow_mut().lane.release();
    }
}
