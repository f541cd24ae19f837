//! The command line of `ringloom serve`: qemu-storage-daemon's, and a short form.
//!
//! Where it stands: `ringloom` calls [`parse`] and hands the [`Plan`] to the daemon. An argument goes
//! through two steps: as written (`words`, `keyval`, `fields`) and as valid (`object`,
//! `blockdev` with `drivers`, `export`, then `names` and `files` for what it refers to).
//!
//! Invariants: what ringloom does not do yet is refused by name, never accepted and ignored.
//! Not here: the help texts ([`help`](crate::help)), building what was asked for (the graph).

mod ahead;
mod blockdev;
mod drivers;
mod export;
mod fault;
mod fields;
mod files;
mod keyval;
mod line;
mod long;
mod names;
mod nearest;
mod object;
mod plan;
mod short;
#[cfg(test)]
mod tests;
mod words;

pub use fault::{Fault, LineFault, OptionError};
#[cfg(test)]
pub(crate) use line::documented_names;
pub use line::parse;
pub use nearest::nearest;
pub use plan::{
    Activity, AioEngine, AttachFormat, AutoReadOnly, Backing, Blockdev, Child, Command, Daemonize,
    Discard, Driver, ExportOptions, Flushes, GuestMemoryOptions, HelpTopic, IothreadObject,
    Locking, NamedChild, NamedFiles, Object, Plan, PollOptions, Qcow2Caches, Sandboxing,
    SocketOptions, Step, Takeover, ThrottleGroupObject,
};
