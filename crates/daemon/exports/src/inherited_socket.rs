//! A listening socket that the process was started with (`addr.type=fd`): systemd's socket activation, or any parent.
//!
//! An export whose path is that of a socket that a service manager passes listens there as well: the line is the same with
//! and without a socket unit, and so for whoever takes over, to whom nothing is passed.
//!
//! Invariants: it is a UNIX stream socket that listens and has a name, so that whoever takes over or asks finds it. Its file
//! and its rights are those of who has made it.

use std::io;
use std::os::fd::{OwnedFd, RawFd};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use host::DescriptorError;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketType, sockopt};
use syntax::ArgumentError;

use crate::socket_identity::SocketIdentity;

/// The first descriptor that a service manager passes (sd_listen_fds(3)).
const LISTEN_FDS_START: RawFd = 3;

/// More than any passes: a number in the environment is no measure of memory.
const LISTEN_FDS_MAX: RawFd = 4096;

/// Those that were passed when this was first asked: a process in the background has another id.
static PASSED: LazyLock<Vec<RawFd>> = LazyLock::new(|| {
    let variable = |name: &str| std::env::var(name).ok();
    passed(variable("LISTEN_PID"), variable("LISTEN_FDS"), std::process::id())
});

/// A descriptor that is no socket to listen on. QEMU's sentences where it has some.
#[derive(Debug, thiserror::Error)]
pub enum InheritedSocketError {
    /// It is no number.
    #[error("Unable to parse FD number {0}")]
    Number(String),
    /// Nothing is open there, or no socket.
    #[error("File descriptor '{0}' is not a socket")]
    NoSocket(RawFd),
    /// It is of another kind.
    #[error("File descriptor '{0}' is not a UNIX stream socket")]
    Kind(RawFd),
    /// Nobody can connect to it.
    #[error("File descriptor '{0}' is a socket that does not listen")]
    Deaf(RawFd),
    /// It is in no file system.
    #[error("File descriptor '{0}' is a socket without a path")]
    Nameless(RawFd),
    /// The kernel does not say.
    #[error("File descriptor '{descriptor}': cannot look at it")]
    Kernel {
        /// Which.
        descriptor: RawFd,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// Reads the number of a descriptor, as in `addr.str=3`.
pub fn descriptor_number(text: &str) -> Result<RawFd, ArgumentError> {
    let number = text.parse::<RawFd>().ok().filter(|number| *number >= 0);
    number.ok_or_else(|| ArgumentError::own(InheritedSocketError::Number(text.to_owned())))
}

/// The descriptors that a service manager passes to this process. Call it before the process goes to the background.
pub fn passed_descriptors() -> &'static [RawFd] {
    &PASSED
}

/// The descriptor at which a socket listens that a service manager passes to this process, and whose file is at that path.
pub(crate) fn passed_at(path: &Path) -> Option<RawFd> {
    let wanted = SocketIdentity::of(path).ok()?;
    let is_there = |path: PathBuf| SocketIdentity::of(&path).is_ok_and(|found| found == wanted);
    let mut passed = passed_descriptors().iter().copied();
    passed.find(|number| path_of_listener(*number).is_ok_and(is_there))
}

/// The descriptors passed by a service manager, if they are for this process.
fn passed(for_process: Option<String>, count: Option<String>, own: u32) -> Vec<RawFd> {
    let for_process: Option<u32> = for_process.and_then(|text| text.parse().ok());
    let count: Option<RawFd> = count.and_then(|text| text.parse().ok());
    match (for_process, count) {
        (Some(process), Some(count)) if process == own => {
            (LISTEN_FDS_START..LISTEN_FDS_START + count.clamp(0, LISTEN_FDS_MAX)).collect()
        }
        (_, _) => Vec::new(),
    }
}

/// The path of the socket that listens at a descriptor of this process.
pub fn path_of_listener(descriptor: RawFd) -> Result<PathBuf, InheritedSocketError> {
    look(descriptor).map(|(_, path)| path)
}

/// A descriptor of its own for the socket that listens there.
pub(crate) fn listener_at(descriptor: RawFd) -> Result<OwnedFd, InheritedSocketError> {
    look(descriptor).map(|(socket, _)| socket)
}

/// A descriptor of its own for the stream socket that listens there, of TCP or UNIX, with or without a name.
pub fn stream_listener_at(descriptor: RawFd) -> Result<OwnedFd, InheritedSocketError> {
    let (socket, _) = listening(descriptor)?;
    Ok(socket)
}

fn look(descriptor: RawFd) -> Result<(OwnedFd, PathBuf), InheritedSocketError> {
    let (socket, family) = listening(descriptor)?;
    if family != AddressFamily::UNIX {
        return Err(InheritedSocketError::Kind(descriptor));
    }
    let listener = UnixListener::from(socket);
    let failed = |source| InheritedSocketError::Kernel { descriptor, source };
    let address = listener.local_addr().map_err(failed)?;
    match (address.as_pathname(), address.as_abstract_name()) {
        (Some(path), None) => Ok((listener.into(), path.to_owned())),
        (_, _) => Err(InheritedSocketError::Nameless(descriptor)),
    }
}

fn listening(descriptor: RawFd) -> Result<(OwnedFd, AddressFamily), InheritedSocketError> {
    let no_socket = |_: DescriptorError| InheritedSocketError::NoSocket(descriptor);
    let socket = host::duplicate(descriptor).map_err(no_socket)?;
    let failed = |errno: Errno| match errno {
        Errno::NOTSOCK | Errno::BADF => InheritedSocketError::NoSocket(descriptor),
        errno => InheritedSocketError::Kernel { descriptor, source: errno.into() },
    };
    let kind = sockopt::socket_type(&socket).map_err(failed)?;
    let family = sockopt::socket_domain(&socket).map_err(failed)?;
    if kind != SocketType::STREAM {
        return Err(InheritedSocketError::Kind(descriptor));
    }
    if !sockopt::socket_acceptconn(&socket).map_err(failed)? {
        return Err(InheritedSocketError::Deaf(descriptor));
    }
    Ok((socket, family))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;
    use std::os::unix::net::{SocketAddr, UnixDatagram, UnixStream};

    #[track_caller]
    fn refused(descriptor: &impl AsRawFd, expected: &str) {
        let number = descriptor.as_raw_fd();
        let said = path_of_listener(number).unwrap_err().to_string();
        assert_eq!(said, format!("File descriptor '{number}' {expected}"));
    }

    #[test]
    fn a_service_manager_passes_descriptors_to_one_process() {
        let check = |process: Option<&str>, count: &str, expected: &[RawFd]| {
            let (process, count) = (process.map(str::to_owned), Some(count.to_owned()));
            assert_eq!(passed(process, count, 17), expected);
        };
        check(Some("17"), "2", &[3, 4]);
        check(Some("18"), "2", &[]);
        check(None, "2", &[]);
        check(Some("17"), "-2", &[]);
        check(Some("17"), "x", &[]);
    }

    #[test]
    fn only_a_named_unix_stream_socket_that_listens_is_taken() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let listener = UnixListener::bind(&path).unwrap();
        assert_eq!(path_of_listener(listener.as_raw_fd()).unwrap(), path);
        refused(&UnixStream::pair().unwrap().0, "is a socket that does not listen");
        refused(&UnixDatagram::unbound().unwrap(), "is not a UNIX stream socket");
        refused(
            &std::net::TcpListener::bind("127.0.0.1:0").unwrap(),
            "is not a UNIX stream socket",
        );
        refused(&tempfile::tempfile().unwrap(), "is not a socket");
        let name = format!("ringloom-test-{}", std::process::id());
        let abstract_name = SocketAddr::from_abstract_name(name).unwrap();
        let nameless = UnixListener::bind_addr(&abstract_name).unwrap();
        refused(&nameless, "is a socket without a path");
        let said = path_of_listener(99_999).unwrap_err().to_string();
        assert_eq!(said, "File descriptor '99999' is not a socket");
        for text in ["", "x", "-1", "3x"] {
            descriptor_number(text).unwrap_err();
        }
        assert_eq!(descriptor_number("3").unwrap(), 3);
    }
}
