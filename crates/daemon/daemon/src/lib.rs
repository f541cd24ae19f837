//! `ringloom serve`: carries a plan out, serves until a signal, and takes everything down.
//!
//! Where it stands in the life of a request: before the first and after the last. `ringloom` parses with
//! [`options`] and hands the plan to [`serve`](fn@serve).

#![forbid(unsafe_code)]

mod check;
mod finish;
mod gauges_output;
mod inherited_descriptors;
mod kept_state;
mod log;
mod metrics_output;
mod serve;
mod service_manager;
mod signals;
mod uevents;

pub use check::{CheckReport, check};
pub use log::{Log, LogEvent, LogFileError, Severity};
pub use serve::{ServeError, close_inherited, serve};
pub use service_manager::{BackgroundService, check_service};
