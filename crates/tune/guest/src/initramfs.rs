//! The initramfs of a guest that obeys: busybox, fio, drivers, and the agent as its first process.
//!
//! Invariants: the drivers that the agent needs are there, or there is no initramfs; of others the kernel is
//! asked when a disk needs them. Not here: how the agent is spoken to (`agent`).

use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::Kernel;
use crate::archive::{Contents, base};

/// What guests have besides busybox.
const PROGRAMS: &[&str] = &["fio"];
/// Without them the agent hears nothing.
const MODULES: &[&str] = &["virtio_pci", "virtio_console"];
/// Drivers of disks.
const MODULES_OF_DISKS: &[&str] = &["virtio_blk", "virtio_scsi", "sd_mod", "nvme", "ahci"];

/// The archive.
#[derive(Debug, Clone)]
pub struct Initramfs {
    path: PathBuf,
    cache: PathBuf,
    missing: Vec<&'static str>,
}

impl Initramfs {
    /// Finds it in the directory `cache`, or makes it there (about 100 MB; a second). The error names the
    /// program that is not installed or the driver that the kernel lacks.
    pub fn make(kernel: &Kernel, cache: &Path) -> Result<Self> {
        let contents = Contents {
            programs: PROGRAMS,
            modules: MODULES,
            modules_if_any: MODULES_OF_DISKS,
            modules_at_hand: &[],
            files: &[("init", include_str!("initramfs/init.sh"))],
        };
        let path = base(kernel, &contents, cache)?;
        let missing = MODULES_OF_DISKS.iter().copied().filter(|name| !kernel.has(name)).collect();
        Ok(Self { path, cache: cache.to_owned(), missing })
    }

    /// The archive's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The directory that it was found or made in.
    pub(crate) fn cache(&self) -> &Path {
        &self.cache
    }

    /// Drivers of disks that the kernel has not got.
    pub(crate) fn missing(&self) -> &[&'static str] {
        &self.missing
    }
}
