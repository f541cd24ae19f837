//! Which socket it is, by its file: paths may be written in several ways.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// The device and inode of a socket's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SocketIdentity {
    /// The device.
    pub device: u64,
    /// The inode.
    pub inode: u64,
}

impl SocketIdentity {
    /// Of the file at a path; a link is not followed.
    pub fn of(path: &Path) -> io::Result<Self> {
        let found = std::fs::symlink_metadata(path)?;
        Ok(Self { device: found.dev(), inode: found.ino() })
    }
}
