//! What a daemon serves with: iothreads, graph, claims and exports, made, changed and removed step by step.

#![forbid(unsafe_code)]

mod gauges;
mod placer;
mod state;
mod usage;

pub use state::{BuildError, DaemonState, GraphChangeError, PreparedExport};
pub use usage::UsageReport;
