//! A copy that goes on while its source is written: what is left of it, how it ends, and what becomes of errors.
//!
//! Where it stands: whoever begins such a job says so; the workers go by it.

use std::sync::Arc;

use bitmaps::CopyBacklog;
use block::BlockStatus;

use crate::job::CopyError;

/// The part of a copy that goes on while its source is written.
#[derive(Debug)]
pub struct BacklogCopy {
    /// What is left to be copied.
    pub backlog: Arc<CopyBacklog>,
    /// What is put there first, of all that the source has; nothing if what is there says it all.
    pub scan: Option<ScanFilter>,
    /// When it is over.
    pub end: BacklogEnd,
    /// What becomes of errors.
    pub on_source_error: ErrorPolicy,
    /// The same of the target.
    pub on_target_error: ErrorPolicy,
    /// How much is worked on at once.
    pub limits: BacklogLimits,
    /// Hears of what happens.
    pub observer: Arc<dyn CopyObserver>,
}

/// How much of a backlog is worked on at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BacklogLimits {
    /// The most requests of each worker.
    pub chunks: usize,
    /// The most bytes of a request; a multiple of the granularity of the backlog.
    pub chunk_bytes: u64,
}

impl BacklogLimits {
    /// What the engine thinks best.
    pub const DEFAULT: Self = Self { chunks: usize::MAX, chunk_bytes: u64::MAX };
}

/// Which bytes of the source are to be copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScanFilter {
    /// Those that the source itself has, or fewer backing files below it than this.
    AllocatedAbove(u8),
    /// Those that only backing files have: all of them, or so many, the nearest first.
    Below(Option<u8>),
}

impl ScanFilter {
    pub(crate) fn wants(self, status: BlockStatus) -> bool {
        match self {
            Self::AllocatedAbove(depth) => status.is_allocated && status.depth < depth,
            Self::Below(None) => status.depth > 0,
            Self::Below(Some(most)) => status.is_allocated && (1..=most).contains(&status.depth),
        }
    }
}

/// When a copy of a backlog is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BacklogEnd {
    /// When nothing is left.
    WhenEmpty,
    /// When it is cancelled: what is added later is copied, too.
    WhenCancelled,
}

/// What becomes of a job when a disk fails (QEMU's BlockdevOnError).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorPolicy {
    /// It fails.
    Report,
    /// The bytes are tried again later.
    Ignore,
    /// It pauses; the bytes are tried again when it goes on.
    Stop,
    /// It pauses if there is no space left, and fails otherwise.
    Enospc,
}

/// What is done about one error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorAction {
    /// The job fails.
    Report,
    /// It goes on.
    Ignore,
    /// It has paused.
    Stop,
}

/// Hears of a copy of a backlog. Called by iothreads: it must not block.
pub trait CopyObserver: std::fmt::Debug + Send + Sync {
    /// Source and target were equal, but for writes under way. Told each time that a worker finds it so.
    fn is_equal(&self);

    /// A disk has failed.
    fn has_failed(&self, error: CopyError, action: ErrorAction);
}
