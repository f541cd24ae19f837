//! Which iothread serves which ring: decided from counters, without I/O, threads or a clock.
//!
//! Where it stands in the life of a request: beside it. A control thread reads the gauges of sources and iothreads into a
//! [`Snapshot`], asks [`Placer::decide`], and carries out the [`Order`]s. The same code decides in the simulator
//! (`rehearsal`).
//!
//! How it decides: a disk whose requests wait because its *other* rings have the iothread is tried on more iothreads.
//! Its rings go to and fro between both placements while the guest runs, and the difference of its progress decides.
//! Small disks share iothreads. If there are more large disks than iothreads, they share them evenly.
//!
//! Invariants: the same snapshots at the same times give the same orders. A disk's trial moves its own rings only, and is
//! judged by its own progress only, so a guest that plays with it harms nobody else.
//! Limits: [`IOTHREADS_MAX`] iothreads; moves per second as `moves` has it; what is remembered of a disk is bounded by
//! its rings and the number of iothreads.
//! Not here: what counts (`request_path::SourceGauges`, `iothread::LoopGauges`), who moves (`iothread::PlacedSource`).

#![forbid(unsafe_code)]

mod balance;
mod disk;
mod moves;
mod network;
mod order;
mod placer;
mod pool;
mod refusals;
mod search;
mod settings;
mod snapshot;
mod trial;
mod window;

pub use order::{Decision, NextLook, Note, Order, RingMove};
pub use placer::Placer;
pub use settings::{Fault, IOTHREADS_MAX, PoolSettings, Preference, SettingsError};
pub use snapshot::{
    DiskCounters, DiskId, DiskMode, IothreadCounters, IothreadSlot, RingCounters, Snapshot,
    StorageId,
};
