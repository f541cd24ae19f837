//! The command line of `ringloom serve`: qemu-storage-daemon's, and a short form.
//!
//! Where it stands: the binary calls [`parse`] and hands the [`Plan`] to the daemon. An argument goes
//! through two steps: as written (`getopt` and `syntax`) and as valid (`object`, `drivers`,
//! `export`, then `references` and the `model` for what it refers to).
//!
//! Invariants: what ringloom does not do yet is refused by name, never accepted and ignored.
//! Not here: the help texts ([`help`](crate::help)), building what was asked for (the graph).

mod export;
mod fault;
mod getopt;
mod line;
mod long;
mod object;
mod plan;
mod references;
mod short;
#[cfg(test)]
mod tests;

pub use crate::syntax::{ArgumentError, nearest};
pub use fault::{CommandLineError, LineError};
#[cfg(test)]
pub(crate) use line::documented_names;
pub use line::parse;
pub use plan::{
    AttachFormat, Daemonize, GuestMemoryOptions, HelpTopic, Plan, SandboxMode, ServeCommand,
    TakeoverMode,
};
pub(crate) use plan::{
    ExportOptions, ObjectKind, ObjectOptions, PlanStep, PollOptions, SocketOptions,
};
