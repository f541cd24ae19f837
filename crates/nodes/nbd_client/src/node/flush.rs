//! A flush of a thread that owns no ring: it has a channel for it and waits. Without changes that need one it does nothing.
//!
//! Invariants: it ends after a time, whatever the server does; soon if the server was given up by somebody who waited as
//! long, and has answered nothing since.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::task::{Wake, Waker};
use std::time::{Duration, Instant};

use block::{BeginResult, Channel, Clock, Interest, IoFailure, Operation, SystemClock, Tag};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;

use crate::channel::NbdChannel;
use crate::remote::Remote;

/// How long it waits for a server that was given up before.
const AGAIN_MAX: Duration = Duration::from_secs(1);

/// Wakes a thread that polls.
#[derive(Debug)]
struct Bell(OwnedFd);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // Full is as good as rung.
        let _full = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }
}

/// Makes durable what the server has. Blocks, but no longer than that.
pub(super) fn flush(remote: &Arc<Remote>, limit: Duration) -> io::Result<()> {
    if !remote.needs_flush() {
        return Ok(());
    }
    if remote.medium.has_failed_sync() {
        return Err(Errno::IO.into());
    }
    let bell = Arc::new(Bell(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?));
    let mut channel = NbdChannel::new(remote, &Waker::from(Arc::clone(&bell)));
    let begun = channel.begin(Operation::Flush, &[], Tag(0));
    assert_eq!(begun, BeginResult::Started, "it is the first one");
    let limit = if remote.medium.is_unresponsive() { limit.min(AGAIN_MAX) } else { limit };
    let (mut done, end) = (Vec::new(), SystemClock.now() + limit);
    loop {
        channel.collect(&mut done);
        if let Some((_, result)) = done.pop() {
            return result.map_err(|failure| {
                remote.medium.remember_failed_sync();
                io::Error::from(errno(failure))
            });
        }
        let now = SystemClock.now();
        if now >= end {
            channel.abandon();
            remote.medium.remember_failed_sync();
            remote.medium.remember_unresponsive();
            return Err(io::ErrorKind::TimedOut.into());
        }
        wait(&channel, &bell, now, end)?;
    }
}

/// Waits until the channel has to be called.
fn wait(channel: &NbdChannel, bell: &Bell, now: Instant, end: Instant) -> io::Result<()> {
    let wants = channel.wants();
    let until = wants.due.map_or(end, |due| due.at.min(end));
    let left = if wants.again { Duration::ZERO } else { until.saturating_duration_since(now) };
    // A millisecond more than needed is better than many rounds before it.
    let left = Timespec::try_from(left + Duration::from_millis(1)).map_err(io::Error::other)?;
    let mut polled = vec![PollFd::new(&bell.0, PollFlags::IN)];
    if let Some((descriptor, interest)) = wants.descriptor {
        let flags = match interest {
            Interest::Read => PollFlags::IN,
            Interest::ReadOrWrite => PollFlags::IN | PollFlags::OUT,
        };
        polled.push(PollFd::from_borrowed_fd(descriptor.as_fd(), flags));
    }
    match poll(&mut polled, Some(&left)) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(errno) => return Err(errno.into()),
    }
    // Nobody may have rung.
    let _nothing = rustix::io::read(&bell.0, &mut [0; 8]);
    Ok(())
}

fn errno(failure: IoFailure) -> Errno {
    match failure {
        IoFailure::Errno { errno, .. } => errno,
        IoFailure::EndOfFile { .. } => Errno::IO,
    }
}
