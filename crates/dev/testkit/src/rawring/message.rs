//! vhost-user messages by hand (QEMU's docs/interop/vhost-user.rst).
//!
//! Invariants: a reply is taken only for the request that was sent; the end of the session is a value, not an error,
//! because hostile tests expect it.

use std::fmt;
use std::io::{ErrorKind, IoSlice, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

/// How long the server may take to answer a message, or to end a session it refuses.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// The version in the low bits of a message's flags.
const VERSION: u32 = 1;
/// The sender wants an answer, once REPLY_ACK is negotiated.
const NEED_REPLY: u32 = 1 << 3;
const HEADER_BYTES: usize = 12;
/// No reply that this crate asks for is longer.
const REPLY_BYTES_MAX: usize = 4096;

/// Request types.
pub mod request {
    #![expect(missing_docs, reason = "the names are the specification's")]
    pub const GET_FEATURES: u32 = 1;
    pub const SET_FEATURES: u32 = 2;
    pub const SET_OWNER: u32 = 3;
    pub const SET_MEM_TABLE: u32 = 5;
    pub const SET_LOG_BASE: u32 = 6;
    pub const SET_VRING_NUM: u32 = 8;
    pub const SET_VRING_ADDR: u32 = 9;
    pub const SET_VRING_BASE: u32 = 10;
    pub const GET_VRING_BASE: u32 = 11;
    pub const SET_VRING_KICK: u32 = 12;
    pub const SET_VRING_CALL: u32 = 13;
    pub const SET_VRING_ERR: u32 = 14;
    pub const GET_PROTOCOL_FEATURES: u32 = 15;
    pub const SET_PROTOCOL_FEATURES: u32 = 16;
    pub const GET_QUEUE_NUM: u32 = 17;
    pub const SET_VRING_ENABLE: u32 = 18;
    pub const SET_BACKEND_REQ_FD: u32 = 21;
    pub const GET_CONFIG: u32 = 24;
    pub const SET_CONFIG: u32 = 25;
    pub const GET_INFLIGHT_FD: u32 = 31;
    pub const SET_INFLIGHT_FD: u32 = 32;
    pub const RESET_DEVICE: u32 = 34;
    pub const GET_MAX_MEM_SLOTS: u32 = 36;
    pub const ADD_MEM_REG: u32 = 37;
    pub const REM_MEM_REG: u32 = 38;
}

/// Protocol features, as bits.
pub mod protocol_feature {
    #![expect(missing_docs, reason = "the names are the specification's")]
    pub const MQ: u64 = 1 << 0;
    pub const LOG_SHMFD: u64 = 1 << 1;
    pub const REPLY_ACK: u64 = 1 << 3;
    pub const BACKEND_REQ: u64 = 1 << 5;
    pub const CONFIG: u64 = 1 << 9;
    pub const INFLIGHT_SHMFD: u64 = 1 << 12;
    pub const RESET_DEVICE: u64 = 1 << 13;
    pub const CONFIGURE_MEM_SLOTS: u64 = 1 << 15;
}

/// Device features, as bits.
pub mod feature {
    #![expect(missing_docs, reason = "the names are the specification's")]
    pub const LOG_ALL: u64 = 1 << 26;
    pub const RING_INDIRECT_DESC: u64 = 1 << 28;
    pub const RING_EVENT_IDX: u64 = 1 << 29;
    pub const RING_PACKED: u64 = 1 << 34;
    pub const PROTOCOL_FEATURES: u64 = 1 << 30;
    pub const VERSION_1: u64 = 1 << 32;
    pub const BLK_RO: u64 = 1 << 5;
    pub const BLK_FLUSH: u64 = 1 << 9;
    pub const BLK_CONFIG_WCE: u64 = 1 << 11;
    pub const BLK_MQ: u64 = 1 << 12;
    pub const BLK_DISCARD: u64 = 1 << 13;
    pub const BLK_WRITE_ZEROES: u64 = 1 << 14;
}

/// How the server took a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ack {
    /// It answered zero.
    Done,
    /// It answered this error and kept the session.
    Refused(u64),
    /// It ended the session.
    Ended,
}

/// The server ended the session instead of answering.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionEnded {
    /// The message it left without an answer.
    pub request: u32,
}

impl fmt::Display for SessionEnded {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "the session ended at message {}", self.request)
    }
}

impl std::error::Error for SessionEnded {}

/// One region of a memory table, as it goes over the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// Guest-physical address, used in descriptors.
    pub guest_address: u64,
    /// Bytes.
    pub size: u64,
    /// Address in the front end's process, used for rings.
    pub user_address: u64,
    /// Where the region starts in its file.
    pub file_offset: u64,
}

impl Region {
    /// The payload of ADD_MEM_REG and REM_MEM_REG.
    pub fn single(&self) -> Vec<u8> {
        let mut payload = vec![0; 8];
        payload.extend(self.bytes());
        payload
    }

    /// The payload of SET_MEM_TABLE with these regions.
    pub fn table(regions: &[Self]) -> Vec<u8> {
        let count = u32::try_from(regions.len()).expect("a test's table is small");
        let mut payload = count.to_le_bytes().to_vec();
        payload.extend([0; 4]);
        payload.extend(regions.iter().flat_map(Self::bytes));
        payload
    }

    fn bytes(&self) -> Vec<u8> {
        [self.guest_address, self.size, self.user_address, self.file_offset]
            .iter()
            .flat_map(|word| word.to_le_bytes())
            .collect()
    }
}

/// A connection on which any bytes can be sent.
#[derive(Debug)]
pub struct FrontEnd {
    stream: UnixStream,
    protocol_features: u64,
}

impl FrontEnd {
    /// Connects and says nothing.
    pub fn connect(socket: &Path) -> Result<Self> {
        let stream = UnixStream::connect(socket)
            .with_context(|| format!("connect to {}", socket.display()))?;
        stream.set_read_timeout(Some(ANSWER_LIMIT)).context("limit reads")?;
        stream.set_write_timeout(Some(ANSWER_LIMIT)).context("limit writes")?;
        Ok(Self { stream, protocol_features: 0 })
    }

    /// The protocol features that both sides have.
    pub fn protocol_features(&self) -> u64 {
        self.protocol_features
    }

    /// The socket, to wait for the end of the session beside something else.
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// Sends bytes as they are. A session that the server has ended is no error here: the next receive shows it.
    pub fn send_bytes(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<()> {
        send_bytes(&self.stream, bytes, fds)
    }

    /// Sends one message.
    pub fn send(&self, request: u32, payload: &[u8], fds: &[BorrowedFd<'_>]) -> Result<()> {
        let flags = VERSION | if self.has_reply_ack() { NEED_REPLY } else { 0 };
        self.send_bytes(&message(request, flags, payload), fds)
    }

    /// Sends one message that has no reply of its own, and gives how it was taken.
    pub fn tell(&self, request: u32, payload: &[u8], fds: &[BorrowedFd<'_>]) -> Result<Ack> {
        self.send(request, payload, fds)?;
        if !self.has_reply_ack() {
            return Ok(Ack::Done);
        }
        Ok(match self.receive(request)? {
            None => Ack::Ended,
            Some(reply) => match word(&reply)? {
                0 => Ack::Done,
                error => Ack::Refused(error),
            },
        })
    }

    /// The same, where the server must agree.
    pub fn must(&self, request: u32, payload: &[u8], fds: &[BorrowedFd<'_>]) -> Result<()> {
        let ack = self.tell(request, payload, fds)?;
        if ack == Ack::Ended {
            return Err(SessionEnded { request }.into());
        }
        ensure!(ack == Ack::Done, "message {request} with {payload:02x?}: {ack:?}");
        Ok(())
    }

    /// Sends one message that has a reply, and gives the reply's payload. The end of the session is `SessionEnded`.
    pub fn ask(&self, request: u32, payload: &[u8]) -> Result<Vec<u8>> {
        self.ask_with(request, payload, &[])
    }

    /// The same with descriptors.
    pub fn ask_with(
        &self,
        request: u32,
        payload: &[u8],
        fds: &[BorrowedFd<'_>],
    ) -> Result<Vec<u8>> {
        self.send(request, payload, fds)?;
        Ok(self.receive(request)?.ok_or(SessionEnded { request })?)
    }

    /// The same for a reply that comes with one descriptor.
    pub fn ask_fd(&self, request: u32, payload: &[u8]) -> Result<(Vec<u8>, OwnedFd)> {
        self.send(request, payload, &[])?;
        let mut header = [0; HEADER_BYTES];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut slices = [IoSliceMut::new(&mut header)];
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::WAITALL;
        let count = match recvmsg(&self.stream, &mut slices, &mut control, flags) {
            Ok(received) => received.bytes,
            Err(rustix::io::Errno::CONNRESET) => 0,
            Err(error) => return Err(error).context("receive a reply with a descriptor"),
        };
        if count < HEADER_BYTES {
            return Err(SessionEnded { request }.into());
        }
        let size = reply_size(request, &header)?;
        let reply = self.read_exactly(size)?.ok_or(SessionEnded { request })?;
        let descriptor = control.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
            RecvAncillaryMessage::ScmCredentials(_) | _ => None,
        });
        let descriptor =
            descriptor.with_context(|| format!("message {request} came without a descriptor"))?;
        Ok((reply, descriptor))
    }

    /// The same for a reply of one 64-bit word.
    pub fn ask_word(&self, request: u32) -> Result<u64> {
        word(&self.ask(request, &[])?)
    }

    /// The payload of the next message, which must answer `request`; nothing if the session has ended.
    pub fn receive(&self, request: u32) -> Result<Option<Vec<u8>>> {
        let Some(header) = self.read_exactly(HEADER_BYTES)? else {
            return Ok(None);
        };
        self.read_exactly(reply_size(request, &header)?)
    }

    /// Waits for the end of the session, passing over replies.
    pub fn wait_for_end(&self) -> Result<()> {
        while self.read_exactly(1)?.is_some() {}
        Ok(())
    }

    /// Owner, features and protocol features; gives the features that both sides have.
    pub fn negotiate(&mut self, features: u64, protocol_features: u64) -> Result<u64> {
        self.must(request::SET_OWNER, &[], &[])?;
        let offered = self.ask_word(request::GET_FEATURES)?;
        ensure!(offered & feature::PROTOCOL_FEATURES != 0, "no protocol features in {offered:#x}");
        let protocol = self.ask_word(request::GET_PROTOCOL_FEATURES)? & protocol_features;
        self.must(request::SET_PROTOCOL_FEATURES, &protocol.to_le_bytes(), &[])?;
        self.protocol_features = protocol;
        let features = offered & (features | feature::PROTOCOL_FEATURES);
        self.must(request::SET_FEATURES, &features.to_le_bytes(), &[])?;
        Ok(features)
    }

    /// Reads the configuration space from its start.
    pub fn configuration(&self, size: u32) -> Result<Vec<u8>> {
        let mut payload: Vec<u8> =
            [0, size, 0].iter().flat_map(|word| word.to_le_bytes()).collect();
        payload.resize(12 + usize::try_from(size).context("size")?, 0);
        let reply = self.ask(request::GET_CONFIG, &payload)?;
        reply.get(12..).map(<[u8]>::to_vec).context("GET_CONFIG was answered without content")
    }

    /// Sends SET_CONFIG with these bytes; its answer is the caller's to receive.
    pub fn send_configuration(&self, offset: u32, bytes: &[u8]) -> Result<()> {
        let size = u32::try_from(bytes.len()).context("size")?;
        let mut payload: Vec<u8> =
            [offset, size, 0].iter().flat_map(|word| word.to_le_bytes()).collect();
        payload.extend(bytes);
        self.send(request::SET_CONFIG, &payload, &[])
    }

    fn has_reply_ack(&self) -> bool {
        self.protocol_features & protocol_feature::REPLY_ACK != 0
    }

    fn read_exactly(&self, length: usize) -> Result<Option<Vec<u8>>> {
        let mut bytes = vec![0; length];
        let mut stream = &self.stream;
        match stream.read_exact(&mut bytes) {
            Ok(()) => Ok(Some(bytes)),
            Err(error)
                if is_one_of(&error, [ErrorKind::UnexpectedEof, ErrorKind::ConnectionReset]) =>
            {
                Ok(None)
            }
            Err(error) if is_one_of(&error, [ErrorKind::WouldBlock, ErrorKind::TimedOut]) => {
                bail!("the server neither answers nor ends the session within {ANSWER_LIMIT:?}")
            }
            Err(error) => Err(error).context("read from the server"),
        }
    }
}

/// Sends bytes with descriptors; the end of the session is no error.
pub(crate) fn send_bytes(stream: &UnixStream, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(64))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        ensure!(control.push(SendAncillaryMessage::ScmRights(fds)), "too many descriptors");
    }
    match sendmsg(stream, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL) {
        Ok(sent) => ensure!(sent == bytes.len(), "{sent} of {} bytes sent", bytes.len()),
        Err(rustix::io::Errno::PIPE | rustix::io::Errno::CONNRESET) => {}
        Err(error) => return Err(error).context("send a message"),
    }
    Ok(())
}

/// The length of a reply's payload, once its header has come.
fn reply_size(request: u32, header: &[u8]) -> Result<usize> {
    let answered = field(header, 0);
    let size = usize::try_from(field(header, 8)).context("size of a reply")?;
    ensure!(answered == request, "message {request} was answered as {answered}");
    ensure!(size <= REPLY_BYTES_MAX, "message {request} has a reply of {size} bytes");
    Ok(size)
}

fn is_one_of(error: &std::io::Error, kinds: [ErrorKind; 2]) -> bool {
    kinds.contains(&error.kind())
}

/// A message's bytes with any flags.
pub(super) fn message(request: u32, flags: u32, payload: &[u8]) -> Vec<u8> {
    let size = u32::try_from(payload.len()).expect("a test's message is small");
    let mut bytes: Vec<u8> =
        [request, flags, size].iter().flat_map(|word| word.to_le_bytes()).collect();
    bytes.extend_from_slice(payload);
    bytes
}

fn field(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn word(payload: &[u8]) -> Result<u64> {
    let bytes = payload.try_into().with_context(|| format!("{payload:02x?} is not one word"))?;
    Ok(u64::from_le_bytes(bytes))
}
