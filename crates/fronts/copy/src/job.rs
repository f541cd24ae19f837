//! A job: what is copied or compared, how far it has come, and how it ends.
//!
//! Invariants: each byte of the disk is asked about once, and given to one worker. The first error counts; after
//! it, and after [`CopyJob::cancel`], no worker begins anything more.
//! Threads: the workers of the job, each on its iothread, and whoever watches it.

use std::collections::VecDeque;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use block::{BlockStatus, ByteOffset, Clock, FailKind};

use crate::rate::RateLimit;

/// How many bytes the source is asked about at once: so many that a file system which looks for the end of a long run
/// does so seldom, and so few that an image with much to tell is copied meanwhile.
const ASKED_BYTES: u64 = 1 << 30;

/// How many bytes a worker takes at once.
const SHARE_BYTES: u64 = 8 << 20;

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
    done: AtomicU64,
    data: AtomicU64,
    written: AtomicU64,
    is_cancelled: AtomicBool,
    /// The first error.
    error: Mutex<Option<CopyError>>,
    work: Mutex<Work>,
    /// What a map has found, in order.
    runs: Mutex<Vec<(Range<u64>, BlockStatus)>>,
}

/// What is left to be done.
#[derive(Debug, Default)]
struct Work {
    /// What the source has told, and nobody has taken.
    told: VecDeque<(Range<u64>, BlockStatus)>,
    /// From where on it was not asked.
    next: u64,
    /// Whether a worker asks it.
    is_asking: bool,
    /// How workers that wait for its answer are called.
    kicks: Vec<Arc<OwnedFd>>,
}

/// What a worker does next.
#[derive(Debug)]
pub(crate) enum Share {
    /// These runs are its own.
    Runs(Vec<(Range<u64>, BlockStatus)>),
    /// It asks the source what these bytes are, and says so ([`CopyJob::told`]).
    Ask(Range<u64>),
    /// Another one asks: it is kicked when there is something.
    Wait,
    /// Nothing is left.
    Nothing,
}

impl CopyJob {
    /// A job on which nobody works yet. The rate goes by that clock.
    pub fn new(settings: CopySettings, clock: Arc<dyn Clock>) -> Arc<Self> {
        Arc::new(Self {
            settings,
            clock,
            rate: settings.bytes_per_second.map(RateLimit::new),
            done: AtomicU64::new(0),
            data: AtomicU64::new(0),
            written: AtomicU64::new(0),
            is_cancelled: AtomicBool::new(false),
            error: Mutex::default(),
            work: Mutex::default(),
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
        for kick in &self.work().kicks {
            // A counter that is full has rung.
            let _full = rustix::io::write(kick, &1_u64.to_ne_bytes());
        }
    }

    /// The first error, if there was one.
    pub fn error(&self) -> Option<CopyError> {
        *self.locked_error()
    }

    /// What a map has found, in the order of the disk; neighbours are different.
    pub fn runs(&self) -> Vec<(Range<u64>, BlockStatus)> {
        let found = self.runs.lock().expect("no holder of this lock panics");
        let mut runs: Vec<(Range<u64>, BlockStatus)> = Vec::new();
        for (run, status) in found.iter() {
            match runs.last_mut() {
                Some((range, last)) if range.end == run.start && last == status => {
                    range.end = run.end;
                }
                Some(_) | None => runs.push((run.clone(), *status)),
            }
        }
        runs
    }

    /// A worker that is called by this descriptor.
    pub(crate) fn enter(&self, kick: &Arc<OwnedFd>) {
        self.work().kicks.push(Arc::clone(kick));
    }

    /// What a worker does next that has nothing.
    pub(crate) fn share(&self) -> Share {
        let mut work = self.work();
        let (mut runs, mut left) = (Vec::new(), SHARE_BYTES);
        while left > 0
            && let Some((run, status)) = work.told.front_mut()
        {
            let count = (run.end - run.start).min(left);
            runs.push((run.start..run.start + count, *status));
            run.start += count;
            left -= count;
            if run.start == run.end {
                work.told.pop_front();
            }
        }
        if !runs.is_empty() {
            return Share::Runs(runs);
        }
        let Work { next, is_asking, .. } = &mut *work;
        if *is_asking {
            return Share::Wait;
        }
        let asked = *next..self.settings.bytes.min(next.saturating_add(ASKED_BYTES));
        if asked.is_empty() {
            return Share::Nothing;
        }
        *is_asking = true;
        Share::Ask(asked)
    }

    /// The source has told of bytes, from the first that it was asked about; `end` is the first one that it told nothing
    /// of. Gives back whom to kick.
    pub(crate) fn told(
        &self,
        runs: impl Iterator<Item = (Range<u64>, BlockStatus)>,
        end: u64,
    ) -> Vec<Arc<OwnedFd>> {
        let mut work = self.work();
        match self.settings.action {
            CopyAction::Copy | CopyAction::Compare => work.told.extend(runs),
            CopyAction::Map => {
                let mut found = self.runs.lock().expect("no holder of this lock panics");
                for (run, status) in runs {
                    self.count_done(run.end - run.start);
                    found.push((run, status));
                }
            }
        }
        work.next = end;
        work.is_asking = false;
        work.kicks.clone()
    }

    fn work(&self) -> MutexGuard<'_, Work> {
        self.work.lock().expect("no holder of this lock panics")
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

    fn locked_error(&self) -> MutexGuard<'_, Option<CopyError>> {
        self.error.lock().expect("no holder of this lock panics")
    }
}
