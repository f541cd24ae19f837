//! A child of a node as one lane's tasks use it: reads, writes and syncs that are waited for.
//!
//! Where it stands: between a task and the lane below, which says where the bytes are, at once or later;
//! then an internal I/O moves them, or the request that they are for ([`crate::request_parts`]).
//!
//! Invariants: a lane below that asks to be told of an answer is told once, also if nothing came of it, and
//! what it holds again is waited for. Limits: offsets below 2^63. Where the child ends is the child's affair.

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use block::{
    AfterPiecesAction, Answer, BatchPieces, BufferCopyPolicy, ByteCount, ByteOffset, DiskSize,
    Durability, Extent, FailKind, HostMemory, Lane, LaneCompletionDecision, LaneContext,
    LocateQuery, Mapping, Operation, Outcome, Piece, StatusRecord, StatusRun, StatusRuns, Target,
    Token, WakeTime, ZeroTerms,
};

/// How many runs a file is asked for at once.
const EXTENTS_MAX: usize = 256;

/// A child node as the tasks of one lane use it: async reads, writes and syncs. Clones share it.
#[derive(Debug, Clone)]
pub struct AsyncChild(Rc<Shared>);

/// What all clones of a [`AsyncChild`] share.
#[derive(Debug)]
struct Shared {
    io: LaneContext,
    state: RefCell<State>,
    /// What writes should be a multiple of, in bytes.
    alignment: u64,
}

/// The child's lane, and the state of every operation that it was asked about.
#[derive(Debug)]
struct State {
    lane: Box<dyn Lane>,
    pieces: BatchPieces,
    late: Vec<Mapping>,
    asked: Vec<QueryState>,
    free: Vec<usize>,
}

/// What became of an operation that the child's lane was asked to map.
#[derive(Debug)]
enum QueryState {
    /// Nobody waits for an answer under this name.
    Nothing,
    /// It is held.
    Held(Option<Waker>),
    /// It is held, and nobody wants the answer any more.
    Abandoned,
    /// It is answered.
    Answered(Operation, Result<(Vec<Piece>, BufferCopyPolicy, AfterPiecesAction), FailKind>),
}

/// Where a child's lane says that the bytes of an operation are.
#[derive(Debug)]
pub struct ChildMapAnswer {
    /// The operation as the lanes below leave it.
    pub operation: Operation,
    /// Where the bytes are.
    pub pieces: Vec<Piece>,
    /// How the memory of a write is used.
    pub memory: BufferCopyPolicy,
    /// There if the lane below asked to be told.
    pub notice: Option<CompletionNotice>,
}

/// A child lane's reply to an operation: an answer, or that it holds the operation.
#[derive(Debug)]
pub enum ChildMapReply {
    /// Where the bytes are.
    Found(ChildMapAnswer),
    /// That comes later.
    Held(HeldChildOperation),
}

/// What a child's lane decides when it is notified of a completion.
#[derive(Debug)]
pub enum NoticeReply {
    /// It is over.
    Finished(Outcome),
    /// The lane holds it again.
    Held(HeldChildOperation),
}

/// The duty to notify a child's lane that its answer was carried out. Dropped, the lane is told that it was not: until
/// then it may keep others waiting.
#[derive(Debug)]
pub struct CompletionNotice(Option<Query>);

/// An operation that a child's lane holds. Dropped, its answer is not used.
#[derive(Debug)]
pub struct HeldChildOperation(Option<Query>);

/// The token of an operation that a child's lane was asked about; freed when nothing more comes of it.
#[derive(Debug)]
struct Query {
    storage: AsyncChild,
    token: Token,
}

impl CompletionNotice {
    /// Tells the lane below.
    pub fn tell(mut self, outcome: Outcome) -> NoticeReply {
        self.0.take().expect("told once").tell(outcome)
    }
}

impl Drop for CompletionNotice {
    fn drop(&mut self) {
        if let Some(question) = self.0.take() {
            // What it holds again is abandoned.
            let _next = question.tell(Outcome::Failed(FailKind::Io));
        }
    }
}

impl HeldChildOperation {
    /// Takes the answer, if it is there.
    pub fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<ChildMapAnswer, FailKind>> {
        let question = self.0.take().expect("an answer is taken once");
        let polled = question.storage.poll_answer(question.token, context);
        if polled.is_pending() {
            self.0 = Some(question);
        }
        polled
    }

    /// Waits for the answer.
    pub async fn answer(mut self) -> Result<ChildMapAnswer, FailKind> {
        std::future::poll_fn(|context| self.poll(context)).await
    }
}

impl Drop for HeldChildOperation {
    fn drop(&mut self) {
        if let Some(Query { storage, token }) = self.0.take() {
            storage.abandon(token);
        }
    }
}

impl Query {
    fn tell(self, outcome: Outcome) -> NoticeReply {
        let state = &mut *self.storage.0.state.borrow_mut();
        match state.lane.completed(self.token, outcome) {
            LaneCompletionDecision::Finish(outcome) => {
                state.free_token(self.token);
                NoticeReply::Finished(outcome)
            }
            LaneCompletionDecision::HoldAgain => {
                state.asked[self.token.0 as usize] = QueryState::Held(None);
                let Self { ref storage, token } = self;
                NoticeReply::Held(HeldChildOperation(Some(Self {
                    storage: storage.clone(),
                    token,
                })))
            }
        }
    }
}

impl State {
    fn free_token(&mut self, token: Token) {
        let place = token.0 as usize;
        self.asked[place] = QueryState::Nothing;
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

impl AsyncChild {
    /// Over a lane; writes should be a multiple of that many bytes.
    pub fn new(lane: Box<dyn Lane>, io: &LaneContext, alignment: u64) -> Self {
        let (pieces, late, asked, free) =
            (BatchPieces::default(), Vec::new(), Vec::new(), Vec::new());
        let state = RefCell::new(State { lane, pieces, late, asked, free });
        Self(Rc::new(Shared { io: io.clone(), state, alignment }))
    }

    /// What the lane uses of its iothread.
    pub fn io(&self) -> &LaneContext {
        &self.0.io
    }

    /// What writes should be a multiple of, in bytes; a power of two, 512 at least.
    pub fn alignment(&self) -> u64 {
        self.0.alignment
    }

    /// Asks the lane below about a batch, at once. Whoever asked takes the answer of a question that is
    /// not over with [`AsyncChild::reply`].
    pub fn map(&self, batch: &mut [Mapping], pieces: &mut BatchPieces) {
        let state = &mut *self.0.state.borrow_mut();
        state.lane.map(batch, pieces);
        for mapping in batch {
            if mapping.answer == Answer::Held {
                state.asked[mapping.token.0 as usize] = QueryState::Held(None);
            }
        }
    }

    /// Where the bytes of a read or a write are, if the lane below says it at once ([`Lane::locate`]).
    pub fn locate(&self, operation: Operation) -> Option<Target> {
        self.0.state.borrow_mut().lane.locate(operation)
    }

    /// The same of many reads ([`Lane::locate_reads`]).
    pub fn locate_reads(&self, queries: &mut [LocateQuery]) {
        self.0.state.borrow_mut().lane.locate_reads(queries);
    }

    /// A name for a question, until it is given back.
    pub fn name(&self) -> Token {
        let state = &mut *self.0.state.borrow_mut();
        let place = state.free.pop().unwrap_or_else(|| {
            state.asked.push(QueryState::Nothing);
            state.asked.len() - 1
        });
        Token(u32::try_from(place).expect("questions are few"))
    }

    /// Gives it back.
    pub fn free_token(&self, token: Token) {
        self.0.state.borrow_mut().free_token(token);
    }

    /// The answer to a question of a batch. Takes its name along, and gives it back when it is over.
    pub fn reply(&self, asked: &Mapping, pieces: &BatchPieces) -> Result<ChildMapReply, FailKind> {
        let Mapping { token, operation, answer, after, memory, .. } = *asked;
        match answer {
            Answer::Held => Ok(ChildMapReply::Held(HeldChildOperation(Some(Query {
                storage: self.clone(),
                token,
            })))),
            Answer::Now(range) => {
                let pieces = pieces.get(range).to_vec();
                let notice = self.notice(token, after);
                Ok(ChildMapReply::Found(ChildMapAnswer { operation, pieces, memory, notice }))
            }
            Answer::Refused(kind) => {
                self.free_token(token);
                Err(kind)
            }
        }
    }

    fn notice(&self, token: Token, after: AfterPiecesAction) -> Option<CompletionNotice> {
        match after {
            AfterPiecesAction::NotifyLane => {
                Some(CompletionNotice(Some(Query { storage: self.clone(), token })))
            }
            AfterPiecesAction::Finish => {
                self.free_token(token);
                None
            }
        }
    }

    fn poll_answer(
        &self,
        token: Token,
        context: &mut Context<'_>,
    ) -> Poll<Result<ChildMapAnswer, FailKind>> {
        let state = &mut *self.0.state.borrow_mut();
        let asked = &mut state.asked[token.0 as usize];
        match std::mem::replace(asked, QueryState::Nothing) {
            QueryState::Held(_) => {
                *asked = QueryState::Held(Some(context.waker().clone()));
                Poll::Pending
            }
            QueryState::Answered(
                operation,
                Ok((pieces, memory, AfterPiecesAction::NotifyLane)),
            ) => {
                let notice = Some(CompletionNotice(Some(Query { storage: self.clone(), token })));
                Poll::Ready(Ok(ChildMapAnswer { operation, pieces, memory, notice }))
            }
            QueryState::Answered(operation, answer) => {
                state.free_token(token);
                Poll::Ready(answer.map(|(pieces, memory, _)| ChildMapAnswer {
                    operation,
                    pieces,
                    memory,
                    notice: None,
                }))
            }
            QueryState::Nothing | QueryState::Abandoned => {
                panic!("nobody asked under the name {token:?}")
            }
        }
    }

    /// Nobody waits for the answer to a question any more.
    fn abandon(&self, token: Token) {
        let is_held = {
            let asked = &mut self.0.state.borrow_mut().asked[token.0 as usize];
            let is_held = matches!(asked, QueryState::Held(_));
            if is_held {
                *asked = QueryState::Abandoned;
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
    pub fn ask(&self, operation: Operation) -> Result<ChildMapReply, FailKind> {
        let mut batch = [Mapping::new(self.name(), operation)];
        let mut pieces = std::mem::take(&mut self.0.state.borrow_mut().pieces);
        self.map(&mut batch, &mut pieces);
        let reply = self.reply(&batch[0], &pieces);
        pieces.clear();
        self.0.state.borrow_mut().pieces = pieces;
        reply
    }

    /// Asks, and waits for the answer.
    pub async fn resolve(&self, operation: Operation) -> Result<ChildMapAnswer, FailKind> {
        match self.ask(operation)? {
            ChildMapReply::Found(found) => Ok(found),
            ChildMapReply::Held(waiting) => waiting.answer().await,
        }
    }

    /// Carries out an operation on memory of our own.
    pub async fn run(
        &self,
        operation: Operation,
        memory: HostMemory,
    ) -> Result<HostMemory, FailKind> {
        if let Some(target) = self.locate(operation) {
            let count = operation.extent().map_or(ByteCount(0), Extent::count);
            return self.0.io.submit(operation, &[Piece { skip: 0, count, target }], memory).await;
        }
        // What is rare has memory of its own: tasks stay small.
        Box::pin(self.run_in_rounds(operation, memory)).await
    }

    async fn run_in_rounds(
        &self,
        operation: Operation,
        mut memory: HostMemory,
    ) -> Result<HostMemory, FailKind> {
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
            let ChildMapAnswer { operation, pieces, notice, .. } = found;
            let result = carry_out(operation, &pieces).await;
            let Some(notice) = notice else { return result };
            let outcome = result.map_or_else(Outcome::Failed, |()| Outcome::Done);
            let waiting = match notice.tell(outcome) {
                NoticeReply::Finished(Outcome::Done) => return result,
                NoticeReply::Finished(Outcome::Failed(kind)) => return Err(kind),
                NoticeReply::Held(waiting) => waiting,
            };
            found = waiting.answer().await?;
            if let Err(kind) = result {
                return self.give_up(found, kind).await;
            }
        }
    }

    /// Lets the lane below end what has failed.
    async fn give_up(&self, mut found: ChildMapAnswer, kind: FailKind) -> Result<(), FailKind> {
        loop {
            let Some(notice) = found.notice else { return Err(kind) };
            match notice.tell(Outcome::Failed(kind)) {
                NoticeReply::Finished(_) => return Err(kind),
                NoticeReply::Held(waiting) => found = waiting.answer().await?,
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
        let zero = Operation::WriteZeroes(extent(bytes)?, ZeroTerms::UNMAP, Durability::Cached);
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

    /// When [`AsyncChild::resume`] has something to do.
    pub fn due(&self) -> Option<WakeTime> {
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
                match std::mem::replace(place, QueryState::Answered(operation, answer)) {
                    QueryState::Held(waker) => wakers.extend(waker),
                    QueryState::Abandoned => abandoned.push(token),
                    QueryState::Nothing | QueryState::Answered(..) => {
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
