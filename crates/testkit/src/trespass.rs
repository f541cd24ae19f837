//! What somebody tries who has taken a process over, for tests of the fences around it.
//!
//! Invariants: each does no harm where it succeeds.

#![expect(unsafe_code, reason = "these calls have no safe form")]

use std::io;
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
