//! A vhost-user-blk session as a state machine over the messages of the vhost crate.
//!
//! Where it stands in the life of a request: before the first and after the last one. The daemon
//! runs a [`SessionServer`] for every connection, on a thread that owns no ring; the session maps the
//! guest's memory, collects what belongs to each ring, and tells the [`Device`] to serve it or to
//! stop.
//!
//! Not here: sockets and listening (`daemon`), the rings themselves (`virtio`, `virtio_blk`).

#![forbid(unsafe_code)]

mod adapter;
mod backend_channel;
mod device;
mod message_descriptors;
mod message_waiter;
mod refusal;
mod serve;
mod session;

pub use backend_channel::BackendChannel;
pub use device::{DescriptorCloseRisk, Device, DeviceError, QueueIndex, RingStart, StartResult};
pub use message_descriptors::HEADER_BYTES;
pub use refusal::MessageRefusal;
pub use serve::{
    PauseOutcome, SessionControl, SessionEnd, SessionError, SessionServer, SocketSwap,
};
pub use session::{
    DESCRIPTORS_PER_MESSAGE, DESCRIPTORS_PER_QUEUE, DESCRIPTORS_PER_REGION,
    DESCRIPTORS_PER_SESSION, SavedLog, SavedRegion, SavedRing, SavedSession, Session, VringFdKind,
    descriptors_wanted,
};
