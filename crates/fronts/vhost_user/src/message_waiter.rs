//! Waits for a whole message and for room for its answer, without taking anything of it.
//!
//! Where it stands: before each message of a session that may be interrupted. The library that reads
//! messages blocks in the middle of one, and when nobody takes its answers; so it is asked only for what
//! is there, and when a socket takes more than the longest answer.
//!
//! Invariants: nothing is read here. What has arrived of a message stays in the socket, and goes with
//! the connection when another process takes it over.
//! Threads: the session's, which blocks here and nowhere else for the front end's sake.
//! Limits: a message has 4096 bytes of payload at most; what is longer is no message. One descriptor, which a
//! session has from its beginning: none is needed for a message.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::io::{Errno, ioctl_fionread};
use rustix::net::{RecvFlags, recv};
use vhost::vhost_user::Error;
use vhost::vhost_user::message::{FrontendReq, MAX_MSG_SIZE};

use crate::{HEADER_BYTES, SessionError};

/// The version of the protocol in a header's flags, and where it is.
const VERSION: u32 = 1;
const VERSION_BITS: u32 = 3;

/// The flags that there are: version, reply, need reply.
const FLAGS: u32 = 0xf;

/// What ended a session's wait: a whole message, the notifier, or background work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SessionWakeup {
    /// A message, or something else that is found out without waiting for more: the end of the
    /// connection, or what cannot become a message.
    Message,
    /// The bell rings. Part of a message may be there.
    Bell,
    /// There is something to look at aside. Part of a message may be there.
    Aside,
}

/// The descriptors besides the connection that end a wait.
#[derive(Debug, Clone, Copy)]
struct WakeSources<'a> {
    bell: BorrowedFd<'a>,
    background: Option<BorrowedFd<'a>>,
}

/// Whether all of the next message has arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MessageArrivalState {
    Partial,
    Whole,
}

/// Waits until a whole message is in the socket, without reading it.
#[derive(Debug)]
pub(crate) struct MessageWaiter {
    /// Readable once when something has come on the connection, be it part of a message.
    edges: OwnedFd,
}

impl MessageWaiter {
    /// Those of this connection.
    pub(crate) fn new(connection: &impl AsFd) -> io::Result<Self> {
        let edges = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let once = epoll::EventFlags::IN | epoll::EventFlags::RDHUP | epoll::EventFlags::ET;
        epoll::add(&edges, connection, epoll::EventData::new_u64(0), once)?;
        Ok(Self { edges })
    }

    /// Waits until there is a whole message, and room for its answer, or the bell rings, which goes first, or there is
    /// something aside, which goes second.
    pub(crate) fn wait(
        &self,
        connection: &impl AsFd,
        bell: BorrowedFd<'_>,
        background: Option<BorrowedFd<'_>>,
    ) -> Result<SessionWakeup, SessionError> {
        let others = WakeSources { bell, background };
        // Said when at most a quarter of the buffer is filled with answers that nobody has read. Only this
        // thread writes, so it stays true.
        if let PollResult::Other(other) = wait_for(connection, PollFlags::OUT, others)? {
            return Ok(other);
        }
        let seen = match wait_for(connection, PollFlags::IN | PollFlags::RDHUP, others)? {
            PollResult::Awaited(seen) => seen,
            PollResult::Other(other) => return Ok(other),
        };
        if seen.difference(PollFlags::IN).is_empty()
            && part(connection)? == MessageArrivalState::Partial
        {
            // Polled again it would say the same at once.
            return self.wait_for_rest(connection, others);
        }
        Ok(SessionWakeup::Message)
    }

    /// Waits for the rest of a message of which part is there: wakes when more of it comes. What came before
    /// may be told first, and is looked at once too often.
    fn wait_for_rest(
        &self,
        connection: &impl AsFd,
        others: WakeSources<'_>,
    ) -> Result<SessionWakeup, SessionError> {
        loop {
            if let PollResult::Other(other) = wait_for(&self.edges, PollFlags::IN, others)? {
                return Ok(other);
            }
            let mut space = [MaybeUninit::uninit(); 1];
            let now = Timespec { tv_sec: 0, tv_nsec: 0 };
            let (events, _) =
                epoll::wait(&self.edges, &mut space, Some(&now)).map_err(io::Error::from)?;
            let only_bytes = events.iter().all(|event| { event.flags } == epoll::EventFlags::IN);
            if !only_bytes || part(connection)? == MessageArrivalState::Whole {
                return Ok(SessionWakeup::Message);
            }
        }
    }
}

/// What a poll brought: readiness of the awaited descriptor, or another wake-up.
enum PollResult {
    /// One of the things that were waited for, or the end of the connection.
    Awaited(PollFlags),
    /// Something else.
    Other(SessionWakeup),
}

/// Waits until one of these is so of the descriptor, or it has ended, and says what is; otherwise what has come instead.
fn wait_for(
    awaited: &impl AsFd,
    what: PollFlags,
    WakeSources { bell, background }: WakeSources<'_>,
) -> io::Result<PollResult> {
    loop {
        // Without anything aside the bell is asked twice.
        let mut fds = [
            PollFd::new(awaited, what),
            PollFd::from_borrowed_fd(bell, PollFlags::IN),
            PollFd::from_borrowed_fd(background.unwrap_or(bell), PollFlags::IN),
        ];
        match poll(&mut fds, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        let [awaited, bell, background] = fds.map(|fd| fd.revents());
        if !bell.is_empty() {
            return Ok(PollResult::Other(SessionWakeup::Bell));
        }
        if !background.is_empty() {
            return Ok(PollResult::Other(SessionWakeup::Aside));
        }
        if !awaited.is_empty() {
            return Ok(PollResult::Awaited(awaited));
        }
    }
}

/// How much of the next message is there.
fn part(connection: &impl AsFd) -> Result<MessageArrivalState, SessionError> {
    // In this order: more may come in between.
    let queued = ioctl_fionread(connection);
    let mut header = [0; HEADER_BYTES];
    let seen = recv(connection, &mut header, RecvFlags::PEEK | RecvFlags::DONTWAIT);
    let (Ok(queued), Ok((seen, _))) = (queued, seen) else {
        // Whoever reads finds out what is wrong.
        return Ok(MessageArrivalState::Whole);
    };
    if seen < HEADER_BYTES {
        // A look ends where descriptors are.
        return if queued < HEADER_BYTES as u64 {
            Ok(MessageArrivalState::Partial)
        } else {
            Err(SessionError::Message(Error::PartialMessage))
        };
    }
    let enough = queued >= HEADER_BYTES as u64 + u64::from(payload_bytes(header).unwrap_or(0));
    Ok(if enough { MessageArrivalState::Whole } else { MessageArrivalState::Partial })
}

/// How long the payload is that goes with this header; `None` if it is none.
fn payload_bytes(header: [u8; HEADER_BYTES]) -> Option<u32> {
    let [a, b, c, d, e, f, g, h, i, j, k, l] = header;
    let [request, flags, bytes] =
        [[a, b, c, d], [e, f, g, h], [i, j, k, l]].map(u32::from_ne_bytes);
    let is_header = FrontendReq::try_from(request).is_ok()
        && flags & VERSION_BITS == VERSION
        && flags & !FLAGS == 0
        && bytes as usize <= MAX_MSG_SIZE;
    is_header.then_some(bytes)
}
