//! The loop of a session's thread: messages until the front end leaves.
//!
//! Threads: blocks in the socket; a front end that sends half a message holds up this thread and
//! nothing else, not even an [`Interrupt`]. Whoever wants the session to end shuts the socket down (a
//! clone of it).

use std::fmt;
use std::io::{self, ErrorKind, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard};

use vhost::vhost_user::message::FrontendReq;
use vhost::vhost_user::{BackendReqHandler, Error};

use crate::arrival::{Arrival, Arrivals, Unreadable};
use crate::attached::{self, Attached};
use crate::{Closing, Device, Refusal, Session, SessionState, channel};

/// Why a session ended before the front end left.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The front end asked for something that is refused.
    #[error(transparent)]
    Refused(Box<Refusal>),
    /// The front end sent something that is no message, or not now.
    #[error("front end sent a message that cannot be taken")]
    Message {
        /// What is wrong with it.
        #[source]
        source: Error,
    },
    /// The connection broke.
    #[error("connection to the front end broke")]
    Socket {
        /// Why.
        #[source]
        source: io::Error,
    },
}

impl SessionError {
    /// Whether this process lacks the room that the session takes, or a descriptor. Everything else is the front
    /// end's doing: what it has shared can be had no more, or never could be served.
    pub fn is_own(&self) -> bool {
        let refusal = match self {
            Self::Refused(refusal) => &**refusal,
            Self::Message { .. } => return false,
            Self::Socket { .. } => return true,
        };
        if let Refusal::Memory(error) = refusal {
            error.is_want_of_room()
        } else if let Refusal::Inflight(error) = refusal {
            error.is_want_of_room()
        } else if let Refusal::Log(error) = refusal {
            error.is_want_of_room()
        } else {
            matches!(
                refusal,
                Refusal::Descriptors { .. }
                    | Refusal::Copy { .. }
                    | Refusal::Duplicate { .. }
                    | Refusal::Device(_)
            )
        }
    }
}

/// Serves a device to one front end until it leaves or does something that ends the session. All
/// rings are stopped when this returns.
pub fn serve<D: Device>(stream: UnixStream, device: D) -> Result<(), SessionError> {
    Server::new(stream, device)?.run(&Uninterrupted).map(|_end| ())
}

/// Somebody who may ask a session to pause between two messages.
pub trait Interrupt {
    /// Readable as long as there is a question; nobody ever asks without it.
    fn bell(&self) -> Option<BorrowedFd<'_>>;

    /// Readable when there is something else to look at between two messages; nobody ever looks without it.
    fn aside(&self) -> Option<BorrowedFd<'_>>;

    /// Called on the session's thread when there is; must not block.
    fn look_aside(&self);

    /// The rings are stopped. Blocks until it is known what becomes of the session. Called on the
    /// session's thread while the bell is readable; it must be silenced before this returns.
    fn paused(&self, state: SessionState) -> Verdict;
}

/// What becomes of a session that was paused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It goes on here.
    GoOn,
    /// It ends; its rings are not served again.
    End,
    /// Another process goes on with it: its rings and its connection are not touched any more.
    GivenAway,
}

/// How a session ended without an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The front end has left.
    Left,
    /// Another process goes on with it.
    GivenAway,
}

/// Nobody asks.
#[derive(Debug)]
pub struct Uninterrupted;

impl Interrupt for Uninterrupted {
    fn bell(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn aside(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn look_aside(&self) {}

    fn paused(&self, _: SessionState) -> Verdict {
        Verdict::GoOn
    }
}

/// A session on its connection.
pub struct Server<D: Device> {
    session: Arc<Mutex<Session<D>>>,
    handler: BackendReqHandler<Mutex<Session<D>>>,
    /// What the handler reads from, to look at it before.
    connection: UnixStream,
}

impl<D: Device + fmt::Debug> fmt::Debug for Server<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("session", &self.session).finish_non_exhaustive()
    }
}

/// Makes the descriptor of that number, of the same socket as the second one, a copy of the third.
pub type Exchange = fn(RawFd, BorrowedFd<'_>, BorrowedFd<'_>) -> io::Result<()>;

impl<D: Device> Server<D> {
    /// A session in which nothing has been said yet.
    pub fn new(stream: UnixStream, device: D) -> Result<Self, SessionError> {
        let connection = stream.try_clone().map_err(|source| SessionError::Socket { source })?;
        attached::keep_order(&connection).map_err(|source| SessionError::Socket { source })?;
        let session = Arc::new(Mutex::new(Session::new(device)));
        let handler = BackendReqHandler::from_stream(stream, Arc::clone(&session));
        Ok(Self { session, handler, connection })
    }

    /// A session that another process has paused, on its connection. No ring is served before
    /// [`Server::resume`].
    ///
    /// The vhost crate keeps what was negotiated to itself. So it is negotiated once more, over a
    /// socket of our own, whose place the connection then takes.
    pub fn restore(
        stream: &UnixStream,
        device: D,
        state: SessionState,
        exchange: Exchange,
    ) -> Result<Self, SessionError> {
        let socket = |source| SessionError::Socket { source };
        let (ours, theirs) = UnixStream::pair().map_err(socket)?;
        let mut server = Self::new(theirs, device)?;
        for message in renegotiation(&state) {
            (&ours).write_all(&message).map_err(socket)?;
            if let Err(error) = server.handler.handle_request() {
                end_of_session(error)?;
            }
        }
        let same = server.connection.as_fd();
        attached::keep_order(stream).map_err(socket)?;
        exchange(server.handler.as_raw_fd(), same, stream.as_fd()).map_err(socket)?;
        server.connection = stream.try_clone().map_err(socket)?;
        server.session().restore(state).map_err(refused)?;
        server.session().check_descriptors().map_err(refused)?;
        Ok(server)
    }

    /// Serves the rings of a restored session, calls `served`, and goes on as [`Server::run`].
    pub fn resume(
        self,
        interrupt: &dyn Interrupt,
        served: impl FnOnce(),
    ) -> Result<End, SessionError> {
        match self.go_on() {
            Ok(()) => {
                served();
                self.run(interrupt)
            }
            Err(error) => {
                // Some rings may be served already.
                let _first_error_counts = self.halt();
                Err(error)
            }
        }
    }

    fn go_on(&self) -> Result<(), SessionError> {
        self.session().go_on().map_err(refused)
    }

    /// Serves the front end until it leaves, does something that ends the session, or another process
    /// goes on. No ring is served when this returns.
    pub fn run(mut self, interrupt: &dyn Interrupt) -> Result<End, SessionError> {
        let end = self.turns(interrupt);
        if let Ok(End::GivenAway) = end {
            // Its rings were stopped for the pause, and what the device holds is the other process's.
            return end;
        }
        let stopped = self.halt();
        end.and_then(|end| stopped.map(|()| end))
    }

    fn halt(&self) -> Result<(), SessionError> {
        self.session().halt_all().map_err(refused)
    }

    fn turns(&mut self, interrupt: &dyn Interrupt) -> Result<End, SessionError> {
        let arrivals = interrupt.bell().map(|_| Arrivals::new(&self.connection));
        let arrivals = arrivals.transpose().map_err(|source| SessionError::Socket { source })?;
        loop {
            if let Some(end) = self.turn(interrupt, arrivals.as_ref())? {
                return Ok(end);
            }
        }
    }

    /// One message, or one pause.
    fn turn(
        &mut self,
        interrupt: &dyn Interrupt,
        arrivals: Option<&Arrivals>,
    ) -> Result<Option<End>, SessionError> {
        if let (Some(bell), Some(arrivals)) = (interrupt.bell(), arrivals) {
            let failed = |unreadable| match unreadable {
                Unreadable::Torn => SessionError::Message { source: Error::PartialMessage },
                Unreadable::Wait(source) => SessionError::Socket { source },
            };
            match arrivals.wait(&self.connection, bell, interrupt.aside()).map_err(failed)? {
                Arrival::Bell => return self.pause(interrupt),
                Arrival::Aside => {
                    interrupt.look_aside();
                    return Ok(None);
                }
                Arrival::Message => {}
            }
        }
        self.check_attached()?;
        self.look_for_channel()?;
        match self.handler.handle_request() {
            Ok(()) => {
                self.session().answered();
                Ok(None)
            }
            Err(error) => end_of_session(error).map(|()| Some(End::Left)),
        }
    }

    /// Refuses a message with a descriptor whose close may wait for somebody, before it is received.
    fn check_attached(&self) -> Result<(), SessionError> {
        let failed = |source| SessionError::Socket { source };
        match attached::look(self.connection.as_fd()).map_err(failed)? {
            Attached::Nothing => return Ok(()),
            Attached::Torn => return Err(SessionError::Message { source: Error::PartialMessage }),
            Attached::Descriptors => {}
        }
        match self.session().look_at_descriptors(self.connection.as_fd()).map_err(refused)? {
            Closing::AsksNobody => Ok(()),
            Closing::MayWait => Err(refused(Refusal::ForeignDescriptor)),
        }
    }

    /// Has the session know the channel that the next message brings, if it does.
    fn look_for_channel(&self) -> Result<(), SessionError> {
        if !self.session().expects_channel() {
            return Ok(());
        }
        match channel::peek(self.connection.as_fd()) {
            Ok(arriving) => {
                self.session().set_arriving(arriving);
                Ok(())
            }
            // Then reading the message fails too, and says what that means.
            Err(error) if error.kind() == ErrorKind::ConnectionReset => Ok(()),
            Err(source) => Err(SessionError::Socket { source }),
        }
    }

    fn pause(&self, interrupt: &dyn Interrupt) -> Result<Option<End>, SessionError> {
        let state = self.session().pause().map_err(refused)?;
        match interrupt.paused(state) {
            Verdict::GoOn => {
                self.go_on()?;
                Ok(None)
            }
            Verdict::End => Ok(Some(End::Left)),
            Verdict::GivenAway => Ok(Some(End::GivenAway)),
        }
    }

    fn session(&self) -> MutexGuard<'_, Session<D>> {
        self.session.lock().expect("its thread alone locks it and did not panic")
    }
}

fn refused(refusal: Refusal) -> SessionError {
    SessionError::Refused(Box::new(refusal))
}

/// The messages by which a front end negotiates. None of them has an answer that matters: what was
/// chosen before is checked like any choice.
fn renegotiation(state: &SessionState) -> Vec<Vec<u8>> {
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
        return match source.downcast::<Refusal>() {
            Ok(refusal) => Err(SessionError::Refused(Box::new(refusal))),
            Err(source) => Err(SessionError::Socket { source }),
        };
    }
    if let Error::SocketBroken(source) | Error::SocketError(source) | Error::SocketRetry(source) =
        error
    {
        let left = [ErrorKind::ConnectionReset, ErrorKind::BrokenPipe];
        return if left.contains(&source.kind()) {
            Ok(())
        } else {
            Err(SessionError::Socket { source })
        };
    }
    Err(SessionError::Message { source: error })
}
