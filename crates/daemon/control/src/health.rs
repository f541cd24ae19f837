//! Looks at queues, iothreads and images all the time, and says what no request tells: a queue in which nothing goes on, an
//! iothread that does not turn, a file that was removed, replaced, or has another size than the disk that it is.
//!
//! Where it stands: beside the request path. It reads gauges that queues count anyway, asks iothreads to turn, and asks files
//! for their sizes.
//!
//! Invariants: whatever storage or iothread hangs, queues are looked at: nothing here waits for an iothread, and files have
//! threads of their own (`files`).
//! Threads: `queue watch` and `file watch`; the first one starts and ends them, and waits for neither.
//! Limits: [`LOOK_EVERY`]; ten lines in any ten seconds about queues and iothreads; about a file one line for each change.

mod files;
mod silence;
mod stalls;

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::Builder;
use std::time::Duration;

use block::{Clock, LogRateLimit};
use exports::{ExportedDisk, StorageCondition};
use iothread::{SourceName, SourceRegistry};

use crate::ServedDisks;
use files::FileWatch;
use silence::SilenceWatch;
use stalls::StallWatch;

/// How often is looked.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// At how many looks iothreads are asked to turn, once each: one that sleeps is woken for it.
const LOOKS_PER_QUESTION: u32 = 2;

/// Watches queues and files until it is dropped.
#[derive(Debug)]
pub struct HealthWatch {
    findings: Arc<HealthFindings>,
    /// Dropped, the thread that looks at queues ends when it looks next.
    _end: Sender<()>,
}

/// What was found the last time.
#[derive(Debug)]
pub struct HealthFindings {
    stalled: Mutex<Vec<(SourceName, Duration)>>,
    files: Arc<FileWatch<ExportedDisk>>,
}

impl HealthFindings {
    /// The queues that have requests in flight of which none was answered since the time before, and for how long.
    pub fn stalled(&self) -> Vec<(SourceName, Duration)> {
        lock(&self.stalled).clone()
    }

    /// What was found of the storage of each export.
    pub fn storage(&self) -> Vec<(String, StorageCondition)> {
        self.files.found()
    }
}

impl HealthWatch {
    /// Starts the threads, with the fences of this one.
    pub fn start(
        sources: Arc<SourceRegistry>,
        disks: Arc<ServedDisks>,
        clock: Arc<dyn Clock>,
    ) -> std::io::Result<Self> {
        let theirs = Arc::clone(&disks);
        let files = FileWatch::start(Box::new(move || theirs.all()), Arc::clone(&clock))?;
        let (end, over) = channel();
        let findings = Arc::new(HealthFindings { stalled: Mutex::default(), files });
        let found = Arc::clone(&findings);
        let watch = move || watch_queues(&sources, &disks, &*clock, &found, &over);
        Builder::new().name("queue watch".to_owned()).spawn(watch)?;
        Ok(Self { findings, _end: end })
    }

    /// What was found the last time.
    pub fn findings(&self) -> &Arc<HealthFindings> {
        &self.findings
    }
}

impl Drop for HealthWatch {
    fn drop(&mut self) {
        self.findings.files.end();
    }
}

/// Waits for the next look; whether there is to be one.
fn goes_on(over: &Receiver<()>) -> bool {
    over.recv_timeout(LOOK_EVERY) == Err(RecvTimeoutError::Timeout)
}

fn watch_queues(
    sources: &SourceRegistry,
    disks: &ServedDisks,
    clock: &dyn Clock,
    findings: &HealthFindings,
    over: &Receiver<()>,
) {
    let (mut watch, mut rate) = (StallWatch::default(), LogRateLimit::default());
    let (mut silence, mut looks) = (SilenceWatch::default(), 0);
    while goes_on(over) {
        let now = clock.now();
        findings.files.supervise(now);
        for sentence in silence.look(sources.unanswered(now), now) {
            if let Some(left_out) = rate.admit(now) {
                tracing::error!("{sentence}{}", LeftOut(left_out));
            }
        }
        if looks % LOOKS_PER_QUESTION == 0 {
            sources.ask_to_turn(now);
        }
        looks = looks.wrapping_add(1);
        let disks = disks.all();
        let mut sources = sources.all();
        // Workers of jobs have names like queues.
        sources.retain(|source| disks.iter().any(|disk| disk.id == source.name().export));
        for source in watch.unsure(&sources, now) {
            source.bring_up_to_date();
        }
        let news = watch.look(&sources, now);
        for sentence in news.stalls() {
            if let Some(left_out) = rate.admit(now) {
                tracing::warn!("{sentence}{}", LeftOut(left_out));
            }
        }
        for sentence in news.ends() {
            if let Some(left_out) = rate.admit(now) {
                tracing::info!("{sentence}{}", LeftOut(left_out));
            }
        }
        *lock(&findings.stalled) = watch.stalled(now);
    }
}

/// How many sentences were left out before this one.
struct LeftOut(u64);

impl std::fmt::Display for LeftOut {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            0 => Ok(()),
            count => write!(f, " ({count} lines about queues and iothreads were left out before)"),
        }
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().expect("no holder of this lock panics")
}
