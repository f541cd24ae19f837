//! Nodes that jobs write although they were opened to be read, or although they are too small: a backing file that is
//! committed into, an image whose header gets another name.
//!
//! Invariants: a node takes changes as long as its job needs it; the state file never says so, unless it stays: whoever is
//! started again opens it as it was. A backing file that has grown stays larger: what is new reads as zeroes there, as before.

use block::Access;
use graph::{ModelError, NodeUser};

use super::{BlockJobError, JobWork};
use crate::state::{DaemonState, GraphChangeError};

impl DaemonState {
    /// Has a node take changes, or be read only; whether that is new. Blocks, as long as the longest request in flight, or 30
    /// seconds.
    fn set_access(&mut self, node: &str, access: Access) -> Result<bool, GraphChangeError> {
        if !self.change_access(node, access)? {
            return Ok(false);
        }
        let what = match access {
            Access::ReadWrite => "is written",
            Access::ReadOnly => "is only read again",
        };
        tracing::info!("node '{node}': {what}");
        Ok(true)
    }

    /// Has a node take changes, and do something with it; afterwards, or if that fails, it is as it was.
    pub(in crate::state) fn while_writable<T, E: From<GraphChangeError>>(
        &mut self,
        node: &str,
        work: impl FnOnce(&mut Self) -> Result<T, E>,
    ) -> Result<T, E> {
        let is_new = self.set_access(node, Access::ReadWrite)?;
        let result = work(self);
        if is_new {
            self.protect(node);
        }
        result
    }

    /// Begins a job that writes to a node, which may have to take changes for that, and to have so many bytes.
    pub(super) fn begin_on(
        &mut self,
        (id, node, bytes): (&str, &str, u64),
        begin: impl FnOnce(&mut Self) -> Result<(), BlockJobError>,
    ) -> Result<(), BlockJobError> {
        let is_new = self.set_access(node, Access::ReadWrite)?;
        let begun = self.grow_base(node, bytes).and_then(|()| begin(self));
        match (begun, is_new) {
            (Ok(()), true) => {
                let job = self.jobs.get_mut(id).expect("it has begun");
                job.opened = Some(node.to_owned());
                Ok(())
            }
            (Err(error), true) => {
                self.protect(node);
                Err(error)
            }
            (begun, false) => begun,
        }
    }

    /// Whether an export may write to a node: not where a job has only opened what is written, which the next start would not do,
    /// nor below the filter of a mirror that has what is there replaced.
    pub(in crate::state) fn check_no_job_written(&self, node: &str) -> Result<(), ModelError> {
        let model = self.graph.model();
        for (id, job) in &self.jobs {
            let mut theirs: Vec<&str> = job.opened.iter().map(String::as_str).collect();
            let mut at = job.source.as_str();
            if let JobWork::Mirror { replaced, .. } = &job.work {
                while at != replaced
                    && let Some(below) = model.filtered(at)
                {
                    theirs.push(below);
                    at = below;
                }
            }
            let mut next = vec![node];
            while let Some(at) = next.pop() {
                if theirs.contains(&at) {
                    return Err(ModelError::UsedByJob { node: at.to_owned(), job: id.clone() });
                }
                // What is written above a source passes its filter.
                if at != job.source {
                    let below = model.below(&NodeUser::Node(at.to_owned())).iter();
                    next.extend(below.filter(|it| it.role.is_written()).map(|it| it.node.as_str()));
                }
            }
        }
        Ok(())
    }

    /// Has a node be read only again.
    pub(in crate::state) fn protect(&mut self, node: &str) {
        match self.set_access(node, Access::ReadOnly) {
            // They were stored when nobody wrote any more.
            Ok(_) => self.graph.forget_stored_bitmaps(node),
            Err(error) => {
                tracing::warn!("node '{node}' stays writable: {}", host::chain_of(&error));
            }
        }
    }

    fn grow_base(&mut self, node: &str, bytes: u64) -> Result<(), BlockJobError> {
        if self.graph.node(node)?.size().0.0 < bytes {
            self.resize_for_all(node, bytes)?;
        }
        Ok(())
    }
}
