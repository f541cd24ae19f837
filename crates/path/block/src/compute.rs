//! What a lane has computed elsewhere because it takes longer than others on its iothread may wait, such as compressing a
//! cluster.
//!
//! Where it stands: a task of a lane hands the work over and waits ([`compute`]); the threads wake it.
//!
//! Not here: threads (`tasks`).

use std::fmt::Debug;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

/// Work that is done once, and cannot fail.
pub type ComputeWork = Box<dyn FnOnce() + Send>;

/// Threads that compute. Whoever hands work over bounds how much of it there is.
pub trait ComputeThreads: Debug + Send + Sync {
    /// Has the work done soon, in any order. Does not block.
    fn run(&self, work: ComputeWork);
}

/// The result of work that is done elsewhere, as a future. Dropped, the work goes on.
#[derive(Debug)]
#[must_use = "somebody waits for the result"]
pub struct Computation<T>(Arc<Mutex<ComputationState<T>>>);

#[derive(Debug)]
struct ComputationState<T> {
    result: Option<T>,
    waker: Option<Waker>,
}

/// Has this computed by threads.
pub fn compute<T: Send + 'static>(
    threads: &dyn ComputeThreads,
    work: impl FnOnce() -> T + Send + 'static,
) -> Computation<T> {
    let state = Arc::new(Mutex::new(ComputationState { result: None, waker: None }));
    let told = Arc::clone(&state);
    threads.run(Box::new(move || {
        let result = work();
        let mut state = told.lock().expect("nobody panics here");
        state.result = Some(result);
        let waker = state.waker.take();
        drop(state);
        waker.into_iter().for_each(Waker::wake);
    }));
    Computation(state)
}

impl<T> Future for Computation<T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let mut state = self.0.lock().expect("nobody panics here");
        match state.result.take() {
            Some(result) => Poll::Ready(result),
            None => {
                state.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}
