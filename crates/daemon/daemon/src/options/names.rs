//! Which names exist at each step: ids, node-names and sockets; and who uses which node for what.
//!
//! Invariants: a step is admitted only if its own names are new, those it uses exist already, and all
//! who use a node can be there together, so a plan can be built from front to back.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;

use super::ahead::Ahead;
use super::plan::{ExportOptions, Object, Step};
use crate::drivers::{Activity, Blockdev, ChildNode, NamedChild, ObjectName};
use crate::permissions::{Conflict, Edge, Permissions, Uses};
use crate::syntax::{Fault, Hint, is_identifier, nearest};

/// A name or an edge that cannot be.
#[derive(Debug, thiserror::Error)]
pub(super) enum NameFault {
    /// An image that takes changes in a file that takes none.
    #[error(
        "node '{child}' is read-only, and image '{node}' in it is not; say read-only=on for both"
    )]
    ReadOnlyFile {
        /// The image.
        node: String,
        /// The file.
        child: String,
    },
    /// An inactive node below an active one. QEMU's sentence.
    #[error("Inactive '{child}' can't be a {key} child of active '{node}'")]
    InactiveChild {
        /// The active one.
        node: String,
        /// The inactive one.
        child: String,
        /// The key that it stands under.
        key: String,
    },
    /// A name given twice.
    #[error("{what} '{name}' exists already")]
    Duplicate {
        /// What kind of thing it names.
        what: &'static str,
        /// The name.
        name: String,
    },
    /// A name of something that does not exist, or not yet.
    #[error("{what} '{name}' is not defined before its use{}", Hint(nearest.as_deref()))]
    NotFound {
        /// What kind of thing it names.
        what: &'static str,
        /// The name.
        name: String,
        /// What was probably meant.
        nearest: Option<String>,
    },
    /// A name of something that comes too late.
    #[error("{what} '{name}' is defined only after its use; options are carried out in order")]
    Later {
        /// What kind of thing it names.
        what: &'static str,
        /// The name.
        name: String,
    },
    /// Nodes that would stand on each other in a circle.
    #[error("node '{}' would stand on itself: {}", way[0], way.join(" -> "))]
    Cycle {
        /// The way down from the node to itself; never empty.
        way: Vec<String>,
    },
    /// A node that is used in a way which somebody else who uses it does not allow.
    #[error(transparent)]
    Conflict(#[from] Box<Conflict>),
    /// One iothread twice in an export.
    #[error("iothread '{id}' is listed twice")]
    IothreadTwice {
        /// The iothread.
        id: String,
    },
    /// A writable export of something that is not.
    #[error("cannot export read-only node '{node_name}' as writable")]
    ReadOnlyNode {
        /// The node.
        node_name: String,
    },
}

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
        self.admit_step(step).map_err(Fault::own)
    }

    fn admit_step(&mut self, step: &Step) -> Result<(), NameFault> {
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
    fn node(&mut self, blockdev: &Blockdev, name: &str) -> Result<Known, NameFault> {
        if blockdev.node_name.is_some() {
            take(&mut self.node_names, "node-name", name)?;
        }
        let objects = blockdev.options.needs().objects;
        objects.iter().try_for_each(|object| self.find_object(object))?;
        let activity = blockdev.activity;
        let mut can_write = if blockdev.base.read_only { CanWrite::No } else { CanWrite::Yes };
        let mut edges = Vec::new();
        for NamedChild { key, node } in &blockdev.children {
            let (child, below) = match node {
                ChildNode::Inline(inner) => {
                    let child = inner.name_below(name, key);
                    let below = self.node(inner, &child)?;
                    (child, below)
                }
                ChildNode::Reference(child) => (child.clone(), self.find_node(child, Some(name))?),
            };
            check_activity(name, activity, key, &child, below.activity)?;
            let role = blockdev.driver.role(key);
            if below.can_write == CanWrite::No && role.is_written() {
                if !blockdev.base.read_only && role.is_always_written() {
                    return Err(NameFault::ReadOnlyFile { node: name.to_owned(), child });
                }
                can_write = CanWrite::No;
            }
            edges.push(Edge { key: key.clone(), role, node: child });
        }
        self.uses.add_node(name, blockdev.base.access(), edges)?;
        let known = Known { can_write, activity };
        self.nodes.insert(name.to_owned(), known);
        Ok(known)
    }

    fn export(&mut self, export: &ExportOptions) -> Result<(), NameFault> {
        take(&mut self.exports, "export id", &export.id)?;
        let can_write = self.find_node(&export.node_name, None)?.can_write;
        if export.writable && can_write == CanWrite::No {
            return Err(NameFault::ReadOnlyNode { node_name: export.node_name.clone() });
        }
        self.uses.add_export(
            &export.id,
            &export.node_name,
            Permissions::of_export(export.access()),
        )?;
        let mut seen = HashSet::new();
        for id in &export.iothreads {
            if !self.iothreads.contains(id) {
                if self.ahead.has_iothread(id) {
                    return Err(NameFault::Later { what: "iothread", name: id.clone() });
                }
                return Err(not_found("iothread", id, self.iothreads.iter()));
            }
            if !seen.insert(id) {
                return Err(NameFault::IothreadTwice { id: id.clone() });
            }
        }
        if !self.sockets.insert(export.socket.path.clone()) {
            let name = export.socket.path.display().to_string();
            return Err(NameFault::Duplicate { what: "an export with socket", name });
        }
        Ok(())
    }

    fn find_object(&self, object: &ObjectName<'_>) -> Result<(), NameFault> {
        let ObjectName { kind, id } = *object;
        if self.throttle_groups.contains(id) {
            return Ok(());
        }
        if self.ahead.has_throttle_group(id) {
            return Err(NameFault::Later { what: kind, name: id.to_owned() });
        }
        Err(not_found(kind, id, self.throttle_groups.iter()))
    }

    /// A node that was made before; `user` is the node that wants to stand on it.
    fn find_node(&self, name: &str, user: Option<&str>) -> Result<Known, NameFault> {
        if let Some(known) = self.nodes.get(name).filter(|_| is_identifier(name)) {
            return Ok(*known);
        }
        if let Some(user) = user
            && let Some(path) = self.ahead.path(name, user)
        {
            let way = std::iter::once(user.to_owned()).chain(path).collect();
            return Err(NameFault::Cycle { way });
        }
        if self.ahead.has_node(name) && is_identifier(name) {
            return Err(NameFault::Later { what: "node", name: name.to_owned() });
        }
        let known = self.nodes.keys().filter(|name| is_identifier(name));
        Err(not_found("node", name, known))
    }
}

fn check_activity(
    node: &str,
    activity: Activity,
    key: &str,
    child: &str,
    of_child: Activity,
) -> Result<(), NameFault> {
    if activity.may_stand_on(of_child) {
        return Ok(());
    }
    let (node, child, key) = (node.to_owned(), child.to_owned(), key.to_owned());
    Err(NameFault::InactiveChild { node, child, key })
}

fn take(names: &mut HashSet<String>, what: &'static str, name: &str) -> Result<(), NameFault> {
    if names.insert(name.to_owned()) {
        return Ok(());
    }
    Err(NameFault::Duplicate { what, name: name.to_owned() })
}

fn not_found<'a>(
    what: &'static str,
    name: &str,
    known: impl Iterator<Item = &'a String>,
) -> NameFault {
    let mut known: Vec<&str> = known.map(String::as_str).collect();
    known.sort_unstable();
    let nearest = nearest(name, known).map(str::to_owned);
    NameFault::NotFound { what, name: name.to_owned(), nearest }
}
