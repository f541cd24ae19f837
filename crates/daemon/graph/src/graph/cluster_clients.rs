//! What clients of clusters among the nodes need of the graph: secrets, and the fences of their threads.
//!
//! Threads: those that control the graph.

use std::io;
use std::sync::Arc;

use rbd::ThreadFences;

use super::{Graph, Vertex};
use crate::model::{ModelError, TypedObjectId};
use crate::objects::Secret;

impl Graph {
    /// Notes a secret, which nodes may name from now on.
    pub fn add_secret(
        &mut self,
        object: TypedObjectId<'_>,
        secret: Secret,
    ) -> Result<(), ModelError> {
        self.model.add_object(object)?;
        self.secrets.insert(object.id.to_owned(), secret);
        Ok(())
    }

    /// A secret, for what needs it.
    pub fn secret(&self, id: &str) -> Option<&Secret> {
        self.secrets.get(id)
    }

    /// Puts threads that are started for nodes, and those that their libraries start, behind these fences.
    pub fn set_fences(&mut self, fence: impl Fn() -> io::Result<()> + Send + Sync + 'static) {
        self.fences = ThreadFences::new(Arc::new(fence));
    }

    /// A node that is a client of a cluster, if there is one.
    pub fn client_of_cluster(&self) -> Option<&str> {
        let joins =
            |vertex: &Vertex| vertex.own.as_ref().is_some_and(|it| it.needs().joins_cluster);
        self.vertices.iter().find(|(_, vertex)| joins(vertex)).map(|(name, _)| name.as_str())
    }
}
