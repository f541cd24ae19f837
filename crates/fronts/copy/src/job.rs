//! A job: what is copied or compared, how far it has come, and how it ends.
//!
//! Invariants: without a backlog each byte of the disk is asked about once, and given to one worker; with one the backlog
//! says who copies what. The first error counts; after it, and after [`CopyJob::cancel`], no worker begins anything more.
//! Threads: the workers of the job, each on its iothread, and whoever watches it.

mod verification;

use std::collections::VecDeque;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use std::task::{Wake, Waker};

use bitmaps::{ClaimResult, CopyClaim};
use block::{BlockStatus, ByteOffset, Clock, FailKind, SECTOR_BYTES};

use crate::backlog::{BacklogCopy, BacklogEnd, BacklogLimits, ErrorAction, ErrorPolicy};
use crate::rate::RateLimit;

pub use verification::ComparedBytes;
use verification::Verification;

/// How many bytes the source is asked about at once: so many that a file system which looks for the end of a long run
/// does so seldom, and so few that an image with much to tell is copied meanwhile.
const ASKED_BYTES: u64 = 1 << 30;

/// How many bytes a worker takes at once.
const SHARE_BYTES: u64 = 8 << 20;

/// How many bytes of a backlog a worker claims at once: as long as it copies them, who writes them may have to wait.
const CLAIMED_BYTES: u64 = 1 << 20;

/// The same after nothing but zeroes was found.
const CLAIMED_BYTES_OF_ZEROES: u64 = 16 << 20;

/// The same where guests wait for all that is copied: a chunk, or what is preserved together if that is more.
const CLAIMED_BYTES_OF_INSTANT: u64 = 256 << 10;

/// What a job does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CopyAction {
    /// Makes the target equal to the source.
    Copy,
    /// Finds the first byte in which they differ.
    Compare,
    /// Says what the bytes of the source are; there is no target.
    Map,
    /// Has the source read what it is to copy into itself; there is no target.
    Populate,
}

/// What the target has before a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TargetContent {
    /// Anything: zeroes have to be made.
    Unknown,
    /// Zeroes: those need not be touched.
    Zeroes,
}

/// What becomes of bytes of the source that were copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CopiedSource {
    /// Nothing.
    Kept,
    /// They are discarded, as far as the source can do that.
    Discarded,
}

/// What a job is to do, and how.
#[derive(Debug, Clone, Copy)]
pub struct CopySettings {
    /// What is done.
    pub action: CopyAction,
    /// How many bytes the source has.
    pub bytes: u64,
    /// How many bytes the target has, at least as many; what it has of the sector in which the source ends, and the source
    /// has not, is zero. The same if there is no target.
    pub target_bytes: u64,
    /// What the target has.
    pub target: TargetContent,
    /// The shortest run of zeroes that is not copied as data, a power of two of at least 512.
    pub zero_unit: usize,
    /// The target is written so many bytes at a time, or a multiple, at such places, but for its last bytes: what it stores
    /// together. A power of two; 1 if it does not matter.
    pub target_unit: u64,
    /// What becomes of what was copied. Nobody else changes a source of which something is discarded.
    pub copied: CopiedSource,
    /// The most bytes of the disk in a second.
    pub bytes_per_second: Option<u64>,
}

impl CopySettings {
    /// How many bytes are copied: whole sectors, of which a disk may lack the last bytes.
    pub(crate) fn whole_sectors(&self) -> u64 {
        self.bytes.next_multiple_of(SECTOR_BYTES)
    }

    /// Those of these bytes that a side has.
    pub(crate) fn on(&self, side: CopySide, bytes: &Range<u64>) -> Range<u64> {
        let size = match side {
            CopySide::Source => self.bytes,
            CopySide::Target => self.target_bytes,
        };
        bytes.start.min(size)..bytes.end.min(size)
    }
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
    pub(crate) rate: RateLimit,
    backlog: Option<BacklogCopy>,
    /// How many bytes of a backlog a worker claims: more where zeroes were found, which take no time.
    claimed_bytes: AtomicU64,
    is_paused: AtomicBool,
    /// How often it was paused.
    pauses: AtomicU64,
    /// Whether what is added is copied at once, also when source and target were equal before.
    is_hurried: AtomicBool,
    done: AtomicU64,
    data: AtomicU64,
    written: AtomicU64,
    verification: Verification,
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
    kicks: Vec<Arc<WorkerKick>>,
}

/// How a worker is called, by any thread.
#[derive(Debug)]
pub(crate) struct WorkerKick {
    pub(crate) event: OwnedFd,
    /// Whether it was called since it looked last.
    is_called: AtomicBool,
}

impl WorkerKick {
    pub(crate) fn new(event: OwnedFd) -> Self {
        Self { event, is_called: AtomicBool::new(false) }
    }

    pub(crate) fn ring(&self) {
        self.mark();
        // A counter that is full has rung.
        let _full = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
    }

    /// It is going to be called by its descriptor.
    pub(crate) fn mark(&self) {
        self.is_called.store(true, Ordering::Release);
    }

    /// Whether it was called since this was asked last.
    pub(crate) fn take(&self) -> bool {
        self.is_called.swap(false, Ordering::Acquire)
    }
}

impl Wake for WorkerKick {
    fn wake(self: Arc<Self>) {
        self.ring();
    }
}

/// What a worker does next.
#[derive(Debug)]
pub(crate) enum Share {
    /// These runs are its own.
    Runs(Vec<(Range<u64>, BlockStatus)>),
    /// It asks the source what these bytes are, and says so ([`CopyJob::told`]).
    Ask(Range<u64>),
    /// It copies these bytes, once it knows what they are.
    Claimed(CopyClaim),
    /// It is kicked when there is something: another one asks, or copies, or everything is equal.
    Wait,
    /// Nothing is left of a backlog for now; the worker is kicked when something is.
    Equal,
    /// Nothing is left.
    Nothing,
}

impl CopyJob {
    /// A job on which nobody works yet. The rate goes by that clock.
    pub fn new(settings: CopySettings, clock: Arc<dyn Clock>) -> Arc<Self> {
        Self::made(settings, None, clock)
    }

    /// The same of a backlog, while the source is written.
    pub fn of_backlog(
        settings: CopySettings,
        backlog: BacklogCopy,
        clock: Arc<dyn Clock>,
    ) -> Arc<Self> {
        Self::made(settings, Some(backlog), clock)
    }

    fn made(
        settings: CopySettings,
        backlog: Option<BacklogCopy>,
        clock: Arc<dyn Clock>,
    ) -> Arc<Self> {
        let is_scanned = backlog.as_ref().is_some_and(|it| it.scan.is_none());
        let work = Work { next: if is_scanned { settings.bytes } else { 0 }, ..Work::default() };
        Arc::new(Self {
            settings,
            clock,
            rate: RateLimit::new(settings.bytes_per_second),
            backlog,
            claimed_bytes: AtomicU64::new(CLAIMED_BYTES),
            is_paused: AtomicBool::new(false),
            pauses: AtomicU64::new(0),
            is_hurried: AtomicBool::new(false),
            done: AtomicU64::new(0),
            data: AtomicU64::new(0),
            written: AtomicU64::new(0),
            verification: Verification::default(),
            is_cancelled: AtomicBool::new(false),
            error: Mutex::default(),
            work: Mutex::new(work),
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
        self.kick_all();
    }

    /// Has all workers begin nothing more until [`CopyJob::resume`]; what they have begun goes on, and what they have
    /// claimed is given back.
    pub fn pause(&self) {
        self.pauses.fetch_add(1, Ordering::Relaxed);
        self.is_paused.store(true, Ordering::Relaxed);
        self.kick_all();
    }

    /// Has them go on.
    pub fn resume(&self) {
        self.is_paused.store(false, Ordering::Relaxed);
        self.kick_all();
    }

    /// The most bytes of the disk in a second from now on.
    pub fn set_rate(&self, bytes_per_second: Option<u64>) {
        self.rate.set(bytes_per_second);
        self.kick_all();
    }

    /// What is written from now on is copied at once: somebody waits for source and target to be equal.
    pub fn hurry(&self) {
        self.is_hurried.store(true, Ordering::Relaxed);
        self.kick_all();
    }

    pub(crate) fn is_hurried(&self) -> bool {
        self.is_hurried.load(Ordering::Relaxed)
    }

    /// How often it was paused so far.
    pub(crate) fn pauses(&self) -> u64 {
        self.pauses.load(Ordering::Relaxed)
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.is_paused.load(Ordering::Relaxed)
    }

    /// How much is worked on at once.
    pub(crate) fn limits(&self) -> BacklogLimits {
        self.backlog.as_ref().map_or(BacklogLimits::DEFAULT, |it| it.limits)
    }

    /// What is copied while the source is written, if it is.
    pub fn backlog(&self) -> Option<&BacklogCopy> {
        self.backlog.as_ref()
    }

    fn kick_all(&self) {
        self.work().kicks.iter().for_each(|kick| kick.ring());
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

    /// A worker that is called so.
    pub(crate) fn enter(&self, kick: &Arc<WorkerKick>) {
        self.work().kicks.push(Arc::clone(kick));
        if let Some(BacklogCopy { backlog, .. }) = &self.backlog {
            backlog.enter(Waker::from(Arc::clone(kick)));
        }
    }

    /// What a worker does next that has nothing.
    pub(crate) fn share(&self, worker: &Waker) -> Share {
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
        if !asked.is_empty() {
            *is_asking = true;
            return Share::Ask(asked);
        }
        drop(work);
        let Some(BacklogCopy { backlog, end, limits, observer, .. }) = &self.backlog else {
            return Share::Nothing;
        };
        let granule = backlog.dirty().granularity().bytes();
        let most = if backlog.is_of_instant() {
            CLAIMED_BYTES_OF_INSTANT.min(limits.chunk_bytes).max(granule)
        } else {
            self.claimed_bytes.load(Ordering::Relaxed).max(granule)
        };
        match (backlog.claim(most, worker), end) {
            (ClaimResult::Claimed(claim), _) => Share::Claimed(claim),
            (ClaimResult::Wait, _) => Share::Wait,
            (ClaimResult::Nothing, BacklogEnd::WhenEmpty) => Share::Nothing,
            (ClaimResult::Nothing, BacklogEnd::WhenCancelled) => {
                if let Some(share) = self.share_of_verification(backlog, most, worker) {
                    return share;
                }
                observer.is_equal();
                Share::Equal
            }
        }
    }

    /// What a worker has claimed was nothing but zeroes, or it was not.
    pub(crate) fn claim_told(&self, is_zero: bool) {
        let most = CLAIMED_BYTES_OF_ZEROES;
        let bytes = match (is_zero, self.settings.action) {
            // Zeroes that are compared are read.
            (true, CopyAction::Copy) if !self.is_verifying() => {
                (self.claimed_bytes.load(Ordering::Relaxed) * 2).min(most)
            }
            (false, _)
            | (
                true,
                CopyAction::Copy | CopyAction::Compare | CopyAction::Map | CopyAction::Populate,
            ) => CLAIMED_BYTES,
        };
        self.claimed_bytes.store(bytes, Ordering::Relaxed);
    }

    /// The source has told of bytes, from the first that it was asked about; `end` is the first one that it told nothing
    /// of. Gives back whom to kick.
    pub(crate) fn told(
        &self,
        mut runs: Vec<(Range<u64>, BlockStatus)>,
        end: u64,
    ) -> Vec<Arc<WorkerKick>> {
        let mut work = self.work();
        if end == self.settings.bytes
            && self.backlog.is_none()
            && self.settings.action != CopyAction::Map
            && let Some((last, _)) = runs.last_mut()
        {
            last.end = self.settings.whole_sectors();
        }
        match (&self.backlog, self.settings.action) {
            (Some(BacklogCopy { backlog, scan, .. }), _) => {
                let is_wanted = |status| scan.is_none_or(|it| it.wants(status));
                for (run, status) in runs {
                    if is_wanted(status) { backlog.dirty().set(run) } else { backlog.skip(run) }
                }
            }
            (None, CopyAction::Copy | CopyAction::Compare | CopyAction::Populate) => {
                work.told.extend(runs)
            }
            (None, CopyAction::Map) => {
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

    /// A disk has failed, for a request that was begun after so many pauses: what becomes of the job.
    pub(crate) fn disk_failed(&self, error: CopyError, pauses: u64) {
        let (Some(it), CopyError::Disk { side, kind, .. }) = (&self.backlog, error) else {
            return self.fail(error);
        };
        let policy = match side {
            CopySide::Source => it.on_source_error,
            CopySide::Target => it.on_target_error,
        };
        let action = match (policy, kind) {
            (ErrorPolicy::Report, _) => ErrorAction::Report,
            (ErrorPolicy::Ignore, _) => ErrorAction::Ignore,
            (ErrorPolicy::Stop, _) | (ErrorPolicy::Enospc, FailKind::NoSpace) => ErrorAction::Stop,
            (ErrorPolicy::Enospc, _) => ErrorAction::Report,
        };
        // What was under way when it paused is tried again, however that ended: whoever resumes it knows of the pause.
        if action == ErrorAction::Stop && pauses != self.pauses() {
            return;
        }
        // A client that hears of it may have it go on at once; and hears of it before any worker ends with it.
        if action == ErrorAction::Stop {
            self.pause();
        }
        it.observer.has_failed(error, action);
        if action == ErrorAction::Report {
            self.fail(error);
        }
    }

    /// The job cannot be finished: no worker begins anything more.
    pub fn fail(&self, error: CopyError) {
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
