//! A thread that makes one connection, so that no iothread waits for it.
//!
//! Threads: one for each attempt; a line has one attempt at a time. It ends with the attempt, which has a time limit, also if
//! nobody wants its result any more.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Waker;

use crate::connector::{ConnectError, Connected};
use crate::remote::Remote;

/// An attempt to connect.
#[derive(Debug)]
pub(crate) struct Attempt(Mutex<AttemptState>);

#[derive(Debug)]
struct AttemptState {
    result: Option<Result<Connected, ConnectError>>,
    waker: Waker,
}

impl Attempt {
    /// Begins one; the waker is used when it is over.
    pub(crate) fn start(remote: &Arc<Remote>, waker: &Waker) -> io::Result<Arc<Self>> {
        let state = AttemptState { result: None, waker: waker.clone() };
        let attempt = Arc::new(Self(Mutex::new(state)));
        let (shared, remote) = (Arc::clone(&attempt), Arc::clone(remote));
        let thread = std::thread::Builder::new().name("nbd connect".to_owned());
        thread.spawn(move || {
            let result = remote.connect();
            let mut state = shared.state();
            state.result = Some(result);
            state.waker.wake_by_ref();
        })?;
        Ok(attempt)
    }

    /// What it has brought, if it is over.
    pub(crate) fn take(&self) -> Option<Result<Connected, ConnectError>> {
        self.state().result.take()
    }

    /// Another one wants to know.
    pub(crate) fn set_waker(&self, waker: &Waker) {
        self.state().waker = waker.clone();
    }

    fn state(&self) -> MutexGuard<'_, AttemptState> {
        self.0.lock().expect("no holder of this lock panics")
    }
}
