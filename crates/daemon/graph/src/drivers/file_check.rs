//! Looks at the files that nodes open, before anything is started.
//!
//! Invariants: a disk's file is opened here only to learn that it can be; nothing is read from it, and nothing is written.
//! Not here: which files a driver opens (its file), locks, sizes and alignment (the graph).

use std::fs::OpenOptions;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use kernel_io::FileKind;
use syntax::ArgumentError;

use super::driver::HostFileSpec;
use super::node::Blockdev;
use crate::storage_watchdog;

/// A node's file is missing, of the wrong kind, or not ours to open.
#[derive(Debug, thiserror::Error)]
pub enum FileCheckError {
    /// It cannot be opened.
    #[error("could not open '{}'", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// Why not.
        #[source]
        cause: io::Error,
    },
    /// It can be opened, but not to write.
    #[error(
        "could not open '{}' for writing; say --read-only, or read-only=on of its node, to serve it for reading",
        path.display()
    )]
    OpenForWriting {
        /// The file.
        path: PathBuf,
        /// Why not.
        #[source]
        cause: io::Error,
    },
    /// It is of another kind than the driver serves.
    #[error("'{driver}' driver requires '{}' to be a {kind}", path.display())]
    Kind {
        /// The driver.
        driver: &'static str,
        /// The file.
        path: PathBuf,
        /// What it should be.
        kind: FileKind,
    },
}

impl Blockdev {
    /// Checks that the files of a node, and of those written inside it, are there, of the right kind and ours to open.
    pub fn check_files(&self) -> Result<(), ArgumentError> {
        self.nodes().into_iter().try_for_each(|node| {
            let files = node.options.needs().files;
            let mut checked = files
                .iter()
                .map(|file| storage_watchdog::waiting_for(file.path, || check(node, file)));
            checked.try_for_each(|result| result.map_err(ArgumentError::own))
        })
    }
}

fn check(node: &Blockdev, file: &HostFileSpec<'_>) -> Result<(), FileCheckError> {
    // The type comes first: opening a FIFO would wait for its other end.
    check_kind(node.driver.name, file)?;
    let open = |write| OpenOptions::new().read(true).write(write).open(file.path);
    let (path, can_read) = (file.path.to_owned(), || open(false).is_ok());
    match open(!node.base.read_only) {
        Ok(_file) => Ok(()),
        Err(cause) if !node.base.read_only && forbids(&cause) && can_read() => {
            Err(FileCheckError::OpenForWriting { path, cause })
        }
        Err(cause) => Err(FileCheckError::Open { path, cause }),
    }
}

/// Checks that a file is of the kind that its driver serves.
pub(super) fn check_kind(
    driver: &'static str,
    file: &HostFileSpec<'_>,
) -> Result<(), FileCheckError> {
    if file_kind(file.path)? == Some(file.kind) {
        return Ok(());
    }
    Err(FileCheckError::Kind { driver, path: file.path.to_owned(), kind: file.kind })
}

/// Whether it is the rights that are lacking: the file's, its file system's or its device's.
fn forbids(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem)
}

/// A directory: where it really is.
pub fn real_directory(path: &Path) -> Result<PathBuf, FileCheckError> {
    let real = path.canonicalize().map_err(|cause| open_fault(path, cause))?;
    if real.is_dir() {
        return Ok(real);
    }
    Err(open_fault(path, ErrorKind::NotADirectory.into()))
}

/// What a file is; `None` if it cannot hold a disk. A directory is an error of its own, as in
/// QEMU.
pub fn file_kind(path: &Path) -> Result<Option<FileKind>, FileCheckError> {
    let metadata = path.metadata().map_err(|cause| open_fault(path, cause))?;
    if metadata.is_dir() {
        return Err(open_fault(path, ErrorKind::IsADirectory.into()));
    }
    let kind = metadata.file_type();
    if kind.is_file() {
        return Ok(Some(FileKind::Regular));
    }
    Ok(kind.is_block_device().then_some(FileKind::BlockDevice))
}

/// A file that cannot be opened.
pub fn open_fault(path: &Path, cause: io::Error) -> FileCheckError {
    FileCheckError::Open { path: path.to_owned(), cause }
}
