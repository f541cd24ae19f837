//! A client of the metrics: its request is read, answered, and then it is let go.
//!
//! Invariants: one answer for each connection; what it sends after that is read and dropped, so that the answer is not lost
//! with it (RFC 9112, 9.6).
//! Threads: the one that answers scrapes, which never waits for a client. Limits: [`READ_MAX`], [`WRITE_MAX`],
//! [`WRITE_SURE`], [`LINGER_MAX`], [`LINGER_BYTES_MAX`], and those of `request`.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::Shutdown;

use crate::classic_text::classic_text;
use crate::request::{self, Ask, HEAD_BYTES_MAX, TextForm};

/// How long a client may take for its request.
const READ_MAX: Duration = Duration::from_secs(5);

/// How long it may take to read the answer.
const WRITE_MAX: Duration = Duration::from_secs(10);

/// How long at least it may take from then on, whoever else wants to come.
const WRITE_SURE: Duration = Duration::from_secs(1);

/// How long it is waited for after that.
const LINGER_MAX: Duration = Duration::from_secs(1);

/// What is read of it after that.
const LINGER_BYTES_MAX: usize = 64 << 10;

/// How much is read at once.
const CHUNK_BYTES: usize = 4096;

/// A client.
#[derive(Debug)]
pub(crate) struct Connection {
    socket: OwnedFd,
    state: State,
    /// When it is let go.
    deadline: Instant,
    /// From when on it is let go for another one.
    sure_until: Instant,
}

/// How far it has come.
#[derive(Debug)]
enum State {
    /// So much of its request is there.
    Reading(Vec<u8>),
    /// So much of the answer was written.
    Writing { answer: Vec<u8>, written: usize },
    /// All was written; so many bytes may still come.
    Lingering { left: usize },
}

/// Whether a client is still there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ConnectionFate {
    /// It is.
    Stays,
    /// It has left, or is let go.
    Over,
}

impl Connection {
    /// A client that has come now.
    pub(crate) fn new(socket: OwnedFd, now: Instant) -> Self {
        let deadline = now + READ_MAX;
        Self { socket, state: State::Reading(Vec::new()), deadline, sure_until: now }
    }

    /// What its socket is watched for.
    pub(crate) fn wants(&self) -> PollFlags {
        match self.state {
            State::Reading(_) | State::Lingering { .. } => PollFlags::IN,
            State::Writing { .. } => PollFlags::OUT,
        }
    }

    /// When it is let go, whatever it does.
    pub(crate) fn deadline(&self) -> Instant {
        self.deadline
    }

    /// From when on it is let go for another one: at once as long as its request has not come, and soon after the answer
    /// was there for it to read.
    pub(crate) fn sure_until(&self) -> Instant {
        self.sure_until
    }

    /// Goes on as far as that is possible now. `metrics` makes the text.
    pub(crate) fn go_on(
        &mut self,
        now: Instant,
        metrics: &mut dyn FnMut() -> String,
    ) -> ConnectionFate {
        match self.advance(now, metrics) {
            Ok(fate) => fate,
            Err(Errno::AGAIN | Errno::INTR) => ConnectionFate::Stays,
            Err(errno) => {
                tracing::debug!("metrics: a client is gone: {errno}");
                ConnectionFate::Over
            }
        }
    }

    fn advance(
        &mut self,
        now: Instant,
        metrics: &mut dyn FnMut() -> String,
    ) -> Result<ConnectionFate, Errno> {
        loop {
            match &mut self.state {
                State::Reading(head) => {
                    let mut chunk = [0; CHUNK_BYTES];
                    let count = rustix::io::read(&self.socket, &mut chunk)?;
                    if count == 0 {
                        return Ok(ConnectionFate::Over);
                    }
                    let room = HEAD_BYTES_MAX - head.len();
                    head.extend_from_slice(&chunk[..count.min(room)]);
                    if let Some(answer) = answer_to(head, metrics) {
                        self.state = State::Writing { answer, written: 0 };
                        self.deadline = now + WRITE_MAX;
                        self.sure_until = now + WRITE_SURE;
                    }
                }
                State::Writing { answer, written } if *written == answer.len() => {
                    rustix::net::shutdown(&self.socket, Shutdown::Write)?;
                    self.state = State::Lingering { left: LINGER_BYTES_MAX };
                    self.deadline = now + LINGER_MAX;
                }
                State::Writing { answer, written } => {
                    let flags = rustix::net::SendFlags::NOSIGNAL;
                    *written += rustix::net::send(&self.socket, &answer[*written..], flags)?;
                }
                State::Lingering { left } => {
                    let mut chunk = [0; CHUNK_BYTES];
                    let count = rustix::io::read(&self.socket, &mut chunk)?;
                    *left = left.saturating_sub(count);
                    if count == 0 || *left == 0 {
                        return Ok(ConnectionFate::Over);
                    }
                }
            }
        }
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// The answer to a request, if all of its head is there.
fn answer_to(head: &[u8], metrics: &mut dyn FnMut() -> String) -> Option<Vec<u8>> {
    match request::read(head) {
        Ask::More => None,
        Ask::Metrics(form, body) => {
            let text = metrics();
            let text = match form {
                TextForm::OpenMetrics => text,
                TextForm::Classic => classic_text(&text),
            };
            Some(request::answer_with(&text, form, body))
        }
        Ask::Refused(refusal, body) => Some(request::refuse(refusal, body)),
    }
}

/// The error of a poll on descriptors of our own; a signal is none.
pub(crate) fn poll_error(errno: Errno) -> io::Result<()> {
    match errno {
        Errno::INTR => Ok(()),
        errno => Err(errno.into()),
    }
}
