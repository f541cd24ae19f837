//! A connection in the transmission phase as a front end.
//!
//! Where it stands in the life of a request: at its beginning and its end. Requests of all that was received are brought
//! in one batch; replies of a turn go into one send.
//!
//! Invariants: a slot is used from the header of its request until its reply was sent. What was received as a whole is
//! carried out, whatever becomes of the connection. Nothing is taken behind `NBD_CMD_DISC`.
//! Threads: belongs to the iothread that serves it, and travels with its requests.
//! Limits: [`SLOTS`] requests, [`MEMORY_BYTES_MAX`](memory::MEMORY_BYTES_MAX) of memory for their data, and what
//! [`input`] receives ahead; of an idle connection none of it is kept for longer than [`IDLE_TIME`] twice.
//! Long because a turn has receiving, answering and sending in one state.
//! Not here: the handshake ([`crate::Negotiation`]), the end of a connection (its owner, who is told by [`ConnectionEnd`]).

mod idle;
mod input;
mod memory;
mod output;
mod requests;
mod slots;
mod tls;

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::{fmt, io};

use bitmaps::BusyBitmap;
use block::{
    Buffers, ByteCount, Capacity, DiskSize, Durability, HostMemory, Outcome, SECTOR_BYTES,
    SourceRequestSlot, is_zero,
};
use request_path::{
    FrontEnd, FrontEndContext, Interest, LogicalUnitIndex, NewRequest, SleepDecision,
    StreamDirection, StreamEnd, StreamTransfer,
};
use rustix::event::{EventfdFlags, eventfd};
use rustix::net::{Shutdown, shutdown};
use rustls::ServerConnection;

use self::idle::IdleWatch;
use self::input::{Expected, Input};
use self::memory::{HEAD_BYTES, MemoryPool};
use self::output::Output;
use self::slots::{SLOTS, SlotWork, Slots};
use self::tls::TlsSession;
use rustix::io::Errno;

use crate::transmission::request::{RequestHeader, RequestRules, error_of};
use crate::wire::error;
use crate::{ConnectionEnd, HeaderStyle, LostConnection, ProtocolFault, TransmissionSettings};

/// The one disk of a connection.
const DISK: LogicalUnitIndex = LogicalUnitIndex(0);

/// What a connection is made of.
#[derive(Debug)]
pub struct NbdConnectionSetup {
    /// The server's end: a stream socket, in whatever mode.
    pub socket: OwnedFd,
    /// What was agreed on.
    pub settings: TransmissionSettings,
    /// What the client has sent behind the handshake.
    pub received: Vec<u8>,
    /// How large the disk is.
    pub size: Arc<Capacity>,
    /// When changes are durable that do not ask for more; with [`Durability::Stable`] all are written through.
    pub durability: Durability,
    /// What is between the socket and the protocol.
    pub transport: NbdTransport,
    /// The bitmaps that the export shows, in the order of its offer.
    pub bitmaps: Arc<[BusyBitmap]>,
}

/// What is between the socket of a connection and the protocol.
#[derive(Debug)]
pub enum NbdTransport {
    /// Nothing.
    Plain,
    /// TLS whose handshake is over. What was received of it and not given to the session is lost, so nothing must be left
    /// of that; what the session has and nobody has read, or has to send, is no matter.
    Tls(Box<ServerConnection>),
}

/// A connection in the transmission phase as a front end.
pub struct NbdConnection {
    socket: OwnedFd,
    /// Nobody rings it: what comes, comes by the socket.
    kick: OwnedFd,
    rules: RequestRules,
    /// The size that the client knows.
    told: DiskSize,
    size: Arc<Capacity>,
    slots: Slots,
    pool: MemoryPool,
    input: Input,
    output: Output,
    /// Below those two, if the connection has it.
    tls: Option<TlsSession>,
    bitmaps: Arc<[BusyBitmap]>,
    /// What was wrong with what was received.
    fault: Option<ProtocolFault>,
    /// Requests whose next step is due.
    again: VecDeque<SourceRequestSlot>,
    phase: ConnectionPhase,
    /// Whether nobody reads replies any more.
    is_unread: bool,
    /// Whether a request waits for a slot or memory.
    is_full: bool,
    /// Whether new requests are refused because the server ends.
    is_ending: bool,
    memory: Buffers,
    refused: RefusedRequest,
    idle: IdleWatch,
}

/// How far a connection has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ConnectionPhase {
    /// Requests are taken.
    Open,
    /// The client has said that it leaves.
    Leaving,
    /// The client sends nothing any more and did not say that it leaves.
    Closed(LostConnection),
    /// Nobody reads replies any more.
    Gone(LostConnection),
    /// The client has sent what is no request.
    Broken,
}

impl fmt::Debug for NbdConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NbdConnection").field("phase", &self.phase).finish_non_exhaustive()
    }
}

impl NbdConnection {
    /// A connection that is not served yet. Fails if no eventfd can be made.
    pub fn new(setup: NbdConnectionSetup) -> io::Result<Self> {
        let NbdConnectionSetup { socket, settings, received, size, durability, transport, bitmaps } =
            setup;
        let rules = RequestRules {
            style: settings.style,
            size: usable(settings.size, &size),
            access: settings.access,
            contexts: settings.contexts,
            block: settings.block_sizes.minimum().into(),
            payload_max: settings.block_sizes.maximum().into(),
            durability,
        };
        Ok(Self {
            socket,
            kick: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            rules,
            told: settings.size,
            size,
            slots: Slots::default(),
            pool: MemoryPool::default(),
            input: Input::new(&received),
            output: Output::default(),
            tls: match transport {
                NbdTransport::Plain => None,
                NbdTransport::Tls(session) => Some(TlsSession::new(*session)),
            },
            bitmaps,
            fault: None,
            again: VecDeque::new(),
            phase: ConnectionPhase::Open,
            is_unread: false,
            is_full: false,
            is_ending: false,
            memory: Buffers::default(),
            refused: RefusedRequest::default(),
            idle: IdleWatch::default(),
        })
    }

    /// From now on each new request is refused with `NBD_ESHUTDOWN`, upon which a client leaves. Those that are being
    /// carried out go on.
    pub fn refuse_new(&mut self) {
        self.is_ending = true;
    }

    /// Whether all that was taken from the client was answered, and all answers were sent. Of a connection that was
    /// stopped for good this says whether its client misses something.
    pub fn is_settled(&self) -> bool {
        self.slots.used() == 0 && self.tls.as_ref().is_none_or(TlsSession::is_sent)
    }

    /// How much memory it has for what is received and for data of requests, in use or kept.
    pub fn memory_bytes(&self) -> usize {
        let tls = self.tls.as_ref().map_or(0, TlsSession::memory_bytes);
        self.pool.bytes() + self.input.room() + self.output.memory_bytes() + tls
    }

    /// Takes the next request whose work can begin; `None` if there is none.
    fn next(&mut self) -> Result<Option<SourceRequestSlot>, ConnectionEnd> {
        if let Some(slot) = self.again.pop_front() {
            return Ok(Some(slot));
        }
        loop {
            let found = match self.input.expected {
                Expected::Header => match self.next_header()? {
                    Some(found) => found,
                    None if self.is_full || !self.decrypt() => return Ok(None),
                    None => continue,
                },
                Expected::Payload { slot, .. } => {
                    let memory = self.slots.get(slot).memory.as_mut();
                    if !self.input.fill(memory, HEAD_BYTES) {
                        if self.decrypt() {
                            continue;
                        }
                        return Ok(None);
                    }
                    self.input.expected = Expected::Header;
                    self.filter(slot)
                }
                Expected::Refused { slot, .. } => {
                    if !self.input.fill(None, 0) {
                        if self.decrypt() {
                            continue;
                        }
                        return Ok(None);
                    }
                    self.input.expected = Expected::Header;
                    return Ok(Some(slot));
                }
            };
            if let requests::Taken::Whole(slot) = found {
                return Ok(Some(slot));
            }
        }
    }

    /// Whether the header of a request may be taken, and is there.
    fn has_header(&self) -> bool {
        self.phase_takes()
            && !self.is_full
            && self.input.bytes().len() >= RequestHeader::bytes(self.rules.style)
    }

    fn phase_takes(&self) -> bool {
        match self.phase {
            ConnectionPhase::Open | ConnectionPhase::Closed(_) => true,
            ConnectionPhase::Leaving | ConnectionPhase::Gone(_) | ConnectionPhase::Broken => false,
        }
    }

    /// A request was answered: its reply is due, or its next step.
    fn answered(&mut self, slot: SourceRequestSlot, outcome: Outcome) {
        let request = self.slots.get(slot);
        request.memory.iter_mut().for_each(|memory| memory.take_back());
        let error = match (outcome, request.work) {
            (_, SlotWork::Refused(refusal)) => refusal.error,
            (Outcome::Failed(kind), _) => error_of(kind, request.command),
            (Outcome::Done, _) => error::NONE,
        };
        if self.is_unread {
            return self.free(slot);
        }
        if error == error::NONE {
            match (request.work, &mut request.memory) {
                (SlotWork::Steps(steps), _) if !steps.are_over() => {
                    return self.again.push_back(slot);
                }
                (SlotWork::Read(window), Some(memory)) => {
                    let skip = usize::try_from(window.skip).expect("less than a sector");
                    let count = usize::try_from(window.count).expect("it is in memory");
                    let data = HEAD_BYTES + skip;
                    if request.to.style != HeaderStyle::Simple
                        && is_zero(&memory.bytes()[data..data + count])
                    {
                        let count = u32::try_from(window.count).expect("below the bound on data");
                        request.work = SlotWork::ZeroRead(count);
                        return self.reply_short(slot, error);
                    }
                    let from = request.to.write_data_header(memory.bytes(), data, window.count);
                    return self.output.push_long(slot, from..data + count);
                }
                (SlotWork::Status(question), Some(memory)) => {
                    let reply =
                        request.to.of_status(&question, &self.bitmaps, memory.bytes(), HEAD_BYTES);
                    return self.output.push_long(slot, reply);
                }
                _ => {}
            }
        }
        self.reply_short(slot, error);
    }

    /// A reply without data is due.
    fn reply_short(&mut self, slot: SourceRequestSlot, error: u32) {
        let memory = self.slots.get(slot).memory.take();
        memory.into_iter().for_each(|memory| self.give_back(memory.into_memory()));
        self.output.push_short(slot, error);
    }

    fn give_back(&mut self, memory: HostMemory) {
        self.pool.give_back(memory);
        self.is_full = false;
    }

    /// A request is over to which there is no reply.
    fn free(&mut self, slot: SourceRequestSlot) {
        let memory = self.slots.free(slot).memory;
        memory.into_iter().for_each(|memory| self.pool.give_back(memory.into_memory()));
        self.is_full = false;
    }

    /// The connection has failed: nobody reads replies any more, and nothing more comes.
    fn give_up(&mut self, lost: LostConnection) {
        match self.phase {
            ConnectionPhase::Open | ConnectionPhase::Closed(_) => {
                self.phase = ConnectionPhase::Gone(lost);
            }
            // Who leaves need not wait for its answers.
            ConnectionPhase::Leaving | ConnectionPhase::Gone(_) | ConnectionPhase::Broken => {}
        }
        self.is_unread = true;
        self.output.give_up(&mut self.slots, &mut self.pool);
        if let Some(tls) = &mut self.tls {
            tls.give_up(&mut self.slots, &mut self.pool);
        }
        while let Some(slot) = self.again.pop_front() {
            self.free(slot);
        }
        self.drop_arriving();
    }

    /// A request that did not arrive as a whole is none.
    fn drop_arriving(&mut self) -> bool {
        match std::mem::replace(&mut self.input.expected, Expected::Header) {
            Expected::Payload { slot, .. } | Expected::Refused { slot, .. } => self.free(slot),
            Expected::Header => return false,
        }
        true
    }

    /// Decrypts what was received, as much as there is room for; whether there was something.
    fn decrypt(&mut self) -> bool {
        let Some(tls) = &mut self.tls else { return false };
        if self.phase != ConnectionPhase::Open {
            return false;
        }
        let room = self.input.room_for_more();
        if room.is_empty() {
            return false;
        }
        match tls.decrypt(room) {
            Ok(Some(count)) => {
                self.input.came(count);
                return count > 0;
            }
            Ok(None) => self.input.is_over = true,
            Err(error) => {
                self.phase = ConnectionPhase::Broken;
                self.fault = Some(ProtocolFault::Tls(error));
                self.drop_arriving();
            }
        }
        false
    }

    fn received(&mut self, transfer: StreamTransfer) {
        if let Some(tls) = &mut self.tls {
            match tls.received(transfer) {
                StreamEnd::Done | StreamEnd::Cancelled => {}
                StreamEnd::EndOfStream => tls.ended(),
                StreamEnd::Failed(errno) => self.give_up(LostConnection::Failed(errno)),
            }
            self.decrypt();
            return;
        }
        let (payload, end) = self.input.received(transfer);
        payload.into_iter().for_each(|memory| self.put_back(memory));
        match end {
            StreamEnd::Done | StreamEnd::Cancelled | StreamEnd::EndOfStream => {}
            StreamEnd::Failed(errno) => self.give_up(LostConnection::Failed(errno)),
        }
    }

    /// The memory of a payload is in no receive any more.
    fn put_back(&mut self, memory: HostMemory) {
        match self.input.expected {
            Expected::Payload { slot, .. } => self.slots.get(slot).memory = Some(memory.into()),
            // Its request was given up meanwhile.
            Expected::Header | Expected::Refused { .. } => self.give_back(memory),
        }
    }

    fn sent(&mut self, transfer: StreamTransfer) {
        let Self { output, slots, pool, tls, .. } = self;
        let end = match tls {
            Some(tls) => tls.sent(transfer),
            None => output.sent(transfer, slots, pool),
        };
        self.is_full = false;
        match end {
            StreamEnd::Done | StreamEnd::Cancelled => {}
            // Who wants no answers may leave without them.
            StreamEnd::EndOfStream | StreamEnd::Failed(Errno::PIPE) => {
                self.give_up(LostConnection::Closed);
            }
            StreamEnd::Failed(errno) => self.give_up(LostConnection::Failed(errno)),
        }
    }

    fn begin_send(&mut self, port: &mut FrontEndContext<'_>) {
        let Self { output, socket, slots, pool, tls, .. } = self;
        match tls {
            Some(tls) => {
                if self.phase == ConnectionPhase::Leaving && slots.used() == 0 {
                    tls.close();
                }
                tls.begin_send(port, socket.as_fd(), (output, slots, pool));
                // Slots are free before it is over.
                self.is_full = false;
            }
            None => output.begin(port, socket.as_fd(), slots),
        }
    }

    fn begin_receive(&mut self, port: &mut FrontEndContext<'_>) {
        if self.phase != ConnectionPhase::Open || self.is_full || self.has_new() {
            return;
        }
        if self.input.is_over {
            // All that came as a whole was taken.
            let is_cut = self.drop_arriving() || !self.input.bytes().is_empty();
            let lost = if is_cut { LostConnection::Cut } else { LostConnection::Closed };
            self.phase = ConnectionPhase::Closed(lost);
            return;
        }
        if let Some(tls) = &mut self.tls {
            return tls.begin_receive(port, self.socket.as_fd());
        }
        let payload = match self.input.expected {
            Expected::Payload { slot, arrived, total } => {
                let memory = self.slots.get(slot).memory.take().expect("it is in no transfer");
                Some((memory.into_memory(), HEAD_BYTES + arrived..HEAD_BYTES + total))
            }
            Expected::Header | Expected::Refused { .. } => None,
        };
        let refused = self.input.begin(port, self.socket.as_fd(), payload);
        refused.into_iter().for_each(|memory| self.put_back(memory));
    }

    /// Gives back what an idle connection does not need.
    fn shrink(&mut self, port: &mut FrontEndContext<'_>) {
        self.pool.shrink();
        self.output.shrink();
        self.slots.shrink();
        self.again.shrink_to(0);
        self.tls.iter_mut().for_each(TlsSession::shrink);
        if self.input.may_shrink() {
            self.input.shrink();
            port.cancel_transfer(StreamDirection::Receive);
        }
    }

    /// Whether a client that has said that it leaves needs nothing any more.
    fn has_left(&self) -> bool {
        let is_closed = self.tls.as_ref().is_none_or(TlsSession::is_over);
        self.slots.used() == 0 && (is_closed || self.is_unread)
    }

    fn may_shrink(&self) -> bool {
        self.pool.kept_bytes() > 0
            || self.slots.used() == 0 && self.slots.may_shrink()
            || self.input.may_shrink()
            || self.output.may_shrink()
            || self.tls.as_ref().is_some_and(TlsSession::may_shrink)
    }
}

impl FrontEnd for NbdConnection {
    type Reply = ();
    type Fault = ConnectionEnd;

    fn kick(&self) -> BorrowedFd<'_> {
        self.kick.as_fd()
    }

    fn interest(&self) -> Interest {
        Interest::Read
    }

    fn slots(&self) -> u16 {
        SLOTS
    }

    fn begin_batch(&mut self) {
        self.rules.size = usable(self.told, &self.size);
    }

    fn take(&mut self) -> Result<Option<NewRequest<'_, ()>>, ConnectionEnd> {
        let next = self.next().inspect_err(|_| self.phase = ConnectionPhase::Broken);
        let Some(slot) = next? else { return Ok(None) };
        self.idle.used();
        Ok(Some(NewRequest { slot, reply: (), work: self.bring(slot) }))
    }

    fn answer(&mut self, slot: SourceRequestSlot, (): (), outcome: Outcome) {
        self.answered(slot, outcome);
    }

    fn publish(&mut self, port: &mut FrontEndContext<'_>) {
        if !port.has_transfer(StreamDirection::Send) {
            self.begin_send(port);
        }
        if !port.has_transfer(StreamDirection::Receive) {
            self.begin_receive(port);
        }
        if self.idle.is_over(port, self.may_shrink()) {
            self.shrink(port);
        }
    }

    fn unpublished(&self) -> usize {
        let encrypted = self.tls.as_ref().is_some_and(|tls| !tls.is_sent());
        self.output.unsent() + self.again.len() + usize::from(encrypted)
    }

    fn transfer_over(&mut self, transfer: StreamTransfer) {
        match transfer.direction() {
            StreamDirection::Receive => self.received(transfer),
            StreamDirection::Send => self.sent(transfer),
        }
    }

    fn check(&self) -> Result<(), ConnectionEnd> {
        if let Some(fault) = &self.fault {
            return Err(ConnectionEnd::ProtocolBroken(fault.clone()));
        }
        match self.phase {
            ConnectionPhase::Leaving if self.has_left() => Err(ConnectionEnd::ClientLeft),
            ConnectionPhase::Closed(lost) if self.is_settled() => Err(ConnectionEnd::Lost(lost)),
            ConnectionPhase::Gone(lost) => Err(ConnectionEnd::Lost(lost)),
            ConnectionPhase::Open
            | ConnectionPhase::Leaving
            | ConnectionPhase::Closed(_)
            | ConnectionPhase::Broken => Ok(()),
        }
    }

    /// Ends the connection for its client, which may wait for that. After a broken protocol answers may be on their way;
    /// then it ends when its owner closes it.
    fn report_fault(&self, _: &mut FrontEndContext<'_>) {
        if self.phase != ConnectionPhase::Broken {
            // It may have ended already.
            let _ended = shutdown(&self.socket, Shutdown::Both);
        }
    }

    fn has_new(&self) -> bool {
        !self.again.is_empty() || self.input.fills() || self.has_header_expected()
    }

    fn waiting(&self) -> u32 {
        if !self.has_new() {
            return 0;
        }
        let headers = self.input.bytes().len() / RequestHeader::bytes(self.rules.style);
        u32::try_from(self.again.len() + headers).unwrap_or(u32::MAX).max(1)
    }

    fn rest(&mut self) -> SleepDecision {
        if self.has_new() { SleepDecision::MoreWork } else { SleepDecision::MaySleep }
    }

    fn inherited(&self) -> usize {
        0
    }

    fn stays(&self) -> Option<&'static str> {
        None
    }

    fn arrive(&mut self, _: &mut FrontEndContext<'_>) {
        self.idle.arrived();
    }

    fn leave(&mut self, _: &mut FrontEndContext<'_>) {}
}

/// Whole sectors of a disk of that size that a client may use which was told the other one.
fn usable(told: DiskSize, size: &Capacity) -> DiskSize {
    let size = size.get().0.0;
    DiskSize(ByteCount(told.0.0.min(size - size % SECTOR_BYTES)))
}

/// A refused request as the log shows it.
#[derive(Debug, Default)]
struct RefusedRequest {
    command: u16,
    offset: u64,
    length: u64,
}

impl fmt::Display for RefusedRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { command, offset, length } = self;
        write!(f, "an NBD client's request of type {command}: {length} bytes at byte {offset}")
    }
}
