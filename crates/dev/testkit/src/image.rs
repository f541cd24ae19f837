//! Disk images with known content.
//!
//! Limits: an image is held in memory as a whole, so tests keep it at tens of MiB.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Context, Result};

use crate::rng::Rng;

/// Bytes per sector of virtio-blk, whatever the logical block size is.
pub const SECTOR_BYTES: usize = 512;

/// Creates an image of incompressible bytes that depend on the seed alone, and returns them.
pub fn create_filled(path: &Path, length: usize, seed: u64) -> Result<Vec<u8>> {
    let mut bytes = vec![0; length];
    Rng::new(seed).fill(&mut bytes);
    create_with(path, &bytes)?;
    Ok(bytes)
}

/// Creates an image with this content, replacing an old one.
pub fn create_with(path: &Path, bytes: &[u8]) -> Result<()> {
    let mut file = File::create(path).with_context(|| format!("create {}", path.display()))?;
    file.write_all(bytes).with_context(|| format!("fill {}", path.display()))?;
    file.sync_all().with_context(|| format!("sync {}", path.display()))
}

/// Creates an image that is one hole.
pub fn create_sparse(path: &Path, length: u64) -> Result<()> {
    let file = File::create(path).with_context(|| format!("create {}", path.display()))?;
    file.set_len(length).with_context(|| format!("size {}", path.display()))
}

/// Inverts one byte of an image, behind the back of whoever serves it.
pub fn corrupt(path: &Path, offset: u64) -> Result<()> {
    let file = File::options()
        .read(true)
        .write(true)
        .open(path)
        .with_context(|| format!("open {}", path.display()))?;
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).context("read the byte to corrupt")?;
    file.write_all_at(&[!byte[0]], offset).context("write the corrupted byte")?;
    file.sync_all().context("sync the corrupted image")
}
