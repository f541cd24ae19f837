//! What concerns the whole process: descriptors that it was started with, going to the background,
//! and the limit of open files.
//!
//! Threads: [`daemonize`] must be called while the process has one thread and no io_uring, since
//! neither survives a fork.

#![expect(unsafe_code, reason = "fork and descriptors of nobody have no safe form")]

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{FromRawFd, OwnedFd, RawFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::pipe::PipeFlags;
use rustix::process::{Resource, Rlimit, WaitOptions};
use rustix::time::Timespec;

/// How often a thread that ends is looked for, each millisecond. Its kernel side ends within microseconds of its join.
const LOOKS_FOR_THREADS: u32 = 100;
const PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };

/// The first descriptor that is no standard stream.
const FIRST: u32 = 3;

/// Closes every descriptor but the standard streams and these. Call it first of all: who has opened
/// one by then loses it.
pub fn close_descriptors_but(kept: &BTreeSet<RawFd>) -> io::Result<()> {
    let kept: BTreeSet<u32> = kept.iter().filter_map(|fd| u32::try_from(*fd).ok()).collect();
    match close_gaps(&kept) {
        Ok(()) => Ok(()),
        // Kernels before 5.9, and filters of containers that do not know the call.
        Err(Errno::NOSYS | Errno::PERM) => close_listed(&kept),
        Err(errno) => Err(errno.into()),
    }
}

/// Closes what is between those that are kept.
fn close_gaps(kept: &BTreeSet<u32>) -> Result<(), Errno> {
    let mut first = FIRST;
    for kept in kept.range(FIRST..) {
        if first < *kept {
            close_range(first, kept - 1)?;
        }
        first = kept + 1;
    }
    close_range(first, u32::MAX)
}

fn close_range(first: u32, last: u32) -> Result<(), Errno> {
    // SAFETY: the call takes no addresses. Nobody uses what it closes, as `close_descriptors_but`
    // demands.
    match unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) } {
        0 => Ok(()),
        _ => Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)),
    }
}

/// Closes what the kernel says to be open.
fn close_listed(kept: &BTreeSet<u32>) -> io::Result<()> {
    let mut open = Vec::new();
    for entry in std::fs::read_dir("/proc/self/fd")? {
        open.extend(entry?.file_name().to_str().and_then(|name| name.parse::<u32>().ok()));
    }
    for fd in open.into_iter().filter(|fd| *fd >= FIRST && !kept.contains(fd)) {
        let fd = RawFd::try_from(fd).expect("the kernel numbers descriptors from 0 to RawFd::MAX");
        // SAFETY: as in `close_range`. The list itself is among them, and closed by now (EBADF).
        let _closed = unsafe { libc::close(fd) };
    }
    Ok(())
}

/// A descriptor that the process was started with cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DescriptorError {
    /// Nothing is open there.
    #[error("the descriptor is not open")]
    Closed(#[source] io::Error),
    /// It is open for reading only.
    #[error("the descriptor is not open for writing")]
    ReadOnly,
}

/// A descriptor of its own for what is open there.
pub fn duplicate(descriptor: RawFd) -> Result<OwnedFd, DescriptorError> {
    // SAFETY: the call takes no addresses, and fails if nothing is open there.
    let duplicate = unsafe { libc::fcntl(descriptor, libc::F_DUPFD_CLOEXEC, 3) };
    if duplicate < 0 {
        return Err(DescriptorError::Closed(io::Error::last_os_error()));
    }
    // SAFETY: it was just made, and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(duplicate) })
}

/// The same, to write to it.
pub fn duplicate_for_writing(descriptor: RawFd) -> Result<OwnedFd, DescriptorError> {
    let duplicate = duplicate(descriptor)?;
    let flags = rustix::fs::fcntl_getfl(&duplicate);
    let flags = flags.map_err(|errno| DescriptorError::Closed(errno.into()))?;
    if (flags & OFlags::RWMODE) == OFlags::RDONLY || flags.contains(OFlags::PATH) {
        return Err(DescriptorError::ReadOnly);
    }
    Ok(duplicate)
}

/// Lets the process open as many files as its hard limit allows: 256 rings need 512 descriptors
/// for each export. Returns the new soft limit; `None` is no limit.
pub fn raise_open_files_limit() -> io::Result<Option<u64>> {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    rustix::process::setrlimit(Resource::Nofile, raised)?;
    Ok(raised.current)
}

/// Which process this is after the fork, and what it has to do.
#[derive(Debug)]
#[must_use = "the parent must exit with the child's verdict"]
pub enum ForkResult {
    /// The first process. The daemon started, or failed after it had said why.
    Parent(StartOutcome),
    /// The daemon itself.
    Child(ReadinessPipe),
}

/// Whether the daemon became ready or failed at its start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StartOutcome {
    /// It is ready.
    Ready,
    /// It ended before it was ready.
    Failed,
}

/// The daemon's end of the pipe on which it tells its parent that it is ready. Dropped before, it tells of a failure.
#[derive(Debug)]
#[must_use = "the parent waits until it is told"]
pub struct ReadinessPipe {
    pipe: File,
    /// What the standard streams become; opened before the daemon is confined.
    null: OwnedFd,
}

/// Going to the background failed.
#[derive(Debug, thiserror::Error)]
pub enum DaemonizeError {
    /// There are threads already, which a fork would lose.
    #[error("cannot go to the background: the process has {0} threads already")]
    Threads(usize),
    /// The kernel refused.
    #[error("cannot go to the background")]
    Kernel(#[source] io::Error),
}

impl From<io::Error> for DaemonizeError {
    fn from(source: io::Error) -> Self {
        Self::Kernel(source)
    }
}

impl From<Errno> for DaemonizeError {
    fn from(source: Errno) -> Self {
        Self::Kernel(source.into())
    }
}

/// Forks. In the parent it returns when the child is ready or has ended; the child goes on in a
/// session of its own, still with the standard streams so that it can say why it fails.
pub fn daemonize() -> Result<ForkResult, DaemonizeError> {
    let threads = count_threads()?;
    if threads != 1 {
        return Err(DaemonizeError::Threads(threads));
    }
    let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    let (reader, writer) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
    // SAFETY: the process has one thread, as just checked, so the child may do anything.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error().into()),
        0 => {
            drop(reader);
            rustix::process::setsid()?;
            Ok(ForkResult::Child(ReadinessPipe { pipe: File::from(writer), null }))
        }
        child => {
            drop(writer);
            let verdict = wait_for(reader)?;
            if verdict == StartOutcome::Failed {
                let child = rustix::process::Pid::from_raw(child);
                // Only so that no zombie is left; the verdict is in already.
                let _reaped = rustix::process::waitpid(child, WaitOptions::empty());
            }
            Ok(ForkResult::Parent(verdict))
        }
    }
}

/// How many threads this process has. One that was joined may be seen for a moment longer: it is waited for.
pub(crate) fn count_threads() -> io::Result<usize> {
    let mut looks = 0;
    loop {
        let count = std::fs::read_dir("/proc/self/task")?.count();
        if count == 1 || looks == LOOKS_FOR_THREADS {
            return Ok(count);
        }
        looks += 1;
        // A shorter sleep does no harm.
        let _interrupted = rustix::thread::nanosleep(&PAUSE);
    }
}

fn wait_for(reader: OwnedFd) -> io::Result<StartOutcome> {
    let mut told = Vec::new();
    File::from(reader).read_to_end(&mut told)?;
    Ok(if told.is_empty() { StartOutcome::Failed } else { StartOutcome::Ready })
}

impl ReadinessPipe {
    /// Lets the parent exit with success. Fails if the parent is gone.
    pub fn tell(&mut self) -> Result<(), DaemonizeError> {
        self.pipe.write_all(b"r")?;
        Ok(())
    }

    /// Leaves the terminal and the directory. What is said to the standard streams from now on, nobody
    /// hears.
    pub fn leave_terminal(&self) -> Result<(), DaemonizeError> {
        rustix::process::chdir("/")?;
        rustix::stdio::dup2_stdin(&self.null)?;
        rustix::stdio::dup2_stdout(&self.null)?;
        rustix::stdio::dup2_stderr(&self.null)?;
        Ok(())
    }
}
