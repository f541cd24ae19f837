//! How a file is to be opened.

use std::fmt;
use std::path::PathBuf;

use block::FlushPolicy;

use crate::image_lock::LockOptions;

/// How to open a file.
#[derive(Debug, Clone)]
pub struct OpenOptions {
    /// Where it is.
    pub path: PathBuf,
    /// What it must be.
    pub kind: FileKind,
    /// Whether it may be changed.
    pub access: block::Access,
    /// Whether the host's page cache is used.
    pub caching: Caching,
    /// Which engine does its I/O.
    pub aio: Aio,
    /// What becomes of flushes.
    pub flushes: FlushPolicy,
    /// How it is locked. Opening it locks nothing.
    pub lock: LockOptions,
}

impl OpenOptions {
    /// A regular file through the page cache, with flushes that are obeyed, and engine and locks that the host has.
    pub fn regular(path: impl Into<PathBuf>, access: block::Access) -> Self {
        Self {
            path: path.into(),
            kind: FileKind::Regular,
            access,
            caching: Caching::Buffered,
            aio: Aio::Automatic,
            flushes: FlushPolicy::Obeyed,
            lock: LockOptions::default(),
        }
    }
}

/// Which engine does a file's I/O (`aio=`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Aio {
    /// The best that the host allows.
    Automatic,
    /// io_uring.
    IoUring,
    /// Linux AIO, which needs direct I/O.
    Native,
    /// Threads that do blocking calls.
    Threads,
}

/// The kind of a file that stores bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileKind {
    /// A regular file.
    Regular,
    /// A block device of the host.
    BlockDevice,
}

impl fmt::Display for FileKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Regular => "regular file",
            Self::BlockDevice => "block device",
        })
    }
}

/// Whether the host's page cache is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Caching {
    /// Through the page cache.
    Buffered,
    /// Past it (O_DIRECT).
    Direct,
}
