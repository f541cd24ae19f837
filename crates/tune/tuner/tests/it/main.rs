//! The whole of `ringloom tune` as a process, with qemu-storage-daemon in place of the daemon.
//!
//! The test binary starts itself again with the options in the environment: `entry` is then the
//! program `ringloom tune`. So current directory and signals belong to one run alone.
#![expect(clippy::unwrap_used, reason = "test code: a surprise must fail the test")]

mod given;
mod process;
mod ssh_server;
mod tune;
