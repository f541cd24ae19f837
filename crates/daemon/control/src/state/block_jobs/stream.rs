//! A stream: an image gets what backing files below it have, and stands on another one, or on none.
//!
//! Invariants: what is copied never covers what is written meanwhile: all is copied by a copy-on-read filter, below all users
//! of the image, which knows of both. The header names the new backing file before the graph is changed.

use std::sync::Arc;

use block::{Access, Permission, Permissions, Rights};
use copy::{CopyAction, ErrorPolicy, ScanFilter};
use graph::{ChildRole, FilterKind, JobFilter};
use layers::{CopyOnReadNode, CopySource};

use super::mirror::edge;
use super::{BackingName, BlockJob, BlockJobError, JobObserver, JobWork, NewBacking};
use crate::state::DaemonState;

/// What a stream does with the image: it writes what is there already.
const COPIES: Rights = Rights {
    uses: Permissions::READS.and(Permission::WriteUnchanged),
    shares: Permissions::ALL.without(Permissions::CHANGES),
};

/// A stream that is to be begun.
#[derive(Debug, Clone)]
pub struct StreamOptions {
    /// Its id.
    pub id: String,
    /// The image.
    pub top: String,
    /// The backing file that it is to stand on; without one, on none.
    pub base: Option<String>,
    /// What the header of the image is to name.
    pub backing: BackingName,
    /// The most bytes in a second; 0 is no limit.
    pub speed: u64,
    /// What becomes of errors.
    pub on_error: ErrorPolicy,
    /// The name of the filter on the image.
    pub filter: Option<String>,
}

impl DaemonState {
    /// Begins a stream. Nothing was begun if it fails. Blocks, as long as the longest request in flight, or 30 seconds.
    pub fn start_stream(
        &mut self,
        options: &StreamOptions,
        observer: &Arc<dyn JobObserver>,
    ) -> Result<(), BlockJobError> {
        let StreamOptions { id, top, base, .. } = options;
        let between = self.check_stream(top, base.as_deref())?;
        self.begin_on((id, top, 0), |state| state.begin_stream(options, between, observer))
    }

    fn begin_stream(
        &mut self,
        options: &StreamOptions,
        between: Option<u8>,
        observer: &Arc<dyn JobObserver>,
    ) -> Result<(), BlockJobError> {
        let StreamOptions { id, top, base, .. } = options;
        let node = self.graph.node(top)?;
        let (size, claims) = (node.size(), vec![node.claim(COPIES)?]);
        let (scan, limits) = (ScanFilter::Below(between), (options.speed, options.on_error));
        let copy = self.chain_copy((CopyAction::Populate, scan), size, limits, observer)?;
        let iothreads = self.iothreads_for_job(top)?;
        let source = between.map_or(CopySource::All, CopySource::Nearest);
        self.put_filter(top, FilterKind::Job, |child| {
            Arc::new(CopyOnReadNode::new(top, child, Access::ReadWrite, source))
        })?;
        let name = JobFilter::on(top, options.filter.as_ref(), "copy-on-read", "file");
        let edges = vec![edge("source", ChildRole::JobSource, top)];
        let nodes = match self.graph.add_job(id, edges, name) {
            Ok(nodes) => nodes,
            Err(error) => {
                self.take_filter(top, FilterKind::Job)?;
                return Err(error.into());
            }
        };
        let backing =
            NewBacking { image: top.clone(), node: base.clone(), name: options.backing.clone() };
        let job = BlockJob::new(copy, JobWork::Stream { backing }, top, claims);
        self.jobs.insert(id.clone(), job);
        self.start_workers(id, &nodes, &iothreads, observer)
    }

    /// Whether an image can get what is above a backing file of it; gives how many backing files that are, or none if it is
    /// all.
    fn check_stream(&self, top: &str, base: Option<&str>) -> Result<Option<u8>, BlockJobError> {
        let info = self.graph.node_info(top)?;
        if info.image.is_none() {
            return Err(BlockJobError::NoImage(top.to_owned()));
        }
        let model = self.graph.model();
        let chain = model.backing_chain(top);
        chain.iter().try_for_each(|node| model.check_no_job(node))?;
        let Some(base) = base else { return Ok(None) };
        let not_in_chain =
            || BlockJobError::NotInChain { base: base.to_owned(), top: top.to_owned() };
        let depth = chain.iter().position(|node| node == base).filter(|depth| *depth > 0);
        let between = u8::try_from(depth.ok_or_else(not_in_chain)? - 1);
        Ok(Some(between.map_err(|_too_deep| not_in_chain())?))
    }
}
