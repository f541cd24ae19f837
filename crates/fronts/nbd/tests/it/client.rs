//! A client of our own: sends whatever it is told to, and reads replies of all styles.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use nbd::HeaderStyle;
use nbd::wire::{chunk, chunk_flag, command, reply_magic, request};
use rustls::{ClientConnection, Stream};

/// A request as it is sent.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Ask {
    pub(crate) command: u16,
    pub(crate) flags: u16,
    pub(crate) offset: u64,
    pub(crate) length: u64,
}

/// All of the reply to a request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) cookie: u64,
    pub(crate) error: u32,
    pub(crate) data: Vec<u8>,
    /// Whether the server did not send the data, because they are zero.
    pub(crate) is_hole: bool,
    /// By context: lengths and flags.
    pub(crate) status: Vec<(u32, Vec<(u64, u64)>)>,
}

/// The client's end of a connection.
pub(crate) struct Client {
    pub(crate) socket: UnixStream,
    tls: Option<ClientConnection>,
    style: HeaderStyle,
    cookie: u64,
    open: HashMap<u64, Ask>,
}

impl Client {
    pub(crate) fn new(socket: UnixStream, style: HeaderStyle) -> Self {
        socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        Self { socket, tls: None, style, cookie: 0x0102_0304_0506_0000, open: HashMap::new() }
    }

    /// Whose handshake is over.
    pub(crate) fn with_tls(socket: UnixStream, style: HeaderStyle, tls: ClientConnection) -> Self {
        Self { tls: Some(tls), ..Self::new(socket, style) }
    }

    /// Sends bytes, whatever they are.
    pub(crate) fn put(&mut self, bytes: &[u8]) {
        match &mut self.tls {
            Some(tls) => {
                let mut stream = Stream::new(tls, &mut self.socket);
                stream.write_all(bytes).unwrap();
                stream.flush().unwrap();
            }
            None => self.socket.write_all(bytes).unwrap(),
        }
    }

    fn fill(&mut self, bytes: &mut [u8]) {
        match &mut self.tls {
            Some(tls) => Stream::new(tls, &mut self.socket).read_exact(bytes).unwrap(),
            None => self.socket.read_exact(bytes).unwrap(),
        }
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.open.len()
    }

    /// The bytes of a request, with a cookie of its own.
    pub(crate) fn bytes(&mut self, ask: Ask, payload: &[u8]) -> (u64, Vec<u8>) {
        self.cookie += 1;
        let Ask { command, flags, offset, length } = ask;
        let is_long = self.style == HeaderStyle::Extended;
        let magic = if is_long { request::EXTENDED_MAGIC } else { request::MAGIC };
        let mut bytes = magic.to_be_bytes().to_vec();
        bytes.extend(flags.to_be_bytes());
        bytes.extend(command.to_be_bytes());
        bytes.extend(self.cookie.to_be_bytes());
        bytes.extend(offset.to_be_bytes());
        if is_long {
            bytes.extend(length.to_be_bytes());
        } else {
            bytes.extend(u32::try_from(length).unwrap().to_be_bytes());
        }
        bytes.extend(payload);
        self.open.insert(self.cookie, ask);
        (self.cookie, bytes)
    }

    pub(crate) fn send(&mut self, ask: Ask, payload: &[u8]) -> u64 {
        let (cookie, bytes) = self.bytes(ask, payload);
        self.put(&bytes);
        cookie
    }

    pub(crate) fn read(&mut self, offset: u64, length: u64) -> u64 {
        self.send(Ask { command: command::READ, offset, length, flags: 0 }, &[])
    }

    pub(crate) fn write(&mut self, offset: u64, data: &[u8], flags: u16) -> u64 {
        let long = if self.style == HeaderStyle::Extended {
            nbd::wire::command_flag::PAYLOAD_LEN
        } else {
            0
        };
        let length = data.len() as u64;
        self.send(Ask { command: command::WRITE, offset, length, flags: flags | long }, data)
    }

    /// Sends a request and waits for its reply, while no other is open.
    pub(crate) fn ask(&mut self, ask: Ask, payload: &[u8]) -> Answer {
        let cookie = self.send(ask, payload);
        let answer = self.answer();
        assert_eq!(answer.cookie, cookie);
        answer
    }

    fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        self.fill(&mut bytes);
        bytes
    }

    fn u32(&mut self) -> u32 {
        u32::from_be_bytes(self.array())
    }

    fn u64(&mut self) -> u64 {
        u64::from_be_bytes(self.array())
    }

    fn data(&mut self, count: u64) -> Vec<u8> {
        let mut data = vec![0; usize::try_from(count).unwrap()];
        self.fill(&mut data);
        data
    }

    /// Waits for the end of the reply to some request.
    pub(crate) fn answer(&mut self) -> Answer {
        loop {
            let magic = self.u32();
            if magic == reply_magic::SIMPLE {
                return self.simple();
            }
            if let Some(answer) = self.chunk(magic) {
                return answer;
            }
        }
    }

    fn simple(&mut self) -> Answer {
        assert_ne!(self.style, HeaderStyle::Extended);
        let (error, cookie) = (self.u32(), self.u64());
        let ask = self.open.remove(&cookie).expect("a reply to an open request");
        let is_read = ask.command == command::READ;
        assert!(!is_read || self.style == HeaderStyle::Simple, "reads have structured replies");
        let count = if is_read && error == 0 { ask.length } else { 0 };
        Answer { cookie, error, data: self.data(count), ..Answer::default() }
    }

    /// A chunk; the whole answer if it is the last one.
    fn chunk(&mut self, magic: u32) -> Option<Answer> {
        let is_long = self.style == HeaderStyle::Extended;
        let expected = if is_long { reply_magic::EXTENDED } else { reply_magic::STRUCTURED };
        assert_eq!((magic, self.style != HeaderStyle::Simple), (expected, true));
        let [flags, kind] = [(); 2].map(|()| u16::from_be_bytes(self.array()));
        let cookie = self.u64();
        let ask = *self.open.get(&cookie).expect("a reply to an open request");
        if is_long {
            assert_eq!(self.u64(), ask.offset);
        }
        let length = if is_long { self.u64() } else { self.u32().into() };
        let mut answer = Answer { cookie, ..Answer::default() };
        match kind {
            chunk::NONE => assert_eq!(length, 0),
            chunk::OFFSET_DATA => {
                assert_eq!((self.u64(), length - 8), (ask.offset, ask.length));
                answer.data = self.data(length - 8);
            }
            chunk::OFFSET_HOLE => {
                assert_eq!((self.u64(), length), (ask.offset, 12));
                let count = self.u32();
                assert_eq!(u64::from(count), ask.length);
                (answer.data, answer.is_hole) = (vec![0; count as usize], true);
            }
            chunk::ERROR => {
                answer.error = self.u32();
                let count = u16::from_be_bytes(self.array());
                assert_eq!(u64::from(count) + 6, length);
                assert!(!String::from_utf8(self.data(count.into())).unwrap().is_empty());
            }
            chunk::BLOCK_STATUS => {
                assert!(!is_long);
                let id = self.u32();
                let extents = (0..(length - 4) / 8).map(|_| (self.u32().into(), self.u32().into()));
                answer.status.push((id, extents.collect()));
            }
            chunk::BLOCK_STATUS_EXT => {
                assert!(is_long);
                let (id, count) = (self.u32(), self.u32());
                assert_eq!(length, 8 + u64::from(count) * 16);
                let extents = (0..count).map(|_| (self.u64(), self.u64()));
                answer.status.push((id, extents.collect()));
            }
            kind => panic!("a chunk of type {kind}"),
        }
        if flags & chunk_flag::DONE == 0 {
            // Nobody puts chunks of other replies between those of a status.
            let magic = self.u32();
            let mut rest = self.chunk(magic)?;
            answer.status.append(&mut rest.status);
            return Some(answer);
        }
        self.open.remove(&cookie);
        Some(answer)
    }
}
