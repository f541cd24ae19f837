//! Measures a disk with different numbers of iothreads and recommends one.
//!
//! The command line calls `run`. Measuring (`measure`), summarising (`summary`) and rendering
//! (`report`) are separate; the last two are pure functions of the recorded runs.
//!
//! Not here: the load generators (crate `load`) and anything of the daemon, which is only known as a
//! process.
#![forbid(unsafe_code)]

mod answer;
mod args;
mod calendar;
mod cell;
mod clock;
mod compare;
mod contender;
mod course;
mod daemon;
mod drift;
pub mod emit;
mod environment;
mod fleet;
mod given;
mod host_load;
mod interrupt;
mod intervals;
mod kept;
mod machine;
mod markdown;
mod matrix;
mod measure;
mod meter;
pub mod output;
mod pace;
mod pinning;
mod plan;
mod progress;
mod published;
mod quote;
mod repeats;
mod report;
mod reread;
mod results;
mod run;
mod scratch;
mod search;
mod settings;
#[cfg(test)]
mod simulation;
mod ssh;
mod stats;
mod steady;
mod storage;
mod summary;
mod table;
mod target;
mod units;
mod variant;
mod weights;

pub use args::{ReportArgs, TuneArgs};
pub use daemon::Daemon;
pub use interrupt::Interrupted;
pub use reread::{Rendered, RenderedPair, rendered, rendered_pair, report};
pub use run::{exit_code, run};
