//! The loop of a session's thread: messages until the front end leaves.
//!
//! Threads: blocks in the socket; a front end that sends half a message holds up this thread and
//! nothing else, not even an [`SessionControl`]. Whoever wants the session to end shuts the socket down (a
//! clone of it).

use std::fmt;
use std::io::{self, ErrorKind, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard};

use vhost::vhost_user::message::FrontendReq;
use vhost::vhost_user::{BackendReqHandler, Error};

use crate::message_waiter::{MessageWaiter, SessionWakeup};
use crate::{DescriptorCloseRisk, Device, MessageRefusal, SavedSession, Session};
use crate::{backend_channel, message_descriptors};

/// Why a session ended before the front end left.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The front end asked for something that is refused.
    #[error(transparent)]
    Refused(Box<MessageRefusal>),
    /// The front end sent something that is no message, or not now.
    #[error("front end sent a message that cannot be taken")]
    Message(#[source] Error),
    /// The connection broke.
    #[error("connection to the front end broke")]
    Socket(#[from] io::Error),
}

impl From<MessageRefusal> for SessionError {
    fn from(refusal: MessageRefusal) -> Self {
        Self::Refused(Box::new(refusal))
    }
}

impl SessionError {
    /// Whether this process lacks the room that the session takes, or a descriptor. Everything else is the front
    /// end's doing: what it has shared can be had no more, or never could be served.
    pub fn is_own(&self) -> bool {
        let refusal = match self {
            Self::Refused(refusal) => &**refusal,
            Self::Message(_) => return false,
            Self::Socket(_) => return true,
        };
        if let MessageRefusal::Memory(error) = refusal {
            error.is_want_of_room()
        } else if let MessageRefusal::Inflight(error) = refusal {
            error.is_want_of_room()
        } else if let MessageRefusal::Log(error) = refusal {
            error.is_want_of_room()
        } else {
            matches!(
                refusal,
                MessageRefusal::Descriptors { .. }
                    | MessageRefusal::Copy(_)
                    | MessageRefusal::Duplicate { .. }
                    | MessageRefusal::Device(_)
            )
        }
    }
}

/// How another thread asks a session to pause between two messages (for a takeover), or to do background work.
pub trait SessionControl {
    /// Readable as long as there is a question; nobody ever asks without it.
    fn bell(&self) -> Option<BorrowedFd<'_>>;

    /// Readable when there is something else to look at between two messages; nobody ever looks without it.
    fn background(&self) -> Option<BorrowedFd<'_>>;

    /// Called on the session's thread when there is; must not block.
    fn run_background(&self);

    /// The rings are stopped. Blocks until it is known what becomes of the session. Called on the
    /// session's thread while the bell is readable; it must be silenced before this returns.
    fn paused(&self, state: SavedSession) -> PauseOutcome;
}

/// How the pause of a session ended: it resumes, ends, or was handed over to another process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PauseOutcome {
    /// It goes on here.
    Resume,
    /// It ends; its rings are not served again.
    End,
    /// Another process goes on with it: its rings and its connection are not touched any more.
    HandedOver,
}

/// How a session ended without an error: the front end disconnected, or another process goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionEnd {
    /// The front end has left.
    Disconnected,
    /// Another process goes on with it.
    HandedOver,
}

/// Serves a session on its connection: reads messages and answers them.
pub struct SessionServer<D: Device> {
    session: Arc<Mutex<Session<D>>>,
    handler: BackendReqHandler<Mutex<Session<D>>>,
    /// What the handler reads from, to look at it before.
    connection: UnixStream,
}

impl<D: Device + fmt::Debug> fmt::Debug for SessionServer<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SessionServer").field("session", &self.session).finish_non_exhaustive()
    }
}

/// A function that puts another socket behind a descriptor: `(number, same, by)`.
pub type SocketSwap = fn(RawFd, BorrowedFd<'_>, BorrowedFd<'_>) -> io::Result<()>;

impl<D: Device> SessionServer<D> {
    /// A session in which nothing has been said yet.
    pub fn new(stream: UnixStream, device: D) -> Result<Self, SessionError> {
        let connection = stream.try_clone()?;
        message_descriptors::keep_order(&connection)?;
        let session = Arc::new(Mutex::new(Session::new(device)));
        let handler = BackendReqHandler::from_stream(stream, Arc::clone(&session));
        Ok(Self { session, handler, connection })
    }

    /// A session that another process has paused, on its connection. No ring is served before
    /// [`SessionServer::resume`].
    ///
    /// The vhost crate keeps what was negotiated to itself. So it is negotiated once more, over a
    /// socket of our own, whose place the connection then takes.
    pub fn restore(
        stream: &UnixStream,
        device: D,
        state: SavedSession,
        exchange: SocketSwap,
    ) -> Result<Self, SessionError> {
        let (ours, theirs) = UnixStream::pair()?;
        let mut server = Self::new(theirs, device)?;
        for message in renegotiation(&state) {
            (&ours).write_all(&message)?;
            if let Err(error) = server.handler.handle_request() {
                end_of_session(error)?;
            }
        }
        let same = server.connection.as_fd();
        message_descriptors::keep_order(stream)?;
        exchange(server.handler.as_raw_fd(), same, stream.as_fd())?;
        server.connection = stream.try_clone()?;
        server.session().restore(state)?;
        server.session().check_descriptors()?;
        Ok(server)
    }

    /// Serves the rings of a restored session, calls `served`, and goes on as [`SessionServer::run`].
    pub fn resume(
        self,
        interrupt: &dyn SessionControl,
        served: impl FnOnce(),
    ) -> Result<SessionEnd, SessionError> {
        match self.go_on() {
            Ok(()) => {
                served();
                self.run(interrupt)
            }
            Err(error) => {
                // Some rings may be served already.
                let _first_error_counts = self.stop_if_served();
                Err(error)
            }
        }
    }

    fn go_on(&self) -> Result<(), SessionError> {
        Ok(self.session().go_on()?)
    }

    /// Serves the front end until it leaves, does something that ends the session, or another process
    /// goes on. No ring is served when this returns.
    pub fn run(mut self, interrupt: &dyn SessionControl) -> Result<SessionEnd, SessionError> {
        let end = self.run_messages(interrupt);
        if let Ok(SessionEnd::HandedOver) = end {
            // Its rings were stopped for the pause, and what the device holds is the other process's.
            return end;
        }
        let stopped = self.stop_if_served();
        end.and_then(|end| stopped.map(|()| end))
    }

    fn stop_if_served(&self) -> Result<(), SessionError> {
        Ok(self.session().halt_all()?)
    }

    fn run_messages(&mut self, interrupt: &dyn SessionControl) -> Result<SessionEnd, SessionError> {
        let arrivals =
            interrupt.bell().map(|_| MessageWaiter::new(&self.connection)).transpose()?;
        loop {
            if let Some(end) = self.handle_next(interrupt, arrivals.as_ref())? {
                return Ok(end);
            }
        }
    }

    /// One message, or one pause.
    fn handle_next(
        &mut self,
        interrupt: &dyn SessionControl,
        arrivals: Option<&MessageWaiter>,
    ) -> Result<Option<SessionEnd>, SessionError> {
        if let (Some(bell), Some(arrivals)) = (interrupt.bell(), arrivals) {
            match arrivals.wait(&self.connection, bell, interrupt.background())? {
                SessionWakeup::Bell => return self.pause(interrupt),
                SessionWakeup::Aside => {
                    interrupt.run_background();
                    return Ok(None);
                }
                SessionWakeup::Message => {}
            }
        }
        self.check_attached()?;
        self.look_for_channel()?;
        match self.handler.handle_request() {
            Ok(()) => {
                self.session().answered();
                Ok(None)
            }
            Err(error) => end_of_session(error).map(|()| Some(SessionEnd::Disconnected)),
        }
    }

    /// Refuses a message with a descriptor whose close may wait for somebody, before it is received.
    fn check_attached(&self) -> Result<(), SessionError> {
        if !message_descriptors::may_come(self.connection.as_fd())? {
            return Ok(());
        }
        match self.session().inspect_descriptors(self.connection.as_fd())? {
            DescriptorCloseRisk::None => Ok(()),
            DescriptorCloseRisk::MayBlock => Err(MessageRefusal::ForeignDescriptor.into()),
        }
    }

    /// Has the session know the channel that the next message brings, if it does.
    fn look_for_channel(&self) -> Result<(), SessionError> {
        if !self.session().expects_channel() {
            return Ok(());
        }
        match backend_channel::peek(self.connection.as_fd()) {
            Ok(incoming_channel) => {
                self.session().set_arriving(incoming_channel);
                Ok(())
            }
            // Then reading the message fails too, and says what that means.
            Err(error) if error.kind() == ErrorKind::ConnectionReset => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn pause(&self, interrupt: &dyn SessionControl) -> Result<Option<SessionEnd>, SessionError> {
        let state = self.session().pause()?;
        match interrupt.paused(state) {
            PauseOutcome::Resume => {
                self.go_on()?;
                Ok(None)
            }
            PauseOutcome::End => Ok(Some(SessionEnd::Disconnected)),
            PauseOutcome::HandedOver => Ok(Some(SessionEnd::HandedOver)),
        }
    }

    fn session(&self) -> MutexGuard<'_, Session<D>> {
        self.session.lock().expect("its thread alone locks it and did not panic")
    }
}

/// The messages by which a front end negotiates. None of them has an answer that matters: what was
/// chosen before is checked like any choice.
fn renegotiation(state: &SavedSession) -> Vec<Vec<u8>> {
    /// The version in the low bits of a message's flags.
    const VERSION: u32 = 1;
    let message = |request: FrontendReq, value: Option<u64>| {
        let payload = value.map(|value| value.to_ne_bytes().to_vec()).unwrap_or_default();
        let bytes = u32::try_from(payload.len()).expect("8 bytes at most");
        let header = [request as u32, VERSION, bytes].map(u32::to_ne_bytes).concat();
        [header, payload].concat()
    };
    vec![
        message(FrontendReq::GET_FEATURES, None),
        message(FrontendReq::GET_PROTOCOL_FEATURES, None),
        message(FrontendReq::SET_PROTOCOL_FEATURES, Some(state.protocol)),
        message(FrontendReq::SET_FEATURES, Some(state.features.0)),
    ]
}

/// A front end may leave at any time between two messages, also by being killed before it has
/// read an answer; everything else is an error.
fn end_of_session(error: Error) -> Result<(), SessionError> {
    if let Error::Disconnected = error {
        return Ok(());
    }
    if let Error::ReqHandlerError(source) = error {
        let refusal = source.downcast::<MessageRefusal>().map_err(SessionError::Socket)?;
        return Err(refusal.into());
    }
    if let Error::SocketBroken(source) | Error::SocketError(source) | Error::SocketRetry(source) =
        error
    {
        let left = [ErrorKind::ConnectionReset, ErrorKind::BrokenPipe];
        return if left.contains(&source.kind()) { Ok(()) } else { Err(source.into()) };
    }
    Err(SessionError::Message(error))
}
