//! Changes the graph below exports while their guests run.
//!
//! Prepare: what would go wrong is looked for first; what the exports above need of the new nodes is
//! claimed, so that nobody else can have it; what was written is made durable; everything that stands above is
//! drained on all iothreads; the nodes are put into their places; what the exports need of the graph with them is
//! claimed. Commit: lanes are opened again, on all iothreads or, if one cannot, on the old nodes; requests go on; what
//! the exports no longer need is given back. Abort: the old nodes are put back, and requests go on there.
//!
//! Invariants: a change that fails leaves the graph, the claims and the guests as they were. No export is
//! without its claim at any time, and none is in flight on a node without one. A file may take the place of another
//! one on the same image, opened in another way: its locks are then never missing, and both are never written at once.
//! Threads: the first one; sessions go on meanwhile and wait at most for the drain.

mod resize;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use block::{Access, Child, Claim, ClaimError, LaneError, Node, ResizeError, SystemClock};
use exports::{ClaimLock, ExportedDisk};
use graph::{
    Blockdev, EdgeChange, FilterKind, Graph, GraphChange, GraphChangeRefusal, ModelError, NodeUser,
};
use iothread::{DrainTimeout, DrainedSection};
use kernel_io::{FileReplacement, FileReplacementGuard};

use host::chain_of;

use super::block_jobs::JobsRest;
use super::{DaemonState, StatePolicy};
use crate::fault_point::{CommandStep, reached};
use crate::state_file::{StateFile, StateFileError};

/// How long a change waits for requests in flight: as long as for a lock.
pub(super) const DRAIN_MAX: Duration = Duration::from_secs(30);

/// The graph could not be changed: it is as it was.
#[derive(Debug, thiserror::Error)]
pub enum GraphChangeError {
    /// It may not be.
    #[error(transparent)]
    Fault(#[from] GraphChangeRefusal),
    /// It may not be.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The next start would not know of it.
    #[error(
        "export '{0}' would be served from its old node after a restart, because this daemon keeps no state; \
         start it with --state FILE, or say ringloom-volatile=true"
    )]
    NotKept(String),
    /// It cannot be kept for the next start.
    #[error(transparent)]
    State(#[from] StateFileError),
    /// A session is waiting for the image.
    #[error("export {0} is being activated or inactivated just now")]
    Activation(String),
    /// The new node cannot be had.
    #[error("export {export}")]
    Claim {
        /// The export that needs it.
        export: String,
        /// Why.
        #[source]
        source: ClaimError,
    },
    /// What is in flight on a disk that hangs cannot be waited for.
    #[error(transparent)]
    Busy(#[from] DrainTimeout),
    /// What was written might be lost with the old node.
    #[error("export {export}: a flush failed")]
    Flush {
        /// The export.
        export: String,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The size of the file that takes the place of another one could not be had.
    #[error("{}: cannot ask for its size", path.display())]
    Measure {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// Somebody uses the node who does not allow that.
    #[error(
        "node '{node}' is used by {user}, which does not allow another size (uses node '{node}' as '{key}' child)"
    )]
    SizeInUse {
        /// The node.
        node: String,
        /// Who uses it.
        user: NodeUser,
        /// As what.
        key: String,
    },
    /// A guest knows the size.
    #[error(
        "node '{node}' has {bytes} bytes and is below export '{export}': it can only grow, not shrink to {wanted}"
    )]
    Shrunk {
        /// The node.
        node: String,
        /// Its size.
        bytes: u64,
        /// The export.
        export: String,
        /// The size that was asked for.
        wanted: u64,
    },
    /// The node could not be given another size.
    #[error(transparent)]
    Resize(#[from] ResizeError),
    /// The node cannot be used for that.
    #[error(transparent)]
    NodeClaim(#[from] ClaimError),
    /// A job cannot rest, which it has to do while nodes are changed that it uses.
    #[error("block job '{0}' still copies after {limit} s", limit = DRAIN_MAX.as_secs())]
    BusyJob(String),
    /// What takes the place of another disk is not equal to it yet.
    #[error("source and target are not equal yet")]
    NotEqual,
    /// An iothread cannot use the new node.
    #[error("iothread {iothread}")]
    Lane {
        /// Which one.
        iothread: String,
        /// Why.
        #[source]
        source: LaneError,
    },
}

/// What is done at the instant of a change, when nothing is in flight on some nodes.
pub trait AtOnce {
    /// Why it could not be done, or the change.
    type Error: From<GraphChangeError>;

    /// The nodes on which nothing is in flight then, besides those that are changed.
    fn nodes(&self) -> Vec<String>;

    /// Does it, or nothing of it.
    fn apply(&mut self) -> Result<(), Self::Error>;

    /// The change failed: it is taken back, before anything is in flight again.
    fn take_back(&mut self);
}

/// A question that is asked once when nothing is in flight any more.
pub(super) struct WhenDrained<F>(Option<F>);

impl<F: FnOnce() -> Result<(), GraphChangeError>> WhenDrained<F> {
    pub(super) fn new(ask: F) -> Self {
        Self(Some(ask))
    }
}

impl<F: FnOnce() -> Result<(), GraphChangeError>> AtOnce for WhenDrained<F> {
    type Error = GraphChangeError;

    fn nodes(&self) -> Vec<String> {
        Vec::new()
    }

    fn apply(&mut self) -> Result<(), GraphChangeError> {
        self.0.take().map_or(Ok(()), |ask| ask())
    }

    fn take_back(&mut self) {}
}

/// A prepared change of the graph: new nodes are in place and nothing is in flight. Dropped without commit, it is
/// rolled back.
#[must_use = "dropped, it is taken back"]
struct GraphTransaction<'a> {
    change: Option<GraphChange>,
    // Dropped in this order, once the places are as they were: requests go on, and what was claimed for the change is
    // given back.
    drained: Option<DrainedSection>,
    _rest: JobsRest,
    above: Vec<AffectedExport<'a>>,
    _hand_over: FileReplacementGuard<'a>,
    graph: &'a mut Graph,
}

/// An export above a change of the graph, with its claims before and after.
struct AffectedExport<'a> {
    disk: &'a ExportedDisk,
    held: ClaimLock<'a>,
    /// What is held of the new nodes besides.
    new_claims: Vec<Claim>,
    /// What is held in the graph as it is with the change.
    after: Option<Claim>,
}

impl AffectedExport<'_> {
    fn claim(&mut self) -> &mut Option<Claim> {
        self.held.claim()
    }

    fn export(&self) -> String {
        self.disk.id.clone()
    }

    fn flush(&mut self) -> Result<(), GraphChangeError> {
        let export = self.export();
        match self.claim() {
            Some(claim) => {
                claim.flush().map_err(|source| GraphChangeError::Flush { export, source })
            }
            None => Ok(()),
        }
    }

    /// Claims what the new nodes need, if it holds anything, besides what it holds.
    fn claim_ahead(&mut self, change: &GraphChange) -> Result<(), GraphChangeError> {
        if self.claim().is_some() {
            for node in change.nodes() {
                let claimed = node.claim(self.disk.rights());
                let failed = |source| GraphChangeError::Claim { export: self.export(), source };
                self.new_claims.push(claimed.map_err(failed)?);
            }
        }
        Ok(())
    }

    /// Claims what the graph of now needs, besides what is held.
    fn claim_after(&mut self) -> Result<(), GraphChangeError> {
        let export = self.export();
        if self.claim().is_some() {
            let claimed = self.disk.node.claim(self.disk.rights());
            let failed = |source| GraphChangeError::Claim { export, source };
            self.after = Some(claimed.map_err(failed)?);
        }
        Ok(())
    }

    /// Holds what the graph of now needs, and no more.
    fn settle(&mut self) {
        if let Some(after) = self.after.take() {
            *self.claim() = Some(after);
            self.new_claims.clear();
        }
    }
}

impl<'a> AffectedExport<'a> {
    /// What there is to know of an export for a change below it.
    fn of(disk: &'a ExportedDisk) -> Result<Self, GraphChangeError> {
        let busy = || GraphChangeError::Activation(disk.id.clone());
        let held = disk.claim.lock().ok_or_else(busy)?;
        Ok(Self { disk, held, new_claims: Vec::new(), after: None })
    }
}

impl DaemonState {
    /// Puts nodes into places below nodes or exports while guests run, and makes nodes anew with other options: all of them, or none. Each must hold the same
    /// bytes as the one that it replaces; the graph does not look at them. What is kept for the next start is durable
    /// before any request reaches the new nodes. Blocks, as long as the longest request in flight, or 30 seconds.
    pub fn replace(
        &mut self,
        changes: &[EdgeChange],
        reopened: &[Blockdev],
        policy: StatePolicy,
    ) -> Result<(), GraphChangeError> {
        self.replace_at_once(changes, reopened, policy, &mut WhenDrained::new(|| Ok(())))
    }

    /// [`DaemonState::replace`], with what else is to be done at that instant; without any of it, if something fails.
    pub fn replace_at_once<A: AtOnce>(
        &mut self,
        changes: &[EdgeChange],
        reopened: &[Blockdev],
        policy: StatePolicy,
        more: &mut A,
    ) -> Result<(), A::Error> {
        let mut change = self.graph.change(changes, reopened).map_err(GraphChangeError::from)?;
        change.reach_to(&more.nodes());
        let is_kept = !changes.is_empty() || !reopened.is_empty();
        // What the state file does not know of is not written there.
        let mut state_file = if is_kept { self.state_file.take() } else { None };
        let result = self.replace_and_keep(change, policy, state_file.as_mut(), more);
        if is_kept {
            self.state_file = state_file;
        }
        result?;
        self.is_changed |= is_kept;
        changes.iter().for_each(tell_of);
        for blockdev in reopened {
            tracing::info!("node '{}': has other options now", blockdev.name_below("", ""));
        }
        Ok(())
    }

    fn replace_and_keep<A: AtOnce>(
        &mut self,
        change: GraphChange,
        policy: StatePolicy,
        state_file: Option<&mut StateFile>,
        more: &mut A,
    ) -> Result<(), A::Error> {
        self.check_kept(state_file.is_some(), policy, &change.exports)?;
        self.carry_out(change, state_file, more)
    }

    /// Whether what changes below these exports may be as it was after a restart, or would not be.
    pub(super) fn check_kept(
        &self,
        is_kept: bool,
        policy: StatePolicy,
        exports: &BTreeSet<String>,
    ) -> Result<(), GraphChangeError> {
        if is_kept || policy == StatePolicy::Volatile || exports.is_empty() {
            return Ok(());
        }
        let exports: Vec<&str> = exports.iter().map(String::as_str).collect();
        Err(GraphChangeError::NotKept(exports.join("', '")))
    }

    /// Makes a change, with what else is to be done at that instant, and keeps it if there is a state file.
    pub(super) fn carry_out<A: AtOnce>(
        &mut self,
        change: GraphChange,
        state_file: Option<&mut StateFile>,
        more: &mut A,
    ) -> Result<(), A::Error> {
        let Some(state_file) = state_file else {
            let transaction = self.prepare_change(change)?;
            more.apply()?;
            return Ok(transaction.commit(|| more.take_back())?);
        };
        let before = self.configuration().map_err(GraphChangeError::from)?;
        let nodes = self.graph.written_with(&change).map_err(GraphChangeError::from)?;
        let after = self.configuration_of(nodes, |id| change.root(id));
        let transaction = self.prepare_change(change)?;
        more.apply()?;
        reached(CommandStep::Swapped);
        let kept = state_file.write(&after);
        reached(CommandStep::Kept);
        // Before requests go on on the old nodes: the record may have reached the disk all the same.
        let mut take_back = || {
            more.take_back();
            if let Err(error) = state_file.write(&before) {
                tracing::error!(
                    "{}; a restart may find a change that was taken back",
                    chain_of(&error)
                );
            }
        };
        if let Err(error) = kept {
            take_back();
            return Err(GraphChangeError::from(error).into());
        }
        Ok(transaction.commit(take_back)?)
    }

    /// Has what is changed on a node recorded in its dirty bitmaps, if it is not yet. Blocks, as long as the longest request in
    /// flight, or 30 seconds.
    pub fn put_recorder(&mut self, node: &str) -> Result<(), GraphChangeError> {
        match self.graph.put_recorder(node)? {
            Some(change) => self.prepare_change(change)?.commit(|| {}),
            None => Ok(()),
        }
    }

    /// Puts a filter on a node that has none of that kind, below all its users, while guests run; no restart finds it.
    /// Blocks, as long as the longest request in flight, or 30 seconds.
    pub fn put_filter(
        &mut self,
        node: &str,
        kind: FilterKind,
        make: impl FnOnce(Arc<Child>) -> Arc<dyn Node>,
    ) -> Result<(), GraphChangeError> {
        let change = self.graph.put_filter(node, kind, make)?;
        self.prepare_change(change)?.commit(|| {})
    }

    /// Takes a filter away that was put on a node. Blocks, as long as the longest request in flight, or 30 seconds.
    pub fn take_filter(&mut self, node: &str, kind: FilterKind) -> Result<(), GraphChangeError> {
        let change = self.graph.take_filter(node, kind)?;
        self.prepare_change(change)?.commit(|| {})
    }

    /// Has a node, and what its bytes are in, take changes or not, while guests run; no restart finds it. Whether that is new.
    /// Blocks, as long as the longest request in flight, or 30 seconds.
    pub(super) fn change_access(
        &mut self,
        node: &str,
        access: Access,
    ) -> Result<bool, GraphChangeError> {
        let Some(change) = self.graph.with_access(node, access)? else { return Ok(false) };
        self.prepare_change(change)?.commit(|| {})?;
        Ok(true)
    }

    /// Does all of a change that can fail, but opening lanes.
    fn prepare_change(
        &mut self,
        change: GraphChange,
    ) -> Result<GraphTransaction<'_>, GraphChangeError> {
        let rest = self.rest_jobs(&change.jobs)?;
        let beside = self.served_beside(&change.jobs);
        let Self { exports, sources, graph, files, .. } = self;
        let hand_over = files.hand_over(change.successions.clone());
        let disks = exports.iter().map(|export| &**export.disk());
        let above = disks.filter(|disk| change.exports.contains(&disk.id));
        let mut above = above.map(AffectedExport::of).collect::<Result<Vec<_>, _>>()?;
        above.iter_mut().try_for_each(|above| above.claim_ahead(&change))?;
        // Almost all of it while guests run, and the rest, which is soon done, while they wait.
        let leaves_node = !change.leaves_nothing();
        if leaves_node {
            above.iter_mut().try_for_each(AffectedExport::flush)?;
        }
        let mut nodes: Vec<_> = above.iter().map(|above| Arc::clone(&above.disk.node)).collect();
        nodes.extend(graph.nodes_of_jobs(&change.jobs));
        let is_counted = |node: &Arc<dyn Node>| nodes.iter().any(|it| Arc::ptr_eq(it, node));
        let mut beside: Vec<_> = beside.into_iter().filter(|node| !is_counted(node)).collect();
        // Two jobs may be below one export.
        beside.sort_by_key(|node| Arc::as_ptr(node).addr());
        beside.dedup_by(|one, other| Arc::ptr_eq(one, other));
        nodes.extend(beside);
        let drained = Some(DrainedSection::begin(sources, nodes, DRAIN_MAX, &SystemClock)?);
        if leaves_node {
            above.iter_mut().try_for_each(AffectedExport::flush)?;
        }
        for FileReplacement { before, after } in &change.successions {
            let path = before.path().to_owned();
            after.measure().map_err(|source| GraphChangeError::Measure { path, source })?;
        }
        let mut transaction = GraphTransaction {
            change: Some(change),
            drained,
            _rest: rest,
            above,
            _hand_over: hand_over,
            graph,
        };
        transaction.swap();
        transaction.above.iter_mut().try_for_each(AffectedExport::claim_after)?;
        Ok(transaction)
    }
}

/// Says in the log that an edge has changed.
pub(super) fn tell_of(EdgeChange { user, key, by }: &EdgeChange) {
    match by {
        Some(by) => tracing::info!("{user}: its child '{key}' is node {by} now"),
        None => tracing::info!("{user}: it has no child '{key}' any more"),
    }
}

impl GraphTransaction<'_> {
    fn swap(&mut self) {
        if let Some(change) = &mut self.change {
            change.swap();
        }
    }

    /// Has requests go on on the new nodes. If a lane cannot be opened on one of them, the change is taken back.
    /// `taken_back` is called before they go on there.
    fn commit(mut self, taken_back: impl FnOnce()) -> Result<(), GraphChangeError> {
        let drained = self.drained.take().expect("it is drained until it is over");
        if let Err(refused) = drained.end() {
            taken_back();
            let (iothread, source) = (refused.iothread, refused.source);
            // If this fails too, it is said, and requests fail.
            self.drained = Some(refused.drained);
            return Err(GraphChangeError::Lane { iothread, source });
        }
        reached(CommandStep::GoingOn);
        let change = self.change.take().expect("a change is committed once");
        self.graph.changed(change);
        for above in &mut self.above {
            above.disk.size.set_files(self.graph.storage_files_below_export(&above.disk.id));
            above.settle();
        }
        Ok(())
    }
}

impl Drop for GraphTransaction<'_> {
    fn drop(&mut self) {
        self.swap();
    }
}
