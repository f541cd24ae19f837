//! The graph as JSON, from which the same graph is made again: the arguments of `--blockdev`, one for each node that was
//! not written inside another one.
//!
//! Invariants: a node comes behind those that it names. A volatile one is there if an export or another node of these stands on it. What only an image names is left to the image, which names it
//! again. A node that was written inside another one and is not below it any more stands by itself.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::{Graph, Vertex};
use crate::drivers::BACKING;
use crate::model::{GraphModel, ModelError, NODE, NodeOwner, NodeUser};

impl Graph {
    /// The whole graph. A node below a place that has changed and has no name of its own cannot be written.
    pub fn written(&self) -> Result<Vec<Value>, ModelError> {
        self.written_as(&self.model, &[])
    }

    /// A node need not be made again by whoever makes this graph again, unless something else stands on it.
    pub fn set_volatile(&mut self, name: &str) {
        self.volatile.insert(name.to_owned());
    }

    /// A node as it was written, with the names of the nodes below it.
    pub fn written_node(&self, name: &str) -> Option<&Map<String, Value>> {
        self.vertices.get(name).map(|vertex| &vertex.written)
    }

    /// The same with the edges of that model, and nodes that are made anew for it.
    pub(super) fn written_as(
        &self,
        model: &GraphModel,
        remade: &[(String, Vertex)],
    ) -> Result<Vec<Value>, ModelError> {
        let (done, all) = (BTreeSet::new(), Vec::new());
        let mut writer = GraphWriter { graph: self, remade, model, done, all };
        let is_root = |name: &&str| {
            let goes_alone = model.owner(name) == Some(NodeOwner::Operator);
            // What was inside another node and is not any more can be named only if it has a name.
            let is_named = writer.vertex(name).written.contains_key("node-name");
            let has_export = || {
                let users = model.users_of(name);
                users.iter().any(|(user, _)| matches!(user, NodeUser::Export(_)))
            };
            let is_left_out = self.volatile.contains(*name) && !has_export();
            !is_left_out && (goes_alone || is_named && model.users_of(name).is_empty())
        };
        let roots: Vec<_> = model.names(NODE).into_iter().filter(is_root).collect();
        for name in roots {
            writer.add(name)?;
        }
        Ok(writer.all)
    }
}

struct GraphWriter<'a> {
    graph: &'a Graph,
    remade: &'a [(String, Vertex)],
    model: &'a GraphModel,
    /// Nodes that are written.
    done: BTreeSet<String>,
    all: Vec<Value>,
}

impl GraphWriter<'_> {
    fn vertex(&self, name: &str) -> &Vertex {
        let remade = self.remade.iter().find(|(known, _)| known == name);
        remade.map_or_else(|| &self.graph.vertices[name], |(_, vertex)| vertex)
    }

    /// Adds a node, and before it those that it names.
    fn add(&mut self, name: &str) -> Result<(), ModelError> {
        if !self.done.contains(name) {
            let node = self.node(name)?;
            self.all.push(node);
        }
        Ok(())
    }

    fn node(&mut self, name: &str) -> Result<Value, ModelError> {
        self.done.insert(name.to_owned());
        let (mut node, is_image) =
            (self.vertex(name).written.clone(), self.vertex(name).made.image.is_some());
        let mut lists: Map<String, Value> = Map::new();
        for edge in self.model.below(&NodeUser::Node(name.to_owned())) {
            node.remove(&edge.key);
            let Some(below) = self.below(&edge.node)? else { continue };
            match edge.key.split_once('.') {
                None => drop(node.insert(edge.key.clone(), below)),
                Some((key, _)) => {
                    let list = lists.entry(key.to_owned()).or_insert_with(|| Value::Array(vec![]));
                    list.as_array_mut().expect("it was made one").push(below);
                }
            }
        }
        node.append(&mut lists);
        let below = self.model.below(&NodeUser::Node(name.to_owned()));
        if is_image && below.iter().all(|edge| edge.key != BACKING) {
            node.insert(BACKING.to_owned(), Value::Null);
        }
        Ok(Value::Object(node))
    }

    /// What stands for a node below another one: itself where it was written inside and is met first, otherwise its name.
    /// `None` if the image above names it.
    fn below(&mut self, name: &str) -> Result<Option<Value>, ModelError> {
        let is_named = self.vertex(name).written.contains_key("node-name");
        let is_inside = self.model.owner(name) == Some(NodeOwner::Parent);
        if is_inside && !self.done.contains(name) {
            if self.graph.named_by_images.contains(name) {
                // All that is below goes with it.
                self.leave(name);
                return Ok(None);
            }
            return self.node(name).map(Some);
        }
        if !is_named {
            return Err(ModelError::NoName(name.to_owned()));
        }
        self.add(name)?;
        Ok(Some(name.into()))
    }

    fn leave(&mut self, name: &str) {
        self.done.insert(name.to_owned());
        let below = self.model.below(&NodeUser::Node(name.to_owned()));
        for edge in
            below.iter().filter(|edge| self.model.owner(&edge.node) == Some(NodeOwner::Parent))
        {
            self.leave(&edge.node);
        }
    }
}
