//! A process of its own beside this one, for what may end a process's life in the kernel.
//!
//! Threads: it is made while this process has one thread; the other process begins with one.
//! Not here: what it does (`exports::descriptor_check`).

#![expect(unsafe_code, reason = "fork and signals that are ignored have no safe form")]

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::process::{close_descriptors_but, count_threads};

/// What a terminal, a service manager or an operator sends to all processes at once. The other process ends with
/// this one, which may have something to finish.
const IGNORED: [libc::c_int; 7] = [
    libc::SIGHUP,
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGTERM,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGALRM,
];

/// Makes a process of this name that does nothing but `task` and ends. It has one descriptor of this process, which is
/// given to it, and standard streams that lead nowhere; signals that ask processes to end do nothing there. Returns a
/// descriptor that can be read when it has ended (a pidfd), if the kernel has such.
///
/// # Errors
/// If this process has more than one thread, which the other one would lack, or none can be made.
pub fn start_apart(
    name: &CStr,
    descriptor: OwnedFd,
    task: impl FnOnce(OwnedFd),
) -> io::Result<Option<OwnedFd>> {
    let threads = count_threads()?;
    if threads != 1 {
        return Err(io::Error::other(format!("the process has {threads} threads already")));
    }
    let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    // SAFETY: the process has one thread, as just checked, so the child may do anything.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            // Its parent learns of a failure by the end of what it has given.
            let code = i32::from(begin(name, &descriptor, &null).is_err());
            drop(null);
            if code == 0 {
                task(descriptor);
            }
            // What the parent has to do at its end is not for this process to do.
            signal_hook::low_level::exit(code)
        }
        // Nobody waits for it, so the number stays its own.
        child => Ok(Pid::from_raw(child).and_then(|it| pidfd_open(it, PidfdFlags::empty()).ok())),
    }
}

fn begin(name: &CStr, descriptor: &OwnedFd, null: &OwnedFd) -> io::Result<()> {
    for signal in IGNORED {
        // SAFETY: no handler runs, and nobody in this process waits for the signal.
        if unsafe { libc::signal(signal, libc::SIG_IGN) } == libc::SIG_ERR {
            return Err(io::Error::last_os_error());
        }
    }
    rustix::stdio::dup2_stdin(null)?;
    rustix::stdio::dup2_stdout(null)?;
    rustix::stdio::dup2_stderr(null)?;
    rustix::thread::set_name(name)?;
    // Of what the parent has open nothing is used here; its own values know nothing of that, and are never dropped.
    close_descriptors_but(&[descriptor.as_raw_fd(), null.as_raw_fd()].into())
}
