//! An agent at a TCP port: its listener, and the relay that joins two streams to one.
//!
//! Invariants: the agent obeys one client at a time, and only one that knows the token; a second one is refused in a sentence.
//! Limits: `WAITING_MAX` connections that have not said hello yet, each for `HELLO_LIMIT`.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use crate::error::AgentError;
use crate::protocol::Tell;
use crate::service::{self, Service};

/// Where agents listen.
pub const PORT: u16 = 7777;
const WAITING_MAX: usize = 8;
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
const COPY_BYTES: usize = 64 << 10;

/// Listens for ever. `bound` is told the address, which has a port even if 0 was asked for.
///
/// # Errors
/// If the address cannot be listened at.
pub fn listen(
    service: &Service,
    address: SocketAddr,
    bound: impl FnOnce(SocketAddr),
) -> Result<(), AgentError> {
    let fault = |source| AgentError::Address { address: address.to_string(), source };
    let listener = TcpListener::bind(address).map_err(fault)?;
    bound(listener.local_addr().map_err(fault)?);
    let (waiting, taken) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    for stream in listener.incoming() {
        // A client that is gone before it was accepted, or no descriptors for it: the next one may come.
        let Ok(stream) = stream else { continue };
        if waiting.load(Ordering::Relaxed) >= WAITING_MAX {
            continue;
        }
        waiting.fetch_add(1, Ordering::Relaxed);
        let (service, taken, counted) = (service.clone(), Arc::clone(&taken), Arc::clone(&waiting));
        let attend = move || {
            // The client hears what is wrong, and nobody else is here.
            drop(attend(&service, &stream, &taken, &counted));
            drop(stream.shutdown(Shutdown::Both));
        };
        if thread::Builder::new().name("agent client".into()).spawn(attend).is_err() {
            waiting.fetch_sub(1, Ordering::Relaxed);
        }
    }
    Ok(())
}

fn attend(
    service: &Service,
    stream: &TcpStream,
    taken: &AtomicBool,
    waiting: &AtomicUsize,
) -> Result<(), AgentError> {
    let greeted = greet(service, stream, taken);
    waiting.fetch_sub(1, Ordering::Relaxed);
    let (asks, mouth) = greeted?;
    let obeyed = service::obey(service, &asks, &mouth);
    taken.store(false, Ordering::Release);
    obeyed
}

fn greet(
    service: &Service,
    stream: &TcpStream,
    taken: &AtomicBool,
) -> Result<(service::Asks, service::Mouth), AgentError> {
    stream.set_nodelay(true).map_err(AgentError::Stream)?;
    let clone = || stream.try_clone().map_err(AgentError::Stream);
    let (asks, mouth) = service::begin(clone()?, clone()?)?;
    service::check_hello(service, &asks, &mouth)?;
    if taken.swap(true, Ordering::Acquire) {
        let why = "another client is connected".to_owned();
        mouth.say(&Tell::Failed { why: why.clone() })?;
        return Err(AgentError::Refused(why));
    }
    if let Err(error) = service::say_hello(service, &mouth) {
        taken.store(false, Ordering::Release);
        return Err(error);
    }
    Ok((asks, mouth))
}

/// Copies this process's standard input to an agent and what comes from there to standard output, until one of them ends.
///
/// # Errors
/// If the agent cannot be reached or the connection breaks.
pub(crate) fn connect(address: SocketAddr) -> Result<(), AgentError> {
    let fault = |source| AgentError::Address { address: address.to_string(), source };
    let stream = TcpStream::connect_timeout(&address, CONNECT_LIMIT).map_err(fault)?;
    stream.set_nodelay(true).map_err(fault)?;
    let upward = stream.try_clone().map_err(fault)?;
    let send = move || {
        // Whatever ends this direction, the agent hears of it.
        drop(copy(io::stdin(), &upward));
        drop(upward.shutdown(Shutdown::Write));
    };
    thread::Builder::new().name("agent relay".into()).spawn(send).map_err(fault)?;
    copy(&stream, io::stdout().lock()).map_err(AgentError::Stream)
}

/// Hands on whatever comes at once.
fn copy(mut from: impl Read, mut to: impl Write) -> io::Result<()> {
    let mut bytes = vec![0; COPY_BYTES];
    loop {
        match from.read(&mut bytes) {
            Ok(0) => return Ok(()),
            Ok(length) => to.write_all(&bytes[..length]).and_then(|()| to.flush())?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}
