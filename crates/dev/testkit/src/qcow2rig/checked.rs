//! The node under test as engines see it: its lanes are watched, and some mischief is done to them.
//!
//! Where it stands: between the engine of a simulated iothread and a lane of the node. What the lane submits for itself
//! passes through here.
//!
//! Invariants, checked: each mapping is answered once; the pieces of an answer cover it; what is held is known to be;
//! nothing is kept for answers that are over.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Instant;

use anyhow::{Result, bail, ensure};
use block::{
    AfterPiecesAction, Answer, BatchPieces, ByteOffset, FailKind, HostMemory, InternalIoFuture,
    InternalOperation, Lane, LaneCompletionDecision, LaneContext, LaneError, Mapping, Node,
    Operation, Outcome, Piece, Target, Token, WakeTime,
};

use super::Mischief;
use super::remembered::Remembered;
use crate::conformance::number;
use crate::simulation::SharedWorld;
use crate::simulation::log::Actor;

/// The node under test, for one iothread.
#[derive(Debug)]
pub(crate) struct CheckedNode {
    pub(crate) node: Arc<dyn Node>,
    pub(crate) world: SharedWorld,
    pub(crate) thread: usize,
    pub(crate) mischief: Mischief,
    /// Where reads were answered, if that is remembered.
    pub(crate) remembered: Option<Remembered>,
    /// How many syncs lanes wait for that they need themselves.
    pub(crate) lane_syncs: Arc<AtomicUsize>,
}

impl Node for CheckedNode {
    crate::same_node_as!(node);

    fn open_lane(&self, outer: &LaneContext) -> Result<Box<dyn Lane>, LaneError> {
        let inner = LaneContext::new(outer.waker().clone());
        let lane = self.node.open_lane(&inner)?;
        for (channel, entered) in inner.take_entered() {
            assert_eq!(outer.enter(entered), channel, "each iothread has one lane");
        }
        Ok(Box::new(CheckedLane {
            lane: Some(lane),
            inner,
            outer: outer.clone(),
            world: SharedWorld::clone(&self.world),
            thread: self.thread,
            mischief: self.mischief,
            remembered: self.remembered.clone(),
            lane_syncs: Arc::clone(&self.lane_syncs),
            asked: BTreeMap::new(),
            errands: Vec::new(),
            late: Vec::new(),
        }))
    }
}

/// What is known of a request that is not over for the lane.
#[derive(Debug, Clone)]
struct Asked {
    operation: Operation,
    phase: Phase,
    /// The bytes of its memory, or that it is about.
    bytes: u64,
    /// Whether the lane has held it again: an answer is about a part of it.
    again: bool,
}

#[derive(Debug, Clone)]
enum Phase {
    New,
    Held,
    /// It is carried out, and the lane will be told.
    Answered,
    /// The lane was told early, and holds it again.
    ToldEarly,
    /// And it has answered since.
    AnsweredSince(Mapping, Vec<Piece>),
    /// And that may be passed on.
    Due(Mapping, Vec<Piece>),
}

#[derive(Debug)]
struct CheckedLane {
    /// There until it is dropped.
    lane: Option<Box<dyn Lane>>,
    /// What the lane uses.
    inner: LaneContext,
    /// What the engine serves.
    outer: LaneContext,
    world: SharedWorld,
    thread: usize,
    mischief: Mischief,
    remembered: Option<Remembered>,
    lane_syncs: Arc<AtomicUsize>,
    asked: BTreeMap<u32, Asked>,
    /// The lane's internal I/Os that are under way.
    errands: Vec<(InternalOperation, InternalIoFuture)>,
    /// An empty list, kept for its room.
    late: Vec<Mapping>,
}

impl Lane for CheckedLane {
    fn map(&mut self, batch: &mut [Mapping], pieces: &mut BatchPieces) {
        for mapping in batch.iter() {
            let bytes = mapping.operation.extent().map_or(0, |extent| extent.count().0);
            let operation = mapping.operation;
            let asked = Asked { operation, phase: Phase::New, bytes, again: false };
            if let Some(remembered) = &self.remembered {
                remembered.begin(operation);
            }
            let before = self.asked.insert(mapping.token.0, asked);
            assert!(before.is_none(), "the engine asks {mapping:?} twice");
            self.tell(mapping.token, name_of(&mapping.operation), mapping);
        }
        self.lane().map(batch, pieces);
        self.answered(batch, pieces, true);
        if let Some(remembered) = &self.remembered {
            batch.iter_mut().for_each(|mapping| remembered.answer(mapping, pieces));
        }
        self.pass_errands_on();
    }

    fn due(&self) -> Option<WakeTime> {
        self.lane.as_ref().and_then(|lane| lane.due())
    }

    fn resume(&mut self, now: Instant, late: &mut Vec<Mapping>, pieces: &mut BatchPieces) {
        self.end_errands();
        let mut own = std::mem::take(&mut self.late);
        self.lane().resume(now, &mut own, pieces);
        own.retain(|mapping| !self.waits(mapping, pieces));
        self.answered(&mut own, pieces, false);
        late.append(&mut own);
        self.late = own;
        self.pass_on(late, pieces);
        self.pass_errands_on();
    }

    fn release(&mut self) {
        self.lane().release();
        self.pass_errands_on();
    }

    fn completed(&mut self, token: Token, outcome: Outcome) -> LaneCompletionDecision {
        let asked = self.asked.get_mut(&token.0).expect("its answer was passed on");
        match std::mem::replace(&mut asked.phase, Phase::Held) {
            Phase::ToldEarly => return LaneCompletionDecision::HoldAgain,
            Phase::AnsweredSince(mapping, pieces) => {
                asked.phase = Phase::Due(mapping, pieces);
                self.outer.waker().wake_by_ref();
                return LaneCompletionDecision::HoldAgain;
            }
            Phase::Answered => {}
            other @ (Phase::New | Phase::Held | Phase::Due(..)) => {
                panic!("{token:?} is told of, which is {other:?}")
            }
        }
        asked.again = true;
        let told = self.lane().completed(token, outcome);
        if let LaneCompletionDecision::Finish(_) = told {
            self.over(token);
        }
        self.pass_errands_on();
        told
    }
}

impl CheckedLane {
    fn lane(&mut self) -> &mut dyn Lane {
        &mut **self.lane.as_mut().expect("it is open")
    }

    /// A request is over for the lane.
    fn over(&mut self, token: Token) {
        let asked = self.asked.remove(&token.0);
        if let (Some(remembered), Some(asked)) = (&self.remembered, asked) {
            remembered.end(asked.operation);
        }
    }

    fn tell(&self, token: Token, what: &'static str, mapping: &Mapping) {
        let bytes = mapping.operation.extent().map_or(0..0, block::Extent::bytes);
        self.world.lock().log.guest(self.actor(token), what, bytes);
    }

    fn actor(&self, token: Token) -> Actor {
        Actor { thread: self.thread, job: token.0.into() }
    }

    /// Notes a breach of the contract.
    fn wrong(&self, result: Result<()>) {
        self.world.lock().note(result);
    }

    /// Looks at answers, and does the mischief that may follow.
    fn answered(&mut self, mappings: &mut [Mapping], pieces: &BatchPieces, is_new: bool) {
        for mapping in mappings {
            let result = self.check_answer(mapping, pieces, is_new);
            self.wrong(result);
            let token = mapping.token;
            let Some(asked) = self.asked.get_mut(&token.0) else { continue };
            match (mapping.answer, mapping.after) {
                (Answer::Held, _) => asked.phase = Phase::Held,
                (Answer::Refused(_), _) | (Answer::Now(_), AfterPiecesAction::Finish) => {
                    self.over(token);
                }
                (Answer::Now(range), AfterPiecesAction::NotifyLane) => {
                    asked.phase = Phase::Answered;
                    let in_file = |piece: &Piece| matches!(piece.target, Target::File { .. });
                    if self.mischief == Mischief::EarlyEnds && pieces.get(range).iter().any(in_file)
                    {
                        self.tell_early(mapping);
                    }
                }
            }
        }
    }

    /// Tells the lane that its answer was carried out, which has not begun.
    fn tell_early(&mut self, mapping: &mut Mapping) {
        let token = mapping.token;
        match self.lane().completed(token, Outcome::Done) {
            LaneCompletionDecision::Finish(_) => {
                mapping.after = AfterPiecesAction::Finish;
                self.over(token);
            }
            LaneCompletionDecision::HoldAgain => {
                let asked = self.asked.get_mut(&token.0).expect("it was answered");
                (asked.phase, asked.again) = (Phase::ToldEarly, true);
            }
        }
    }

    /// Whether an answer has to wait until the one before was carried out.
    fn waits(&mut self, mapping: &Mapping, pieces: &BatchPieces) -> bool {
        let Some(asked) = self.asked.get_mut(&mapping.token.0) else { return false };
        let Phase::ToldEarly = asked.phase else { return false };
        let own = match mapping.answer {
            Answer::Now(range) => pieces.get(range).to_vec(),
            Answer::Held | Answer::Refused(_) => Vec::new(),
        };
        asked.phase = Phase::AnsweredSince(*mapping, own);
        true
    }

    /// Passes answers on that have waited.
    fn pass_on(&mut self, late: &mut Vec<Mapping>, pieces: &mut BatchPieces) {
        let mut due = Vec::new();
        for asked in self.asked.values_mut().filter(|asked| matches!(asked.phase, Phase::Due(..))) {
            if let Phase::Due(mapping, own) = std::mem::replace(&mut asked.phase, Phase::Held) {
                due.push((mapping, own));
            }
        }
        for (mut mapping, own) in due {
            if let Answer::Now(_) = mapping.answer {
                let mark = pieces.end();
                own.into_iter().for_each(|piece| pieces.push(piece));
                mapping.answer = Answer::Now(pieces.since(mark));
            }
            self.answered(std::slice::from_mut(&mut mapping), pieces, false);
            late.push(mapping);
        }
    }

    fn check_answer(&self, mapping: &Mapping, pieces: &BatchPieces, is_new: bool) -> Result<()> {
        let Some(asked) = self.asked.get(&mapping.token.0) else {
            bail!("{:?} is answered, which is not open", mapping.token)
        };
        let is_open = matches!((&asked.phase, is_new), (Phase::New, true) | (Phase::Held, false));
        ensure!(is_open, "{mapping:?} is answered a second time, which is {:?}", asked.phase);
        let range = match mapping.answer {
            Answer::Now(range) => range,
            Answer::Held if !is_new => bail!("{mapping:?} is held when it is resumed"),
            Answer::Held | Answer::Refused(_) => return Ok(()),
        };
        let found = pieces.get(range);
        let covers = match (mapping.after, asked.again) {
            (AfterPiecesAction::Finish, false) => Covers::All,
            (AfterPiecesAction::NotifyLane, _) | (AfterPiecesAction::Finish, true) => Covers::Part,
        };
        self.log_pieces(mapping, found);
        self.check_pieces(mapping.operation, asked.bytes, found, covers)
    }

    /// Which bytes of the disk are where.
    fn log_pieces(&self, mapping: &Mapping, pieces: &[Piece]) {
        let start = mapping.operation.extent().map_or(0, |extent| extent.bytes().start);
        let actor = self.actor(mapping.token);
        let mut world = self.world.lock();
        for piece in pieces {
            if let Target::File { file, offset: ByteOffset(offset) } = piece.target {
                let guest = start + piece.skip..start + piece.skip + piece.count.0;
                world.log.both(actor, "is answered", guest, file, offset..offset + piece.count.0);
            }
        }
    }

    fn check_pieces(
        &self,
        operation: Operation,
        bytes: u64,
        pieces: &[Piece],
        covers: Covers,
    ) -> Result<()> {
        for piece in pieces {
            if let Target::File { file, .. } = piece.target {
                let is_known = self.world.lock().has_file(file);
                ensure!(is_known, "{operation:?} goes to an unknown file: {pieces:?}");
            }
        }
        // A request that has been told of before, a hint and a flush may have nothing left to do.
        if pieces.is_empty() || operation == Operation::Flush {
            return Ok(());
        }
        let mut ordered = pieces.to_vec();
        ordered.sort_by_key(|piece| piece.skip);
        let mut covered = 0;
        for piece in &ordered {
            if covers == Covers::Part && piece.skip > covered {
                covered = piece.skip;
            }
            let follows = piece.skip == covered && piece.count.0 > 0;
            ensure!(follows, "{operation:?} is answered with {pieces:?}");
            covered += piece.count.0;
        }
        let is_right = covered == bytes || covers == Covers::Part && covered < bytes;
        ensure!(is_right, "{operation:?} is answered with {covered} bytes: {pieces:?}");
        Ok(())
    }

    /// Has the engine carry out what the lane has submitted.
    fn pass_errands_on(&mut self) {
        while self.inner.has_submitted() {
            let mut errands = Vec::new();
            self.inner.take_submitted(&mut errands);
            errands.into_iter().for_each(|errand| self.pass_errand_on(errand));
        }
    }

    fn pass_errand_on(&mut self, mut errand: InternalOperation) {
        let (operation, pieces) = (errand.operation(), errand.pieces().to_vec());
        let mut memory = HostMemory::zeroed(errand.memory().count());
        errand.memory().copy_to(0, &mut memory);
        let in_memory = matches!(operation, Operation::Read(_) | Operation::Write(..));
        let bytes = if in_memory {
            number(memory.len())
        } else {
            operation.extent().map_or(0, |extent| extent.count().0)
        };
        self.wrong(self.check_pieces(operation, bytes, &pieces, Covers::All));
        match (self.mischief, operation) {
            (Mischief::LyingLaneSyncs, Operation::Flush) => return errand.finish(Outcome::Done),
            (Mischief::UnwrittenMetadata, Operation::Write(..)) => {
                for piece in &pieces {
                    if let Target::File { file, offset: ByteOffset(at) } = piece.target {
                        self.world.lock().kernel.delay(file, at..at + piece.count.0);
                    }
                }
                // Nobody waits for its end.
                drop(self.outer.submit(operation, &pieces, memory));
                return errand.finish(Outcome::Done);
            }
            (_, _) => {}
        }
        let done = self.outer.submit(operation, &pieces, memory);
        self.lane_syncs.fetch_add(usize::from(operation == Operation::Flush), Ordering::Relaxed);
        self.errands.push((errand, done));
        self.end_errands();
    }

    /// Tells the lane of its internal I/Os that are over.
    fn end_errands(&mut self) {
        let waker = self.outer.waker().clone();
        let mut context = Context::from_waker(&waker);
        let mut place = 0;
        while place < self.errands.len() {
            let (_, done) = &mut self.errands[place];
            let Poll::Ready(result) = Pin::new(done).poll(&mut context) else {
                place += 1;
                continue;
            };
            let (mut errand, _) = self.errands.remove(place);
            let is_sync = errand.operation() == Operation::Flush;
            self.lane_syncs.fetch_sub(usize::from(is_sync), Ordering::Relaxed);
            match result {
                Ok(memory) => {
                    errand.memory().copy_from(0, &memory);
                    errand.finish(Outcome::Done);
                }
                Err(kind) => errand.finish(Outcome::Failed(kind)),
            }
        }
    }
}

impl Drop for CheckedLane {
    fn drop(&mut self) {
        self.lane = None;
        for (errand, _) in self.errands.drain(..) {
            let is_sync = errand.operation() == Operation::Flush;
            self.lane_syncs.fetch_sub(usize::from(is_sync), Ordering::Relaxed);
            // Nobody waits; it frees its memory.
            errand.finish(Outcome::Failed(FailKind::Io));
        }
        let bytes = self.inner.answer_memory_bytes();
        if bytes > 0 && !self.world.lock().is_dead {
            self.wrong(Err(anyhow::anyhow!("{bytes} bytes are kept for answers that are over")));
        }
    }
}

/// What the pieces of an answer cover: of one that the lane is told of there may be more to come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Covers {
    All,
    Part,
}

fn name_of(operation: &Operation) -> &'static str {
    match operation {
        Operation::Read(_) => "is asked to read",
        Operation::Status(_) => "is asked for block status",
        Operation::Write(..) => "is asked to write",
        Operation::Discard(..) => "is asked to discard",
        Operation::WriteZeroes(..) => "is asked to zero",
        Operation::Flush => "is asked to flush",
    }
}
