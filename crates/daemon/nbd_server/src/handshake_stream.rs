//! A socket during its handshake: each call waits for the other side, and not longer than the handshake may take.
//!
//! Threads: that of the connection. Whoever wants the handshake to end shuts the socket down.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use block::Clock;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

/// A stream with a time at which all ends.
#[derive(Debug)]
pub(crate) struct HandshakeStream {
    socket: Arc<OwnedFd>,
    /// None if there is no limit.
    until: Option<Instant>,
    clock: Arc<dyn Clock>,
}

impl HandshakeStream {
    pub(crate) fn new(socket: Arc<OwnedFd>, until: Option<Instant>, clock: Arc<dyn Clock>) -> Self {
        Self { socket, until, clock }
    }

    fn wait(&self, events: PollFlags) -> io::Result<()> {
        loop {
            let left = self.until.map(|until| until.saturating_duration_since(self.clock.now()));
            let timeout = left.map(|left| Timespec {
                tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: left.subsec_nanos().into(),
            });
            let mut fds = [PollFd::new(&*self.socket, events)];
            match poll(&mut fds, timeout.as_ref()) {
                Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

impl AsFd for HandshakeStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Read for HandshakeStream {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        loop {
            self.wait(PollFlags::IN)?;
            match rustix::net::recv(&*self.socket, &mut *to, RecvFlags::DONTWAIT) {
                Ok((_, count)) => return Ok(count),
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

impl Write for HandshakeStream {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        loop {
            self.wait(PollFlags::OUT)?;
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            match rustix::net::send(&*self.socket, from, flags) {
                Ok(count) => return Ok(count),
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
