//! Paths of this host, for a daemon that works in another directory.

use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::absolute;

use anyhow::{Context, Result};

/// A path as the daemon can take it.
pub(crate) fn absolute_text(path: &str) -> Result<String> {
    let absolute = absolute(path).with_context(|| format!("{path}: where is that?"))?;
    Ok(absolute.display().to_string())
}

/// Whether a block device is there.
pub(crate) fn is_block_device(path: &str) -> bool {
    fs::metadata(path).is_ok_and(|it| it.file_type().is_block_device())
}
