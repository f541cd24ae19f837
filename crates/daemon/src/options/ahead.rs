//! What the whole line defines, also behind the step that is being checked.
//!
//! Where it stands: made of all steps before the first of them is checked. It tells a name that comes too
//! late from one that never comes, and a ring of names from both; and it knows which nodes are written.
//!
//! Limits: names may be given twice and lead in circles here; the checks come later.

use std::collections::{HashMap, HashSet};

use super::plan::{AutoReadOnly, Blockdev, Child, Object, Step};

/// All names on the line.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    iothreads: HashSet<String>,
    throttle_groups: HashSet<String>,
    /// Each node, and those that it names or holds.
    nodes: HashMap<String, Vec<String>>,
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
        for step in steps {
            if let Step::Export(export) = step
                && export.writable
            {
                let mut written = std::mem::take(&mut ahead.written);
                ahead.below(&export.node_name, &mut written);
                ahead.written = written;
            }
        }
        ahead
    }

    /// Has nodes opened read-only that are written by nobody, if that was asked for.
    pub(super) fn settle_read_only(&self, blockdev: &mut Blockdev, name: &str) {
        let is_auto = blockdev.auto_read_only == AutoReadOnly::On;
        if is_auto && blockdev.driver.opens_a_file() && !self.written.contains(name) {
            blockdev.read_only = true;
        }
        for child in &mut blockdev.children {
            if let Child::Inline(inner) = &mut child.node {
                let name = inner.name_below(name, &child.name);
                self.settle_read_only(inner, &name);
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
        let mut below = Vec::new();
        for child in &blockdev.children {
            below.push(match &child.node {
                Child::Reference(node) => node.clone(),
                Child::Inline(inner) => {
                    let name = inner.name_below(name, &child.name);
                    self.add(inner, &name);
                    name
                }
            });
        }
        self.nodes.entry(name.to_owned()).or_default().extend(below);
    }

    /// Adds the node and all below it.
    fn below(&self, name: &str, found: &mut HashSet<String>) {
        let mut next = vec![name];
        while let Some(name) = next.pop() {
            if found.insert(name.to_owned()) {
                next.extend(self.nodes.get(name).into_iter().flatten().map(String::as_str));
            }
        }
    }
}
