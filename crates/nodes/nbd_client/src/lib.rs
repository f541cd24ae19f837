//! The node `nbd`: a disk of an NBD server.
//!
//! Where it stands in the life of a request: at its end. Lanes answer with pieces behind a channel; the channel sends
//! requests and takes replies, without waiting, on the iothread that has opened the lane.
//!
//! Invariants: a connection is shut down before anything is sent on the next one. What a server says is checked before it
//! is used, and nothing that it names is a length of memory. Threads: connections are made by control threads and threads of
//! their own, which may wait; iothreads never do.
//! Not here: the words of the protocol (`nbd_wire`), the server (`nbd`), options and credentials (the daemon).

#![forbid(unsafe_code)]

mod address;
mod channel;
mod connector;
mod flush_coverage;
mod handshake;
mod known_hosts;
mod line;
mod link;
mod node;
mod remote;
mod replies;
mod request;
mod script;
mod shared_line;
mod terms;
mod unknown_outcomes;

pub use address::{ConnectGrant, ServerAddress};
pub use connector::{ClientTls, ConnectError, ServerNameError};
pub use handshake::HandshakeError;
pub use known_hosts::KnownHosts;
pub use node::{NbdNode, NbdNodeError};
pub use remote::RemoteOptions;
pub use replies::ReplyFault;
pub use script::converse;
pub use terms::TermsError;
