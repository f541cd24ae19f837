//! How a connection is made: to one address after the other, with TLS and the handshake, within a time.
//!
//! Where it stands: whoever calls it waits: a control thread that makes a node, or a thread for one attempt.
//!
//! Invariants: an attempt ends after its time, whatever the server does or does not do; behind it nothing of a failed attempt
//! is left.

use std::io::{self, ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use block::{Clock, SystemClock};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, ioctl_fionbio};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with, sockopt,
};
use rustls::pki_types::{InvalidDnsNameError, ServerName};
use rustls::{ClientConfig, ClientConnection};

use crate::address::ServerEndpoint;
use crate::handshake::{Greeting, HandshakeError};
use crate::link::{Link, receive, transmit};
use crate::terms::Terms;

/// How long one attempt may take, from the first packet to the end of the handshake.
pub(crate) const ATTEMPT_MAX: Duration = Duration::from_secs(10);

/// With what TLS is done, and as whom the server has to show itself.
#[derive(Clone)]
pub struct ClientTls {
    /// Certificates and keys.
    config: Arc<ClientConfig>,
    /// Which name the server's certificate needs.
    name: ServerName<'static>,
}

/// A name that no server can have.
#[derive(Debug, thiserror::Error)]
#[error("'{name}' is no name of a server; see tls-hostname")]
pub struct ServerNameError {
    name: String,
    #[source]
    source: InvalidDnsNameError,
}

impl ClientTls {
    /// TLS with these credentials and a server of that name: of a host, or a number.
    pub fn new(config: Arc<ClientConfig>, name: &str) -> Result<Self, ServerNameError> {
        let failed = |source| ServerNameError { name: name.to_owned(), source };
        let name = ServerName::try_from(name.to_owned()).map_err(failed)?;
        Ok(Self { config, name })
    }
}

impl std::fmt::Debug for ClientTls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ClientTls({:?})", self.name)
    }
}

/// No connection.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// Nobody knows where it is.
    #[error("cannot look the server's name up")]
    Resolve(#[source] io::Error),
    /// The server cannot be reached.
    #[error("cannot connect")]
    Connect(#[source] io::Error),
    /// TLS says why.
    #[error("TLS does not come about")]
    Tls(#[source] io::Error),
    /// The server says why.
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    /// Another disk than before.
    #[error(
        "the export is another one than before: it had {before} bytes and flags {flags_before:#06x}, now {now} bytes and \
         flags {flags_now:#06x}"
    )]
    OtherDisk {
        /// Its bytes before.
        before: u64,
        /// Its flags before.
        flags_before: u16,
        /// Its bytes now.
        now: u64,
        /// Its flags now.
        flags_now: u16,
    },
}

/// A connection behind its handshake, with what was agreed on.
#[derive(Debug)]
pub(crate) struct Connected {
    pub(crate) link: Link,
    pub(crate) terms: Terms,
}

/// Makes connections to one export.
#[derive(Debug)]
pub(crate) struct Connector {
    pub(crate) endpoint: ServerEndpoint,
    pub(crate) export: String,
    pub(crate) tls: Option<ClientTls>,
    /// The connection that the process was started with, until it is used.
    pub(crate) given: Mutex<Option<OwnedFd>>,
}

impl Connector {
    /// Makes one. Blocks, for [`ATTEMPT_MAX`] at most.
    pub(crate) fn connect(&self) -> Result<Connected, ConnectError> {
        let until = SystemClock.now() + ATTEMPT_MAX;
        let socket = self.reach(until).map_err(ConnectError::Connect)?;
        let mut plain = TimedSocket { socket: &socket, until };
        let greeting = Greeting::take(&mut plain)?;
        let Some(tls) = &self.tls else {
            let terms = greeting.choose(&mut plain, &self.export)?;
            return Ok(Connected { link: Link::new(socket, None), terms });
        };
        greeting.start_tls(&mut plain)?;
        let session = ClientConnection::new(Arc::clone(&tls.config), tls.name.clone());
        let mut session = Box::new(session.map_err(|it| ConnectError::Tls(io::Error::other(it)))?);
        while session.is_handshaking() {
            session.complete_io(&mut plain).map_err(ConnectError::Tls)?;
        }
        let mut stream = rustls::Stream::new(&mut *session, &mut plain);
        let terms = greeting.choose(&mut stream, &self.export)?;
        Ok(Connected { link: Link::new(socket, Some(session)), terms })
    }

    /// A socket that is connected.
    fn reach(&self, until: Instant) -> io::Result<OwnedFd> {
        match &self.endpoint {
            ServerEndpoint::Unix(path) => {
                let socket = stream_socket(AddressFamily::UNIX)?;
                finish(&socket, connect(&socket, &SocketAddrUnix::new(path)?), until)?;
                Ok(socket)
            }
            ServerEndpoint::Inet(addresses) => {
                let mut failed = io::Error::from(ErrorKind::AddrNotAvailable);
                for address in addresses {
                    match reach_inet(address, until) {
                        Ok(socket) => return Ok(socket),
                        Err(error) => failed = error,
                    }
                }
                Err(failed)
            }
            ServerEndpoint::Given => {
                let given = self.given.lock().expect("no holder of this lock panics").take();
                let used = "the connection that the process was started with is over, and there is no other";
                let socket = given.ok_or_else(|| io::Error::new(ErrorKind::NotConnected, used))?;
                ioctl_fionbio(&socket, true)?;
                Ok(socket)
            }
        }
    }
}

fn stream_socket(family: AddressFamily) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socket_with(family, SocketType::STREAM, flags, None)?)
}

fn reach_inet(address: &SocketAddr, until: Instant) -> io::Result<OwnedFd> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = stream_socket(family)?;
    finish(&socket, connect(&socket, address), until)?;
    // A small request waits for no larger one, and a host that is gone is noticed at last.
    sockopt::set_tcp_nodelay(&socket, true)?;
    sockopt::set_socket_keepalive(&socket, true)?;
    Ok(socket)
}

/// Waits until a connection stands that was begun.
fn finish(socket: &OwnedFd, begun: Result<(), Errno>, until: Instant) -> io::Result<()> {
    match begun {
        Ok(()) => Ok(()),
        Err(Errno::INPROGRESS | Errno::INTR) => {
            wait(socket, PollFlags::OUT, until)?;
            Ok(sockopt::socket_error(socket)??)
        }
        Err(errno) => Err(errno.into()),
    }
}

/// Waits until something can be received or sent.
fn wait(socket: &OwnedFd, what: PollFlags, until: Instant) -> io::Result<()> {
    loop {
        let left = until.saturating_duration_since(SystemClock.now());
        if left.is_zero() {
            let seconds = ATTEMPT_MAX.as_secs();
            let why = format!("the server has not answered for {seconds} s");
            return Err(io::Error::new(ErrorKind::TimedOut, why));
        }
        let left = Timespec::try_from(left).map_err(io::Error::other)?;
        match poll(&mut [PollFd::new(socket, what)], Some(&left)) {
            Ok(0) | Err(Errno::INTR) => {}
            Ok(_) => return Ok(()),
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// A socket whose calls wait, but only until then.
struct TimedSocket<'a> {
    socket: &'a OwnedFd,
    until: Instant,
}

impl TimedSocket<'_> {
    fn retry<T>(
        &self,
        what: PollFlags,
        mut call: impl FnMut() -> Result<T, Errno>,
    ) -> io::Result<T> {
        loop {
            match call() {
                Err(Errno::AGAIN) => wait(self.socket, what, self.until)?,
                other => return Ok(other?),
            }
        }
    }
}

impl Read for TimedSocket<'_> {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        self.retry(PollFlags::IN, || receive(self.socket, room))
    }
}

impl Write for TimedSocket<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.retry(PollFlags::OUT, || transmit(self.socket, bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
