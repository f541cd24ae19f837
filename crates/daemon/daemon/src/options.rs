//! The command line of `ringloom serve`: qemu-storage-daemon's, and a short form.
//!
//! Where it stands: the binary calls [`parse`] and hands the [`Plan`] to the daemon. An argument goes
//! through two steps: as written (`getopt` and `syntax`) and as valid (`objects`, `drivers`,
//! `export_options`, then `references` and the `model` for what it refers to).
//!
//! Invariants: what ringloom does not do yet is refused by name, never accepted and ignored.
//! Not here: building what was asked for (the graph).

mod fault;
mod getopt;
mod help;
mod line;
mod long;
mod plan;
mod references;
mod short;
#[cfg(test)]
mod tests;

pub use crate::syntax::{ArgumentError, nearest};
pub use fault::{CommandLineError, LineError};
pub use help::{help, version};
#[cfg(test)]
use line::documented_names;
pub use line::parse;
pub(crate) use plan::PlanStep;
pub use plan::{Daemonize, HelpTopic, Plan, ServeCommand, TakeoverMode};
