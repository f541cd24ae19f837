//! Puts a filter of system calls up for all threads of the process.
//!
//! Not here: which calls are allowed (`sandbox`).

#![expect(unsafe_code, reason = "a filter is handed to the kernel by its address")]

use std::io;

/// Whether refused system calls go to the kernel's audit log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefusalLogging {
    /// It goes to the kernel's audit log.
    Logged,
    /// Nothing: it is nothing special.
    Silent,
}

/// A seccomp filter could not be installed.
#[derive(Debug, thiserror::Error)]
pub enum FilterError {
    /// More instructions than a filter can have.
    #[error("a filter of {0} instructions is too long")]
    TooLong(usize),
    /// A thread has filters of its own.
    #[error("thread {0} cannot be filtered")]
    Thread(libc::c_long),
    /// The kernel refused.
    #[error("this kernel takes no filters of system calls, or that is forbidden here")]
    Kernel(#[source] io::Error),
}

/// Has each system call of each thread, also of those to come, judged by this program (seccomp(2)), besides those that
/// were put up before; the strictest verdict counts. Cannot be undone. The calling thread must have no_new_privs or
/// CAP_SYS_ADMIN.
pub fn filter_system_calls(
    program: &[libc::sock_filter],
    refusals: RefusalLogging,
) -> Result<(), FilterError> {
    let count = program.len();
    let Ok(len) = u16::try_from(count) else { return Err(FilterError::TooLong(count)) };
    let program = libc::sock_fprog { len, filter: program.as_ptr().cast_mut() };
    let log = match refusals {
        RefusalLogging::Logged => libc::SECCOMP_FILTER_FLAG_LOG,
        RefusalLogging::Silent => 0,
    };
    let flags = libc::SECCOMP_FILTER_FLAG_TSYNC | log;
    // SAFETY: the program and its `len` instructions live until the call returns; the kernel
    // copies and checks them, and changes nothing of ours.
    let result = unsafe {
        libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const program)
    };
    match result {
        0 => Ok(()),
        thread @ 1.. => Err(FilterError::Thread(thread)),
        _ => Err(FilterError::Kernel(io::Error::last_os_error())),
    }
}
