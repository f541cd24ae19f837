//! The crate against an API server of its own, on the loopback device; and, if there is one, against a real cluster.

mod begin;
mod flight;
mod real;
mod support;
mod workers;
