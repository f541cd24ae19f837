//! Puts another description behind the descriptor of a socket, which stays.
//!
//! Where it stands: a session that was handed over, for which the library that reads its messages keeps its
//! socket to itself, and learns over another one what was negotiated.
//! Not here: the same for an image (`kernel_io`).

#![expect(unsafe_code, reason = "a descriptor is changed by its number")]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

/// Makes the descriptor of that number, which must be of the same socket as `same`, a copy of `by`.
/// Whoever owns it must keep it open meanwhile; another socket is refused.
pub fn exchange_socket(number: RawFd, same: BorrowedFd<'_>, by: BorrowedFd<'_>) -> io::Result<()> {
    let expected = rustix::fs::fstat(same)?;
    // Negative numbers stand for something else than a descriptor.
    if number < 0 {
        return Err(rustix::io::Errno::BADF.into());
    }
    // SAFETY: it is used for one fstat, which only fails if the descriptor is not open.
    let target = unsafe { BorrowedFd::borrow_raw(number) };
    let found = rustix::fs::fstat(target)?;
    if (found.st_dev, found.st_ino) != (expected.st_dev, expected.st_ino) {
        return Err(io::Error::other("the descriptor is not of the socket that was named"));
    }
    // SAFETY: dup3 touches no memory. It closes the descriptor `number`, which is of a socket that the
    // caller names and whose owner lets it be exchanged, and opens it again in the same step.
    let result = unsafe { libc::dup3(by.as_raw_fd(), number, libc::O_CLOEXEC) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    #[test]
    fn the_owner_of_an_exchanged_socket_reads_from_the_new_one() {
        let (mut owner, _old) = UnixStream::pair().unwrap();
        let (new, mut peer) = UnixStream::pair().unwrap();
        let same = owner.try_clone().unwrap();
        exchange_socket(owner.as_raw_fd(), same.as_fd(), new.as_fd()).unwrap();
        peer.write_all(b"x").unwrap();
        let mut byte = [0];
        owner.read_exact(&mut byte).unwrap();
        assert_eq!(&byte, b"x");
    }

    #[test]
    fn another_socket_is_refused() {
        let (owner, other) = UnixStream::pair().unwrap();
        let (new, _peer) = UnixStream::pair().unwrap();
        exchange_socket(owner.as_raw_fd(), other.as_fd(), new.as_fd()).unwrap_err();
        exchange_socket(-1, other.as_fd(), new.as_fd()).unwrap_err();
    }
}
