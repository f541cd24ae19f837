//! What goes on after its command was answered: the states of a job, what may be done in which, and what clients are told.
//!
//! Specification: QEMU, docs/interop/live-block-operations.rst, qapi/job.json.
//! Not here: what a job does (`control`), commands and events as JSON (`monitor`).

#![forbid(unsafe_code)]

mod job;
mod status;

pub use job::{BlockJobNews, Job, JobEnd, JobEvent, JobSettings};
pub use status::{JobKind, JobStatus, JobVerb, VerbRefusal};
