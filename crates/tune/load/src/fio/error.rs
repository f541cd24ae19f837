//! Why fio could not run, or its run does not count.

use std::io;
use std::path::PathBuf;

use crate::ShapeError;
use crate::fio::version::{FIO_OLDEST, FioVersion};

/// A job that fio cannot run, or a run that failed.
#[derive(Debug, thiserror::Error)]
pub enum FioError {
    /// There is no fio.
    #[error(
        "fio is not installed: install the package fio, or put a fio of version {FIO_OLDEST} or \
         later into a directory of PATH"
    )]
    NotInstalled,
    /// There is a fio that lacks options the job files use.
    #[error(
        "{} is fio {found}, which is too old: {FIO_OLDEST} is the oldest that reports total \
         latencies in bins", path.display()
    )]
    TooOld {
        /// The program.
        path: PathBuf,
        /// Its version.
        found: FioVersion,
    },
    /// A program named fio that does not say its version.
    #[error("{} --version says '{said}', which is no version of fio", path.display())]
    Version {
        /// The program.
        path: PathBuf,
        /// What it printed.
        said: String,
    },
    /// The disk is too small for the cell.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// psync does one request after the other.
    #[error("iodepth {iodepth} with psync: it has one request in flight, use io_uring or libaio")]
    Psync {
        /// The iodepth asked for.
        iodepth: u16,
    },
    /// A job without files.
    #[error("a fio job needs at least one file")]
    NoFile,
    /// A name that a job file cannot hold.
    #[error(
        "file name {name:?} cannot stand in a fio job: no control characters, no # ; $ \" \\ and no \
         space at its ends"
    )]
    Name {
        /// The name.
        name: String,
    },
    /// fio limits every job by itself, to whole requests per second.
    #[error(
        "a rate of {iops} requests/s is less than 1 per second for each of {streams} jobs and each \
         direction: raise the rate or use fewer jobs"
    )]
    Rate {
        /// The rate asked for.
        iops: u32,
        /// Jobs times files.
        streams: u64,
    },
    /// A verification of nothing or of too much.
    #[error(
        "verification of {bytes} bytes: must be at least one block of {block} and at most {max} bytes"
    )]
    VerifyBytes {
        /// The bytes asked for.
        bytes: u64,
        /// The block size.
        block: u32,
        /// The most bytes.
        max: u64,
    },
    /// A file that fio would extend, or read past its end.
    #[error("{name} has {found} bytes, the fio job needs {needed}")]
    Small {
        /// The file.
        name: String,
        /// Its size.
        found: u64,
        /// The size the job was made for.
        needed: u64,
    },
    /// A part of running fio failed.
    #[error("{what}")]
    Run {
        /// What was being done, with the name of the thing.
        what: String,
        /// The system's answer.
        #[source]
        source: io::Error,
    },
    /// fio gave up; this is what it said.
    #[error("fio: {said}")]
    Failed {
        /// The first lines that fio printed.
        said: String,
    },
    /// No report in what fio printed.
    #[error("fio printed no report, but: {said}")]
    NoReport {
        /// The first lines that fio printed.
        said: String,
    },
    /// A report that is no JSON or lacks a field.
    #[error("the report of fio cannot be read")]
    Json(#[source] serde_json::Error),
    /// A report of a job that was not made here.
    #[error("the report of fio {lack}")]
    Foreign {
        /// What is missing in it.
        lack: &'static str,
    },
    /// A run without a single completion.
    #[error("fio: no request completed in {seconds:.1} s")]
    Idle {
        /// The length of the window.
        seconds: f64,
    },
    /// Requests ended at the end of a file.
    #[error(
        "fio: {operations} requests moved {moved} bytes instead of {expected}: is the file too small?"
    )]
    Short {
        /// The requests that completed.
        operations: u64,
        /// The bytes they moved.
        moved: u64,
        /// The bytes they should have moved.
        expected: u64,
    },
}

impl FioError {
    pub(super) fn run(what: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Self::Run { what: what.into(), source: source.into() }
    }
}
