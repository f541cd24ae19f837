//! Joins the parts into ringloom serve: options, graph, exports and control.
//!
//! Where it stands in the life of a request: before the first and after the last. `ringloom` parses
//! with [`options`] and hands the plan to [`serve`].

#![forbid(unsafe_code)]

mod activation;
pub mod attach;
mod build;
mod claim;
mod client_log;
mod connection;
mod descriptor_check;
mod descriptor_limits;
mod device;
mod drivers;
mod error_chain;
mod export;
mod export_error;
mod export_options;
mod export_size;
mod graph;
mod guest_memory;
mod inherited_descriptors;
pub mod log;
mod model;
mod objects;
pub mod options;
mod pidfile;
mod queue_statistics;
mod sandbox;
pub mod serve;
mod signals;
mod socket;
mod storage_watchdog;
mod syntax;
mod takeover;
mod takeover_pause;
mod uevents;
mod unshared_memory;

pub use build::{BuildError, GraphChangeError};
pub use claim::ExportClaimError;
pub use descriptor_check::DescriptorCheckStartError;
pub use export_error::ExportError;
pub use graph::{GraphChangeRefusal, GraphError, NamedFileError, NamedFileRefusal, NamedFileRole};
pub use guest_memory::MemoryDirectoryError;
pub use model::{ModelError, NodeUser, PermissionConflict};
pub use pidfile::PidfileError;
pub use sandbox::{LandlockError, SandboxError, SeccompError};
pub use socket::SocketError;
pub use takeover::{TakeoverError, read_hand_over};
