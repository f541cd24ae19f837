//! Simulated machines on which placement is tried, beside fixed maps and other policies.
//!
//! Where it stands: development only. It drives the very code that the daemon runs (`placement`), with counters of
//! machines that are solved, not played: time goes in windows of 50 ms, and queues are in equilibrium in each of them.
//!
//! Invariants: no wall clock; the same seed gives the same run.
//! Limits: machine and policy have one author. It shows that the logic holds together, not what hardware does.

#![forbid(unsafe_code)]

pub mod families;
pub mod input;
pub mod machine;
pub mod parameters;
pub mod policies;
pub mod published;
pub mod report;
pub mod rng;
pub mod world;
