//! A vhost-user-blk session as a state machine over the messages of the vhost crate.
//!
//! Where it stands in the life of a request: before the first and after the last one. The daemon
//! calls [`serve`] for every connection, on a thread that owns no ring; the session maps the
//! guest's memory, collects what belongs to each ring, and tells the [`Device`] to serve it or to
//! stop.
//!
//! Not here: sockets and listening (`daemon`), the rings themselves (`virtio`, `virtio_blk`).

#![forbid(unsafe_code)]

mod adapter;
mod arrival;
mod attached;
mod channel;
mod device;
mod refusal;
mod serve;
mod session;

pub use attached::HEADER_BYTES;
pub use channel::BackendChannel;
pub use device::{Closing, Device, DeviceError, QueueIndex, RingStart, Started};
pub use refusal::Refusal;
pub use serve::{End, Exchange, Interrupt, Server, SessionError, Uninterrupted, Verdict, serve};
pub use session::{
    DESCRIPTORS_PER_MESSAGE, DESCRIPTORS_PER_QUEUE, DESCRIPTORS_PER_REGION,
    DESCRIPTORS_PER_SESSION, Descriptor, InflightState, LogState, RegionState, SavedRing, Session,
    SessionState, descriptors_wanted,
};
