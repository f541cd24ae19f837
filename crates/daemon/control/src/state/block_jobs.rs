//! Block jobs: what copies a disk while its guests run. Begun, watched, ended.
//!
//! Where it stands: a job is a user of nodes, as exports are; its workers are served by the iothreads of the exports above its
//! source. What clients are told of it, and when it goes on, is up to the caller (`monitor`).
//!
//! Invariants: as long as a job lasts, its filter is on its source and its claims are held. While nodes are changed that it
//! uses, it rests: it holds no range that a guest could wait for.
//! Threads: the first one; iothreads tell the observer.

mod mirror;

use std::collections::BTreeSet;
use std::error::Error;
use std::fmt;
use std::io;
use std::sync::Arc;

use bitmaps::BitmapError;
use block::{Claim, ClaimError, LaneError, Node};
use copy::{CopyEnd, CopyError, CopyJob, CopyObserver, CopyProgress, CopyWorker, ErrorAction};
use exports::ServingIothreads;
use graph::{FilterKind, ModelError, NodeUser};
use iothread::{Iothread, PlacedFrontEnd, SourceName, SourceObserver, SpawnError};
use kernel_io::Notifier;
use layers::MirrorNode;
use request_path::FrontEndSource;

use super::change::DRAIN_MAX;
use super::{DaemonState, GraphChangeError};

pub use mirror::{MirrorEnd, MirrorOptions, MirrorSync};

/// The most workers of a job.
const WORKERS_MAX: usize = 4;

/// A job could not be begun, or not be ended like that.
#[derive(Debug, thiserror::Error)]
pub enum BlockJobError {
    /// The source is its own target.
    #[error("Can't mirror node into itself")]
    Itself,
    /// Something else stands on the source as its backing file.
    #[error("Need a root block node: node '{0}' is a backing file")]
    NoRoot(String),
    /// The target is too small.
    #[error("target '{target}' has {found} bytes, and source '{node}' has {wanted}")]
    TooSmall {
        /// The target.
        target: String,
        /// Its size.
        found: u64,
        /// The source.
        node: String,
        /// Its size.
        wanted: u64,
    },
    /// The nodes cannot be used for that.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The target, or the source, cannot be had.
    #[error(transparent)]
    Claim(#[from] ClaimError),
    /// The graph could not be changed.
    #[error(transparent)]
    Change(#[from] GraphChangeError),
    /// There is no memory for what is left to copy.
    #[error(transparent)]
    Bitmap(#[from] BitmapError),
    /// An iothread could not be started.
    #[error(transparent)]
    Iothread(#[from] SpawnError),
    /// A worker could not be made.
    #[error("a worker of the job cannot be made")]
    Worker(#[source] io::Error),
    /// An iothread cannot use the nodes.
    #[error("iothread {iothread} cannot serve the job")]
    Lane {
        /// Which one.
        iothread: String,
        /// Why.
        #[source]
        source: LaneError,
    },
    /// What was written to the target could not be made durable.
    #[error("target '{target}': a flush failed")]
    Flush {
        /// The target.
        target: String,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// What happens to a job without a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobNews {
    /// Source and target were equal, but for writes under way.
    Equal,
    /// A disk has failed; the job has paused if the action says so.
    DiskFailed(CopyError, ErrorAction),
    /// A worker has ended.
    WorkerEnded(CopyEnd),
}

/// Hears what happens to a job. Called by iothreads: it must not block.
pub trait JobObserver: fmt::Debug + Send + Sync {
    /// Something has happened.
    fn hear(&self, news: JobNews);
}

/// Passes on what copies tell.
#[derive(Debug)]
struct CopyNews(Arc<dyn JobObserver>);

impl CopyObserver for CopyNews {
    fn is_equal(&self) {
        self.0.hear(JobNews::Equal);
    }

    fn has_failed(&self, error: CopyError, action: ErrorAction) {
        self.0.hear(JobNews::DiskFailed(error, action));
    }
}

impl SourceObserver for CopyNews {
    fn broken(&self, fault: &(dyn Error + 'static)) {
        let end = fault.downcast_ref::<CopyEnd>().expect("a worker has no other faults");
        self.0.hear(JobNews::WorkerEnded(*end));
    }

    fn kicked_while_empty(&self) {}
}

/// How far a job has come, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BlockJobProgress {
    /// What was done.
    pub current: u64,
    /// The same with what is left, as far as that is known.
    pub total: u64,
}

/// A job that has begun.
#[derive(Debug)]
pub(super) struct BlockJob {
    // Dropped in this order: nothing is in flight when claims are given back.
    workers: Vec<PlacedFrontEnd<CopyWorker>>,
    copy: Arc<CopyJob>,
    filter: Arc<MirrorNode>,
    source: String,
    target: String,
    target_claim: Claim,
    _source_claim: Claim,
    is_paused: bool,
}

/// Jobs that rest while nodes are changed which they use. Dropped, they go on.
#[derive(Debug, Default)]
pub(super) struct JobsRest(Vec<Arc<CopyJob>>);

impl Drop for JobsRest {
    fn drop(&mut self) {
        self.0.iter().for_each(|copy| copy.resume());
    }
}

impl DaemonState {
    /// Has jobs rest, and waits until they hold nothing.
    pub(super) fn rest_jobs(&self, ids: &BTreeSet<String>) -> Result<JobsRest, GraphChangeError> {
        let mut rest = JobsRest::default();
        for (id, job) in self.jobs.iter().filter(|(id, _)| ids.contains(*id)) {
            job.copy.pause();
            if !job.is_paused {
                rest.0.push(Arc::clone(&job.copy));
            }
            let backlog = job.copy.backlog().map(|it| &it.backlog);
            if backlog.is_some_and(|backlog| !backlog.wait_unclaimed(DRAIN_MAX)) {
                return Err(GraphChangeError::BusyJob(id.clone()));
            }
        }
        Ok(rest)
    }

    /// What the exports above the sources of jobs stand on: their lanes are open on the targets, too.
    pub(super) fn exports_beside(&self, ids: &BTreeSet<String>) -> Vec<Arc<dyn Node>> {
        let jobs = self.jobs.iter().filter(|(id, _)| ids.contains(*id));
        let above =
            |job: &BlockJob| self.graph.model().exports_above(&NodeUser::Node(job.source.clone()));
        let exports: BTreeSet<String> = jobs.flat_map(|(_, job)| above(job)).collect();
        let disks = self.exports.iter().map(|export| export.disk());
        let disks = disks.filter(|disk| exports.contains(&disk.id));
        disks.map(|disk| Arc::clone(&disk.node)).collect()
    }

    /// Whether there is a job of that id.
    pub fn has_block_job(&self, id: &str) -> bool {
        self.jobs.contains_key(id)
    }

    /// Whether there is any job.
    pub fn has_block_jobs(&self) -> bool {
        !self.jobs.is_empty()
    }

    /// Has a job begin nothing more, or go on.
    pub fn pause_block_job(&mut self, id: &str, is_paused: bool) {
        if let Some(job) = self.jobs.get_mut(id) {
            job.is_paused = is_paused;
            if is_paused { job.copy.pause() } else { job.copy.resume() }
        }
    }

    /// Has a job copy at most that many bytes in a second; 0 is no limit.
    pub fn set_block_job_speed(&self, id: &str, bytes_per_second: u64) {
        if let Some(job) = self.jobs.get(id) {
            job.copy.set_rate(Some(bytes_per_second).filter(|bytes| *bytes > 0));
        }
    }

    /// How far a job has come.
    pub fn block_job_progress(&self, id: &str) -> Option<BlockJobProgress> {
        let job = self.jobs.get(id)?;
        let CopyProgress { done, .. } = job.copy.progress();
        let left = job.copy.backlog().map_or(0, |it| it.backlog.left_bytes());
        Some(BlockJobProgress { current: done, total: done.saturating_add(left) })
    }

    /// Ends a job without its result: the guests stay where they are. Blocks, as long as the longest request in flight, or 30
    /// seconds.
    pub fn abort_block_job(&mut self, id: &str) -> Result<(), GraphChangeError> {
        let Some(job) = self.jobs.get_mut(id) else { return Ok(()) };
        job.copy.cancel();
        job.filter.set_mode(layers::MirrorMode::Background);
        std::mem::take(&mut job.workers).into_iter().for_each(|worker| drop(worker.stop()));
        let source = job.source.clone();
        self.take_filter(&source, FilterKind::Job)?;
        self.graph.remove_job(id);
        self.jobs.remove(id);
        Ok(())
    }

    /// Ends all jobs without their results: the daemon ends.
    pub fn stop_block_jobs(&mut self) {
        let ids: Vec<String> = self.jobs.keys().cloned().collect();
        for id in ids {
            tracing::warn!("block job '{id}': cancelled, because the daemon ends");
            if let Err(error) = self.abort_block_job(&id) {
                tracing::error!("block job '{id}': {}", host::chain_of(&error));
            }
        }
    }

    /// The iothreads for workers of a job on that source.
    fn iothreads_for_job(&mut self, source: &str) -> Result<Vec<Arc<Iothread>>, SpawnError> {
        let above = self.graph.model().exports_above(&NodeUser::Node(source.to_owned()));
        let mut found: Vec<Arc<Iothread>> = Vec::new();
        for export in self.exports.iter().filter(|export| above.contains(&export.disk().id)) {
            let serving = match export.disk().iothreads() {
                ServingIothreads::Named(all) => all,
                ServingIothreads::Pool(pool) => vec![pool.home()],
            };
            let is_new = |it: &Arc<Iothread>| !found.iter().any(|known| Arc::ptr_eq(known, it));
            let new: Vec<_> = serving.into_iter().filter(is_new).collect();
            found.extend(new);
        }
        found.truncate(WORKERS_MAX);
        if found.is_empty() {
            found.push(self.main_iothread()?);
        }
        Ok(found)
    }
}

/// Has a worker of a job served on each of the iothreads.
fn place_workers(
    id: &str,
    copy: &Arc<CopyJob>,
    nodes: &[Arc<dyn Node>],
    iothreads: &[Arc<Iothread>],
    observer: &Arc<dyn JobObserver>,
) -> Result<Vec<PlacedFrontEnd<CopyWorker>>, BlockJobError> {
    let place = |(queue, iothread): (u16, &Arc<Iothread>)| {
        let nobody = Arc::new(Notifier::new().map_err(BlockJobError::Worker)?);
        let front = CopyWorker::new(copy).map_err(BlockJobError::Worker)?;
        let source = FrontEndSource::new(front, nodes.to_vec(), nobody);
        let name = SourceName { export: id.to_owned(), queue };
        let observer = Arc::new(CopyNews(Arc::clone(observer)));
        PlacedFrontEnd::on(iothread, name, source, observer).map_err(|refused| {
            BlockJobError::Lane { iothread: refused.iothread, source: refused.source }
        })
    };
    (0..).zip(iothreads).map(place).collect()
}
