//! Runs fio and answers questions for a tuner elsewhere: JSON lines over a byte stream, its server and its client.
//!
//! Where it stands: `ringloom agent` is the server, in a pod or a virtual machine; the tuner has a [`Client`] at the other end
//! of the stream, and makes a place for fio of it. How the stream comes about is the business of whoever opens it.
//!
//! Invariants: no fio outlives its client. The end of the stream, silence for [`SILENCE_LIMIT`] and the death of the agent all
//! end it. One client at a time. Limits: a line has at most [`LINE_BYTES_MAX`] bytes.
//! Not here: jobs of fio and what its reports say (`load::fio`).
#![forbid(unsafe_code)]

mod arguments;
mod at_once;
mod client;
mod clock;
mod error;
mod line;
mod meters;
mod protocol;
mod service;
mod tcp;
mod token;

pub use arguments::{AgentArgs, run};
pub use at_once::{AT_ONCE_MAX, Stopped, at_once};
pub use client::{Check, Client, Ended, Start};
pub use clock::ClockOffset;
pub use error::AgentError;
pub use line::LINE_BYTES_MAX;
pub use meters::{GroupTimes, Meters, NodeTimes, Usage};
pub use protocol::{Disk, DiskKind, DiskRequest, Facts, JOB, SILENCE_LIMIT, VERSION};
pub use service::{Service, serve};
pub use tcp::{PORT, listen};
pub use token::{Token, TokenError};
