//! `ringloom ctl`: what an administrator asks a running daemon for, over its monitor.
//!
//! Invariants: it knows a daemon by QMP only, so that it drives other versions, and qemu-storage-daemon as far as that has
//! the commands. What changes something is one command of the daemon, but for a disk that moves (`move_disk`) and for backups
//! (`backup`): whoever interrupts it leaves nothing half done. Files of backups it looks at itself, and has them flattened by
//! the engine of `ringloom convert` (`restore`).
//! Threads: one. Limits: those of `client`.
//! Who uses it: the binary, and `ringloom top`, which talks to daemons in the same way and words.
//! Not here: the daemon's side, which is `monitor`.

#![forbid(unsafe_code)]

mod arguments;
mod backup;
mod changes;
mod client;
mod destination;
mod host_path;
mod inventory;
mod jobs;
mod move_disk;
mod progress;
mod restore;
mod run;
mod show;
mod signals;
mod table;
mod units;
mod usage;

pub use arguments::CtlArgs;
pub use changes::{move_to, pin, placement};
pub use client::{QmpClient, Refusal, printable, write};
pub use run::{CtlEnd, daemon_socket, print, run};
pub use table::Answer;
pub use usage::{WrongUsage, wrong};
