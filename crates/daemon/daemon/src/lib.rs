//! Joins the parts into ringloom serve: options, graph, exports and control.
//!
//! Where it stands in the life of a request: before the first and after the last. `ringloom` parses
//! with [`options`] and hands the plan to [`serve`].

#![forbid(unsafe_code)]

pub mod attach;
mod build;
mod chain;
mod claim;
mod connection;
mod descriptor_check;
mod descriptors;
mod device;
mod device_news;
mod drivers;
mod export;
mod graph;
mod guest_memory;
pub mod help;
mod holding;
mod inherited;
mod ledger;
pub mod log;
mod model;
pub mod options;
mod pidfile;
mod resize;
mod resumption;
mod sandbox;
pub mod serve;
mod signals;
mod socket;
mod syntax;
mod takeover;
mod unshared;
mod visit;
mod watch;

pub use build::{BuildError, ChangeError};
pub use claim::ClaimFailure;
pub use descriptor_check::CheckStartError;
pub use export::ExportError;
pub use graph::{ChangeFault, GraphError, NamedFault, Refusal, What};
pub use guest_memory::MemoryDirectoryError;
pub use model::{Conflict, ModelFault, User};
pub use pidfile::PidfileError;
pub use sandbox::{CallsError, FilesError, SandboxError};
pub use socket::SocketError;
pub use takeover::{TakeoverError, read_hand_over};
