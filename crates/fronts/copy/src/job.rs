//! A job: what is copied or compared, how far it has come, and how it ends.
//!
//! Invariants: each byte of the disk belongs to one region, and each region to one worker. The first error counts; after
//! it, and after [`CopyJob::cancel`], no worker begins anything more.
//! Threads: the workers of the job, each on its iothread, and whoever watches it.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use block::{BlockStatus, ByteOffset, Clock, FailKind};

use crate::rate::RateLimit;

/// How many bytes a worker takes at once to ask what they are: a multiple of everything that storage is aligned to.
const REGION_BYTES: u64 = 32 << 20;

/// What a job does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CopyAction {
    /// Makes the target equal to the source.
    Copy,
    /// Finds the first byte in which they differ.
    Compare,
    /// Says what the bytes of the source are; there is no target.
    Map,
}

/// What the target has before a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TargetContent {
    /// Anything: zeroes have to be made.
    Unknown,
    /// Zeroes: those need not be touched.
    Zeroes,
}

/// What a job is to do, and how.
#[derive(Debug, Clone, Copy)]
pub struct CopySettings {
    /// What is done.
    pub action: CopyAction,
    /// How many bytes: those that source and target have, whole sectors.
    pub bytes: u64,
    /// What the target has.
    pub target: TargetContent,
    /// The shortest run of zeroes that is not copied as data, a power of two of at least 512.
    pub zero_unit: usize,
    /// The most bytes of the disk in a second.
    pub bytes_per_second: Option<u64>,
}

/// One of the two disks of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CopySide {
    /// What is read.
    Source,
    /// What is written, or compared with.
    Target,
}

impl CopySide {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Source => "source",
            Self::Target => "target",
        }
    }
}

/// Why a job cannot be finished.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CopyError {
    /// A disk has failed.
    #[error("{} of the {} at byte {offset}: {}", operation, side.name(), sentence(*kind))]
    Disk {
        /// Which.
        side: CopySide,
        /// What was done.
        operation: &'static str,
        /// Where.
        offset: ByteOffset,
        /// How it ended.
        kind: FailKind,
    },
    /// They are not equal.
    #[error("source and target differ at byte {0}")]
    Differs(ByteOffset),
}

fn sentence(kind: FailKind) -> &'static str {
    match kind {
        FailKind::Io => "input/output error",
        FailKind::NoSpace => "no space left",
        FailKind::ReadOnly => "it is read-only",
        FailKind::OutOfRange => "beyond its end",
        FailKind::Malformed => "a request that it does not take",
        FailKind::Unsupported => "not supported",
        FailKind::Cancelled => "cancelled",
    }
}

/// Why a worker is not served any more; its owner is told of it as of a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CopyEnd {
    /// It has nothing more to do.
    #[error("the copy is over")]
    Done,
    /// The job was cancelled.
    #[error("the copy was cancelled")]
    Cancelled,
    /// The job has failed.
    #[error(transparent)]
    Failed(#[from] CopyError),
}

/// How far a job has come, in bytes of the disk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CopyProgress {
    /// Copied, compared or told, zeroes among them.
    pub done: u64,
    /// Of these, what was read as data from the source.
    pub data: u64,
    /// Of these, what was written to the target as data.
    pub written: u64,
}

/// A job, shared by its workers.
#[derive(Debug)]
pub struct CopyJob {
    pub(crate) settings: CopySettings,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) rate: Option<RateLimit>,
    next: AtomicU64,
    done: AtomicU64,
    data: AtomicU64,
    written: AtomicU64,
    is_cancelled: AtomicBool,
    /// The first error.
    error: Mutex<Option<CopyError>>,
    /// What a map has found, in any order.
    runs: Mutex<Vec<(u64, u64, BlockStatus)>>,
}

impl CopyJob {
    /// A job on which nobody works yet. The rate goes by that clock.
    pub fn new(settings: CopySettings, clock: Arc<dyn Clock>) -> Arc<Self> {
        Arc::new(Self {
            settings,
            clock,
            rate: settings.bytes_per_second.map(RateLimit::new),
            next: AtomicU64::new(0),
            done: AtomicU64::new(0),
            data: AtomicU64::new(0),
            written: AtomicU64::new(0),
            is_cancelled: AtomicBool::new(false),
            error: Mutex::default(),
            runs: Mutex::default(),
        })
    }

    /// How far it has come. May be asked at any time.
    pub fn progress(&self) -> CopyProgress {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        CopyProgress {
            done: read(&self.done),
            data: read(&self.data),
            written: read(&self.written),
        }
    }

    /// Has all workers begin nothing more. They end when what they have begun is over.
    pub fn cancel(&self) {
        self.is_cancelled.store(true, Ordering::Relaxed);
    }

    /// The first error, if there was one.
    pub fn error(&self) -> Option<CopyError> {
        *self.locked_error()
    }

    /// What a map has found, in the order of the disk; neighbours are different.
    pub fn runs(&self) -> Vec<(Range<u64>, BlockStatus)> {
        let mut found = self.runs.lock().expect("no holder of this lock panics").clone();
        found.sort_unstable_by_key(|(start, _, _)| *start);
        let mut runs: Vec<(Range<u64>, BlockStatus)> = Vec::new();
        for (start, count, status) in found {
            match runs.last_mut() {
                Some((range, last)) if range.end == start && *last == status => range.end += count,
                Some(_) | None => runs.push((start..start + count, status)),
            }
        }
        runs
    }

    /// The next region that nobody has; `None` if there is none.
    pub(crate) fn next_region(&self) -> Option<Range<u64>> {
        let start = self.next.fetch_add(REGION_BYTES, Ordering::Relaxed);
        let end = self.settings.bytes.min(start.checked_add(REGION_BYTES)?);
        (start < end).then_some(start..end)
    }

    /// Whether [`CopyJob::next_region`] would give one.
    pub(crate) fn has_region(&self) -> bool {
        self.next.load(Ordering::Relaxed) < self.settings.bytes
    }

    /// Why nothing more is begun, if that is so.
    pub(crate) fn end(&self) -> Option<CopyEnd> {
        if self.is_cancelled.load(Ordering::Relaxed) {
            return Some(self.error().map_or(CopyEnd::Cancelled, CopyEnd::Failed));
        }
        None
    }

    pub(crate) fn fail(&self, error: CopyError) {
        self.locked_error().get_or_insert(error);
        self.cancel();
    }

    pub(crate) fn count_done(&self, bytes: u64) {
        self.done.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn count_data(&self, bytes: u64) {
        self.data.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn count_written(&self, bytes: u64) {
        self.written.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn found(&self, run: Range<u64>, status: BlockStatus) {
        let mut runs = self.runs.lock().expect("no holder of this lock panics");
        runs.push((run.start, run.end - run.start, status));
    }

    fn locked_error(&self) -> MutexGuard<'_, Option<CopyError>> {
        self.error.lock().expect("no holder of this lock panics")
    }
}
