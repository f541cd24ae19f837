//! The pidfile: written and locked while the daemon serves, removed at the end.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

/// The most that a pidfile holds: a process id of any width, and some white space.
const PID_BYTES_MAX: usize = 32;

/// A pidfile of ours. Removed when it is dropped.
#[derive(Debug)]
pub struct Pidfile {
    path: PathBuf,
    /// Holds the lock.
    file: File,
}

/// The pidfile could not be written.
#[derive(Debug, thiserror::Error)]
pub enum PidfileError {
    /// Another daemon uses it.
    #[error("pidfile {0} is locked by a live process")]
    Locked(PathBuf),
    /// What is there is no pidfile, and may be precious.
    #[error("{0} exists and holds something else than a process id")]
    Other(PathBuf),
    /// The kernel refused.
    #[error("pidfile {path}: cannot write it")]
    Write {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

impl Pidfile {
    /// Writes the process's id. Call it in the process that stays.
    pub fn write(path: &Path) -> Result<Self, PidfileError> {
        let failed = |source| PidfileError::Write { path: path.to_path_buf(), source };
        let absolute = std::path::absolute(path).map_err(failed)?;
        let file = loop {
            if let Some(file) = lock(&absolute)? {
                break file;
            }
        };
        let mut found = [0; PID_BYTES_MAX + 1];
        let count = file.read_at(&mut found, 0).map_err(failed)?;
        if !could_be_pid(&found[..count]) {
            return Err(PidfileError::Other(path.to_path_buf()));
        }
        // From here on it is removed if it cannot be written.
        let mut pidfile = Self { path: absolute, file };
        pidfile.file.set_len(0).map_err(failed)?;
        writeln!(pidfile.file, "{}", std::process::id()).map_err(failed)?;
        Ok(pidfile)
    }
}

impl Pidfile {
    /// Whether it could be written once that process has ended, as far as can be told now.
    pub fn check(path: &Path, process: u32) -> Result<(), PidfileError> {
        let failed = |source| PidfileError::Write { path: path.to_path_buf(), source };
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let file = match rustix::fs::open(path, flags, Mode::empty()) {
            Ok(fd) => File::from(fd),
            Err(Errno::NOENT) => {
                let absolute = std::path::absolute(path).map_err(failed)?;
                let directory = absolute.parent().unwrap_or(&absolute);
                let writable = rustix::fs::access(directory, Access::WRITE_OK | Access::EXEC_OK);
                return writable.map_err(|errno| failed(errno.into()));
            }
            Err(errno) => return Err(failed(errno.into())),
        };
        let mut found = [0; PID_BYTES_MAX + 1];
        let count = file.read_at(&mut found, 0).map_err(failed)?;
        if !could_be_pid(&found[..count]) {
            return Err(PidfileError::Other(path.to_path_buf()));
        }
        // Closed, the file loses the lock that this may give.
        match rustix::fs::fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(()),
            Err(Errno::AGAIN | Errno::ACCESS)
                if found[..count].trim_ascii() == process.to_string().as_bytes() =>
            {
                Ok(())
            }
            Err(Errno::AGAIN | Errno::ACCESS) => Err(PidfileError::Locked(path.to_path_buf())),
            Err(errno) => Err(failed(errno.into())),
        }
    }
}

/// Whether that is what a pidfile holds, or an empty file.
fn could_be_pid(content: &[u8]) -> bool {
    content.len() <= PID_BYTES_MAX
        && content.iter().all(|byte| byte.is_ascii_digit() || byte.is_ascii_whitespace())
}

/// Opens and locks the file; `None` if it was removed meanwhile by the process that had it.
fn lock(path: &Path) -> Result<Option<File>, PidfileError> {
    let failed = |source| PidfileError::Write { path: path.to_path_buf(), source };
    let flags = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC;
    let fd = rustix::fs::open(path, flags, Mode::from_raw_mode(0o644))
        .map_err(|errno| failed(errno.into()))?;
    match rustix::fs::fcntl_lock(&fd, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(Errno::AGAIN | Errno::ACCESS) => {
            return Err(PidfileError::Locked(path.to_path_buf()));
        }
        Err(errno) => return Err(failed(errno.into())),
    }
    let file = File::from(fd);
    let ours = file.metadata().map_err(failed)?;
    let there = std::fs::metadata(path).ok();
    let same = there.is_some_and(|found| (found.dev(), found.ino()) == (ours.dev(), ours.ino()));
    Ok(same.then_some(file))
}

impl Drop for Pidfile {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_file(&self.path) {
            tracing::warn!("pidfile {}: cannot remove it: {error}", self.path.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pidfile_holds_the_process_id_until_it_is_dropped() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pid");
        std::fs::write(&path, "1234567890 \n").unwrap();
        let pidfile = Pidfile::write(&path).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), format!("{}\n", std::process::id()));
        drop(pidfile);
        assert!(!path.exists());
    }

    #[test]
    fn a_file_with_other_content_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk.img");
        for content in [&[0; 4096][..], b"12x", &[b'1'; 33]] {
            std::fs::write(&path, content).unwrap();
            let error = Pidfile::write(&path).unwrap_err();
            assert!(matches!(error, PidfileError::Other(..)), "{error}");
            assert_eq!(std::fs::read(&path).unwrap(), content);
        }
    }
}
