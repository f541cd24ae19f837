//! The UNIX socket of an export: made without taking a live one away, removed at the end.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::fs::Mode;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::options::SocketOptions;

/// Clients that wait to be accepted while one is served.
const BACKLOG: i32 = 64;

/// A listening socket; its file is removed when it is dropped.
#[derive(Debug)]
pub(crate) struct Socket {
    listener: UnixListener,
    path: PathBuf,
}

/// A socket could not be made.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// Something is served there.
    #[error("socket {path} is served by a live process")]
    Live {
        /// Where.
        path: PathBuf,
    },
    /// What is there is not ours to remove.
    #[error("{path} exists and is not a socket")]
    NoSocket {
        /// Where.
        path: PathBuf,
    },
    /// There is no such group.
    #[error("socket {path}: there is no group '{group}'")]
    Group {
        /// Where.
        path: PathBuf,
        /// Which.
        group: String,
    },
    /// The kernel refused.
    #[error("socket {path}: cannot {action}")]
    Kernel {
        /// Where.
        path: PathBuf,
        /// What was tried.
        action: &'static str,
        /// Why.
        #[source]
        source: io::Error,
    },
}

impl Socket {
    /// Listens at the path. A stale socket there is replaced.
    pub(crate) fn listen(options: &SocketOptions) -> Result<Self, SocketError> {
        let path = std::path::absolute(&options.path)
            .map_err(|source| failed(&options.path, "find its directory", source))?;
        remove_stale(&path)?;
        let fd = bind(&path)?;
        // From here on the file is ours, also to remove.
        let socket = Self { listener: UnixListener::from(fd), path };
        socket.set_rights(options)?;
        rustix::net::listen(&socket.listener, BACKLOG)
            .map_err(|errno| failed(&socket.path, "listen", errno.into()))?;
        Ok(socket)
    }

    /// The listening end.
    pub(crate) fn listener(&self) -> &UnixListener {
        &self.listener
    }

    /// Where it listens, absolute.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Nobody can connect before `listen`, so nobody slips in before the rights are set.
    fn set_rights(&self, options: &SocketOptions) -> Result<(), SocketError> {
        let path = &self.path;
        if let Some(group) = &options.group {
            let id = group_id(path, group)?;
            std::os::unix::fs::chown(path, None, Some(id))
                .map_err(|source| failed(path, "change its group", source))?;
        }
        if let Some(mode) = options.mode {
            rustix::fs::chmod(path, Mode::from_raw_mode(mode))
                .map_err(|errno| failed(path, "change its mode", errno.into()))?;
        }
        Ok(())
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_file(&self.path) {
            tracing::warn!("socket {}: cannot remove it: {error}", self.path.display());
        }
    }
}

fn failed(path: &Path, action: &'static str, source: io::Error) -> SocketError {
    SocketError::Kernel { path: path.to_path_buf(), action, source }
}

fn remove_stale(path: &Path) -> Result<(), SocketError> {
    let found = match std::fs::symlink_metadata(path) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed(path, "look at it", error)),
    };
    if !found.file_type().is_socket() {
        return Err(SocketError::NoSocket { path: path.to_path_buf() });
    }
    match UnixStream::connect(path) {
        Ok(_) => Err(SocketError::Live { path: path.to_path_buf() }),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            tracing::info!("socket {}: replacing a stale one", path.display());
            std::fs::remove_file(path)
                .map_err(|source| failed(path, "remove the stale one", source))
        }
        Err(error) => Err(failed(path, "ask whether it is served", error)),
    }
}

fn bind(path: &Path) -> Result<OwnedFd, SocketError> {
    let kernel = |action| move |errno: rustix::io::Errno| failed(path, action, errno.into());
    let flags = SocketFlags::CLOEXEC;
    let fd = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
        .map_err(kernel("make it"))?;
    let address = SocketAddrUnix::new(path).map_err(kernel("name it"))?;
    rustix::net::bind(&fd, &address).map_err(kernel("bind it"))?;
    Ok(fd)
}

fn group_id(path: &Path, group: &str) -> Result<u32, SocketError> {
    if let Ok(id) = group.parse() {
        return Ok(id);
    }
    let found = nix::unistd::Group::from_name(group)
        .map_err(|errno| failed(path, "look its group up", errno.into()))?;
    let missing = || SocketError::Group { path: path.to_path_buf(), group: group.to_owned() };
    Ok(found.ok_or_else(missing)?.gid.as_raw())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn options(path: &Path, mode: Option<u32>) -> SocketOptions {
        SocketOptions { path: path.to_path_buf(), mode, group: None }
    }

    #[test]
    fn a_stale_socket_is_replaced_and_a_live_one_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        drop(UnixListener::bind(&path).unwrap());
        let socket = Socket::listen(&options(&path, Some(0o640))).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
        let error = Socket::listen(&options(&path, None)).unwrap_err();
        assert!(matches!(error, SocketError::Live { .. }), "{error}");
        drop(socket);
        assert!(!path.exists());
    }

    #[test]
    fn another_file_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("precious");
        std::fs::write(&path, "data").unwrap();
        let error = Socket::listen(&options(&path, None)).unwrap_err();
        assert!(matches!(error, SocketError::NoSocket { .. }), "{error}");
        assert_eq!(std::fs::read(&path).unwrap(), b"data");
    }
}
