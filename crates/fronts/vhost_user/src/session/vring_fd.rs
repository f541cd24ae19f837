//! The descriptors of a ring: kick, call and error. Only eventfds are taken, because reading one
//! tells nothing and writing one never blocks once it is in non-blocking mode; anything else could
//! hold up or keep busy a thread that serves other clients too.
//!
//! Limits: the mode is shared with the front end, which could change it back; so an iothread writes one only while a watchdog
//! looks on (`kernel_io::guest_notifier`).

use std::fmt;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::fs::OFlags;

use crate::{MessageRefusal, QueueIndex};

/// Which descriptor of a ring it is: kick, call or error (SET_VRING_KICK, _CALL, _ERR).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VringFdKind {
    /// The driver tells the device that there are chains.
    Kick,
    /// The device tells the driver that there are completions.
    Call,
    /// The device tells the front end that the ring is broken.
    Error,
}

impl fmt::Display for VringFdKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kick => "kick",
            Self::Call => "call",
            Self::Error => "error",
        })
    }
}

/// Takes an eventfd and nothing else; those that are written to become non-blocking.
pub(super) fn take(
    queue: QueueIndex,
    descriptor: VringFdKind,
    fd: OwnedFd,
) -> Result<OwnedFd, MessageRefusal> {
    let link = format!("/proc/self/fd/{}", fd.as_raw_fd());
    // Where /proc is not mounted there is no telling; then it is taken for what it should be.
    if let Ok(target) = rustix::fs::readlink(link, Vec::new())
        && target.to_bytes() != b"anon_inode:[eventfd]"
    {
        return Err(MessageRefusal::NoEventfd { queue, descriptor });
    }
    match descriptor {
        VringFdKind::Kick => {}
        VringFdKind::Call | VringFdKind::Error => {
            let failed = |errno: rustix::io::Errno| {
                let source = errno.into();
                MessageRefusal::Mode { queue, descriptor, source }
            };
            let flags = rustix::fs::fcntl_getfl(&fd).map_err(failed)?;
            rustix::fs::fcntl_setfl(&fd, flags | OFlags::NONBLOCK).map_err(failed)?;
        }
    }
    Ok(fd)
}

/// A copy for the device.
pub(super) fn duplicate(
    queue: QueueIndex,
    descriptor: VringFdKind,
    fd: Option<&OwnedFd>,
) -> Result<Option<OwnedFd>, MessageRefusal> {
    fd.map(OwnedFd::try_clone).transpose().map_err(|source| MessageRefusal::Duplicate {
        queue,
        descriptor,
        source,
    })
}
