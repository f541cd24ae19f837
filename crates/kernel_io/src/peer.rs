//! Who is at the other end of a UNIX connection.

#![expect(unsafe_code, reason = "rustix takes the process id for one, which it is not always")]

use std::io;
use std::os::fd::{AsFd, AsRawFd};

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
}
