//! Snapshots that a node keeps in its own storage (QEMU's internal snapshots): what is known of them, and how they come and go.
//!
//! Threads: control threads. Not here: what a node has to be at rest for them (the graph sees to that).

use std::error::Error;
use std::fmt::Debug;
use std::time::Duration;

/// What is known of an internal snapshot, to be shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotInfo {
    /// Which it is among those of its image.
    pub id: String,
    /// What it is called; others may be called the same.
    pub name: String,
    /// How much of the state of a virtual machine is stored with it, in bytes.
    pub state_bytes: u64,
    /// When it was made, since 1970.
    pub date: Duration,
    /// How long the machine had run then.
    pub clock: Duration,
    /// How many instructions it had carried out, if they were counted.
    pub instructions: Option<u64>,
}

/// A snapshot that is to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewSnapshot {
    /// What it is called. As in QEMU 255 bytes of it are kept by qcow2.
    pub name: String,
    /// When that is, since 1970. Storage with a clock of its own goes by that.
    pub date: Duration,
}

/// Which snapshot is meant: the first one that has all that is said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotSelector {
    /// Its identity.
    pub id: Option<String>,
    /// Its name.
    pub name: Option<String>,
}

impl SnapshotSelector {
    /// Whether it is that one.
    pub fn is_of(&self, info: &SnapshotInfo) -> bool {
        let fits = |wanted: &Option<String>, found: &str| {
            wanted.as_deref().is_none_or(|wanted| wanted == found)
        };
        fits(&self.id, &info.id) && fits(&self.name, &info.name)
    }
}

/// Why snapshots are as they were, or that nobody knows: a sentence, in QEMU's words where it has some.
pub type SnapshotFailure = Box<dyn Error + Send + Sync>;

/// The snapshots in the storage of a node.
pub trait InternalSnapshots: Debug + Send + Sync {
    /// Those that are known, the oldest first. Does not block.
    fn snapshots(&self) -> Vec<SnapshotInfo>;

    /// Whether there can be any. QEMU's sentence if not.
    fn check_snapshots(&self) -> Result<(), SnapshotFailure>;

    /// Keeps what the disk holds now. The caller holds a claim for writing, and no lane is open on the node. Blocks. Durable
    /// when it returns: a crash before that leaves the image without the snapshot or with all of it.
    fn create_snapshot(&self, new: &NewSnapshot) -> Result<SnapshotInfo, SnapshotFailure>;

    /// Forgets a snapshot, and frees what only it had. Otherwise as [`InternalSnapshots::create_snapshot`].
    fn delete_snapshot(&self, which: &SnapshotSelector) -> Result<SnapshotInfo, SnapshotFailure>;
}
