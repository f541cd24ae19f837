//! Wakes an iothread from any thread.
//!
//! Threads: [`Notifier::wake`] may be called from any thread at any time; the owner polls
//! [`Notifier::as_fd`] and calls [`Notifier::clear`].

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::task::Wake;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd};
use rustix::io::Errno;

/// An eventfd by which any thread wakes an iothread (QEMU's EventNotifier).
#[derive(Debug)]
pub struct Notifier {
    fd: OwnedFd,
}

impl Notifier {
    /// A new notifier that nobody has signalled.
    pub fn new() -> io::Result<Self> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { fd })
    }

    /// Wakes the owner; many calls before it wakes are one.
    pub fn wake(&self) {
        match rustix::io::write(&self.fd, &1_u64.to_ne_bytes()) {
            // A full counter means that the owner has been told already.
            Ok(_) | Err(Errno::AGAIN) => {}
            Err(errno) => panic!("an eventfd of our own refuses a write: {errno}"),
        }
    }

    /// Blocks until somebody has called, and forgets all calls so far. For control threads.
    pub fn wait(&self) -> io::Result<()> {
        let mut fds = [PollFd::new(&self.fd, PollFlags::IN)];
        match rustix::event::poll(&mut fds, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        self.clear();
        Ok(())
    }

    /// Forgets all calls so far. What they were about must be looked at afterwards.
    pub fn clear(&self) {
        let mut count = [0; 8];
        match rustix::io::read(&self.fd, &mut count) {
            Ok(_) | Err(Errno::AGAIN) => {}
            Err(errno) => panic!("an eventfd of our own refuses a read: {errno}"),
        }
    }
}

impl Wake for Notifier {
    fn wake(self: Arc<Self>) {
        Self::wake(&self);
    }

    fn wake_by_ref(self: &Arc<Self>) {
        Self::wake(self);
    }
}

impl AsFd for Notifier {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
