//! A node between any two of a stack that holds both to the contract of `block::Lane`.
//!
//! Where it stands: whoever asks goes through it and notices nothing. What breaks the contract becomes a complaint,
//! which the run finds; a panic could end an iothread and leave the test waiting.
//!
//! Invariants checked: a mapping is answered, held or refused, under its own token; the pieces of an answer cover the
//! operation's bytes once and lie within their files; what is held is answered once, as the operation that was asked;
//! no token is used for two held requests; something is due exactly while something is held; a release makes it due at
//! once; nothing comes before it is due, and what is due goes on. Who asked for it is told once of each answer and
//! nobody else is; what it keeps, it answers again; a lane is closed when nothing of it is left; where a node keeps the
//! order, requests are over in it. Where nodes below hold requests for something else than a time, nobody can say when
//! those are due. An answer that breaks the contract does not reach whoever asked.

use std::collections::{HashMap, VecDeque};
use std::mem::discriminant;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use anyhow::{Result, bail};
use block::{
    Access, AfterPiecesAction, Answer, BatchPieces, BlockLimits, BufferCopyPolicy, ByteCount,
    Claim, ClaimError, Clock, DiskSize, FailKind, Lane, LaneCompletionDecision, LaneContext,
    LaneError, LocateQuery, Mapping, Node, Operation, Outcome, Piece, PieceMark, PieceRange,
    Rights, Target, Token, WakeTime,
};

use super::stack::Sizes;

/// How often something may be due at one moment without going on, before it counts as stuck.
const FRUITLESS_MAX: u32 = 100;
/// No lane refuses in this way: a request that it knows is not malformed.
const UNANSWERED: Answer = Answer::Refused(FailKind::Malformed);
/// More of them say nothing new.
const COMPLAINTS_MAX: usize = 20;

/// What was found to break the contract.
#[derive(Debug, Default)]
pub struct Complaints {
    all: Mutex<Vec<String>>,
    /// Relaxed: they carry no data.
    held: AtomicU64,
    kept: AtomicU64,
    count: AtomicU64,
    abandoned: AtomicBool,
}

impl Complaints {
    /// An error if there are any.
    pub fn check(&self) -> Result<()> {
        let all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        if all.is_empty() { Ok(()) } else { bail!("the contract is broken: {}", all.join("; ")) }
    }

    /// How often a node was seen to hold a request, so that a run can tell whether it was of any use.
    pub fn held(&self) -> u64 {
        self.held.load(Ordering::Relaxed)
    }

    /// The same of requests that were carried out, and kept.
    pub fn kept(&self) -> u64 {
        self.kept.load(Ordering::Relaxed)
    }

    /// Whether requests are given up, because the power goes: nobody complains then.
    pub fn abandon(&self, abandoned: bool) {
        self.abandoned.store(abandoned, Ordering::Relaxed);
    }

    /// Adds one.
    pub fn add(&self, complaint: String) {
        if self.abandoned.load(Ordering::Relaxed) {
            return;
        }
        self.count.fetch_add(1, Ordering::Relaxed);
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() < COMPLAINTS_MAX {
            all.push(complaint);
        }
    }
}

/// Checks the node below, and those who use it.
#[derive(Debug)]
pub struct CheckedNode {
    node: Arc<dyn Node>,
    judge: Judge,
}

/// What the lanes of a node are judged with.
#[derive(Clone)]
struct Judge {
    name: String,
    clock: Arc<dyn Clock>,
    complaints: Arc<Complaints>,
    sizes: Sizes,
    waiting: Waiting,
    order: Order,
}

/// What requests are held for, in a node and below.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// A time.
    ForTime,
    /// A time, an internal I/O, or other requests.
    ForOthers,
}

/// In which order a node's requests are over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Any.
    Any,
    /// Those of a lane as they were asked.
    AsAsked,
}

impl std::fmt::Debug for Judge {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Judge").field("name", &self.name).finish_non_exhaustive()
    }
}

impl CheckedNode {
    /// Checks this node. `sizes` knows the files that pieces may lie in.
    pub fn new(
        node: Arc<dyn Node>,
        clock: Arc<dyn Clock>,
        complaints: Arc<Complaints>,
        sizes: Sizes,
        (waiting, order): (Waiting, Order),
    ) -> Self {
        let name = node.name().to_owned();
        Self { node, judge: Judge { name, clock, complaints, sizes, waiting, order } }
    }
}

impl Node for CheckedNode {
    fn name(&self) -> &str {
        self.node.name()
    }

    fn size(&self) -> DiskSize {
        self.node.size()
    }

    fn limits(&self) -> BlockLimits {
        let limits = self.node.limits();
        let (request, physical) = (limits.request_alignment, limits.physical_block);
        if !request.is_power_of_two() || request.get() < 512 || !physical.is_power_of_two() {
            self.judge.complain(&format!("its limits are {limits:?}"));
        }
        limits
    }

    fn access(&self) -> Access {
        self.node.access()
    }

    fn flush(&self) -> std::io::Result<()> {
        self.node.flush()
    }

    fn claim(&self, rights: Rights) -> Result<Claim, ClaimError> {
        self.node.claim(rights)
    }

    fn open_lane(&self, io: &LaneContext) -> Result<Box<dyn Lane>, LaneError> {
        Ok(Box::new(CheckedLane {
            below: self.node.open_lane(io)?,
            judge: self.judge.clone(),
            io: io.clone(),
            size: self.node.size(),
            held: HashMap::new(),
            telling: HashMap::new(),
            open: VecDeque::new(),
            fruitless: 0,
            resumed: None,
        }))
    }
}

#[derive(Debug)]
struct CheckedLane {
    below: Box<dyn Lane>,
    judge: Judge,
    io: LaneContext,
    size: DiskSize,
    held: HashMap<Token, Asked>,
    /// What is to be told of.
    telling: HashMap<Token, Asked>,
    /// What is not over, in the order in which it was asked.
    open: VecDeque<Token>,
    /// How often something was due and did not go on, since time has passed.
    fruitless: u32,
    resumed: Option<Instant>,
}

/// What was asked for.
#[derive(Clone, Copy, Debug)]
struct Asked {
    operation: Operation,
    /// Whether it was answered before, and kept.
    again: bool,
}

impl Drop for CheckedLane {
    fn drop(&mut self) {
        let left = self.held.len() + self.telling.len();
        let kept = self.io.answer_memory_bytes();
        if left > 0 && !std::thread::panicking() {
            self.judge.complain(&format!("its lane is closed with {left} requests on it"));
        } else if kept > 0 && !std::thread::panicking() {
            self.judge.complain(&format!("{kept} bytes are kept for answers that are over"));
        }
    }
}

impl CheckedLane {
    /// Where the lane says at once that operations are: one by one, and the reads together.
    fn locate_both_ways(&mut self, asked: &[Mapping]) -> Vec<Option<Target>> {
        let alone = asked.iter().map(|mapping| self.below.locate(mapping.operation));
        let mut located: Vec<Option<Target>> = alone.collect();
        let query = |(number, mapping): (usize, &Mapping)| {
            let extent = mapping.operation.extent()?;
            let is_read = mapping.operation == Operation::Read(extent);
            is_read.then_some(LocateQuery { extent, target: None, number })
        };
        let mut queries: Vec<LocateQuery> = asked.iter().enumerate().filter_map(query).collect();
        let mut left: Vec<usize> = queries.iter().map(|query| query.number).collect();
        self.below.locate_reads(&mut queries);
        for LocateQuery { extent, target, number } in queries {
            let is_asked = left.iter().position(|it| *it == number).map(|at| left.remove(at));
            if is_asked.is_none() || asked[number].operation != Operation::Read(extent) {
                self.judge.complain(&format!("query {number} of a batch became another one"));
                continue;
            }
            // Other threads may have made known meanwhile what was not.
            match (&mut located[number], target) {
                (Some(alone), Some(target)) if *alone != target => {
                    self.judge.complain(&format!("{extent:?} is {alone:?} and {target:?}"));
                }
                (Some(_), _) => {}
                (unknown, target) => *unknown = target,
            }
        }
        located
    }
}

impl Lane for CheckedLane {
    fn map(&mut self, batch: &mut [Mapping], pieces: &mut BatchPieces) {
        let asked: Vec<Mapping> = batch.to_vec();
        let complaints = self.judge.complaints.count.load(Ordering::Relaxed);
        if asked.is_empty() {
            self.judge.complain("it is asked about nothing");
        }
        for (place, mapping) in asked.iter().enumerate() {
            let Mapping { token, operation, .. } = *mapping;
            if self.held.contains_key(&token) || asked[..place].iter().any(|it| it.token == token) {
                self.judge.complain(&format!("{token:?} is asked for twice"));
            }
            if self.telling.contains_key(&token) {
                self.judge.complain(&format!("it was not told of {token:?}"));
            }
            if operation.extent().is_some_and(|extent| extent.bytes().end > self.size.0.0) {
                self.judge.complain(&format!("{operation:?} is asked of {:?}", self.size));
            }
        }
        let located = self.locate_both_ways(&asked);
        let mark = pieces.end();
        for mapping in batch.iter_mut() {
            mapping.answer = UNANSWERED;
        }
        self.open.extend(asked.iter().map(|mapping| mapping.token));
        self.below.map(batch, pieces);
        for (asked, answered) in asked.iter().zip(batch.iter()) {
            if asked.token != answered.token {
                self.judge.complain(&format!("{:?} became {:?}", asked.token, answered.token));
            }
            let Mapping { token, operation, .. } = *asked;
            let asked = Asked { operation, again: false };
            match answered.answer {
                UNANSWERED => {
                    self.judge.complain(&format!("{:?} is not answered", asked.operation));
                }
                Answer::Held => {
                    self.judge.complaints.held.fetch_add(1, Ordering::Relaxed);
                    self.held.insert(token, asked);
                }
                Answer::Now(_) | Answer::Refused(_) => {
                    self.judge.answer(asked, answered, pieces, mark);
                    self.note_answer(asked, answered);
                }
            }
        }
        for ((asked, answered), located) in asked.iter().zip(batch.iter()).zip(located) {
            if located.is_some_and(|target| !is_located(asked.operation, answered, target, pieces))
            {
                self.judge.complain(&format!("{asked:?} is not where it was said to be"));
            }
        }
        self.look_at_due("map");
        if self.judge.has_complained_since(complaints) {
            for (asked, answered) in asked.iter().zip(batch) {
                *answered = Mapping { answer: Answer::Refused(FailKind::Io), ..*asked };
            }
        }
    }

    fn locate(&mut self, operation: Operation) -> Option<Target> {
        self.below.locate(operation)
    }

    fn locate_reads(&mut self, queries: &mut [LocateQuery]) {
        self.below.locate_reads(queries);
    }

    fn due(&self) -> Option<WakeTime> {
        self.below.due()
    }

    fn resume(&mut self, now: Instant, late: &mut Vec<Mapping>, pieces: &mut BatchPieces) {
        let (earlier, mark) = (late.len(), pieces.end());
        let complaints = self.judge.complaints.count.load(Ordering::Relaxed);
        let due = self.below.due();
        self.below.resume(now, late, pieces);
        if late.len() < earlier {
            return self.judge.complain("resume takes away what others have answered");
        }
        let for_time = self.judge.waiting == Waiting::ForTime;
        if for_time && late.len() > earlier && due.is_none_or(|due| due.at > now) {
            self.judge.complain("something goes on before it is due");
        }
        for answered in &late[earlier..] {
            match self.held.remove(&answered.token) {
                Some(asked) => {
                    self.judge.answer(asked, answered, pieces, mark);
                    self.note_answer(asked, answered);
                }
                None => {
                    let what = format!("{:?}, which is not held, is answered late", answered.token);
                    self.judge.complain(&what);
                }
            }
        }
        let was_due = due.is_some_and(|due| due.at <= now);
        let went_on = late.len() > earlier || !was_due || self.resumed != Some(now);
        self.resumed = Some(now);
        self.fruitless = if went_on { 0 } else { self.fruitless + 1 };
        if self.fruitless == FRUITLESS_MAX {
            self.judge.complain("what is due does not go on");
        }
        self.look_at_due("resume");
        if self.judge.has_complained_since(complaints) {
            late.truncate(earlier);
        }
    }

    fn release(&mut self) {
        self.below.release();
        if !self.held.is_empty() && self.judge.waiting == Waiting::ForTime {
            let now = self.judge.clock.now();
            if self.below.due().is_none_or(|due| due.at > now) {
                self.judge.complain("what was released is not due at once");
            }
        }
        self.look_at_due("release");
    }

    fn completed(&mut self, token: Token, outcome: Outcome) -> LaneCompletionDecision {
        let Some(asked) = self.telling.remove(&token) else {
            self.judge.complain(&format!("it is told of {token:?}, which it did not ask for"));
            return LaneCompletionDecision::Finish(outcome);
        };
        let told = self.below.completed(token, outcome);
        if let LaneCompletionDecision::Finish(_) = told {
            self.over(token);
        } else {
            self.judge.complaints.kept.fetch_add(1, Ordering::Relaxed);
            self.held.insert(token, Asked { again: true, ..asked });
        }
        self.look_at_due("being told");
        told
    }
}

impl CheckedLane {
    fn note_answer(&mut self, asked: Asked, answered: &Mapping) {
        if let (Answer::Now(_), AfterPiecesAction::NotifyLane) = (answered.answer, answered.after) {
            self.telling.insert(answered.token, asked);
        } else {
            self.over(answered.token);
        }
    }

    fn over(&mut self, token: Token) {
        let place = self.open.iter().position(|open| *open == token);
        if self.judge.order == Order::AsAsked && place != Some(0) {
            self.judge.complain(&format!("{token:?} overtakes {:?}", self.open.front()));
        }
        place.and_then(|place| self.open.remove(place));
    }

    fn look_at_due(&self, after: &str) {
        let held = self.held.len();
        let due = self.below.due();
        let for_time = self.judge.waiting == Waiting::ForTime;
        // Of what it wants to be told of, other parts may be held below.
        if due.is_some() && held + self.telling.len() == 0 || due.is_none() && held > 0 && for_time
        {
            self.judge.complain(&format!("after {after} it holds {held}, and due is {due:?}"));
        }
    }
}

impl Judge {
    fn has_complained_since(&self, count: u64) -> bool {
        self.complaints.count.load(Ordering::Relaxed) > count
    }

    fn complain(&self, what: &str) {
        self.complaints.add(format!("{}: {what}", self.name));
    }

    /// An answer that says what is to be carried out, or that nothing is.
    fn answer(&self, asked: Asked, answered: &Mapping, pieces: &BatchPieces, mark: PieceMark) {
        let Asked { operation: asked, again } = asked;
        let Mapping { operation, answer, .. } = *answered;
        let bytes = |operation: Operation| operation.extent().map(|extent| extent.count().0);
        if discriminant(&asked) != discriminant(&operation) || bytes(asked) != bytes(operation) {
            self.complain(&format!("{asked:?} became {operation:?}"));
        }
        match answer {
            Answer::Now(range) => {
                // Of what the lane is told of there may be more to come, and a status may end early.
                let is_status = matches!(asked, Operation::Status(_));
                let is_part = again || answered.after == AfterPiecesAction::NotifyLane || is_status;
                let may_overlap = answered.memory == BufferCopyPolicy::Copied;
                self.pieces(asked, (is_part, may_overlap), range, pieces, mark);
            }
            Answer::Held => self.complain(&format!("{asked:?} is said to be held, late")),
            Answer::Refused(_) => {}
        }
    }

    fn pieces(
        &self,
        asked: Operation,
        (is_part, may_overlap): (bool, bool),
        range: PieceRange,
        pieces: &BatchPieces,
        mark: PieceMark,
    ) {
        let found = pieces.get(range);
        // It must not name what an earlier call has answered; what is in the list twice is found by its bytes.
        if !found.is_empty()
            && !pieces.get(pieces.since(mark)).as_ptr_range().contains(&found.as_ptr())
        {
            self.complain(&format!("{asked:?} is answered with pieces of earlier answers"));
        }
        let wanted = match asked {
            Operation::Read(extent)
            | Operation::Status(extent)
            | Operation::Write(extent, _)
            | Operation::Discard(extent, _)
            | Operation::WriteZeroes(extent, _, _) => extent.count().0,
            Operation::Flush => 0,
        };
        let may_be_none = matches!(asked, Operation::Discard(..)) || wanted == 0;
        if found.is_empty() && may_be_none {
            return;
        }
        let mut ordered: Vec<Piece> = found.to_vec();
        ordered.sort_by_key(|piece| piece.skip);
        let mut covered = 0;
        for piece in &ordered {
            let is_empty = piece.count.0 == 0 && wanted > 0;
            let follows = piece.skip == covered
                || is_part && piece.skip > covered
                || may_overlap && piece.skip < covered;
            if !follows || is_empty || !self.is_inside(piece) {
                return self.complain(&format!("{asked:?} is answered with {piece:?}: {found:?}"));
            }
            covered = covered.max(piece.skip + piece.count.0);
        }
        // Of what has no places in memory pieces only count.
        let is_counted = matches!(asked, Operation::WriteZeroes(..));
        let is_too_much = covered > wanted && !(may_overlap && is_counted);
        if is_too_much || covered < wanted && !is_part {
            self.complain(&format!("{asked:?} is answered with {covered} bytes: {found:?}"));
        }
    }

    fn is_inside(&self, piece: &Piece) -> bool {
        match piece.target {
            Target::File { file, offset } => {
                let end = offset.0.checked_add(piece.count.0);
                (self.sizes)(file).zip(end).is_some_and(|(size, end)| end <= size)
            }
            // A channel looks itself.
            Target::Channel { .. }
            | Target::Zeroes
            | Target::Nothing
            | Target::Memory { .. }
            | Target::Status(_) => true,
        }
    }
}

/// Whether an answer is all that was said of it before: at once, in one piece there, and over with that.
fn is_located(asked: Operation, answered: &Mapping, target: Target, pieces: &BatchPieces) -> bool {
    let Answer::Now(range) = answered.answer else { return false };
    let count = answered.operation.extent().map_or(ByteCount(0), block::Extent::count);
    let is_same = answered.after == AfterPiecesAction::Finish
        && answered.memory == BufferCopyPolicy::Live
        && answered.operation.durability() == asked.durability();
    is_same && pieces.get(range) == [Piece { skip: 0, count, target }]
}
