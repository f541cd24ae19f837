//! The conformance suite of nodes and layers: its list of subjects, and its form on iothreads and files.
//!
//! Where it stands: `testkit::conformance` has the suite itself and its form in memory; here both are run, by
//! `cargo xtask conform` for as long as one likes and by the tests of this crate for a short time. A new node joins with
//! a file in `subjects`, which says its sizes and where each sector lives.
//!
//! Not here: what only one kind of node promises (rates, delays, options), which its own tests show.

#![forbid(unsafe_code)]

pub mod campaign;
mod images;
mod instants;
mod live;
mod mirrors;
mod subjects;
