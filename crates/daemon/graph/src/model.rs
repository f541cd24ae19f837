//! What there is and what stands on what: objects, nodes, exports and sockets by name, and who uses which node for what.
//!
//! Where it stands: the command line feeds it step by step before anything is opened; the graph owns one and asks it
//! before anything is made, changed or removed.
//!
//! Invariants: every name is used once; what is named exists; there is no circle and no conflict of permissions; no
//! active node stands on an inactive one, and nothing writable on what is read-only. What is refused leaves it as it was.
//! Pure: it opens nothing and knows no driver.
//! Not here: names that come later on a command line (`options`), sizes and locks (the graph).

mod chain;
mod changes;
mod fault;
mod job_filters;
mod permissions;
#[cfg(test)]
mod tests;
mod use_graph;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use block::{Access, Permission, Rights};

pub use fault::ModelError;
pub use job_filters::JobFilter;
pub use permissions::ChildRole;
pub use permissions::{NodeUser, PermissionConflict};
pub(crate) use use_graph::ROOT;
use use_graph::UseGraph;
pub use use_graph::{Edge, UsedEdge, path_down};

/// Whether a node is active from the start (`active=`), as in QEMU 10.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activity {
    /// From the start of an export to its end.
    Active,
    /// While an export of it serves rings.
    Inactive,
}

impl Activity {
    /// Whether a node that is like this may have a child that is like that.
    fn may_stand_on(self, child: Self) -> bool {
        match (self, child) {
            (Self::Active, Self::Inactive) => false,
            (Self::Active, Self::Active) | (Self::Inactive, _) => true,
        }
    }
}

/// What nodes are called among things that have names.
pub const NODE: &str = "node";

/// The type of objects that are threads.
pub(crate) const IOTHREAD: &str = "iothread";
/// The type of objects that are pools of iothreads.
pub(crate) const IOTHREAD_POOL: &str = "iothread-pool";

/// The type of objects that are limits which several nodes share.
pub(crate) const THROTTLE_GROUP: &str = "throttle-group";

/// The type of objects that are bytes which are not shown.
pub(crate) const SECRET: &str = "secret";

/// The type of objects that are certificates and keys.
pub(crate) const TLS_CREDS_X509: &str = "tls-creds-x509";

/// The types of objects that say who may come.
pub(crate) const AUTHZ_SIMPLE: &str = "authz-simple";
pub(crate) const AUTHZ_LIST: &str = "authz-list";
pub(crate) const AUTHZ_LIST_FILE: &str = "authz-list-file";

/// The type of the object that stands for the first thread.
pub(crate) const MAIN_LOOP: &str = "main-loop";

/// The type and id of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TypedObjectId<'a> {
    /// Its type, as in `qom-type=`.
    pub kind: &'static str,
    /// Its id.
    pub id: &'a str,
}

/// A node that is to be added.
#[derive(Debug, Clone)]
pub struct NewNode<'a> {
    /// Its name.
    pub name: &'a str,
    /// Whether it is asked to take changes.
    pub access: Access,
    /// Whether it is held from the start.
    pub activity: Activity,
    /// What stands below it.
    pub edges: Vec<Edge>,
    /// The objects that it names.
    pub objects: Vec<TypedObjectId<'a>>,
    /// What it goes with.
    pub owner: NodeOwner,
    /// The node of its chain of backing files below which it has nothing to do with that.
    pub bottom: Option<&'a str>,
    /// Whether it has no bytes of its own.
    pub(crate) is_filter: bool,
}

/// What a node is removed with: only by name, or with its parent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeOwner {
    /// Nothing: it stays until it is removed by name.
    Operator,
    /// The node that it is written in, or whose image names it.
    Parent,
}

/// An export that is to be added.
#[derive(Debug, Clone, Copy)]
pub struct NewExport<'a> {
    /// Its id.
    pub id: &'a str,
    /// Its node.
    pub node: &'a str,
    /// What clients may do.
    pub access: Access,
    /// The iothreads that it names.
    pub iothreads: &'a [String],
    /// Where its clients find it.
    pub address: ExportAddress<'a>,
}

/// Where the clients of an export find it; no two have the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExportAddress<'a> {
    /// A UNIX socket of its own.
    Socket(&'a Path),
    /// A name on the NBD server.
    NbdName(&'a str),
}

/// A pure model of the graph: objects, nodes, exports and edges by name, with the rules that they keep.
#[derive(Debug, Clone, Default)]
pub struct GraphModel {
    /// The type of each object.
    objects: BTreeMap<String, &'static str>,
    nodes: BTreeMap<String, ModelNode>,
    exports: BTreeMap<String, ModelExport>,
    uses: UseGraph,
    /// Filters of jobs that have names, by job.
    job_filters: BTreeMap<String, JobFilter>,
}

/// A node of the model.
#[derive(Debug, Clone)]
struct ModelNode {
    /// Whether it takes changes, and all below it that is written with it.
    access: Access,
    activity: Activity,
    objects: Vec<String>,
    owner: NodeOwner,
    is_filter: bool,
}

/// An export of the model.
#[derive(Debug, Clone)]
struct ModelExport {
    address: ModelAddress,
    iothreads: Vec<String>,
}

/// [`ExportAddress`], kept.
#[derive(Debug, Clone, PartialEq, Eq)]
enum ModelAddress {
    Socket(PathBuf),
    NbdName(String),
}

impl ModelAddress {
    fn of(address: ExportAddress<'_>) -> Self {
        match address {
            ExportAddress::Socket(path) => Self::Socket(path.to_owned()),
            ExportAddress::NbdName(name) => Self::NbdName(name.to_owned()),
        }
    }

    fn taken(&self) -> ModelError {
        match self {
            Self::Socket(path) => {
                let name = path.display().to_string();
                ModelError::Duplicate { what: "an export with socket", name }
            }
            Self::NbdName(name) => {
                ModelError::Duplicate { what: "an NBD export named", name: name.clone() }
            }
        }
    }
}

impl GraphModel {
    /// Adds an object.
    pub fn add_object(&mut self, object: TypedObjectId<'_>) -> Result<(), ModelError> {
        let TypedObjectId { kind, id } = object;
        if self.objects.contains_key(id) {
            return Err(ModelError::Duplicate { what: "object id", name: id.to_owned() });
        }
        if kind == MAIN_LOOP && self.objects.values().any(|known| *known == MAIN_LOOP) {
            return Err(ModelError::MainLoopTwice);
        }
        self.objects.insert(id.to_owned(), kind);
        Ok(())
    }

    /// Takes an object away that nothing names.
    pub fn remove_object(&mut self, id: &str) -> Result<(), ModelError> {
        let named = self.nodes.values().flat_map(|node| &node.objects);
        let mut named = named.chain(self.exports.values().flat_map(|export| &export.iothreads));
        if !self.objects.contains_key(id) {
            return Err(ModelError::NoObject(id.to_owned()));
        }
        if named.any(|named| named == id) {
            return Err(ModelError::ObjectInUse(id.to_owned()));
        }
        self.objects.remove(id);
        Ok(())
    }

    /// Whether a node could be added, but for conflicts with others: then whether it takes changes. What stands on a
    /// read-only node is one, as in QEMU.
    pub fn judge(&self, new: &NewNode<'_>) -> Result<Access, ModelError> {
        if self.nodes.contains_key(new.name) || self.is_filter_name(new.name) {
            return Err(ModelError::Duplicate { what: "node-name", name: new.name.to_owned() });
        }
        new.objects.iter().try_for_each(|object| self.find_object(*object))?;
        let mut access = new.access;
        for edge in &new.edges {
            let below = self.find_node(&edge.node, Some(new.name))?;
            if !new.activity.may_stand_on(below.activity) {
                let (node, child, key) = (new.name.to_owned(), edge.node.clone(), edge.key.clone());
                return Err(ModelError::InactiveChild { node, child, key });
            }
            let is_copied_to = matches!(edge.role, ChildRole::CopiedTo | ChildRole::PreservedTo);
            if below.access == Access::ReadOnly && is_copied_to {
                let (node, child) = (new.name.to_owned(), edge.node.clone());
                return Err(ModelError::ReadOnlyTarget { node, child });
            }
            if below.access == Access::ReadOnly && edge.role.is_written() {
                if new.access == Access::ReadWrite && edge.role.is_always_written() {
                    let (node, child) = (new.name.to_owned(), edge.node.clone());
                    return Err(ModelError::ReadOnlyFile { node, child });
                }
                access = Access::ReadOnly;
            }
        }
        if let (Some(bottom), [first, ..]) = (new.bottom, &new.edges[..]) {
            self.check_bottom(new.name, &first.node, bottom)?;
        }
        Ok(access)
    }

    /// Whether a node can be the bottom for the user of that node. QEMU's sentences where it has some.
    fn check_bottom(&self, user: &str, first: &str, bottom: &str) -> Result<(), ModelError> {
        let (user, name) = (user.to_owned(), bottom.to_owned());
        match self.nodes.get(bottom) {
            None if user != bottom => Err(ModelError::NoBottom(name)),
            Some(found) if !found.is_filter => match self.steps(first, bottom) {
                Some(_) => Ok(()),
                None => Err(ModelError::OtherChain { name, user }),
            },
            Some(_) | None => Err(ModelError::BottomFilter(name)),
        }
    }

    /// Whether there is a node for that user to stand on. What is written inside the user later may have its name.
    pub fn check_child(&self, child: &str, user: &str) -> Result<(), ModelError> {
        self.find_node(child, Some(user)).map(drop)
    }

    /// Adds a node over those that are there.
    pub fn add_node(&mut self, new: NewNode<'_>) -> Result<(), ModelError> {
        let access = self.judge(&new)?;
        let NewNode { name, access: asked, activity, edges, objects, owner, is_filter, .. } = new;
        self.uses.add_node(name, asked, edges)?;
        let objects = objects.iter().map(|object| object.id.to_owned()).collect();
        self.nodes
            .insert(name.to_owned(), ModelNode { access, activity, objects, owner, is_filter });
        Ok(())
    }

    /// Takes a node away on which nothing stands, and what was written inside it and nothing else uses, as in QEMU. Gives
    /// the names of all that are gone, upper ones first.
    pub fn remove_node(&mut self, name: &str) -> Result<Vec<String>, ModelError> {
        self.find_node(name, None)?;
        self.check_no_job(name)?;
        if self.uses.is_used(name) {
            return Err(ModelError::NodeInUse(name.to_owned()));
        }
        let (mut gone, mut next) = (Vec::new(), vec![name.to_owned()]);
        while let Some(name) = next.pop() {
            let user = NodeUser::Node(name.clone());
            let below: Vec<_> = self.below(&user).iter().map(|edge| edge.node.clone()).collect();
            self.uses.remove(&user);
            self.nodes.remove(&name);
            gone.push(name);
            let is_alone = |name: &String| {
                let node = self.nodes.get(name);
                node.is_some_and(|it| it.owner == NodeOwner::Parent) && !self.uses.is_used(name)
            };
            next.extend(below.into_iter().filter(is_alone));
        }
        Ok(gone)
    }

    /// Adds an export, which uses what its clients may do and shares all, as those of qemu-storage-daemon do.
    pub fn add_export(&mut self, new: NewExport<'_>) -> Result<(), ModelError> {
        let NewExport { id, node, access, iothreads, address } = new;
        if self.exports.contains_key(id) {
            return Err(ModelError::Duplicate { what: "export id", name: id.to_owned() });
        }
        let below = self.find_node(node, None)?.access;
        if (access, below) == (Access::ReadWrite, Access::ReadOnly) {
            return Err(ModelError::ReadOnlyNode(node.to_owned()));
        }
        self.check_iothreads(iothreads)?;
        if let (ExportAddress::NbdName(_), Activity::Inactive) = (address, self.activity(node)?) {
            return Err(ModelError::InactiveNode(node.to_owned()));
        }
        let address = ModelAddress::of(address);
        if self.exports.values().any(|export| export.address == address) {
            return Err(address.taken());
        }
        self.uses.add_export(id, node, Rights::of_user(access).uses)?;
        let iothreads = iothreads.to_vec();
        self.exports.insert(id.to_owned(), ModelExport { address, iothreads });
        Ok(())
    }

    /// Adds a job over nodes that are there.
    pub fn add_job(&mut self, id: &str, edges: Vec<Edge>) -> Result<(), ModelError> {
        for edge in &edges {
            let found = self.find_node(&edge.node, None)?;
            if found.activity == Activity::Inactive {
                return Err(ModelError::InactiveNode(edge.node.clone()));
            }
            if edge.role.is_written() && found.access == Access::ReadOnly {
                let (child, user) = (edge.node.clone(), NodeUser::Job(id.to_owned()));
                return Err(ModelError::ReadOnlyBelow { child, user });
            }
        }
        Ok(self.uses.add_job(id, edges)?)
    }

    /// Whether no job uses a node by itself.
    pub fn check_no_job(&self, node: &str) -> Result<(), ModelError> {
        self.check_no_job_but(node, &BTreeSet::new())
    }

    /// Whether no job but these uses a node by itself.
    pub fn check_no_job_but(&self, node: &str, but: &BTreeSet<String>) -> Result<(), ModelError> {
        let job = self.users_of(node).into_iter().find_map(|(user, _)| match user {
            NodeUser::Job(id) => Some(id).filter(|id| !but.contains(id)),
            NodeUser::Node(_) | NodeUser::Export(_) => None,
        });
        match job {
            Some(job) => Err(ModelError::Busy { node: node.to_owned(), job }),
            None => Ok(()),
        }
    }

    /// Whether a job writes to a node that stands on what it copies.
    pub fn is_job_overlay(&self, user: &NodeUser) -> bool {
        self.uses.is_job_overlay(user)
    }

    /// What a node is to a job that writes to it while it copies that source.
    pub fn role_of_target(&self, target: &str, source: &str) -> ChildRole {
        let below = self.below(&NodeUser::Node(target.to_owned()));
        let is_source = |edge: &Edge| edge.role == ChildRole::Backing && edge.node == source;
        if below.iter().any(is_source) { ChildRole::JobOverlay } else { ChildRole::JobTarget }
    }

    /// Takes a job away, if it is there.
    pub fn remove_job(&mut self, id: &str) {
        self.job_filters.remove(id);
        self.uses.remove(&NodeUser::Job(id.to_owned()));
    }

    /// Has an export name other iothreads.
    pub fn set_export_iothreads(
        &mut self,
        id: &str,
        iothreads: &[String],
    ) -> Result<(), ModelError> {
        self.check_iothreads(iothreads)?;
        let missing = || ModelError::NoExport(id.to_owned());
        let export = self.exports.get_mut(id).ok_or_else(missing)?;
        export.iothreads = iothreads.to_vec();
        Ok(())
    }

    /// Whether an export may be served by these.
    fn check_iothreads(&self, iothreads: &[String]) -> Result<(), ModelError> {
        for (place, id) in iothreads.iter().enumerate() {
            if self.objects.get(id) == Some(&IOTHREAD_POOL) {
                match iothreads {
                    [_] => continue,
                    _ => return Err(ModelError::PoolBesideOthers(id.clone())),
                }
            }
            self.find_object(TypedObjectId { kind: IOTHREAD, id })?;
            if iothreads[..place].contains(id) {
                return Err(ModelError::IothreadTwice(id.clone()));
            }
        }
        Ok(())
    }

    /// Takes an export away.
    pub fn remove_export(&mut self, id: &str) -> Result<(), ModelError> {
        if self.exports.remove(id).is_none() {
            return Err(ModelError::NoExport(id.to_owned()));
        }
        self.uses.remove(&NodeUser::Export(id.to_owned()));
        Ok(())
    }

    /// Puts another node in the place below a user, or none where there may be none; gives the name of the one that was
    /// there. `optional` is the role of a child that the user may have, if that is one. Conflicts with others are looked for
    /// when all edges of a change are set ([`GraphModel::check_conflicts`]).
    pub fn set_edge(
        &mut self,
        user: &NodeUser,
        key: &str,
        by: Option<&str>,
        optional: Option<ChildRole>,
    ) -> Result<Option<String>, ModelError> {
        let edge = self.below(user).iter().find(|edge| edge.key == key);
        let before = edge.map(|edge| edge.node.clone());
        let no_place = || ModelError::NoPlace { user: user.clone(), key: key.to_owned() };
        let role = match edge {
            Some(edge) if by.is_some() || optional.is_some() => edge.role,
            Some(_) => return Err(no_place()),
            None => optional.ok_or_else(no_place)?,
        };
        if let Some(by) = by {
            self.check_below(user, key, role, by)?;
        }
        self.uses.set_edge(user, (key, role), by);
        Ok(before)
    }

    /// Whether all who use nodes bear with each other, once all edges of a change are set.
    pub fn check_conflicts(&self) -> Result<(), ModelError> {
        Ok(self.uses.check()?)
    }

    /// Whether a node has no bytes of its own, but those of the node that it has as `file`.
    pub(crate) fn is_filter(&self, node: &str) -> bool {
        self.nodes.get(node).is_some_and(|node| node.is_filter)
    }

    /// Whether a node may stand below a user, but for conflicts with others.
    fn check_below(
        &self,
        user: &NodeUser,
        key: &str,
        role: ChildRole,
        by: &str,
    ) -> Result<(), ModelError> {
        let found = self.find_node(by, None)?;
        if let NodeUser::Node(above) = user {
            if let Some(way) = self.uses.path(by, above) {
                return Err(ModelError::Circle([vec![above.clone()], way].concat()));
            }
            let activity = self.find_node(above, None)?.activity;
            if !activity.may_stand_on(found.activity) {
                let (node, child, key) = (above.clone(), by.to_owned(), key.to_owned());
                return Err(ModelError::InactiveChild { node, child, key });
            }
        }
        if role.is_written() && self.takes_changes(user) && found.access == Access::ReadOnly {
            let (child, user) = (by.to_owned(), user.clone());
            return Err(ModelError::ReadOnlyBelow { child, user });
        }
        Ok(())
    }

    /// Every edge, with the permissions that go with it.
    pub fn edges(&self) -> Vec<UsedEdge> {
        self.uses.edges()
    }

    /// The ids of all jobs.
    pub fn jobs(&self) -> impl Iterator<Item = &str> {
        self.uses.jobs()
    }

    /// The ids of all exports.
    pub fn exports(&self) -> impl Iterator<Item = &str> {
        self.exports.keys().map(String::as_str)
    }

    /// What stands on a node, with the keys that it has the node under.
    pub fn users_of(&self, node: &str) -> Vec<(NodeUser, String)> {
        self.uses.users_of(node)
    }

    /// What a node goes with.
    pub fn owner(&self, node: &str) -> Option<NodeOwner> {
        self.nodes.get(node).map(|node| node.owner)
    }

    /// Whether a node takes changes.
    pub fn access(&self, node: &str) -> Result<Access, ModelError> {
        self.find_node(node, None).map(|node| node.access)
    }

    /// What stands below a user, in order.
    pub fn below(&self, user: &NodeUser) -> &[Edge] {
        self.uses.below(user)
    }

    /// The node below an export.
    pub fn root(&self, export: &str) -> Option<&str> {
        let edges = self.below(&NodeUser::Export(export.to_owned()));
        edges.first().map(|edge| edge.node.as_str())
    }

    /// Whether something writes to that node.
    pub fn is_written(&self, node: &str) -> bool {
        let used = self.uses.used(node);
        used.has(Permission::Write) || used.has(Permission::WriteUnchanged)
    }

    /// The exports that stand on a node, directly or not, or the export itself.
    pub fn exports_above(&self, user: &NodeUser) -> BTreeSet<String> {
        let export = |root| match root {
            NodeUser::Export(id) => Some(id),
            NodeUser::Job(_) | NodeUser::Node(_) => None,
        };
        self.roots_above(user).into_iter().filter_map(export).collect()
    }

    /// The jobs that use a node, directly or not, or the job itself.
    pub fn jobs_above(&self, user: &NodeUser) -> BTreeSet<String> {
        let job = |root| match root {
            NodeUser::Job(id) => Some(id),
            NodeUser::Export(_) | NodeUser::Node(_) => None,
        };
        self.roots_above(user).into_iter().filter_map(job).collect()
    }

    fn roots_above(&self, user: &NodeUser) -> BTreeSet<NodeUser> {
        match user {
            NodeUser::Node(name) => self.uses.roots_above(name),
            NodeUser::Export(_) | NodeUser::Job(_) => BTreeSet::from([user.clone()]),
        }
    }

    /// Whether that node is held from the start.
    pub fn activity(&self, node: &str) -> Result<Activity, ModelError> {
        self.find_node(node, None).map(|node| node.activity)
    }

    /// The names of all nodes, and of all objects of a type.
    pub fn names(&self, what: &str) -> Vec<&str> {
        let objects = self.objects.iter().filter(|(_, kind)| **kind == what);
        let nodes = self.nodes.keys().filter(|_| what == NODE);
        nodes.chain(objects.map(|(id, _)| id)).map(String::as_str).collect()
    }

    fn takes_changes(&self, user: &NodeUser) -> bool {
        match user {
            NodeUser::Node(name) => {
                self.nodes.get(name).is_some_and(|node| node.access == Access::ReadWrite)
            }
            NodeUser::Export(_) => self.uses.writes(user),
            NodeUser::Job(_) => true,
        }
    }

    fn find_node(&self, name: &str, user: Option<&str>) -> Result<&ModelNode, ModelError> {
        let missing = || ModelError::NotFound {
            what: NODE,
            name: name.to_owned(),
            user: user.map(str::to_owned),
        };
        self.nodes.get(name).ok_or_else(missing)
    }

    fn find_object(&self, object: TypedObjectId<'_>) -> Result<(), ModelError> {
        let TypedObjectId { kind, id } = object;
        if self.objects.get(id) == Some(&kind) {
            return Ok(());
        }
        Err(ModelError::NotFound { what: kind, name: id.to_owned(), user: None })
    }
}
