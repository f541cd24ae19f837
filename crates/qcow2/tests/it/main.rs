//! The crate against images that QEMU's tools make, and their verdicts; and on a disk that loses power.

mod allocations;
mod bitmaps;
mod counting;
mod header;
mod node;
mod qemu;
mod repair;
mod rig;
mod snapshots;
