//! Wakes an iothread at a time.
//!
//! Threads: belongs to the iothread that polls [`Alarm::as_fd`].

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

/// A timerfd that wakes an iothread.
#[derive(Debug)]
pub struct Alarm {
    fd: OwnedFd,
}

impl Alarm {
    /// An alarm that is not set.
    pub fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        Ok(Self { fd: timerfd_create(TimerfdClockId::Monotonic, flags)? })
    }

    /// Rings once after this time, and not when it was set to before. No time is a nanosecond.
    pub fn set(&self, after: Duration) -> io::Result<()> {
        let after = after.max(Duration::from_nanos(1));
        let it_value = Timespec::try_from(after).map_err(io::Error::other)?;
        let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value };
        timerfd_settime(&self.fd, TimerfdTimerFlags::empty(), &once)?;
        Ok(())
    }

    /// Forgets that it has rung.
    pub fn clear(&self) {
        let mut count = [0; 8];
        match rustix::io::read(&self.fd, &mut count) {
            Ok(_) | Err(Errno::AGAIN) => {}
            Err(errno) => panic!("a timerfd of our own refuses a read: {errno}"),
        }
    }
}

impl AsFd for Alarm {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
