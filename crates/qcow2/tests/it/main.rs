//! The crate against images that QEMU's tools make, and their verdicts.

mod header;
mod qemu;
