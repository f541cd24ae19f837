//! A copy that goes on while its source is written: what is left of it, how it ends, and what becomes of errors.
//!
//! Where it stands: whoever begins such a job says so; the workers go by it.

use std::sync::Arc;

use bitmaps::CopyBacklog;
use block::BlockStatus;

use crate::job::CopyError;
use crate::worker::CHUNK_BYTES;

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

    /// What needs so many bytes of memory, rounded up to one granule, or less: with how many workers, at most those, and what
    /// each may have.
    pub fn of_memory(bytes: u64, granularity: u64, workers: usize) -> (usize, Self) {
        let bytes = bytes.max(granularity);
        let chunk = bytes.min(CHUNK_BYTES as u64);
        let chunk_bytes = if granularity < chunk { chunk - chunk % granularity } else { chunk };
        let at_once = usize::try_from(bytes / chunk_bytes).unwrap_or(usize::MAX);
        let workers = workers.clamp(1, at_once);
        (workers, Self { chunks: at_once / workers, chunk_bytes })
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check((bytes, granularity, workers): (u64, u64, usize), expected: (usize, usize, u64)) {
        let (workers, limits) = BacklogLimits::of_memory(bytes, granularity, workers);
        assert_eq!((workers, limits.chunks, limits.chunk_bytes), expected);
        assert!(
            workers as u64 * limits.chunks as u64 * limits.chunk_bytes <= bytes.max(granularity)
        );
    }

    #[test]
    fn memory_is_shared_among_workers_and_too_many_are_left_out() {
        check((16 << 20, 64 << 10, 4), (4, 16, 256 << 10));
        check((1 << 20, 64 << 10, 3), (3, 1, 256 << 10));
        check((512 << 10, 64 << 10, 4), (2, 1, 256 << 10));
        check((100 << 10, 64 << 10, 4), (1, 1, 64 << 10));
        check((1, 512, 4), (1, 1, 512));
        // A granule that is larger than what is read at once.
        check((1, 64 << 20, 4), (4, 64, 256 << 10));
        check((1, 1 << 20, 2), (2, 2, 256 << 10));
    }
}
