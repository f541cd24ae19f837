//! The listening socket of the NBD server: TCP or UNIX.
//!
//! Invariants: what an accepted socket of TCP needs (no delay, keep-alive) it inherits from the listener, since behind the
//! fences nothing of the kind can be set.

use std::fmt;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};

use exports::{ExportSocket, InheritedSocketError, SocketError, stream_listener_at};
use rustix::net::{
    AddressFamily, SocketAddrAny, SocketFlags, SocketType, accept_with, bind, getsockname, ipproto,
    listen, socket_with, sockopt,
};

use crate::options::{InetAddress, ListenAddress};

/// Clients that wait to be accepted.
const BACKLOG: i32 = 128;

/// Where clients connect.
#[derive(Debug)]
pub(crate) enum NbdListener {
    /// TCP.
    Inet { socket: OwnedFd, address: SocketAddr },
    /// A UNIX socket, whose file is removed at the end.
    Unix(ExportSocket),
    /// One that somebody else has made.
    Inherited { socket: OwnedFd, descriptor: RawFd },
}

/// Nobody can connect at the address.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// A UNIX socket.
    #[error(transparent)]
    Unix(#[from] SocketError),
    /// A descriptor.
    #[error(transparent)]
    Inherited(#[from] InheritedSocketError),
    /// The name of a host.
    #[error("host '{host}' has no address to listen on")]
    Host {
        /// As it was given.
        host: String,
        /// Why, if somebody knows.
        #[source]
        source: Option<io::Error>,
    },
    /// An address of TCP.
    #[error("cannot listen on {address}")]
    Inet {
        /// Which.
        address: SocketAddr,
        /// Why.
        #[source]
        source: io::Error,
    },
}

impl NbdListener {
    /// Listens there. Names of hosts are looked up, which may block.
    pub(crate) fn open(address: &ListenAddress) -> Result<Self, ListenError> {
        match address {
            ListenAddress::Unix(socket) => Ok(Self::Unix(ExportSocket::listen(socket)?)),
            ListenAddress::Descriptor(descriptor) => {
                let socket = stream_listener_at(*descriptor)?;
                Ok(Self::Inherited { socket, descriptor: *descriptor })
            }
            ListenAddress::Inet(inet) => {
                let address = resolve(inet)?;
                let failed =
                    |errno: rustix::io::Errno| ListenError::Inet { address, source: errno.into() };
                let socket = open_inet(address).map_err(failed)?;
                let bound = getsockname(&socket).map_err(failed)?;
                let address = SocketAddr::try_from(bound).unwrap_or(address);
                Ok(Self::Inet { socket, address })
            }
        }
    }

    /// Accepts the next client, who has come.
    pub(crate) fn accept(&self) -> io::Result<(OwnedFd, Option<SocketAddr>)> {
        let fd = accept_with(self.as_fd(), SocketFlags::CLOEXEC)?;
        let peer = match self {
            Self::Unix(_) => None,
            Self::Inet { .. } | Self::Inherited { .. } => peer_address(&fd),
        };
        Ok((fd, peer))
    }
}

impl AsFd for NbdListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Inet { socket, .. } | Self::Inherited { socket, .. } => socket.as_fd(),
            Self::Unix(socket) => socket.listener().as_fd(),
        }
    }
}

impl fmt::Display for NbdListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Inet { address, .. } => write!(f, "{address}"),
            Self::Unix(socket) => write!(f, "{}", socket.path().display()),
            Self::Inherited { descriptor, .. } => write!(f, "descriptor {descriptor}"),
        }
    }
}

fn peer_address(fd: &OwnedFd) -> Option<SocketAddr> {
    let address: SocketAddrAny = rustix::net::getpeername(fd).ok()??;
    SocketAddr::try_from(address).ok()
}

/// The first address of a host that may be used.
fn resolve(
    InetAddress { host, port, ipv4, ipv6 }: &InetAddress,
) -> Result<SocketAddr, ListenError> {
    let none = |source| ListenError::Host { host: host.clone(), source };
    let name = match (host.as_str(), ipv6) {
        ("", true) => "::",
        ("", false) => "0.0.0.0",
        (name, _) => name,
    };
    let mut found = (name, *port).to_socket_addrs().map_err(|error| none(Some(error)))?;
    found.find(|it| if it.is_ipv4() { *ipv4 } else { *ipv6 }).ok_or_else(|| none(None))
}

fn open_inet(address: SocketAddr) -> rustix::io::Result<OwnedFd> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let kind = SocketType::STREAM;
    let socket = socket_with(family, kind, SocketFlags::CLOEXEC, Some(ipproto::TCP))?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    sockopt::set_tcp_nodelay(&socket, true)?;
    sockopt::set_socket_keepalive(&socket, true)?;
    bind(&socket, &address)?;
    listen(&socket, BACKLOG)?;
    Ok(socket)
}
