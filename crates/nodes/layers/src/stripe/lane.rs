//! A thread's handle on a stripe: spreads operations over the members and puts the answers together.
//!
//! Where it stands in the life of a request: each operation of a batch becomes at most one operation of
//! each member, and each member is asked once for all of the batch. What lies in one chunk is
//! answered as its member answers it.
//!
//! Invariants: an operation is answered when all its parts are, or as far as they are when a member wants to be told of
//! its part; if a member refuses its part, the whole is refused, after that. A member that asked for it is told of the
//! answer, once for each answer to its part, also if that came to nothing; what it keeps, it answers again. The pieces
//! of one member follow each other, so that what is neighbouring in a file goes to the kernel together. Limits: an
//! answer has at most [`block::PIECES_MAX`] pieces; what needs more is refused.

use std::ops::Range;
use std::time::Instant;

use block::{
    Access, AfterPiecesAction, Answer, BatchPieces, ByteCount, ByteOffset, DiskSize, Extent,
    FailKind, Lane, LaneCompletionDecision, LaneContext, Mapping, Operation, Outcome, PIECES_MAX,
    Token, WakeTime,
};

use super::StripeDiscards;
use super::join::{AnswerBuilder, JoinTable, MemberSpread, StripedOperation, has_places};
use super::layout::{Layout, Split};

/// For how many chunks a status is answered at most.
const STATUS_CHUNKS: u64 = 1024;

/// One thread's handle on a stripe.
#[derive(Debug)]
pub(super) struct StripeLane {
    shape: StripeParameters,
    io: LaneContext,
    members: Vec<Member>,
    joins: JoinTable,
    /// The batch as it was spread, in its order.
    asked: Vec<(Token, MemberSpread)>,
    /// What a member answers late. Empty between calls.
    late: Vec<Mapping>,
    /// Operations that can be answered again when the lane is called.
    again: Vec<Token>,
}

/// A stripe's layout, access and discard policy.
#[derive(Debug)]
struct StripeParameters {
    layout: Layout,
    access: Access,
    discards: StripeDiscards,
}

/// A member's lane, and its parts of the batch.
#[derive(Debug)]
struct Member {
    lane: Box<dyn Lane>,
    /// Its parts of the batch.
    parts: Vec<Mapping>,
    /// How many of them were taken back.
    taken: usize,
}

impl StripeLane {
    /// A lane over those of all members. It does not know how large they are: they may grow.
    pub(super) fn new(
        layout: Layout,
        io: &LaneContext,
        lanes: Vec<Box<dyn Lane>>,
        access: Access,
        discards: StripeDiscards,
    ) -> Self {
        let shape = StripeParameters { layout, access, discards };
        let member = |lane| Member { lane, parts: Vec::new(), taken: 0 };
        let members = lanes.into_iter().map(member).collect();
        let (joins, asked, late, again) = Default::default();
        Self { shape, io: io.clone(), members, joins, asked, late, again }
    }

    /// Decides who is asked for an operation, and notes what each member is asked for.
    fn spread(&mut self, mapping: &mut Mapping, pieces: &BatchPieces) {
        let Self { shape, members, joins, asked, .. } = self;
        let name = joins.name();
        let spread = match shape.judge(mapping, pieces) {
            Err(answer) => {
                mapping.answer = answer;
                MemberSpread::Nowhere
            }
            Ok(None) => {
                members.iter_mut().for_each(|member| member.ask(name, mapping.operation));
                MemberSpread::Everywhere
            }
            Ok(Some(split)) => {
                for place in 0..split.parts {
                    let part = shape.layout.part(&split, place);
                    let extent = shape.extent(part.bytes);
                    members[part.member].ask(name, mapping.operation.on(extent));
                }
                if split.parts == 1 {
                    MemberSpread::One(split.first)
                } else {
                    MemberSpread::Parts(split)
                }
            }
        };
        asked.push((name, spread));
    }

    /// Answers an operation with what its members have answered.
    fn gather(
        &mut self,
        mapping: &mut Mapping,
        name: Token,
        spread: MemberSpread,
        pieces: &mut BatchPieces,
    ) {
        let Self { shape, members, joins, .. } = self;
        let count = match spread {
            MemberSpread::Nowhere => 0,
            MemberSpread::One(_) => 1,
            MemberSpread::Parts(split) => split.parts,
            MemberSpread::Everywhere => members.len(),
        };
        let member_at = |place| match spread {
            MemberSpread::One(member) => member,
            MemberSpread::Parts(split) => shape.layout.member(&split, place),
            MemberSpread::Nowhere | MemberSpread::Everywhere => place,
        };
        let mut whole = StripedOperation::new(*mapping, spread);
        if (0..count).any(|place| members[member_at(place)].next_is_not_over()) {
            joins.begin(name, whole);
            let mut answered = None;
            for place in 0..count {
                let member = member_at(place);
                let part = members[member].take_back();
                answered = joins.take(name, (member, place), &part, pieces);
            }
            let answered =
                answered.or_else(|| conclude(shape.layout, members, joins, name, pieces));
            *mapping = answered.unwrap_or(Mapping { answer: Answer::Held, ..*mapping });
            return;
        }
        joins.give_back(name);
        match spread {
            MemberSpread::Nowhere => {}
            MemberSpread::One(member) => *mapping = whole.as_part(members[member].take_back()),
            MemberSpread::Parts(_) | MemberSpread::Everywhere => {
                let mut answering = AnswerBuilder::new(shape.layout, pieces);
                for place in 0..count {
                    let part = members[member_at(place)].take_back();
                    whole.take(&part);
                    answering.copy(&whole, place, &part);
                }
                *mapping = whole.answered(&answering);
            }
        }
    }
}

impl StripeParameters {
    /// What is to be done for an operation: ask the members that a split names, or all of them if it is
    /// about no bytes, or answer.
    fn judge(&self, mapping: &mut Mapping, pieces: &BatchPieces) -> Result<Option<Split>, Answer> {
        if mapping.operation.is_change() && self.access == Access::ReadOnly {
            return Err(Answer::Refused(FailKind::ReadOnly));
        }
        if self.discards == StripeDiscards::Ignored {
            match mapping.operation {
                Operation::Discard(..) => return Err(Answer::Now(pieces.none())),
                Operation::WriteZeroes(extent, terms, durability) => {
                    mapping.operation =
                        Operation::WriteZeroes(extent, terms.keeping_space(), durability);
                }
                Operation::Read(_)
                | Operation::Status(_)
                | Operation::Write(..)
                | Operation::Flush => {}
            }
        }
        let Some(extent) = mapping.operation.extent() else { return Ok(None) };
        if extent.count().0 == 0 {
            return Err(Answer::Now(pieces.none()));
        }
        if extent.bytes().end > self.layout.size(self.layout.member_bytes_max()).0 {
            return Err(Answer::Refused(FailKind::OutOfRange));
        }
        let split = self.layout.split(self.told_at_once(mapping.operation, extent));
        // What the members may answer with at best is too much.
        if has_places(mapping.operation) && split.chunks() > PIECES_MAX as u64 {
            return Err(Answer::Refused(FailKind::Unsupported));
        }
        Ok(Some(split))
    }

    /// The bytes that members are asked about: a status is not answered for more chunks than these.
    fn told_at_once(&self, operation: Operation, extent: Extent) -> Extent {
        let Operation::Status(_) = operation else { return extent };
        let most = self.layout.chunk_bytes().0.saturating_mul(STATUS_CHUNKS);
        let count = ByteCount(extent.count().0.min(most));
        let size = DiskSize(ByteCount(extent.bytes().end));
        size.check(extent.start(), count).expect("the beginning of it")
    }

    fn extent(&self, bytes: Range<u64>) -> Extent {
        let (start, count) = (ByteOffset(bytes.start), ByteCount(bytes.end - bytes.start));
        let largest = DiskSize(self.layout.member_bytes_max());
        largest.check(start, count).expect("a part of the largest stripe is on its largest member")
    }
}

impl Member {
    fn ask(&mut self, name: Token, operation: Operation) {
        self.parts.push(Mapping::new(name, operation));
    }

    /// Whether there will be more of the next part that is taken back: another answer, or something to be
    /// told.
    fn next_is_not_over(&self) -> bool {
        let part = &self.parts[self.taken];
        match part.answer {
            Answer::Held => true,
            Answer::Now(_) => part.after == AfterPiecesAction::NotifyLane,
            Answer::Refused(_) => false,
        }
    }

    fn take_back(&mut self) -> Mapping {
        self.taken += 1;
        self.parts[self.taken - 1]
    }
}

impl Lane for StripeLane {
    fn map(&mut self, batch: &mut [Mapping], pieces: &mut BatchPieces) {
        for mapping in batch.iter_mut() {
            self.spread(mapping, pieces);
        }
        for member in self.members.iter_mut().filter(|member| !member.parts.is_empty()) {
            member.lane.map(&mut member.parts, pieces);
        }
        let mut asked = std::mem::take(&mut self.asked);
        for (mapping, (name, spread)) in batch.iter_mut().zip(asked.drain(..)) {
            self.gather(mapping, name, spread, pieces);
        }
        self.asked = asked;
        for member in &mut self.members {
            member.parts.clear();
            member.taken = 0;
        }
    }

    fn due(&self) -> Option<WakeTime> {
        self.members.iter().fold(None, |due, member| WakeTime::first(due, member.lane.due()))
    }

    fn resume(&mut self, now: Instant, late: &mut Vec<Mapping>, pieces: &mut BatchPieces) {
        let Self { shape, members, joins, late: parts, again, .. } = self;
        let layout = shape.layout;
        for name in again.drain(..) {
            late.extend(conclude(layout, members, joins, name, pieces));
        }
        for member in 0..members.len() {
            members[member].lane.resume(now, parts, pieces);
            for part in parts.drain(..) {
                let name = part.token;
                let place = joins.late(layout, name, member);
                let answered = joins.take(name, (member, place), &part, pieces);
                late.extend(answered.or_else(|| conclude(layout, members, joins, name, pieces)));
            }
        }
    }

    fn completed(&mut self, token: Token, outcome: Outcome) -> LaneCompletionDecision {
        let Self { io, members, joins, again, .. } = self;
        let name = joins.notified(token);
        let outcome = tell(members, joins, name, outcome);
        if joins.is_over(name) {
            joins.give_back(name);
            return LaneCompletionDecision::Finish(joins.outcome(name, outcome));
        }
        if let Outcome::Failed(kind) = outcome {
            joins.refuse(name, kind);
        }
        if joins.can_answer(name) {
            again.push(name);
            io.waker().wake_by_ref();
        }
        LaneCompletionDecision::HoldAgain
    }

    fn release(&mut self) {
        for member in &mut self.members {
            member.lane.release();
        }
    }
}

/// The answer to an operation, if there can be one now; none if a member keeps its part when it hears that the
/// whole is refused.
fn conclude(
    layout: Layout,
    members: &mut [Member],
    joins: &mut JoinTable,
    name: Token,
    pieces: &mut BatchPieces,
) -> Option<Mapping> {
    if !joins.can_answer(name) {
        return None;
    }
    let mut whole = joins.answer(name, layout, pieces);
    if let Answer::Refused(kind) = whole.answer {
        joins.refuse(name, kind);
        whole.after = AfterPiecesAction::Finish;
        // Nothing of what the others have answered is carried out.
        let _refused = tell(members, joins, name, Outcome::Failed(kind));
        if joins.is_held(name) {
            return None;
        }
    }
    joins.answered(name, &whole);
    Some(whole)
}

/// Tells the members that asked for it how the whole ended; returns what that is with what they say.
fn tell(members: &mut [Member], joins: &mut JoinTable, name: Token, outcome: Outcome) -> Outcome {
    let mut result = outcome;
    while let Some(member) = joins.next_told(name) {
        match members[member].lane.completed(name, outcome) {
            LaneCompletionDecision::HoldAgain => joins.hold(name),
            LaneCompletionDecision::Finish(said) if joins.is_of_one(name) => result = said,
            LaneCompletionDecision::Finish(Outcome::Failed(kind)) if result == Outcome::Done => {
                result = Outcome::Failed(kind);
            }
            LaneCompletionDecision::Finish(_) => {}
        }
    }
    result
}
