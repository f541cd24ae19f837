//! fio as a load: job files for it, its program, and what it prints as samples and intervals.
//!
//! The tuner makes a `Job` of a cell, has fio run its file (`HostRun` here, the shell of a guest with
//! the same `command` elsewhere), and reads the output with `parse_report` and `Intervals`.
//!
//! Invariants: a job file alone decides a run, so anyone repeats it with `fio FILE`; a file that
//! fio is given is never created, extended or removed by it.
//! Not here: the load generators of this project, `client` and `host`.

mod command;
mod document;
mod error;
mod intervals;
mod job;
mod report;
mod run;
mod verify;
mod version;

pub use command::command;
pub use error::FioError;
pub use intervals::{Intervals, series};
pub use job::{Engine, Job, Rate};
pub use report::{DiskUse, Flow, LoadCpu, Report, parse_report};
pub use run::{Finished, HostRun};
pub use verify::{VERIFY_BYTES_MAX, VerifyJob, VerifyPhase, parse_verify};
pub use version::{FIO_OLDEST, FioVersion, program};
