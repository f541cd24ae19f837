//! The listening socket for metrics: TCP of this host, or UNIX.
//!
//! Invariants: it is made before the fences are up, behind which the daemon only accepts.

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use exports::{ExportSocket, SocketError};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::net::{SocketFlags, accept_with};

use crate::options::{MetricsAddress, MetricsOptions};

/// Metrics cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum MetricsError {
    /// The UNIX socket cannot be made.
    #[error("metrics")]
    Unix(#[from] SocketError),
    /// The address of TCP cannot be had.
    #[error("metrics: cannot listen on {address}")]
    Inet {
        /// Which.
        address: SocketAddr,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// There is no thread or eventfd.
    #[error("metrics: cannot start their thread")]
    Thread(#[source] io::Error),
}

/// Where clients connect.
#[derive(Debug)]
pub(crate) enum MetricsListener {
    /// TCP.
    Inet { socket: TcpListener, address: SocketAddr },
    /// A UNIX socket, whose file is removed at the end.
    Unix(ExportSocket),
}

impl MetricsListener {
    /// Listens.
    pub(crate) fn open(options: &MetricsOptions) -> Result<Self, MetricsError> {
        let listener = match &options.address {
            MetricsAddress::Unix(socket) => Self::Unix(ExportSocket::listen(socket)?),
            MetricsAddress::Inet(address) => {
                let failed = |source| MetricsError::Inet { address: *address, source };
                let socket = TcpListener::bind(address).map_err(failed)?;
                let address = socket.local_addr().map_err(failed)?;
                Self::Inet { socket, address }
            }
        };
        // A client that has left again is not waited for.
        let fd = listener.as_fd();
        let flags = fcntl_getfl(fd).and_then(|flags| fcntl_setfl(fd, flags | OFlags::NONBLOCK));
        flags.map_err(|errno| MetricsError::Thread(errno.into()))?;
        Ok(listener)
    }

    /// Accepts the next client, if there is one.
    pub(crate) fn accept(&self) -> io::Result<OwnedFd> {
        Ok(accept_with(self.as_fd(), SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?)
    }
}

impl AsFd for MetricsListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Inet { socket, .. } => socket.as_fd(),
            Self::Unix(socket) => socket.listener().as_fd(),
        }
    }
}

impl fmt::Display for MetricsListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Inet { address, .. } => write!(f, "http://{address}/metrics"),
            Self::Unix(socket) => write!(f, "{}", socket.path().display()),
        }
    }
}
