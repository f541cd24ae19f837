//! Guest memory, split and packed rings, and the decoding of virtio-blk requests.
//!
//! Where it stands in the life of a request: at both ends. `vhost_user` builds [`GuestMemory`]
//! and says where a ring lies; `virtio_blk` pops a [`Chain`] from its [`Ring`], decodes it
//! to a [`BlkRequest`], and later stages the completion and publishes it.
//!
//! Invariants: whatever lies in guest memory is hostile; each field is read once, copied and then
//! checked. All unsafe code of this crate is in the modules that say so.
//! Not here: who is interrupted and how (`virtio_blk`), messages (`vhost_user`).

#![deny(unsafe_code)]

mod blk;
mod config;
mod features;
mod inflight;
mod memory;
mod packed;
mod ring;
mod split;
mod step;

pub use blk::{
    BlkHeader, BlkKind, BlkRequest, BlkRules, DATA_BYTES_MAX, ID_BYTES, NoStatus, decode,
    status_byte, write_id, write_status,
};
pub use config::{
    BlkConfig, CONFIG_BYTES, CacheMode, RANGE_SECTORS_MAX, SEG_MAX, WRITEBACK_OFFSET,
};
pub use features::Features;
pub use inflight::{
    INFLIGHT_QUEUES_MAX, InflightError, InflightFault, InflightOrigin, InflightQueue,
    InflightRegion, InflightShape, SessionNote,
};
pub use memory::{
    DirtyLog, ForeignFile, GuestAddress, GuestMemory, LOG_PAGE_BYTES, LastHit, LogError,
    MemoryError, MemoryFiles, MemoryRules, NotMapped, REGIONS_MAX, Region, RegionSpec,
    SESSION_BYTES_MAX, catch_lost_memory, mappable_bytes,
};
pub use packed::PackedRing;
pub use ring::{
    Area, Chain, Head, Interrupt, Marking, RING_SIZE_MAX, Ring, RingAddresses, RingBase, RingError,
    RingLayout, RingLog, RingSetup, SEGMENTS_MAX,
};
pub use split::SplitRing;
pub use step::{Step, reached};
