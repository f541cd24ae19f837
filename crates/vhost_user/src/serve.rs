//! The loop of a session's thread: messages until the front end leaves.
//!
//! Threads: blocks in the socket; a front end that sends half a message holds up this thread and
//! nothing else. Whoever wants the session to end shuts the socket down (a clone of it).

use std::io::{self, ErrorKind};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};

use vhost::vhost_user::{BackendReqHandler, Error};

use crate::{Device, Refusal, Session};

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

/// Serves a device to one front end until it leaves or does something that ends the session. All
/// rings are stopped when this returns.
pub fn serve<D: Device>(stream: UnixStream, device: D) -> Result<(), SessionError> {
    let session = Arc::new(Mutex::new(Session::new(device)));
    let mut handler = BackendReqHandler::from_stream(stream, Arc::clone(&session));
    let locked = || session.lock().expect("this thread alone locks it and did not panic");
    let end = loop {
        match handler.handle_request() {
            Ok(()) => locked().answered(),
            Err(error) => break end_of_session(error),
        }
    };
    let stopped = locked().halt_all().map_err(|refusal| SessionError::Refused(Box::new(refusal)));
    end.and(stopped)
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
