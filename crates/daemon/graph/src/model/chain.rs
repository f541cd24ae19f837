//! Chains of backing files: what is below a node, and how far.

use super::GraphModel;
use super::permissions::{ChildRole, NodeUser};
use super::use_graph::Edge;

impl GraphModel {
    /// How many backing files below the first child of a user that node is; the most that are counted are 255.
    pub(crate) fn backing_steps(&self, user: &str, bottom: &str) -> Option<u8> {
        let edges = self.below(&NodeUser::Node(user.to_owned()));
        self.steps(&edges.first()?.node, bottom)
    }

    pub(super) fn steps(&self, from: &str, bottom: &str) -> Option<u8> {
        let (mut at, mut steps) = (from, 0_u8);
        while at != bottom {
            let edges = self.below(&NodeUser::Node(at.to_owned()));
            let leads_down =
                |edge: &&Edge| edge.role.is_same_disk() || edge.role == ChildRole::Backing;
            let edge = edges.iter().find(leads_down)?;
            steps = steps.saturating_add(u8::from(edge.role == ChildRole::Backing));
            at = &edge.node;
        }
        Some(steps)
    }

    /// The node whose bytes a filter shows, if it is one.
    pub fn filtered(&self, node: &str) -> Option<&str> {
        let below = self.below(&NodeUser::Node(node.to_owned()));
        let edge = below.iter().find(|edge| edge.role.is_same_disk())?;
        self.is_filter(node).then_some(&edge.node)
    }

    /// The edges from a node down its chain of backing files, the uppermost first, those below filters among them.
    pub fn chain_edges(&self, top: &str) -> Vec<&Edge> {
        let (mut edges, mut at): (Vec<&Edge>, _) = (Vec::new(), top);
        let leads_down = |edge: &&Edge| edge.role.is_same_disk() || edge.role == ChildRole::Backing;
        while let Some(edge) = self.below(&NodeUser::Node(at.to_owned())).iter().find(leads_down) {
            edges.push(edge);
            at = &edge.node;
        }
        edges
    }

    /// A node and the backing files below it, the nearest first.
    pub fn backing_chain(&self, top: &str) -> Vec<String> {
        let edges = self.chain_edges(top).into_iter();
        let backing = edges.filter(|edge| edge.role == ChildRole::Backing);
        [top.to_owned()].into_iter().chain(backing.map(|edge| edge.node.clone())).collect()
    }
}
