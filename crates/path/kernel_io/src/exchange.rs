//! Puts another description behind a descriptor that stays.
//!
//! Where it stands: an image that was handed over, whose locks and I/O belong to one description.

#![expect(unsafe_code, reason = "a descriptor is changed by its number")]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

/// Makes a descriptor of ours a copy of another one. Whoever has borrowed it sees the other description from now
/// on; what the kernel has of the one before (operations in flight, registered files) keeps that.
pub(crate) fn exchange_file(ours: &OwnedFd, by: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: dup3 touches no memory. It closes the descriptor of `ours`, which stays borrowed and is open
    // again after the same step, so its number means a descriptor of its owner all the time.
    let result = unsafe { libc::dup3(by.as_raw_fd(), ours.as_raw_fd(), libc::O_CLOEXEC) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
