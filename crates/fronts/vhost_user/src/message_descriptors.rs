//! Whether descriptors have come, found out before anything is received.
//!
//! Where it stands: before the library reads a message. Whoever receives a descriptor has to close it one day, and
//! closing one may ask a file system whose server never answers. So descriptors are received only after
//! [`crate::Device`] has had them looked at, and this says when there are any.
//!
//! Invariants: a look without room for descriptors makes none, and the kernel says that some were left out. What is read
//! afterwards are the bytes that were looked at and no others: they are at the head of the queue and only this thread
//! reads them. The library takes descriptors with a header alone; those of a payload the kernel drops. A look goes on to
//! the first message that has any, so what is found may be a later message's: never less than a read would bring.
//! Threads: the session's.

use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd};

use rustix::io::{Errno, retry_on_intr};
use rustix::net::{RecvAncillaryBuffer, RecvFlags, ReturnFlags, recvmsg, sockopt};
use vhost::vhost_user::Error;

use crate::SessionError;

/// The size of a message's header, with which its descriptors come: request, flags and payload's size, of 4 bytes each.
pub const HEADER_BYTES: usize = 12;

/// Has urgent data lie among all other. Otherwise a look passes over them while a read may find them, if more were sent in
/// between, and with them descriptors that nobody has looked at.
pub(crate) fn keep_order(connection: impl AsFd) -> io::Result<()> {
    Ok(sockopt::set_socket_oobinline(connection, true)?)
}

/// Whether descriptors (SCM_RIGHTS) come with the message that is there, or with a later one. Waits for one as reading it
/// would. A header that does not come in one piece is refused: nobody can say what comes with the rest of it.
pub(crate) fn may_come(connection: BorrowedFd<'_>) -> Result<bool, SessionError> {
    let mut header = [0; HEADER_BYTES];
    let no_room = &mut RecvAncillaryBuffer::default();
    let mut parts = [IoSliceMut::new(&mut header)];
    let peek = RecvFlags::PEEK;
    let seen = match retry_on_intr(|| recvmsg(connection, &mut parts, no_room, peek)) {
        Ok(seen) => seen,
        // Then reading fails too, and says what that means.
        Err(Errno::CONNRESET) => return Ok(false),
        Err(errno) => return Err(io::Error::from(errno).into()),
    };
    match seen.bytes {
        // The front end has left, and can send nothing any more.
        0 => Ok(false),
        1..HEADER_BYTES => Err(SessionError::Message(Error::PartialMessage)),
        _ => Ok(seen.flags.contains(ReturnFlags::CTRUNC)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{IoSlice, Read, Write};
    use std::mem::MaybeUninit;
    use std::os::unix::net::UnixStream;

    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

    const HEADER: [u8; HEADER_BYTES] = [7, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0];

    fn send(stream: &UnixStream, bytes: &[u8], flags: SendFlags) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let fds = [stream.as_fd()];
        assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
        sendmsg(stream, &[IoSlice::new(bytes)], &mut control, flags).unwrap();
    }

    fn pair() -> (UnixStream, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        keep_order(&ours).unwrap();
        (ours, theirs)
    }

    #[track_caller]
    fn check(ours: &UnixStream, expected: Option<bool>) {
        let found = may_come(ours.as_fd());
        assert!(matches!(&found, Ok(_) | Err(SessionError::Message(Error::PartialMessage))));
        assert_eq!(found.ok(), expected);
    }

    #[test]
    fn descriptors_are_seen_and_none_is_made() {
        let (mut ours, mut theirs) = pair();
        theirs.write_all(&HEADER).unwrap();
        check(&ours, Some(false));
        send(&theirs, &HEADER, SendFlags::empty());
        // Whether they are the next message's, the kernel does not say.
        check(&ours, Some(true));
        ours.read_exact(&mut [0; HEADER_BYTES]).unwrap();
        let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
        let before = open();
        check(&ours, Some(true));
        check(&ours, Some(true));
        // Other tests of this process open some, too.
        assert!((0..1000).any(|_| open() <= before));
        drop(theirs);
        ours.read_exact(&mut [0; HEADER_BYTES]).unwrap();
        check(&ours, Some(false));
    }

    #[test]
    fn of_a_header_in_pieces_nobody_says_what_comes() {
        let (mut ours, mut theirs) = pair();
        theirs.write_all(&HEADER[..4]).unwrap();
        check(&ours, None);
        send(&theirs, &HEADER[4..], SendFlags::empty());
        check(&ours, Some(true));
        ours.read_exact(&mut [0; HEADER_BYTES]).unwrap();
        send(&theirs, &HEADER[..4], SendFlags::empty());
        theirs.write_all(&HEADER[4..]).unwrap();
        check(&ours, None);
    }

    #[test]
    fn urgent_data_are_not_passed_over() {
        let (mut ours, mut theirs) = pair();
        send(&theirs, &HEADER[..1], SendFlags::OOB);
        theirs.write_all(&HEADER).unwrap();
        check(&ours, None);
        ours.read_exact(&mut [0]).unwrap();
        check(&ours, Some(false));
    }
}
