//! A node that passes requests on, and refuses, holds or splits them as a test wants it, or wants to be told of
//! them, keeps them, has internal I/Os, and answers again.
//!
//! Invariants: the rules may change while requests are under way: what a request meets on its way through is what the
//! rules said when it arrived, or when it was let go.
//! Threads: rules are shared by the lanes of all threads behind a lock; this is no data path.

use std::collections::HashMap;
use std::ops::Range;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context as TaskContext, Poll};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use block::{
    Access, AfterPiecesAction, Answer, BatchPieces, BlockLimits, ByteCount, ByteOffset, Child,
    Claim, ClaimError, Clock, DiskSize, FailKind, HostMemory, InternalIoFuture, Lane,
    LaneCompletionDecision, LaneContext, LaneError, Mapping, Node, Operation, Outcome, Piece,
    PieceRange, Rights, Target, Token, WakeTime,
};

use super::number;
use super::stack::{Chosen, Home, Parts, Shape, Subject};
use super::stamp::SECTOR_BYTES;
use crate::rng::Rng;

/// Which requests are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Victims {
    /// Reads.
    Reads,
    /// Writes, discards and write-zeroes.
    Changes,
    /// All that have an extent.
    All,
    /// Flushes.
    Flushes,
}

impl Victims {
    /// Whether the operation is one of them.
    pub fn include(self, operation: &Operation) -> bool {
        match operation {
            Operation::Read(_) | Operation::Status(_) => {
                matches!(self, Self::Reads | Self::All)
            }
            Operation::Write(..) | Operation::Discard(..) | Operation::WriteZeroes(..) => {
                matches!(self, Self::Changes | Self::All)
            }
            Operation::Flush => self == Self::Flushes,
        }
    }
}

/// Requests that are refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Of this kind.
    pub victims: Victims,
    /// That touch these bytes of the node, if they have an extent.
    pub bytes: Range<u64>,
    /// In this way.
    pub kind: FailKind,
}

/// What happens to requests that are not refused; one in so many, none if zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mischief {
    /// Are held.
    pub hold_one_in: u64,
    /// At most so long.
    pub hold_longest: Duration,
    /// Have their pieces cut and mixed.
    pub split_one_in: u64,
    /// Are kept when they were carried out, for an internal I/O and another answer, up to three times.
    pub keep_one_in: u64,
}

#[derive(Clone, Debug)]
struct Rules {
    refusal: Option<Refusal>,
    mischief: Mischief,
    rng: Rng,
}

/// The rules of one node.
#[derive(Debug)]
pub struct Faults {
    size: u64,
    /// At first; later it may only stop.
    has_errands: bool,
    rules: Mutex<Rules>,
}

impl Faults {
    /// The bytes of the node.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// What is refused now.
    pub fn refusal(&self) -> Option<Refusal> {
        self.with(|rules| rules.refusal.clone())
    }

    /// Refuses from now on what this says, and nothing else.
    pub fn refuse(&self, refusal: Option<Refusal>) {
        self.with(|rules| rules.refusal = refusal);
    }

    /// Does this from now on.
    pub fn play(&self, mischief: Mischief) {
        self.with(|rules| rules.mischief = mischief);
    }

    /// Whether it has internal I/Os.
    pub(super) fn has_errands(&self) -> bool {
        self.has_errands
    }

    fn with<T>(&self, work: impl FnOnce(&mut Rules) -> T) -> T {
        // Whoever panicked has failed the test already.
        work(&mut self.rules.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn refused(&self, operation: &Operation) -> Option<FailKind> {
        self.with(|rules| {
            let refusal = rules.refusal.as_ref()?;
            let touches = operation.extent().is_none_or(|extent| {
                let bytes = extent.bytes();
                bytes.start < refusal.bytes.end && refusal.bytes.start < bytes.end
            });
            (touches && refusal.victims.include(operation)).then_some(refusal.kind)
        })
    }
}

impl Rules {
    fn happens(&mut self, one_in: u64) -> bool {
        one_in > 0 && self.rng.one_in(one_in)
    }
}

/// Nodes with faults in a stack.
#[derive(Debug)]
pub struct Faulty;

impl Subject for Faulty {
    fn name(&self) -> &'static str {
        "faulty"
    }

    fn children(&self) -> (usize, usize) {
        (1, 1)
    }

    fn choose(&self, rng: &mut Rng, below: &Shape) -> Option<Arc<dyn Chosen>> {
        let one_in = |rng: &mut Rng| [0, 1, 2, 8][rng.index(4)];
        let mischief = Mischief {
            hold_one_in: one_in(rng),
            hold_longest: Duration::from_micros(1 << rng.below(12)),
            split_one_in: one_in(rng),
            keep_one_in: one_in(rng),
        };
        let rules = Rules { refusal: None, mischief, rng: Rng::new(rng.next_u64()) };
        Some(ChosenFaults::chosen(below.size, rules))
    }
}

#[derive(Debug)]
struct ChosenFaults {
    faults: Arc<Faults>,
}

impl ChosenFaults {
    fn chosen(size: u64, rules: Rules) -> Arc<dyn Chosen> {
        let has_errands = rules.mischief.keep_one_in > 0;
        Arc::new(Self { faults: Arc::new(Faults { size, has_errands, rules: Mutex::new(rules) }) })
    }
}

impl Chosen for ChosenFaults {
    fn describe(&self) -> String {
        let Mischief { hold_one_in, hold_longest, split_one_in, keep_one_in } =
            self.faults.with(|rules| rules.mischief);
        format!("hold {hold_one_in} {hold_longest:?}, split {split_one_in}, keep {keep_one_in}")
    }

    fn size(&self) -> u64 {
        self.faults.size
    }

    fn home(&self, at: u64) -> Home {
        Home::Child(0, at)
    }

    fn build(&self, parts: Parts<'_>) -> Result<Arc<dyn Node>> {
        let child = Arc::clone(parts.children.first().context("what is below")?);
        let (faults, clock) = (Arc::clone(&self.faults), Arc::clone(parts.clock));
        Ok(Arc::new(FaultyNode { name: parts.name.to_owned(), child, faults, clock }))
    }

    fn faults(&self) -> Option<&Arc<Faults>> {
        Some(&self.faults)
    }

    fn fresh(&self) -> Option<Arc<dyn Chosen>> {
        Some(Self::chosen(self.faults.size, self.faults.with(|rules| rules.clone())))
    }
}

#[derive(Debug)]
struct FaultyNode {
    name: String,
    child: Arc<Child>,
    faults: Arc<Faults>,
    clock: Arc<dyn Clock>,
}

impl Node for FaultyNode {
    fn name(&self) -> &str {
        &self.name
    }

    fn size(&self) -> DiskSize {
        self.child.node().size()
    }

    fn limits(&self) -> BlockLimits {
        self.child.node().limits()
    }

    fn access(&self) -> Access {
        self.child.node().access()
    }

    fn flush(&self) -> std::io::Result<()> {
        self.child.node().flush()
    }

    fn claim(&self, rights: Rights) -> Result<Claim, ClaimError> {
        self.child.node().claim(rights)
    }

    fn open_lane(&self, io: &LaneContext) -> Result<Box<dyn Lane>, LaneError> {
        Ok(Box::new(FaultyLane {
            below: self.child.node().open_lane(io)?,
            faults: Arc::clone(&self.faults),
            clock: Arc::clone(&self.clock),
            io: io.clone(),
            held: Vec::new(),
            asked: Vec::new(),
            telling: HashMap::new(),
            kept_below: HashMap::new(),
            errands: Vec::new(),
        }))
    }
}

#[derive(Debug)]
struct FaultyLane {
    below: Box<dyn Lane>,
    faults: Arc<Faults>,
    clock: Arc<dyn Clock>,
    io: LaneContext,
    held: Vec<(Instant, Mapping)>,
    asked: Vec<Mapping>,
    /// What is to be told of.
    telling: HashMap<Token, Telling>,
    /// How often what the lane below has kept is to be kept here besides.
    kept_below: HashMap<Token, Option<u64>>,
    /// What is kept for an internal I/O.
    errands: Vec<(Telling, InternalIoFuture)>,
}

/// An answer that somebody wants to be told of.
#[derive(Debug)]
struct Telling {
    mapping: Mapping,
    pieces: Vec<Piece>,
    /// Whether the lane below does.
    below: bool,
    /// How often it is kept here.
    rounds: u64,
}

impl Lane for FaultyLane {
    fn map(&mut self, batch: &mut [Mapping], pieces: &mut BatchPieces) {
        let now = self.clock.now();
        let mut asked = std::mem::take(&mut self.asked);
        asked.clear();
        for mapping in batch.iter_mut() {
            let hold = self.faults.with(|rules| {
                rules.happens(rules.mischief.hold_one_in).then(|| {
                    let longest = rules.mischief.hold_longest.as_nanos();
                    let longest = u64::try_from(longest).expect("a hold is short");
                    now + Duration::from_nanos(rules.rng.below(longest.max(1)))
                })
            });
            mapping.answer = match (self.faults.refused(&mapping.operation), hold) {
                // What is held meets the rules when it is let go.
                (_, Some(until)) => {
                    self.held.push((until, *mapping));
                    Answer::Held
                }
                (Some(kind), None) => Answer::Refused(kind),
                (None, None) => {
                    asked.push(*mapping);
                    Answer::Held
                }
            };
        }
        self.ask(&mut asked, pieces);
        for answered in &asked {
            let own = batch.iter_mut().find(|mapping| mapping.token == answered.token);
            *own.expect("it was asked for") = *answered;
        }
        self.asked = asked;
    }

    fn due(&self) -> Option<WakeTime> {
        let own = self.held.iter().map(|(until, _)| *until).min();
        let own = own.map(|at| WakeTime { at, slack: Duration::ZERO });
        WakeTime::first(own, self.below.due())
    }

    fn resume(&mut self, now: Instant, late: &mut Vec<Mapping>, pieces: &mut BatchPieces) {
        let start = late.len();
        self.below.resume(now, late, pieces);
        for mapping in &mut late[start..] {
            self.take_answer(mapping, pieces);
        }
        self.go_on(late, pieces);
        let mut asked = std::mem::take(&mut self.asked);
        asked.clear();
        let faults = &self.faults;
        self.held.retain(|(until, mapping)| {
            if *until > now {
                return true;
            }
            match faults.refused(&mapping.operation) {
                Some(kind) => late.push(Mapping { answer: Answer::Refused(kind), ..*mapping }),
                None => asked.push(*mapping),
            }
            false
        });
        self.ask(&mut asked, pieces);
        late.extend(asked.iter().filter(|mapping| mapping.answer != Answer::Held));
        self.asked = asked;
    }

    fn release(&mut self) {
        let now = self.clock.now();
        for (until, _) in &mut self.held {
            *until = now.min(*until);
        }
        self.below.release();
    }

    fn completed(&mut self, token: Token, outcome: Outcome) -> LaneCompletionDecision {
        let mut telling = self.telling.remove(&token).expect("told once of each answer");
        let mut outcome = outcome;
        if telling.below {
            match self.below.completed(token, outcome) {
                LaneCompletionDecision::HoldAgain => {
                    self.kept_below.insert(token, Some(telling.rounds));
                    return LaneCompletionDecision::HoldAgain;
                }
                LaneCompletionDecision::Finish(said) => outcome = said,
            }
        }
        if telling.rounds == 0 || outcome != Outcome::Done {
            return LaneCompletionDecision::Finish(outcome);
        }
        telling.rounds -= 1;
        let mut done = self.begin_errand(&telling);
        // So it knows whom it wakes.
        let begun = Pin::new(&mut done).poll(&mut TaskContext::from_waker(self.io.waker()));
        assert!(begun.is_pending(), "an errand begins when the lane returns");
        self.errands.push((telling, done));
        LaneCompletionDecision::HoldAgain
    }
}

impl FaultyLane {
    /// Reads what the answer was about, if that was bytes in memory, or zeroes.
    fn begin_errand(&self, telling: &Telling) -> InternalIoFuture {
        let about = telling.mapping.operation.extent().map_or(0, |extent| extent.count().0);
        let has_memory =
            matches!(telling.mapping.operation, Operation::Read(_) | Operation::Write(..));
        let (count, pieces) = if has_memory && !telling.pieces.is_empty() {
            (about, telling.pieces.clone())
        } else {
            let count = number(SECTOR_BYTES);
            (count, vec![Piece { skip: 0, count: ByteCount(count), target: Target::Zeroes }])
        };
        let extent = DiskSize(ByteCount(count)).check(ByteOffset(0), ByteCount(count));
        let read = Operation::Read(extent.expect("as long as that"));
        self.io.submit(read, &pieces, HostMemory::zeroed(super::index(count)))
    }

    /// Answers again what was kept for internal I/Os that are over: there is nothing left, or all of it is done again.
    fn go_on(&mut self, late: &mut Vec<Mapping>, pieces: &mut BatchPieces) {
        let waker = self.io.waker().clone();
        let mut context = TaskContext::from_waker(&waker);
        for (telling, mut done) in std::mem::take(&mut self.errands) {
            let Poll::Ready(result) = Pin::new(&mut done).poll(&mut context) else {
                self.errands.push((telling, done));
                continue;
            };
            let Telling { mut mapping, pieces: before, rounds, .. } = telling;
            mapping.answer = match result {
                Err(kind) => Answer::Refused(kind),
                Ok(_) if self.faults.with(|rules| rules.rng.one_in(2)) => {
                    Answer::Now(pieces.none())
                }
                Ok(_) => {
                    let mark = pieces.end();
                    before.into_iter().for_each(|piece| pieces.push(piece));
                    Answer::Now(pieces.since(mark))
                }
            };
            mapping.after = AfterPiecesAction::Finish;
            self.ask_to_be_told(&mut mapping, Some(rounds), pieces);
            late.push(mapping);
        }
    }

    /// An answer comes from below.
    fn take_answer(&mut self, mapping: &mut Mapping, pieces: &mut BatchPieces) {
        self.split(mapping, pieces);
        let kept_below =
            self.kept_below.remove(&mapping.token).filter(|_| mapping.answer != Answer::Held);
        let rounds = kept_below.unwrap_or_else(|| {
            self.faults
                .with(|rules| rules.happens(rules.mischief.keep_one_in).then(|| rules.rng.below(4)))
        });
        self.ask_to_be_told(mapping, rounds, pieces);
    }

    fn ask_to_be_told(&mut self, mapping: &mut Mapping, rounds: Option<u64>, pieces: &BatchPieces) {
        let Answer::Now(range) = mapping.answer else { return };
        let below = mapping.after == AfterPiecesAction::NotifyLane;
        if below || rounds.is_some() {
            mapping.after = AfterPiecesAction::NotifyLane;
            let pieces = pieces.get(range).to_vec();
            let mapping = *mapping;
            self.telling.insert(
                mapping.token,
                Telling { mapping, pieces, below, rounds: rounds.unwrap_or(0) },
            );
        }
    }

    fn ask(&mut self, asked: &mut [Mapping], pieces: &mut BatchPieces) {
        if asked.is_empty() {
            return;
        }
        self.below.map(asked, pieces);
        for mapping in asked {
            self.take_answer(mapping, pieces);
        }
    }

    fn split(&self, mapping: &mut Mapping, pieces: &mut BatchPieces) {
        let Answer::Now(range) = mapping.answer else { return };
        mapping.answer = Answer::Now(self.faults.with(|rules| {
            if !rules.happens(rules.mischief.split_one_in) {
                return range;
            }
            cut(range, pieces, &mut rules.rng)
        }));
    }
}

/// The same pieces, cut at random sectors and in another order.
fn cut(range: PieceRange, pieces: &mut BatchPieces, rng: &mut Rng) -> PieceRange {
    let mut parts: Vec<Piece> = Vec::new();
    for piece in pieces.get(range) {
        let sector = number(SECTOR_BYTES);
        let mut done = 0;
        while piece.count.0 - done > sector && parts.len() < 8 {
            let sectors = (piece.count.0 - done).div_ceil(sector) - 1;
            let count = (1 + rng.below(sectors)) * sector;
            parts.push(part(piece, done, count));
            done += count;
        }
        parts.push(part(piece, done, piece.count.0 - done));
    }
    for place in (1..parts.len()).rev() {
        parts.swap(place, rng.index(place + 1));
    }
    let mark = pieces.end();
    parts.into_iter().for_each(|part| pieces.push(part));
    pieces.since(mark)
}

fn part(piece: &Piece, from: u64, count: u64) -> Piece {
    let (skip, target) = (piece.skip + from, piece.target.behind(from));
    Piece { skip, count: ByteCount(count), target }
}

#[cfg(test)]
mod tests {
    use super::*;
    use block::FileId;

    #[test]
    fn cut_pieces_are_the_same_bytes() {
        for seed in 0..100 {
            let target = Target::File { file: FileId(1), offset: ByteOffset(1000) };
            let mut pieces = BatchPieces::default();
            let whole = pieces.one(Piece { skip: 512, count: ByteCount(4096), target });
            let range = cut(whole, &mut pieces, &mut Rng::new(seed));
            let mut parts = pieces.get(range).to_vec();
            parts.sort_by_key(|part| part.skip);
            let mut skip = 512;
            for part in parts {
                assert_eq!(part.skip, skip);
                let offset = ByteOffset(1000 + skip - 512);
                assert_eq!(part.target, Target::File { file: FileId(1), offset });
                skip += part.count.0;
            }
            assert_eq!(skip, 512 + 4096);
        }
    }
}
