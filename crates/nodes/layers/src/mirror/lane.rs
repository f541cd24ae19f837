//! One iothread's handle on a mirror's source: passes changes on, and has them noted or written to the target.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use bitmaps::CopyBacklog;
use block::{
    AfterPiecesAction, Answer, BatchPieces, BufferCopyPolicy, Durability, Lane,
    LaneCompletionDecision, LaneContext, LocateQuery, Mapping, Operation, Outcome, RangeGuard,
    Target, Token, WakeTime,
};

use crate::in_flight_changes::InFlightChanges;

/// A change that is carried out on the source.
#[derive(Debug)]
struct SourceChange {
    bytes: Range<u64>,
    /// It is written to the target then, and has its range until it is there; otherwise it is noted.
    to_target: Option<(Mapping, RangeGuard)>,
}

/// A change that is on the source, and is carried out on the target.
#[derive(Debug)]
struct TargetChange {
    bytes: Range<u64>,
    _held: RangeGuard,
}

/// Source and target of a mirror, as one iothread has them.
#[derive(Debug)]
pub(super) struct MirrorLane {
    source: Box<dyn Lane>,
    target: Box<dyn Lane>,
    io: LaneContext,
    backlog: Arc<CopyBacklog>,
    is_blocking: Arc<AtomicBool>,
    on_source: InFlightChanges<SourceChange>,
    on_target: InFlightChanges<TargetChange>,
    /// Changes that wait for their ranges, in order.
    waiting: VecDeque<Mapping>,
    /// Those that are on the source, and are to be written to the target.
    half_done: Vec<Mapping>,
    /// What is asked of the source. Empty between calls.
    asked: Vec<Mapping>,
}

impl MirrorLane {
    pub(super) fn new(
        source: Box<dyn Lane>,
        target: Box<dyn Lane>,
        io: &LaneContext,
        backlog: Arc<CopyBacklog>,
        is_blocking: Arc<AtomicBool>,
    ) -> Self {
        Self {
            source,
            target,
            io: io.clone(),
            backlog,
            is_blocking,
            on_source: InFlightChanges::default(),
            on_target: InFlightChanges::default(),
            waiting: VecDeque::new(),
            half_done: Vec::new(),
            asked: Vec::new(),
        }
    }

    /// Begins with a new request: it is held, or to be asked of the source.
    fn begin(&mut self, mapping: &mut Mapping) {
        mapping.answer = Answer::Held;
        match mapping.operation {
            Operation::Read(_) | Operation::Status(_) | Operation::Flush => {
                self.asked.push(*mapping);
            }
            Operation::Write(bytes, _)
            | Operation::Discard(bytes, ..)
            | Operation::WriteZeroes(bytes, ..) => self.begin_change(*mapping, bytes.bytes()),
        }
    }

    fn begin_change(&mut self, mapping: Mapping, bytes: Range<u64>) {
        // What discarded bytes are then is up to each disk, and the copy makes them equal.
        let is_discard = matches!(mapping.operation, Operation::Discard(..));
        let is_noted = bytes.is_empty() || is_discard || !self.is_blocking.load(Ordering::Relaxed);
        let to_target = if is_noted {
            None
        } else {
            match self.backlog.ranges().try_lock(bytes.clone(), self.io.waker()) {
                Some(held) => Some((mapping, held)),
                None => return self.waiting.push_back(mapping),
            }
        };
        self.on_source.begin(mapping.token, SourceChange { bytes, to_target });
        self.asked.push(mapping);
    }

    /// Asks the source what is to be asked.
    fn ask_source(&mut self, pieces: &mut BatchPieces) {
        if !self.asked.is_empty() {
            self.source.map(&mut self.asked, pieces);
        }
        let mut asked = std::mem::take(&mut self.asked);
        asked.iter_mut().for_each(|mapping| self.source_answered(mapping));
        self.asked = asked;
    }

    /// The lane of the source has answered: a write that goes to both is copied once.
    fn source_answered(&mut self, mapping: &mut Mapping) {
        if let Some(SourceChange { to_target: Some(_), .. }) = self.on_source.kept(mapping.token) {
            mapping.memory = mapping.memory.and(BufferCopyPolicy::Copied);
        }
        // Of what it refuses, a format may have stored a part.
        if let Some(change) = self.on_source.answered(mapping) {
            self.backlog.add(change.bytes);
        }
    }

    /// Has changes written to the target that are on the source.
    fn ask_target(&mut self, late: &mut Vec<Mapping>, pieces: &mut BatchPieces) {
        if self.half_done.is_empty() {
            return;
        }
        let first = late.len();
        late.append(&mut self.half_done);
        self.target.map(&mut late[first..], pieces);
        self.target_answered(late, first, pieces);
    }

    /// The lane of the target has answered these.
    fn target_answered(&mut self, late: &mut Vec<Mapping>, first: usize, pieces: &BatchPieces) {
        for mapping in &mut late[first..] {
            // The source has it: that is what the client is told.
            if let Some(change) = self.on_target.answered(mapping) {
                self.backlog.add(change.bytes);
                mapping.answer = Answer::Now(pieces.none());
                mapping.after = AfterPiecesAction::Finish;
            }
        }
        let kept = late.split_off(first);
        late.extend(kept.into_iter().filter(|mapping| mapping.answer != Answer::Held));
    }

    /// Has those asked that have waited for long enough.
    fn go_on(&mut self) {
        for _ in 0..self.waiting.len() {
            let Some(mut change) = self.waiting.pop_front() else { return };
            self.begin(&mut change);
        }
    }

    /// A change has ended on the source, like this: it is noted, or goes on to the target.
    fn source_done(
        &mut self,
        token: Token,
        change: SourceChange,
        outcome: Outcome,
    ) -> LaneCompletionDecision {
        let SourceChange { bytes, to_target } = change;
        match (to_target, outcome) {
            (Some((change, held)), Outcome::Done) => {
                self.backlog.target_written(bytes.clone());
                self.on_target.begin(token, TargetChange { bytes, _held: held });
                self.half_done.push(on_target(change));
                self.io.waker().wake_by_ref();
                LaneCompletionDecision::HoldAgain
            }
            (_, outcome) => {
                self.backlog.add(bytes);
                LaneCompletionDecision::Finish(outcome)
            }
        }
    }
}

/// What the target is asked for a change that is on the source. It is flushed before anybody relies on it.
fn on_target(change: Mapping) -> Mapping {
    let operation = match change.operation {
        Operation::Write(bytes, _) => Operation::Write(bytes, Durability::Cached),
        // The source has them.
        Operation::WriteZeroes(bytes, terms, _) => {
            Operation::WriteZeroes(bytes, terms.at_any_cost(), Durability::Cached)
        }
        Operation::Discard(..) | Operation::Read(_) | Operation::Status(_) | Operation::Flush => {
            panic!("it is only noted")
        }
    };
    Mapping::new(change.token, operation)
}

impl Lane for MirrorLane {
    fn map(&mut self, batch: &mut [Mapping], pieces: &mut BatchPieces) {
        batch.iter_mut().for_each(|mapping| self.begin(mapping));
        self.ask_source(pieces);
        let mut asked = self.asked.drain(..).peekable();
        for mapping in batch {
            if let Some(answered) = asked.next_if(|answered| answered.token == mapping.token) {
                *mapping = answered;
            }
        }
    }

    fn locate(&mut self, operation: Operation) -> Option<Target> {
        match operation {
            Operation::Read(_) => self.source.locate(operation),
            Operation::Write(..)
            | Operation::Discard(..)
            | Operation::WriteZeroes(..)
            | Operation::Status(_)
            | Operation::Flush => None,
        }
    }

    fn locate_reads(&mut self, queries: &mut [LocateQuery]) {
        self.source.locate_reads(queries);
    }

    fn due(&self) -> Option<WakeTime> {
        WakeTime::first(self.source.due(), self.target.due())
    }

    fn resume(&mut self, now: Instant, late: &mut Vec<Mapping>, pieces: &mut BatchPieces) {
        let first = late.len();
        self.source.resume(now, late, pieces);
        for mapping in &mut late[first..] {
            self.source_answered(mapping);
        }
        self.go_on();
        self.ask_source(pieces);
        late.extend(self.asked.drain(..).filter(|mapping| mapping.answer != Answer::Held));
        let first = late.len();
        self.target.resume(now, late, pieces);
        self.target_answered(late, first, pieces);
        self.ask_target(late, pieces);
    }

    fn release(&mut self) {
        self.source.release();
        self.target.release();
    }

    fn completed(&mut self, token: Token, outcome: Outcome) -> LaneCompletionDecision {
        if self.on_target.kept(token).is_some() {
            let (decision, over) = self.on_target.completed(&mut *self.target, token, outcome);
            return match (over, decision) {
                (Some(change), LaneCompletionDecision::Finish(outcome)) => {
                    if let Outcome::Failed(_) = outcome {
                        self.backlog.add(change.bytes);
                    }
                    // Its client hears how it has ended on the source.
                    LaneCompletionDecision::Finish(Outcome::Done)
                }
                (_, decision) => decision,
            };
        }
        let (decision, over) = self.on_source.completed(&mut *self.source, token, outcome);
        match (over, decision) {
            (Some(change), LaneCompletionDecision::Finish(outcome)) => {
                self.source_done(token, change, outcome)
            }
            (_, decision) => decision,
        }
    }
}
