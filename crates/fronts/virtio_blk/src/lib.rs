//! A virtio-blk ring as a front end: decoding, status bytes, interrupts, the dirty log.
//!
//! Where it stands in the life of a request: at its beginning and its end. `request_path` asks a [`BlkRing`] for
//! requests and tells it how they ended.
//!
//! Not here: the ring itself (`virtio`), who describes it (`vhost_user`), and everything between a request and its
//! answer (`request_path`).

#![forbid(unsafe_code)]

mod in_flight_reads;
mod interrupt_moderation;
mod interrupts;
mod ring;

pub use ring::{BlkReplyTarget, BlkRing, BlkRingFault, BlkRingSetup};
