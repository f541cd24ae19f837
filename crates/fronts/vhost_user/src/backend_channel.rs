//! The back end's own channel: what it may say without being asked (vhost-user, "Back-end communication").
//!
//! Where it stands: the front end sends a socket (SET_BACKEND_REQ_FD), the session gives it to the device, and
//! whoever notices a change there says so. The library that reads messages makes something of its own of
//! that socket, which knows no message about the configuration; so the descriptor is looked at before the
//! library takes the message ([`peek`]).
//!
//! Threads: any may speak; nothing here waits for the front end.

use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, recv, recvmsg, send,
};
use vhost::vhost_user::message::FrontendReq;

use crate::HEADER_BYTES;

/// VHOST_USER_BACKEND_CONFIG_CHANGE_MSG.
const CONFIG_CHANGE: u32 = 2;

/// The version of the protocol, in the low bits of a message's flags.
const VERSION: u32 = 1;

/// A socket on which the back end speaks first.
#[derive(Debug)]
pub struct BackendChannel(OwnedFd);

impl BackendChannel {
    pub(crate) fn new(socket: OwnedFd) -> Self {
        Self(socket)
    }

    /// Tells the front end that the configuration space is not what it was; it will ask for it and
    /// tell the driver. Never waits: fails with EAGAIN if the front end has not read what was said before.
    pub fn config_changed(&self) -> io::Result<()> {
        let message = [CONFIG_CHANGE, VERSION, 0].map(u32::to_ne_bytes).concat();
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let sent = retry_on_intr(|| send(&self.0, &message, flags))?;
        // So short a message is one piece for the kernel.
        if sent == message.len() { Ok(()) } else { Err(Errno::MSGSIZE.into()) }
    }
}

impl AsFd for BackendChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The socket that the next message brings, if it is SET_BACKEND_REQ_FD. The message stays where it is. Waits for
/// a message as reading it would.
pub(crate) fn peek(connection: BorrowedFd<'_>) -> io::Result<Option<OwnedFd>> {
    let mut header = [0; HEADER_BYTES];
    let (_, bytes) = retry_on_intr(|| recv(connection, &mut header, RecvFlags::PEEK))?;
    let [r0, r1, r2, r3, ..] = header;
    let request = u32::from_ne_bytes([r0, r1, r2, r3]);
    if bytes < HEADER_BYTES || request != FrontendReq::SET_BACKEND_REQ_FD as u32 {
        return Ok(None);
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::PEEK | RecvFlags::CMSG_CLOEXEC;
    let mut parts = [IoSliceMut::new(&mut header)];
    retry_on_intr(|| recvmsg(connection, &mut parts, &mut control, flags))?;
    let fds = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => Some(fds),
        RecvAncillaryMessage::ScmCredentials(_) | _ => None,
    });
    // With another number of them the library refuses the message.
    Ok(fds.flatten().next())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{IoSlice, Read, Write};
    use std::os::unix::net::UnixStream;

    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, sendmsg};

    fn send_message(stream: &UnixStream, request: u32, fd: BorrowedFd<'_>) {
        let header = [request, VERSION, 0].map(u32::to_ne_bytes).concat();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let fds = [fd];
        assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
        sendmsg(stream, &[IoSlice::new(&header)], &mut control, SendFlags::empty()).unwrap();
    }

    #[test]
    fn a_channel_is_seen_before_its_message_is_read_and_other_messages_bring_none() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (channel, mut front_end) = UnixStream::pair().unwrap();
        send_message(&theirs, FrontendReq::SET_BACKEND_REQ_FD as u32, channel.as_fd());
        drop(channel);
        let seen = peek(ours.as_fd()).unwrap().expect("the channel");
        let mut header = [0; HEADER_BYTES];
        (&ours).read_exact(&mut header).unwrap();
        assert_eq!(header[..4], 21_u32.to_ne_bytes());
        // What the library would have taken is closed; ours is not.
        BackendChannel::new(seen).config_changed().unwrap();
        let mut said = [0; HEADER_BYTES];
        front_end.read_exact(&mut said).unwrap();
        assert_eq!(said[..], [2_u32, 1, 0].map(u32::to_ne_bytes).concat());
        send_message(&theirs, FrontendReq::SET_VRING_KICK as u32, theirs.as_fd());
        assert!(peek(ours.as_fd()).unwrap().is_none());
        (&ours).read_exact(&mut header).unwrap();
        (&theirs).write_all(&[21, 0, 0, 0, 1]).unwrap();
        assert!(peek(ours.as_fd()).unwrap().is_none());
        drop(theirs);
        (&ours).read_exact(&mut [0; 5]).unwrap();
        assert!(peek(ours.as_fd()).unwrap().is_none());
    }

    #[test]
    fn a_front_end_that_does_not_read_holds_nobody_up() {
        let (ours, front_end) = UnixStream::pair().unwrap();
        let channel = BackendChannel::new(ours.into());
        let refused = (0..1 << 20).find_map(|_| channel.config_changed().err()).unwrap();
        assert_eq!(refused.kind(), io::ErrorKind::WouldBlock);
        drop(front_end);
        assert_eq!(channel.config_changed().unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }
}
