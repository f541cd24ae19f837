//! The fences around the daemon: files, privileges, system calls.

#![forbid(unsafe_code)]

mod sandbox;

pub use sandbox::{
    AllowedDirectory, ConnectNeeds, LandlockError, Sandbox, SandboxError, SandboxMode,
    SandboxNeeds, SeccompError, confine_descriptor_check,
};
