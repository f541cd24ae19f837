//! What can be done with a node, and what a child is to the user above it: QEMU's permissions and roles.
//!
//! Not here: who uses which node (`uses`), locks against other processes (`kernel_io::image_lock`).

use std::fmt;

use block::Access;

/// What can be done with a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Permission {
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
pub(super) struct Permissions(u8);

impl Permissions {
    /// The empty set.
    pub(super) const NONE: Self = Self(0);
    /// All of them.
    pub(super) const ALL: Self = Self::READS.and(Permission::Write).and(Permission::Resize);
    /// What who only reads uses.
    pub(super) const READS: Self = Self::NONE.and(Permission::ConsistentRead);

    /// What an export uses of its node.
    pub(super) fn of_export(access: Access) -> Self {
        match access {
            Access::ReadOnly => Self::READS,
            Access::ReadWrite => Self::READS.and(Permission::Write),
        }
    }

    /// This set and one more.
    pub(super) const fn and(self, permission: Permission) -> Self {
        Self(self.0 | 1 << permission as u8)
    }

    /// Whether it is in the set.
    pub(super) const fn has(self, permission: Permission) -> bool {
        self.0 & (1 << permission as u8) != 0
    }

    pub(super) const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub(super) const fn both(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    pub(super) const fn without(self, other: Self) -> Self {
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

/// What a child is to the user above it, which says what is used of it and what others may do with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ChildRole {
    /// What is asked of the user is asked of the child: what is used of the one is used of the other, and shared.
    Filtered,
    /// The same, but its children together have a meaning that writing to one of them destroys: others may only read them.
    Member,
    /// It holds an image, or its metadata. Others may only read it. An image that takes changes writes to it and lets it
    /// grow whatever is done above.
    Metadata,
    /// It holds the data of an image whose metadata are in another child; the same rules.
    Data,
    /// It shows what is not in the image itself: it is only read, by all.
    Backing,
}

impl ChildRole {
    /// Whether what is written to the user is written to the child.
    pub(crate) fn is_written(self) -> bool {
        match self {
            Self::Filtered | Self::Member | Self::Metadata | Self::Data => true,
            Self::Backing => false,
        }
    }

    /// Whether the user, if it takes changes, writes to the child whatever is done above.
    pub(crate) fn is_always_written(self) -> bool {
        match self {
            Self::Metadata | Self::Data => true,
            Self::Filtered | Self::Member | Self::Backing => false,
        }
    }
}

/// Who uses nodes. Nodes come before exports in what is said first.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum User {
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
    pub(super) node: String,
    pub(super) permissions: Permissions,
    pub(super) wants: User,
    pub(super) as_wanted: String,
    pub(super) keeps: User,
    pub(super) as_kept: String,
}
