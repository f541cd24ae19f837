//! The pidfile: written and locked while the daemon serves, removed at the end.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags};

/// A pidfile of ours. Removed when it is dropped.
#[derive(Debug)]
pub(crate) struct Pidfile {
    path: PathBuf,
    /// Holds the lock.
    _file: File,
}

/// The pidfile could not be written.
#[derive(Debug, thiserror::Error)]
pub enum PidfileError {
    /// Another daemon uses it.
    #[error("pidfile {path} is locked by a live process")]
    Locked {
        /// Which.
        path: PathBuf,
    },
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
    pub(crate) fn write(path: &Path) -> Result<Self, PidfileError> {
        let failed = |source| PidfileError::Write { path: path.to_path_buf(), source };
        let absolute = std::path::absolute(path).map_err(failed)?;
        let flags = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC;
        let fd = rustix::fs::open(&absolute, flags, Mode::from_raw_mode(0o644))
            .map_err(|errno| failed(errno.into()))?;
        rustix::fs::fcntl_lock(&fd, FlockOperation::NonBlockingLockExclusive).map_err(|errno| {
            match errno {
                rustix::io::Errno::AGAIN | rustix::io::Errno::ACCESS => {
                    PidfileError::Locked { path: path.to_path_buf() }
                }
                errno => failed(errno.into()),
            }
        })?;
        let mut file = File::from(fd);
        file.set_len(0).map_err(failed)?;
        writeln!(file, "{}", std::process::id()).map_err(failed)?;
        Ok(Self { path: absolute, _file: file })
    }
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
        std::fs::write(&path, "a stale pidfile of some length\n").unwrap();
        let pidfile = Pidfile::write(&path).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), format!("{}\n", std::process::id()));
        drop(pidfile);
        assert!(!path.exists());
    }
}
