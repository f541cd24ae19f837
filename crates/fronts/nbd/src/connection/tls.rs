//! TLS below a connection: what is received is decrypted before it is taken, replies are encrypted before they are sent.
//!
//! Where it stands in the life of a request: at its beginning and its end, on the iothread that serves the connection. The
//! handshake is over before.
//!
//! Invariants: bytes are decrypted and encrypted in order. The slot of a reply is free as soon as all of it is encrypted;
//! what is encrypted is sent before anything else is.
//! Limits: [`RECEIVE_BYTES`] that are not decrypted, [`SEND_BYTES`] that are encrypted and not sent.

use std::io::{ErrorKind, Read, Write};
use std::ops::Range;
use std::os::fd::BorrowedFd;

use block::{HostMemory, SourceRequestSlot};
use request_path::{FrontEndContext, StreamEnd, StreamGoal, StreamTransfer};
use rustls::ServerConnection;

use super::memory::MemoryPool;
use super::output::{Output, Reply};
use super::slots::Slots;
use crate::transmission::reply::SHORT_BYTES_MAX;

/// How much is received at once.
const RECEIVE_BYTES: usize = 32 << 10;

/// How much is encrypted at once.
const SEND_BYTES: usize = 128 << 10;

/// The most data of a record.
const RECORD_BYTES: usize = 16 << 10;

/// What a record takes besides its data, and then some.
const OVERHEAD_BYTES: usize = 512;

/// The TLS session of a connection.
#[derive(Debug)]
pub(crate) struct TlsSession {
    session: Box<ServerConnection>,
    received: Received,
    sends: Sends,
    /// Whether the client is told that nothing more comes.
    is_closed: bool,
}

/// What is not decrypted.
#[derive(Debug, Default)]
struct Received {
    memory: Option<HostMemory>,
    bytes: Range<usize>,
    transfer: StreamTransfer,
}

/// What is encrypted.
#[derive(Debug, Default)]
struct Sends {
    memory: Option<HostMemory>,
    /// An empty one, kept for its room.
    transfer: Option<StreamTransfer>,
    /// A send that was cancelled.
    unsent: Option<StreamTransfer>,
    /// A reply of which a part is encrypted, and what is left of it.
    begun: Option<(SourceRequestSlot, Range<usize>)>,
}

impl TlsSession {
    /// A session whose handshake is over.
    pub(crate) fn new(session: ServerConnection) -> Self {
        let sends = Sends { transfer: Some(StreamTransfer::default()), ..Sends::default() };
        Self { session: Box::new(session), received: Received::default(), sends, is_closed: false }
    }

    /// Decrypts into `room`; returns how much, 0 if nothing is there. `None`: the client sends nothing any more.
    pub(crate) fn decrypt(&mut self, room: &mut [u8]) -> Result<Option<usize>, rustls::Error> {
        let mut done = 0;
        loop {
            match self.session.reader().read(&mut room[done..]) {
                Ok(0) if done < room.len() => return Ok((done > 0).then_some(done)),
                Ok(count) => done += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                // It has ended the connection below TLS.
                Err(_ended) => return Ok((done > 0).then_some(done)),
            }
            if done == room.len() || !self.feed()? {
                return Ok(Some(done));
            }
        }
    }

    /// Gives the session some of what was received; whether there was some.
    fn feed(&mut self) -> Result<bool, rustls::Error> {
        let Received { memory: Some(memory), bytes, .. } = &mut self.received else {
            return Ok(false);
        };
        if bytes.start == bytes.end {
            return Ok(false);
        }
        let mut left = &memory[bytes.clone()];
        let before = left.len();
        // It takes no more than it has room for, and reading from memory does not fail.
        let taken = self.session.read_tls(&mut left).unwrap_or(0);
        bytes.start += before - left.len();
        self.session.process_new_packets()?;
        Ok(taken > 0)
    }

    /// Has more received, if all that was is decrypted.
    pub(crate) fn begin_receive(&mut self, port: &mut FrontEndContext<'_>, socket: BorrowedFd<'_>) {
        if self.received.bytes.start < self.received.bytes.end {
            return;
        }
        let memory = self.received.memory.take();
        let memory = memory.unwrap_or_else(|| HostMemory::zeroed(RECEIVE_BYTES));
        let mut transfer = std::mem::take(&mut self.received.transfer);
        self.received.bytes = 0..0;
        transfer.push(memory, 0..RECEIVE_BYTES);
        if let Err(refused) = port.receive(socket, transfer, StreamGoal::Some) {
            self.received(refused);
        }
    }

    /// A receive is over, or was not begun.
    pub(crate) fn received(&mut self, mut transfer: StreamTransfer) -> StreamEnd {
        let (count, end) = (transfer.transferred(), transfer.end());
        self.received.memory = transfer.take_parts().next().map(|(memory, _)| memory);
        self.received.bytes = 0..count;
        self.received.transfer = transfer;
        end
    }

    /// The client has closed the connection below TLS.
    pub(crate) fn ended(&mut self) {
        // Told by no bytes; memory is never out of them.
        let _told = self.session.read_tls(&mut &[][..]);
    }

    /// Encrypts replies and has them sent: what is left of those before first. None is under way.
    pub(crate) fn begin_send(
        &mut self,
        port: &mut FrontEndContext<'_>,
        socket: BorrowedFd<'_>,
        replies: (&mut Output, &mut Slots, &mut MemoryPool),
    ) {
        let transfer = self.sends.unsent.take().or_else(|| self.next(replies));
        let Some(transfer) = transfer else { return };
        self.sends.unsent = port.send(socket, transfer).err();
    }

    /// Encrypts replies, as much as there is room for.
    fn next(
        &mut self,
        (output, slots, pool): (&mut Output, &mut Slots, &mut MemoryPool),
    ) -> Option<StreamTransfer> {
        if !output.has_replies() && self.sends.begun.is_none() && !self.session.wants_write() {
            return None;
        }
        let mut transfer = self.sends.transfer.take()?;
        let memory = self.sends.memory.take();
        let mut memory = memory.unwrap_or_else(|| HostMemory::zeroed(SEND_BYTES));
        let mut used = self.drain(&mut memory);
        while used + RECORD_BYTES + OVERHEAD_BYTES <= SEND_BYTES {
            if !self.encrypt_next(output, slots, pool) {
                break;
            }
            used += self.drain(&mut memory[used..]);
        }
        transfer.push(memory, 0..used);
        Some(transfer)
    }

    /// Takes what is encrypted out of the session.
    fn drain(&mut self, mut room: &mut [u8]) -> usize {
        let before = room.len();
        // What does not fit stays for the next time.
        while self.session.wants_write()
            && self.session.write_tls(&mut room).is_ok_and(|count| count > 0)
        {}
        before - room.len()
    }

    /// Encrypts the next reply, or a record of it; false if there is none.
    fn encrypt_next(
        &mut self,
        output: &mut Output,
        slots: &mut Slots,
        pool: &mut MemoryPool,
    ) -> bool {
        let begun = self.sends.begun.take().map(|(slot, left)| Reply::Long(slot, left));
        match begun.or_else(|| output.pop()) {
            None => return false,
            Some(Reply::Short(slot, error)) => {
                let mut bytes = [0; SHORT_BYTES_MAX];
                let count = slots.get(slot).write_short(&mut bytes, error);
                encrypt(&mut self.session, &bytes[..count]);
                drop(slots.free(slot));
            }
            Some(Reply::Long(slot, left)) => {
                let memory = slots.get(slot).memory.as_mut().expect("its data are in it");
                let end = left.end.min(left.start + RECORD_BYTES);
                let record = &memory.bytes()[left.start..end];
                encrypt(&mut self.session, record);
                if end < left.end {
                    self.sends.begun = Some((slot, end..left.end));
                } else if let Some(memory) = slots.free(slot).memory {
                    pool.give_back(memory.into_memory());
                }
            }
        }
        true
    }

    /// A send is over; what was cancelled is gone on with. Returns how it ended.
    pub(crate) fn sent(&mut self, mut transfer: StreamTransfer) -> StreamEnd {
        let end = transfer.end();
        if end == StreamEnd::Cancelled {
            self.sends.unsent = Some(transfer);
            return end;
        }
        self.sends.memory = transfer.take_parts().next().map(|(memory, _)| memory);
        self.sends.transfer = Some(transfer);
        end
    }

    /// Nobody reads anything any more.
    pub(crate) fn give_up(&mut self, slots: &mut Slots, pool: &mut MemoryPool) {
        if let Some(unsent) = self.sends.unsent.take() {
            self.sends.transfer = Some(unsent);
        }
        if let Some((slot, _)) = self.sends.begun.take() {
            let memory = slots.free(slot).memory;
            memory.into_iter().for_each(|memory| pool.give_back(memory.into_memory()));
        }
    }

    /// Tells the client that nothing more comes, once.
    pub(crate) fn close(&mut self) {
        if !std::mem::replace(&mut self.is_closed, true) {
            self.session.send_close_notify();
        }
    }

    /// Whether the client was told that, and all else.
    pub(crate) fn is_over(&self) -> bool {
        self.is_closed && self.is_sent()
    }

    /// Whether all that is encrypted was sent.
    pub(crate) fn is_sent(&self) -> bool {
        self.sends.transfer.is_some() && !self.session.wants_write()
    }

    /// How much memory it has.
    pub(crate) fn memory_bytes(&self) -> usize {
        [&self.received.memory, &self.sends.memory]
            .into_iter()
            .flatten()
            .map(|memory| memory.len())
            .sum()
    }

    /// Keeps no memory that is not in use.
    pub(crate) fn shrink(&mut self) {
        self.sends.memory = None;
    }

    /// Whether it keeps some.
    pub(crate) fn may_shrink(&self) -> bool {
        self.sends.memory.is_some()
    }
}

fn encrypt(session: &mut ServerConnection, bytes: &[u8]) {
    session.writer().write_all(bytes).expect("what is encrypted is taken out before there is more");
}
