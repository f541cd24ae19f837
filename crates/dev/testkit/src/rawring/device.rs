//! A virtio-blk disk over hand-made rings, for one request at a time.
//!
//! Where it stands: hostile tests spoil what this sets up correctly; protocol tests use it as it is.
//!
//! The shared memory has two regions: the rings at `RING_ADDRESS`, then headers, status bytes, indirect tables and data
//! at `DATA_ADDRESS`. Guest-physical addresses differ from this process's addresses, as in a real guest, so that a
//! server that mixes them up is caught.

use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::inflight::Inflight;
use super::message::{Ack, FrontEnd, Region, feature, protocol_feature, request};
use super::ring::{Piece, RawRing, Used, chain, flag};
use crate::deadline::Deadline;
use crate::memory::SharedMemory;

/// How long one request may take.
const REQUEST_LIMIT: Duration = Duration::from_secs(20);
const RING_ADDRESS: u64 = 0x1000_0000;
const DATA_ADDRESS: u64 = 0x2_0000_0000;
const RING_REGION_BYTES: usize = 2 << 20;
const DATA_REGION_BYTES: usize = 4 << 20;
/// Places inside the data region.
const HEADER: usize = 0;
const STATUS: usize = 64;
const INDIRECT_TABLE: usize = 4096;
/// What lies in the status byte before a request.
const STATUS_UNTOUCHED: u8 = 0xee;

/// Request types of virtio-blk.
pub mod kind {
    #![expect(missing_docs, reason = "the names are the specification's")]
    pub const IN: u32 = 0;
    pub const OUT: u32 = 1;
    pub const FLUSH: u32 = 4;
    pub const GET_ID: u32 = 8;
    pub const DISCARD: u32 = 11;
    pub const WRITE_ZEROES: u32 = 13;
}

/// What a device asks for.
#[derive(Clone, Copy, Debug)]
pub struct RawShape {
    /// Queues to set up.
    pub queues: u32,
    /// Descriptors per ring.
    pub queue_size: u16,
    /// Features to take if offered; VERSION_1 is always taken.
    pub features: u64,
}

impl Default for RawShape {
    fn default() -> Self {
        let ring = feature::RING_INDIRECT_DESC | feature::RING_EVENT_IDX;
        let disk = feature::BLK_FLUSH | feature::BLK_MQ | feature::BLK_DISCARD;
        let features = ring | disk | feature::BLK_WRITE_ZEROES | feature::BLK_RO;
        Self { queues: 1, queue_size: 64, features }
    }
}

/// How a chain is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// In the ring's own table.
    Direct,
    /// In an indirect table.
    Indirect,
}

/// One request; its data pieces lie wherever the test says.
#[derive(Clone, Debug)]
pub struct BlockRequest {
    /// See `kind`.
    pub kind: u32,
    /// The sector in the header.
    pub sector: u64,
    /// The data.
    pub data: Vec<Piece>,
    /// How the chain is laid out.
    pub form: Form,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It came back with this status byte (0xee if the device did not write one).
    Done {
        /// The status byte.
        status: u8,
        /// Bytes the device says it has written.
        written: u32,
    },
    /// The server ended the session instead.
    Ended,
}

impl Outcome {
    /// The outcome of a request with VIRTIO_BLK_S_OK, whatever was written.
    pub fn is_ok(&self) -> bool {
        matches!(self, Self::Done { status: 0, .. })
    }

    /// VIRTIO_BLK_S_IOERR.
    pub fn is_io_error(&self) -> bool {
        matches!(self, Self::Done { status: 1, .. })
    }

    /// VIRTIO_BLK_S_UNSUPP.
    pub fn is_unsupported(&self) -> bool {
        matches!(self, Self::Done { status: 2, .. })
    }
}

/// A connected disk.
#[derive(Debug)]
pub struct RawDevice {
    /// The message side.
    pub front_end: FrontEnd,
    /// The rings.
    pub rings: Vec<RawRing>,
    /// The memory of rings and data.
    pub memory: Arc<SharedMemory>,
    /// What was negotiated.
    pub features: u64,
    inflight: Option<Inflight>,
}

impl RawDevice {
    /// Connects and makes everything ready for requests.
    pub fn connect(socket: &Path, shape: RawShape) -> Result<Self> {
        let device = Self::negotiated(socket, shape)?;
        device.share_and_start()?;
        Ok(device)
    }

    /// The same, with an in-flight region, which is kept for the next server.
    pub fn connect_tracked(socket: &Path, shape: RawShape) -> Result<Self> {
        let mut device = Self::negotiated(socket, shape)?;
        let queues = u16::try_from(shape.queues).context("queues")?;
        device.inflight = Some(Inflight::get(&device.front_end, queues, shape.queue_size)?);
        device.share_and_start()?;
        Ok(device)
    }

    /// Goes on with another server after the death of the last one: with the same memory and rings, and
    /// the in-flight region if there is one. The configuration space is not written, as QEMU does not.
    pub fn reconnect(&mut self, socket: &Path) -> Result<()> {
        self.negotiate_again(socket)?;
        self.share_and_start()
    }

    /// The first half of it, up to where a channel can be opened.
    pub fn negotiate_again(&mut self, socket: &Path) -> Result<()> {
        let (front_end, features) = negotiate(socket, self.features)?;
        ensure!(features == self.features, "{:#x} became {features:#x}", self.features);
        self.front_end = front_end;
        Ok(())
    }

    /// Gives the server a channel of its own, and returns the front end's side of it.
    pub fn open_channel(&self) -> Result<UnixStream> {
        let (ours, theirs) = UnixStream::pair().context("a channel")?;
        self.front_end.must(request::SET_BACKEND_REQ_FD, &[], &[theirs.as_fd()])?;
        Ok(ours)
    }

    /// Connects and negotiates, but shares no memory and sets up no ring.
    pub fn negotiated(socket: &Path, shape: RawShape) -> Result<Self> {
        let (front_end, features) = negotiate(socket, shape.features | feature::VERSION_1)?;
        let memory = Arc::new(SharedMemory::new(RING_REGION_BYTES + DATA_REGION_BYTES)?);
        let step = RawRing::room(shape.queue_size).next_multiple_of(4096);
        let rings = (0..usize::try_from(shape.queues).context("queues")?)
            .map(|index| RawRing::new(&memory, index * step, shape.queue_size))
            .collect::<Result<_>>()?;
        Ok(Self { front_end, rings, memory, features, inflight: None })
    }

    /// Shares the memory and starts all rings, after `negotiated`.
    pub fn share_and_start(&self) -> Result<()> {
        if let Some(inflight) = &self.inflight {
            inflight.set(&self.front_end)?;
        }
        let table = Region::table(&self.regions());
        let fds = [self.memory.file(), self.memory.file()];
        self.front_end.must(request::SET_MEM_TABLE, &table, &fds)?;
        for (queue, ring) in (0..).zip(&self.rings) {
            self.start_ring(queue, ring.used_index())?;
        }
        Ok(())
    }

    /// The two regions: rings, then data.
    pub fn regions(&self) -> [Region; 2] {
        let region = |guest_address: u64, offset: usize, length: usize| Region {
            guest_address,
            size: wide(length),
            user_address: self.user_address(offset),
            file_offset: wide(offset),
        };
        [
            region(RING_ADDRESS, 0, RING_REGION_BYTES),
            region(DATA_ADDRESS, RING_REGION_BYTES, DATA_REGION_BYTES),
        ]
    }

    /// The address in this process of a place in the shared memory, as SET_VRING_ADDR wants it.
    pub fn user_address(&self, offset: usize) -> u64 {
        wide(self.memory.address(offset, 0).addr())
    }

    /// The guest-physical address of a place in the shared memory.
    pub fn guest_address(&self, offset: usize) -> u64 {
        match offset.checked_sub(RING_REGION_BYTES) {
            Some(offset) => DATA_ADDRESS + wide(offset),
            None => RING_ADDRESS + wide(offset),
        }
    }

    /// The place in the shared memory of a guest-physical address in it.
    pub fn place(&self, guest_address: u64) -> Option<usize> {
        let (start, skip) = match guest_address.checked_sub(DATA_ADDRESS) {
            Some(skip) => (RING_REGION_BYTES, skip),
            None => (0, guest_address.checked_sub(RING_ADDRESS)?),
        };
        let place = start + usize::try_from(skip).ok()?;
        let end = if start == 0 { RING_REGION_BYTES } else { self.memory.length() };
        (place < end).then_some(place)
    }

    /// The first guest-physical address behind all memory.
    pub fn guest_end() -> u64 {
        DATA_ADDRESS + wide(DATA_REGION_BYTES)
    }

    /// The payload of SET_VRING_ADDR of a ring, and where it is to be logged if it is.
    pub(super) fn ring_addresses(&self, queue: u32, log_address: Option<u64>) -> Vec<u8> {
        let addresses = self.ring(queue).offsets().map(|offset| self.user_address(offset));
        let mut payload = ring_addresses(queue, addresses);
        if let Some(log_address) = log_address {
            payload[4] = 1;
            payload[32..].copy_from_slice(&log_address.to_le_bytes());
        }
        payload
    }

    /// Sets one ring up and enables it, from this index on.
    pub fn start_ring(&self, queue: u32, index: u16) -> Result<()> {
        let ring = self.ring(queue);
        let state = |value: u32| pair(queue, value);
        let must = |request, payload: &[u8]| self.front_end.must(request, payload, &[]);
        must(request::SET_VRING_NUM, &state(ring.size().into()))?;
        must(request::SET_VRING_BASE, &state(index.into()))?;
        must(request::SET_VRING_ADDR, &self.ring_addresses(queue, None))?;
        // A ring starts with its kick, and the peer ends at a request that it cannot interrupt for.
        self.send_ring_fd(request::SET_VRING_CALL, queue, ring.call_fd())?;
        self.send_ring_fd(request::SET_VRING_KICK, queue, ring.kick_fd())?;
        must(request::SET_VRING_ENABLE, &state(1))
    }

    /// Stops one ring (GET_VRING_BASE) and gives the index at which it stopped.
    pub fn stop_ring(&self, queue: u32) -> Result<u16> {
        let reply = self.front_end.ask(request::GET_VRING_BASE, &pair(queue, 0))?;
        let index = reply.get(4..6).context("GET_VRING_BASE was answered too short")?;
        Ok(u16::from_le_bytes(index.try_into().expect("two bytes")))
    }

    /// A piece of the data area, `offset` bytes into it.
    pub fn data(&self, offset: usize, length: u32, flags: u16) -> Piece {
        Piece { address: data_address(offset), length, flags }
    }

    /// Puts bytes into the data area.
    pub fn put(&self, offset: usize, bytes: &[u8]) {
        self.memory.write(data_offset(offset), bytes);
    }

    /// Takes bytes from the data area.
    pub fn get(&self, offset: usize, length: usize) -> Vec<u8> {
        self.memory.read(data_offset(offset), length)
    }

    /// Writes the header and a fresh status byte; gives the pieces of both.
    pub fn frame(&self, kind: u32, sector: u64) -> (Piece, Piece) {
        let mut header = [0; 16];
        header[..4].copy_from_slice(&kind.to_le_bytes());
        header[8..].copy_from_slice(&sector.to_le_bytes());
        self.memory.write(RING_REGION_BYTES + HEADER, &header);
        self.memory.write(RING_REGION_BYTES + STATUS, &[STATUS_UNTOUCHED]);
        let header = Piece { address: DATA_ADDRESS + wide(HEADER), length: 16, flags: 0 };
        let status = Piece { address: DATA_ADDRESS + wide(STATUS), length: 1, flags: flag::WRITE };
        (header, status)
    }

    /// The status byte that `frame` has made ready, as it is now.
    pub fn status(&self) -> u8 {
        self.memory.read(RING_REGION_BYTES + STATUS, 1)[0]
    }

    /// Does one request and waits for its end.
    pub fn request(&mut self, queue: u32, what: &BlockRequest) -> Result<Outcome> {
        let (header, status) = self.frame(what.kind, what.sector);
        let mut pieces = vec![header];
        pieces.extend_from_slice(&what.data);
        pieces.push(status);
        self.execute(queue, &pieces, what.form)
    }

    /// Offers a chain of any pieces and waits for its end; the status is read where `frame` put it.
    pub fn execute(&mut self, queue: u32, pieces: &[Piece], form: Form) -> Result<Outcome> {
        match form {
            Form::Direct => self.ring(queue).set_chain(0, pieces),
            Form::Indirect => {
                let table: Vec<u8> =
                    chain(0, pieces).iter().flat_map(super::Descriptor::bytes).collect();
                self.memory.write(RING_REGION_BYTES + INDIRECT_TABLE, &table);
                let length = u32::try_from(table.len()).context("an indirect table")?;
                let address = DATA_ADDRESS + wide(INDIRECT_TABLE);
                let piece = Piece { address, length, flags: flag::INDIRECT };
                self.ring(queue).set_chain(0, &[piece]);
            }
        }
        self.offer(queue, 0)?;
        self.outcome(queue)
    }

    /// Makes a head available and kicks.
    pub fn offer(&mut self, queue: u32, head: u16) -> Result<()> {
        let ring = self.ring_mut(queue);
        ring.set_used_event(ring.used_next());
        ring.offer(head);
        ring.kick()
    }

    /// Waits for one used entry or the end of the session.
    pub fn outcome(&mut self, queue: u32) -> Result<Outcome> {
        Ok(match self.wait_used(queue)? {
            None => Outcome::Ended,
            Some(used) => {
                let status = self.status();
                Outcome::Done { status, written: used.written }
            }
        })
    }

    /// Sleeps until the next used entry; nothing if the server ends the session instead.
    pub fn wait_used(&mut self, queue: u32) -> Result<Option<Used>> {
        let deadline = Deadline::after(REQUEST_LIMIT);
        loop {
            let ring = self.ring_mut(queue);
            ring.set_used_event(ring.used_next());
            if let Some(used) = ring.take_used() {
                return Ok(Some(used));
            }
            if self.sleep(queue, deadline)? == Woken::SessionEnded {
                return Ok(None);
            }
            self.ring(queue).take_calls()?;
        }
    }

    /// Sleeps until the device has interrupted and published this many used entries more, without asking for any other
    /// interrupt than the test did; gives their heads.
    pub fn wait_called(&mut self, queue: u32, entries: usize) -> Result<Vec<u32>> {
        let deadline = Deadline::after(REQUEST_LIMIT);
        let mut heads = Vec::new();
        while heads.len() < entries {
            ensure!(self.sleep(queue, deadline)? == Woken::MaybeUsed, "the session ended");
            self.ring(queue).take_calls()?;
            while let Some(used) = self.ring_mut(queue).take_used() {
                heads.push(used.head);
            }
        }
        Ok(heads)
    }

    /// One ring.
    pub fn ring(&self, queue: u32) -> &RawRing {
        &self.rings[usize::try_from(queue).expect("a queue index is small")]
    }

    /// One ring, to be changed.
    pub fn ring_mut(&mut self, queue: u32) -> &mut RawRing {
        &mut self.rings[usize::try_from(queue).expect("a queue index is small")]
    }

    /// How the server takes ring addresses.
    pub fn tell_ring_addresses(&self, queue: u32, addresses: [u64; 3]) -> Result<Ack> {
        self.front_end.tell(request::SET_VRING_ADDR, &ring_addresses(queue, addresses), &[])
    }

    /// Hands a kick or call descriptor over.
    pub fn send_ring_fd(&self, request: u32, queue: u32, fd: BorrowedFd<'_>) -> Result<()> {
        self.front_end.must(request, &u64::from(queue).to_le_bytes(), &[fd])
    }

    /// Whether the server has ended the session. Takes nothing that it has said.
    pub fn has_ended(&self) -> Result<bool> {
        let socket = self.front_end.socket();
        let mut fds = [PollFd::from_borrowed_fd(socket, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).context("poll")?;
        Ok(fds[0].revents().intersects(PollFlags::HUP | PollFlags::ERR))
    }

    fn sleep(&self, queue: u32, deadline: Deadline) -> Result<Woken> {
        let left = deadline.remaining();
        if left.is_zero() {
            bail!("queue {queue}: no request came back within {:?}", deadline.limit());
        }
        let socket = self.front_end.socket();
        let mut waiting = [
            PollFd::from_borrowed_fd(self.ring(queue).call_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN),
        ];
        let timeout = Timespec::try_from(left).context("the time left")?;
        let woken = poll(&mut waiting, Some(&timeout)).context("poll")?;
        // What lies in the used ring without an interrupt is no excuse: a guest would sleep on.
        ensure!(woken > 0, "queue {queue}: no interrupt within {:?}", deadline.limit());
        let session = waiting[1].revents();
        if session.intersects(PollFlags::HUP | PollFlags::ERR) {
            return Ok(Woken::SessionEnded);
        }
        ensure!(!session.contains(PollFlags::IN), "the server spoke without being asked");
        Ok(Woken::MaybeUsed)
    }
}

#[derive(PartialEq, Eq)]
enum Woken {
    MaybeUsed,
    SessionEnded,
}

/// The payload of a message about one ring with one value.
pub(crate) fn pair(queue: u32, value: u32) -> Vec<u8> {
    [queue, value].iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// The payload of SET_VRING_ADDR: descriptor table, used ring, available ring.
pub(crate) fn ring_addresses(queue: u32, addresses: [u64; 3]) -> Vec<u8> {
    let mut payload = pair(queue, 0);
    payload.extend(addresses.iter().chain(&[0]).flat_map(|address| address.to_le_bytes()));
    payload
}

/// Data starts behind headers and indirect tables.
const DATA_START: usize = 64 << 10;

fn data_offset(offset: usize) -> usize {
    RING_REGION_BYTES + DATA_START + offset
}

fn data_address(offset: usize) -> u64 {
    DATA_ADDRESS + wide(DATA_START + offset)
}

fn wide(value: usize) -> u64 {
    u64::try_from(value).expect("a usize fits 64 bits")
}

/// A session that has agreed on everything, and its features.
fn negotiate(socket: &Path, features: u64) -> Result<(FrontEnd, u64)> {
    let mut front_end = FrontEnd::connect(socket)?;
    let protocol = protocol_feature::MQ
        | protocol_feature::LOG_SHMFD
        | protocol_feature::REPLY_ACK
        | protocol_feature::BACKEND_REQ
        | protocol_feature::CONFIG
        | protocol_feature::INFLIGHT_SHMFD
        | protocol_feature::RESET_DEVICE
        | protocol_feature::CONFIGURE_MEM_SLOTS;
    let features = front_end.negotiate(features, protocol)?;
    Ok((front_end, features))
}
