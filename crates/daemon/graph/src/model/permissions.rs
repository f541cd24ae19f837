//! What a child is to the user above it, and who uses nodes: QEMU's roles.
//!
//! Not here: the permissions (`block`), who uses which node (`use_graph`), locks against other processes
//! (`kernel_io::image_lock`).

use std::fmt;

use block::Permissions;

/// The role of a child below its parent (QEMU's BdrvChildRole): which permissions are used of it and shared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChildRole {
    /// What is asked of the user is asked of the child: what is used of the one is used of the other, and shared.
    Filtered,
    /// The same, but its children together have a meaning that writing to one of them destroys: others may only read them.
    Member,
    /// It holds an image, or its metadata. Others may only read it. An image that takes changes writes to it and lets it
    /// grow whatever is done above.
    Metadata,
    /// It holds the data of an image whose metadata are in another child; the same rules.
    Data,
    /// The same as the first, and the user writes to it what is there already.
    CopiedTo,
    /// It shows what is not in the image itself: it is only read, by all.
    Backing,
    /// A job reads it, whatever others do; it keeps its size.
    JobSource,
    /// A job writes it: others may only read it.
    JobTarget,
    /// A job writes to it, and it stands on the source as its backing file, which others change: what it shows there is right for
    /// the job alone, so nobody else may use it.
    JobOverlay,
    /// A job writes to it what those above it in its chain have anyway.
    JobBase,
    /// The same as the first, and what is about to be changed in it is read before: others may not change it as soon as the user
    /// is used itself.
    Preserved,
    /// What was read so is written there, whatever is done above. Others may use it in any way, but give it no other size.
    PreservedTo,
    /// The user shows what it keeps of an instant, and nothing else of it.
    AtInstant,
}

impl ChildRole {
    /// Whether what is written to the user is written to the child.
    pub fn is_written(self) -> bool {
        match self {
            Self::Filtered
            | Self::Member
            | Self::Metadata
            | Self::Data
            | Self::CopiedTo
            | Self::JobTarget
            | Self::JobOverlay
            | Self::JobBase
            | Self::Preserved
            | Self::PreservedTo => true,
            Self::Backing | Self::JobSource | Self::AtInstant => false,
        }
    }

    /// Whether the user shows the child's bytes as they are.
    pub(crate) fn is_same_disk(self) -> bool {
        match self {
            Self::Filtered | Self::CopiedTo | Self::Preserved => true,
            Self::Member
            | Self::Metadata
            | Self::Data
            | Self::Backing
            | Self::JobSource
            | Self::JobTarget
            | Self::JobOverlay
            | Self::JobBase
            | Self::PreservedTo
            | Self::AtInstant => false,
        }
    }

    /// Whether the user, if it takes changes, writes to the child whatever is done above.
    pub(crate) fn is_always_written(self) -> bool {
        match self {
            Self::Metadata
            | Self::Data
            | Self::CopiedTo
            | Self::JobTarget
            | Self::JobOverlay
            | Self::JobBase
            | Self::PreservedTo => true,
            Self::Filtered
            | Self::Member
            | Self::Backing
            | Self::JobSource
            | Self::Preserved
            | Self::AtInstant => false,
        }
    }
}

/// What uses a node: another node, an export or a job (QEMU's parent). Nodes come before the others in messages.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NodeUser {
    /// A node, by name.
    Node(String),
    /// An export, by id.
    Export(String),
    /// A job, by id.
    Job(String),
}

impl fmt::Display for NodeUser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node(name) => write!(f, "node '{name}'"),
            Self::Export(id) => write!(f, "export '{id}'"),
            Self::Job(id) => write!(f, "block job '{id}'"),
        }
    }
}

/// Two users whose permissions on a node contradict each other. QEMU's sentence.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "Permission conflict on node '{node}': permissions '{permissions}' are both required by {wants} \
     (uses node '{node}' as '{as_wanted}' child) and unshared by {keeps} (uses node '{node}' as \
     '{as_kept}' child)"
)]
pub struct PermissionConflict {
    pub(super) node: String,
    pub(super) permissions: Permissions,
    pub(super) wants: NodeUser,
    pub(super) as_wanted: String,
    pub(super) keeps: NodeUser,
    pub(super) as_kept: String,
}
