//! A unix socket of QEMU's, read and written without ever blocking for long.
//!
//! Limits: `SLICE` for one wait, so that whoever waits can look around; `READ_BYTES` for one read.

use std::io::{ErrorKind, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::Watch;
use crate::clock::now;

/// The longest wait without a look around.
const SLICE: Duration = Duration::from_millis(20);
const READ_BYTES: usize = 64 << 10;

/// What a look for news has found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum News {
    Bytes,
    Nothing,
    /// The other side has closed the socket; there will be nothing more.
    End,
}

/// The socket.
#[derive(Debug)]
pub(crate) struct Channel {
    stream: UnixStream,
    /// What completes the sentence "QEMU closed …".
    name: &'static str,
}

impl Channel {
    pub(crate) fn new(stream: UnixStream, name: &'static str) -> Result<Self> {
        stream.set_nonblocking(true).with_context(|| format!("set up {name}"))?;
        Ok(Self { stream, name })
    }

    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    /// Appends some of what has arrived.
    pub(crate) fn receive(&mut self, into: &mut Vec<u8>) -> Result<News> {
        let begin = into.len();
        into.resize(begin + READ_BYTES, 0);
        let read = self.stream.read(&mut into[begin..]);
        into.truncate(begin + read.as_ref().map_or(0, |count| *count));
        match read {
            Ok(0) => Ok(News::End),
            Ok(_) => Ok(News::Bytes),
            Err(error) if is_for_now(error.kind()) => Ok(News::Nothing),
            Err(error) if error.kind() == ErrorKind::ConnectionReset => Ok(News::End),
            Err(error) => Err(error).with_context(|| format!("read {}", self.name)),
        }
    }

    /// Waits a moment for something to arrive.
    pub(crate) fn wait(&self) -> Result<()> {
        self.wait_for(PollFlags::IN)
    }

    /// Sends all of it; `limit` counts from the last byte that was taken.
    pub(crate) fn send(
        &mut self,
        mut bytes: &[u8],
        limit: Duration,
        watch: Watch<'_>,
    ) -> Result<()> {
        let mut end = now() + limit;
        while !bytes.is_empty() {
            watch()?;
            match self.stream.write(bytes) {
                Ok(count) => {
                    bytes = &bytes[count..];
                    end = now() + limit;
                }
                Err(error) if is_for_now(error.kind()) => {
                    if now() >= end {
                        bail!("{} took nothing for {limit:?}", self.name);
                    }
                    self.wait_for(PollFlags::OUT)?;
                }
                Err(error) => return Err(error).with_context(|| format!("write {}", self.name)),
            }
        }
        Ok(())
    }

    fn wait_for(&self, flags: PollFlags) -> Result<()> {
        let slice = Timespec::try_from(SLICE).context("a time as the kernel has it")?;
        match poll(&mut [PollFd::from_borrowed_fd(self.stream.as_fd(), flags)], Some(&slice)) {
            // A signal has come: whoever waits looks around.
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error).with_context(|| format!("wait for {}", self.name)),
        }
    }
}

fn is_for_now(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_takes_ends_at_the_limit() {
        let (near, _far) = UnixStream::pair().expect("sockets");
        let mut channel = Channel::new(near, "the test's socket").expect("a channel");
        let bytes = vec![0; 16 << 20];
        let limit = Duration::from_millis(1);
        let error = channel.send(&bytes, limit, &mut || Ok(())).expect_err("it is too much");
        assert!(error.to_string().starts_with("the test's socket took nothing"), "{error}");
    }

    #[test]
    fn news_is_bytes_then_nothing_then_the_end() {
        let (near, mut far) = UnixStream::pair().expect("sockets");
        let mut channel = Channel::new(near, "the test's socket").expect("a channel");
        let mut bytes = b"a".to_vec();
        far.write_all(b"bc").expect("written");
        assert_eq!(channel.receive(&mut bytes).expect("news"), News::Bytes);
        assert_eq!(channel.receive(&mut bytes).expect("news"), News::Nothing);
        drop(far);
        assert_eq!(channel.receive(&mut bytes).expect("news"), News::End);
        assert_eq!(bytes, b"abc");
    }
}
