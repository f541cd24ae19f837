//! The suite passes what is right and finds what is not: a window on a child, and the mistakes that it could have.

use std::collections::{HashSet, VecDeque};
use std::time::Instant;

use super::number;
use super::play::{play, play_with};
use super::stack::{Chosen, Home, Parts, Shape, Subject, Which};
use super::stamp::SECTOR_BYTES;
use crate::rng::Rng;
use crate::simulation::kernel::KernelMischief;
use anyhow::Result;
use block::{
    Access, AfterPiecesAction, Answer, BatchPieces, BlockLimits, ByteCount, ByteOffset, Child,
    Claim, ClaimError, Clock, DiskSize, Durability, FailKind, Lane, LaneCompletionDecision,
    LaneContext, LaneError, LocateQuery, Mapping, Node, Operation, Outcome, Piece, Rights, Target,
    Token, WakeTime,
};
use std::sync::Arc;

/// What is wrong with a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mistake {
    None,
    /// What it says at once of a place is not where it answers.
    LocatesElsewhere,
    /// The same of reads that it is asked for together.
    LocatesReadsElsewhere,
    /// All is one sector off, consistently.
    Place,
    /// Long requests are one sector off at their end.
    Tail,
    /// A held request is lost now and then.
    Loses,
    /// A held request is answered twice.
    AnswersTwice,
    /// Two parts of an answer change places.
    Skip,
    /// The last sector is left out.
    Short,
    /// What is below is asked for bytes that it does not have.
    TooFar,
    /// Some requests are not answered.
    Forgets,
    /// A release does nothing.
    KeepsReleased,
    /// What is held goes on at once.
    TooEarly,
    /// Nothing is due although something is held.
    NeverDue,
    /// Flushes do nothing.
    NoFlush,
    /// What must be stable is not.
    Weakens,
    /// A failure below becomes another one.
    OtherFailure,
    /// A failure below is hidden.
    HidesFailure,
    /// The answers of a batch go to each other's requests.
    Swaps,
    /// Who is below is not told.
    NeverTells,
    /// Who is below is told twice.
    TellsTwice,
    /// Who is below is told of what it did not ask for.
    TellsUnasked,
    /// Nobody hears that who is below wants to be told.
    HidesTell,
    /// What is kept below is over above.
    LosesKept,
    /// What is kept below is not answered again.
    NeverAgain,
    /// A status is asked where it would be if the window began with the child.
    StatusPlace,
    /// The end of what a status tells is said to be a hole.
    StatusHole,
}

const MISTAKES: [Mistake; 26] = [
    Mistake::LocatesElsewhere,
    Mistake::LocatesReadsElsewhere,
    Mistake::Place,
    Mistake::Tail,
    Mistake::Loses,
    Mistake::AnswersTwice,
    Mistake::Skip,
    Mistake::Short,
    Mistake::TooFar,
    Mistake::Forgets,
    Mistake::KeepsReleased,
    Mistake::TooEarly,
    Mistake::NeverDue,
    Mistake::NoFlush,
    Mistake::Weakens,
    Mistake::OtherFailure,
    Mistake::HidesFailure,
    Mistake::Swaps,
    Mistake::NeverTells,
    Mistake::TellsTwice,
    Mistake::TellsUnasked,
    Mistake::HidesTell,
    Mistake::LosesKept,
    Mistake::NeverAgain,
    Mistake::StatusPlace,
    Mistake::StatusHole,
];

#[derive(Debug)]
struct Window(Mistake);

impl Subject for Window {
    fn name(&self) -> &'static str {
        "window"
    }

    fn children(&self) -> (usize, usize) {
        (1, 1)
    }

    fn choose(&self, rng: &mut Rng, below: &Shape) -> Option<Arc<dyn Chosen>> {
        let sectors = below.size / number(SECTOR_BYTES);
        let offset = rng.below(sectors);
        // One sector is left behind the window, for mistakes.
        let size = 1 + rng.below((sectors - offset).saturating_sub(1).max(1));
        if offset + size >= sectors {
            return None;
        }
        let sector = number(SECTOR_BYTES);
        Some(Arc::new(ChosenWindow {
            offset: offset * sector,
            size: size * sector,
            hold: rng.below(4),
            mistake: self.0,
        }))
    }
}

#[derive(Clone, Copy, Debug)]
struct ChosenWindow {
    offset: u64,
    size: u64,
    /// One of so many requests is held; none if zero.
    hold: u64,
    mistake: Mistake,
}

impl Chosen for ChosenWindow {
    fn describe(&self) -> String {
        format!("{self:?}")
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn home(&self, at: u64) -> Home {
        Home::Child(0, at + self.offset)
    }

    fn build(&self, parts: Parts<'_>) -> Result<Arc<dyn Node>> {
        let child = Arc::clone(&parts.children[0]);
        let clock = Arc::clone(parts.clock);
        Ok(Arc::new(WindowNode { name: parts.name.to_owned(), child, clock, chosen: *self }))
    }
}

#[derive(Debug)]
struct WindowNode {
    name: String,
    child: Arc<Child>,
    clock: Arc<dyn Clock>,
    chosen: ChosenWindow,
}

impl Node for WindowNode {
    fn name(&self) -> &str {
        &self.name
    }

    fn size(&self) -> DiskSize {
        DiskSize(ByteCount(self.chosen.size))
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
        let node = self.child.node();
        Ok(Box::new(WindowLane {
            below: node.open_lane(io)?,
            size_below: node.size(),
            chosen: self.chosen,
            clock: Arc::clone(&self.clock),
            held: VecDeque::new(),
            count: 0,
            twice: None,
            kept: HashSet::new(),
        }))
    }
}

#[derive(Debug)]
struct WindowLane {
    below: Box<dyn Lane>,
    size_below: DiskSize,
    chosen: ChosenWindow,
    clock: Arc<dyn Clock>,
    held: VecDeque<(Instant, Mapping)>,
    count: u64,
    twice: Option<Mapping>,
    kept: HashSet<Token>,
}

impl WindowLane {
    fn is(&self, mistake: Mistake) -> bool {
        self.chosen.mistake == mistake
    }

    fn now_and_then(&mut self) -> bool {
        self.count += 1;
        self.count.is_multiple_of(4)
    }

    fn shift(&self, operation: Operation) -> Operation {
        let sector = number(SECTOR_BYTES);
        let moved = |extent: block::Extent| {
            let mut start = extent.start().0 + self.chosen.offset;
            if self.is(Mistake::Place) || (self.is(Mistake::Tail) && extent.count().0 > 8 * sector)
            {
                start += sector;
            }
            let start = if self.is(Mistake::TooFar) { extent.start().0 } else { start };
            let size = if self.is(Mistake::TooFar) { u64::MAX } else { self.size_below.0.0 };
            let start = if self.is(Mistake::TooFar) { start + self.size_below.0.0 } else { start };
            let size = DiskSize(ByteCount(size));
            size.check(ByteOffset(start), extent.count()).expect("inside the child")
        };
        let durability = |durability| match durability {
            Durability::Stable if self.is(Mistake::Weakens) => Durability::Cached,
            Durability::Stable | Durability::Cached => durability,
        };
        match operation {
            Operation::Read(extent) => Operation::Read(moved(extent)),
            Operation::Status(extent) if self.is(Mistake::StatusPlace) => Operation::Status(extent),
            Operation::Status(extent) => Operation::Status(moved(extent)),
            Operation::Write(extent, kept) => Operation::Write(moved(extent), durability(kept)),
            Operation::Discard(extent, kept) => Operation::Discard(moved(extent), durability(kept)),
            Operation::WriteZeroes(extent, unmap, kept) => {
                Operation::WriteZeroes(moved(extent), unmap, durability(kept))
            }
            Operation::Flush => Operation::Flush,
        }
    }

    fn ask(&mut self, asked: &mut [Mapping], pieces: &mut BatchPieces) {
        for mapping in asked.iter_mut() {
            mapping.operation = self.shift(mapping.operation);
        }
        let (mut start, forgets) = (0, self.is(Mistake::Forgets));
        if forgets && asked.len() > 3 {
            start = 1;
        }
        self.below.map(&mut asked[start..], pieces);
        for mapping in asked.iter_mut() {
            self.spoil(mapping, pieces);
        }
    }

    fn spoil(&self, mapping: &mut Mapping, pieces: &mut BatchPieces) {
        if self.is(Mistake::HidesTell) {
            mapping.after = AfterPiecesAction::Finish;
        } else if self.is(Mistake::TellsUnasked) {
            mapping.after = AfterPiecesAction::NotifyLane;
        }
        match mapping.answer {
            Answer::Refused(_) if self.is(Mistake::OtherFailure) => {
                mapping.answer = Answer::Refused(FailKind::OutOfRange);
            }
            Answer::Refused(_) if self.is(Mistake::HidesFailure) => {
                let count = mapping.operation.extent().map_or(ByteCount(0), |it| it.count());
                let piece = Piece { skip: 0, count, target: Target::Nothing };
                mapping.answer = Answer::Now(pieces.one(piece));
            }
            Answer::Now(range) if self.is(Mistake::Skip) || self.is(Mistake::Short) => {
                let mut parts = pieces.get(range).to_vec();
                let mark = pieces.end();
                if let [first] = &parts[..]
                    && let Target::File { file, offset } = first.target
                    && first.count.0 >= 2 * number(SECTOR_BYTES)
                {
                    let half = ByteCount(number(SECTOR_BYTES));
                    let rest = ByteCount(first.count.0 - half.0);
                    let target = Target::File { file, offset: ByteOffset(offset.0 + half.0) };
                    parts = if self.is(Mistake::Short) {
                        vec![Piece { count: rest, ..first.clone() }]
                    } else {
                        // Each has the other's place in memory.
                        let first = first.target.clone();
                        vec![
                            Piece { skip: rest.0, count: half, target: first },
                            Piece { skip: 0, count: rest, target },
                        ]
                    };
                }
                parts.into_iter().for_each(|part| pieces.push(part));
                mapping.answer = Answer::Now(pieces.since(mark));
            }
            Answer::Now(range)
                if matches!(mapping.operation, Operation::Status(_))
                    && self.is(Mistake::StatusHole) =>
            {
                let mut parts = pieces.get(range).to_vec();
                let mark = pieces.end();
                if let Some(last) = parts.pop() {
                    let half = last.count.0 / 2 / number(SECTOR_BYTES) * number(SECTOR_BYTES);
                    let (skip, count) = (last.skip + half, ByteCount(last.count.0 - half));
                    let hole = Piece { skip, count, target: Target::Zeroes };
                    let rest = Piece { count: ByteCount(half), ..last };
                    parts.extend([rest, hole].into_iter().filter(|piece| piece.count.0 > 0));
                }
                parts.into_iter().for_each(|part| pieces.push(part));
                mapping.answer = Answer::Now(pieces.since(mark));
            }
            Answer::Now(_)
                if mapping.operation == Operation::Flush && self.is(Mistake::NoFlush) =>
            {
                mapping.answer = Answer::Now(pieces.none());
            }
            Answer::Now(_) | Answer::Held | Answer::Refused(_) => {}
        }
    }
}

impl Lane for WindowLane {
    fn map(&mut self, batch: &mut [Mapping], pieces: &mut BatchPieces) {
        let until = self.clock.now() + std::time::Duration::from_micros(50);
        for mapping in batch.iter_mut() {
            self.count += 1;
            if self.chosen.hold > 0 && self.count.is_multiple_of(self.chosen.hold) {
                self.held.push_back((until, *mapping));
                mapping.answer = Answer::Held;
            } else {
                self.ask(std::slice::from_mut(mapping), pieces);
            }
        }
        if self.is(Mistake::Forgets) && batch.len() > 3 {
            batch[0].answer = Answer::Refused(FailKind::Io);
        }
        if let [first, second, ..] = batch
            && self.is(Mistake::Swaps)
            && let (Answer::Now(_), Answer::Now(_)) = (first.answer, second.answer)
        {
            std::mem::swap(&mut first.answer, &mut second.answer);
        }
    }

    fn locate(&mut self, operation: Operation) -> Option<Target> {
        // In a window that begins elsewhere.
        if self.is(Mistake::LocatesElsewhere) { self.below.locate(operation) } else { None }
    }

    fn locate_reads(&mut self, queries: &mut [LocateQuery]) {
        if self.is(Mistake::LocatesReadsElsewhere) {
            self.below.locate_reads(queries);
        }
    }

    fn due(&self) -> Option<WakeTime> {
        let own = self.held.front().filter(|_| !self.is(Mistake::NeverDue));
        let own = own.map(|(at, _)| WakeTime { at: *at, slack: std::time::Duration::ZERO });
        WakeTime::first(own, self.below.due())
    }

    fn resume(&mut self, now: Instant, late: &mut Vec<Mapping>, pieces: &mut BatchPieces) {
        let start = late.len();
        self.below.resume(now, late, pieces);
        if self.is(Mistake::NeverAgain) {
            let kept = std::mem::take(&mut self.kept);
            late.retain(|mapping| !kept.contains(&mapping.token));
        }
        for mapping in &mut late[start..] {
            self.spoil(mapping, pieces);
        }
        while let Some((until, mut mapping)) = self.held.front().copied()
            && (until <= now || self.is(Mistake::TooEarly))
        {
            self.held.pop_front();
            if self.is(Mistake::Loses) && self.now_and_then() {
                continue;
            }
            self.ask(std::slice::from_mut(&mut mapping), pieces);
            if mapping.answer != Answer::Held {
                late.push(mapping);
            }
        }
        if self.is(Mistake::AnswersTwice)
            && let Some(mapping) = self.twice.take()
        {
            late.push(Mapping { answer: Answer::Refused(FailKind::Io), ..mapping });
        }
        self.twice = late.get(start).copied();
    }

    fn release(&mut self) {
        if !self.is(Mistake::KeepsReleased) {
            let now = self.clock.now();
            self.held.iter_mut().for_each(|(until, _)| *until = now);
        }
        self.below.release();
    }

    fn completed(&mut self, token: Token, outcome: Outcome) -> LaneCompletionDecision {
        if self.is(Mistake::NeverTells) {
            return LaneCompletionDecision::Finish(outcome);
        }
        let told = self.below.completed(token, outcome);
        match (self.chosen.mistake, told) {
            (Mistake::TellsTwice, _) => self.below.completed(token, outcome),
            (Mistake::LosesKept, LaneCompletionDecision::HoldAgain) => {
                LaneCompletionDecision::Finish(outcome)
            }
            (Mistake::NeverAgain, LaneCompletionDecision::HoldAgain) => {
                self.kept.insert(token);
                LaneCompletionDecision::HoldAgain
            }
            _ => told,
        }
    }
}

fn subjects(mistake: Mistake) -> [Arc<dyn Subject>; 1] {
    [Arc::new(Window(mistake))]
}

#[test]
fn what_is_right_passes() {
    let subjects = subjects(Mistake::None);
    let (mut done, mut refused, mut held, mut kept) = (0, 0, 0, 0);
    for seed in 0..300 {
        let played = play(seed, &subjects, Which::Any).unwrap_or_else(|error| panic!("{error:#}"));
        done += played.tally.done;
        refused += played.tally.refused;
        held += played.held;
        kept += played.kept;
    }
    assert!(done > 15_000 && refused > 300 && held > 3000, "{done}, {refused}, {held}");
    assert!(kept > 3000, "{kept}");
}

#[test]
fn every_mistake_is_found() {
    for mistake in MISTAKES {
        let subjects = subjects(mistake);
        let window: &dyn Subject = subjects[0].as_ref();
        let mut tries = (0..200).map(|seed| play(seed, &subjects, Which::Alone(window)));
        assert!(tries.any(|played| played.is_err()), "{mistake:?} is not found");
    }
}

#[test]
fn every_mischief_below_is_found() {
    let subjects = subjects(Mistake::None);
    for mischief in [
        KernelMischief::LateZeroing,
        KernelMischief::LyingSyncs,
        KernelMischief::ForgetfulChannels,
        KernelMischief::HolesToldByChannels,
    ] {
        let mut tries = (0..400).map(|seed| play_with(seed, &subjects, Which::Any, mischief));
        assert!(tries.any(|played| played.is_err()), "{mischief:?} is not found");
    }
}
