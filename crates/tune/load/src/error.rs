//! Why a load could not run or stopped.

use std::io;

use crate::Direction;

/// A failed run. Nothing of it counts.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// A part of the set-up failed.
    #[error("{what}")]
    SetUp {
        /// What was being done, with the name of the thing.
        what: String,
        /// The system's answer.
        #[source]
        source: io::Error,
    },
    /// The export is not the disk the workload was made for.
    #[error("export on {socket}: {complaint}")]
    Export {
        /// The socket of the export.
        socket: String,
        /// What does not fit.
        complaint: String,
    },
    /// A request came back with an error.
    #[error("{direction:?} of {length} bytes at byte {offset} failed")]
    Request {
        /// Read or write.
        direction: Direction,
        /// Where on the disk.
        offset: u64,
        /// How many bytes were asked for.
        length: u32,
        /// The error of the request.
        #[source]
        source: io::Error,
    },
    /// A request moved fewer bytes than asked.
    #[error("{direction:?} of {length} bytes at byte {offset} moved only {moved} bytes")]
    Short {
        /// Read or write.
        direction: Direction,
        /// Where on the disk.
        offset: u64,
        /// How many bytes were asked for.
        length: u32,
        /// How many came.
        moved: u32,
    },
    /// Requests are in flight and none completes.
    #[error("job {job}: no request completed for {seconds} s")]
    Stalled {
        /// The job that waits.
        job: usize,
        /// How long it waited.
        seconds: u64,
    },
    /// The watch asked to stop; it knows why.
    #[error("the run was stopped")]
    Stopped,
}

impl LoadError {
    pub(crate) fn set_up(what: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Self::SetUp { what: what.into(), source: source.into() }
    }
}
