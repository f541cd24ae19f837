//! Which process is at the other end of a UNIX connection, and whether it has ended.

#![expect(
    unsafe_code,
    reason = "rustix takes the process id for one, which it is not always, and has no SO_PEERPIDFD"
)]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

use block::{Clock, SystemClock};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// socket(7), since Linux 6.5; in no library yet.
const SO_PEERPIDFD: libc::c_int = 77;

/// Who has connected, or who listened last on the socket that was connected to (SO_PEERCRED).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// Its process id; `None` if it has none in the PID namespace of this process.
    pub process: Option<u32>,
    /// Its effective user id.
    pub user: u32,
}

/// Asks for the peer of a connection.
pub fn peer_of(connection: impl AsFd) -> io::Result<Peer> {
    let mut found = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let size = size_of::<libc::ucred>();
    let mut length = libc::socklen_t::try_from(size).expect("a few bytes");
    // SAFETY: `found` and `length` are ours and live through the call; `length` is the size of
    // `found`, which may hold any numbers.
    let result = unsafe {
        libc::getsockopt(
            connection.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut found).cast(),
            &raw mut length,
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    let process = u32::try_from(found.pid).ok().filter(|pid| *pid > 0);
    Ok(Peer { process, user: found.uid })
}

/// Whether the kernel gives a hold on the process at the other end of a connection (since Linux 6.5), so that
/// [`peer_process`] needs no ids.
pub fn gives_peer_processes() -> io::Result<bool> {
    let (one, _other) = std::os::unix::net::UnixStream::pair()?;
    match peer_by_connection(one.as_fd()) {
        Ok(_) => Ok(true),
        Err(error) if Errno::from_io_error(&error) == Some(Errno::NOPROTOOPT) => Ok(false),
        Err(error) => Err(error),
    }
}

/// A hold on the process at the other end of a connection, for signals and to see its end. On kernels before 6.5 it
/// is found by its id, while the connection is there.
pub fn peer_process(connection: impl AsFd) -> io::Result<OwnedFd> {
    if let Ok(held) = peer_by_connection(connection.as_fd()) {
        return Ok(held);
    }
    let process = peer_of(&connection)?.process.and_then(|id| i32::try_from(id).ok());
    let process = process.and_then(Pid::from_raw).ok_or(Errno::SRCH)?;
    let held = pidfd_open(process, PidfdFlags::empty())?;
    // A peer that is gone may have left its id to another process.
    let mut fds = [PollFd::new(&connection, PollFlags::empty())];
    poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))?;
    if fds[0].revents().contains(PollFlags::HUP) { Err(Errno::SRCH.into()) } else { Ok(held) }
}

fn peer_by_connection(connection: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let mut number: libc::c_int = -1;
    let mut length = libc::socklen_t::try_from(size_of::<libc::c_int>()).expect("a few bytes");
    // SAFETY: `number` and `length` are ours and live through the call; `length` is the size of `number`, which may
    // hold any number.
    let result = unsafe {
        libc::getsockopt(
            connection.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PEERPIDFD,
            (&raw mut number).cast(),
            &raw mut length,
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made this descriptor for the caller, and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Whether a process that is held has ended, or does within that time. A signal does not end the wait.
pub fn has_ended(process: impl AsFd, limit: Duration) -> io::Result<bool> {
    let began = SystemClock.now();
    loop {
        let left = limit.saturating_sub(SystemClock.now().duration_since(began));
        let left = Timespec::try_from(left).expect("a wait is short");
        let mut fds = [PollFd::new(&process, PollFlags::IN)];
        match poll(&mut fds, Some(&left)) {
            Ok(ready) => return Ok(ready > 0),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peer_of_a_pair_is_its_maker() {
        let (one, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        let user = rustix::process::geteuid().as_raw();
        let expected = Peer { process: Some(std::process::id()), user };
        assert_eq!(peer_of(&one).unwrap(), expected);
    }

    #[test]
    fn a_hold_on_the_peer_tells_that_it_lives() {
        let (one, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        let held = peer_process(&one).unwrap();
        assert!(!has_ended(&held, Duration::ZERO).unwrap());
    }
}
