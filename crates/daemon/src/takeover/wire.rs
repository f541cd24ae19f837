//! What an old and a new process say to each other, and how.
//!
//! A connection of packets, each one JSON object with the descriptors that belong to it. The field
//! `version` of the first packet says what the rest means; a process that does not know it says
//! which one it knows.
//!
//! Limits: [`PACKET_BYTES_MAX`] and [`DESCRIPTORS_MAX`] per packet; [`Wire::wait_at_most`].

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use kernel_io::{Peer, peer_of};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown, SocketAddrUnix, SocketFlags,
    SocketType, recvmsg, sendmsg, shutdown,
};
use serde::{Deserialize, Serialize};

/// The longest packet, which lists the exports of a daemon.
const PACKET_BYTES_MAX: usize = 128 << 10;

/// A ring comes with three descriptors.
const DESCRIPTORS_MAX: usize = 3;

/// One packet.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) enum Message {
    /// New: asks for everything that is served on these sockets.
    Hello { version: u32, sockets: Vec<SocketFile> },
    /// Old: it speaks only this version.
    OtherVersion { version: u32 },
    /// Old: it goes on serving.
    Refused { reason: String },
    /// Old: what it would hand over.
    Offer { exports: Vec<Offered> },
    /// New: it can go on with that; the old process is to stop its rings.
    Proceed,
    /// Old: an export, with its listening socket. Its session follows if it has a client.
    Export { socket: SocketFile, writeback: bool, stopped_ns: u64 },
    /// Old: the client of the last export, with its connection. Memory and rings follow.
    Session { features: u64, protocol: u64 },
    /// Old: a region of guest memory, with its file.
    Region { guest: u64, bytes: u64, user_address: u64, file_offset: u64 },
    /// Old: the region of requests in flight, with its file.
    Inflight { queues: u16, queue_size: u16, bytes: u64, offset: u64 },
    /// Old: the session's own channel.
    Channel,
    /// Old: the next ring, with those of its kick, call and error descriptors that it has.
    Ring {
        size: Option<u16>,
        /// Of descriptors, available ring and used ring.
        addresses: Option<[u64; 3]>,
        base: Option<u32>,
        enabled: bool,
        kick: bool,
        call: bool,
        error: bool,
    },
    /// Old: that was all; its locks are given back.
    End,
    /// New: it has the locks, and goes on. From here on the old process serves nothing.
    Taking,
}

/// The file of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SocketFile {
    pub(super) device: u64,
    pub(super) inode: u64,
}

/// What a guest sees of an export, and where its bytes are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct Offered {
    pub(super) socket: SocketFile,
    pub(super) id: String,
    pub(super) bytes: u64,
    pub(super) logical_block: u32,
    pub(super) queues: u16,
    pub(super) features: u64,
    /// The files below its node, by device and inode.
    pub(super) storage: Vec<[u64; 2]>,
}

/// A connection between an old and a new process.
#[derive(Debug)]
pub(super) struct Wire {
    fd: OwnedFd,
}

/// A connection came to nothing.
#[derive(Debug, thiserror::Error)]
pub(super) enum WireError {
    /// The other process has closed it, or has ended.
    #[error("the other process has hung up")]
    Ended,
    /// It did not answer.
    #[error("the other process does not answer")]
    Silent,
    /// The kernel refused.
    #[error("cannot talk to the other process")]
    Kernel(#[source] io::Error),
    /// What it says is not understood.
    #[error("the other process says what cannot be understood")]
    Form(#[source] serde_json::Error),
    /// What it says does not belong here.
    #[error("the other process says something else than what is due: {what}")]
    Unexpected {
        /// What it said, in short.
        what: String,
    },
}

impl From<Errno> for WireError {
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::CONNRESET | Errno::PIPE => Self::Ended,
            Errno::AGAIN => Self::Silent,
            errno => Self::Kernel(errno.into()),
        }
    }
}

/// Where the process of that id is asked.
fn address(process: u32) -> io::Result<SocketAddrUnix> {
    let name = format!("ringloom-takeover-{process}");
    Ok(SocketAddrUnix::new_abstract_name(name.as_bytes())?)
}

fn socket() -> rustix::io::Result<OwnedFd> {
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
}

/// A socket on which this process can be asked.
pub(super) fn listen() -> io::Result<OwnedFd> {
    let fd = socket()?;
    rustix::net::bind(&fd, &address(std::process::id())?)?;
    rustix::net::listen(&fd, 4)?;
    Ok(fd)
}

impl Wire {
    /// Connects to the process of that id. `None` if it cannot be asked: nobody listens there.
    pub(super) fn connect(process: u32) -> Result<Option<Self>, WireError> {
        let fd = socket()?;
        // Too many may be waiting there.
        set_socket_timeout(&fd, Timeout::Send, Some(super::ANSWER_LIMIT))?;
        match rustix::net::connect(&fd, &address(process).map_err(WireError::Kernel)?) {
            Ok(()) => Ok(Some(Self::of(fd)?)),
            Err(Errno::CONNREFUSED) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    /// A connection that was made.
    pub(super) fn of(fd: OwnedFd) -> Result<Self, WireError> {
        set_socket_timeout(&fd, Timeout::Send, Some(super::ANSWER_LIMIT))?;
        Ok(Self { fd })
    }

    /// Who is at the other end.
    pub(super) fn peer(&self) -> Result<Peer, WireError> {
        peer_of(&self.fd).map_err(WireError::Kernel)
    }

    /// Says something.
    pub(super) fn send(&self, message: &Message, fds: &[BorrowedFd<'_>]) -> Result<(), WireError> {
        let bytes = serde_json::to_vec(message).map_err(WireError::Form)?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            let fits = control.push(SendAncillaryMessage::ScmRights(fds));
            assert!(fits, "no message has more descriptors than {DESCRIPTORS_MAX}");
        }
        sendmsg(&self.fd, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL)?;
        Ok(())
    }

    /// What the other process says next, if it does within that time.
    pub(super) fn receive(&self, limit: Duration) -> Result<(Message, Vec<OwnedFd>), WireError> {
        self.wait_at_most(limit)?;
        let mut bytes = vec![0; PACKET_BYTES_MAX];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(&mut bytes)];
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let received = recvmsg(&self.fd, &mut parts, &mut control, flags)?;
        let fds = control
            .drain()
            .filter_map(|message| match message {
                RecvAncillaryMessage::ScmRights(fds) => Some(fds),
                RecvAncillaryMessage::ScmCredentials(_) | _ => None,
            })
            .flatten()
            .collect();
        if received.bytes == 0 {
            return Err(WireError::Ended);
        }
        if received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
            return Err(WireError::Unexpected { what: "a packet that is too long".to_owned() });
        }
        let message = serde_json::from_slice(&bytes[..received.bytes]).map_err(WireError::Form)?;
        Ok((message, fds))
    }

    /// Whether the other process has said something, or does within that time; so too if it has ended.
    pub(super) fn has_said(&self, limit: Duration) -> bool {
        !matches!(self.wait_at_most(limit), Err(WireError::Silent))
    }

    /// From now on the other process can say nothing more; what it has said can still be received.
    pub(super) fn close_ears(&self) -> Result<(), WireError> {
        Ok(shutdown(&self.fd, Shutdown::Read)?)
    }

    fn wait_at_most(&self, limit: Duration) -> Result<(), WireError> {
        let limit = Timespec::try_from(limit).expect("limits are short");
        loop {
            let mut fds = [PollFd::new(&self.fd, PollFlags::IN)];
            match poll(&mut fds, Some(&limit)) {
                Ok(0) => return Err(WireError::Silent),
                Ok(_) => return Ok(()),
                // A signal begins the time anew; there are few.
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

impl AsFd for Wire {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Message {
    /// An error: this was not due.
    pub(super) fn unexpected(&self) -> WireError {
        let what = format!("{self:?}").chars().take(80).collect();
        WireError::Unexpected { what }
    }
}
