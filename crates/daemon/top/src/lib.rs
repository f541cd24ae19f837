//! `ringloom top`: what every queue, iothread and job of running daemons does now, in a terminal that shows first what is wrong;
//! or as tables and JSON for scripts.
//!
//! From replies to the screen: `snapshot` (what a daemon has said) → `rates` (what happened between two snapshots) → `fleet` (all
//! daemons, with histories) → `troubles` and `views` (tables of text) → `screen` (a terminal) or `batch` (tables and JSON). All of
//! it up to the views is pure.
//!
//! Invariants: it knows daemons by QMP only, by the client of `ringloom ctl`, and asks read-only questions unless a person has it
//! move or pin a queue. A terminal is given back as it was, whatever ends the program.
//! Threads: one for each daemon, one for keys, one for signals; the first one draws. Limits: `sources::SOCKETS_MAX` daemons.
//! Not here: the daemon's side, which is `monitor`.

#![forbid(unsafe_code)]

mod app;
mod arguments;
mod batch;
mod clock;
mod fault_point;
mod fleet;
mod histogram;
mod history;
mod json;
mod keys;
mod labels;
mod live;
mod numbers;
mod prompt;
mod rates;
mod run;
mod screen;
mod snapshot;
mod sources;
mod terminal;
mod troubles;
mod views;
mod watcher;

pub use arguments::TopArgs;
pub use run::{TopEnd, run};
