//! Development only: what tests need to run ringloom, and its peers, as a process and from outside.
//!
//! Where it stands: only ever a dev-dependency, but for `conform`, which is a test itself. Of the daemon's crates it links
//! none but `block`, whose contracts [`conformance`] checks, and `request_path` with `kernel_io`: [`plain_front`] is one of
//! its front ends, and [`simulation`] runs its engine on a kernel in memory. So a mistake in the data path cannot hide in
//! the tool that looks for it.
//!
//! Invariants: every wait has a deadline; every process is ended by its own pid when its owner is dropped.
#![deny(unsafe_code)]

pub mod browser;
pub mod ceph;
pub mod channel;
pub mod client;
pub mod conformance;
pub mod counting;
pub mod crash;
pub mod deadline;
pub mod errands;
mod fuse;
pub mod fuse_faults;
pub mod guest;
pub mod holdings;
pub mod hostile;
pub mod image;
pub mod kubevirt;
pub mod libblkio;
pub mod loop_device;
pub mod machines;
pub mod memory;
pub mod model;
pub mod plain_front;
pub mod process;
pub mod qcow2rig;
pub mod qmp;
pub mod queue_report;
pub mod rawring;
pub mod report;
pub mod results;
pub mod rng;
mod same_node;
mod seccomp;
pub mod signal_storm;
pub mod silent_file;
pub mod simulation;
pub mod slow_disk;
pub mod stream_front;
pub mod systemd;
pub mod trespass;
pub mod twice;
