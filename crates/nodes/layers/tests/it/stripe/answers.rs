//! How the answers of the members come together.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use block::{
    Access, AfterPiecesAction, Answer, BatchPieces, ByteCount, Durability, FailKind, FileId, Lane,
    LaneCompletionDecision, LaneContext, Mapping, Node, Operation, Outcome, PIECES_MAX, Piece,
    Target, Token, WakeTime, ZeroTerms,
};
use layers::{ChunkSize, StripeDiscards, StripeNode};

use super::child::{ANSWER, Conduct, Fake, Notes, Start, extent};

const CHUNK: u64 = 4096;

/// A stripe over two members.
struct Pair {
    notes: [Arc<Mutex<Notes>>; 2],
    lane: Box<dyn Lane>,
    pieces: BatchPieces,
    late: Vec<Mapping>,
}

impl Pair {
    fn new(conducts: [Conduct; 2]) -> Self {
        Self::with(conducts, Access::ReadWrite, StripeDiscards::Passed)
    }

    fn with(conducts: [Conduct; 2], access: Access, discards: StripeDiscards) -> Self {
        let fakes = [0, 1].map(|place| Fake::new(place, 1 << 30));
        let notes = [0, 1].map(|place: usize| fakes[place].notes());
        for (notes, conduct) in notes.iter().zip(conducts) {
            notes.lock().unwrap().conducts = vec![conduct];
        }
        let children = fakes.into_iter().map(Fake::into_child).collect();
        let chunk = ChunkSize::new(ByteCount(CHUNK)).unwrap();
        let node = StripeNode::new("stripe", children, chunk, access, discards).unwrap();
        let lane = node.open_lane(&LaneContext::idle()).unwrap();
        Self { notes, lane, pieces: BatchPieces::default(), late: Vec::new() }
    }

    fn ask(&mut self, operation: Operation) -> Mapping {
        let mut batch = [Mapping::new(Token(77), operation)];
        self.lane.map(&mut batch, &mut self.pieces);
        batch[0]
    }

    fn resume(&mut self, ms: u64) -> Option<Mapping> {
        self.late.clear();
        self.lane.resume(Instant::at(ms), &mut self.late, &mut self.pieces);
        assert!(self.late.len() <= 1);
        self.late.first().copied()
    }

    fn pieces(&self, mapping: &Mapping) -> &[Piece] {
        match mapping.answer {
            Answer::Now(range) => self.pieces.get(range),
            Answer::Held | Answer::Refused(_) => panic!("{:?}", mapping.answer),
        }
    }

    fn completed(&mut self, outcome: Outcome) -> LaneCompletionDecision {
        self.lane.completed(Token(77), outcome)
    }

    /// What each member was told.
    fn told(&self) -> [Vec<Outcome>; 2] {
        self.notes.each_ref().map(|notes| notes.lock().unwrap().told.clone())
    }

    fn asked(&self) -> [usize; 2] {
        [0, 1]
            .map(|place: usize| self.notes[place].lock().unwrap().calls.iter().map(Vec::len).sum())
    }
}

fn read(chunks: u64) -> Operation {
    Operation::Read(extent(0..chunks * CHUNK))
}

fn at(file: u32, offset: u64, skip: u64, count: u64) -> Piece {
    let target = Target::File { file: FileId(file), offset: block::ByteOffset(offset) };
    Piece { skip, count: ByteCount(count), target }
}

#[test]
fn what_is_neighbouring_in_a_file_stands_together() {
    let mut pair = Pair::new([ANSWER; 2]);
    let answer = pair.ask(read(4));
    let expected = [
        at(0, 0, 0, CHUNK),
        at(0, CHUNK, 2 * CHUNK, CHUNK),
        at(1, 0, CHUNK, CHUNK),
        at(1, CHUNK, 3 * CHUNK, CHUNK),
    ];
    assert_eq!(pair.pieces(&answer), expected);
    assert_eq!(answer.operation, read(4));
}

#[test]
fn what_lies_in_a_chunk_is_answered_as_its_member_answers_it() {
    let rewritten = Operation::Flush;
    let mut pair = Pair::new([Conduct::Rewrite(rewritten), ANSWER]);
    let answer = pair.ask(read(1));
    assert_eq!((answer.token, answer.operation), (Token(77), rewritten));
    assert_eq!(pair.asked(), [1, 0]);
    let second = pair.ask(Operation::Read(extent(CHUNK + 512..2 * CHUNK)));
    assert_eq!(pair.pieces(&second), [at(1, 512, 0, CHUNK - 512)]);
}

#[test]
fn a_member_that_holds_its_part_holds_the_whole() {
    let mut pair = Pair::new([Conduct::Hold { ms: 5 }, Conduct::Hold { ms: 9 }]);
    assert_eq!(pair.lane.due(), None);
    assert_eq!(pair.ask(read(2)).answer, Answer::Held);
    let slack = Duration::from_millis(1);
    assert_eq!(pair.lane.due(), Some(WakeTime { at: Instant::at(5), slack }));
    assert!(pair.resume(4).is_none());
    assert!(pair.resume(5).is_none());
    assert_eq!(pair.lane.due(), Some(WakeTime { at: Instant::at(9), slack }));
    let late = pair.resume(9).unwrap();
    assert_eq!((late.token, late.operation), (Token(77), read(2)));
    assert_eq!(pair.pieces(&late), [at(0, 0, 0, CHUNK), at(1, 0, CHUNK, CHUNK)]);
    assert_eq!(pair.lane.due(), None);
    assert!(pair.resume(1000).is_none());
}

#[test]
fn what_one_member_has_answered_is_kept_while_another_holds() {
    let mut pair = Pair::new([ANSWER, Conduct::Hold { ms: 5 }]);
    assert_eq!(pair.ask(read(2)).answer, Answer::Held);
    // The answers of a batch are gone when the next one is asked for.
    pair.pieces.clear();
    let other = pair.ask(read(1));
    assert_eq!(pair.pieces(&other), [at(0, 0, 0, CHUNK)]);
    pair.pieces.clear();
    let late = pair.resume(5).unwrap();
    assert_eq!(pair.pieces(&late), [at(0, 0, 0, CHUNK), at(1, 0, CHUNK, CHUNK)]);
}

#[test]
fn what_one_member_holds_alone_comes_back_under_its_name() {
    let mut pair = Pair::new([Conduct::Hold { ms: 5 }, ANSWER]);
    assert_eq!(pair.ask(read(1)).answer, Answer::Held);
    let late = pair.resume(5).unwrap();
    assert_eq!((late.token, late.operation), (Token(77), read(1)));
    assert_eq!(pair.pieces(&late), [at(0, 0, 0, CHUNK)]);
}

#[test]
fn released_members_give_back_what_they_hold_at_once() {
    let mut pair = Pair::new([Conduct::Hold { ms: 5000 }, ANSWER]);
    assert_eq!(pair.ask(Operation::Flush).answer, Answer::Held);
    pair.lane.release();
    assert_eq!(pair.notes.each_ref().map(|notes| notes.lock().unwrap().released), [1, 1]);
    assert_eq!(pair.lane.due().map(|due| due.at), Some(Instant::at(0)));
    let late = pair.resume(0).unwrap();
    assert_eq!(pair.pieces(&late).len(), 2);
}

#[test]
fn a_refusal_waits_for_the_parts_that_are_held() {
    let mut pair = Pair::new([Conduct::Refuse(FailKind::NoSpace), Conduct::Hold { ms: 5 }]);
    assert_eq!(pair.ask(read(2)).answer, Answer::Held);
    assert_eq!(pair.resume(5).unwrap().answer, Answer::Refused(FailKind::NoSpace));
    let mut pair = Pair::new([Conduct::HoldAndRefuse { ms: 3 }, Conduct::Hold { ms: 5 }]);
    assert_eq!(pair.ask(read(2)).answer, Answer::Held);
    assert!(pair.resume(3).is_none());
    assert_eq!(pair.resume(5).unwrap().answer, Answer::Refused(FailKind::NoSpace));
}

#[test]
fn a_member_that_refuses_fails_only_what_touches_it() {
    let mut pair = Pair::new([Conduct::Refuse(FailKind::Io), ANSWER]);
    assert_eq!(pair.ask(read(2)).answer, Answer::Refused(FailKind::Io));
    assert_eq!(pair.asked(), [1, 1]);
    let other = pair.ask(Operation::Read(extent(CHUNK..2 * CHUNK)));
    assert_eq!(pair.pieces(&other), [at(1, 0, 0, CHUNK)]);
}

#[test]
fn the_strictest_part_rules_the_whole() {
    let bytes = extent(0..2 * CHUNK);
    let zeroes = |terms, durability| Operation::WriteZeroes(bytes, terms, durability);
    let stable = Operation::WriteZeroes(extent(0..CHUNK), ZeroTerms::KEEP, Durability::Stable);
    let mut pair = Pair::new([Conduct::Rewrite(stable), ANSWER]);
    let answer = pair.ask(zeroes(ZeroTerms::UNMAP, Durability::Cached));
    assert_eq!(answer.operation, zeroes(ZeroTerms::KEEP, Durability::Stable));
    let mut pair = Pair::new([ANSWER; 2]);
    let answer = pair.ask(zeroes(ZeroTerms::UNMAP, Durability::Cached));
    assert_eq!(answer.operation, zeroes(ZeroTerms::UNMAP, Durability::Cached));
}

#[test]
fn members_that_would_do_different_things_do_nothing() {
    let discard = Operation::Discard(extent(0..CHUNK), Durability::Cached);
    let mut pair = Pair::new([Conduct::Rewrite(discard), ANSWER]);
    let zeroes = Operation::WriteZeroes(extent(0..2 * CHUNK), ZeroTerms::UNMAP, Durability::Cached);
    assert_eq!(pair.ask(zeroes).answer, Answer::Refused(FailKind::Unsupported));
}

#[test]
fn a_request_of_too_many_chunks_is_refused_and_nobody_is_asked() {
    let most = PIECES_MAX as u64;
    let mut pair = Pair::new([ANSWER; 2]);
    let answer = pair.ask(read(most));
    assert_eq!(pair.pieces(&answer).len(), PIECES_MAX);
    let mut pair = Pair::new([ANSWER; 2]);
    assert_eq!(pair.ask(read(most + 1)).answer, Answer::Refused(FailKind::Unsupported));
    assert_eq!(pair.asked(), [0, 0]);
    // Without memory nothing is cut.
    let discard = Operation::Discard(extent(0..(most + 1) * CHUNK), Durability::Cached);
    let answer = pair.ask(discard);
    assert_eq!(pair.pieces(&answer).len(), 2);
}

#[test]
fn members_that_answer_in_too_many_pieces_are_refused() {
    for run in [512, 4096 - 512] {
        let mut pair = Pair::new([Conduct::Answer { run }; 2]);
        let answer = pair.ask(read(PIECES_MAX as u64)).answer;
        assert_eq!(answer, Answer::Refused(FailKind::Unsupported));
        // Held ones are refused when they are put together.
        let mut pair = Pair::new([Conduct::Answer { run }, Conduct::Hold { ms: 0 }]);
        assert_eq!(pair.ask(read(PIECES_MAX as u64)).answer, Answer::Held);
        assert_eq!(pair.resume(0).unwrap().answer, Answer::Refused(FailKind::Unsupported));
    }
}

#[test]
fn nobody_is_asked_for_nothing() {
    let mut pair = Pair::new([ANSWER; 2]);
    let answer = pair.ask(Operation::Read(extent(CHUNK..CHUNK)));
    assert!(pair.pieces(&answer).is_empty());
    assert_eq!(pair.asked(), [0, 0]);
}

#[test]
fn a_lane_follows_members_that_grow() {
    let mut pair = Pair::new([ANSWER; 2]);
    let answer = pair.ask(Operation::Read(extent(4 << 30..(4 << 30) + 512)));
    assert_eq!(pair.pieces(&answer), [at(0, 2 << 30, 0, 512)]);
}

#[test]
fn what_no_file_has_is_refused() {
    let mut pair = Pair::new([ANSWER; 2]);
    let operation = Operation::Read(extent((1 << 63) - 512..(1 << 63) + 512));
    assert_eq!(pair.ask(operation).answer, Answer::Refused(FailKind::OutOfRange));
    assert_eq!(pair.asked(), [0, 0]);
}

#[test]
fn a_read_only_stripe_refuses_changes() {
    let mut pair = Pair::with([ANSWER; 2], Access::ReadOnly, StripeDiscards::Passed);
    let write = Operation::Write(extent(0..512), Durability::Cached);
    assert_eq!(pair.ask(write).answer, Answer::Refused(FailKind::ReadOnly));
    let answer = pair.ask(read(1));
    assert_eq!(pair.pieces(&answer).len(), 1);
}

#[test]
fn ignored_discards_reach_no_member_and_zeroings_keep_the_space() {
    let mut pair = Pair::with([ANSWER; 2], Access::ReadWrite, StripeDiscards::Ignored);
    let answer = pair.ask(Operation::Discard(extent(0..3 * CHUNK), Durability::Cached));
    assert!(pair.pieces(&answer).is_empty());
    assert_eq!(pair.asked(), [0, 0]);
    let zeroes = |terms| Operation::WriteZeroes(extent(0..512), terms, Durability::Cached);
    assert_eq!(pair.ask(zeroes(ZeroTerms::UNMAP)).operation, zeroes(ZeroTerms::KEEP));
}

const FAILED: Outcome = Outcome::Failed(FailKind::NoSpace);

#[test]
fn only_members_that_ask_for_it_are_told_and_each_once() {
    let mut pair = Pair::new([ANSWER, Conduct::Tell]);
    for (outcome, count) in [(Outcome::Done, 1), (FAILED, 2)] {
        let answer = pair.ask(read(2));
        assert_eq!((answer.after, pair.pieces(&answer).len()), (AfterPiecesAction::NotifyLane, 2));
        assert_eq!(pair.completed(outcome), LaneCompletionDecision::Finish(outcome));
        let [first, second] = pair.told();
        assert_eq!((first.len(), second.len(), second.last()), (0, count, Some(&outcome)));
    }
    // What does not touch it does not ask.
    assert_eq!(pair.ask(read(1)).after, AfterPiecesAction::Finish);
    let alone = pair.ask(Operation::Read(extent(CHUNK..2 * CHUNK)));
    assert_eq!(alone.after, AfterPiecesAction::NotifyLane);
    assert_eq!(pair.completed(Outcome::Done), LaneCompletionDecision::Finish(Outcome::Done));
}

#[test]
fn a_member_that_says_it_failed_fails_the_whole() {
    let mut pair = Pair::new([Conduct::Tell, Conduct::TellAndFail(FailKind::NoSpace)]);
    assert_eq!(pair.ask(read(2)).after, AfterPiecesAction::NotifyLane);
    assert_eq!(pair.completed(Outcome::Done), LaneCompletionDecision::Finish(FAILED));
    assert_eq!(pair.told(), [vec![Outcome::Done], vec![Outcome::Done]]);
}

#[test]
fn what_a_member_keeps_is_answered_again_without_the_others() {
    let mut pair = Pair::new([Conduct::Tell, Conduct::TellAndKeep { ms: 5 }]);
    assert_eq!(pair.ask(read(2)).after, AfterPiecesAction::NotifyLane);
    assert_eq!(pair.completed(Outcome::Done), LaneCompletionDecision::HoldAgain);
    assert_eq!(pair.lane.due().map(|due| due.at), Some(Instant::at(5)));
    assert!(pair.resume(4).is_none());
    pair.pieces.clear();
    let again = pair.resume(5).unwrap();
    assert_eq!((again.token, again.after), (Token(77), AfterPiecesAction::Finish));
    assert_eq!(pair.pieces(&again), [at(1, 0, CHUNK, 512)]);
    assert_eq!(pair.told(), [vec![Outcome::Done], vec![Outcome::Done]]);
    // Kept after a failure, it fails in the end.
    assert_eq!(pair.ask(read(2)).after, AfterPiecesAction::NotifyLane);
    assert_eq!(pair.completed(FAILED), LaneCompletionDecision::HoldAgain);
    assert_eq!(pair.resume(5).unwrap().answer, Answer::Refused(FailKind::NoSpace));
}

#[test]
fn members_hear_that_the_whole_was_refused() {
    let mut pair = Pair::new([Conduct::Tell, Conduct::Refuse(FailKind::NoSpace)]);
    assert_eq!(pair.ask(read(2)).answer, Answer::Refused(FailKind::NoSpace));
    assert_eq!(pair.told(), [vec![FAILED], vec![]]);
    // One that keeps its part all the same holds the whole until it has answered.
    let mut pair = Pair::new([Conduct::TellAndKeep { ms: 5 }, Conduct::Refuse(FailKind::NoSpace)]);
    assert_eq!(pair.ask(read(2)).answer, Answer::Held);
    assert_eq!(pair.told(), [vec![FAILED], vec![]]);
    assert!(pair.resume(3).is_none());
    assert_eq!(pair.resume(5).unwrap().answer, Answer::Refused(FailKind::NoSpace));
}

#[test]
fn what_a_member_wants_to_hear_of_waits_for_no_other_part() {
    let mut pair = Pair::new([Conduct::Tell, Conduct::Hold { ms: 5 }]);
    let first = pair.ask(read(2));
    assert_eq!(
        (pair.pieces(&first), first.after),
        (&[at(0, 0, 0, CHUNK)][..], AfterPiecesAction::NotifyLane)
    );
    assert_eq!(pair.completed(Outcome::Done), LaneCompletionDecision::HoldAgain);
    assert_eq!(pair.told(), [vec![Outcome::Done], vec![]]);
    let second = pair.resume(5).unwrap();
    assert_eq!((second.token, second.after), (Token(77), AfterPiecesAction::Finish));
    assert_eq!(pair.pieces(&second), [at(1, 0, CHUNK, CHUNK)]);
    // What is answered while the first part is carried out comes after it.
    let first = pair.ask(read(2));
    assert!(matches!(first.answer, Answer::Now(_)));
    assert!(pair.resume(5).is_none());
    assert_eq!(pair.completed(Outcome::Done), LaneCompletionDecision::HoldAgain);
    let second = pair.resume(5).unwrap();
    assert_eq!(pair.pieces(&second), [at(1, 0, CHUNK, CHUNK)]);
    // A part that is refused meanwhile fails the whole, which has nothing left to do then.
    let mut pair = Pair::new([Conduct::Tell, Conduct::HoldAndRefuse { ms: 3 }]);
    assert!(matches!(pair.ask(read(2)).answer, Answer::Now(_)));
    assert!(pair.resume(3).is_none());
    assert_eq!(pair.completed(Outcome::Done), LaneCompletionDecision::Finish(FAILED));
    // And one that is refused later, too.
    assert!(matches!(pair.ask(read(2)).answer, Answer::Now(_)));
    assert_eq!(pair.completed(Outcome::Done), LaneCompletionDecision::HoldAgain);
    assert_eq!(pair.resume(3).unwrap().answer, Answer::Refused(FailKind::NoSpace));
}
