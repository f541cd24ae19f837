//! A mirror: a disk is copied to another one until both are equal, and its users go on there, or stay.
//!
//! Invariants: the users of the source are moved when nothing is in flight, nothing is left to be copied, and the target is
//! durable; otherwise they stay, and the copy goes on.

use std::sync::Arc;

use bitmaps::{BitmapError, CopyBacklog, DirtyBitmap, Granularity};
use block::{Access, Node, Permission, Permissions, Rights};
use copy::{
    BacklogCopy, BacklogEnd, BacklogLimits, ComparedBytes, CopiedSource, CopyAction, CopyJob,
    CopySettings, ErrorPolicy, ScanFilter, TargetContent,
};
use graph::{ChildRole, Edge, FilterKind, JobFilter, NodeUser};
use layers::{MirrorMode, MirrorNode};

use super::{BACKING, BlockJob, BlockJobError, CopyNews, JobObserver, JobWork};
use crate::state::change::WhenDrained;
use crate::state::{DaemonState, GraphChangeError, StatePolicy};

/// The shortest run of zeroes that is not written as data.
pub(super) const ZERO_UNIT: usize = 64 << 10;

/// What a job does with its target, which nobody else changes meanwhile.
pub(super) const WRITES: Rights = Rights {
    uses: Permissions::WRITES.and(Permission::Resize),
    shares: Permissions::ALL.without(Permissions::CHANGES),
};

/// What is copied at all (QEMU's MirrorSyncMode).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MirrorSync {
    /// The whole disk.
    Full,
    /// What its image has, and not what is only in backing files.
    Top,
    /// What is written from now on.
    New,
    /// What images above the target have: it is below the source in its chain of backing files.
    Commit,
}

/// A mirror that is to be begun.
#[derive(Debug, Clone)]
pub struct MirrorOptions {
    /// Its id.
    pub id: String,
    /// The node that is copied.
    pub source: String,
    /// The node that becomes equal.
    pub target: String,
    /// What is copied at all.
    pub sync: MirrorSync,
    /// When the target has what is written.
    pub mode: MirrorMode,
    /// The bytes that are copied anew when one of them is written.
    pub granularity: Granularity,
    /// The most bytes in a second; 0 is no limit.
    pub speed: u64,
    /// What becomes of errors of the source.
    pub on_source_error: ErrorPolicy,
    /// What becomes of errors of the target.
    pub on_target_error: ErrorPolicy,
    /// The most bytes of memory for what is copied, rounded up to one granule; 0 is what the engine thinks best.
    pub memory: u64,
    /// The node whose users go on on the target: the source, or one below that shows the same bytes through filters.
    pub replaces: Option<String>,
    /// The name of the filter on the source.
    pub filter: Option<String>,
    /// All of it is compared before it is told that source and target are equal; only with
    /// [`MirrorMode::WriteBlocking`].
    pub is_verified: bool,
}

impl DaemonState {
    /// Begins a mirror. Nothing was begun if it fails. Blocks, as long as the longest request in flight, or 30 seconds.
    pub fn start_mirror(
        &mut self,
        options: &MirrorOptions,
        observer: &Arc<dyn JobObserver>,
    ) -> Result<(), BlockJobError> {
        let MirrorOptions { id, source, target, .. } = options;
        if options.sync != MirrorSync::Commit {
            return self.begin_mirror(options, observer);
        }
        self.check_chain(source, target)?;
        let bytes = self.graph.node(source)?.size().0.0;
        self.begin_on((id, target, bytes), |state| state.begin_mirror(options, observer))
    }

    fn begin_mirror(
        &mut self,
        options: &MirrorOptions,
        observer: &Arc<dyn JobObserver>,
    ) -> Result<(), BlockJobError> {
        let MirrorOptions { id, source, target, .. } = options;
        let bytes = self.check_mirror(source, target)?;
        let replaced = options.replaces.as_deref().unwrap_or(source);
        self.check_replaced((source, target), replaced)?;
        let (scan, role) = match options.sync {
            MirrorSync::Top => (Some(ScanFilter::AllocatedAbove(1)), ChildRole::JobTarget),
            MirrorSync::Full => (None, ChildRole::JobTarget),
            MirrorSync::New => (None, self.graph.model().role_of_target(target, source)),
            MirrorSync::Commit => {
                let depth = self.check_chain(source, target)?;
                (Some(ScanFilter::AllocatedAbove(depth)), ChildRole::JobBase)
            }
        };
        let (from, to) = (self.graph.node(source)?, self.graph.node(target)?);
        let source_claim = from.claim(Rights::of_user(Access::ReadOnly))?;
        let target_claim = to.claim(WRITES)?;
        let dirty = DirtyBitmap::new(from.size(), options.granularity)?;
        if options.sync == MirrorSync::Full {
            dirty.set_all();
        }
        let backlog = CopyBacklog::new(dirty)?;
        let mut iothreads = self.iothreads_for_job(source)?;
        let limits = if options.memory == 0 {
            BacklogLimits::DEFAULT
        } else {
            let granularity = options.granularity.bytes();
            let (workers, limits) =
                BacklogLimits::of_memory(options.memory, granularity, iothreads.len());
            iothreads.truncate(workers);
            limits
        };
        let engine = (scan, limits, Arc::clone(&self.clock));
        let copy = mirror_copy(options, bytes, &backlog, observer, engine)?;
        let edges =
            vec![edge("source", ChildRole::JobSource, source), edge("target", role, target)];
        let name = JobFilter::on(source, options.filter.as_ref(), "mirror_top", BACKING);
        let is_commit = options.sync == MirrorSync::Commit;
        let name = name.map(|name| JobFilter { is_commit, ..name });
        let nodes = self.graph.add_job(id, edges, name)?;
        let filter = self.put_mirror(options, &backlog, &nodes[1]);
        let filter = filter.inspect_err(|_| self.graph.remove_job(id))?;
        let (target, replaced) = (target.clone(), replaced.to_owned());
        self.jobs.insert(
            id.clone(),
            BlockJob::new(
                copy,
                JobWork::Mirror { filter, target, replaced },
                source,
                vec![target_claim, source_claim],
            ),
        );
        self.start_workers(id, &nodes, &iothreads, observer)
    }

    /// Whether one node can be mirrored to the other; gives the size.
    fn check_mirror(&self, source: &str, target: &str) -> Result<u64, BlockJobError> {
        if source == target {
            return Err(BlockJobError::Itself);
        }
        let (wanted, found) = self.check_ends(source, target)?;
        self.check_root(source, target)?;
        if found < wanted {
            let (target, node) = (target.to_owned(), source.to_owned());
            return Err(BlockJobError::TooSmall { target, found, node, wanted });
        }
        Ok(wanted)
    }

    /// Whether what stands on a node may go on on a copy of the source: it must show the source's bytes, and nothing else.
    fn check_replaced(
        &self,
        (source, target): (&str, &str),
        replaced: &str,
    ) -> Result<(), BlockJobError> {
        self.graph.node(replaced)?;
        let (mut at, mut way) = (source, Vec::new());
        while at != replaced {
            let Some(below) = self.graph.model().filtered(at) else {
                let (mirrored, node) = (source.to_owned(), replaced.to_owned());
                return Err(BlockJobError::Replaced { node, mirrored });
            };
            way.push((at, below));
            at = below;
        }
        for (above, below) in way {
            // What others write there passes no filter of the job.
            let is_other =
                |(user, _): &(NodeUser, String)| *user != NodeUser::Node(above.to_owned());
            let users = self.graph.model().users_of(below);
            if let Some((user, _)) = users.into_iter().find(is_other) {
                let (node, mirrored) = (below.to_owned(), source.to_owned());
                return Err(BlockJobError::ReplacedInUse { node, user, mirrored });
            }
        }
        self.check_root(replaced, target)
    }

    /// Whether no image but the target stands on a node as its backing file.
    fn check_root(&self, node: &str, target: &str) -> Result<(), BlockJobError> {
        let is_backing = |(user, key): &(NodeUser, String)| {
            matches!(user, NodeUser::Node(name) if name != target) && key == BACKING
        };
        if self.graph.model().users_of(node).iter().any(is_backing) {
            return Err(BlockJobError::NoRoot(node.to_owned()));
        }
        Ok(())
    }

    fn put_mirror(
        &mut self,
        options: &MirrorOptions,
        backlog: &Arc<CopyBacklog>,
        target: &Arc<dyn Node>,
    ) -> Result<Arc<MirrorNode>, GraphChangeError> {
        let (target, backlog) = (Arc::clone(target), Arc::clone(backlog));
        let mut made = None;
        self.put_filter(&options.source, FilterKind::Job, |child| {
            let filter = Arc::new(MirrorNode::new(child, target, backlog, options.mode));
            made = Some(Arc::clone(&filter));
            filter
        })?;
        Ok(made.expect("the filter was made"))
    }

    /// What is written to the source of a mirror is on the target before its client is told, from now on.
    pub fn synchronize_mirror(&self, id: &str) {
        if let Some(BlockJob { work: JobWork::Mirror { filter, .. }, .. }) = self.jobs.get(id) {
            filter.set_mode(MirrorMode::WriteBlocking);
        }
    }

    /// What is written to the source of a mirror is on the target before its client is told, from now on: so they become
    /// equal, and stay so.
    pub fn converge_mirror(&self, id: &str) {
        if let Some(BlockJob { copy, work: JobWork::Mirror { filter, .. }, .. }) = self.jobs.get(id)
        {
            filter.set_mode(MirrorMode::WriteBlocking);
            copy.hurry();
        }
    }

    /// What a mirror has compared, if it was told to and has begun with it.
    pub fn compared_by_mirror(&self, id: &str) -> Option<ComparedBytes> {
        let compared = self.jobs.get(id)?.copy.compared();
        (compared.bytes > 0).then_some(compared)
    }

    /// Whether what is written to the source of a mirror is on the target before its client is told.
    pub fn is_mirror_synchronous(&self, id: &str) -> bool {
        match self.jobs.get(id).map(|job| &job.work) {
            Some(JobWork::Mirror { filter, .. }) => filter.mode() == MirrorMode::WriteBlocking,
            Some(JobWork::Commit { .. } | JobWork::Stream { .. } | JobWork::Backup(_)) | None => {
                false
            }
        }
    }

    /// Whether an image may get another backing file: a restart would have to know of it.
    pub fn check_chain_switch(&self, node: &str, policy: StatePolicy) -> Result<(), BlockJobError> {
        let above = self.graph.model().exports_above(&NodeUser::Node(node.to_owned()));
        Ok(self.check_kept(self.state_file.is_some(), policy, &above)?)
    }

    /// Whether a mirror may move the users of its source: a restart would have to know of it.
    pub fn check_mirror_switch(&self, id: &str, policy: StatePolicy) -> Result<(), BlockJobError> {
        let Some(job) = self.jobs.get(id) else { return Ok(()) };
        self.check_chain_switch(&job.source, policy)
    }

    /// Ends a mirror whose target is to be equal: the users of the source go on on the target, or stay. With
    /// [`GraphChangeError::NotEqual`] nothing has changed, and the copy goes on: try again when it says that they are equal.
    /// After any other error it goes on as well. Blocks, as long as the longest request in flight, or 30 seconds.
    pub fn finish_mirror(&mut self, id: &str, end: MirrorEnd) -> Result<(), BlockJobError> {
        let Some(job) = self.jobs.get(id) else { return Ok(()) };
        let JobWork::Mirror { target, replaced, .. } = &job.work else { return Ok(()) };
        let (source, target, replaced) = (job.source.clone(), target.clone(), replaced.clone());
        let copy = Arc::clone(&job.copy);
        let backlog = &copy.backlog().expect("a mirror has one").backlog;
        let is_equal = || {
            let dirty = backlog.dirty().next_dirty(0..u64::MAX);
            if dirty.is_none() { Ok(()) } else { Err(GraphChangeError::NotEqual) }
        };
        is_equal()?;
        if end == MirrorEnd::Switch && replaced != source {
            self.check_replaced((&source, &target), &replaced)?;
        }
        // Almost all of it while guests run.
        let failed = |source| BlockJobError::Flush { target: target.clone(), source };
        job.flush().map_err(failed)?;
        let change = match end {
            MirrorEnd::Switch => {
                let change = self.graph.switch(id, &replaced, &target);
                let change = change.map_err(GraphChangeError::from)?;
                if replaced == source {
                    change
                } else {
                    // The source stays above the target, and must not mirror to it.
                    change.and(self.graph.take_filter(&source, FilterKind::Job)?)
                }
            }
            MirrorEnd::Stay => self.graph.take_filter(&source, FilterKind::Job)?,
        };
        let above = change.exports.clone();
        let to = Arc::clone(self.graph.node(&target)?);
        let mut state_file = match end {
            MirrorEnd::Switch => self.state_file.take(),
            MirrorEnd::Stay => None,
        };
        let drained = || {
            is_equal()?;
            let export = target.clone();
            to.flush().map_err(|source| GraphChangeError::Flush { export, source })
        };
        let opened = self.jobs[id].opened.clone().filter(|_| end == MirrorEnd::Switch);
        let noted = opened.map(|node| self.graph.note_access(&node, Access::ReadWrite));
        self.jobs.get_mut(id).expect("it is there").is_ending = true;
        let result = self.carry_out(change, state_file.as_mut(), &mut WhenDrained::new(drained));
        if end == MirrorEnd::Switch {
            self.state_file = state_file;
        }
        if result.is_err() {
            self.jobs.get_mut(id).expect("it is there").is_ending = false;
            noted.into_iter().for_each(|before| self.graph.restore_access(before));
        }
        result?;
        self.forget_mirror(id, end);
        if end == MirrorEnd::Switch {
            self.is_changed = true;
            let disks = self.exports.iter().map(|export| export.disk());
            disks.filter(|disk| above.contains(&disk.id)).for_each(|disk| disk.size.review());
            tracing::info!(
                "block job '{id}': what stood on node '{replaced}' stands on '{target}'"
            );
        }
        Ok(())
    }

    /// Lets go of a mirror that has ended.
    fn forget_mirror(&mut self, id: &str, end: MirrorEnd) {
        let Some(mut job) = self.jobs.remove(id) else { return };
        job.stop_work();
        self.graph.remove_job(id);
        if self.graph.has_filter(&job.source, FilterKind::Job).unwrap_or(false) {
            // Nobody stands on the source any more.
            if let Err(error) = self.take_filter(&job.source, FilterKind::Job) {
                tracing::error!("block job '{id}': {}", host::chain_of(&error));
            }
        }
        let opened = job.opened.take().filter(|_| end == MirrorEnd::Stay);
        drop(job);
        opened.iter().for_each(|node| self.protect(node));
        self.keep_end(id);
    }
}

/// An edge from a job to a node.
pub(super) fn edge(key: &str, role: ChildRole, node: &str) -> Edge {
    Edge { key: key.to_owned(), role, node: node.to_owned() }
}

/// What becomes of the users of a mirror's source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MirrorEnd {
    /// They go on on the target.
    Switch,
    /// They stay: the target is what the source was at this moment.
    Stay,
}

fn mirror_copy(
    options: &MirrorOptions,
    bytes: u64,
    backlog: &Arc<CopyBacklog>,
    observer: &Arc<dyn JobObserver>,
    (scan, limits, clock): (Option<ScanFilter>, BacklogLimits, Arc<dyn block::Clock>),
) -> Result<Arc<CopyJob>, BitmapError> {
    let settings = CopySettings {
        action: CopyAction::Copy,
        bytes,
        target_bytes: bytes,
        target: TargetContent::Unknown,
        zero_unit: ZERO_UNIT,
        target_unit: 1,
        copied: CopiedSource::Kept,
        bytes_per_second: Some(options.speed).filter(|speed| *speed > 0),
    };
    let backlog = BacklogCopy {
        backlog: Arc::clone(backlog),
        scan,
        end: BacklogEnd::WhenCancelled,
        on_source_error: options.on_source_error,
        on_target_error: options.on_target_error,
        limits,
        observer: Arc::new(CopyNews(Arc::clone(observer))),
    };
    let copy = CopyJob::of_backlog(settings, backlog, clock);
    if options.is_verified {
        copy.verify_when_equal()?;
    }
    Ok(copy)
}
