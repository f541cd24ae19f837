//! Which node or export uses which node for what, and what it lets others do with it meanwhile.
//!
//! Where it stands: an edge leads from a user, a node, an export or a job, to the node below. It uses some
//! permissions and shares some; two users meet on a node only if each shares what the other uses.
//!
//! Invariants: there is no circle and no conflict in it. What is refused leaves it as it was.

use std::collections::{BTreeMap, BTreeSet};

use block::{Access, Permission, Permissions, Rights};

use super::permissions::{ChildRole, NodeUser, PermissionConflict};

/// The key under which an export has its node.
pub(crate) const ROOT: &str = "root";

/// An edge of the graph: key, role and child node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Edge {
    /// The key that the node stands under, as `file`; `root` below an export.
    pub key: String,
    /// What the node is there.
    pub role: ChildRole,
    /// The node.
    pub node: String,
}

impl Edge {
    /// What is below an export.
    pub(super) fn root(node: &str) -> Self {
        Self { key: ROOT.to_owned(), role: ChildRole::Filtered, node: node.to_owned() }
    }
}

/// All edges of the model, with the permissions that each user needs and shares.
#[derive(Debug, Clone, Default)]
pub(super) struct UseGraph {
    users: BTreeMap<NodeUser, UserRecord>,
    /// What stands on each node: one entry for each edge.
    above: BTreeMap<String, Vec<ParentEdge>>,
}

/// An edge with the permissions that go with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsedEdge {
    /// What stands above.
    pub user: NodeUser,
    /// The key that the node stands under.
    pub key: String,
    /// The node.
    pub node: String,
    /// What the user does with it.
    pub uses: Permissions,
    /// What others may do meanwhile.
    pub shares: Permissions,
}

/// An edge as its child sees it: the user, its key and role.
#[derive(Debug, Clone)]
struct ParentEdge {
    user: NodeUser,
    key: String,
    role: ChildRole,
}

/// A user's edges, and the permissions that it needs by itself.
#[derive(Debug, Clone)]
struct UserRecord {
    edges: Vec<Edge>,
    /// What it uses of the nodes below by itself.
    own: Permissions,
    /// Whether it takes changes.
    access: Access,
}

/// The rights that were found for users already, so that a shared node is looked at once.
type RightsCache<'a> = BTreeMap<&'a NodeUser, Rights>;

impl UseGraph {
    /// Adds a node over those that are there. Takes it back if they cannot be used like that.
    pub(super) fn add_node(
        &mut self,
        name: &str,
        access: Access,
        edges: Vec<Edge>,
    ) -> Result<(), Box<PermissionConflict>> {
        let own = Permissions::NONE;
        self.add(&NodeUser::Node(name.to_owned()), UserRecord { edges, own, access })
    }

    /// Adds an export of that node, which uses these permissions and shares all, as those of
    /// qemu-storage-daemon do. Takes it back if it cannot.
    pub(super) fn add_export(
        &mut self,
        id: &str,
        node: &str,
        own: Permissions,
    ) -> Result<(), Box<PermissionConflict>> {
        // Whether it takes changes says nothing that `own` does not.
        let below = UserRecord { edges: vec![Edge::root(node)], own, access: Access::ReadWrite };
        self.add(&NodeUser::Export(id.to_owned()), below)
    }

    /// Adds a job over those that are there. Takes it back if they cannot be used like that.
    pub(super) fn add_job(
        &mut self,
        id: &str,
        edges: Vec<Edge>,
    ) -> Result<(), Box<PermissionConflict>> {
        let below = UserRecord { edges, own: Permissions::NONE, access: Access::ReadWrite };
        self.add(&NodeUser::Job(id.to_owned()), below)
    }

    /// The ids of all jobs.
    pub(super) fn jobs(&self) -> impl Iterator<Item = &str> {
        self.users.keys().filter_map(|user| match user {
            NodeUser::Job(id) => Some(id.as_str()),
            NodeUser::Node(_) | NodeUser::Export(_) => None,
        })
    }

    /// Has a node take changes or not.
    pub(super) fn set_access(&mut self, name: &str, access: Access) {
        if let Some(user) = self.users.get_mut(&NodeUser::Node(name.to_owned())) {
            user.access = access;
        }
    }

    /// What all who stand on a node use of it.
    pub(super) fn used(&self, node: &str) -> Permissions {
        let found = &mut RightsCache::new();
        let users = self.above.get(node).into_iter().flatten();
        users
            .fold(Permissions::NONE, |all, above| all.union(self.rights_of_edge(above, found).uses))
    }

    /// Whether anything stands on a node.
    pub(super) fn is_used(&self, node: &str) -> bool {
        self.above.get(node).is_some_and(|above| !above.is_empty())
    }

    /// What stands below a user, in order.
    pub(super) fn below(&self, user: &NodeUser) -> &[Edge] {
        self.users.get(user).map_or(&[], |below| &below.edges)
    }

    /// Whether this user writes by itself, whatever those above it do.
    pub(super) fn writes(&self, user: &NodeUser) -> bool {
        self.users.get(user).is_some_and(|below| below.own.has(Permission::Write))
    }

    /// Puts another node in the place under a key, a node where none was (with that role), or none. Whether the users can meet
    /// then is another question ([`UseGraph::check`]): of several changes each may need the others.
    pub(super) fn set_edge(
        &mut self,
        user: &NodeUser,
        (key, role): (&str, ChildRole),
        node: Option<&str>,
    ) {
        let Some(mut after) = self.users.get(user).cloned() else { return };
        let place = after.edges.iter().position(|edge| edge.key == key);
        match (place, node) {
            (Some(place), Some(node)) => node.clone_into(&mut after.edges[place].node),
            (Some(place), None) => drop(after.edges.remove(place)),
            (None, Some(node)) => {
                after.edges.push(Edge { key: key.to_owned(), role, node: node.to_owned() });
            }
            (None, None) => {}
        }
        self.remove(user);
        self.insert(user, after);
    }

    /// Whether all users of all nodes can meet there.
    pub(super) fn check(&self) -> Result<(), Box<PermissionConflict>> {
        let found = &mut RightsCache::new();
        self.above.keys().try_for_each(|node| self.check_node(node, found))
    }

    /// Every edge, with what its user uses of the node below and what it shares.
    pub(super) fn edges(&self) -> Vec<UsedEdge> {
        let found = &mut RightsCache::new();
        let mut edges = Vec::new();
        for (node, above) in &self.above {
            for edge in above {
                let Rights { uses, shares } = self.rights_of_edge(edge, found);
                let (user, key) = (edge.user.clone(), edge.key.clone());
                edges.push(UsedEdge { user, key, node: node.clone(), uses, shares });
            }
        }
        edges
    }

    /// What stands on a node, with the keys that it has the node under.
    pub(super) fn users_of(&self, node: &str) -> Vec<(NodeUser, String)> {
        let above = self.above.get(node).into_iter().flatten();
        above.map(|above| (above.user.clone(), above.key.clone())).collect()
    }

    /// A way down from one node to another, both included; `None` if there is none.
    pub(super) fn path(&self, from: &str, to: &str) -> Option<Vec<String>> {
        path_down(&|node| self.below(&NodeUser::Node(node.to_owned())), from, to)
    }

    /// The exports and jobs that stand on a node, directly or not.
    pub(super) fn roots_above(&self, node: &str) -> BTreeSet<NodeUser> {
        let (mut roots, mut seen) = (BTreeSet::new(), BTreeSet::new());
        let mut next = vec![node];
        while let Some(node) = next.pop() {
            if !seen.insert(node) {
                continue;
            }
            for above in self.above.get(node).into_iter().flatten() {
                match &above.user {
                    NodeUser::Node(name) => next.push(name),
                    root @ (NodeUser::Export(_) | NodeUser::Job(_)) => {
                        roots.insert(root.clone());
                    }
                }
            }
        }
        roots
    }

    fn add(&mut self, user: &NodeUser, below: UserRecord) -> Result<(), Box<PermissionConflict>> {
        self.insert(user, below);
        self.check_below(user).inspect_err(|_| self.remove(user))
    }

    fn insert(&mut self, user: &NodeUser, below: UserRecord) {
        for edge in &below.edges {
            let above = ParentEdge { user: user.clone(), key: edge.key.clone(), role: edge.role };
            self.above.entry(edge.node.clone()).or_default().push(above);
        }
        let before = self.users.insert(user.clone(), below);
        assert!(before.is_none(), "{user} is there already");
    }

    /// Takes a node or an export away on which nobody stands.
    pub(super) fn remove(&mut self, user: &NodeUser) {
        let below = self.users.remove(user);
        for edge in below.into_iter().flat_map(|below| below.edges) {
            if let Some(users) = self.above.get_mut(&edge.node) {
                users.retain(|above| above.user != *user);
            }
        }
    }

    /// Whether all users of the nodes below this one can meet there.
    fn check_below(&self, user: &NodeUser) -> Result<(), Box<PermissionConflict>> {
        let (mut nodes, mut next) = (BTreeSet::new(), vec![user.clone()]);
        while let Some(user) = next.pop() {
            for edge in self.users.get(&user).into_iter().flat_map(|below| &below.edges) {
                if nodes.insert(&edge.node) {
                    next.push(NodeUser::Node(edge.node.clone()));
                }
            }
        }
        let found = &mut RightsCache::new();
        nodes.into_iter().try_for_each(|node| self.check_node(node, found))
    }

    /// Whether all who use a node share what the others use.
    fn check_node<'a>(
        &'a self,
        node: &str,
        found: &mut RightsCache<'a>,
    ) -> Result<(), Box<PermissionConflict>> {
        let users = self.above.get(node).into_iter().flatten();
        let asked: Vec<(&ParentEdge, Rights)> =
            users.map(|above| (above, self.rights_of_edge(above, found))).collect();
        let keepers = asked.iter().enumerate().filter(|(_, (_, it))| it.shares != Permissions::ALL);
        for (place, (keeps, kept)) in keepers {
            for (other, (wants, wanted)) in asked.iter().enumerate() {
                let permissions = wanted.uses.without(kept.shares);
                if place != other && permissions != Permissions::NONE {
                    return Err(Box::new(PermissionConflict {
                        node: node.to_owned(),
                        permissions,
                        as_wanted: wants.key.clone(),
                        wants: wants.user.clone(),
                        as_kept: keeps.key.clone(),
                        keeps: keeps.user.clone(),
                    }));
                }
            }
        }
        Ok(())
    }

    /// What a user asks of the node.
    fn rights_of_edge<'a>(&'a self, above: &'a ParentEdge, found: &mut RightsCache<'a>) -> Rights {
        let Rights { uses, shares } = self.rights_of_user(&above.user, found);
        let (reads, unchanged) = (Permissions::READS, Permission::WriteUnchanged);
        // As in QEMU, whoever does not bear with changes bears with what changes nothing.
        let kept = reads.and(unchanged);
        match (above.role, self.users[&above.user].access) {
            (ChildRole::Filtered, _) => Rights { uses, shares },
            // Between a look at what is missing and the copy of it nobody else may write it; QEMU holds off such writes at
            // the child instead.
            (ChildRole::CopiedTo, _) => {
                Rights { uses: uses.and(unchanged), shares: shares.both(kept) }
            }
            (ChildRole::Member, _) => Rights { uses, shares: shares.both(kept) },
            (ChildRole::JobSource, _) => {
                let shares = Permissions::ALL.without(Permissions::NONE.and(Permission::Resize));
                Rights { uses: reads, shares }
            }
            (ChildRole::JobBase, _) => Rights { uses: reads.and(unchanged), shares: kept },
            (ChildRole::JobTarget, _) => {
                let uses = Permissions::WRITES.and(Permission::Resize);
                Rights { uses, shares: kept }
            }
            (ChildRole::JobOverlay, _) => {
                let uses = Permissions::WRITES.and(Permission::Resize);
                Rights { uses, shares: Permissions::NONE }
            }
            // The job that writes there bears with it.
            (ChildRole::Backing, _) if self.is_job_overlay(&above.user) => {
                let resizes = Permissions::NONE.and(Permission::Resize);
                Rights { uses: reads, shares: Permissions::ALL.without(resizes) }
            }
            // As long as nobody needs the image, it does not matter what becomes of what it stands on.
            (ChildRole::Backing, _) if uses == Permissions::NONE => {
                Rights { uses, shares: Permissions::ALL }
            }
            (ChildRole::Backing, _) => Rights { uses: uses.both(reads), shares: kept },
            // As in QEMU, what nobody uses keeps nobody away.
            (ChildRole::Preserved, _) if !self.has_users(&above.user) => Rights { uses, shares },
            (ChildRole::Preserved, _) => {
                let shares = shares.without(Permissions::CHANGES);
                Rights { uses: uses.union(reads), shares }
            }
            (ChildRole::PreservedTo, _) => {
                let resizes = Permissions::NONE.and(Permission::Resize);
                let uses = Permissions::NONE.and(Permission::Write);
                Rights { uses, shares: Permissions::ALL.without(resizes) }
            }
            (ChildRole::AtInstant, _) => {
                Rights { uses: Permissions::NONE, shares: Permissions::ALL }
            }
            (ChildRole::Metadata | ChildRole::Data, Access::ReadOnly) => {
                Rights { uses: reads, shares: kept }
            }
            (ChildRole::Metadata | ChildRole::Data, Access::ReadWrite) => {
                let uses = Permissions::WRITES.and(Permission::Resize);
                Rights { uses, shares: kept }
            }
        }
    }

    /// Whether a job writes to a node that stands on what it copies.
    pub(super) fn is_job_overlay(&self, user: &NodeUser) -> bool {
        let NodeUser::Node(name) = user else { return false };
        let mut above = self.above.get(name).into_iter().flatten();
        above.any(|edge| edge.role == ChildRole::JobOverlay)
    }

    fn has_users(&self, user: &NodeUser) -> bool {
        match user {
            NodeUser::Node(name) => self.is_used(name),
            NodeUser::Export(_) | NodeUser::Job(_) => true,
        }
    }

    /// What is asked of a user: by itself, and by those above it.
    fn rights_of_user<'a>(&'a self, user: &'a NodeUser, found: &mut RightsCache<'a>) -> Rights {
        if let Some(asked) = found.get(user) {
            return *asked;
        }
        let mut all = Rights { uses: self.users[user].own, shares: Permissions::ALL };
        if let NodeUser::Node(name) = user {
            for above in self.above.get(name).into_iter().flatten() {
                let asked = self.rights_of_edge(above, found);
                all.uses = all.uses.union(asked.uses);
                all.shares = all.shares.both(asked.shares);
            }
        }
        found.insert(user, all);
        all
    }
}

/// A way down from one node to another, both included, where this stands below each.
pub fn path_down<'a>(
    below: &impl Fn(&str) -> &'a [Edge],
    from: &str,
    to: &str,
) -> Option<Vec<String>> {
    fn unseen<'a>(
        below: &impl Fn(&str) -> &'a [Edge],
        from: &str,
        to: &str,
        seen: &mut BTreeSet<String>,
    ) -> Option<Vec<String>> {
        if from == to {
            return Some(vec![to.to_owned()]);
        }
        if !seen.insert(from.to_owned()) {
            return None;
        }
        let mut edges = below(from).iter();
        let mut way = edges.find_map(|edge| unseen(below, &edge.node, to, seen))?;
        way.insert(0, from.to_owned());
        Some(way)
    }
    unseen(below, from, to, &mut BTreeSet::new())
}

#[cfg(test)]
mod tests {
    use super::*;

    const WRITES: Permissions = Permissions::WRITES;

    /// What a node does with its children.
    #[derive(Clone, Copy)]
    enum Kind {
        Filter,
        Image(Access),
        Stripe,
    }

    /// `node` with the children of a driver, in the words of the command line.
    fn add(uses: &mut UseGraph, node: &str, kind: Kind, below: &[&str]) -> Result<(), String> {
        let place = |place: usize| match kind {
            Kind::Filter => ("file".to_owned(), ChildRole::Filtered),
            Kind::Image(_) if place == 0 => ("file".to_owned(), ChildRole::Metadata),
            Kind::Image(_) => ("backing".to_owned(), ChildRole::Backing),
            Kind::Stripe => (format!("children.{place}"), ChildRole::Member),
        };
        let edge = |(number, node): (usize, &&str)| {
            let (key, role) = place(number);
            Edge { key, role, node: (*node).into() }
        };
        let edges = below.iter().enumerate().map(edge).collect();
        let access = if let Kind::Image(access) = kind { access } else { Access::ReadWrite };
        uses.add_node(node, access, edges).map_err(|error| error.to_string())
    }

    fn plain(uses: &mut UseGraph, nodes: &[&str]) {
        nodes.iter().for_each(|node| add(uses, node, Kind::Filter, &[]).unwrap());
    }

    fn export(uses: &mut UseGraph, node: &str, own: Permissions) -> Result<(), String> {
        let id = format!("e{}", uses.users.len());
        uses.add_export(&id, node, own).map_err(|error| error.to_string())
    }

    #[test]
    fn exports_and_what_passes_on_meet_on_one_node() {
        let mut uses = UseGraph::default();
        plain(&mut uses, &["n"]);
        add(&mut uses, "a", Kind::Filter, &["n"]).unwrap();
        add(&mut uses, "b", Kind::Filter, &["n"]).unwrap();
        assert_eq!(uses.used("n"), Permissions::NONE);
        export(&mut uses, "a", Permissions::READS).unwrap();
        assert_eq!(uses.used("n"), Permissions::READS);
        for node in ["a", "b", "n", "n"] {
            export(&mut uses, node, WRITES).unwrap();
        }
        assert_eq!((uses.used("n"), uses.used("b")), (WRITES, WRITES));
    }

    #[test]
    fn who_is_alone_lets_others_read_and_not_write() {
        let mut uses = UseGraph::default();
        plain(&mut uses, &["n", "m"]);
        add(&mut uses, "q", Kind::Stripe, &["n", "m"]).unwrap();
        export(&mut uses, "n", Permissions::READS).unwrap();
        export(&mut uses, "q", WRITES).unwrap();
        let refused = export(&mut uses, "n", WRITES).unwrap_err();
        assert_eq!(
            refused,
            "Permission conflict on node 'n': permissions 'write' are both required by export 'e5' \
             (uses node 'n' as 'root' child) and unshared by node 'q' (uses node 'n' as \
             'children.0' child)"
        );
        // What was refused is not there.
        assert_eq!(uses.used("m"), WRITES);
        let resizes = Permissions::READS.and(Permission::Resize);
        let refused = export(&mut uses, "m", resizes).unwrap_err();
        assert!(refused.contains("permissions 'resize' are both required by export 'e5'"));
        export(&mut uses, "m", Permissions::READS).unwrap();
    }

    #[test]
    fn it_counts_who_writes_far_above_and_who_came_first_does_not() {
        let mut uses = UseGraph::default();
        plain(&mut uses, &["n", "m"]);
        add(&mut uses, "r", Kind::Filter, &["n"]).unwrap();
        add(&mut uses, "s", Kind::Filter, &["r"]).unwrap();
        export(&mut uses, "s", WRITES).unwrap();
        let refused = add(&mut uses, "q", Kind::Stripe, &["n", "m"]).unwrap_err();
        assert!(refused.contains("'write' are both required by node 'r'"), "{refused}");
        assert!(refused.contains("unshared by node 'q'"), "{refused}");
        // Two of its own that are written: each lets nobody else write.
        add(&mut uses, "twice", Kind::Stripe, &["m", "m"]).unwrap();
        export(&mut uses, "twice", Permissions::READS).unwrap();
        export(&mut uses, "twice", WRITES).unwrap_err();
    }

    #[test]
    fn a_change_is_judged_when_all_of_it_is_made() {
        let mut uses = UseGraph::default();
        plain(&mut uses, &["n", "m"]);
        add(&mut uses, "q", Kind::Stripe, &["n"]).unwrap();
        add(&mut uses, "r", Kind::Filter, &["m"]).unwrap();
        export(&mut uses, "r", WRITES).unwrap();
        let r = NodeUser::Node("r".to_owned());
        let mut refused = uses.clone();
        refused.set_edge(&r, ("file", ChildRole::Filtered), Some("n"));
        refused.check().unwrap_err();
        assert_eq!((uses.used("m"), uses.used("n")), (WRITES, Permissions::NONE));
        uses.set_edge(&r, ("file", ChildRole::Filtered), Some("q"));
        uses.check().unwrap();
        assert_eq!((uses.used("m"), uses.used("n")), (Permissions::NONE, WRITES));
        assert_eq!(uses.path("r", "n"), Some(["r", "q", "n"].map(str::to_owned).to_vec()));
        assert_eq!(uses.path("n", "r"), None);
        let exports = BTreeSet::from([NodeUser::Export("e4".to_owned())]);
        assert_eq!(uses.roots_above("n"), exports);
        assert_eq!(uses.roots_above("m"), BTreeSet::new());
    }

    #[test]
    fn an_image_writes_to_its_file_whoever_is_above_and_only_reads_what_it_stands_on() {
        let mut uses = UseGraph::default();
        plain(&mut uses, &["f", "b"]);
        add(&mut uses, "q", Kind::Image(Access::ReadWrite), &["f", "b"]).unwrap();
        let resizes = WRITES.and(Permission::Resize);
        assert_eq!((uses.used("f"), uses.used("b")), (resizes, Permissions::NONE));
        let refused = export(&mut uses, "f", WRITES).unwrap_err();
        assert!(refused.contains("'write' are both required by export"), "{refused}");
        assert!(
            refused.contains("unshared by node 'q' (uses node 'f' as 'file' child)"),
            "{refused}"
        );
        export(&mut uses, "f", Permissions::READS).unwrap();
        export(&mut uses, "q", WRITES).unwrap();
        export(&mut uses, "q", WRITES).unwrap();
        assert_eq!(uses.used("b"), Permissions::READS);
        let refused = export(&mut uses, "b", WRITES).unwrap_err();
        assert!(refused.contains("unshared by node 'q' (uses node 'b' as 'backing'"), "{refused}");
        // Several may stand on one backing image; two images in one file nobody can tell apart.
        plain(&mut uses, &["g"]);
        add(&mut uses, "r", Kind::Image(Access::ReadWrite), &["g", "b"]).unwrap();
        add(&mut uses, "s", Kind::Image(Access::ReadWrite), &["g", "b"]).unwrap_err();
        add(&mut uses, "t", Kind::Image(Access::ReadOnly), &["b"]).unwrap();
        assert_eq!(uses.used("b"), Permissions::READS);
        // An overlay that was committed into is no base any more.
        add(&mut uses, "u", Kind::Image(Access::ReadWrite), &["b"]).unwrap_err();
    }
}
