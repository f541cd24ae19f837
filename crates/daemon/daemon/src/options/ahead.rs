//! What the whole line defines, also behind the step that is being checked.
//!
//! Where it stands: made of all steps before the first of them is checked. It tells a name that comes too
//! late from one that never comes, and a ring of names from both; and it knows which nodes are written.
//!
//! Limits: names may be given twice and lead in circles here; the checks come later.

use std::collections::{HashMap, HashSet};

use super::plan::{Object, Step};
use crate::drivers::{AutoReadOnly, Blockdev, ChildNode, NamedChild};
use crate::syntax::Takes;

/// All names on the line.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    iothreads: HashSet<String>,
    throttle_groups: HashSet<String>,
    /// Each node, and those that it names or holds.
    nodes: HashMap<String, Vec<String>>,
    /// Each node, and those of them that are written with it.
    written_with: HashMap<String, Vec<String>>,
    /// What is written whoever is above: what images that take changes are in.
    always_written: Vec<String>,
    written: HashSet<String>,
}

impl Ahead {
    /// What these steps define.
    pub(super) fn of<'a>(steps: impl Iterator<Item = &'a Step> + Clone) -> Self {
        let mut ahead = Self::default();
        for step in steps.clone() {
            match step {
                Step::Object(Object::Iothread(object)) => {
                    ahead.iothreads.insert(object.id.clone());
                }
                Step::Object(Object::ThrottleGroup(object)) => {
                    ahead.throttle_groups.insert(object.id.clone());
                }
                Step::Blockdev(blockdev) => ahead.add(blockdev, &blockdev.name_below("", "")),
                Step::Export(_) => {}
            }
        }
        let exported = steps.filter_map(|step| match step {
            Step::Export(export) if export.writable => Some(export.node_name.clone()),
            Step::Export(_) | Step::Object(_) | Step::Blockdev(_) => None,
        });
        let mut written = HashSet::new();
        for node in exported.chain(ahead.always_written.clone()) {
            ahead.written_below(&node, &mut written);
        }
        ahead.written = written;
        ahead
    }

    /// Has nodes opened read-only that are written by nobody, if that was asked for.
    pub(super) fn settle_read_only(&self, blockdev: &mut Blockdev, name: &str) {
        let is_auto = blockdev.base.auto_read_only == AutoReadOnly::On;
        let opens_a_file = !blockdev.options.needs().files.is_empty();
        if is_auto && opens_a_file && !self.written.contains(name) {
            blockdev.base.read_only = true;
        }
        for child in &mut blockdev.children {
            if let ChildNode::Inline(inner) = &mut child.node {
                let name = inner.name_below(name, &child.key);
                self.settle_read_only(inner, &name);
            }
        }
    }

    /// `backing=null` on a command line is a text: it stands for nothing, unless there is a node of
    /// that name.
    pub(super) fn settle_null(&self, blockdev: &mut Blockdev) {
        let keys = &blockdev.driver.keys;
        let null = |child: &NamedChild| {
            let ChildNode::Reference(node) = &child.node else { return false };
            let may_be_null = keys
                .supported()
                .any(|key| key.name == child.key && matches!(key.takes, Takes::NodeOrNull));
            may_be_null && node == "null" && !self.has_node(node)
        };
        blockdev.children.retain(|child| !null(child));
        for child in &mut blockdev.children {
            if let ChildNode::Inline(inner) = &mut child.node {
                self.settle_null(inner);
            }
        }
    }

    /// Whether an iothread of that name is defined somewhere.
    pub(super) fn has_iothread(&self, id: &str) -> bool {
        self.iothreads.contains(id)
    }

    /// Whether a throttle group of that name is defined somewhere.
    pub(super) fn has_throttle_group(&self, id: &str) -> bool {
        self.throttle_groups.contains(id)
    }

    /// Whether a node of that name is defined somewhere.
    pub(super) fn has_node(&self, name: &str) -> bool {
        self.nodes.contains_key(name)
    }

    /// The way down from one node to another, both included.
    pub(super) fn path(&self, from: &str, to: &str) -> Option<Vec<String>> {
        self.path_unseen(from, to, &mut HashSet::new())
    }

    fn path_unseen<'a>(
        &'a self,
        from: &'a str,
        to: &str,
        seen: &mut HashSet<&'a str>,
    ) -> Option<Vec<String>> {
        if from == to {
            return Some(vec![to.to_owned()]);
        }
        if !seen.insert(from) {
            return None;
        }
        let mut below = self.nodes.get(from)?.iter();
        let mut path = below.find_map(|node| self.path_unseen(node, to, seen))?;
        path.insert(0, from.to_owned());
        Some(path)
    }

    fn add(&mut self, blockdev: &Blockdev, name: &str) {
        let (mut below, mut written) = (Vec::new(), Vec::new());
        for child in &blockdev.children {
            let node = match &child.node {
                ChildNode::Reference(node) => node.clone(),
                ChildNode::Inline(inner) => {
                    let name = inner.name_below(name, &child.key);
                    self.add(inner, &name);
                    name
                }
            };
            let role = blockdev.driver.role(&child.key);
            if role.is_written() {
                written.push(node.clone());
            }
            if role.is_always_written() && !blockdev.base.read_only {
                self.always_written.push(node.clone());
            }
            below.push(node);
        }
        self.nodes.entry(name.to_owned()).or_default().extend(below);
        self.written_with.entry(name.to_owned()).or_default().extend(written);
    }

    /// Adds the node and all below it that is written with it.
    fn written_below(&self, name: &str, found: &mut HashSet<String>) {
        let mut next = vec![name];
        while let Some(name) = next.pop() {
            if found.insert(name.to_owned()) {
                next.extend(self.written_with.get(name).into_iter().flatten().map(String::as_str));
            }
        }
    }
}
