//! Connections on real iothreads: clients that keep the rules, clients that do not, and clients nobody here wrote.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod allocations;
mod certificates;
mod client;
mod disconnects;
mod idle;
mod model;
mod requests;
mod server;
mod tools;
