//! Protocol and guest tests: the binary as a process, driven from outside.
//!
//! Each behaviour is a function that takes a `Program`; one test runs it with ringloom, and where the peer allows it one
//! more runs it with qemu-storage-daemon, which shows that the rig is right.

mod activation;
mod bitmaps;
mod block_device;
mod campaign;
mod check;
mod config;
mod control;
mod convert;
mod copy_on_read;
mod crash;
mod ctl;
mod delay;
mod dirty_log;
mod durability;
mod emitted;
mod gauges;
mod guest;
mod host_device;
mod hostile;
mod jobs;
mod libblkio;
mod lifecycle;
mod live_migration;
mod locks;
mod lost_writes;
mod metrics;
mod migration;
mod model_workload;
mod named_files;
mod nbd;
mod page;
mod parity;
mod paused_qemu;
mod placement;
mod qcow2;
mod rbd;
mod refusals;
mod report;
mod rings;
mod said;
mod sandbox;
mod short_form;
mod stripe;
mod support;
mod systemd;
mod takeover;
mod throttle;
mod tmpfs;
mod top;
mod tune;
mod tune_in_guest;
mod unshared;
mod verdicts;
