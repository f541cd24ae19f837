//! What a daemon serves with: iothreads, graph, claims and exports, made, changed and removed step by step.

#![forbid(unsafe_code)]

mod state;

pub use state::{BuildError, DaemonState, GraphChangeError, PreparedExport};
