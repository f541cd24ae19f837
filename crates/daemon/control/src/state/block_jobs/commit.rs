//! A commit: what images of a chain have is copied into a backing file below them, which takes their place.
//!
//! Invariants: nobody but the chain sees the backing file, so what is written there is hidden by those that it comes from
//! until they are gone. The one above them names the backing file in its header before the graph is changed.
//! Not here: a commit of the uppermost image, which is a mirror to its backing file (`mirror`).

use std::sync::Arc;

use bitmaps::{CopyBacklog, DirtyBitmap, Granularity};
use block::{Access, DiskSize, Rights};
use copy::{
    BacklogCopy, BacklogEnd, BacklogLimits, CopiedSource, CopyAction, CopyJob, CopySettings,
    ErrorPolicy, ScanFilter, TargetContent,
};
use graph::{ChildRole, Edge, JobFilter, NodeUser};

use super::mirror::{WRITES, ZERO_UNIT, edge};
use super::{
    BACKING, BackingName, BlockJob, BlockJobError, CopyNews, JobObserver, JobWork, NewBacking,
};
use crate::state::DaemonState;

/// A commit that is to be begun.
#[derive(Debug, Clone)]
pub struct CommitOptions {
    /// Its id.
    pub id: String,
    /// The uppermost image that is copied; one stands on it.
    pub top: String,
    /// The backing file that it is copied into.
    pub base: String,
    /// What the header of the image above the uppermost is to name.
    pub backing: BackingName,
    /// The most bytes in a second; 0 is no limit.
    pub speed: u64,
    /// What becomes of errors.
    pub on_error: ErrorPolicy,
    /// How the filter is called that QEMU would put on the uppermost image.
    pub filter: Option<String>,
}

impl DaemonState {
    /// Begins a commit. Nothing was begun if it fails. Blocks.
    pub fn start_commit(
        &mut self,
        options: &CommitOptions,
        observer: &Arc<dyn JobObserver>,
    ) -> Result<(), BlockJobError> {
        let CommitOptions { id, top, base, .. } = options;
        let depth = self.check_chain(top, base)?;
        let overlay = self.overlay_of(top)?;
        let bytes = self.graph.node(top)?.size().0.0;
        self.begin_on((id, base, bytes), |state| {
            state.begin_commit(options, (depth, overlay), observer)
        })
    }

    fn begin_commit(
        &mut self,
        options: &CommitOptions,
        (depth, overlay): (u8, String),
        observer: &Arc<dyn JobObserver>,
    ) -> Result<(), BlockJobError> {
        let CommitOptions { id, top, base, .. } = options;
        let (from, to) = (self.graph.node(top)?, self.graph.node(base)?);
        let claims = vec![to.claim(WRITES)?, from.claim(Rights::of_user(Access::ReadOnly))?];
        let (size, scan) = (from.size(), ScanFilter::AllocatedAbove(depth));
        let limits = (options.speed, options.on_error);
        let copy = self.chain_copy((CopyAction::Copy, scan), size, limits, observer)?;
        let iothreads = self.iothreads_for_job(top)?;
        let edges = vec![
            edge("source", ChildRole::JobSource, top),
            edge("target", ChildRole::JobBase, base),
        ];
        let name = JobFilter::on(top, options.filter.as_ref(), "commit_top", BACKING);
        let name = name.map(|name| JobFilter { is_commit: true, ..name });
        let nodes = self.graph.add_job(id, edges, name)?;
        let backing =
            NewBacking { image: overlay, node: Some(base.clone()), name: options.backing.clone() };
        let job = BlockJob::new(copy, JobWork::Commit { backing }, top, claims);
        self.jobs.insert(id.clone(), job);
        self.start_workers(id, &nodes, &iothreads, observer)
    }

    /// The copying of a job in a chain of backing files, which ends by itself: what is done, and with which bytes; how fast, and
    /// what becomes of errors.
    pub(super) fn chain_copy(
        &self,
        (action, scan): (CopyAction, ScanFilter),
        size: DiskSize,
        (speed, on_error): (u64, ErrorPolicy),
        observer: &Arc<dyn JobObserver>,
    ) -> Result<Arc<CopyJob>, BlockJobError> {
        let backlog = CopyBacklog::new(DirtyBitmap::new(size, Granularity::DEFAULT)?)?;
        let settings = CopySettings {
            action,
            bytes: size.0.0,
            target_bytes: size.0.0,
            target: TargetContent::Unknown,
            zero_unit: ZERO_UNIT,
            target_unit: 1,
            copied: CopiedSource::Kept,
            bytes_per_second: Some(speed).filter(|speed| *speed > 0),
        };
        let backlog = BacklogCopy {
            backlog,
            scan: Some(scan),
            end: BacklogEnd::WhenEmpty,
            on_source_error: on_error,
            on_target_error: on_error,
            limits: BacklogLimits::DEFAULT,
            observer: Arc::new(CopyNews(Arc::clone(observer))),
        };
        Ok(CopyJob::of_backlog(settings, backlog, Arc::clone(&self.clock)))
    }

    /// Whether what is above a backing file may be copied into it: nobody else sees it. Gives how many images are.
    pub(super) fn check_chain(&self, top: &str, base: &str) -> Result<u8, BlockJobError> {
        let model = self.graph.model();
        let not_in_chain =
            || BlockJobError::NotInChain { base: base.to_owned(), top: top.to_owned() };
        let (mut above, mut depth) = (top, 0_u8);
        for Edge { node, role, .. } in model.chain_edges(top) {
            model.check_no_job(node)?;
            let is_other =
                |(user, _): &(NodeUser, String)| *user != NodeUser::Node(above.to_owned());
            if let Some((user, _)) = model.users_of(node).into_iter().find(is_other) {
                let (node, base) = (node.clone(), base.to_owned());
                return Err(BlockJobError::OtherUser { node, user, base });
            }
            if *role == ChildRole::Backing {
                depth = depth.checked_add(1).ok_or_else(not_in_chain)?;
                if node == base {
                    return Ok(depth);
                }
            }
            above = node;
        }
        Err(not_in_chain())
    }

    /// The image that has a node as its backing file, alone.
    fn overlay_of(&self, top: &str) -> Result<String, BlockJobError> {
        match &self.graph.model().users_of(top)[..] {
            [(NodeUser::Node(overlay), key)] if key == BACKING => Ok(overlay.clone()),
            _ => Err(BlockJobError::NoImage(top.to_owned())),
        }
    }
}
