//! The crate against images that QEMU's tools make, and their verdicts; and on a disk that loses power.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod allocations;
mod backing_name;
mod bitmaps;
mod bounds;
mod compressed;
mod create;
mod damage;
mod growth;
mod handover;
mod header;
mod map;
mod nested;
mod node;
mod order;
mod overlap;
mod player;
mod qemu;
mod repair;
mod resize;
mod resize_files;
mod rig;
mod rights;
mod snapshot_changes;
mod snapshots;
mod stored_bitmaps;

#[global_allocator]
static COUNTING: testkit::counting::Counting = testkit::counting::Counting;
