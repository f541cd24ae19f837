//! Linux guests under QEMU: found, booted, given disks while they run, and made to run scripts.
//!
//! The tuner measures in such guests; `testkit` takes the kernel, the archives and the control socket
//! for its own guests.
//!
//! Invariants: a QEMU never outlives its [`Guest`]; it is in a process group of its own, and ended by its
//! own process id. Of an owner that was killed outright a guest learns when it waits for an order, and powers off
//! (but for one that was just printing then). What a QEMU can do is asked of the program.
//! Threads: none; whoever holds a [`Guest`] waits for it, never without a bound, and asks its [`Watch`]
//! all the time.
//! Not here: what is measured in a guest, and what a disk is made of.
#![forbid(unsafe_code)]

mod agent;
mod answer;
mod archive;
mod channel;
mod clock;
mod console;
mod disks;
mod initramfs;
mod kernel;
mod kvm;
mod machine;
mod modules;
mod monitor;
mod plug;
mod process;
mod programs;
mod qemu;
mod running;
mod uncompressed;

pub use agent::Finished;
pub use archive::{Archive, Contents, base};
pub use disks::Plugged;
pub use initramfs::Initramfs;
pub use kernel::{Kernel, KernelSource};
pub use kvm::try_kvm;
pub use machine::{Accelerator, ColdDisk, MEMORY_MIB_MIN, MachineSpec};
pub use modules::Module;
pub use monitor::{Event, Monitor, Refusal};
pub use plug::{Controller, Plug, Source};
pub use programs::{find_program, libraries};
pub use qemu::QemuProgram;
pub use running::Guest;

/// Asked at least every 50 ms while something is waited for; its error ends the wait at once and is
/// the root of what the caller gets.
pub type Watch<'a> = &'a mut dyn FnMut() -> anyhow::Result<()>;
