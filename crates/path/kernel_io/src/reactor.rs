//! What an iothread waits with.
//!
//! Where it stands in the life of a request: [`crate::Kernel`] watches descriptors with it and
//! sleeps in it; completions come back by the number of their slot.

use std::fmt;
use std::io;
use std::os::fd::RawFd;
use std::time::Duration;

use block::Interest;

use crate::KernelError;
use crate::epoll::Epoll;
use crate::in_flight::SlotIndex;
use crate::spare_rings::SpareRings;
use crate::uring::Uring;

/// The longest wait with a limit: the kernel adds what it is told to its own time, which must not overflow.
/// Who wants to wait for longer waits again.
const LIMIT_MAX: Duration = Duration::from_secs(24 * 3600);

/// How long to wait for events: for ever, up to a time, or not at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitMode {
    /// Until there is at least one event.
    Block,
    /// The same, but not longer than this, nor than a day. It ends a little late, by as much as the host's timers do.
    AtMost(Duration),
    /// Not at all: submit what is queued and collect what is there.
    Poll,
}

/// A completion of an operation or poll, by the number of its slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Completion {
    pub(crate) index: SlotIndex,
    /// What it gave, or minus the errno.
    pub(crate) result: i64,
    /// Whether more completions of a poll will come.
    pub(crate) more: bool,
}

/// Which reactors an iothread may use: io_uring or epoll, or epoll only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReactorChoice {
    /// io_uring, or epoll where the host forbids that.
    Any,
    /// epoll, whatever the host allows.
    EpollOnly,
}

/// Which reactor an iothread has, and why it is epoll if it is.
#[derive(Debug)]
pub enum ReactorKind {
    /// io_uring.
    IoUring,
    /// epoll, because nothing else was wanted.
    Epoll,
    /// epoll, because there is no io_uring.
    EpollInstead(KernelError),
}

impl fmt::Display for ReactorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::IoUring => f.write_str("io_uring"),
            Self::Epoll => f.write_str("epoll"),
            Self::EpollInstead(error) => {
                let cause = std::error::Error::source(error);
                let cause = cause.map(|cause| format!(": {cause}")).unwrap_or_default();
                write!(f, "epoll ({error}{cause})")
            }
        }
    }
}

/// What an iothread waits with: an io_uring or an epoll instance.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "there is one per thread, and each turn looks at it")]
pub(crate) enum Reactor {
    /// An io_uring, which does I/O as well.
    Uring(Uring),
    /// epoll, which does no I/O.
    Epoll(Epoll),
}

impl Reactor {
    /// Makes the calling thread's reactor, or takes a spare ring, and says which it is.
    pub(crate) fn new(
        allowed: ReactorChoice,
        spares: &SpareRings,
    ) -> Result<(Self, ReactorKind), KernelError> {
        let instead = match allowed {
            ReactorChoice::Any => match spares.take().map_or_else(Uring::new, Uring::enable) {
                Ok(uring) => return Ok((Self::Uring(uring), ReactorKind::IoUring)),
                Err(error) => ReactorKind::EpollInstead(error),
            },
            ReactorChoice::EpollOnly => ReactorKind::Epoll,
        };
        Ok((Self::Epoll(Epoll::new().map_err(KernelError::Epoll)?), instead))
    }

    /// Watches a descriptor until [`Reactor::unwatch`]: a completion each time that it becomes
    /// ready, or one without more to come when that cannot be, or not any longer.
    pub(crate) fn watch(&mut self, index: SlotIndex, fd: RawFd, interest: Interest) {
        match self {
            Self::Uring(uring) => uring.push_poll(index, fd, interest),
            Self::Epoll(epoll) => epoll.watch(index, fd, interest),
        }
    }

    /// Ends watching; the last completion of the slot follows.
    pub(crate) fn unwatch(&mut self, index: SlotIndex, fd: RawFd) {
        match self {
            Self::Uring(uring) => uring.push_cancel(index),
            Self::Epoll(epoll) => epoll.unwatch(index, fd),
        }
    }

    /// Hands over what is queued, and waits for a completion if told so and none is there.
    pub(crate) fn wait(&mut self, wait: WaitMode) -> io::Result<()> {
        let wait = match wait {
            WaitMode::AtMost(limit) => WaitMode::AtMost(limit.min(LIMIT_MAX)),
            WaitMode::Block | WaitMode::Poll => wait,
        };
        match self {
            Self::Uring(uring) => uring.wait(wait),
            Self::Epoll(epoll) => epoll.wait(wait),
        }
    }

    /// Whether waiting without blocking would bring anything, as far as can be seen without a system
    /// call: epoll cannot tell.
    pub(crate) fn has_pending(&mut self) -> bool {
        match self {
            Self::Uring(uring) => uring.has_pending(),
            Self::Epoll(_) => false,
        }
    }

    /// Whether the last wait was called for by a flag of the kernel that nothing is behind.
    pub(crate) fn has_stale_flag(&self) -> bool {
        match self {
            Self::Uring(uring) => uring.has_stale_flag(),
            Self::Epoll(_) => false,
        }
    }

    /// The next completion, in order.
    pub(crate) fn next(&mut self) -> Option<Completion> {
        match self {
            Self::Uring(uring) => uring.next(),
            Self::Epoll(epoll) => epoll.next(),
        }
    }
}
