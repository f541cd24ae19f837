//! What somebody tries who has taken a process over, for tests of the fences around it.
//!
//! Invariants: each does no harm where it succeeds.

#![expect(unsafe_code, reason = "these calls have no safe form")]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::null_mut;

fn check(result: libc::c_long) -> io::Result<()> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Maps a page of code that can be written.
pub fn map_code() -> io::Result<()> {
    let rights = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: the kernel chooses the place, so nothing of ours is touched.
    let page = unsafe { libc::mmap(null_mut(), 4096, rights, flags, -1, 0) };
    if page == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the page was just mapped, and nobody knows it.
    check(unsafe { libc::munmap(page, 4096) }.into())
}

/// Makes a page of data code.
pub fn turn_data_into_code() -> io::Result<()> {
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: as in `map_code`.
    let page = unsafe { libc::mmap(null_mut(), 4096, rights, flags, -1, 0) };
    if page == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the page was just mapped, and nobody knows it.
    let turned =
        check(unsafe { libc::mprotect(page, 4096, libc::PROT_READ | libc::PROT_EXEC) }.into());
    // SAFETY: as above.
    check(unsafe { libc::munmap(page, 4096) }.into())?;
    turned
}

/// Takes hold of another process; there is none of this number.
pub fn trace() -> io::Result<()> {
    // SAFETY: the call takes no addresses.
    check(unsafe { libc::ptrace(libc::PTRACE_ATTACH, 0, 0, 0) })
}

/// Makes another process, which ends at once.
pub fn fork() -> io::Result<()> {
    // SAFETY: the child does nothing but end.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        // SAFETY: ends the child without running anything of the parent's.
        0 => unsafe { libc::_exit(0) },
        child => {
            // SAFETY: waits for the child just made; a null status is allowed.
            check(unsafe { libc::waitpid(child, null_mut(), 0) }.into())
        }
    }
}

/// Goes to a name space of its own.
pub fn leave_name_space() -> io::Result<()> {
    // SAFETY: the call takes no addresses.
    check(unsafe { libc::unshare(libc::CLONE_NEWUSER) }.into())
}

/// Makes an io_uring, which would do anything unseen.
pub fn make_ring() -> io::Result<()> {
    // `struct io_uring_params` is 120 bytes; zeroes are the defaults.
    let mut parameters = [0_u64; 15];
    // SAFETY: the kernel reads and writes 120 bytes, which are there.
    let ring = unsafe { libc::syscall(libc::SYS_io_uring_setup, 1, parameters.as_mut_ptr()) };
    check(ring)?;
    let ring = libc::c_int::try_from(ring).expect("a descriptor");
    // SAFETY: the descriptor was just made, and nobody else has it.
    check(unsafe { libc::close(ring) }.into())
}

/// Opens a file by its handle, past all directories; there is none of this kind.
pub fn open_by_handle() -> io::Result<()> {
    let mut handle = [0_u32; 8];
    // SAFETY: the handle names no bytes behind its head, which is there.
    let file = unsafe {
        libc::syscall(
            libc::SYS_open_by_handle_at,
            libc::AT_FDCWD,
            handle.as_mut_ptr(),
            libc::O_RDONLY,
        )
    };
    check(file)
}

/// Sends a signal to another process by a descriptor of it (pidfd_send_signal(2)).
pub fn signal_by_descriptor(process: u32, signal: i32) -> io::Result<()> {
    // SAFETY: the call takes no addresses.
    let pidfd = unsafe { libc::syscall(libc::SYS_pidfd_open, process, 0) };
    check(pidfd)?;
    // SAFETY: no information goes with the signal, which a null pointer says.
    check(unsafe { libc::syscall(libc::SYS_pidfd_send_signal, pidfd, signal, null_mut::<u8>(), 0) })
}

/// Sends a signal to another process by its number.
pub fn signal(process: u32, signal: i32) -> io::Result<()> {
    // SAFETY: the call takes no addresses.
    check(unsafe { libc::syscall(libc::SYS_kill, process, signal) })
}

/// Puts a program of its own into the kernel, by way of a socket.
pub fn filter_socket(socket: BorrowedFd<'_>) -> io::Result<()> {
    let mut all = [libc::sock_filter { code: 6, jt: 0, jf: 0, k: u32::MAX }];
    let program = libc::sock_fprog { len: 1, filter: all.as_mut_ptr() };
    let size = libc::socklen_t::try_from(size_of_val(&program)).expect("a few bytes");
    let (fd, option) = (socket.as_raw_fd(), libc::SO_ATTACH_FILTER);
    // SAFETY: the program and its one instruction live until the call returns; the kernel copies them.
    check(unsafe {
        libc::setsockopt(fd, libc::SOL_SOCKET, option, (&raw const program).cast(), size).into()
    })
}

/// Sends a signal to the process at the other end of a connection, which has to give it.
pub fn signal_peer(socket: BorrowedFd<'_>, signal: i32) -> io::Result<()> {
    let (mut pidfd, mut size) = (-1_i32, libc::socklen_t::try_from(size_of::<i32>()).expect("4"));
    let (fd, place) = (socket.as_raw_fd(), (&raw mut pidfd).cast());
    // SAFETY: the kernel writes 4 bytes to `pidfd` at most, as `size` says.
    check(unsafe {
        libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PEERPIDFD, place, &raw mut size).into()
    })?;
    // SAFETY: no information goes with the signal, which a null pointer says.
    check(unsafe { libc::syscall(libc::SYS_pidfd_send_signal, pidfd, signal, null_mut::<u8>(), 0) })
}

/// One fcntl with a number.
pub fn control(file: BorrowedFd<'_>, command: i32, argument: i32) -> io::Result<()> {
    // SAFETY: whoever calls this knows commands that take numbers; with others the kernel takes the
    // number for an address where nothing is, and refuses.
    check(unsafe { libc::fcntl(file.as_raw_fd(), command, argument) }.into())
}

/// One ioctl with no argument.
pub fn control_device(file: BorrowedFd<'_>, request: u64) -> io::Result<()> {
    // SAFETY: a null pointer is no place that the kernel could read or write.
    check(unsafe { libc::ioctl(file.as_raw_fd(), request, null_mut::<u8>()) }.into())
}

/// Has a ring tell of its completions elsewhere; there is no such ring.
pub fn register_bell() -> io::Result<()> {
    /// IORING_REGISTER_EVENTFD.
    const REGISTER: libc::c_int = 4;
    let none = null_mut::<u8>();
    // SAFETY: without a ring nothing is looked at.
    check(unsafe { libc::syscall(libc::SYS_io_uring_register, -1, REGISTER, none, 0) })
}

/// Gives a descriptor to the process at the other end.
pub fn hand_over(socket: BorrowedFd<'_>, file: BorrowedFd<'_>) -> io::Result<()> {
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
    let files = [file];
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(&files)), "there is room for one");
    let byte = [io::IoSlice::new(b"x")];
    Ok(sendmsg(socket, &byte, &mut control, SendFlags::empty()).map(drop)?)
}

/// Gives the lock of a file's description back.
pub fn unlock(file: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: zeroes are a whole file from its beginning.
    let mut range: libc::flock = unsafe { std::mem::zeroed() };
    range.l_type = libc::c_short::try_from(libc::F_UNLCK).expect("a small constant");
    // SAFETY: the range is ours and lives through the call.
    check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw mut range) }.into())
}
