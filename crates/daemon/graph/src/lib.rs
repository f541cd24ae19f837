//! The block graph: drivers and objects by name, the model of what stands on what, building and changing.
//!
//! Where it stands: whoever controls a daemon makes nodes here, exports stand on them, and what a user writes is read by
//! the drivers and object types themselves. A new driver is a file in `drivers` and a line in its table.
//!
//! Not here: exports and claims (`exports`), changing a graph while guests run (`control`), names that come later on a
//! command line (`options`).

#![forbid(unsafe_code)]

mod drivers;
mod graph;
mod model;
mod objects;
mod storage_watchdog;

pub use drivers::{
    AutoReadOnly, BASE_HELP, BASE_KEYS, BaseOptions, Blockdev, BlockdevRef, DELAY_SET, DRIVERS,
    Driver, FileCheckError, KeyedChild, check_node_name, file_kind, image_format, image_formats,
    open_fault, real_directory,
};
pub use graph::{
    AccessBefore, DelayBefore, DelayError, EdgeChange, ExportStorage, FilterKind, Graph,
    GraphChange, GraphChangeRefusal, GraphError, GraphPath, ImageCreationError, ImageMaker,
    NamedFileError, NamedFileRefusal, NamedFileRole, NamedFilesPolicy, NodeDescription, NodeInfo,
    NodeReopening, RemoteCondition, RemoteFlushError, StorageFiles,
};
pub use model::{
    Activity, ChildRole, Edge, ExportAddress, GraphModel, JobFilter, ModelError, NODE, NewExport,
    NewNode, NodeOwner, NodeUser, PermissionConflict, TypedObjectId, UsedEdge, path_down,
};
pub use nbd_client::{ConnectGrant, ServerAddress};
pub use objects::{
    AuthorizationOptions, OBJECT_KEYS, OBJECT_TYPES, ObjectKind, ObjectOptions, ObjectType,
    PollOptions, PoolMode, PoolOptions, Secret, SecretError, SecretOptions, TlsCredsOptions,
};
pub use storage_watchdog::{StorageWatchdog, waiting_for};
