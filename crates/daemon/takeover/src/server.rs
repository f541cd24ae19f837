//! Finds out who serves the sockets of a plan.

use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use exports::{SocketError, SocketIdentity, SocketOptions, address, stream_socket};
use host::peer_of;
use rustix::io::Errno;
use rustix::net::SocketFlags;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::limits::ANSWER_LIMIT;

/// The programs that are told to end if they cannot hand over, one of them also as the kernel shortens its name.
const PROGRAMS: [&str; 3] = ["ringloom", "qemu-storage-daemon", "qemu-storage-da"];

/// A socket of the plan that another process serves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct OccupiedSocket {
    pub(super) path: PathBuf,
    pub(super) file: SocketIdentity,
    /// Who listens.
    pub(super) process: u32,
}

/// The process that serves a socket could not be found out: no answer, another PID namespace, or gone.
#[derive(Debug, thiserror::Error)]
pub enum ServerLookupError {
    /// The socket cannot be asked.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// The server is not visible from here.
    #[error("socket {0}: its server has no process id here: it runs in another PID namespace")]
    Elsewhere(PathBuf),
    /// The server is gone, or is not what can be replaced.
    #[error("process {process}: cannot {action}")]
    Process {
        /// Which.
        process: u32,
        /// What was tried.
        action: &'static str,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Somebody else listens.
    #[error(
        "process {process} ({name}) serves the socket, hands nothing over, and is neither ringloom nor qemu-storage-daemon"
    )]
    OtherProgram {
        /// Which.
        process: u32,
        /// Its name.
        name: String,
    },
}

/// Who listens at a path, if anybody does. The connection that this needs is closed at once: for the
/// server it is a client that leaves without a word.
pub(super) fn server_of(path: &Path) -> Result<Option<OccupiedSocket>, ServerLookupError> {
    let failed = |action| {
        move |source: io::Error| SocketError::Kernel { path: path.to_owned(), action, source }
    };
    let fd = stream_socket(path, SocketFlags::CLOEXEC)?;
    // Too many may be waiting there, for a server that hangs.
    set_socket_timeout(&fd, Timeout::Send, Some(ANSWER_LIMIT))
        .map_err(|errno| failed("bound a wait for it")(errno.into()))?;
    match rustix::net::connect(&fd, &address(path)?) {
        Ok(()) => {}
        Err(Errno::NOENT | Errno::CONNREFUSED) => return Ok(None),
        Err(errno) => return Err(failed("ask who serves it")(errno.into()).into()),
    }
    let peer = peer_of(&fd).map_err(failed("ask who serves it"))?;
    let file = SocketIdentity::of(path).map_err(failed("look at it"))?;
    match peer.process {
        Some(process) => Ok(Some(OccupiedSocket { path: path.to_owned(), file, process })),
        None => Err(ServerLookupError::Elsewhere(path.to_owned())),
    }
}

/// Who serves the socket of an export. At one that was inherited whoever made it listens as well, such as a service
/// manager, or has become this process.
pub(super) fn server_at(
    socket: &SocketOptions,
) -> Result<Option<OccupiedSocket>, ServerLookupError> {
    let serves = |found: &OccupiedSocket| {
        found.process != std::process::id() && check_program(found.process).is_ok()
    };
    let found = server_of(&socket.path)?;
    Ok(found.filter(|found| socket.listening_at().is_none() || serves(found)))
}

/// A hold on a process, which tells its end.
pub(super) fn open_pidfd(process: u32) -> Result<OwnedFd, ServerLookupError> {
    let failed = |source| ServerLookupError::Process { process, action: "watch it", source };
    let pid = i32::try_from(process).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| failed(Errno::SRCH.into()))?;
    pidfd_open(pid, PidfdFlags::empty()).map_err(|errno| failed(errno.into()))
}

/// Whether the process, which cannot be asked to hand over, is one that can be told to end: front ends come back to
/// its successor.
pub(super) fn check_program(process: u32) -> Result<(), ServerLookupError> {
    let failed =
        |source| ServerLookupError::Process { process, action: "find out its name", source };
    let name = std::fs::read_to_string(format!("/proc/{process}/comm")).map_err(failed)?;
    let name = name.trim_end();
    let executable = std::fs::read_link(format!("/proc/{process}/exe")).ok();
    let executable = executable.as_deref().and_then(Path::file_name).and_then(OsStr::to_str);
    // A program that was replaced on disk.
    let executable = executable.map(|name| name.trim_end_matches(" (deleted)"));
    let known = |name: &str| PROGRAMS.contains(&name);
    if known(name) || executable.is_some_and(known) {
        Ok(())
    } else {
        Err(ServerLookupError::OtherProgram { process, name: name.to_owned() })
    }
}
