//! vhost-user-blk exports: their options, sockets, sessions, devices, claims, and what their clients may share.
//!
//! Where it stands: between a front end and a node of the graph. An export's thread accepts a client and runs its session;
//! the session's rings are served on iothreads.
//!
//! Not here: which exports there are (`control`), what two processes say when one takes over (`takeover`).

#![forbid(unsafe_code)]

mod activation;
mod attach;
mod claim;
mod client_log;
mod connection;
mod descriptor_check;
mod descriptor_limits;
mod device;
mod export;
mod export_error;
mod export_keys;
mod export_options;
mod export_size;
mod exported_disk;
mod guest_memory;
mod inherited_socket;
mod nbd_export_options;
mod queue_statistics;
mod socket;
mod socket_identity;
mod takeover_pause;
mod unshared_memory;
mod vhost_user_blk_options;

pub use activation::{ActivateError, ClaimLock, ExportClaim, InactivateError};
pub use attach::{AttachLinesFormat, attach_lines, escape_xml, quote};
pub use claim::{ExportClaimError, InterruptibleWait, LOCK_WAIT_MAX, WaitPolicy, WaitResult};
pub use descriptor_check::{DescriptorCheck, DescriptorCheckStartError};
pub use descriptor_limits::{descriptors_wanted_by, has_room_for_spare_rings, share_descriptors};
pub use device::{VhostUserBlkDisk, blk_config};
pub use export::{AdoptedSession, Export, FreezeRequest, FrozenExport};
pub use export_error::ExportError;
pub use export_keys::EXPORT_KEYS;
pub use export_options::{EXPORT_TYPES, ExportKind, ExportOptions};
pub use export_size::{ExportSize, StorageCondition};
pub use exported_disk::{DiskParts, ExportedDisk, MigrationFlag, ServingIothreads};
pub use guest_memory::{GuestMemoryOptions, MemoryDirectoryError};
pub use inherited_socket::{
    InheritedSocketError, descriptor_number, passed_descriptors, path_of_listener,
    stream_listener_at,
};
pub use nbd_export_options::{ExportedBitmap, MissingBitmaps, NBD, NbdExportOptions};
pub use socket::{
    ExportSocket, SocketError, address, group_number, stream_socket, wait_until_unserved,
};
pub use socket_identity::SocketIdentity;
pub use takeover_pause::{TakeoverPauseStart, monotonic};
pub use vhost_user_blk_options::{
    LOGICAL_BLOCK_BYTES, QUEUES_MAX, QueuePin, SocketOptions, VHOST_USER_BLK, VhostUserBlkOptions,
    check_num_queues, check_socket_path,
};
