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
mod fault_point;
mod features;
mod inflight;
mod memory;
mod packed;
mod ring;
mod split;

pub use blk::{
    BlkHeader, BlkRequest, BlkRequestKind, BlkRules, DATA_BYTES_MAX, ID_BYTES, MalformedRequest,
    decode, status_byte, write_id, write_status,
};
pub use config::{
    BlkConfig, CONFIG_BYTES, CacheMode, RANGE_SECTORS_MAX, SEG_MAX, WRITEBACK_OFFSET,
};
pub use fault_point::{FaultPoint, reached};
pub use features::Features;
pub use inflight::{
    CacheModeAndSizeRecord, INFLIGHT_QUEUES_MAX, InflightDescription, InflightError, InflightFault,
    InflightGeometry, InflightQueue, InflightRegion,
};
pub use memory::{
    DirtyLog, DirtyLogError, ForeignFileError, GuestAddress, GuestMemory, GuestMemoryFilePolicy,
    LOG_PAGE_BYTES, MemoryError, MemoryRules, REGIONS_MAX, Region, RegionSpec, SESSION_BYTES_MAX,
    TranslationHint, UnmappedAddress, catch_lost_memory, mappable_bytes,
};
pub use ring::{
    Area, Chain, ChainProblem, DirtyLogScope, Head, Interrupt, RING_SIZE_MAX, Ring, RingAddresses,
    RingBase, RingDirtyLog, RingError, RingLayout, RingSetup, SEGMENTS_MAX,
};
