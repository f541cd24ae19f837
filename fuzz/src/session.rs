//! A vhost-user session: any bytes, or messages of the right form in any order.
//!
//! All messages are in the socket before the session starts, so a run needs one thread and its
//! input alone says what happens.
//!
//! Invariants (checked): starts and stops of a queue alternate, a ring that is started lies in
//! memory, nothing is started after an error of the device, and no ring is left when the session
//! has ended.
//! Limits: `MESSAGES_MAX` messages, so that the answers fit in the socket, which nobody reads.

mod device;
mod message;

use std::io::{IoSlice, Write};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::net::sockopt::set_socket_send_buffer_size;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use vhost_user::{PauseOutcome, SavedSession, SessionControl, SessionServer};

use crate::guest::memfd;
use crate::input::Input;
pub(crate) use device::Mock;
pub(crate) use message::FILE_BYTES;
use message::{Attached, Message};

/// Each answer has at most 4 KiB and the socket takes more than 200.
const MESSAGES_MAX: usize = 48;
/// Each message has at least 12 bytes.
const RAW_BYTES_MAX: usize = 4096;
/// More than the system gives.
const SEND_BUFFER_BYTES: usize = 1 << 20;

/// The first byte says how the others are meant.
pub fn vhost_user_session(data: &[u8]) {
    let mut input = Input::new(data);
    let shape = input.u8();
    let (mut front_end, stream) = UnixStream::pair().expect("sockets are available");
    for socket in [&front_end, &stream] {
        set_socket_send_buffer_size(socket, SEND_BUFFER_BYTES).expect("it is a socket");
    }
    // Nothing waits as long as the bounds above are right.
    stream.set_write_timeout(Some(Duration::from_secs(5))).expect("it is not zero");
    if shape & 1 == 0 {
        FILES.with(|files| files.send_all(&front_end, shape, &mut input));
    } else {
        let raw = input.bytes(RAW_BYTES_MAX);
        front_end.write_all(raw).expect("the socket has room");
    }
    front_end.shutdown(Shutdown::Write).expect("the socket is open");
    let device = Mock::new(shape);
    let server = SessionServer::new(stream, device.clone());
    if let Err(error) = server.and_then(|server| server.run(&NoSessionControl)) {
        assert!(!error.to_string().is_empty());
    }
    device.check_end();
}

/// A [`SessionControl`] that never asks for anything.
pub(crate) struct NoSessionControl;

impl SessionControl for NoSessionControl {
    fn bell(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn background(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn run_background(&self) {}

    fn paused(&self, _: SavedSession) -> PauseOutcome {
        PauseOutcome::Resume
    }
}

thread_local! {
    static FILES: Files = Files::new();
}

/// What a front end passes on: guest memory and descriptors for kicks and interrupts.
struct Files {
    memory: OwnedFd,
    event: OwnedFd,
}

impl Files {
    fn new() -> Self {
        let flags = rustix::event::EventfdFlags::CLOEXEC;
        let event = rustix::event::eventfd(0, flags).expect("descriptors are available");
        Self { memory: memfd(FILE_BYTES), event }
    }

    fn send_all(&self, stream: &UnixStream, shape: u8, input: &mut Input<'_>) {
        let mut messages = Vec::new();
        if shape & 2 != 0 {
            messages.extend(Message::negotiation(shape & 4 != 0));
        }
        while !input.is_empty() && messages.len() < MESSAGES_MAX {
            Message::take(input, &mut messages);
        }
        for message in messages.iter().take(MESSAGES_MAX) {
            self.send(stream, message);
        }
    }

    fn send(&self, stream: &UnixStream, message: &Message) {
        let fds: Vec<BorrowedFd<'_>> = message.attached.iter().map(|it| self.fd(*it)).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            assert!(ancillary.push(SendAncillaryMessage::ScmRights(&fds)), "at most 8");
        }
        let bytes = message.to_bytes();
        let flags = SendFlags::NOSIGNAL;
        let sent = sendmsg(stream, &[IoSlice::new(&bytes)], &mut ancillary, flags);
        assert_eq!(sent, Ok(bytes.len()), "the socket has room");
    }

    fn fd(&self, attached: Attached) -> BorrowedFd<'_> {
        match attached {
            Attached::Memory => self.memory.as_fd(),
            Attached::Event => self.event.as_fd(),
        }
    }
}
