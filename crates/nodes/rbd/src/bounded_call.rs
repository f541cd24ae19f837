//! Calls of the library that wait for the cluster, made on threads of their own, so that whoever asks waits for a time only.
//!
//! Invariants: such a thread is behind the fences before it calls the library, and so are the threads that the library
//! starts from it. A call that takes longer is left to its thread, which keeps what it works on.
//! Limits: those of the callers.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread::Builder;
use std::time::Duration;

/// Puts the calling thread behind the fences of the process.
pub type ThreadFence = Arc<dyn Fn() -> io::Result<()> + Send + Sync>;

/// Behind which fences threads go that call the library.
#[derive(Clone, Default)]
pub struct ThreadFences(Option<ThreadFence>);

impl ThreadFences {
    /// Behind these.
    pub fn new(fence: ThreadFence) -> Self {
        Self(Some(fence))
    }

    fn put_up(&self) -> io::Result<()> {
        self.0.as_ref().map_or(Ok(()), |fence| fence())
    }

    /// Does this on a thread of its own and waits for it, but no longer than that: what it gives, or `TimedOut`.
    pub(crate) fn call<T: Send + 'static>(
        &self,
        name: &str,
        limit: Duration,
        call: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<T> {
        let (sender, receiver) = channel();
        let fences = self.clone();
        let thread = move || {
            // Nobody may wait for it any more.
            let _gone = sender.send(fences.put_up().map(|()| call()));
        };
        Builder::new().name(name.to_owned()).spawn(thread)?;
        match receiver.recv_timeout(limit) {
            Ok(result) => result,
            Err(RecvTimeoutError::Timeout) => Err(io::ErrorKind::TimedOut.into()),
            Err(RecvTimeoutError::Disconnected) => unreachable!("a panic ends the process"),
        }
    }

    /// The same without an end: starts a thread.
    pub(crate) fn start(&self, name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let fences = self.clone();
        let thread = move || match fences.put_up() {
            Ok(()) => run(),
            Err(error) => tracing::error!("a thread of driver=rbd cannot be confined: {error}"),
        };
        Builder::new().name(name.to_owned()).spawn(thread).map(drop)
    }
}

impl fmt::Debug for ThreadFences {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "fenced" } else { "free" })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn a_call_that_takes_too_long_is_left_to_its_thread() {
        let fences = ThreadFences::default();
        assert_eq!(fences.call("test", Duration::from_secs(30), || 5).unwrap(), 5);
        let (sender, receiver) = channel::<()>();
        let late = fences.call("test", Duration::from_millis(1), move || receiver.recv());
        assert_eq!(late.unwrap_err().kind(), io::ErrorKind::TimedOut);
        drop(sender);
    }

    #[test]
    fn nothing_is_called_on_a_thread_that_cannot_be_confined() {
        let called = Arc::new(AtomicBool::new(false));
        let theirs = Arc::clone(&called);
        let fences = ThreadFences::new(Arc::new(|| Err(io::ErrorKind::PermissionDenied.into())));
        let call = move || theirs.store(true, Ordering::Relaxed);
        assert!(fences.call("test", Duration::from_secs(30), call).is_err());
        assert!(!called.load(Ordering::Relaxed));
    }
}
