//! The UNIX socket of an export: made without taking a live one away, removed at the end.
//!
//! Of the clients that come while one is served it accepts the next one, to see whether it stays: whoever asks who serves
//! a socket connects and leaves at once. The others wait in the backlog.

use std::fmt::{self, Display};
use std::io;
use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use host::peer_of;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::inherited_socket::{InheritedSocketError, listener_at};
use crate::socket_identity::SocketIdentity;
use crate::vhost_user_blk_options::SocketOptions;

/// Clients that wait to be accepted while one is served.
const BACKLOG: i32 = 64;

/// The longest path a UNIX socket can be bound to, in bytes (unix(7)).
const NAME_BYTES_MAX: usize = 107;

/// How often, and for how long each, to try for the directory's lock.
const LOCK_TRIES: u32 = 50;
const LOCK_PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// How long a process that listens may take to end, if it is about to.
const END_LIMIT: Duration = Duration::from_secs(1);

/// The listening UNIX socket of an export; its file is removed when it is dropped.
#[derive(Debug)]
pub struct ExportSocket {
    listener: UnixListener,
    path: PathBuf,
    identity: SocketIdentity,
    /// Whether its file is that of whoever has started the daemon, which made it.
    is_given: bool,
    /// Whether its file is this process's to remove.
    is_ours: AtomicBool,
    /// The next client, if it has come while another one is served.
    next: Mutex<Option<UnixStream>>,
}

/// The client that waits while another one is served: none, silent, or it has sent something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WaitingClientState {
    Nobody,
    /// It has said nothing yet.
    Silent,
    /// It has said something, as front ends do at once.
    Speaks,
}

/// A socket could not be made.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// Something is served there.
    #[error(
        "socket {path} is served by a live process{}; --takeover takes its place without a lost request",
        ProcessIdDisplay(*process)
    )]
    Live {
        /// Where.
        path: PathBuf,
        /// Which process listens, if it is visible from here.
        process: Option<u32>,
    },
    /// What is there is not ours to remove.
    #[error("{0} exists and is not a socket")]
    NoSocket(PathBuf),
    /// What the process was started with is no socket to listen on.
    #[error("socket {path}")]
    Inherited {
        /// Where it should listen.
        path: PathBuf,
        /// Why.
        #[source]
        source: InheritedSocketError,
    },
    /// The group cannot be given to it.
    #[error(
        "socket {path}: the group '{group}' cannot be given to it now; a directory of that group with the set-group-ID \
         bit (chmod g+s) gives it to all that is made there"
    )]
    GroupDenied {
        /// Where.
        path: PathBuf,
        /// Which.
        group: String,
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

impl ExportSocket {
    /// Listens at the path. A stale socket there is replaced.
    pub fn listen(options: &SocketOptions) -> Result<Self, SocketError> {
        if let Some(number) = options.listening_at() {
            return Self::inherit(options, number);
        }
        let path = std::path::absolute(&options.path)
            .map_err(|source| failed(&options.path, "find its directory", source))?;
        // Between bind and listen a socket looks stale to another starter.
        let _lock = lock_directory(&path)?;
        // As it is written it may be short enough only because it is relative.
        let name = if path.as_os_str().len() <= NAME_BYTES_MAX { &path } else { &options.path };
        remove_stale(name)?;
        let fd = bind(name, options.mode)?;
        // From here on the file is ours, also to remove.
        let identity =
            SocketIdentity::of(&path).map_err(|source| failed(&path, "look at it", source))?;
        let (listener, is_ours, next) = (fd.into(), AtomicBool::new(true), Mutex::default());
        let socket = Self { listener, path, identity, is_given: false, is_ours, next };
        socket.set_rights(options)?;
        rustix::net::listen(&socket.listener, BACKLOG)
            .map_err(|errno| failed(&socket.path, "listen", errno.into()))?;
        Ok(socket)
    }

    /// A socket at which whoever has started the process listens. Its file stays in the end.
    fn inherit(options: &SocketOptions, number: RawFd) -> Result<Self, SocketError> {
        let path = options.path.clone();
        let refused = |source| SocketError::Inherited { path: path.clone(), source };
        let listener = listener_at(number).map_err(refused)?;
        let identity =
            SocketIdentity::of(&path).map_err(|source| failed(&path, "look at it", source))?;
        // The kernel notes who listened last: it is this process that serves.
        rustix::net::listen(&listener, BACKLOG)
            .map_err(|errno| failed(&path, "listen", errno.into()))?;
        let (listener, is_ours, next) = (listener.into(), AtomicBool::new(false), Mutex::default());
        Ok(Self { listener, path, identity, is_given: true, is_ours, next })
    }

    /// A socket that another process has made and listens on no more. Its rights become those that
    /// are asked for here, unless it was given to that process; whoever asks who listens is told this process. It may have
    /// accepted the next client.
    pub fn adopt(
        listener: OwnedFd,
        next: Option<OwnedFd>,
        (identity, is_given): (SocketIdentity, bool),
        options: &SocketOptions,
    ) -> Self {
        let path = std::path::absolute(&options.path).unwrap_or_else(|error| {
            let path = options.path.clone();
            tracing::warn!("socket {}: cannot find its directory: {error}", path.display());
            path
        });
        let is_given = is_given || options.descriptor.is_some();
        let (listener, is_ours) = (listener.into(), AtomicBool::new(!is_given));
        let next = Mutex::new(next.map(UnixStream::from));
        let socket = Self { listener, path, identity, is_given, is_ours, next };
        if !is_given && let Err(error) = socket.set_rights(options) {
            // It is being served, which counts more.
            tracing::warn!("{}", host::chain_of(&error));
        }
        // The kernel notes who listened last (SO_PEERCRED of those who connect).
        if let Err(errno) = rustix::net::listen(&socket.listener, BACKLOG) {
            tracing::warn!("socket {}: cannot listen again: {errno}", socket.path.display());
        }
        socket
    }

    /// Its file is another process's, which listens on it.
    pub fn leave(&self) {
        self.is_ours.store(false, Ordering::SeqCst);
    }

    /// Removes its file, once: nobody finds it any more, while the listener is still open. Whoever starts in the place of
    /// a process that is about to end waits for the images, and does not take it for one that goes on serving.
    pub fn remove(&self) {
        if !self.is_ours.swap(false, Ordering::SeqCst) {
            return;
        }
        // Somebody may have put another socket there, which is not ours to remove.
        if SocketIdentity::of(&self.path).is_ok_and(|found| found == self.identity)
            && let Err(error) = std::fs::remove_file(&self.path)
        {
            tracing::warn!("socket {}: cannot remove it: {error}", self.path.display());
        }
    }

    /// Which file it is.
    pub fn identity(&self) -> SocketIdentity {
        self.identity
    }

    /// Whether whoever started the daemon has made it, and keeps its file.
    pub(crate) fn is_given(&self) -> bool {
        self.is_given
    }

    /// The listening end.
    pub fn listener(&self) -> &UnixListener {
        &self.listener
    }

    /// Who is next while another client is served: accepts whoever has come, and lets go of whoever has left. `came` is
    /// told of each that was not seen before.
    pub(crate) fn look_for_next(&self, mut came: impl FnMut(&UnixStream)) -> WaitingClientState {
        let mut next = self.next();
        for _ in 0..BACKLOG {
            match next.as_ref().map(state_of) {
                Some(Some(state)) => return state,
                Some(None) => *next = None,
                None => {}
            }
            if revents(&self.listener, PollFlags::IN).is_empty() {
                break;
            }
            // Without descriptors it waits in the backlog.
            let Ok((stream, _)) = self.listener.accept() else { break };
            came(&stream);
            *next = Some(stream);
        }
        WaitingClientState::Nobody
    }

    /// The next client, if it was accepted: nobody is served any more.
    pub(crate) fn take_next(&self) -> Option<UnixStream> {
        self.next().take()
    }

    /// The connection of the next client, for another process.
    pub(crate) fn share_next(&self) -> io::Result<Option<OwnedFd>> {
        self.next().as_ref().map(|next| next.as_fd().try_clone_to_owned()).transpose()
    }

    fn next(&self) -> std::sync::MutexGuard<'_, Option<UnixStream>> {
        self.next.lock().expect("no holder of this lock panics")
    }

    /// Where it listens, absolute.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Nobody can connect before `listen`, so nobody slips in before the rights are set.
    fn set_rights(&self, options: &SocketOptions) -> Result<(), SocketError> {
        let path = &self.path;
        if let Some(group) = &options.group {
            let id = group_id(path, group)?;
            let has = std::fs::symlink_metadata(path).map(|it| it.gid());
            let changed = match has {
                Ok(has) if has == id => Ok(()),
                _ => std::os::unix::fs::chown(path, None, Some(id)),
            };
            changed.map_err(|source| {
                if source.kind() == io::ErrorKind::PermissionDenied {
                    SocketError::GroupDenied { path: path.clone(), group: group.clone() }
                } else {
                    failed(path, "change its group", source)
                }
            })?;
        }
        // It has this mode from its making on, but for what the umask takes.
        let has = std::fs::symlink_metadata(path).map(|it| it.mode() & 0o777);
        if let Some(mode) = options.mode.filter(|mode| !has.is_ok_and(|has| has == *mode)) {
            rustix::fs::chmod(path, Mode::from_raw_mode(mode))
                .map_err(|errno| failed(path, "change its mode", errno.into()))?;
        }
        Ok(())
    }
}

impl Drop for ExportSocket {
    fn drop(&mut self) {
        self.remove();
    }
}

fn failed(path: &Path, action: &'static str, source: io::Error) -> SocketError {
    SocketError::Kernel { path: path.to_path_buf(), action, source }
}

/// Keeps other starters out of the socket's directory until the guard is dropped.
fn lock_directory(path: &Path) -> Result<OwnedFd, SocketError> {
    let directory = path.parent().unwrap_or(path);
    let kernel = |action| move |errno: Errno| failed(path, action, errno.into());
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let fd =
        rustix::fs::open(directory, flags, Mode::empty()).map_err(kernel("open its directory"))?;
    for _ in 0..LOCK_TRIES {
        match rustix::fs::flock(&fd, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(fd),
            Err(Errno::WOULDBLOCK | Errno::INTR) => {}
            Err(errno) => return Err(kernel("lock its directory")(errno)),
        }
        match poll(&mut [], Some(&LOCK_PAUSE)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(kernel("wait for its directory")(errno)),
        }
    }
    // Anyone who may read the directory can lock it; that must not keep a disk from being served.
    tracing::warn!("socket {}: another process keeps its directory locked", path.display());
    Ok(fd)
}

fn remove_stale(path: &Path) -> Result<(), SocketError> {
    let found = match std::fs::symlink_metadata(path) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed(path, "look at it", error)),
    };
    if !found.file_type().is_socket() {
        return Err(SocketError::NoSocket(path.to_path_buf()));
    }
    check_unserved(path)?;
    tracing::info!("socket {}: replacing a stale one", path.display());
    std::fs::remove_file(path).map_err(|source| failed(path, "remove the stale one", source))
}

/// Whether nobody listens there, be it that nothing is there. Does not wait for a listener whose backlog is full.
fn check_unserved(path: &Path) -> Result<(), SocketError> {
    let fd = stream_socket(path, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
    let live = |process| Err(SocketError::Live { path: path.to_path_buf(), process });
    match rustix::net::connect(&fd, &address(path)?) {
        Ok(()) => live(peer_of(&fd).ok().and_then(|peer| peer.process)),
        Err(Errno::AGAIN) => live(None),
        Err(Errno::CONNREFUSED | Errno::NOENT) => Ok(()),
        Err(errno) => Err(failed(path, "ask whether it is served", errno.into())),
    }
}

/// The same, but a process that is about to end may take `END_LIMIT`: one that was just killed listens for some
/// milliseconds more.
pub fn wait_until_unserved(path: &Path) -> Result<(), SocketError> {
    match check_unserved(path) {
        Err(SocketError::Live { process: Some(process), .. }) if ends_in_time(process) => {
            check_unserved(path)
        }
        result => result,
    }
}

/// Whether a process has ended when the time is over.
fn ends_in_time(process: u32) -> bool {
    let pid = i32::try_from(process).ok().and_then(Pid::from_raw);
    let Some(pid) = pid else { return false };
    match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(pidfd) => host::has_ended(&pidfd, END_LIMIT).unwrap_or(false),
        Err(errno) => errno == Errno::SRCH,
    }
}

/// How a client is that was accepted; none if it has left.
fn state_of(client: &UnixStream) -> Option<WaitingClientState> {
    let now = revents(client, PollFlags::IN | PollFlags::RDHUP);
    if now.intersects(PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR) {
        return None;
    }
    Some(if now.is_empty() { WaitingClientState::Silent } else { WaitingClientState::Speaks })
}

/// What is so now of a descriptor of our own.
fn revents(fd: &impl AsFd, events: PollFlags) -> PollFlags {
    let mut fds = [PollFd::new(fd, events)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    match poll(&mut fds, Some(&now)) {
        Ok(_) => fds[0].revents(),
        Err(Errno::INTR) => PollFlags::empty(),
        Err(errno) => panic!("poll on a descriptor of our own: {errno}"),
    }
}

/// Shows ` (4711)`, if the process is known.
struct ProcessIdDisplay(Option<u32>);

impl Display for ProcessIdDisplay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(process) => write!(f, " ({process})"),
            None => Ok(()),
        }
    }
}

/// Has the umask leave that mode as it is, and take all else, until it is dropped. It is the process's: a file that
/// another thread makes in that moment has no other rights either.
struct UmaskGuard(Mode);

impl UmaskGuard {
    fn of(mode: u32) -> Self {
        Self(rustix::process::umask(Mode::from_raw_mode(0o777 & !mode)))
    }
}

impl Drop for UmaskGuard {
    fn drop(&mut self) {
        rustix::process::umask(self.0);
    }
}

fn bind(path: &Path, mode: Option<u32>) -> Result<OwnedFd, SocketError> {
    let fd = stream_socket(path, SocketFlags::CLOEXEC)?;
    if let Some(mode) = mode {
        // The file gets the mode of the socket.
        rustix::fs::fchmod(&fd, Mode::from_raw_mode(mode))
            .map_err(|errno| failed(path, "change its mode", errno.into()))?;
    }
    let bound = {
        let _umask = mode.map(UmaskGuard::of);
        rustix::net::bind(&fd, &address(path)?)
    };
    bound.map_err(|errno| failed(path, "bind it", errno.into()))?;
    Ok(fd)
}

/// A UNIX socket of the kind that exports listen on. An error names the path.
pub fn stream_socket(path: &Path, flags: SocketFlags) -> Result<OwnedFd, SocketError> {
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
        .map_err(|errno| failed(path, "make it", errno.into()))
}

/// The address of a socket at a path.
pub fn address(path: &Path) -> Result<SocketAddrUnix, SocketError> {
    SocketAddrUnix::new(path).map_err(|errno| failed(path, "name it", errno.into()))
}

/// The number of a group, as text, if it is known: behind the fences it cannot be asked for any more.
pub fn group_number(group: &str) -> Option<String> {
    group_id(Path::new(""), group).ok().map(|id| id.to_string())
}

fn group_id(path: &Path, group: &str) -> Result<u32, SocketError> {
    // To chown, the largest number means no change.
    if let Ok(id) = group.parse()
        && id != u32::MAX
    {
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
        SocketOptions { path: path.to_path_buf(), descriptor: None, mode, group: None }
    }

    #[test]
    fn a_stale_socket_is_replaced_and_a_live_one_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        drop(UnixListener::bind(&path).unwrap());
        let socket = ExportSocket::listen(&options(&path, Some(0o640))).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
        let error = ExportSocket::listen(&options(&path, None)).unwrap_err();
        assert!(matches!(error, SocketError::Live { .. }), "{error}");
        drop(socket);
        assert!(!path.exists());
    }

    #[test]
    fn a_listener_that_does_not_accept_is_live_too() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let fd = bind(&path, None).unwrap();
        rustix::net::listen(&fd, 0).unwrap();
        let waiting: Vec<_> = (0..4).map(|_| check_unserved(&path).is_err()).collect();
        assert_eq!(waiting, [true; 4]);
    }

    #[test]
    fn a_socket_that_was_replaced_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let first = ExportSocket::listen(&options(&path, None)).unwrap();
        std::fs::remove_file(&path).unwrap();
        let second = ExportSocket::listen(&options(&path, None)).unwrap();
        drop(first);
        assert!(path.exists());
        drop(second);
        assert!(!path.exists());
    }

    #[test]
    fn another_file_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("precious");
        std::fs::write(&path, "data").unwrap();
        let error = ExportSocket::listen(&options(&path, None)).unwrap_err();
        assert!(matches!(error, SocketError::NoSocket(..)), "{error}");
        assert_eq!(std::fs::read(&path).unwrap(), b"data");
    }
}
