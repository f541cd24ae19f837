//! Which names exist at each step: ids, node-names and sockets.
//!
//! Invariants: a step is admitted only if its own names are new and those it uses exist already,
//! so a plan can be built from front to back.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;

use super::fault::Fault;
use super::nearest::nearest;
use super::plan::{Activity, Blockdev, Child, Driver, ExportOptions, Step};

/// What the steps so far have made.
#[derive(Debug, Default)]
pub(super) struct Names {
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
            Step::Object(object) => take(&mut self.iothreads, "object id", &object.id),
            Step::Blockdev(blockdev) => self.node(blockdev, "").map(|_| ()),
            Step::Export(export) => self.export(export),
        }
    }

    /// Takes the names of a node from the bottom up.
    fn node(&mut self, blockdev: &Blockdev, parent: &str) -> Result<Known, Fault> {
        // The name that the graph gives to a node without one.
        let name = blockdev.node_name.clone().unwrap_or_else(|| format!("{parent}/file"));
        let activity = blockdev.activity;
        let below = match &blockdev.driver {
            Driver::Raw { file: Child::Inline(inner) } => {
                let child = inner.node_name.clone().unwrap_or_else(|| format!("{name}/file"));
                check_activity(&name, activity, child, inner.activity)?;
                self.node(inner, &name)?.can_write
            }
            Driver::Raw { file: Child::Reference(child) } => {
                let below = self.find_node(child)?;
                check_activity(&name, activity, child.clone(), below.activity)?;
                below.can_write
            }
            Driver::File { .. } | Driver::HostDevice { .. } | Driver::NullCo { .. } => {
                CanWrite::Yes
            }
        };
        let can_write = if blockdev.read_only { CanWrite::No } else { below };
        let known = Known { can_write, activity };
        if blockdev.node_name.is_some() && self.nodes.insert(name.clone(), known).is_some() {
            return Err(Fault::Duplicate { what: "node-name", name });
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
    child: String,
    of_child: Activity,
) -> Result<(), Fault> {
    match (activity, of_child) {
        (Activity::Active, Activity::Inactive) => {
            Err(Fault::InactiveChild { node: node.to_owned(), child })
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
