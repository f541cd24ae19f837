//! The node `rbd`: an image of a Ceph cluster.
//!
//! Where it stands in the life of a request: at its end. Lanes answer with pieces behind a channel; the channel hands
//! operations to librbd, which is opened at run time, and takes what its threads have left.
//!
//! Invariants: no iothread waits for the cluster, and no memory of a guest goes to the library, which cannot take an
//! operation back. Nothing is cached in this process: a write that is answered is on the disks of the cluster. Who changes
//! an image has its exclusive lock. Threads: those of librbd; calls that wait are made on threads of their own
//! (`bounded_call`). Not here: options (the daemon).

#![deny(unsafe_code)]

mod block_status;
mod bounded_call;
mod channel;
mod cluster;
mod disk;
mod header;
mod header_watch;
mod image;
mod keyring;
mod library;
mod node;
mod options;
mod request;

pub use bounded_call::{ThreadFence, ThreadFences};
pub use cluster::CallError;
pub use library::LibraryError;
pub use node::{RbdNode, RbdOpenError};
pub use options::{ClientKey, RbdOptions};
