//! What an old and a new process say to each other, and how.
//!
//! A connection of packets, each one JSON object with the descriptors that belong to it. The field
//! `version` of the first packet says what the rest means; a process that does not know it says
//! which one it knows.
//!
//! Limits: [`PACKET_BYTES_MAX`] and [`DESCRIPTORS_MAX`] per packet; whoever sends or receives says until when.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use exports::SocketIdentity;
use graph::NodeDescription;
use host::{Peer, peer_of};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown, SocketAddrUnix, SocketFlags,
    SocketType, recvmsg, sendmsg, shutdown,
};
use serde::{Deserialize, Serialize};

use super::bitmaps::BitmapDescription;
use super::limits::{ANSWER_LIMIT, Deadline};

/// The longest packet, which names the sockets of a daemon.
const PACKET_BYTES_MAX: usize = 128 << 10;

/// How many sockets fit into one packet, whatever their numbers are.
pub(super) const SOCKETS_MAX: usize = 2048;

/// With so many bytes of options a packet takes no more of them: quoted they are several times as long at worst.
const OPTION_BYTES_OF_PACKET: usize = 16 << 10;

/// The longest configuration of a daemon: as long as a state file takes.
const CONFIGURATION_BYTES_MAX: usize = 4 << 20;

/// How many options the nodes below all exports can have.
const OPTIONS_MAX: usize = 1 << 20;

/// A ring comes with three descriptors.
const DESCRIPTORS_MAX: usize = 3;

/// How many new processes can wait to be heard. Anybody can connect; whoever may not ask is sent away at once.
const BACKLOG: i32 = 64;

/// How many names are tried that look like those of a process.
const NAMES_MAX: usize = 64;

/// The pause before descriptors that the kernel could not take are sent again.
const MOMENT: Timespec = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };

/// A packet of the takeover protocol.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) enum Message {
    /// New: asks for everything that is served on these sockets.
    Hello { version: u32, sockets: Vec<SocketIdentity> },
    /// New: asks what commands have made of what the old process serves with.
    AskConfiguration { version: u32 },
    /// Old: a part of the text of its configuration, as JSON. Nothing at all if no command has changed it.
    Configuration { part: String, is_last: bool },
    /// Old: it speaks only this version.
    OtherVersion { version: u32 },
    /// Old: it goes on serving.
    Refused { reason: String },
    /// Old: an export that it would hand over. The options of its nodes follow.
    Offer { export: OfferedExport },
    /// Old: all options of the nodes below the last export, or a part of them.
    OfferNodes { nodes: NodeDescription },
    /// Old: those were all.
    OfferEnd,
    /// New: it can go on with that; the old process is to stop its rings.
    Proceed,
    /// Old: an export, with its listening socket. Its session follows if it has a client. `held` if its node is
    /// claimed now, which one with `active=off` need not be; `given` if the socket's file is that of whoever started the
    /// daemon, which is only said where it is so.
    Export {
        socket: SocketIdentity,
        writeback: bool,
        stopped_ns: u64,
        held: bool,
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        given: bool,
    },
    /// Old: the client of the last export that waits until the one of now has left, with its connection.
    WaitingClientState,
    /// Old: the client of the last export, with its connection. Memory and rings follow.
    Session { features: u64, protocol: u64 },
    /// Old: a region of guest memory, with its file.
    Region { guest: u64, bytes: u64, user_address: u64, file_offset: u64 },
    /// Old: the region of requests in flight, with its file.
    Inflight { queues: u16, queue_size: u16, bytes: u64, offset: u64 },
    /// Old: the dirty log, in which nothing is marked now, with its file.
    Log { bytes: u64, offset: u64 },
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
    /// Old: a file below an export, at that place, with its descriptor; what is locked on it, as
    /// [`kernel_io::ImageLocks::bits`].
    File { export: String, place: String, locks: [u8; 2] },
    /// Old: what an image in use has in memory alone, or a part of that. Ranges of clusters, first and end.
    Image {
        export: String,
        place: String,
        reserved: Vec<[u64; 2]>,
        freed: Vec<[u64; 2]>,
        tables_durable: bool,
    },
    /// Old: a dirty bitmap of a node, with its bits in a file unless it is inconsistent.
    Bitmap(BitmapDescription),
    /// Old: that was all.
    End,
    /// New: it has all that it needs to go on, and waits for the word.
    Ready,
    /// Old: the new process goes on. From here on the old one submits nothing.
    Commit,
}

/// What a guest sees of an export, and its nodes, as the old process offers it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct OfferedExport {
    pub(super) socket: SocketIdentity,
    pub(super) id: String,
    pub(super) bytes: u64,
    pub(super) logical_block: u32,
    pub(super) queues: u16,
    pub(super) features: u64,
    /// All options of the nodes below it, in packets of their own: they are long below a chain of images.
    #[serde(skip)]
    pub(super) nodes: NodeDescription,
}

/// A connection between the old and the new process.
#[derive(Debug)]
pub(super) struct TakeoverConnection {
    fd: OwnedFd,
}

/// What came of asking an old process for its exports: an offer, a refusal, or another protocol version.
pub(super) enum TakeoverOfferResult {
    All(Vec<OfferedExport>),
    Refused(String),
    OtherVersion(u32),
}

/// The takeover protocol failed: hung up, silent, or not understood.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// The other process has closed it, or has ended.
    #[error("the other process has hung up")]
    Ended,
    /// It did not answer.
    #[error("the other process does not answer")]
    Silent,
    /// What is to be said to it is too long.
    #[error("{0} bytes are more than the other process takes at once")]
    TooLong(usize),
    /// The kernel refused.
    #[error("cannot talk to the other process")]
    Kernel(#[source] io::Error),
    /// What it says is not understood.
    #[error("the other process says what cannot be understood")]
    Form(#[source] serde_json::Error),
    /// What it says does not belong here.
    #[error("the other process says something else than what is due: {0}")]
    Unexpected(String),
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

/// What all names begin with on which processes can be asked.
const NAME: &str = "ringloom-takeover-";

/// What the names begin with on which the process of that id can be asked.
fn prefix(process: u32) -> String {
    format!("{NAME}{process}-")
}

/// The process that listens at one of these paths, if it can be asked. Found without a connection to the socket: what is no
/// ringloom may have only one place for somebody who connects.
pub(super) fn listener_at(paths: &[&Path]) -> Option<u32> {
    let sockets = std::fs::read_to_string("/proc/net/unix").ok()?;
    let fields = |line: &str| -> Option<(String, String)> {
        let mut fields = line.split_whitespace().skip(6);
        Some((fields.next()?.to_owned(), fields.next()?.to_owned()))
    };
    let all: Vec<(String, String)> = sockets.lines().filter_map(fields).collect();
    let is_wanted = |name: &str| paths.iter().any(|path| path.as_os_str() == name);
    let wanted = all.iter().filter(|(_, name)| is_wanted(name));
    let wanted: Vec<String> = wanted.map(|(inode, _)| format!("socket:[{inode}]")).collect();
    let process =
        |name: &str| name.strip_prefix('@')?.strip_prefix(NAME)?.split('-').next()?.parse().ok();
    let mut processes: Vec<u32> = all.iter().filter_map(|(_, name)| process(name)).collect();
    processes.sort_unstable();
    processes.dedup();
    let listens = |process: &u32| {
        let links =
            std::fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten().flatten();
        let mut links = links.filter_map(|entry| std::fs::read_link(entry.path()).ok());
        links.any(|link| wanted.iter().any(|wanted| link.as_os_str() == wanted.as_str()))
    };
    processes.into_iter().find(listens)
}

fn socket() -> rustix::io::Result<OwnedFd> {
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
}

/// A socket on which this process can be asked. Nobody can have taken its name before: it ends by chance.
pub(super) fn listen() -> io::Result<OwnedFd> {
    let fd = socket()?;
    // The keys of each of these are the kernel's random numbers.
    let chance = RandomState::new().build_hasher().finish();
    let name = format!("{}{chance:016x}", prefix(std::process::id()));
    rustix::net::bind(&fd, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
    rustix::net::listen(&fd, BACKLOG)?;
    Ok(fd)
}

/// The names that begin like those of the process of that id; anybody may have taken them.
fn names(process: u32) -> Result<Vec<String>, WireError> {
    let sockets = std::fs::read_to_string("/proc/net/unix").map_err(WireError::Kernel)?;
    let prefix = prefix(process);
    let name = |line: &str| {
        let name = line.split_whitespace().nth(7)?.strip_prefix('@')?;
        name.starts_with(&prefix).then(|| name.to_owned())
    };
    let mut names: Vec<String> = sockets.lines().filter_map(name).collect();
    // Connections of a listener have its name, too.
    names.sort_unstable();
    names.dedup();
    Ok(names)
}

impl TakeoverConnection {
    /// Connects to the process of that id. `None` if it cannot be asked: it listens nowhere. Names that others
    /// have taken are passed over.
    pub(super) fn connect(process: u32) -> Result<Option<Self>, WireError> {
        for name in names(process)?.iter().take(NAMES_MAX) {
            let fd = socket()?;
            // Too many may be waiting there.
            set_socket_timeout(&fd, Timeout::Send, Some(ANSWER_LIMIT))?;
            let address = SocketAddrUnix::new_abstract_name(name.as_bytes())?;
            match rustix::net::connect(&fd, &address) {
                Ok(()) => {
                    let wire = Self::of(fd);
                    if wire.peer()?.process == Some(process) {
                        return Ok(Some(wire));
                    }
                }
                Err(Errno::CONNREFUSED) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(None)
    }

    /// A connection that was made.
    pub(super) fn of(fd: OwnedFd) -> Self {
        Self { fd }
    }

    /// Who is at the other end.
    pub(super) fn peer(&self) -> Result<Peer, WireError> {
        peer_of(&self.fd).map_err(WireError::Kernel)
    }

    /// A hold on the process at the other end.
    pub(super) fn peer_process(&self) -> io::Result<OwnedFd> {
        host::peer_process(&self.fd)
    }

    /// Says something, if the other process takes it by then. After an error it has not been said.
    pub(super) fn send(
        &self,
        message: &Message,
        fds: &[BorrowedFd<'_>],
        until: Deadline,
    ) -> Result<(), WireError> {
        let bytes = serde_json::to_vec(message).map_err(WireError::Form)?;
        if bytes.len() > PACKET_BYTES_MAX {
            return Err(WireError::TooLong(bytes.len()));
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        loop {
            let mut space =
                [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            if !fds.is_empty() {
                let fits = control.push(SendAncillaryMessage::ScmRights(fds));
                assert!(fits, "no message has more descriptors than {DESCRIPTORS_MAX}");
            }
            match sendmsg(&self.fd, &[IoSlice::new(&bytes)], &mut control, flags) {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => self.wait(PollFlags::OUT, until)?,
                // Too many descriptors are under way: the other process has not taken them yet.
                Err(Errno::TOOMANYREFS) if !until.left().is_zero() => {
                    poll(&mut [], Some(&MOMENT))?;
                }
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Tells what this process serves with, in as many packets as that takes.
    pub(super) fn tell_configuration(&self, text: &str, until: Deadline) -> Result<(), WireError> {
        let mut rest = text;
        loop {
            let (part, after) = rest.split_at(rest.floor_char_boundary(OPTION_BYTES_OF_PACKET));
            let (part, is_last) = (part.to_owned(), after.is_empty());
            self.send(&Message::Configuration { part, is_last }, &[], until)?;
            if is_last {
                return Ok(());
            }
            rest = after;
        }
    }

    /// What the old process serves with; nothing if no command has changed it, or if it does not say.
    #[expect(clippy::wildcard_enum_match_arm, reason = "whatever else is said is not due here")]
    pub(super) fn receive_configuration(&self) -> Result<String, WireError> {
        let (mut text, until) = (String::new(), Deadline::within(ANSWER_LIMIT));
        loop {
            match self.receive(until)? {
                Message::Configuration { part, is_last } => {
                    text.push_str(&part);
                    if is_last {
                        return Ok(text);
                    }
                    if text.len() > CONFIGURATION_BYTES_MAX {
                        return Err(WireError::TooLong(text.len()));
                    }
                }
                Message::OtherVersion { .. } | Message::Refused { .. } => return Ok(String::new()),
                other => return Err(other.unexpected()),
            }
        }
    }

    /// Offers an export, in as many packets as that takes.
    pub(super) fn offer(
        &self,
        mut export: OfferedExport,
        until: Deadline,
    ) -> Result<(), WireError> {
        let nodes = std::mem::take(&mut export.nodes);
        self.send(&Message::Offer { export }, &[], until)?;
        let mut nodes = nodes.into_iter().peekable();
        while nodes.peek().is_some() {
            let (mut part, mut bytes) = (NodeDescription::new(), 0);
            while let Some((key, value)) = nodes.next_if(|_| bytes < OPTION_BYTES_OF_PACKET) {
                bytes += key.len() + value.len();
                part.insert(key, value);
            }
            self.send(&Message::OfferNodes { nodes: part }, &[], until)?;
        }
        Ok(())
    }

    /// What the old process would hand over, of which the first packet has been waited for.
    #[expect(clippy::wildcard_enum_match_arm, reason = "whatever else is said is not due here")]
    pub(super) fn receive_offers(&self) -> Result<TakeoverOfferResult, WireError> {
        let (mut exports, mut options) = (Vec::<OfferedExport>::new(), 0);
        let until = Deadline::within(ANSWER_LIMIT);
        loop {
            match self.receive(until)? {
                Message::Offer { export } if exports.len() < SOCKETS_MAX => exports.push(export),
                Message::OfferNodes { nodes } if options + nodes.len() <= OPTIONS_MAX => {
                    options += nodes.len();
                    match exports.last_mut() {
                        Some(export) => export.nodes.extend(nodes),
                        None => return Err(Message::OfferNodes { nodes }.unexpected()),
                    }
                }
                Message::OfferEnd => return Ok(TakeoverOfferResult::All(exports)),
                Message::Refused { reason } => return Ok(TakeoverOfferResult::Refused(reason)),
                Message::OtherVersion { version } => {
                    return Ok(TakeoverOfferResult::OtherVersion(version));
                }
                other => return Err(other.unexpected()),
            }
        }
    }

    /// What the other process says next, if it does by then. What comes with descriptors is not due: none is received,
    /// since whoever has one has to close it, and waits for the file system then.
    pub(super) fn receive(&self, until: Deadline) -> Result<Message, WireError> {
        self.receive_into(&mut RecvAncillaryBuffer::default(), until)
    }

    /// The same, with the descriptors that belong to it.
    pub(super) fn receive_with_descriptors(
        &self,
        until: Deadline,
    ) -> Result<(Message, Vec<OwnedFd>), WireError> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let message = self.receive_into(&mut control, until)?;
        let fds = control.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(fds) => Some(fds),
            RecvAncillaryMessage::ScmCredentials(_) | _ => None,
        });
        Ok((message, fds.flatten().collect()))
    }

    fn receive_into(
        &self,
        control: &mut RecvAncillaryBuffer<'_>,
        until: Deadline,
    ) -> Result<Message, WireError> {
        let mut bytes = vec![0; PACKET_BYTES_MAX];
        let mut parts = [IoSliceMut::new(&mut bytes)];
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let received = loop {
            self.wait(PollFlags::IN, until)?;
            match recvmsg(&self.fd, &mut parts, control, flags) {
                Err(Errno::INTR | Errno::AGAIN) => {}
                received => break received?,
            }
        };
        if received.bytes == 0 {
            return Err(WireError::Ended);
        }
        if received.flags.contains(ReturnFlags::TRUNC) {
            return Err(WireError::Unexpected("a packet that is too long".to_owned()));
        }
        if received.flags.contains(ReturnFlags::CTRUNC) {
            let what = "more descriptors than the packet has".to_owned();
            return Err(WireError::Unexpected(what));
        }
        Message::parse(&bytes[..received.bytes])
    }

    /// Whether the other process has said something, or does within that time; so too if it has ended.
    pub(super) fn has_message(&self, limit: Duration) -> bool {
        !matches!(self.wait(PollFlags::IN, Deadline::within(limit)), Err(WireError::Silent))
    }

    /// From now on the other process can say nothing more; what it has said can still be received.
    pub(super) fn shut_down_receive(&self) -> Result<(), WireError> {
        Ok(shutdown(&self.fd, Shutdown::Read)?)
    }

    /// Waits until the connection is ready for that, but no longer than until then.
    fn wait(&self, ready: PollFlags, until: Deadline) -> Result<(), WireError> {
        loop {
            let left = Timespec::try_from(until.left()).expect("limits are short");
            let mut fds = [PollFd::new(&self.fd, ready)];
            match poll(&mut fds, Some(&left)) {
                Ok(0) => return Err(WireError::Silent),
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

impl AsFd for TakeoverConnection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Message {
    /// Understands a packet.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, WireError> {
        serde_json::from_slice(bytes).map_err(WireError::Form)
    }

    /// An error: this was not due.
    pub(super) fn unexpected(&self) -> WireError {
        let what = format!("{self:?}").chars().take(80).collect();
        WireError::Unexpected(what)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_sockets_fit_into_one_packet() {
        let longest = SocketIdentity { device: u64::MAX, inode: u64::MAX };
        let hello = Message::Hello { version: u32::MAX, sockets: vec![longest; SOCKETS_MAX] };
        assert!(serde_json::to_vec(&hello).unwrap().len() <= PACKET_BYTES_MAX);
    }

    #[test]
    fn descriptors_that_are_not_due_are_not_received() {
        let flags = SocketFlags::CLOEXEC;
        let (old, new) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
                .unwrap();
        let (old, new) = (TakeoverConnection::of(old), TakeoverConnection::of(new));
        let until = Deadline::within(Duration::from_secs(60));
        let (mine, theirs) = io::pipe().unwrap();
        new.send(&Message::Proceed, &[theirs.as_fd()], until).unwrap();
        new.send(&Message::Ready, &[], until).unwrap();
        let error = old.receive(until).unwrap_err();
        assert!(matches!(error, WireError::Unexpected(..)), "{error}");
        drop(theirs);
        // Nobody can write to the pipe any more.
        let mut fds = [PollFd::new(&mine, PollFlags::IN)];
        assert_eq!(poll(&mut fds, Some(&MOMENT)).unwrap(), 1);
        assert!(matches!(old.receive(until), Ok(Message::Ready)));
    }
}
