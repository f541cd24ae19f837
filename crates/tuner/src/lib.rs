//! Measures a disk with different numbers of iothreads and recommends one.
//!
//! The command line calls `run`. Measuring (`measure`), summarising (`summary`) and rendering
//! (`report`) are separate; the last two are pure functions of the recorded runs.
//!
//! Not here: the load generators (crate `load`) and anything of the daemon, which is only known as a
//! process.
#![forbid(unsafe_code)]

mod args;
mod calendar;
mod cell;
mod clock;
mod contender;
mod daemon;
mod drift;
mod environment;
mod fleet;
mod given;
mod host_load;
mod interrupt;
mod intervals;
mod machine;
mod matrix;
mod measure;
mod meter;
mod pinning;
mod plan;
mod progress;
mod recommend;
mod report;
mod results;
mod run;
mod scratch;
mod settings;
mod ssh;
mod storage;
mod summary;
mod table;
mod target;
mod units;
mod variant;

pub use args::TuneArgs;
pub use daemon::Daemon;
pub use interrupt::Interrupted;
pub use run::{exit_code, run};
