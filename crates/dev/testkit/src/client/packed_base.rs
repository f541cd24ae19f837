//! What `virtio-driver` 0.6.1 lacks for packed rings over vhost-user: it names base 0 (SET_VRING_BASE) although its
//! wrap counters start at 1. A relay between driver and server passes every message on and puts this right.
//!
//! Invariants: nothing else is changed; the relay ends when either side hangs up.
//! Limits: a message is at most `MESSAGE_BYTES_MAX` long and is sent in one piece, as the driver does.

use std::io::{ErrorKind, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use anyhow::{Context, Result, ensure};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

use crate::rawring::message::{request, send_bytes};

/// The base of a packed ring of which nothing was served: slot 0 and wrap counter 1, twice.
const BASE: u32 = 0x8000_8000;
const MESSAGE_BYTES_MAX: usize = 4096;
const HEADER_BYTES: usize = 12;

/// A running relay for one connection.
#[derive(Debug)]
pub(super) struct Relay {
    directory: tempfile::TempDir,
    thread: Option<JoinHandle<Result<()>>>,
}

impl Relay {
    /// Listens for one driver, which is to be connected to this server.
    pub(super) fn start(server: &Path) -> Result<Self> {
        let directory = tempfile::tempdir().context("a directory for the relay")?;
        let listener = UnixListener::bind(directory.path().join("relay")).context("bind")?;
        let server = UnixStream::connect(server)
            .with_context(|| format!("connect to {}", server.display()))?;
        let thread = std::thread::spawn(move || {
            let (driver, _address) = listener.accept().context("accept the driver")?;
            relay(&driver, &server)
        });
        Ok(Self { directory, thread: Some(thread) })
    }

    /// Where the driver connects.
    pub(super) fn socket(&self) -> PathBuf {
        self.directory.path().join("relay")
    }
}

impl Drop for Relay {
    /// The driver has hung up before: it is dropped before its relay.
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            let result = thread.join();
            if !std::thread::panicking() {
                result.expect("the relay does not panic").expect("the relay works");
            }
        }
    }
}

fn relay(driver: &UnixStream, server: &UnixStream) -> Result<()> {
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // How the copy ends is seen by the driver: its answers stop.
            let _end = std::io::copy(&mut &*server, &mut &*driver);
            hang_up(driver);
        });
        let result = forward(driver, server);
        hang_up(server);
        result
    })
}

/// A socket that the other side has left already needs no more.
fn hang_up(stream: &UnixStream) {
    let _left_already = stream.shutdown(Shutdown::Both);
}

/// Passes messages and descriptors on until the driver hangs up.
fn forward(driver: &UnixStream, server: &UnixStream) -> Result<()> {
    let mut bytes = [0; MESSAGE_BYTES_MAX];
    loop {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(64))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut slices = [IoSliceMut::new(&mut bytes)];
        let count = match recvmsg(driver, &mut slices, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Ok(received) => received.bytes,
            Err(error) if error.kind() == ErrorKind::ConnectionReset => 0,
            Err(error) => return Err(error).context("receive from the driver"),
        };
        if count == 0 {
            return Ok(());
        }
        let descriptors: Vec<OwnedFd> = control
            .drain()
            .filter_map(|message| match message {
                RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
                RecvAncillaryMessage::ScmCredentials(_) | _ => None,
            })
            .flatten()
            .collect();
        correct(&mut bytes[..count])?;
        let borrowed: Vec<BorrowedFd<'_>> = descriptors.iter().map(AsFd::as_fd).collect();
        send_bytes(server, &bytes[..count], &borrowed)?;
    }
}

/// Puts the right base into SET_VRING_BASE.
fn correct(mut messages: &mut [u8]) -> Result<()> {
    while !messages.is_empty() {
        ensure!(messages.len() >= HEADER_BYTES, "a message in pieces");
        let word =
            |at: usize| u32::from_le_bytes(messages[at..at + 4].try_into().expect("four bytes"));
        let (code, size) = (word(0), usize::try_from(word(8)).context("size of a message")?);
        let end = HEADER_BYTES + size;
        ensure!(messages.len() >= end, "message {code} in pieces");
        if code == request::SET_VRING_BASE {
            ensure!(word(HEADER_BYTES + 4) == 0, "the driver has learnt what a base is");
            messages[HEADER_BYTES + 4..end].copy_from_slice(&BASE.to_le_bytes());
        }
        messages = &mut messages[end..];
    }
    Ok(())
}
