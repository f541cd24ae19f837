//! Filters that come between a node and all who use it, and that leave again.
//!
//! Where it stands: here is found which edges change; `control` changes them while guests run.
//!
//! Invariants: who stands below a filter never comes to stand on it.
//! Not here: filters without a name (`filters`).

use super::{EdgeChange, Graph};
use crate::model::{ChildRole, ModelError, NodeUser, path_down};

impl Graph {
    /// The changes that put a filter on a node: all who stand on the node stand on the filter then, but the filter itself and
    /// what is below it.
    pub fn insert_filter(&self, node: &str, filter: &str) -> Result<Vec<EdgeChange>, ModelError> {
        self.node(node)?;
        self.node(filter)?;
        if self.filtered(filter) != Some(node) {
            let (filter, node) = (filter.to_owned(), node.to_owned());
            return Err(ModelError::NoFilterOn { filter, node });
        }
        let users = self.users(node)?.into_iter();
        let is_below = |user: &NodeUser| match user {
            NodeUser::Node(name) => path_down(&|node| self.below(node), filter, name).is_some(),
            NodeUser::Export(_) | NodeUser::Job(_) => false,
        };
        let moved = users.filter(|(user, _)| !is_below(user));
        Ok(moved.map(|(user, key)| EdgeChange { user, key, by: Some(filter.to_owned()) }).collect())
    }

    /// The changes that take a filter away: all who stand on it stand on its node then. It stays, on that node and below
    /// nobody.
    pub fn remove_filter(&self, filter: &str) -> Result<Vec<EdgeChange>, ModelError> {
        self.node(filter)?;
        let node = self.filtered(filter);
        let node = node.ok_or_else(|| ModelError::NoFilter(filter.to_owned()))?;
        let users = self.users(filter)?;
        let needs_it = |(user, key): &(NodeUser, String)| match user {
            NodeUser::Node(name) => {
                let mut edges = self.below(name).iter().filter(|edge| edge.key == *key);
                let is_shown = edges.any(|edge| edge.role == ChildRole::AtInstant);
                is_shown.then(|| name.clone())
            }
            NodeUser::Export(_) | NodeUser::Job(_) => None,
        };
        if let Some(user) = users.iter().find_map(needs_it) {
            return Err(ModelError::FilterInUse { filter: filter.to_owned(), user });
        }
        let moved = users.into_iter();
        Ok(moved.map(|(user, key)| EdgeChange { user, key, by: Some(node.to_owned()) }).collect())
    }

    /// The node whose bytes a filter shows, if that is one.
    fn filtered(&self, filter: &str) -> Option<&str> {
        let mut below = self.below(filter).iter().filter(|edge| edge.role.is_same_disk());
        below.next().filter(|_| self.model.is_filter(filter)).map(|edge| edge.node.as_str())
    }

    /// Who stands on a node. Jobs know where they are.
    fn users(&self, node: &str) -> Result<Vec<(NodeUser, String)>, ModelError> {
        let users = self.model.users_of(node);
        let job = |(user, _): &(NodeUser, String)| match user {
            NodeUser::Job(id) => Some(id.clone()),
            NodeUser::Node(_) | NodeUser::Export(_) => None,
        };
        match users.iter().find_map(job) {
            Some(job) => Err(ModelError::UsedByJob { node: node.to_owned(), job }),
            None => Ok(users),
        }
    }
}
