//! The copy engine: a front end with a source and a target, served on any number of iothreads.
//!
//! Where it stands in the life of a request: at its beginning and its end, as the front end of a protocol does; its client
//! is a job that says what is to be copied or compared.
//!
//! Not here: who makes nodes and iothreads and waits for the end (`convert`).

#![forbid(unsafe_code)]

mod backlog;
mod chunk;
mod job;
mod rate;
mod worker;
mod zeroes;

pub use backlog::{
    BacklogCopy, BacklogEnd, BacklogLimits, CopyObserver, ErrorAction, ErrorPolicy, ScanFilter,
};
pub use job::{
    ComparedBytes, CopiedSource, CopyAction, CopyEnd, CopyError, CopyJob, CopyProgress,
    CopySettings, CopySide, TargetContent,
};
pub use worker::CopyWorker;
