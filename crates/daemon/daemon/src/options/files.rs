//! Looks at the files that a command line names, before anything is started.
//!
//! Invariants: a disk's file is opened here only to learn that it can be; nothing is read from it but,
//! in the short form, the bytes that tell its format, and nothing is written. Histograms of delays are
//! read here, so that nobody needs their files afterwards.
//! Not here: locks, sizes and alignment (the graph), and what formats look like (crate `formats`).

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, ErrorKind, Read, Write as _};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::thread;

use formats::Extension;
use layers::Histogram;

use super::fault::Fault;
use super::plan::{Blockdev, Driver, Step};
use crate::watch::TOLD_AFTER;

/// What can hold a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FileKind {
    /// A regular file.
    Regular,
    /// A block device.
    BlockDevice,
}

/// Checks that the files of a step are there, of the right kind and ours to open.
pub(super) fn check(step: &Step) -> Result<(), Fault> {
    match step {
        Step::Blockdev(blockdev) => blockdev.nodes().into_iter().try_for_each(check_node),
        Step::Object(_) | Step::Export(_) => Ok(()),
    }
}

fn check_node(blockdev: &Blockdev) -> Result<(), Fault> {
    let (driver, filename, kind, expected) = match &blockdev.driver {
        Driver::File { filename, .. } => ("file", filename, FileKind::Regular, "a regular file"),
        Driver::HostDevice { filename, .. } => {
            ("host_device", filename, FileKind::BlockDevice, "a block device")
        }
        Driver::Raw { .. }
        | Driver::NullCo { .. }
        | Driver::Throttle { .. }
        | Driver::Delay { .. }
        | Driver::Stripe { .. }
        | Driver::Qcow2 { .. } => {
            return Ok(());
        }
    };
    // The type comes first: opening a FIFO would wait for its other end.
    if file_kind(filename)? != Some(kind) {
        return Err(Fault::FileKind { driver, path: filename.clone(), expected });
    }
    let open =
        |write| waiting_for(filename, || OpenOptions::new().read(true).write(write).open(filename));
    let (path, can_read) = (filename.clone(), || open(false).is_ok());
    match open(!blockdev.read_only) {
        Ok(_file) => Ok(()),
        Err(cause) if !blockdev.read_only && forbids(&cause) && can_read() => {
            Err(Fault::OpenForWriting { path, cause })
        }
        Err(cause) => Err(Fault::Open { path, cause }),
    }
}

/// Whether it is the rights that are lacking: the file's, its file system's or its device's.
fn forbids(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem)
}

/// Reads a file with a histogram of latencies.
pub(super) fn read_histogram(path: &Path) -> Result<Arc<Histogram>, Fault> {
    // The type comes first: opening a FIFO would wait for its other end.
    if file_kind(path)? != Some(FileKind::Regular) {
        let (driver, path, expected) = ("delay", path.to_owned(), "a regular file");
        return Err(Fault::FileKind { driver, path, expected });
    }
    let mut content = Vec::new();
    let limit = u64::try_from(Histogram::BYTES_MAX).expect("64-bit host") + 1;
    let file = File::open(path).and_then(|file| file.take(limit).read_to_end(&mut content));
    file.map_err(|cause| open_fault(path, cause))?;
    let histogram = Histogram::parse(&content);
    histogram.map(Arc::new).map_err(|source| Fault::Histogram { path: path.to_owned(), source })
}

/// A directory below which files are opened that images name: where it really is.
pub(super) fn directory(path: &Path) -> Result<PathBuf, Fault> {
    let real = path.canonicalize().map_err(|cause| open_fault(path, cause))?;
    if real.is_dir() {
        return Ok(real);
    }
    Err(open_fault(path, ErrorKind::NotADirectory.into()))
}

/// What a file is; `None` if it cannot hold a disk. A directory is an error of its own, as in
/// QEMU.
pub(super) fn file_kind(path: &Path) -> Result<Option<FileKind>, Fault> {
    let metadata = waiting_for(path, || path.metadata());
    let metadata: Metadata = metadata.map_err(|cause| open_fault(path, cause))?;
    if metadata.is_dir() {
        return Err(open_fault(path, ErrorKind::IsADirectory.into()));
    }
    let kind = metadata.file_type();
    if kind.is_file() {
        return Ok(Some(FileKind::Regular));
    }
    Ok(kind.is_block_device().then_some(FileKind::BlockDevice))
}

/// Does something that waits for a file's storage, and says so if it takes long: there is no log yet, and the process may
/// be in a system call that only SIGKILL ends.
fn waiting_for<T>(path: &Path, work: impl FnOnce() -> T) -> T {
    let (done, is_done) = mpsc::channel::<()>();
    thread::scope(|scope| {
        // Where no thread can be had, nothing is said.
        let teller = thread::Builder::new().spawn_scoped(scope, move || {
            if is_done.recv_timeout(TOLD_AFTER) == Err(mpsc::RecvTimeoutError::Timeout) {
                let (path, seconds) = (path.display(), TOLD_AFTER.as_secs());
                let told = writeln!(
                    io::stderr(),
                    "{path}: its storage has not answered for {seconds} s; waiting"
                );
                // There is nobody else to tell.
                drop(told);
            }
        });
        let result = work();
        drop(done);
        // Its end comes before the process forks, which the end of the scope does not wait for.
        if let Ok(teller) = teller {
            teller.join().expect("it does not panic");
        }
        result
    })
}

fn open_fault(path: &Path, cause: io::Error) -> Fault {
    Fault::Open { path: path.to_owned(), cause }
}

/// Refuses a file whose name says that it is an image format. Nothing is inferred from it: the
/// operator has to say what is meant. The file need not be there.
pub(super) fn check_name(path: &Path) -> Result<(), Fault> {
    match formats::of_name(path) {
        Some(Extension { extension, format }) => {
            let reason = format!("its name ends in .{extension}");
            Err(Fault::FormatNotSaid { format, reason })
        }
        None => Ok(()),
    }
}

/// Refuses a file whose first bytes say that it is an image format, as [`check_name`] does.
pub(super) fn check_head(path: &Path) -> Result<(), Fault> {
    match waiting_for(path, || formats::of_head(path)).map_err(|cause| open_fault(path, cause))? {
        Some(format) => {
            let reason = "by its first bytes".to_owned();
            Err(Fault::FormatNotSaid { format, reason })
        }
        None => Ok(()),
    }
}
