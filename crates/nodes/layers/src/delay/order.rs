//! Requests that are answered in the order in which they came (`ordered=on`).
//!
//! Where it stands in the life of a request: the lane enters a request when it is asked, and shows here what the lane
//! below answers and that an answer was carried out. Who comes too early is held until those before it are over.
//!
//! Invariants: what is entered is over once, and in that order. Limits: as many as the asker has requests in the lane.

use std::collections::VecDeque;

use block::{
    AfterPiecesAction, Answer, BatchPieces, Lane, LaneCompletionDecision, Mapping, Operation,
    Outcome, Token,
};

/// The requests of a lane that complete in the order in which they came (`ordered=on`).
#[derive(Debug, Default)]
pub(super) struct ArrivalOrderQueue {
    open: VecDeque<ArrivalOrderRequest>,
}

/// A request that is not over, and how it ended if it waits for those before it.
#[derive(Debug)]
struct ArrivalOrderRequest {
    token: Token,
    operation: Operation,
    /// Whether the lane below wants to be told of its last answer.
    below: AfterPiecesAction,
    /// How it ended, while it waits for those before it.
    ended: Option<Outcome>,
}

impl ArrivalOrderQueue {
    /// Adds a request that is asked for, behind the others.
    pub(super) fn enter(&mut self, asked: &Mapping) {
        let Mapping { token, operation, .. } = *asked;
        self.open.push_back(ArrivalOrderRequest {
            token,
            operation,
            below: AfterPiecesAction::Finish,
            ended: None,
        });
    }

    /// The lane below has answered. A refusal that comes too early is held.
    pub(super) fn answered(&mut self, mapping: &mut Mapping) {
        // New ones are at the end.
        let place = self.open.iter().rposition(|open| open.token == mapping.token);
        let Some(place) = place else { return };
        match mapping.answer {
            Answer::Held => {}
            Answer::Now(_) => {
                self.open[place].below =
                    std::mem::replace(&mut mapping.after, AfterPiecesAction::NotifyLane);
            }
            Answer::Refused(kind) => {
                if self.end(place, Outcome::Failed(kind)) == LaneCompletionDecision::HoldAgain {
                    mapping.answer = Answer::Held;
                }
            }
        }
    }

    /// An answer was carried out.
    pub(super) fn completed(
        &mut self,
        below: &mut dyn Lane,
        token: Token,
        outcome: Outcome,
    ) -> LaneCompletionDecision {
        let Some(place) = self.open.iter().position(|open| open.token == token) else {
            return below.completed(token, outcome);
        };
        let told = match self.open[place].below {
            AfterPiecesAction::Finish => LaneCompletionDecision::Finish(outcome),
            AfterPiecesAction::NotifyLane => below.completed(token, outcome),
        };
        match told {
            LaneCompletionDecision::Finish(outcome) => self.end(place, outcome),
            LaneCompletionDecision::HoldAgain => LaneCompletionDecision::HoldAgain,
        }
    }

    /// A request has ended: it is over if it is the first one.
    fn end(&mut self, place: usize, outcome: Outcome) -> LaneCompletionDecision {
        if place == 0 {
            self.open.pop_front();
            return LaneCompletionDecision::Finish(outcome);
        }
        self.open[place].ended = Some(outcome);
        LaneCompletionDecision::HoldAgain
    }

    /// Whether somebody has waited for those before it, who are over.
    pub(super) fn has_waited(&self) -> bool {
        self.open.front().is_some_and(|open| open.ended.is_some())
    }

    /// The answers to those, one after the other: nothing is left to do.
    pub(super) fn take_waited(&mut self, pieces: &BatchPieces) -> Option<Mapping> {
        let outcome = self.open.front()?.ended?;
        let ArrivalOrderRequest { token, operation, .. } = self.open.pop_front()?;
        let answer = match outcome {
            Outcome::Done => Answer::Now(pieces.none()),
            Outcome::Failed(kind) => Answer::Refused(kind),
        };
        Some(Mapping { answer, ..Mapping::new(token, operation) })
    }

    /// Whether there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }
}
