//! A client's connection, which other threads can end.
//!
//! Threads: the session's thread reads from the stream; iothreads and whoever stops the export hang
//! up on it. Hanging up never blocks.

use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Mutex;

/// The connection of an export's current client, which other threads can shut down.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: UnixStream,
    reason: Mutex<Option<String>>,
}

impl Connection {
    pub(crate) fn new(stream: UnixStream) -> Self {
        Self { stream, reason: Mutex::new(None) }
    }

    /// The same connection for the session to read from.
    pub(crate) fn stream(&self) -> io::Result<UnixStream> {
        self.stream.try_clone()
    }

    /// Hangs up; the session's thread notices.
    pub(crate) fn hang_up(&self) {
        if let Err(error) = self.stream.shutdown(Shutdown::Both) {
            // The front end has hung up itself.
            tracing::debug!("cannot hang up on a client: {error}");
        }
    }

    /// Hangs up and leaves the reason to be said; the first reason counts.
    pub(crate) fn end_because(&self, reason: String) {
        self.reason.lock().expect("no holder of this lock panics").get_or_insert(reason);
        self.hang_up();
    }

    /// Why the session was ended from this side, if it was.
    pub(crate) fn reason(&self) -> Option<String> {
        self.reason.lock().expect("no holder of this lock panics").clone()
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}
