//! Which names exist at each step: ids, node-names and sockets; and who uses which node for what.
//!
//! Invariants: a step is admitted only if its own names are new, those it uses exist already, and all
//! who use a node can be there together, so a plan can be built from front to back.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;

use super::ahead::Ahead;
use super::fault::Fault;
use super::nearest::nearest;
use super::plan::{Activity, Blockdev, Child, Driver, ExportOptions, NamedChild, Object, Step};
use crate::permissions::{Edge, Permissions, Uses};

/// What the steps so far have made.
#[derive(Debug)]
pub(super) struct Names {
    /// What all steps make.
    ahead: Ahead,
    uses: Uses,
    objects: HashSet<String>,
    iothreads: HashSet<String>,
    throttle_groups: HashSet<String>,
    node_names: HashSet<String>,
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
    /// Nothing yet of what is ahead.
    pub(super) fn new(ahead: Ahead) -> Self {
        Self {
            ahead,
            uses: Uses::default(),
            objects: HashSet::new(),
            iothreads: HashSet::new(),
            throttle_groups: HashSet::new(),
            node_names: HashSet::new(),
            nodes: HashMap::new(),
            exports: HashSet::new(),
            sockets: HashSet::new(),
        }
    }

    /// Checks a step against those before it and takes its names.
    pub(super) fn admit(&mut self, step: &Step) -> Result<(), Fault> {
        match step {
            Step::Object(object) => {
                take(&mut self.objects, "object id", object.id())?;
                match object {
                    Object::Iothread(iothread) => self.iothreads.insert(iothread.id.clone()),
                    Object::ThrottleGroup(group) => self.throttle_groups.insert(group.id.clone()),
                };
                Ok(())
            }
            Step::Blockdev(blockdev) => {
                self.node(blockdev, &blockdev.name_below("", "")).map(|_| ())
            }
            Step::Export(export) => self.export(export),
        }
    }

    /// Takes the names of a node, and of those inside it, and adds them from the bottom up.
    fn node(&mut self, blockdev: &Blockdev, name: &str) -> Result<Known, Fault> {
        if blockdev.node_name.is_some() {
            take(&mut self.node_names, "node-name", name)?;
        }
        if let Driver::Throttle { group } = &blockdev.driver {
            self.find_throttle_group(group)?;
        }
        let activity = blockdev.activity;
        let mut can_write = if blockdev.read_only { CanWrite::No } else { CanWrite::Yes };
        let mut edges = Vec::new();
        for NamedChild { name: role, node } in &blockdev.children {
            let (child, below) = match node {
                Child::Inline(inner) => {
                    let child = inner.name_below(name, role);
                    let below = self.node(inner, &child)?;
                    (child, below)
                }
                Child::Reference(child) => (child.clone(), self.find_node(child, Some(name))?),
            };
            check_activity(name, activity, role, &child, below.activity)?;
            if below.can_write == CanWrite::No && blockdev.driver.writes_to(role) {
                if !blockdev.read_only && matches!(blockdev.driver, Driver::Qcow2 { .. }) {
                    return Err(Fault::ReadOnlyFile { node: name.to_owned(), child });
                }
                can_write = CanWrite::No;
            }
            edges.push(Edge { role: role.clone(), node: child });
        }
        self.uses.add_node(name, blockdev.passes_on(), edges)?;
        let known = Known { can_write, activity };
        self.nodes.insert(name.to_owned(), known);
        Ok(known)
    }

    fn export(&mut self, export: &ExportOptions) -> Result<(), Fault> {
        take(&mut self.exports, "export id", &export.id)?;
        let can_write = self.find_node(&export.node_name, None)?.can_write;
        if export.writable && can_write == CanWrite::No {
            return Err(Fault::ReadOnlyNode { node_name: export.node_name.clone() });
        }
        self.uses.add_export(&export.id, &export.node_name, Permissions::of_export(export))?;
        let mut seen = HashSet::new();
        for id in &export.iothreads {
            if !self.iothreads.contains(id) {
                if self.ahead.has_iothread(id) {
                    return Err(Fault::Later { what: "iothread", name: id.clone() });
                }
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

    fn find_throttle_group(&self, id: &str) -> Result<(), Fault> {
        if self.throttle_groups.contains(id) {
            return Ok(());
        }
        if self.ahead.has_throttle_group(id) {
            return Err(Fault::Later { what: "throttle-group", name: id.to_owned() });
        }
        Err(not_found("throttle-group", id, self.throttle_groups.iter()))
    }

    /// A node that was made before; `user` is the node that wants to stand on it.
    fn find_node(&self, name: &str, user: Option<&str>) -> Result<Known, Fault> {
        if let Some(known) = self.nodes.get(name).filter(|_| is_identifier(name)) {
            return Ok(*known);
        }
        if let Some(user) = user
            && let Some(path) = self.ahead.path(name, user)
        {
            let way = std::iter::once(user.to_owned()).chain(path).collect();
            return Err(Fault::Cycle { way });
        }
        if self.ahead.has_node(name) && is_identifier(name) {
            return Err(Fault::Later { what: "node", name: name.to_owned() });
        }
        let known = self.nodes.keys().filter(|name| is_identifier(name));
        Err(not_found("node", name, known))
    }
}

fn check_activity(
    node: &str,
    activity: Activity,
    role: &str,
    child: &str,
    of_child: Activity,
) -> Result<(), Fault> {
    if activity.may_stand_on(of_child) {
        return Ok(());
    }
    let (node, child, role) = (node.to_owned(), child.to_owned(), role.to_owned());
    Err(Fault::InactiveChild { node, child, role })
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
