//! Changes that are carried out below a lane which has to do something when they end.
//!
//! Where it stands: such a lane begins each change here, shows it the answers of the lane below, and asks it what becomes of a
//! change of whose end it was told.
//!
//! Invariants: what is kept for a change is given back exactly once: when it was refused, or when its last answer was
//! carried out, with or without an error. The lane below is told if it wanted to be, and before that.
//! Limits: as many as the asker has tokens, whose numbers are small.

use block::{AfterPiecesAction, Answer, Lane, LaneCompletionDecision, Mapping, Outcome, Token};

/// The changes of one lane that have not ended, each with what the lane keeps for it.
#[derive(Debug)]
pub(crate) struct InFlightChanges<T> {
    /// By token.
    changes: Vec<Option<InFlightChange<T>>>,
}

#[derive(Debug)]
struct InFlightChange<T> {
    kept: T,
    /// Whether the lane below wants to be told of its last answer.
    below: AfterPiecesAction,
}

impl<T> Default for InFlightChanges<T> {
    fn default() -> Self {
        Self { changes: Vec::new() }
    }
}

impl<T> InFlightChanges<T> {
    /// A change is going to be asked below.
    pub(crate) fn begin(&mut self, token: Token, kept: T) {
        let place = token.0 as usize;
        if place >= self.changes.len() {
            self.changes.resize_with(place + 1, || None);
        }
        let change = InFlightChange { kept, below: AfterPiecesAction::Finish };
        let before = self.changes[place].replace(change);
        assert!(before.is_none(), "{token:?} is in flight already");
    }

    /// What is kept for a change that has not ended.
    pub(crate) fn kept(&self, token: Token) -> Option<&T> {
        let change = self.changes.get(token.0 as usize)?.as_ref()?;
        Some(&change.kept)
    }

    /// The lane below has answered. If it was a change that is carried out, its end is to be told here; if it was refused, it
    /// is over, and this was kept for it.
    pub(crate) fn answered(&mut self, mapping: &mut Mapping) -> Option<T> {
        let place = self.changes.get_mut(mapping.token.0 as usize)?;
        match mapping.answer {
            Answer::Held => None,
            Answer::Now(_) => {
                if let Some(change) = place {
                    change.below =
                        std::mem::replace(&mut mapping.after, AfterPiecesAction::NotifyLane);
                }
                None
            }
            Answer::Refused(_) => place.take().map(|change| change.kept),
        }
    }

    /// The lane was told that an answer was carried out, of a change or of something else that only the lane below wanted to
    /// be told of; what was kept, if it is over.
    pub(crate) fn completed(
        &mut self,
        below: &mut dyn Lane,
        token: Token,
        outcome: Outcome,
    ) -> (LaneCompletionDecision, Option<T>) {
        let place = self.changes.get_mut(token.0 as usize);
        let change = place.as_ref().and_then(|place| place.as_ref());
        let told = match change.map_or(AfterPiecesAction::NotifyLane, |change| change.below) {
            AfterPiecesAction::NotifyLane => below.completed(token, outcome),
            AfterPiecesAction::Finish => LaneCompletionDecision::Finish(outcome),
        };
        match told {
            LaneCompletionDecision::Finish(_) => {
                (told, place.and_then(Option::take).map(|change| change.kept))
            }
            LaneCompletionDecision::HoldAgain => (told, None),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use block::{
        BatchPieces, ByteCount, ByteOffset, DiskSize, FailKind, Operation, WakeTime, ZeroTerms,
    };

    use super::*;

    /// A lane below that holds a request again so often.
    #[derive(Debug)]
    struct Below {
        again: usize,
        told: Vec<(Token, Outcome)>,
    }

    impl Lane for Below {
        fn map(&mut self, _: &mut [Mapping], _: &mut BatchPieces) {}

        fn due(&self) -> Option<WakeTime> {
            None
        }

        fn resume(&mut self, _: Instant, _: &mut Vec<Mapping>, _: &mut BatchPieces) {}

        fn release(&mut self) {}

        fn completed(&mut self, token: Token, outcome: Outcome) -> LaneCompletionDecision {
            self.told.push((token, outcome));
            match self.again.checked_sub(1) {
                Some(again) => {
                    self.again = again;
                    LaneCompletionDecision::HoldAgain
                }
                None => LaneCompletionDecision::Finish(outcome),
            }
        }
    }

    fn below(again: usize) -> Below {
        Below { again, told: Vec::new() }
    }

    fn asked(token: Token, answer: Answer, after: AfterPiecesAction) -> Mapping {
        let extent = DiskSize(ByteCount(512)).check(ByteOffset(0), ByteCount(512));
        let extent = extent.expect("it is inside");
        let operation = Operation::WriteZeroes(extent, ZeroTerms::KEEP, block::Durability::Cached);
        Mapping { answer, after, ..Mapping::new(token, operation) }
    }

    const DONE: LaneCompletionDecision = LaneCompletionDecision::Finish(Outcome::Done);

    #[test]
    fn a_change_ends_when_its_last_answer_was_carried_out() {
        let (mut changes, mut lane) = (InFlightChanges::default(), below(1));
        let now = Answer::Now(BatchPieces::default().none());
        changes.begin(Token(3), "kept");
        let mut held = asked(Token(3), Answer::Held, AfterPiecesAction::Finish);
        assert_eq!(changes.answered(&mut held), None);

        let mut first = asked(Token(3), now, AfterPiecesAction::NotifyLane);
        assert_eq!(changes.answered(&mut first), None);
        let (told, kept) = changes.completed(&mut lane, Token(3), Outcome::Done);
        assert_eq!((told, kept), (LaneCompletionDecision::HoldAgain, None));

        // The last answer is not one that the lane below wants to be told of.
        let mut last = asked(Token(3), now, AfterPiecesAction::Finish);
        assert_eq!(changes.answered(&mut last), None);
        assert_eq!(last.after, AfterPiecesAction::NotifyLane);
        let (told, kept) = changes.completed(&mut lane, Token(3), Outcome::Done);
        assert_eq!((told, kept), (DONE, Some("kept")));
        assert_eq!(lane.told, [(Token(3), Outcome::Done)]);
    }

    #[test]
    fn a_change_that_is_refused_or_fails_ends_as_well() {
        let mut changes = InFlightChanges::default();
        changes.begin(Token(0), 1);
        let refused = Answer::Refused(FailKind::Io);
        let mut refused = asked(Token(0), refused, AfterPiecesAction::Finish);
        assert_eq!(changes.answered(&mut refused), Some(1));
        assert_eq!(changes.answered(&mut refused), None);

        changes.begin(Token(0), 2);
        let failed = Outcome::Failed(FailKind::NoSpace);
        let (told, kept) = changes.completed(&mut below(0), Token(0), failed);
        assert_eq!((told, kept), (LaneCompletionDecision::Finish(failed), Some(2)));
    }

    #[test]
    fn what_is_no_change_is_for_the_lane_below() {
        let (mut changes, mut lane) = (InFlightChanges::<()>::default(), below(0));
        let (told, kept) = changes.completed(&mut lane, Token(7), Outcome::Done);
        assert_eq!((told, kept), (DONE, None));
        assert_eq!(lane.told.len(), 1);
    }
}
