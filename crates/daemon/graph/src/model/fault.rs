//! What cannot be: names, edges and permissions that do not fit what there is.

use super::permissions::{NodeUser, PermissionConflict};

/// A change of the model that is refused. QEMU's sentences where it has some.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// A name given twice.
    #[error("{what} '{name}' exists already")]
    Duplicate {
        /// What kind of thing it names.
        what: &'static str,
        /// The name.
        name: String,
    },
    /// A name of something that there is not.
    #[error("there is no {what} '{name}'")]
    NotFound {
        /// What kind of thing it names.
        what: &'static str,
        /// The name.
        name: String,
        /// The node that wants to stand on it, if one does.
        user: Option<String>,
    },
    /// An id that no object has.
    #[error("object '{0}' not found")]
    NoObject(String),
    /// A first thread more. QEMU's sentence.
    #[error("only one main-loop instance allowed")]
    MainLoopTwice,
    /// An object that a node or an export names.
    #[error("object '{0}' is in use, can not be deleted")]
    ObjectInUse(String),
    /// A node that has to be named by another one and has no name that could be written down.
    #[error(
        "node '{0}' was written inside another node without a node-name; give it one to use it elsewhere"
    )]
    NoName(String),
    /// A node that is to be an overlay and cannot have a backing file.
    #[error("The overlay does not support backing images: node '{0}'")]
    NoOverlay(String),
    /// An overlay on which something stands.
    #[error("The overlay is already in use")]
    OverlayInUse,
    /// A backing file, on which nothing else can be put.
    #[error("Node '{node}' is busy: node is used as backing hd of '{user}'")]
    IsBacking {
        /// The node.
        node: String,
        /// The node that stands on it.
        user: String,
    },
    /// A node that does not show the bytes of the other one as they are.
    #[error("node '{filter}' is no filter that has node '{node}' as 'file'")]
    NoFilterOn {
        /// The node that was to be one.
        filter: String,
        /// The other one.
        node: String,
    },
    /// A node that has bytes of its own.
    #[error("node '{0}' is no filter")]
    NoFilter(String),
    /// A filter on which something stands that needs more of it than its bytes.
    #[error("node '{user}' shows what filter '{filter}' keeps; remove that node first")]
    FilterInUse {
        /// The filter.
        filter: String,
        /// What stands on it.
        user: String,
    },
    /// A node that a job uses where it is.
    #[error("Node '{node}' is in use by block job '{job}'")]
    UsedByJob {
        /// The node.
        node: String,
        /// The job.
        job: String,
    },
    /// An overlay with a backing file.
    #[error("The overlay already has a backing image")]
    OverlayHasBacking,
    /// A node that a job uses. QEMU's sentence, with the job instead of its type.
    #[error("Node '{node}' is busy: block device is in use by block job '{job}'")]
    Busy {
        /// The node.
        node: String,
        /// The job.
        job: String,
    },
    /// A node that takes no changes and is to have another size.
    #[error("Block node is read-only: node '{0}'")]
    ReadOnlyResize(String),
    /// One place twice in a change.
    #[error("{user}: its child '{key}' is changed twice")]
    EdgeTwice {
        /// What has the place.
        user: NodeUser,
        /// The key.
        key: String,
    },
    /// A node that is in one change twice.
    #[error("node '{0}' is reopened twice, or reopened and put below another node at once")]
    ReopenedTwice(String),
    /// A node below an image that is used.
    #[error(
        "node '{node}' is below image '{image}', which an export uses: how it is opened cannot be changed now"
    )]
    ReopenBelowImage {
        /// The node.
        node: String,
        /// The image.
        image: String,
    },
    /// A node that is to be read-only, and is written. QEMU's sentence.
    #[error("Read-only block node '{0}' cannot support read-write users")]
    ReadOnlyInUse(String),
    /// An option that a node has for good.
    #[error("Cannot change the option '{key}' of node '{node}'")]
    FixedOption {
        /// The node.
        node: String,
        /// The option.
        key: String,
    },
    /// A node written in place below one that is there.
    #[error("child '{key}' of node '{node}' has to be the node-name of a node that is there")]
    InlineChild {
        /// The node that is there.
        node: String,
        /// The key.
        key: String,
    },
    /// An image with a backing file of which nothing is said.
    #[error("backing is missing for '{0}'")]
    NoBackingSaid(String),
    /// An object whose settings cannot be changed while it is there.
    #[error("the settings of object '{0}' cannot be changed at run time")]
    FixedObject(String),
    /// A node on which something stands.
    #[error("Block device {0} is in use")]
    NodeInUse(String),
    /// An id that no export has.
    #[error("Export '{0}' is not found")]
    NoExport(String),
    /// A place that a user does not have.
    #[error("{user} has no child '{key}'")]
    NoPlace {
        /// What should have it.
        user: NodeUser,
        /// The key.
        key: String,
    },
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
    /// A node that takes no changes, and to which is copied.
    #[error("node '{child}' is read-only, and node '{node}' copies to it")]
    ReadOnlyTarget {
        /// What copies.
        node: String,
        /// The node.
        child: String,
    },
    /// A bottom that there is not.
    #[error("Bottom node '{0}' not found")]
    NoBottom(String),
    /// A bottom without bytes of its own.
    #[error("Bottom node '{0}' is a filter")]
    BottomFilter(String),
    /// A bottom that is no backing file of the node.
    #[error("Bottom node '{name}' is not in the backing chain of node '{user}'")]
    OtherChain {
        /// Its name.
        name: String,
        /// Whose bottom it was to be.
        user: String,
    },
    /// A read-only node in a place below what takes changes.
    #[error("node {child} is read-only, and {user} is not")]
    ReadOnlyBelow {
        /// The node.
        child: String,
        /// What stands above.
        user: NodeUser,
    },
    /// A writable export of something that is not.
    #[error("cannot export read-only node '{0}' as writable")]
    ReadOnlyNode(String),
    /// An export that needs its node always, of one that is held only now and then.
    #[error("node '{0}' is inactive: an NBD export needs an active one")]
    InactiveNode(String),
    /// An inactive node below an active one.
    #[error("Inactive '{child}' can't be a {key} child of active '{node}'")]
    InactiveChild {
        /// The active one.
        node: String,
        /// The inactive one.
        child: String,
        /// The key that it stands under.
        key: String,
    },
    /// A node that is to be inactive below an active one. QEMU's sentence, with the name.
    #[error("Node has active parent node: node '{node}' is below '{parent}'")]
    ActiveParent {
        /// The node.
        node: String,
        /// What stands on it.
        parent: String,
    },
    /// Nodes that would stand on each other in a circle.
    #[error("node '{}' would stand on itself: {}", .0[0], .0.join(" -> "))]
    Circle(Vec<String>),
    /// A node that is used in a way which somebody else who uses it does not allow.
    #[error(transparent)]
    Conflict(#[from] Box<PermissionConflict>),
    /// One iothread twice in an export.
    #[error("iothread '{0}' is listed twice")]
    IothreadTwice(String),
    /// A pool beside iothreads or other pools.
    #[error("iothread-pool '{0}' serves an export alone, without iothreads beside it")]
    PoolBesideOthers(String),
}
