//! Why a connection is not served any more: what its owner is told, and the log says.
//!
//! Invariants: one of three kinds, which `SourceObserver::broken` finds by `downcast_ref::<ConnectionEnd>()`.

use rustix::io::Errno;

/// Why a connection is not served any more.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ConnectionEnd {
    /// The client has said so, and has had all its answers: nothing is wrong.
    #[error("the client has left")]
    ClientLeft,
    /// The connection ended in whatever state it was. What the client had sent as a whole was carried out.
    #[error("the connection was lost")]
    Lost(#[source] LostConnection),
    /// The client has sent what is no NBD.
    #[error("the client broke the protocol")]
    ProtocolBroken(#[source] ProtocolFault),
}

/// How a connection ended that nobody has ended in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LostConnection {
    /// Between two requests, without a word.
    #[error("the client has closed it without NBD_CMD_DISC")]
    Closed,
    /// In the middle of a request.
    #[error("the client has closed it in the middle of a request")]
    Cut,
    /// The kernel says so.
    #[error(transparent)]
    Failed(Errno),
}

/// What a client has sent that is no NBD.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ProtocolFault {
    /// No request begins so.
    #[error("a request begins with {0:#010x}")]
    RequestMagic(u32),
    /// More than anybody offered to take.
    #[error("a request of type {command} with {bytes} bytes of data")]
    Payload {
        /// Its type.
        command: u16,
        /// What its header says.
        bytes: u64,
    },
    /// Nor TLS.
    #[error("TLS")]
    Tls(#[source] rustls::Error),
}
