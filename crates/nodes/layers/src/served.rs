//! Requests of a lane that its tasks serve: how a task has its request carried out, and what it answers in the end.
//!
//! Where it stands in the life of a request: the lane holds it and spawns a task. The task asks lanes below, has what they answer
//! carried out on the memory of the request, hears of the end of that, and ends the request.
//!
//! Invariants: a request has one task, which ends it once. Threads: belongs to one lane. Borrows of the state never last over
//! an `await`.

use std::cell::RefCell;
use std::collections::HashMap;
use std::future::poll_fn;
use std::task::{Poll, Waker};

use block::{
    AfterPiecesAction, Answer, BatchPieces, BufferCopyPolicy, EofPolicy, FailKind,
    LaneCompletionDecision, Mapping, Operation, Outcome, Piece, Token,
};
use tasks::RequestParts;

/// The requests that tasks of a lane serve, and what those have answered since the lane was called.
#[derive(Debug, Default)]
pub(crate) struct ServedRequests(RefCell<State>);

#[derive(Debug, Default)]
struct State {
    open: HashMap<Token, Round>,
    answers: Vec<TaskAnswer>,
}

/// What is carried out of a request: what came of it, and the task that waits for that.
#[derive(Debug, Default)]
struct Round {
    outcome: Option<Outcome>,
    waker: Option<Waker>,
}

/// A request that a task serves.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ServedRequest {
    pub(crate) token: Token,
    pub(crate) operation: Operation,
}

#[derive(Debug)]
struct TaskAnswer {
    request: ServedRequest,
    result: Result<Vec<Piece>, FailKind>,
    memory: BufferCopyPolicy,
    after: AfterPiecesAction,
}

impl ServedRequests {
    /// A task serves that request from now on.
    pub(crate) fn begin(&self, request: ServedRequest) {
        let before = self.0.borrow_mut().open.insert(request.token, Round::default());
        assert!(before.is_none(), "{request:?} is served already");
    }

    /// A task is done with its request. Pieces say what is left to be done for it.
    pub(crate) fn end(&self, request: ServedRequest, result: Result<Vec<Piece>, FailKind>) {
        let served = self.0.borrow_mut().open.remove(&request.token);
        assert!(served.is_some(), "{request:?} ends once");
        let (memory, after) = (BufferCopyPolicy::Live, AfterPiecesAction::Finish);
        self.answer(TaskAnswer { request, result, memory, after });
    }

    /// A task has its request carried out on these parts, and waits for that, in as many rounds as the lanes below make of it.
    pub(crate) async fn carry_out(
        &self,
        request: ServedRequest,
        mut parts: RequestParts,
    ) -> Result<(), FailKind> {
        while !parts.is_over() {
            parts.settle().await;
            let (pieces, memory) = parts.take_pieces();
            let outcome = match parts.result() {
                Err(kind) => Outcome::Failed(kind),
                Ok(()) if pieces.is_empty() => Outcome::Done,
                Ok(()) => self.carry_out_round(request, pieces, memory).await,
            };
            parts.tell(outcome);
        }
        parts.result()
    }

    async fn carry_out_round(
        &self,
        request: ServedRequest,
        pieces: Vec<Piece>,
        memory: BufferCopyPolicy,
    ) -> Outcome {
        let (result, after) = (Ok(pieces), AfterPiecesAction::NotifyLane);
        self.answer(TaskAnswer { request, result, memory, after });
        poll_fn(|context| {
            let state = &mut *self.0.borrow_mut();
            let round = state.open.get_mut(&request.token).expect("a task serves it");
            match round.outcome.take() {
                Some(outcome) => Poll::Ready(outcome),
                None => {
                    round.waker = Some(context.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await
    }

    /// The lane is told of a request.
    pub(crate) fn completed(&self, token: Token, outcome: Outcome) -> LaneCompletionDecision {
        let state = &mut *self.0.borrow_mut();
        let round = state.open.get_mut(&token);
        let round = round.unwrap_or_else(|| panic!("no task serves {token:?}"));
        round.outcome = Some(outcome);
        if let Some(waker) = round.waker.take() {
            waker.wake();
        }
        LaneCompletionDecision::HoldAgain
    }

    /// Takes the answers that tasks have given.
    pub(crate) fn take_answers(&self, pieces: &mut BatchPieces, mut each: impl FnMut(Mapping)) {
        for TaskAnswer { request, result, memory, after } in
            std::mem::take(&mut self.0.borrow_mut().answers)
        {
            let answer = match result {
                Err(kind) => Answer::Refused(kind),
                Ok(answer) => {
                    let mark = pieces.end();
                    answer.into_iter().for_each(|piece| pieces.push(piece));
                    Answer::Now(pieces.since(mark))
                }
            };
            let asked = Mapping::new(request.token, request.operation);
            let eof_policy = EofPolicy::Zeroes;
            each(Mapping { answer, after, eof_policy, memory, ..asked });
        }
    }

    fn answer(&self, answer: TaskAnswer) {
        self.0.borrow_mut().answers.push(answer);
    }
}
