//! Nodes that are made active or inactive while guests are served (`blockdev-set-active`).
//!
//! An export of an active node has its claim at any time, one of an inactive node while it serves rings.
//!
//! Invariants: all nodes and claims change, or none; no guest that may write loses its image.
//! Threads: the first one; sessions start and stop rings meanwhile.

use std::time::Duration;

use block::{Access, LogRateLimit, Rights};
use exports::{ActivateError, InactivateError, WaitPolicy};
use graph::{Activity, ModelError};

use super::{ControlError, DaemonState, GraphChangeError, NoWait};
use crate::running_export::RunningExport;

/// Nodes could not be made active or inactive: all are as they were.
#[derive(Debug, thiserror::Error)]
pub enum ActivityError {
    /// It may not be.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A guest may write to it.
    #[error("Failed to inactivate node: export '{0}' is writable and serves a guest")]
    Served(String),
    /// A job uses it.
    #[error("Failed to inactivate node: block job '{0}' uses it")]
    Job(String),
    /// Its image cannot be had, or is not what it was.
    #[error("Failed to activate node")]
    Activate(#[from] ActivateError),
    /// What was written might be lost.
    #[error("Failed to inactivate node")]
    Inactivate(#[from] InactivateError),
    /// An image that no export uses cannot be had, or is not what it was.
    #[error("Failed to activate node")]
    Unused(#[from] GraphChangeError),
}

impl DaemonState {
    /// Makes a node active, with all below it, or inactive, with what is below it alone; without a name, all nodes. Kept.
    /// What is read from files is read anew when it becomes active. A lock that another process has is not waited for.
    pub fn set_activity(&mut self, node: Option<&str>, to: Activity) -> Result<(), ControlError> {
        let before = match to {
            Activity::Active => Activity::Inactive,
            Activity::Inactive => Activity::Active,
        };
        let model = self.graph.model();
        let nodes = model.changing_activity(node, to)?;
        self.change_claims(&nodes, to)?;
        self.graph.set_activity(&nodes, to);
        self.keep().inspect_err(|_| {
            self.graph.set_activity(&nodes, before);
            if let Err(error) = self.change_claims(&nodes, before) {
                let chain = host::chain_of(&error);
                tracing::error!("what failed could not be taken back: {chain}");
            }
        })
    }

    /// Has the exports of these nodes hold them always, or only while they serve rings.
    fn change_claims(&self, nodes: &[String], to: Activity) -> Result<(), ActivityError> {
        let of_jobs = |node: &String| {
            let user = graph::NodeUser::Node(node.clone());
            self.graph.model().jobs_above(&user).pop_first()
        };
        if to == Activity::Inactive
            && let Some(job) = nodes.iter().find_map(of_jobs)
        {
            return Err(ActivityError::Job(job));
        }
        let is_above = |export: &&RunningExport| {
            let root = self.graph.root(&export.disk().id);
            root.is_some_and(|root| nodes.iter().any(|node| node == root))
        };
        let above: Vec<&RunningExport> = self.exports.iter().filter(is_above).collect();
        let is_written = |export: &&&RunningExport| {
            export.disk().access == Access::ReadWrite && export.disk().claim.is_serving()
        };
        let written = above.iter().find(is_written).filter(|_| to == Activity::Inactive);
        if let Some(export) = written {
            return Err(ActivityError::Served(export.disk().id.clone()));
        }
        if to == Activity::Active {
            nodes.iter().try_for_each(|node| self.refresh_unused(node))?;
        }
        for (place, export) in above.iter().enumerate() {
            if let Err(error) = change_claim(export, to) {
                above[..place].iter().for_each(|export| take_back(export, to));
                return Err(error);
            }
        }
        Ok(())
    }

    /// Looks anew at what another process may have changed in a node that no export uses.
    fn refresh_unused(&self, node: &str) -> Result<(), ActivityError> {
        let user = graph::NodeUser::Node(node.to_owned());
        if !self.graph.model().exports_above(&user).is_empty() {
            return Ok(());
        }
        let found = self.graph.node(node)?;
        let claim = found.claim(Rights::of_user(Access::ReadOnly));
        let claim = claim.map_err(GraphChangeError::from)?;
        let failed = |source| ActivateError::Refresh { node: node.to_owned(), source };
        Ok(claim.refresh().map_err(failed)?)
    }
}

fn change_claim(export: &RunningExport, to: Activity) -> Result<(), ActivityError> {
    let claim = &export.disk().claim;
    match to {
        Activity::Active => {
            let rate = &mut LogRateLimit::default();
            let policy = &mut WaitPolicy { limit: Duration::ZERO, wait: &mut NoWait, rate };
            Ok(claim.hold(policy)?)
        }
        Activity::Inactive => Ok(claim.hold_while_serving()?),
    }
}

fn take_back(export: &RunningExport, done: Activity) {
    let before = match done {
        Activity::Active => Activity::Inactive,
        Activity::Inactive => Activity::Active,
    };
    if let Err(error) = change_claim(export, before) {
        tracing::error!("export {}: {}", export.disk().id, host::chain_of(&error));
    }
}
