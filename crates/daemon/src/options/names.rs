//! Which names exist at each step: ids, node-names and sockets.
//!
//! Invariants: a step is admitted only if its own names are new and those it uses exist already,
//! so a plan can be built from front to back.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;

use super::fault::Fault;
use super::nearest::nearest;
use super::plan::{Activity, Blockdev, Child, ExportOptions, NamedChild, Object, Step};

/// What the steps so far have made.
#[derive(Debug, Default)]
pub(super) struct Names {
    objects: HashSet<String>,
    iothreads: HashSet<String>,
    nodes: HashMap<String, Known>,
    exports: HashSet<String>,
    sockets: HashSet<PathBuf>,
}

/// What matters of a node to what stands on it.
#[derive(Debug, Clone, Copy)]
struct Known {
    can_write: CanWrite,
    activity: Activity,
}

/// Whether a node and all below it take changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CanWrite {
    Yes,
    No,
}

impl Names {
    /// Checks a step against those before it and takes its names.
    pub(super) fn admit(&mut self, step: &Step) -> Result<(), Fault> {
        match step {
            Step::Object(object) => {
                take(&mut self.objects, "object id", object.id())?;
                match object {
                    Object::Iothread(iothread) => self.iothreads.insert(iothread.id.clone()),
                };
                Ok(())
            }
            Step::Blockdev(blockdev) => {
                self.node(blockdev, &blockdev.name_below("", "")).map(|_| ())
            }
            Step::Export(export) => self.export(export),
        }
    }

    /// Takes the names of a node from the bottom up.
    fn node(&mut self, blockdev: &Blockdev, name: &str) -> Result<Known, Fault> {
        let activity = blockdev.activity;
        let mut can_write = if blockdev.read_only { CanWrite::No } else { CanWrite::Yes };
        for NamedChild { name: role, node } in &blockdev.children {
            let (child, below) = match node {
                Child::Inline(inner) => {
                    let child = inner.name_below(name, role);
                    let below = self.node(inner, &child)?;
                    (child, below)
                }
                Child::Reference(child) => (child.clone(), self.find_node(child)?),
            };
            check_activity(name, activity, role, &child, below.activity)?;
            if below.can_write == CanWrite::No {
                can_write = CanWrite::No;
            }
        }
        let known = Known { can_write, activity };
        if blockdev.node_name.is_some() && self.nodes.insert(name.to_owned(), known).is_some() {
            return Err(Fault::Duplicate { what: "node-name", name: name.to_owned() });
        }
        Ok(known)
    }

    fn export(&mut self, export: &ExportOptions) -> Result<(), Fault> {
        take(&mut self.exports, "export id", &export.id)?;
        let can_write = self.find_node(&export.node_name)?.can_write;
        if export.writable && can_write == CanWrite::No {
            return Err(Fault::ReadOnlyNode { node_name: export.node_name.clone() });
        }
        let mut seen = HashSet::new();
        for id in &export.iothreads {
            if !self.iothreads.contains(id) {
                return Err(not_found("iothread", id, self.iothreads.iter()));
            }
            if !seen.insert(id) {
                return Err(Fault::IothreadTwice { id: id.clone() });
            }
        }
        if !self.sockets.insert(export.socket.path.clone()) {
            let name = export.socket.path.display().to_string();
            return Err(Fault::Duplicate { what: "an export with socket", name });
        }
        Ok(())
    }

    fn find_node(&self, name: &str) -> Result<Known, Fault> {
        let known = self.nodes.get(name).copied();
        known.ok_or_else(|| not_found("node", name, self.nodes.keys()))
    }
}

fn check_activity(
    node: &str,
    activity: Activity,
    role: &str,
    child: &str,
    of_child: Activity,
) -> Result<(), Fault> {
    match (activity, of_child) {
        (Activity::Active, Activity::Inactive) => {
            let (node, child, role) = (node.to_owned(), child.to_owned(), role.to_owned());
            Err(Fault::InactiveChild { node, child, role })
        }
        (Activity::Active, Activity::Active) | (Activity::Inactive, _) => Ok(()),
    }
}

/// Whether a name is letters, digits, `-`, `.` and `_` and starts with a letter.
pub(super) fn is_identifier(name: &str) -> bool {
    name.starts_with(|first: char| first.is_ascii_alphabetic())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte))
}

fn take(names: &mut HashSet<String>, what: &'static str, name: &str) -> Result<(), Fault> {
    if names.insert(name.to_owned()) {
        return Ok(());
    }
    Err(Fault::Duplicate { what, name: name.to_owned() })
}

fn not_found<'a>(what: &'static str, name: &str, known: impl Iterator<Item = &'a String>) -> Fault {
    let mut known: Vec<&str> = known.map(String::as_str).collect();
    known.sort_unstable();
    let nearest = nearest(name, known).map(str::to_owned);
    Fault::NotFound { what, name: name.to_owned(), nearest }
}
