//! Who uses which node for what, and what they let others do with it meanwhile: QEMU's permissions.
//!
//! Where it stands: before anything is opened the plan is put into it, node by node; a change of the graph
//! asks it first. An edge leads from a user, a node or an export, to the node below. It uses some
//! permissions and shares some; two users meet on a node only if each shares what the other uses.
//!
//! Invariants: what is in it has no cycle and no conflict, if everything was admitted that was added.
//! Not here: locks against other processes (`kernel_io::image_lock`), opening (the graph).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use block::Access;

use crate::options::ExportOptions;

/// What can be done with a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Permission {
    /// Read, and find what was written.
    ConsistentRead,
    /// Write.
    Write,
    /// Change the size.
    Resize,
}

const ALL: [Permission; 3] = [Permission::ConsistentRead, Permission::Write, Permission::Resize];

impl fmt::Display for Permission {
    /// QEMU's names.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ConsistentRead => "consistent read",
            Self::Write => "write",
            Self::Resize => "resize",
        })
    }
}

/// A set of permissions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Permissions(u8);

impl Permissions {
    /// The empty set.
    pub(crate) const NONE: Self = Self(0);
    /// All of them.
    pub(crate) const ALL: Self = Self::READS.and(Permission::Write).and(Permission::Resize);
    /// What who only reads uses.
    pub(crate) const READS: Self = Self::NONE.and(Permission::ConsistentRead);

    /// What an export uses of its node.
    pub(crate) fn of_export(options: &ExportOptions) -> Self {
        if options.writable { Self::READS.and(Permission::Write) } else { Self::READS }
    }

    /// This set and one more.
    pub(crate) const fn and(self, permission: Permission) -> Self {
        Self(self.0 | 1 << permission as u8)
    }

    /// Whether it is in the set.
    pub(crate) const fn has(self, permission: Permission) -> bool {
        self.0 & (1 << permission as u8) != 0
    }

    const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    const fn both(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }
}

impl fmt::Display for Permissions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<String> =
            ALL.into_iter().filter(|it| self.has(*it)).map(|it| it.to_string()).collect();
        f.write_str(&names.join(", "))
    }
}

/// What a node does to what is asked of it, on the way to its children.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PassesOn {
    /// It uses of its children what is used of it, and shares what those above it share.
    AsAsked,
    /// The same, but its children together have a meaning that writing to one of them destroys: it lets
    /// others only read them.
    Alone,
    /// It is an image with metadata in its children. It lets others only read them. If it takes changes, it
    /// writes to them and lets them grow whatever is done above; but [`BACKING`] it only reads.
    Image(Access),
}

/// The key under which an image has the node that it is in.
pub(crate) const IMAGE: &str = "file";

/// The key under which an image has the node that shows what is not in the image itself.
pub(crate) const BACKING: &str = "backing";

/// The key under which an image has the node that its data are in, if they are not in the image.
pub(crate) const DATA_FILE: &str = "data-file";

/// The key under which an export has its node.
pub(crate) const ROOT: &str = "root";

/// The place below a user, and the node that is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Edge {
    /// The key that the node stands under, as `file`; `root` below an export.
    pub(crate) role: String,
    /// The node.
    pub(crate) node: String,
}

/// Who uses nodes. Nodes come before exports in what is said first.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum User {
    /// A node, by name.
    Node(String),
    /// An export, by id.
    Export(String),
}

impl fmt::Display for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node(name) => write!(f, "node '{name}'"),
            Self::Export(id) => write!(f, "export '{id}'"),
        }
    }
}

/// Two users that cannot meet on a node. QEMU's sentence.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "Permission conflict on node '{node}': permissions '{permissions}' are both required by {wants} \
     (uses node '{node}' as '{as_wanted}' child) and unshared by {keeps} (uses node '{node}' as \
     '{as_kept}' child)"
)]
pub struct Conflict {
    node: String,
    permissions: Permissions,
    wants: User,
    as_wanted: String,
    keeps: User,
    as_kept: String,
}

/// All nodes and exports, and who uses whom.
#[derive(Debug, Clone, Default)]
pub(crate) struct Uses {
    users: BTreeMap<User, Below>,
    /// Who stands on each node, and under which key: one entry for each edge.
    above: BTreeMap<String, Vec<(User, String)>>,
}

#[derive(Debug, Clone)]
struct Below {
    edges: Vec<Edge>,
    /// What it uses of the nodes below by itself.
    own: Permissions,
    passes_on: PassesOn,
}

/// What one user asks of those below it.
#[derive(Debug, Clone, Copy)]
struct Asked {
    uses: Permissions,
    shares: Permissions,
}

/// What was found already, so that a node that many stand on is looked at once.
type Found<'a> = BTreeMap<&'a User, Asked>;

impl Uses {
    /// Adds a node over those that are there. Takes it back if they cannot be used like that.
    pub(crate) fn add_node(
        &mut self,
        name: &str,
        passes_on: PassesOn,
        edges: Vec<Edge>,
    ) -> Result<(), Box<Conflict>> {
        let own = Permissions::NONE;
        self.add(&User::Node(name.to_owned()), Below { edges, own, passes_on })
    }

    /// Adds an export of that node, which uses these permissions and shares all, as those of
    /// qemu-storage-daemon do. Takes it back if it cannot.
    pub(crate) fn add_export(
        &mut self,
        id: &str,
        node: &str,
        own: Permissions,
    ) -> Result<(), Box<Conflict>> {
        let edges = vec![Edge { role: ROOT.to_owned(), node: node.to_owned() }];
        let below = Below { edges, own, passes_on: PassesOn::AsAsked };
        self.add(&User::Export(id.to_owned()), below)
    }

    /// What all who stand on a node use of it.
    #[cfg(test)]
    pub(crate) fn used(&self, node: &str) -> Permissions {
        let found = &mut Found::new();
        let users = self.above.get(node).into_iter().flatten();
        users.fold(Permissions::NONE, |all, (user, role)| {
            all.union(self.asks(user, role, found).uses)
        })
    }

    /// Whether this user writes by itself, whatever those above it do.
    pub(crate) fn writes(&self, user: &User) -> bool {
        self.users.get(user).is_some_and(|below| below.own.has(Permission::Write))
    }

    /// Puts another node in the place of one. Leaves it as it was if the users cannot meet then.
    pub(crate) fn replace(
        &mut self,
        user: &User,
        role: &str,
        by: &str,
    ) -> Result<(), Box<Conflict>> {
        let Some(before) = self.users.get(user).cloned() else { return Ok(()) };
        let mut after = before.clone();
        for edge in after.edges.iter_mut().filter(|edge| edge.role == role) {
            by.clone_into(&mut edge.node);
        }
        self.remove(user);
        self.add(user, after).inspect_err(|_| {
            // It was legal before.
            let _put_back = self.add(user, before);
        })
    }

    /// A way down from one node to another, both included; `None` if there is none.
    pub(crate) fn path(&self, from: &str, to: &str) -> Option<Vec<String>> {
        self.path_unseen(from, to, &mut BTreeSet::new())
    }

    fn path_unseen(
        &self,
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
        let below = self.users.get(&User::Node(from.to_owned()))?;
        let mut edges = below.edges.iter();
        let mut path = edges.find_map(|edge| self.path_unseen(&edge.node, to, seen))?;
        path.insert(0, from.to_owned());
        Some(path)
    }

    /// The exports that stand on a node, directly or not.
    pub(crate) fn exports_above(&self, node: &str) -> BTreeSet<String> {
        let (mut exports, mut seen) = (BTreeSet::new(), BTreeSet::new());
        let mut next = vec![node];
        while let Some(node) = next.pop() {
            if !seen.insert(node) {
                continue;
            }
            for (user, _) in self.above.get(node).into_iter().flatten() {
                match user {
                    User::Node(name) => next.push(name),
                    User::Export(id) => {
                        exports.insert(id.clone());
                    }
                }
            }
        }
        exports
    }

    fn add(&mut self, user: &User, below: Below) -> Result<(), Box<Conflict>> {
        for edge in &below.edges {
            let above = (user.clone(), edge.role.clone());
            self.above.entry(edge.node.clone()).or_default().push(above);
        }
        let before = self.users.insert(user.clone(), below);
        assert!(before.is_none(), "{user} is there already");
        self.check_below(user).inspect_err(|_| self.remove(user))
    }

    /// Takes a node or an export away on which nobody stands.
    pub(crate) fn remove(&mut self, user: &User) {
        let below = self.users.remove(user);
        for edge in below.into_iter().flat_map(|below| below.edges) {
            if let Some(users) = self.above.get_mut(&edge.node) {
                users.retain(|(other, _)| other != user);
            }
        }
    }

    /// Whether all users of the nodes below this one can meet there.
    fn check_below(&self, user: &User) -> Result<(), Box<Conflict>> {
        let (mut nodes, mut next) = (BTreeSet::new(), vec![user.clone()]);
        while let Some(user) = next.pop() {
            for edge in self.users.get(&user).into_iter().flat_map(|below| &below.edges) {
                if nodes.insert(&edge.node) {
                    next.push(User::Node(edge.node.clone()));
                }
            }
        }
        let found = &mut Found::new();
        nodes.into_iter().try_for_each(|node| self.check_node(node, found))
    }

    /// Whether all who use a node share what the others use.
    fn check_node<'a>(&'a self, node: &str, found: &mut Found<'a>) -> Result<(), Box<Conflict>> {
        let asked: Vec<(&User, &String, Asked)> = self
            .above
            .get(node)
            .into_iter()
            .flatten()
            .map(|(user, role)| (user, role, self.asks(user, role, found)))
            .collect();
        let keepers =
            asked.iter().enumerate().filter(|(_, (_, _, it))| it.shares != Permissions::ALL);
        for (place, (keeps, as_kept, kept)) in keepers {
            for (other, (wants, as_wanted, wanted)) in asked.iter().enumerate() {
                let permissions = wanted.uses.without(kept.shares);
                if place != other && permissions != Permissions::NONE {
                    return Err(Box::new(Conflict {
                        node: node.to_owned(),
                        permissions,
                        as_wanted: (*as_wanted).clone(),
                        wants: (*wants).clone(),
                        as_kept: (*as_kept).clone(),
                        keeps: (*keeps).clone(),
                    }));
                }
            }
        }
        Ok(())
    }

    /// What a user asks of the node that it has under this key.
    fn asks<'a>(&'a self, user: &'a User, role: &str, found: &mut Found<'a>) -> Asked {
        let Asked { uses, shares } = self.hears(user, found);
        match self.users[user].passes_on {
            PassesOn::AsAsked => Asked { uses, shares },
            PassesOn::Alone => Asked { uses, shares: shares.both(Permissions::READS) },
            PassesOn::Image(_) if role == BACKING => {
                Asked { uses: uses.both(Permissions::READS), shares: Permissions::READS }
            }
            PassesOn::Image(Access::ReadOnly) => {
                Asked { uses: Permissions::READS, shares: Permissions::READS }
            }
            PassesOn::Image(Access::ReadWrite) => {
                Asked { uses: Permissions::ALL, shares: Permissions::READS }
            }
        }
    }

    /// What is asked of a user: by itself, and by those above it.
    fn hears<'a>(&'a self, user: &'a User, found: &mut Found<'a>) -> Asked {
        if let Some(asked) = found.get(user) {
            return *asked;
        }
        let mut all = Asked { uses: self.users[user].own, shares: Permissions::ALL };
        if let User::Node(name) = user {
            for (user, role) in self.above.get(name).into_iter().flatten() {
                let asked = self.asks(user, role, found);
                all.uses = all.uses.union(asked.uses);
                all.shares = all.shares.both(asked.shares);
            }
        }
        found.insert(user, all);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WRITES: Permissions = Permissions::READS.and(Permission::Write);

    /// `node` with the children of a driver, in the words of the command line.
    fn add(uses: &mut Uses, node: &str, passes_on: PassesOn, below: &[&str]) -> Result<(), String> {
        let role = |place: usize| match passes_on {
            PassesOn::AsAsked => "file".to_owned(),
            PassesOn::Image(_) => ["file", BACKING][place].to_owned(),
            PassesOn::Alone => format!("children.{place}"),
        };
        let edge = |(place, node): (usize, &&str)| Edge { role: role(place), node: (*node).into() };
        let edges = below.iter().enumerate().map(edge).collect();
        uses.add_node(node, passes_on, edges).map_err(|error| error.to_string())
    }

    fn plain(uses: &mut Uses, nodes: &[&str]) {
        nodes.iter().for_each(|node| add(uses, node, PassesOn::AsAsked, &[]).unwrap());
    }

    fn export(uses: &mut Uses, node: &str, own: Permissions) -> Result<(), String> {
        let id = format!("e{}", uses.users.len());
        uses.add_export(&id, node, own).map_err(|error| error.to_string())
    }

    #[test]
    fn exports_and_what_passes_on_meet_on_one_node() {
        let mut uses = Uses::default();
        plain(&mut uses, &["n"]);
        add(&mut uses, "a", PassesOn::AsAsked, &["n"]).unwrap();
        add(&mut uses, "b", PassesOn::AsAsked, &["n"]).unwrap();
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
        let mut uses = Uses::default();
        plain(&mut uses, &["n", "m"]);
        add(&mut uses, "q", PassesOn::Alone, &["n", "m"]).unwrap();
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
        let mut uses = Uses::default();
        plain(&mut uses, &["n", "m"]);
        add(&mut uses, "r", PassesOn::AsAsked, &["n"]).unwrap();
        add(&mut uses, "s", PassesOn::AsAsked, &["r"]).unwrap();
        export(&mut uses, "s", WRITES).unwrap();
        let refused = add(&mut uses, "q", PassesOn::Alone, &["n", "m"]).unwrap_err();
        assert!(refused.contains("'write' are both required by node 'r'"), "{refused}");
        assert!(refused.contains("unshared by node 'q'"), "{refused}");
        // Two of its own that are written: each lets nobody else write.
        add(&mut uses, "twice", PassesOn::Alone, &["m", "m"]).unwrap();
        export(&mut uses, "twice", Permissions::READS).unwrap();
        export(&mut uses, "twice", WRITES).unwrap_err();
    }

    #[test]
    fn a_change_that_is_refused_leaves_everything_as_it_was() {
        let mut uses = Uses::default();
        plain(&mut uses, &["n", "m"]);
        add(&mut uses, "q", PassesOn::Alone, &["n"]).unwrap();
        add(&mut uses, "r", PassesOn::AsAsked, &["m"]).unwrap();
        export(&mut uses, "r", WRITES).unwrap();
        let r = User::Node("r".to_owned());
        uses.replace(&r, "file", "n").unwrap_err();
        assert_eq!((uses.used("m"), uses.used("n")), (WRITES, Permissions::NONE));
        uses.replace(&r, "file", "q").unwrap();
        assert_eq!((uses.used("m"), uses.used("n")), (Permissions::NONE, WRITES));
        assert_eq!(uses.path("r", "n"), Some(["r", "q", "n"].map(str::to_owned).to_vec()));
        assert_eq!(uses.path("n", "r"), None);
        assert_eq!(uses.exports_above("n"), BTreeSet::from(["e4".to_owned()]));
        assert_eq!(uses.exports_above("m"), BTreeSet::new());
    }

    #[test]
    fn an_image_writes_to_its_file_whoever_is_above_and_only_reads_what_it_stands_on() {
        let mut uses = Uses::default();
        plain(&mut uses, &["f", "b"]);
        add(&mut uses, "q", PassesOn::Image(Access::ReadWrite), &["f", "b"]).unwrap();
        assert_eq!((uses.used("f"), uses.used("b")), (Permissions::ALL, Permissions::NONE));
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
        add(&mut uses, "r", PassesOn::Image(Access::ReadWrite), &["g", "b"]).unwrap();
        add(&mut uses, "s", PassesOn::Image(Access::ReadWrite), &["g", "b"]).unwrap_err();
        add(&mut uses, "t", PassesOn::Image(Access::ReadOnly), &["b"]).unwrap();
        assert_eq!(uses.used("b"), Permissions::READS);
        // An overlay that was committed into is no base any more.
        add(&mut uses, "u", PassesOn::Image(Access::ReadWrite), &["b"]).unwrap_err();
    }
}
