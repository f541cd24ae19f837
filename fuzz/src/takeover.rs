//! What an old process says to the one that takes its place: a guest may have taken it over by then.
//!
//! The input is lines: a digit that says how many descriptors come with a packet, then the packet. All of them are in
//! the socket before they are read, so a run needs one thread.
//!
//! Invariants (checked): what cannot be understood is refused with a sentence; sessions that are understood are built
//! and served like any others, which checks what [`crate::vhost_user_session`] does.
//! Limits: [`PACKETS_MAX`], so that all fit into the socket.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::net::sockopt::set_socket_send_buffer_size;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
    sendmsg, shutdown, socketpair,
};
use vhost_user::{SavedSession, SessionServer};

use crate::guest::memfd;
use crate::session::{FILE_BYTES, Mock, NoSessionControl};

const PACKETS_MAX: usize = 64;

/// More than the system gives.
const SEND_BUFFER_BYTES: usize = 1 << 20;

/// What an old process might say.
pub fn takeover_wire(data: &[u8]) {
    let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
    let (old, new) = pair.expect("sockets are available");
    set_socket_send_buffer_size(&old, SEND_BUFFER_BYTES).expect("it is a socket");
    let (shape, data) = data.split_first().map_or((0, data), |(shape, data)| (*shape, data));
    FILES.with(|files| {
        for line in data.split(|byte| *byte == b'\n').take(PACKETS_MAX) {
            files.send(&old, line);
        }
    });
    shutdown(&old, rustix::net::Shutdown::Write).expect("the socket is open");
    match takeover::read_hand_over(new) {
        Ok(sessions) => sessions.into_iter().for_each(|state| go_on(state, shape)),
        Err(error) => assert!(!error.is_empty()),
    }
}

/// Builds a session of what was said, and serves it to a front end that has left.
fn go_on(state: SavedSession, shape: u8) {
    let (stream, front_end) = UnixStream::pair().expect("sockets are available");
    drop(front_end);
    let device = Mock::new(shape);
    let error = match SessionServer::restore(&stream, device.clone(), state, |_, _, _| Ok(())) {
        Ok(server) => server.resume(&NoSessionControl, || {}).err(),
        Err(error) => Some(error),
    };
    assert!(error.is_none_or(|error| !error.to_string().is_empty()));
    device.check_end();
}

thread_local! {
    static FILES: Files = Files { memory: memfd(FILE_BYTES), event: event() };
}

fn event() -> OwnedFd {
    let flags = rustix::event::EventfdFlags::CLOEXEC;
    rustix::event::eventfd(0, flags).expect("descriptors are available")
}

/// What the old process has open.
struct Files {
    memory: OwnedFd,
    event: OwnedFd,
}

impl Files {
    /// Sends a line: rings come with descriptors for kicks and calls, everything else with memory.
    fn send(&self, old: &OwnedFd, line: &[u8]) {
        let Some((digit, packet)) = line.split_first() else { return };
        let is_ring = packet.starts_with(br#"{"ring""#);
        let fd = if is_ring { self.event.as_fd() } else { self.memory.as_fd() };
        let fds = vec![fd; usize::from(digit % 8)];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            assert!(ancillary.push(SendAncillaryMessage::ScmRights(&fds)), "at most 8");
        }
        let sent = sendmsg(old, &[IoSlice::new(packet)], &mut ancillary, SendFlags::NOSIGNAL);
        assert_eq!(sent, Ok(packet.len()), "the socket has room");
    }
}
