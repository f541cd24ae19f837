//! Filters of jobs that were given names: they stand on a node without being one of the model, but their names are taken.
//!
//! Invariants: such a name is no node's as long as the job is there.

use super::GraphModel;
use super::fault::ModelError;

/// A filter that a job has put on a node, under a name of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobFilter {
    /// The name.
    pub name: String,
    /// How QEMU calls its driver.
    pub driver: &'static str,
    /// The node that it is on.
    pub node: String,
    /// The key under which it has the node.
    pub key: &'static str,
    /// The node that it writes besides.
    pub target: Option<String>,
    /// Whether what is above it may see other bytes below it meanwhile than from it.
    pub is_commit: bool,
}

impl JobFilter {
    /// One on that node, if it was given a name.
    pub fn on(
        node: &str,
        name: Option<&String>,
        driver: &'static str,
        key: &'static str,
    ) -> Option<Self> {
        let (name, node) = (name?.clone(), node.to_owned());
        Some(Self { name, driver, node, key, target: None, is_commit: false })
    }
}

impl GraphModel {
    /// Takes a name for the filter of a job that is to be added.
    pub(crate) fn name_filter(&mut self, job: &str, filter: JobFilter) -> Result<(), ModelError> {
        if self.nodes.contains_key(&filter.name) || self.is_filter_name(&filter.name) {
            return Err(ModelError::Duplicate { what: "node-name", name: filter.name });
        }
        self.job_filters.insert(job.to_owned(), filter);
        Ok(())
    }

    /// Whether the filter of a job has that name.
    pub(super) fn is_filter_name(&self, name: &str) -> bool {
        self.job_filters().any(|filter| filter.name == name)
    }

    /// The filters that have names.
    pub fn job_filters(&self) -> impl Iterator<Item = &JobFilter> {
        self.job_filters.values()
    }

    /// The filter with a name that is on a node.
    pub fn job_filter_on(&self, node: &str) -> Option<&JobFilter> {
        self.job_filters().find(|filter| filter.node == node)
    }
}
