//! The nodes that jobs use.

use std::collections::BTreeSet;
use std::sync::Arc;

use block::Node;

use super::{Graph, Root};
use crate::model::{Edge, JobFilter, ModelError, NodeUser};

impl Graph {
    /// The nodes that a job uses from now on, in the order of its edges, each in a place where others may be put. Its filter may
    /// have a name.
    pub fn add_job(
        &mut self,
        id: &str,
        edges: Vec<Edge>,
        filter: Option<JobFilter>,
    ) -> Result<Vec<Arc<dyn Node>>, ModelError> {
        let named = filter.map_or(Ok(()), |filter| self.model.name_filter(id, filter));
        let added = named.and_then(|()| self.model.add_job(id, edges.clone()));
        added.inspect_err(|_| self.model.remove_job(id))?;
        let mut nodes: Vec<Arc<dyn Node>> = Vec::new();
        for Edge { key, node, .. } in edges {
            let root = Root::new(&node, self.node(&node)?);
            nodes.push(Arc::clone(&root.node));
            self.roots.insert((NodeUser::Job(id.to_owned()), key), root);
        }
        Ok(nodes)
    }

    /// The nodes that those jobs use.
    pub fn nodes_of_jobs(&self, ids: &BTreeSet<String>) -> Vec<Arc<dyn Node>> {
        let is_theirs = |user: &NodeUser| matches!(user, NodeUser::Job(id) if ids.contains(id));
        let roots = self.roots.iter().filter(|((user, _), _)| is_theirs(user));
        roots.map(|(_, root)| Arc::clone(&root.node)).collect()
    }

    /// Lets go of a job, if it is there.
    pub fn remove_job(&mut self, id: &str) {
        self.model.remove_job(id);
        let job = NodeUser::Job(id.to_owned());
        self.roots.retain(|(user, _), _| *user != job);
    }
}
