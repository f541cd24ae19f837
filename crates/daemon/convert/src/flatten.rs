//! The disk of a chain of backups in a file of its own.
//!
//! Invariants: files of a chain are those that the caller names, whatever images say of it. What was written was compared with the
//! chain before it is said to be there.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use graph::BaseOptions;

use crate::arguments::ConvertArgs;
use crate::convert::copy_disk;
use crate::disks::{Disk, Disks};
use crate::run::interrupts;

/// The shortest run of zeroes that takes no room, as `ringloom convert` has it.
const SPARSE_BYTES: usize = 4096;

/// What is flattened, and where to.
#[derive(Debug, Clone, Copy)]
pub struct Flattening<'a> {
    /// qcow2 images that stand on each other, the lowest first.
    pub images: &'a [PathBuf],
    /// The file that is made.
    pub target: &'a Path,
    /// What it is to be: raw or qcow2.
    pub format: &'a str,
    /// It is there, and written over.
    pub into_existing: bool,
}

/// What was done.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Flattened {
    /// The size of the disk.
    pub bytes: u64,
    /// What of it is no zeroes.
    pub written_bytes: u64,
    /// How long it took without the comparison.
    pub seconds: f64,
}

/// A file that nobody else uses as long as this is there.
#[derive(Debug)]
pub struct HeldDisk {
    _disk: Disk,
}

/// Copies a chain to a file, makes that durable, and compares both. A file that was made is removed after an error.
///
/// # Errors
/// If an image is not as it should be or in use, if the target is there or too small, and after SIGINT and SIGTERM.
pub fn flatten(order: &Flattening<'_>) -> Result<Flattened> {
    let interrupted = interrupts()?;
    let mut disks = Disks::new(false);
    let read_only = BaseOptions { read_only: true, ..BaseOptions::DEFAULT };
    let source = disks.open_chain(order.images, read_only)?;
    let text = |path: &Path| path.display().to_string();
    let arguments = ConvertArgs {
        source: order.images.last().map_or_else(String::new, |it| text(it)),
        target: text(order.target),
        source_format: None,
        target_format: order.format.to_owned(),
        into_existing: order.into_existing,
        target_is_zero: false,
        compress: false,
        verify: true,
        rate: None,
        threads: None,
        sparse: SPARSE_BYTES,
        direct: false,
        no_flush: false,
        named_files: false,
        force_share: false,
        quiet: false,
        json: false,
    };
    let bytes = source.node.size().0.0;
    let (copied, took) = copy_disk(&mut disks, &source, &arguments, &interrupted)?;
    Ok(Flattened { bytes, written_bytes: copied.written, seconds: took.as_secs_f64() })
}

/// Holds a file that is to be replaced.
///
/// # Errors
/// If somebody uses it.
pub fn hold_unused(path: &Path) -> Result<HeldDisk> {
    let disk = Disks::new(false).hold(path).with_context(|| path.display().to_string())?;
    Ok(HeldDisk { _disk: disk })
}
