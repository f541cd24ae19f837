//! What becomes of nodes that are there: whether they take changes, which objects they name, whether they are held.
//!
//! Invariants: those of the model, once all changes of one command are made.

use block::Access;

use super::fault::ModelError;
use super::permissions::NodeUser;
use super::use_graph::Edge;
use super::{Activity, GraphModel, TypedObjectId};

impl GraphModel {
    /// Has a node take changes or not, and name these objects.
    pub fn reopen_node(
        &mut self,
        name: &str,
        access: Access,
        objects: &[TypedObjectId<'_>],
    ) -> Result<(), ModelError> {
        self.find_node(name, None)?;
        objects.iter().try_for_each(|object| self.find_object(*object))?;
        if let Some(node) = self.nodes.get_mut(name) {
            node.access = access;
            node.objects = objects.iter().map(|object| object.id.to_owned()).collect();
        }
        self.uses.set_access(name, access);
        Ok(())
    }

    /// Has a node take changes or not.
    pub(crate) fn set_access(&mut self, name: &str, access: Access) {
        if let Some(node) = self.nodes.get_mut(name) {
            node.access = access;
        }
        self.uses.set_access(name, access);
    }

    /// Whether those above and below a node bear with what it may do.
    pub fn check_access(&self, name: &str) -> Result<(), ModelError> {
        let refused = |child: &str, user: &NodeUser| {
            Err(ModelError::ReadOnlyBelow { child: child.to_owned(), user: user.clone() })
        };
        let own = NodeUser::Node(name.to_owned());
        if self.access(name)? == Access::ReadWrite {
            let mut written = self.below(&own).iter().filter(|edge| edge.role.is_written());
            let is_fixed = |edge: &&Edge| self.nodes[&edge.node].access == Access::ReadOnly;
            return written.find(is_fixed).map_or(Ok(()), |edge| refused(&edge.node, &own));
        }
        if self.is_written(name) {
            return Err(ModelError::ReadOnlyInUse(name.to_owned()));
        }
        for (user, key) in self.users_of(name) {
            let mut edges = self.below(&user).iter();
            let is_written = edges.any(|edge| edge.key == key && edge.role.is_written());
            if is_written && matches!(user, NodeUser::Node(_)) && self.takes_changes(&user) {
                return refused(name, &user);
            }
        }
        Ok(())
    }

    /// Which nodes become active or inactive if that one is to, or all are, the upper ones first. As in QEMU: what is below
    /// an active node is active; what is below an inactive one alone is inactive with it.
    pub fn changing_activity(
        &self,
        node: Option<&str>,
        to: Activity,
    ) -> Result<Vec<String>, ModelError> {
        let Some(name) = node else {
            let changing = self.nodes.iter().filter(|(_, node)| node.activity != to);
            return Ok(changing.map(|(name, _)| name.clone()).collect());
        };
        self.find_node(name, None)?;
        let (mut changing, mut next) = (Vec::<String>::new(), vec![name]);
        while let Some(name) = next.pop() {
            let mut above =
                self.uses.users_of(name).into_iter().filter_map(|(user, _)| match user {
                    NodeUser::Node(parent) => Some(parent),
                    NodeUser::Export(_) | NodeUser::Job(_) => None,
                });
            let is_active = |parent: &String| {
                let stays = !changing.contains(parent);
                stays && self.nodes.get(parent).is_some_and(|it| it.activity == Activity::Active)
            };
            let active = above.find(is_active).filter(|_| to == Activity::Inactive);
            match active {
                Some(parent) if changing.is_empty() => {
                    return Err(ModelError::ActiveParent { node: name.to_owned(), parent });
                }
                Some(_) => continue,
                None => {}
            }
            let stays = self.nodes.get(name).is_none_or(|it| it.activity == to);
            // What is below an inactive node may be active: it stays so if the node was inactive before.
            if !stays && changing.iter().all(|known| known != name) {
                changing.push(name.to_owned());
            }
            if !stays || to == Activity::Active {
                let below = self.below(&NodeUser::Node(name.to_owned()));
                next.extend(below.iter().map(|edge| edge.node.as_str()));
            }
        }
        Ok(changing)
    }

    /// Has nodes be active or inactive, as [`GraphModel::changing_activity`] says.
    pub fn set_activity(&mut self, nodes: &[String], to: Activity) {
        for name in nodes {
            if let Some(node) = self.nodes.get_mut(name) {
                node.activity = to;
            }
        }
    }
}
