//! What `cargo xtask bench` runs: ringloom beside its peers in one run, and rings that refill themselves.
//!
//! Where it stands: knows ringloom and qemu-storage-daemon as processes, loads them with `load`, and
//! alternates between them so that drift of the machine cancels. Only `refill` links the data path.
//!
//! Not here: measuring a user's disk, which is `ringloom tune`.
#![deny(unsafe_code)]

pub mod args;
mod clock;
pub mod compare;
mod counters;
mod cpus;
mod disks;
mod host;
mod images;
mod machine;
mod measure;
mod nbd_disk;
mod rbd_disk;
mod refill;
mod render;
mod results;
mod rows;
pub mod run;
mod server;
mod special;
mod summary;
