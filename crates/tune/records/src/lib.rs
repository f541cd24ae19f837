//! What was measured, and on what.
//!
//! `meter` samples what threads and CPUs cost while a run is measured, `environment`, `host_load` and `domain` tell what is
//! around it. `results` is the file of all of that: a header, and a line for each run, measured or failed.
//!
//! Everything that a report says is a function of these lines; the crates above only add them up.
#![forbid(unsafe_code)]

pub mod calendar;
pub mod domain;
pub mod environment;
pub mod host_load;
pub mod meter;
pub mod pinning;
pub mod results;
pub mod steady;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
