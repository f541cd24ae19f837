//! What is asked of a tuning, and the order in which it is measured. Pure functions.
//!
//! `args` are the options as the command line gives them, `settings` the same with every default filled in, `question` what a
//! number of iothreads is to be good for. A `cell` is a load, a `contender` what serves it, a `variant` the storage below;
//! `matrix` is all of them without what cannot be or is of no use, and `runs` their order.
//!
//! Not here: runs that depend on the results of others, which the crate `tuner` chooses.
#![forbid(unsafe_code)]

pub mod args;
pub mod cell;
pub mod contender;
pub mod job;
pub mod lists;
pub mod matrix;
pub mod profile;
pub mod question;
pub mod repeats;
pub mod runs;
pub mod settings;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod units;
pub mod variant;
pub mod weights;
