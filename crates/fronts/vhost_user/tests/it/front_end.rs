//! A front end that writes messages byte by byte as the specification lays them out.

use std::io::{IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::thread::JoinHandle;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use vhost_user::{PauseOutcome, SavedSession, SessionControl, SessionError, SessionServer};
use virtio::Features;

use crate::mock::{CONFIG, Mock, split_features};

pub(crate) const GET_FEATURES: u32 = 1;
pub(crate) const SET_FEATURES: u32 = 2;
pub(crate) const SET_OWNER: u32 = 3;
pub(crate) const RESET_OWNER: u32 = 4;
pub(crate) const SET_MEM_TABLE: u32 = 5;
pub(crate) const SET_LOG_BASE: u32 = 6;
pub(crate) const SET_VRING_NUM: u32 = 8;
pub(crate) const SET_VRING_ADDR: u32 = 9;
pub(crate) const SET_VRING_BASE: u32 = 10;
pub(crate) const GET_VRING_BASE: u32 = 11;
pub(crate) const SET_VRING_KICK: u32 = 12;
pub(crate) const SET_VRING_CALL: u32 = 13;
pub(crate) const SET_VRING_ERR: u32 = 14;
pub(crate) const GET_PROTOCOL_FEATURES: u32 = 15;
pub(crate) const SET_PROTOCOL_FEATURES: u32 = 16;
pub(crate) const GET_QUEUE_NUM: u32 = 17;
pub(crate) const SET_VRING_ENABLE: u32 = 18;
pub(crate) const SET_BACKEND_REQ_FD: u32 = 21;
pub(crate) const GET_CONFIG: u32 = 24;
pub(crate) const SET_CONFIG: u32 = 25;
pub(crate) const GET_INFLIGHT_FD: u32 = 31;
pub(crate) const SET_INFLIGHT_FD: u32 = 32;
pub(crate) const RESET_DEVICE: u32 = 34;
pub(crate) const GET_MAX_MEM_SLOTS: u32 = 36;
pub(crate) const ADD_MEM_REG: u32 = 37;
pub(crate) const REM_MEM_REG: u32 = 38;
pub(crate) const CHECK_DEVICE_STATE: u32 = 43;

pub(crate) const PROTOCOL_FEATURES: u64 = 1 << 30;
pub(crate) const LOG_ALL: u64 = 1 << 26;
/// MQ, LOG_SHMFD, REPLY_ACK, BACKEND_REQ, CONFIG, INFLIGHT_SHMFD, RESET_DEVICE, CONFIGURE_MEM_SLOTS.
pub(crate) const ALL_PROTOCOL_FEATURES: u64 =
    1 | 1 << 1 | 1 << 3 | 1 << 5 | 1 << 9 | 1 << 12 | 1 << 13 | 1 << 15;

pub(crate) const NEED_REPLY: u32 = 8;

/// A front end's memory: one region of a memfd.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    pub(crate) guest: u64,
    pub(crate) bytes: u64,
    pub(crate) user: u64,
}

pub(crate) const LOW: Place = Place { guest: 0, bytes: 1 << 20, user: 0x7000_0000 };
pub(crate) const HIGH: Place = Place { guest: 1 << 32, bytes: 1 << 20, user: 0x7100_0000 };

impl Place {
    fn to_bytes(self) -> Vec<u8> {
        words(&[self.guest, self.bytes, self.user, 0])
    }
}

pub(crate) struct FrontEnd {
    pub(crate) stream: UnixStream,
    session: JoinHandle<Result<(), SessionError>>,
    pub(crate) mock: Mock,
    pub(crate) kick: OwnedFd,
}

pub(crate) fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// A vring index and a number.
pub(crate) fn state(queue: u32, number: u32) -> Vec<u8> {
    [queue.to_le_bytes(), number.to_le_bytes()].concat()
}

/// A descriptor as for kicks and interrupts.
pub(crate) fn event() -> OwnedFd {
    let flags = rustix::event::EventfdFlags::CLOEXEC;
    rustix::event::eventfd(0, flags).expect("an eventfd")
}

pub(crate) fn memfd(bytes: u64) -> OwnedFd {
    let fd = memfd_create("front-end", MemfdFlags::CLOEXEC).expect("memory is available");
    ftruncate(&fd, bytes).expect("the file may grow");
    fd
}

/// A [`SessionControl`] that never asks for anything.
struct NoSessionControl;

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

impl FrontEnd {
    /// Connected to a session that nothing was said to.
    pub(crate) fn new() -> Self {
        Self::on(&Mock::default())
    }

    pub(crate) fn on(mock: &Mock) -> Self {
        Self::served(mock, |stream, device| {
            SessionServer::new(stream, device)?.run(&NoSessionControl).map(|_end| ())
        })
    }

    /// Connected to a session that is served like this.
    pub(crate) fn served(
        mock: &Mock,
        serve: impl FnOnce(UnixStream, Mock) -> Result<(), SessionError> + Send + 'static,
    ) -> Self {
        let (stream, other) = UnixStream::pair().expect("sockets are available");
        let device = mock.clone();
        Self {
            stream,
            session: std::thread::spawn(move || serve(other, device)),
            mock: mock.clone(),
            kick: event(),
        }
    }

    /// Connected and agreed on all features but packed rings.
    pub(crate) fn negotiated() -> Self {
        Self::new().negotiate()
    }

    pub(crate) fn negotiate(self) -> Self {
        self.choose(split_features())
    }

    /// Connected and agreed on all features.
    pub(crate) fn packed() -> Self {
        Self::new().choose(CONFIG.features())
    }

    fn choose(mut self, features: Features) -> Self {
        self.ask(GET_FEATURES, &[]);
        self.ask(GET_PROTOCOL_FEATURES, &[]);
        self.send(SET_PROTOCOL_FEATURES, &words(&[ALL_PROTOCOL_FEATURES]));
        self.done(SET_OWNER, &[]);
        self.done(SET_FEATURES, &words(&[features.0 | PROTOCOL_FEATURES]));
        self
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("the session listens");
    }

    fn message(&mut self, code: u32, flags: u32, payload: &[u8], fds: &[BorrowedFd<'_>]) {
        let bytes = u32::try_from(payload.len()).expect("messages are small");
        let mut message = [code, 1 | flags, bytes].map(u32::to_le_bytes).concat();
        message.extend(payload);
        self.raw_with(&message, fds);
    }

    /// Bytes, whatever they are, in one piece with descriptors.
    pub(crate) fn raw_with(&mut self, message: &[u8], fds: &[BorrowedFd<'_>]) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(33))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            assert!(ancillary.push(SendAncillaryMessage::ScmRights(fds)));
        }
        let slices = [IoSlice::new(message)];
        let flags = SendFlags::NOSIGNAL;
        let sent = sendmsg(&self.stream, &slices, &mut ancillary, flags);
        // A session that has ended does not take it; the test sees that by the answer.
        if let Ok(sent) = sent {
            assert_eq!(sent, message.len());
        }
    }

    /// A message without an answer.
    pub(crate) fn send(&mut self, code: u32, payload: &[u8]) {
        self.message(code, 0, payload, &[]);
    }

    /// A message whose answer is its code's own.
    pub(crate) fn ask(&mut self, code: u32, payload: &[u8]) -> Vec<u8> {
        self.send(code, payload);
        self.answer().expect("the session answers")
    }

    /// A message that must be carried out (REPLY_ACK).
    #[track_caller]
    pub(crate) fn done(&mut self, code: u32, payload: &[u8]) {
        self.done_with(code, payload, &[]);
    }

    #[track_caller]
    pub(crate) fn done_with(&mut self, code: u32, payload: &[u8], fds: &[BorrowedFd<'_>]) {
        self.message(code, NEED_REPLY, payload, fds);
        let answer = self.answer();
        assert_eq!(answer, Some(words(&[0])), "message {code}");
    }

    pub(crate) fn send_with(&mut self, code: u32, payload: &[u8], fds: &[BorrowedFd<'_>]) {
        self.message(code, 0, payload, fds);
    }

    /// The payload of the next message of the session; `None` if it has ended.
    pub(crate) fn answer(&mut self) -> Option<Vec<u8>> {
        let mut header = [0; 12];
        self.stream.read_exact(&mut header).ok()?;
        let [.., b0, b1, b2, b3] = header;
        let mut payload = vec![0; u32::from_le_bytes([b0, b1, b2, b3]) as usize];
        self.stream.read_exact(&mut payload).ok()?;
        Some(payload)
    }

    /// A message whose answer is its code's own and brings a descriptor.
    pub(crate) fn ask_fd(&mut self, code: u32, payload: &[u8]) -> (Vec<u8>, OwnedFd) {
        self.send(code, payload);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut header = [0; 12];
        let mut slices = [IoSliceMut::new(&mut header)];
        let flags = RecvFlags::WAITALL | RecvFlags::CMSG_CLOEXEC;
        let received = recvmsg(&self.stream, &mut slices, &mut ancillary, flags);
        assert_eq!(received.expect("the session answers").bytes, header.len());
        let mut fds = Vec::new();
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                fds.extend(rights);
            }
        }
        let fd = fds.pop().expect("a descriptor comes with the answer");
        let [.., b0, b1, b2, b3] = header;
        let mut payload = vec![0; u32::from_le_bytes([b0, b1, b2, b3]) as usize];
        self.stream.read_exact(&mut payload).expect("the payload follows");
        (payload, fd)
    }

    /// Leaves and returns how the session ended.
    pub(crate) fn leave(self) -> Result<(), SessionError> {
        drop(self.stream);
        self.session.join().expect("the session does not panic")
    }

    /// The sentence with which the session ended, and those of its causes.
    #[track_caller]
    pub(crate) fn refused(mut self, expected: &str) {
        while self.answer().is_some() {}
        let mut error: &dyn std::error::Error =
            &self.leave().expect_err("the session ended with a refusal");
        let mut sentences = error.to_string();
        while let Some(source) = error.source() {
            error = source;
            sentences = format!("{sentences}: {error}");
        }
        assert_eq!(sentences, expected);
    }

    #[track_caller]
    pub(crate) fn set_memory(&mut self, places: &[Place]) {
        let files: Vec<OwnedFd> = places.iter().map(|place| memfd(place.bytes)).collect();
        let fds: Vec<BorrowedFd<'_>> = files.iter().map(AsFd::as_fd).collect();
        let count = u32::try_from(places.len()).expect("few regions");
        let mut payload = state(count, 0);
        payload.extend(places.iter().flat_map(|place| place.to_bytes()));
        self.done_with(SET_MEM_TABLE, &payload, &fds);
    }

    #[track_caller]
    pub(crate) fn add_memory(&mut self, place: Place) {
        let file = memfd(place.bytes);
        let payload = [words(&[0]), place.to_bytes()].concat();
        self.done_with(ADD_MEM_REG, &payload, &[file.as_fd()]);
    }

    #[track_caller]
    pub(crate) fn remove_memory(&mut self, place: Place) {
        let payload = [words(&[0]), place.to_bytes()].concat();
        self.done(REM_MEM_REG, &payload);
    }

    /// Size, place and base of a ring of 128 at `user`.
    #[track_caller]
    pub(crate) fn describe(&mut self, queue: u32, user: u64, base: u32) {
        self.done(SET_VRING_NUM, &state(queue, 128));
        self.done(SET_VRING_BASE, &state(queue, base));
        self.done(SET_VRING_ADDR, &addresses(queue, user));
    }

    #[track_caller]
    pub(crate) fn kick_off(&mut self, queue: u64) {
        let kick = self.kick.try_clone().expect("descriptors are available");
        self.done_with(SET_VRING_KICK, &words(&[queue]), &[kick.as_fd()]);
    }

    #[track_caller]
    pub(crate) fn enable(&mut self, queue: u32, on: u32) {
        self.done(SET_VRING_ENABLE, &state(queue, on));
    }

    /// Everything that makes a ring being served, in QEMU's order, in memory `LOW`.
    #[track_caller]
    pub(crate) fn start(&mut self, queue: u32, base: u32) {
        self.describe(queue, LOW.user, base);
        self.kick_off(queue.into());
        self.enable(queue, 1);
    }

    #[track_caller]
    pub(crate) fn base(&mut self, queue: u32) -> u32 {
        let answer = self.ask(GET_VRING_BASE, &state(queue, 0));
        let bytes = answer[4..].try_into().expect("a state has eight bytes");
        u32::from_le_bytes(bytes)
    }
}

/// The payload of SET_VRING_ADDR for a ring at `user`: queue, flags, descriptors, used, available,
/// log.
pub(crate) fn addresses(queue: u32, user: u64) -> Vec<u8> {
    let mut payload = state(queue, 0);
    payload.extend(words(&[user, user + 0x2000, user + 0x1000, 0]));
    payload
}
