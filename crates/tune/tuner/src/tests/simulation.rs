//! The method on simulated machines: searches, summaries and answers, compared with what is true there.
//!
//! `session` runs a whole command without a disk: the tuner's own course on a machine of testkit, with a clock that only
//! counts. `score` compares what the report would say with the machine's truth, `claims` says how often that must hold.
//! docs/statistics.md has the table.

mod claims;
mod predictions;
mod questions;
mod score;
mod session;
