//! The crate against images that QEMU's tools make, and their verdicts; and on a disk that loses power.

mod allocations;
mod counting;
mod header;
mod qemu;
mod rig;
