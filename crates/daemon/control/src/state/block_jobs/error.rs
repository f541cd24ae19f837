//! Why a job could not be begun, or not be ended like that. QEMU's sentences where it has some.

use std::io;

use bitmaps::{BitmapError, BitmapRefusal};
use block::{ClaimError, LaneError};
use graph::{ModelError, NodeUser};
use iothread::SpawnError;
use layers::CopyBeforeWriteError;
use qcow2::ChangeBackingError;

use crate::state::GraphChangeError;
use crate::state_file::StateFileError;

/// A job could not be begun, or not be ended like that.
#[derive(Debug, thiserror::Error)]
pub enum BlockJobError {
    /// The source is its own target.
    #[error("Can't mirror node into itself")]
    Itself,
    /// What takes the place of a node might show other bytes. QEMU's sentence.
    #[error(
        "Cannot replace '{node}' by a node mirrored from '{mirrored}', because it cannot be guaranteed that doing so would \
         not lead to an abrupt change of visible data"
    )]
    Replaced {
        /// What was to be replaced.
        node: String,
        /// What is mirrored.
        mirrored: String,
    },
    /// What is written to a node by others would not be mirrored.
    #[error(
        "Cannot replace '{node}' by a node mirrored from '{mirrored}': {user} uses it, too, and what it writes is not mirrored"
    )]
    ReplacedInUse {
        /// What is below the source, down to what is replaced.
        node: String,
        /// What uses it.
        user: NodeUser,
        /// What is mirrored.
        mirrored: String,
    },
    /// Something else stands on the source as its backing file.
    #[error("Need a root block node: node '{0}' is a backing file")]
    NoRoot(String),
    /// A node that is not below another one in its chain of backing files.
    #[error("'{base}' is not in this backing chain of '{top}'")]
    NotInChain {
        /// The lower one.
        base: String,
        /// The upper one.
        top: String,
    },
    /// Others see what would be changed.
    #[error(
        "Node '{node}' is busy: {user} uses it, too, and would see what is committed into '{base}'"
    )]
    OtherUser {
        /// The node.
        node: String,
        /// What uses it.
        user: NodeUser,
        /// Where it is committed to.
        base: String,
    },
    /// An image without a name for its backing file.
    #[error("node '{0}' is no image that can have a backing file")]
    NoImage(String),
    /// The header of an image could not be changed.
    #[error(transparent)]
    Backing(#[from] ChangeBackingError),
    /// The source of a backup is its own target. QEMU's sentence.
    #[error("Source and target cannot be the same")]
    Same,
    /// A backup's target has another size. QEMU's sentence, and what they have.
    #[error(
        "Source and target image have different sizes: '{node}' has {wanted} bytes, '{target}' {found}"
    )]
    OtherSize {
        /// The target.
        target: String,
        /// Its size.
        found: u64,
        /// The source.
        node: String,
        /// Its size.
        wanted: u64,
    },
    /// A backup's target does not compress. QEMU's sentence, and the target.
    #[error("Compression is not supported for this drive '{0}'")]
    NotCompressed(String),
    /// What one transaction backs up, or to, and puts elsewhere as well.
    #[error(
        "Node '{0}' belongs to a backup and to a snapshot or filter of one transaction, whose order would matter: use two"
    )]
    ChangedAtOnce(String),
    /// Less at once than is preserved together. QEMU's sentence.
    #[error("Required max-chunk ({chunk}) is less than backup cluster size ({cluster})")]
    SmallChunk {
        /// The most at once.
        chunk: u64,
        /// What is preserved together.
        cluster: u64,
    },
    /// The source cannot be kept as it is.
    #[error(transparent)]
    Instant(#[from] CopyBeforeWriteError),
    /// A bitmap cannot be used.
    #[error(transparent)]
    NamedBitmap(#[from] BitmapRefusal),
    /// The target is too small.
    #[error(
        "Source and target image have different sizes: node '{target}' has {found} bytes, and node '{node}' has {wanted}"
    )]
    TooSmall {
        /// The target.
        target: String,
        /// Its size.
        found: u64,
        /// The source.
        node: String,
        /// Its size.
        wanted: u64,
    },
    /// The nodes cannot be used for that.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The target, or the source, cannot be had.
    #[error(transparent)]
    Claim(#[from] ClaimError),
    /// The graph could not be changed.
    #[error(transparent)]
    Change(#[from] GraphChangeError),
    /// It cannot be kept that it runs.
    #[error(transparent)]
    State(#[from] StateFileError),
    /// There is no memory for what is left to copy.
    #[error(transparent)]
    Bitmap(#[from] BitmapError),
    /// An iothread could not be started.
    #[error(transparent)]
    Iothread(#[from] SpawnError),
    /// A worker could not be made.
    #[error("a worker of the job cannot be made")]
    Worker(#[source] io::Error),
    /// An iothread cannot use the nodes.
    #[error("iothread {iothread} cannot serve the job")]
    Lane {
        /// Which one.
        iothread: String,
        /// Why.
        #[source]
        source: LaneError,
    },
    /// What was written to the target could not be made durable.
    #[error("target '{target}': a flush failed")]
    Flush {
        /// The target.
        target: String,
        /// Why.
        #[source]
        source: io::Error,
    },
}
