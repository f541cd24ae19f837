//! A connection to a server: its socket, the TLS session on it, what was received and not read, what is to be sent.
//!
//! Where it stands in the life of a request: below requests and replies, on the iothread that uses the connection.
//!
//! Invariants: no call waits. What is shut is not used again. Limits: [`INPUT_BYTES`] that are not read,
//! [`OUTPUT_BYTES`] that are not sent, and once as much in a TLS session.

use std::io::{self, ErrorKind, Read, Write};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown, recv, send, shutdown};
use rustls::ClientConnection;

/// The bytes that are received at once; more than whatever has to lie in one piece.
const INPUT_BYTES: usize = 128 << 10;

/// Requests are added while so many bytes are not sent at most.
const OUTPUT_BYTES: usize = 128 << 10;

/// How much of its room an output keeps that has been sent.
const ROOM_KEPT: usize = 2 * OUTPUT_BYTES;

/// A connection cannot be used any more.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LinkError {
    /// The server has closed it.
    #[error("the server has closed the connection")]
    Closed,
    /// The kernel says why.
    #[error("the connection has failed")]
    Socket(#[source] Errno),
    /// TLS says why.
    #[error("TLS has failed")]
    Tls(#[source] rustls::Error),
}

/// A connection behind its handshake.
#[derive(Debug)]
pub(crate) struct Link {
    socket: Arc<OwnedFd>,
    tls: Option<Box<ClientConnection>>,
    input: Vec<u8>,
    unread: Range<usize>,
    output: Vec<u8>,
    sent: usize,
    is_blocked: bool,
}

/// Sends and receives without waiting.
#[derive(Debug)]
struct Socket<'a>(&'a OwnedFd);

impl Read for Socket<'_> {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        Ok(receive(self.0, room)?)
    }
}

impl Write for Socket<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(transmit(self.0, bytes)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Receives what is there.
pub(crate) fn receive(socket: &OwnedFd, room: &mut [u8]) -> Result<usize, Errno> {
    loop {
        match recv(socket, &mut *room, RecvFlags::DONTWAIT) {
            Ok((count, _)) => return Ok(count),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

/// Sends what there is room for.
pub(crate) fn transmit(socket: &OwnedFd, bytes: &[u8]) -> Result<usize, Errno> {
    loop {
        match send(socket, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Err(Errno::INTR) => {}
            other => return other,
        }
    }
}

impl Link {
    /// A connection whose handshake is over.
    pub(crate) fn new(socket: OwnedFd, tls: Option<Box<ClientConnection>>) -> Self {
        let (input, output) = (Vec::new(), Vec::new());
        let (sent, is_blocked) = (0, false);
        Self { socket: Arc::new(socket), tls, input, unread: 0..0, output, sent, is_blocked }
    }

    /// What is watched for more.
    pub(crate) fn socket(&self) -> &Arc<OwnedFd> {
        &self.socket
    }

    /// What was received and not read.
    pub(crate) fn unread(&self) -> &[u8] {
        &self.input[self.unread.clone()]
    }

    /// So much of that was read.
    pub(crate) fn consume(&mut self, count: usize) {
        self.unread.start += count;
    }

    /// Receives more behind what is not read; returns how much, 0 if nothing is there.
    pub(crate) fn receive(&mut self) -> Result<usize, LinkError> {
        if self.input.is_empty() {
            self.input = vec![0; INPUT_BYTES];
        }
        let left = self.unread.len();
        self.input.copy_within(self.unread.clone(), 0);
        self.unread = 0..left;
        let room = &mut self.input[left..];
        let received = match &mut self.tls {
            None => match receive(&self.socket, room) {
                Ok(0) => return Err(LinkError::Closed),
                other => other.map_err(LinkError::Socket),
            },
            Some(tls) => receive_tls(tls, &self.socket, room),
        };
        match received {
            Ok(count) => {
                self.unread.end += count;
                Ok(count)
            }
            Err(LinkError::Socket(Errno::AGAIN)) => Ok(0),
            Err(error) => Err(error),
        }
    }

    /// Where requests are added.
    pub(crate) fn output(&mut self) -> &mut Vec<u8> {
        &mut self.output
    }

    /// How much may be added to the output now.
    pub(crate) fn room(&self) -> usize {
        OUTPUT_BYTES.saturating_sub(self.output.len() - self.sent)
    }

    /// Sends what there is, as far as there is room.
    pub(crate) fn transmit(&mut self) -> Result<(), LinkError> {
        self.is_blocked = false;
        loop {
            let moved = match &mut self.tls {
                None if self.sent == self.output.len() => break,
                None => transmit(&self.socket, &self.output[self.sent..]).inspect(|count| {
                    self.sent += *count;
                }),
                Some(tls) => {
                    let taken = tls.writer().write(&self.output[self.sent..]);
                    // Into memory, as much as it has room for.
                    self.sent += taken.unwrap_or(0);
                    if !tls.wants_write() {
                        break;
                    }
                    let sent = tls.write_tls(&mut Socket(&self.socket));
                    sent.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
                }
            };
            match moved {
                Ok(_) => {}
                Err(Errno::AGAIN) => {
                    self.is_blocked = true;
                    break;
                }
                Err(errno) => return Err(LinkError::Socket(errno)),
            }
        }
        if self.sent == self.output.len() {
            self.output.clear();
            self.output.shrink_to(ROOM_KEPT);
            self.sent = 0;
        }
        Ok(())
    }

    /// Whether something waits until the server takes more.
    pub(crate) fn is_blocked(&self) -> bool {
        self.is_blocked
    }

    /// Whether nothing is under way in either direction.
    pub(crate) fn is_quiet(&self) -> bool {
        let encrypts = self.tls.as_ref().is_some_and(|tls| tls.wants_write());
        self.unread.is_empty() && self.sent == self.output.len() && !encrypts
    }

    /// Whether the server is still there, as far as that can be seen, and says nothing that nobody asked for.
    pub(crate) fn is_alive(&self) -> bool {
        let mut byte = [0; 1];
        let peeked = recv(&*self.socket, &mut byte, RecvFlags::DONTWAIT | RecvFlags::PEEK);
        // What a TLS session has to say besides data is left for it.
        match peeked {
            Ok((count, _)) => count > 0 && self.tls.is_some(),
            Err(errno) => errno == Errno::AGAIN,
        }
    }

    /// Nothing that was not sent by now is sent, and the server hears nothing more from here.
    pub(crate) fn shut(&self) {
        // It may have failed already.
        let _failed = shutdown(&*self.socket, Shutdown::Both);
    }

    /// Says goodbye with these bytes, as far as that needs no waiting.
    pub(crate) fn leave(&mut self, farewell: &[u8]) {
        self.output.extend(farewell);
        if let (Ok(()), Some(tls)) = (self.transmit(), &mut self.tls) {
            tls.send_close_notify();
            // Who does not hear it hears the end of the connection.
            drop(tls.write_tls(&mut Socket(&self.socket)));
        }
        self.shut();
    }
}

fn receive_tls(
    tls: &mut ClientConnection,
    socket: &OwnedFd,
    room: &mut [u8],
) -> Result<usize, LinkError> {
    let mut is_closed = false;
    loop {
        match tls.reader().read(room) {
            Ok(0) => return Err(LinkError::Closed),
            Ok(count) => return Ok(count),
            Err(error) if error.kind() == ErrorKind::WouldBlock && !is_closed => {}
            Err(_ended) => return Err(LinkError::Closed),
        }
        match tls.read_tls(&mut Socket(socket)) {
            Ok(count) => is_closed = count == 0,
            Err(error) => {
                return Err(LinkError::Socket(Errno::from_io_error(&error).unwrap_or(Errno::IO)));
            }
        }
        tls.process_new_packets().map_err(LinkError::Tls)?;
    }
}
