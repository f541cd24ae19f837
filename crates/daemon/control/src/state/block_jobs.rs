//! Block jobs: what copies a disk while its guests run. Begun, watched, ended.
//!
//! Where it stands: a job is a user of nodes, as exports are; its workers are served by the iothreads of the exports above its
//! source. What clients are told of it, and when it goes on, is up to the caller (`monitor`).
//!
//! Invariants: as long as a job lasts, its filter is on its source and its claims are held. While nodes are changed that it
//! uses, it rests: it holds no range that a guest could wait for.
//! Threads: the first one; iothreads tell the observer.

mod backup;
mod commit;
mod error;
mod mirror;
mod opened;
mod stream;

use std::collections::BTreeSet;
use std::error::Error;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bitmaps::FrozenBitmap;
use block::{Claim, Node};
use copy::{CopyEnd, CopyError, CopyJob, CopyObserver, CopyProgress, CopyWorker, ErrorAction};
use exports::ServingIothreads;
use graph::{EdgeChange, FilterKind, NodeUser};
use iothread::{Iothread, PlacedFrontEnd, SourceName, SourceObserver, SpawnError};
use kernel_io::Notifier;
use layers::{MirrorNode, SnapshotState};
use request_path::FrontEndSource;

use super::change::{DRAIN_MAX, WhenDrained};
use super::{DaemonState, GraphChangeError};
use crate::configuration::KeptJob;

pub use backup::{BackupBitmap, BackupChanges, BackupOptions, BackupSync, BitmapSync};
pub use commit::CommitOptions;
pub use error::BlockJobError;
pub use mirror::{MirrorEnd, MirrorOptions, MirrorSync};
pub use stream::StreamOptions;

/// The key of a backing file below an image.
const BACKING: &str = "backing";

/// How many workers a job has at least, if `main` is none of the iothreads of the exports.
const WORKERS_MIN: usize = 2;

/// The most workers of a job.
const WORKERS_MAX: usize = 4;

/// What happens to a job without a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobNews {
    /// Source and target were equal, but for writes under way.
    Equal,
    /// A disk has failed; the job has paused if the action says so.
    DiskFailed(CopyError, ErrorAction),
    /// A worker has ended.
    WorkerEnded(CopyEnd),
    /// It has begun, and nothing can work on it: why.
    NotServed(String),
    /// It cannot be finished, though what its workers have begun may go on.
    Failed(CopyError),
    /// It was given up, and what guests' changes had copied for it is over.
    Quiet,
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
    /// What the workers have lanes on.
    nodes: Vec<Arc<dyn Node>>,
    copy: Arc<CopyJob>,
    work: JobWork,
    /// The node that is copied, which may have a filter for it.
    source: String,
    claims: Vec<Claim>,
    is_paused: bool,
    /// How many workers have something to do.
    working: usize,
    /// Whether what it has done counts from the next thing on that is kept.
    is_ending: bool,
    /// The node that takes changes only as long as the job is there.
    opened: Option<String>,
}

/// What a job does besides copying.
#[derive(Debug)]
enum JobWork {
    /// It moves the users of its source to the target.
    Mirror {
        filter: Arc<MirrorNode>,
        target: String,
        /// Whose users they are: the source, or what it shows.
        replaced: String,
    },
    /// It has an image stand on that backing file, which has what those between them had.
    Commit { backing: NewBacking },
    /// It has its source stand on that backing file, or on none.
    Stream { backing: NewBacking },
    /// Its target has what the source was.
    Backup(BackupWork),
}

/// What a backup has besides its copy.
#[derive(Debug)]
struct BackupWork {
    /// How many bytes it copies, if that is known from the beginning.
    bytes: Option<u64>,
    /// The bitmap that says what it copies.
    bitmap: Option<JobBitmap>,
    /// What guests have copied before they change it.
    state: Arc<SnapshotState>,
}

/// The bitmap of a backup, what becomes of it, and what of it is left.
#[derive(Debug)]
struct JobBitmap {
    frozen: FrozenBitmap,
    sync: BitmapSync,
    state: Arc<SnapshotState>,
}

impl JobBitmap {
    /// The job is over.
    fn end(self, is_done: bool) {
        let Self { frozen, sync, state } = self;
        match (sync, is_done) {
            (BitmapSync::OnSuccess | BitmapSync::Always, true) => frozen.succeed(),
            (BitmapSync::Always, false) => frozen.succeed_but(state.pending()),
            (BitmapSync::Never, _) | (BitmapSync::OnSuccess, false) => drop(frozen),
        }
    }
}

/// Another backing file for an image.
#[derive(Debug, Clone)]
struct NewBacking {
    /// The image.
    image: String,
    /// The node of the backing file, if there is one.
    node: Option<String>,
    /// What the header of the image names.
    name: BackingName,
}

/// What the header of an image says of its backing file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BackingName {
    /// The name of the file; empty if there is none.
    pub file: String,
    /// Its format.
    pub format: Option<String>,
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

    /// What has lanes beside the nodes of jobs in the graph: what the exports above their sources stand on, whose lanes are open on
    /// the targets, too; and what workers have in the place of a target, as one that compresses.
    pub(super) fn served_beside(&self, ids: &BTreeSet<String>) -> Vec<Arc<dyn Node>> {
        let jobs = || self.jobs.iter().filter(|(id, _)| ids.contains(*id));
        let above =
            |job: &BlockJob| self.graph.model().exports_above(&NodeUser::Node(job.source.clone()));
        let exports: BTreeSet<String> = jobs().flat_map(|(_, job)| above(job)).collect();
        let disks = self.exports.iter().map(|export| export.disk());
        let disks = disks.filter(|disk| exports.contains(&disk.id)).map(|disk| &disk.node);
        disks.chain(jobs().flat_map(|(_, job)| &job.nodes)).map(Arc::clone).collect()
    }

    /// The jobs that a daemon which is killed leaves half done.
    pub(crate) fn kept_jobs(&self) -> Vec<KeptJob> {
        let running = self.jobs.iter().filter(|(_, job)| !job.is_ending);
        running.map(|(id, job)| KeptJob { id: id.clone(), what: job.describe() }).collect()
    }

    /// Keeps which jobs run, if anything is kept.
    fn keep_jobs(&mut self) -> Result<(), BlockJobError> {
        let Some(mut file) = self.state_file.take() else { return Ok(()) };
        let now = self.configuration().map_err(BlockJobError::from);
        let kept = now.and_then(|now| Ok(file.write(&now)?));
        self.state_file = Some(file);
        kept
    }

    /// The same for one that is over: the next start tells of it if that fails.
    fn keep_end(&mut self, id: &str) {
        if let Err(error) = self.keep_jobs() {
            tracing::warn!("block job '{id}': {}", host::chain_of(&error));
        }
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
        let backlog = job.copy.backlog().map(|it| &it.backlog);
        let current = done.saturating_add(backlog.map_or(0, |it| it.copied_bytes()));
        if let JobWork::Backup(BackupWork { bytes: Some(total), .. }) = job.work {
            return Some(BlockJobProgress { current: current.min(total), total });
        }
        let left = backlog.map_or(0, |it| it.left_bytes());
        Some(BlockJobProgress { current, total: current.saturating_add(left) })
    }

    /// Has a job begin nothing more, and guests go on that wait for it. Whether all is over that it had begun, for which this
    /// waits no longer than that; otherwise its end is told ([`JobNews::WorkerEnded`], [`JobNews::Quiet`]), and ask again: a
    /// target that hangs would have the end of the job wait, and everybody with it.
    pub fn give_up_block_job(&mut self, id: &str, limit: Duration) -> bool {
        let Some(job) = self.jobs.get_mut(id) else { return true };
        let JobWork::Backup(BackupWork { state, .. }) = &job.work else { return true };
        job.copy.cancel();
        state.give_up();
        let backlog = job.copy.backlog().map(|it| &it.backlog);
        let is_quiet = backlog.is_none_or(|backlog| backlog.wait_unclaimed(limit));
        is_quiet && !state.is_copying()
    }

    /// Ends a job without its result: the guests stay where they are. Blocks, as long as the longest request in flight, or 30
    /// seconds.
    pub fn abort_block_job(&mut self, id: &str) -> Result<(), GraphChangeError> {
        let Some(job) = self.jobs.get_mut(id) else { return Ok(()) };
        if let JobWork::Backup(BackupWork { state, .. }) = &job.work {
            state.give_up();
        }
        job.stop_work();
        if let JobWork::Mirror { filter, .. } = &job.work {
            filter.set_mode(layers::MirrorMode::Background);
        }
        let source = job.source.clone();
        if self.graph.has_filter(&source, FilterKind::Job)? {
            self.take_filter(&source, FilterKind::Job)?;
        }
        self.forget_job(id, false);
        Ok(())
    }

    /// A worker of a job has nothing more to do; whether that is so for all of them.
    pub fn block_job_worker_ended(&mut self, id: &str) -> bool {
        let Some(job) = self.jobs.get_mut(id) else { return false };
        job.working = job.working.saturating_sub(1);
        job.working == 0
    }

    /// Has the result of a job count whose work is done, and which is no mirror. Blocks, as long as the longest request in
    /// flight, or 30 seconds. After an error it is to be aborted.
    pub fn finish_block_job(&mut self, id: &str) -> Result<(), BlockJobError> {
        let Some(job) = self.jobs.get_mut(id) else { return Ok(()) };
        job.stop_work();
        match &job.work {
            JobWork::Mirror { .. } => Ok(()),
            JobWork::Commit { backing } | JobWork::Stream { backing } => {
                let backing = backing.clone();
                self.finish_with_backing(id, &backing)
            }
            JobWork::Backup(_) => self.finish_backups(&[id]).map_err(|(_, error)| error),
        }
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

    /// Has workers of a job served; without them it ends.
    fn start_workers(
        &mut self,
        id: &str,
        nodes: &[Arc<dyn Node>],
        iothreads: &[Arc<Iothread>],
        observer: &Arc<dyn JobObserver>,
    ) -> Result<(), BlockJobError> {
        self.place_workers_of(id, nodes, iothreads, observer).or_else(|error| {
            self.abort_block_job(id)?;
            Err(error)
        })
    }

    /// Has workers of a job served, and keeps that it runs.
    fn place_workers_of(
        &mut self,
        id: &str,
        nodes: &[Arc<dyn Node>],
        iothreads: &[Arc<Iothread>],
        observer: &Arc<dyn JobObserver>,
    ) -> Result<(), BlockJobError> {
        let job = self.jobs.get_mut(id).expect("it was added");
        let workers = place_workers(id, &job.copy, nodes, iothreads, observer)?;
        job.working = workers.len();
        (job.workers, job.nodes) = (workers, nodes.to_vec());
        self.keep_jobs()
    }

    /// Has an image stand on another backing file, with which its bytes are the same, and ends the job that saw to that. Blocks.
    fn finish_with_backing(&mut self, id: &str, backing: &NewBacking) -> Result<(), BlockJobError> {
        let NewBacking { image, node, name } = backing;
        let source = self.jobs[id].source.clone();
        let failed = |source| BlockJobError::Flush { target: image.clone(), source };
        self.jobs[id].flush().map_err(failed)?;
        let user = NodeUser::Node(image.clone());
        let edge = EdgeChange { user, key: BACKING.to_owned(), by: node.clone() };
        // Whether it can be, before anything is written.
        self.graph.end_job(id, std::slice::from_ref(&edge)).map_err(GraphChangeError::from)?;
        // The bytes are the same with both names: a header that is ahead of the graph harms nobody.
        self.while_writable::<_, BlockJobError>(image, |state| {
            let found = state.graph.node_info(image)?.image.map(Arc::clone);
            let found = found.ok_or_else(|| BlockJobError::NoImage(image.clone()))?;
            state.name_backing::<BlockJobError>(image, &found, &name.file, name.format.as_deref())
        })?;
        let change = self.graph.end_job(id, &[edge]).map_err(GraphChangeError::from)?;
        self.jobs.get_mut(id).expect("it is there").is_ending = true;
        let mut state_file = self.state_file.take();
        let result = self.carry_out(change, state_file.as_mut(), &mut WhenDrained::new(|| Ok(())));
        self.state_file = state_file;
        if result.is_err() {
            self.jobs.get_mut(id).expect("it is there").is_ending = false;
        }
        result?;
        self.is_changed = true;
        let opened = self.jobs.remove(id).and_then(|job| job.opened);
        self.graph.remove_job(id);
        if self.graph.has_filter(&source, FilterKind::Job)?
            && let Err(error) = self.take_filter(&source, FilterKind::Job)
        {
            // The result counts already.
            tracing::error!("block job '{id}': its filter stays: {}", host::chain_of(&error));
        }
        opened.iter().for_each(|node| self.protect(node));
        match node {
            Some(node) => tracing::info!("block job '{id}': node '{image}' stands on '{node}' now"),
            None => tracing::info!("block job '{id}': node '{image}' has no backing file any more"),
        }
        Ok(())
    }

    /// Whether no job uses a source or a target yet; gives their sizes.
    fn check_ends(&self, source: &str, target: &str) -> Result<(u64, u64), BlockJobError> {
        let (from, to) = (self.graph.node(source)?, self.graph.node(target)?);
        self.graph.model().check_no_job(source)?;
        self.graph.model().check_no_job(target)?;
        Ok((from.size().0.0, to.size().0.0))
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
        // One thread copies slower than a disk in memory, or a fast one, could.
        if found.len() < WORKERS_MIN {
            let main = self.main_iothread()?;
            if !found.iter().any(|known| Arc::ptr_eq(known, &main)) {
                found.push(main);
            }
        }
        Ok(found)
    }
}

impl BlockJob {
    /// One whose workers have not begun.
    fn new(copy: Arc<CopyJob>, work: JobWork, source: &str, claims: Vec<Claim>) -> Self {
        Self {
            workers: Vec::new(),
            nodes: Vec::new(),
            copy,
            work,
            source: source.to_owned(),
            claims,
            is_paused: false,
            working: 0,
            is_ending: false,
            opened: None,
        }
    }

    /// Has its workers end.
    fn stop_work(&mut self) {
        self.copy.cancel();
        std::mem::take(&mut self.workers).into_iter().for_each(|worker| drop(worker.stop()));
    }

    /// What it does, in the present tense without a subject.
    fn describe(&self) -> String {
        let source = &self.source;
        match &self.work {
            JobWork::Mirror { target, .. } => format!("mirrors node '{source}' to node '{target}'"),
            JobWork::Commit { backing: NewBacking { node, .. } } => {
                let base = node.as_deref().unwrap_or_default();
                format!("commits node '{source}' to node '{base}'")
            }
            JobWork::Stream { .. } => format!("copies backing files into node '{source}'"),
            JobWork::Backup(_) => format!("backs up node '{source}'"),
        }
    }

    /// Makes durable what was written to its nodes.
    fn flush(&self) -> io::Result<()> {
        self.claims.iter().try_for_each(Claim::flush)
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
