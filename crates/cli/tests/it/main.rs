//! Protocol and guest tests: the binary as a process, driven from outside.
//!
//! Each behaviour is a function that takes a `Program`; one test runs it with ringloom, and where the peer allows it one
//! more runs it with qemu-storage-daemon, which shows that the rig is right.

mod block_device;
mod crash;
mod durability;
mod guest;
mod hostile;
mod libblkio;
mod lifecycle;
mod locks;
mod lost_writes;
mod model_workload;
mod parity;
mod refusals;
mod rings;
mod short_form;
mod support;
mod takeover;
mod tmpfs;
