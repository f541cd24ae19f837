//! Backups: disks are copied to others as they are at one instant, while their guests run.
//!
//! Invariants: all that one command begins is of one instant: nothing is in flight on any of the disks when their filters are
//! put there. What a guest is about to change is copied by whoever is first, the job or the guest's own request.

use std::collections::BTreeSet;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bitmaps::{DirtyBitmap, FrozenBitmap, NodeBitmaps};
use block::{Access, ByteOffset, Child, Claim, DiscardPolicy, FailKind, Node, Rights};
use copy::{
    BacklogCopy, BacklogEnd, BacklogLimits, CopiedSource, CopyAction, CopyError, CopyJob,
    CopySettings, CopySide, ErrorPolicy, ScanFilter, TargetContent,
};
use graph::{ChildRole, EdgeChange, FilterKind, GraphChange, JobFilter, NodeUser};
use iothread::Iothread;
use layers::{
    CbwErrorPolicy, CompressNode, CopyBeforeWriteNode, CopyBeforeWriteSettings, SnapshotNews,
    SnapshotState,
};

use super::mirror::{WRITES, ZERO_UNIT, edge};
use super::{
    BackupWork, BlockJob, BlockJobError, CopyNews, JobBitmap, JobNews, JobObserver, JobWork,
};
use crate::state::change::tell_of;
use crate::state::{AtOnce, DaemonState, GraphChangeError, StatePolicy};

/// What is copied at all (QEMU's MirrorSyncMode).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BackupSync {
    /// The whole disk.
    Full,
    /// What its image has, and not what is only in backing files.
    Top,
    /// What guests change, until the job is cancelled.
    Changed,
    /// What is marked in the bitmap of the backup, which has one.
    Bitmap,
}

/// A dirty bitmap of the source, and what becomes of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackupBitmap {
    /// Its name.
    pub name: String,
    /// What becomes of it.
    pub sync: BitmapSync,
}

/// What becomes of a bitmap when its job is over (QEMU's BitmapSyncMode).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BitmapSync {
    /// It has what was changed since the job began if that was done, and what it had as well if it was not.
    OnSuccess,
    /// It has what it had, and what was changed.
    Never,
    /// It has what was changed, and what was not copied.
    Always,
}

/// A backup that is to be begun.
#[derive(Debug, Clone)]
pub struct BackupOptions {
    /// Its id.
    pub id: String,
    /// The node that is copied.
    pub source: String,
    /// The node that becomes what the source is now.
    pub target: String,
    /// What is copied at all.
    pub sync: BackupSync,
    /// The bitmap that has what was changed since, afterwards.
    pub bitmap: Option<BackupBitmap>,
    /// Whether the target compresses what it gets.
    pub compress: bool,
    /// What becomes of what was copied of the source.
    pub copied: CopiedSource,
    /// The most bytes in a second; 0 is no limit.
    pub speed: u64,
    /// What becomes of errors of the source.
    pub on_source_error: ErrorPolicy,
    /// What becomes of errors of the target.
    pub on_target_error: ErrorPolicy,
    /// What becomes of a guest's change that cannot be copied before.
    pub on_cbw_error: CbwErrorPolicy,
    /// After what time that is so; `None` is never.
    pub cbw_timeout: Option<Duration>,
    /// The most requests at once; 0 is no limit.
    pub workers_max: u64,
    /// The most bytes of a request; 0 is no limit.
    pub chunk_max: u64,
    /// The fewest bytes that are preserved together, a power of two; 0 is no limit.
    pub min_cluster_bytes: u64,
    /// The name of the filter on the source.
    pub filter: Option<String>,
}

/// What else changes in the graph at the instant of backups.
#[derive(Debug, Clone, Copy)]
pub struct BackupChanges<'a> {
    /// Other nodes below nodes and exports: on a source may come others, but nothing else below it, and a target stays where it is.
    pub edges: &'a [EdgeChange],
    /// Whether a restart has to find them.
    pub policy: StatePolicy,
}

impl BackupChanges<'_> {
    /// None.
    pub const NONE: Self = Self { edges: &[], policy: StatePolicy::Volatile };
}

/// A backup whose filter is not on its source yet.
struct PreparedBackup<'a> {
    options: &'a BackupOptions,
    observer: &'a Arc<dyn JobObserver>,
    copy: Arc<CopyJob>,
    nodes: Vec<Arc<dyn Node>>,
    claims: [Claim; 2],
    change: GraphChange,
    state: Arc<SnapshotState>,
}

/// A backup whose workers are to begin.
struct BackupBegin<'a> {
    options: &'a BackupOptions,
    observer: &'a Arc<dyn JobObserver>,
    nodes: Vec<Arc<dyn Node>>,
    iothreads: Vec<Arc<Iothread>>,
}

/// A bitmap that is taken as it is when nothing is in flight.
struct Freeze {
    of: Arc<NodeBitmaps>,
    name: String,
    state: Arc<SnapshotState>,
    /// Whether it says what is copied.
    is_source: bool,
    /// Once it is.
    frozen: Option<FrozenBitmap>,
}

/// What is done at the instant of backups: what others have asked for, and bitmaps are taken.
struct AtInstant<'a, A> {
    more: &'a mut A,
    freezes: Vec<Option<Freeze>>,
}

impl<A: AtOnce<Error: From<BlockJobError>>> AtOnce for AtInstant<'_, A> {
    type Error = A::Error;

    fn nodes(&self) -> Vec<String> {
        self.more.nodes()
    }

    fn apply(&mut self) -> Result<(), A::Error> {
        self.more.apply()?;
        for freeze in self.freezes.iter_mut().flatten() {
            match freeze.of.freeze(&freeze.name) {
                Ok(frozen) => {
                    if freeze.is_source {
                        // What is kept is what the job copies.
                        freeze.state.keep(frozen.bits());
                    }
                    freeze.frozen = Some(frozen);
                }
                Err(refusal) => {
                    self.take_back();
                    return Err(BlockJobError::from(refusal).into());
                }
            }
        }
        Ok(())
    }

    fn take_back(&mut self) {
        self.freezes.iter_mut().flatten().for_each(|freeze| drop(freeze.frozen.take()));
        self.more.take_back();
    }
}

impl DaemonState {
    /// Begins backups, all at one instant, with what else is to be done then, or nothing of it. Blocks, as long as the longest
    /// request in flight, or 30 seconds.
    pub fn start_backups<A: AtOnce<Error: From<BlockJobError>>>(
        &mut self,
        all: &[(BackupOptions, Arc<dyn JobObserver>)],
        besides: BackupChanges<'_>,
        more: &mut A,
    ) -> Result<(), A::Error> {
        let apart = check_apart(all, besides.edges).map_err(A::Error::from);
        let prepared = apart.and_then(|()| Ok(self.prepare_backups(all)?));
        let result = prepared.and_then(|prepared| self.begin_backups(prepared, besides, more));
        if result.is_err() {
            for (options, _) in all {
                // It has no filter any more, or never had one.
                self.graph.remove_job(&options.id);
            }
        }
        result
    }

    fn prepare_backups<'a>(
        &mut self,
        all: &'a [(BackupOptions, Arc<dyn JobObserver>)],
    ) -> Result<Vec<PreparedBackup<'a>>, BlockJobError> {
        all.iter().map(|(options, observer)| self.prepare_backup(options, observer)).collect()
    }

    fn prepare_backup<'a>(
        &mut self,
        options: &'a BackupOptions,
        observer: &'a Arc<dyn JobObserver>,
    ) -> Result<PreparedBackup<'a>, BlockJobError> {
        let BackupOptions { id, source, target, .. } = options;
        self.check_backup(source, target)?;
        let (from, to) =
            (Arc::clone(self.graph.node(source)?), Arc::clone(self.graph.node(target)?));
        let compress = self.compressing_target(options, &to)?;
        let target_shown: &dyn Node = compress.as_ref().map_or(&*to, |compress| compress);
        let settings = CopyBeforeWriteSettings {
            on_error: options.on_cbw_error,
            timeout: options.cbw_timeout,
            min_cluster_bytes: options.min_cluster_bytes,
        };
        let state = SnapshotState::of(source, (&*from, target_shown), settings)?;
        let (chunk, cluster) = (options.chunk_max, state.cluster_bytes());
        if chunk > 0 && chunk < cluster {
            return Err(BlockJobError::SmallChunk { chunk, cluster });
        }
        // Who discards what was copied changes the source, and nobody else may.
        let (rights, role) = match options.copied {
            CopiedSource::Kept => (Rights::of_user(Access::ReadOnly), ChildRole::JobSource),
            CopiedSource::Discarded => (WRITES, ChildRole::JobTarget),
        };
        let claims = [to.claim(WRITES)?, from.claim(rights)?];
        let unit = compress.as_ref().map_or(1, |it| it.limits().allocation_unit.get().into());
        let copy = self.backup_copy(options, &state, unit, observer)?;
        let name = JobFilter::on(source, options.filter.as_ref(), "copy-before-write", "file");
        let name = name.map(|name| JobFilter { target: Some(target.clone()), ..name });
        let edges = vec![
            edge("source", role, source),
            edge("target", self.graph.model().role_of_target(target, source), target),
        ];
        let mut nodes = self.graph.add_job(id, edges, name)?;
        let mut for_guests = Arc::clone(&nodes[1]);
        if let Some(compress) = compress {
            let compress = compress.over(Arc::clone(&nodes[1]));
            // Guests wait for what they have copied, and nobody for what the job copies.
            for_guests = Arc::new(compress.first());
            nodes[1] = Arc::new(compress);
        }
        let kept = Arc::clone(&state);
        let (target, clock) = (Child::new(for_guests), Arc::clone(&self.clock));
        let change = self.graph.put_filter(source, FilterKind::Job, |child| {
            let (access, state) = (child.node().access(), (state, clock));
            let policies = (access, DiscardPolicy::Unmap);
            let children = (child, target);
            Arc::new(CopyBeforeWriteNode::with_state(source, children, policies, settings, state))
        })?;
        Ok(PreparedBackup { options, observer, copy, nodes, claims, change, state: kept })
    }

    /// Whether one node can be copied to the other.
    fn check_backup(&self, source: &str, target: &str) -> Result<(), BlockJobError> {
        if source == target {
            return Err(BlockJobError::Same);
        }
        let (wanted, found) = self.check_ends(source, target)?;
        if found != wanted {
            let (target, node) = (target.to_owned(), source.to_owned());
            return Err(BlockJobError::OtherSize { target, found, node, wanted });
        }
        Ok(())
    }

    /// The target of a backup as one that compresses, if it is to be.
    fn compressing_target(
        &self,
        options: &BackupOptions,
        node: &Arc<dyn Node>,
    ) -> Result<Option<CompressNode>, BlockJobError> {
        let BackupOptions { target, compress, .. } = options;
        if !compress {
            return Ok(None);
        }
        let image = self.graph.compressing_image(target);
        let image = image.ok_or_else(|| BlockJobError::NotCompressed(target.clone()))?;
        let cluster = image.limits().discard_granularity;
        CompressNode::new(Arc::clone(node), cluster).map(Some).map_err(BlockJobError::Worker)
    }

    fn backup_copy(
        &self,
        options: &BackupOptions,
        state: &Arc<SnapshotState>,
        target_unit: u64,
        observer: &Arc<dyn JobObserver>,
    ) -> Result<Arc<CopyJob>, BlockJobError> {
        let nothing = || DirtyBitmap::new(state.size(), state.cluster());
        let (scan, end, backlog) = match &options.sync {
            BackupSync::Bitmap => {
                // It is filled when nothing is in flight.
                state.keep_nothing();
                (None, BacklogEnd::WhenEmpty, state.begin_job_of_all())
            }
            BackupSync::Full => (None, BacklogEnd::WhenEmpty, state.begin_job_of_all()),
            BackupSync::Top => {
                let scan = Some(ScanFilter::AllocatedAbove(1));
                (scan, BacklogEnd::WhenEmpty, state.begin_job(nothing()?))
            }
            BackupSync::Changed => (None, BacklogEnd::WhenCancelled, state.begin_job(nothing()?)),
        };
        let settings = CopySettings {
            action: CopyAction::Copy,
            bytes: state.size().0.0,
            target_bytes: state.size().0.0,
            target: TargetContent::Unknown,
            zero_unit: ZERO_UNIT,
            target_unit,
            copied: options.copied,
            bytes_per_second: Some(options.speed).filter(|speed| *speed > 0),
        };
        let limited = |most: u64| if most == 0 { u64::MAX } else { most };
        let chunks = usize::try_from(limited(options.workers_max)).unwrap_or(usize::MAX);
        let chunk_bytes = limited(options.chunk_max);
        let chunk_bytes = chunk_bytes - chunk_bytes % state.cluster_bytes();
        let backlog = BacklogCopy {
            backlog,
            scan,
            end,
            on_source_error: options.on_source_error,
            on_target_error: options.on_target_error,
            limits: BacklogLimits { chunks, chunk_bytes },
            observer: Arc::new(CopyNews(Arc::clone(observer))),
        };
        let copy = CopyJob::of_backlog(settings, backlog, Arc::clone(&self.clock));
        let (weak, observer) = (Arc::downgrade(&copy), Arc::clone(observer));
        state.watch(move |news| match news {
            SnapshotNews::Broken(kind) => observer.hear(JobNews::Failed(fail(&weak, kind))),
            SnapshotNews::Unused => observer.hear(JobNews::Quiet),
        });
        Ok(copy)
    }

    fn begin_backups<A: AtOnce<Error: From<BlockJobError>>>(
        &mut self,
        all: Vec<PreparedBackup<'_>>,
        besides: BackupChanges<'_>,
        more: &mut A,
    ) -> Result<(), A::Error> {
        let (mut changes, mut begun, mut freezes) = (Vec::new(), Vec::new(), Vec::new());
        for prepared in all {
            freezes.push(self.freeze_of(&prepared)?);
            let PreparedBackup { options, observer, copy, nodes, claims, change, state } = prepared;
            changes.push(change);
            let bytes = match &options.sync {
                BackupSync::Full | BackupSync::Changed => {
                    copy.backlog().map(|it| it.backlog.dirty().size().0.0)
                }
                BackupSync::Top | BackupSync::Bitmap => None,
            };
            let job = BlockJob::new(
                copy,
                JobWork::Backup(BackupWork { bytes, bitmap: None, state }),
                &options.source,
                claims.into(),
            );
            let iothreads = self.iothreads_for_job(&options.source).map_err(BlockJobError::from)?;
            begun.push((BackupBegin { options, observer, nodes, iothreads }, job));
        }
        let Some(change) = changes.into_iter().reduce(GraphChange::and) else { return Ok(()) };
        let change = change.in_model_of(&self.graph);
        let mut at_instant = AtInstant { more, freezes };
        let beginning = begun.iter().map(|(work, _)| work.options.id.clone()).collect();
        self.change_with((change, &beginning), besides, &mut at_instant)?;
        let AtInstant { freezes, .. } = at_instant;
        let mut all = Vec::new();
        for ((work, mut job), freeze) in begun.into_iter().zip(freezes) {
            let bitmap = freeze.and_then(|freeze| taken(work.options, freeze));
            if let JobWork::Backup(backup) = &mut job.work {
                backup.bitmap = bitmap;
            }
            self.jobs.insert(work.options.id.clone(), job);
            all.push(work);
        }
        all.iter().for_each(|work| self.begin_work_of(work));
        Ok(())
    }

    /// Puts filters there, and changes what else is to be changed then.
    fn change_with<A: AtOnce>(
        &mut self,
        (filters, beginning): (GraphChange, &BTreeSet<String>),
        besides: BackupChanges<'_>,
        more: &mut A,
    ) -> Result<(), A::Error> {
        let BackupChanges { edges, policy } = besides;
        let reach = more.nodes();
        if edges.is_empty() {
            let mut change = filters;
            change.reach_to(&reach);
            return self.carry_out(change, None, more);
        }
        let change = self.graph.change_above(edges, filters, beginning);
        let mut change = change.map_err(GraphChangeError::from)?;
        self.check_kept(self.state_file.is_some(), policy, &change.exports)?;
        change.reach_to(&reach);
        let mut state_file = self.state_file.take();
        let result = self.carry_out(change, state_file.as_mut(), more);
        self.state_file = state_file;
        result?;
        self.is_changed = true;
        edges.iter().for_each(tell_of);
        Ok(())
    }

    /// What is to be taken of a bitmap for a backup.
    fn freeze_of(&self, backup: &PreparedBackup<'_>) -> Result<Option<Freeze>, BlockJobError> {
        let Some(BackupBitmap { name, .. }) = &backup.options.bitmap else { return Ok(None) };
        let is_source = backup.options.sync == BackupSync::Bitmap;
        let of = Arc::clone(self.graph.bitmaps(&backup.options.source)?);
        let (name, state) = (name.clone(), Arc::clone(&backup.state));
        Ok(Some(Freeze { of, name, state, is_source, frozen: None }))
    }

    /// Has the workers of a backup begin. What was done at its instant stays even if that fails, since guests have gone on with
    /// it; then the job is over.
    fn begin_work_of(&mut self, backup: &BackupBegin<'_>) {
        let BackupBegin { options, observer, nodes, iothreads } = backup;
        if let Err(error) = self.place_workers_of(&options.id, nodes, iothreads, observer) {
            if let Some(job) = self.jobs.get_mut(&options.id) {
                job.stop_work();
            }
            observer.hear(JobNews::NotServed(host::chain_of(&error).to_string()));
        }
    }

    /// Ends backups that have copied everything, and whose workers have ended, or none of them: their targets are durable, and
    /// their guests write on as before. After an error, which is of the job at that place of them, all are to be aborted.
    /// Blocks, as long as the longest request in flight, or 30 seconds, for each.
    pub fn finish_backups(&mut self, ids: &[&str]) -> Result<(), (usize, BlockJobError)> {
        for (place, id) in ids.iter().enumerate() {
            self.prepare_end(id).map_err(|error| (place, error))?;
        }
        ids.iter().for_each(|id| self.forget_job(id, true));
        Ok(())
    }

    /// All of the end of a backup that can fail.
    fn prepare_end(&mut self, id: &str) -> Result<(), BlockJobError> {
        let Some(job) = self.jobs.get_mut(id) else { return Ok(()) };
        job.stop_work();
        let job = &self.jobs[id];
        let (source, target) = (job.source.clone(), self.target_of(id));
        let failed = |source| BlockJobError::Flush { target: target.clone(), source };
        job.flush().map_err(failed)?;
        if self.graph.has_filter(&source, FilterKind::Job)? {
            self.take_filter(&source, FilterKind::Job)?;
        }
        // A change may have been copied until now.
        self.jobs[id].flush().map_err(failed)
    }

    /// Lets go of a job that has no filter any more, and of its bitmap if it has one.
    pub(super) fn forget_job(&mut self, id: &str, is_done: bool) {
        self.graph.remove_job(id);
        let Some(BlockJob { work, opened, claims, .. }) = self.jobs.remove(id) else { return };
        drop(claims);
        if let JobWork::Backup(work) = work {
            work.bitmap.into_iter().for_each(|bitmap| bitmap.end(is_done));
        }
        opened.iter().for_each(|node| self.protect(node));
        self.keep_end(id);
    }

    /// The node that a job writes.
    fn target_of(&self, id: &str) -> String {
        let edges = self.graph.model().below(&NodeUser::Job(id.to_owned()));
        let target = edges.iter().find(|edge| edge.key == "target");
        target.map_or_else(String::new, |edge| edge.node.clone())
    }
}

/// Whether what else is changed leaves what is below sources as it is, and targets alone: which of both is first would matter.
/// What is above a source has the same bytes at that instant.
fn check_apart(
    all: &[(BackupOptions, Arc<dyn JobObserver>)],
    edges: &[EdgeChange],
) -> Result<(), BlockJobError> {
    let is_source = |node: &&str| all.iter().any(|(options, _)| options.source == **node);
    let is_target = |node: &&str| all.iter().any(|(options, _)| options.target == **node);
    for EdgeChange { user, by, .. } in edges {
        let above = match user {
            NodeUser::Node(name) => Some(name.as_str()),
            NodeUser::Export(_) | NodeUser::Job(_) => None,
        };
        let changed = above.filter(|it| is_source(it) || is_target(it));
        if let Some(node) = changed.or_else(|| by.as_deref().filter(is_target)) {
            return Err(BlockJobError::ChangedAtOnce(node.to_owned()));
        }
    }
    Ok(())
}

/// The bitmap that a backup has taken.
fn taken(options: &BackupOptions, freeze: Freeze) -> Option<JobBitmap> {
    let sync = options.bitmap.as_ref()?.sync;
    let Freeze { state, frozen, .. } = freeze;
    Some(JobBitmap { frozen: frozen?, sync, state })
}

/// A guest has changed what could not be copied before.
fn fail(copy: &Weak<CopyJob>, kind: FailKind) -> CopyError {
    let (side, operation) = (CopySide::Target, "copy before a guest's change");
    let error = CopyError::Disk { side, operation, offset: ByteOffset(0), kind };
    if let Some(copy) = copy.upgrade() {
        copy.fail(error);
    }
    error
}
