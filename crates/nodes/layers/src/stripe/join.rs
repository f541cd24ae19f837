//! Requests of which a member holds a part, or wants to be told: what is kept of them until they are over.
//!
//! Where it stands: `lane` spreads an operation over members and puts the answers together. What is
//! answered at once, and is over then, never comes here, but for the name under which its parts are asked for.
//!
//! Invariants: a name is given to one operation at a time. What a member wants to be told of is carried out
//! without waiting for parts that others hold: until it is told it may keep other requests waiting, also those
//! that hold these parts. Limits: as many as the asker has requests
//! in the lane; of each as many pieces as its members have answered with, before they are cut.

use std::collections::HashMap;

use block::{
    AfterPiecesAction, Answer, BatchPieces, ByteCount, EofPolicy, FailKind, Mapping, Operation,
    Outcome, PIECES_MAX, Piece, PieceMark, PieceRange, Token,
};

use super::layout::{Layout, Split};

/// The most pieces whose room is kept when a request is over: one of each member.
const PIECES_KEPT: usize = super::MEMBERS_MAX;

/// Which members of a stripe an operation goes to.
#[derive(Debug, Clone, Copy)]
pub(super) enum MemberSpread {
    /// None: it is answered already.
    Nowhere,
    /// This one has all of it.
    One(usize),
    /// As the split says.
    Parts(Split),
    /// All, and there are no bytes.
    Everywhere,
}

/// An operation that was split over members, with what their answers make of it.
#[derive(Debug, Clone, Copy)]
pub(super) struct StripedOperation {
    asked: Mapping,
    spread: MemberSpread,
    refused: Option<FailKind>,
}

impl StripedOperation {
    /// As it was asked for.
    pub(super) fn new(asked: Mapping, spread: MemberSpread) -> Self {
        Self { asked, spread, refused: None }
    }

    /// Takes the answer to a part, but for its pieces.
    pub(super) fn take(&mut self, part: &Mapping) {
        if let Answer::Refused(kind) = part.answer {
            self.refuse(kind);
        }
        match together(self.asked.operation, part.operation) {
            Some(operation) => self.asked.operation = operation,
            None => self.refuse(FailKind::Unsupported),
        }
        if part.eof_policy == EofPolicy::Zeroes {
            self.asked.eof_policy = EofPolicy::Zeroes;
        }
        self.asked.memory = self.asked.memory.and(part.memory);
    }

    /// The answer of the one member that has all of it.
    pub(super) fn as_part(self, part: Mapping) -> Mapping {
        Mapping { token: self.asked.token, ..part }
    }

    /// The answer, when all parts and pieces were taken.
    pub(super) fn answered(self, made: &AnswerBuilder<'_>) -> Mapping {
        let answer = match self.refused {
            Some(kind) => Answer::Refused(kind),
            None if made.count() > PIECES_MAX => Answer::Refused(FailKind::Unsupported),
            None => Answer::Now(made.range()),
        };
        Mapping { answer, ..self.asked }
    }

    fn refuse(&mut self, kind: FailKind) {
        self.refused.get_or_insert(kind);
    }
}

/// Puts the pieces of members' answers together to one answer.
#[derive(Debug)]
pub(super) struct AnswerBuilder<'a> {
    layout: Layout,
    pieces: &'a mut BatchPieces,
    from: PieceMark,
    /// Bytes of pieces that were not cut.
    counted: u64,
}

impl<'a> AnswerBuilder<'a> {
    /// None yet.
    pub(super) fn new(layout: Layout, pieces: &'a mut BatchPieces) -> Self {
        let from = pieces.end();
        Self { layout, pieces, from, counted: 0 }
    }

    /// Adds the pieces of the part at that place, which are in the same list.
    pub(super) fn copy(&mut self, whole: &StripedOperation, place: usize, part: &Mapping) {
        let Answer::Now(range) = part.answer else { return };
        let mut next = 0;
        while let Some(piece) = self.pieces.at(range, next) {
            self.add(whole, place, piece);
            next += 1;
        }
    }

    /// Adds a piece of the part at that place, cut where the memory of the operation is, if it has any.
    /// What is too much is left out.
    fn add(&mut self, whole: &StripedOperation, place: usize, piece: Piece) {
        if self.count() > PIECES_MAX {
            return;
        }
        match &whole.spread {
            MemberSpread::Parts(split) if has_places(whole.asked.operation) => {
                let bytes = piece.skip..piece.skip + piece.count.0;
                let mut done = 0;
                for (skip, count) in self.layout.runs(split, place, bytes) {
                    let target = piece.target.behind(done);
                    self.pieces.push(Piece { skip, count: ByteCount(count), target });
                    done += count;
                }
            }
            MemberSpread::Nowhere
            | MemberSpread::One(_)
            | MemberSpread::Parts(_)
            | MemberSpread::Everywhere => {
                self.pieces.push(Piece { skip: self.counted, ..piece });
                self.counted += piece.count.0;
            }
        }
    }

    fn range(&self) -> PieceRange {
        self.pieces.since(self.from)
    }

    fn count(&self) -> usize {
        self.pieces.get(self.range()).len()
    }
}

/// The table of split operations that are not over, by token.
#[derive(Debug, Default)]
pub(super) struct JoinTable {
    joins: Vec<Join>,
    free: Vec<Token>,
    /// Those that were answered and that members want to be told of, by the asker's token. Keeps its room.
    notifying: HashMap<Token, Token>,
}

/// A split operation whose parts are not all answered and over.
#[derive(Debug)]
struct Join {
    whole: StripedOperation,
    /// How many parts are held.
    held: usize,
    /// The members that want to be told of what they have answered, a bit for each.
    to_notify: u64,
    /// Those of the answer that is carried out now.
    notifying: u64,
    /// What members have answered since: the place of the part and its pieces.
    kept: Vec<(usize, Piece)>,
}

const _: () = assert!(super::MEMBERS_MAX <= 64, "each member has a bit");

impl JoinTable {
    /// A name that no other operation has, until it is given back.
    pub(super) fn name(&mut self) -> Token {
        self.free.pop().unwrap_or_else(|| {
            let token = Token(u32::try_from(self.joins.len()).expect("requests are few"));
            let whole =
                StripedOperation::new(Mapping::new(token, Operation::Flush), MemberSpread::Nowhere);
            self.joins.push(Join { whole, held: 0, to_notify: 0, notifying: 0, kept: Vec::new() });
            token
        })
    }

    /// Gives back the name of an operation that is over.
    pub(super) fn give_back(&mut self, name: Token) {
        self.free.push(name);
    }

    /// Begins to keep an operation.
    pub(super) fn begin(&mut self, name: Token, whole: StripedOperation) {
        let join = self.get(name);
        join.whole = whole;
        (join.held, join.to_notify, join.notifying) = (0, 0, 0);
    }

    /// A member answers the part that it held; returns the part's place.
    pub(super) fn late(&mut self, layout: Layout, name: Token, member: usize) -> usize {
        let join = self.get(name);
        join.held -= 1;
        match &join.whole.spread {
            MemberSpread::Parts(split) => layout.place(split, member),
            MemberSpread::Nowhere | MemberSpread::One(_) | MemberSpread::Everywhere => member,
        }
    }

    /// Takes the answer to a part, by its member and its place; the part may be held. What one member has
    /// all of is answered as that does.
    pub(super) fn take(
        &mut self,
        name: Token,
        (member, place): (usize, usize),
        part: &Mapping,
        pieces: &BatchPieces,
    ) -> Option<Mapping> {
        let join = self.get(name);
        match part.answer {
            Answer::Held => {
                join.held += 1;
                return None;
            }
            Answer::Now(_) if part.after == AfterPiecesAction::NotifyLane => {
                join.to_notify |= 1 << member
            }
            Answer::Now(_) | Answer::Refused(_) => {}
        }
        if let MemberSpread::One(_) = join.whole.spread {
            join.notifying = std::mem::take(&mut join.to_notify);
            let whole = join.whole.as_part(*part);
            self.answered(name, &whole);
            return Some(whole);
        }
        join.keep(place, part, pieces);
        None
    }

    /// Whether the operation can be answered now: nothing of it is carried out, and no part is held or some member
    /// wants to be told of its part.
    pub(super) fn can_answer(&mut self, name: Token) -> bool {
        let join = self.get(name);
        join.notifying == 0 && (join.held == 0 || join.to_notify != 0)
    }

    /// The answer to an operation, of those parts that are answered.
    pub(super) fn answer(
        &mut self,
        name: Token,
        layout: Layout,
        pieces: &mut BatchPieces,
    ) -> Mapping {
        let join = self.get(name);
        join.notifying = std::mem::take(&mut join.to_notify);
        let after = if join.notifying == 0 {
            AfterPiecesAction::Finish
        } else {
            AfterPiecesAction::NotifyLane
        };
        Mapping { after, ..join.answered(AnswerBuilder::new(layout, pieces)) }
    }

    /// Notes that an operation is answered with that: it is over, or its members are to be told.
    pub(super) fn answered(&mut self, name: Token, whole: &Mapping) {
        if self.get(name).notifying == 0 {
            self.give_back(name);
        } else {
            self.notifying.insert(whole.token, name);
        }
    }

    /// The name of an operation, by the asker's token, that was carried out.
    pub(super) fn notified(&mut self, token: Token) -> Token {
        self.notifying.remove(&token).expect("told once for each answer that asks for it")
    }

    /// Takes the next member that has to be told.
    pub(super) fn next_told(&mut self, name: Token) -> Option<usize> {
        let join = self.get(name);
        if join.notifying == 0 {
            return None;
        }
        let member = join.notifying.trailing_zeros();
        join.notifying &= join.notifying - 1;
        Some(member as usize)
    }

    /// A member holds its part again.
    pub(super) fn hold(&mut self, name: Token) {
        self.get(name).held += 1;
    }

    /// Whether members hold parts of the operation.
    pub(super) fn is_held(&mut self, name: Token) -> bool {
        self.get(name).held > 0
    }

    /// Whether nothing more comes of the operation, whose members were told of all answers.
    pub(super) fn is_over(&mut self, name: Token) -> bool {
        let join = self.get(name);
        join.held == 0 && join.to_notify == 0 && join.kept.is_empty()
    }

    /// How the operation ended, if its last answer ended so.
    pub(super) fn outcome(&mut self, name: Token, outcome: Outcome) -> Outcome {
        let whole = &self.get(name).whole;
        match (outcome, whole.spread, whole.refused) {
            (_, MemberSpread::One(_), _) | (Outcome::Failed(_), ..) | (_, _, None) => outcome,
            (Outcome::Done, _, Some(kind)) => Outcome::Failed(kind),
        }
    }

    /// Whether one member has all of the operation.
    pub(super) fn is_of_one(&mut self, name: Token) -> bool {
        matches!(self.get(name).whole.spread, MemberSpread::One(_))
    }

    /// Whatever else its members answer, the operation is refused in the end.
    pub(super) fn refuse(&mut self, name: Token, kind: FailKind) {
        self.get(name).whole.refuse(kind);
    }

    fn get(&mut self, name: Token) -> &mut Join {
        &mut self.joins[name.0 as usize]
    }
}

impl Join {
    fn keep(&mut self, place: usize, part: &Mapping, pieces: &BatchPieces) {
        self.whole.take(part);
        if let Answer::Now(range) = part.answer {
            self.kept.extend(pieces.get(range).iter().map(|piece| (place, piece.clone())));
        }
    }

    fn answered(&mut self, mut answering: AnswerBuilder<'_>) -> Mapping {
        for (place, piece) in self.kept.drain(..) {
            answering.add(&self.whole, place, piece);
        }
        self.kept.shrink_to(PIECES_KEPT);
        self.whole.answered(&answering)
    }
}

/// Whether it matters where each byte of the operation is: in memory as well, or in what is told.
pub(super) fn has_places(operation: Operation) -> bool {
    match operation {
        Operation::Read(_) | Operation::Status(_) | Operation::Write(..) => true,
        Operation::Discard(..) | Operation::WriteZeroes(..) | Operation::Flush => false,
    }
}

/// The operation that does for the whole what members have made of their parts. `None` if they do not
/// agree what is done.
fn together(whole: Operation, part: Operation) -> Option<Operation> {
    let durability = whole.durability().max(part.durability());
    Some(match (whole, part) {
        (Operation::Write(extent, _), Operation::Write(..)) => Operation::Write(extent, durability),
        (Operation::Discard(extent, _), Operation::Discard(..)) => {
            Operation::Discard(extent, durability)
        }
        (Operation::WriteZeroes(extent, one, _), Operation::WriteZeroes(_, other, _)) => {
            Operation::WriteZeroes(extent, one.both(other), durability)
        }
        (Operation::Read(_), Operation::Read(_))
        | (Operation::Status(_), Operation::Status(_))
        | (Operation::Flush, Operation::Flush) => whole,
        (
            Operation::Read(_)
            | Operation::Status(_)
            | Operation::Write(..)
            | Operation::Discard(..)
            | Operation::WriteZeroes(..)
            | Operation::Flush,
            _,
        ) => return None,
    })
}
