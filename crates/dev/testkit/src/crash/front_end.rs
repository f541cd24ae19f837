//! A guest that survives its back end: its memory, rings, eventfds and in-flight region live on when the server dies,
//! and are handed to the next one as QEMU's vhost-user-blk does (`hw/block/vhost-user-blk.c`, `vhost_user_blk_start`).
//!
//! Invariants: memory, rings and eventfds are made once; the in-flight region is asked for once (GET_INFLIGHT_FD) and
//! given to every session (SET_INFLIGHT_FD). The end of a session is a value (`Session::Ended`), any other trouble an
//! error.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::packed::PackedRing;
use super::rings::{DriverRing, Notification, Table};
use super::split::SplitRing;
use crate::memory::SharedMemory;
use crate::rawring::device::{pair, ring_addresses};
use crate::rawring::{FrontEnd, Piece, Region, SessionEnded, feature, protocol_feature, request};

/// Guest-physical addresses, which differ from this process's as in a real guest.
const RING_ADDRESS: u64 = 0x1000_0000;
const DATA_ADDRESS: u64 = 0x2_0000_0000;

/// How a ring is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    Split,
    /// With so many descriptors.
    Packed(u16),
}

/// Whether the server is given a region in which it notes what is in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tracking {
    /// It is, as QEMU does it.
    Region,
    /// It is not: a kill loses requests or repeats them, an orderly stop does not.
    Nothing,
}

/// What the guest is like.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) queues: u16,
    /// Requests that may be in flight on each queue.
    pub(super) slots: u16,
    pub(super) layout: Layout,
    pub(super) notification: Notification,
    /// Bytes of data memory.
    pub(super) data_bytes: usize,
    pub(super) tracking: Tracking,
}

/// Whether the server is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Session {
    Open,
    /// The server has ended it, or never took it up.
    Ended,
}

/// The region in which a server notes what is in flight.
#[derive(Debug)]
struct InFlightRegion {
    /// The server's answer, which every later server is given.
    description: Vec<u8>,
    file: OwnedFd,
}

/// The guest.
#[derive(Debug)]
pub(super) struct Guest {
    shape: Shape,
    memory: Arc<SharedMemory>,
    ring_bytes: usize,
    rings: Vec<Box<dyn DriverRing>>,
    region: Option<InFlightRegion>,
    session: Option<FrontEnd>,
}

impl Guest {
    /// Makes memory and rings.
    pub(super) fn new(shape: Shape) -> Result<Self> {
        let room = match shape.layout {
            Layout::Split => SplitRing::room(shape.slots),
            Layout::Packed(size) => PackedRing::room(size),
        };
        let ring_bytes = room * usize::from(shape.queues);
        let memory = Arc::new(SharedMemory::new(ring_bytes + shape.data_bytes)?);
        let rings = (0..usize::from(shape.queues))
            .map(|index| -> Result<Box<dyn DriverRing>> {
                let (offset, slots, notification) = (index * room, shape.slots, shape.notification);
                Ok(match shape.layout {
                    Layout::Split => {
                        Box::new(SplitRing::new(&memory, offset, slots, notification)?)
                    }
                    Layout::Packed(size) => {
                        Box::new(PackedRing::new(&memory, offset, size, slots, notification)?)
                    }
                })
            })
            .collect::<Result<_>>()?;
        Ok(Self { shape, memory, ring_bytes, rings, region: None, session: None })
    }

    /// Connects and hands everything over.
    pub(super) fn connect(&mut self, socket: &Path) -> Result<Session> {
        self.session = None;
        let front_end = match FrontEnd::connect(socket) {
            Ok(front_end) => front_end,
            Err(error) if is_refused(&error) => return Ok(Session::Ended),
            Err(error) => return Err(error),
        };
        match self.start(front_end) {
            Ok(front_end) => {
                self.session = Some(front_end);
                Ok(Session::Open)
            }
            Err(error) if error.is::<SessionEnded>() => Ok(Session::Ended),
            Err(error) => Err(error),
        }
    }

    /// Hangs up.
    pub(super) fn disconnect(&mut self) {
        self.session = None;
    }

    /// Stops all rings in order: nothing is in flight in the server afterwards.
    pub(super) fn stop(&mut self) -> Result<Session> {
        let Some(session) = &self.session else { return Ok(Session::Ended) };
        for (queue, ring) in (0..).zip(&mut self.rings) {
            let reply = match session.ask(request::GET_VRING_BASE, &pair(queue, 0)) {
                Err(error) if error.is::<SessionEnded>() => return Ok(Session::Ended),
                reply => reply?,
            };
            let base = reply.get(4..8).context("GET_VRING_BASE was answered too short")?;
            let base = u32::from_le_bytes(base.try_into().expect("four bytes"));
            ring.stopped_at(base).with_context(|| format!("queue {queue}"))?;
        }
        Ok(Session::Open)
    }

    /// Waits for an interrupt, the end of the session or the end of this time, whatever is first.
    pub(super) fn wait(&self, limit: Duration) -> Result<Session> {
        let mut waiting: Vec<PollFd<'_>> = self
            .rings
            .iter()
            .map(|ring| PollFd::from_borrowed_fd(ring.bells().call_fd(), PollFlags::IN))
            .collect();
        let Some(session) = &self.session else { return Ok(Session::Ended) };
        let socket = session.socket();
        waiting.push(PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN));
        let timeout = Timespec::try_from(limit).context("a time to wait")?;
        poll(&mut waiting, Some(&timeout)).context("poll")?;
        let session = waiting.last().expect("the socket is there").revents();
        if session.intersects(PollFlags::HUP | PollFlags::ERR) {
            return Ok(Session::Ended);
        }
        ensure!(!session.contains(PollFlags::IN), "the server spoke without being asked");
        Ok(Session::Open)
    }

    /// One ring.
    pub(super) fn ring(&mut self, queue: usize) -> &mut dyn DriverRing {
        &mut *self.rings[queue]
    }

    /// All rings.
    pub(super) fn rings(&self) -> &[Box<dyn DriverRing>] {
        &self.rings
    }

    /// Puts bytes into the data memory.
    pub(super) fn put(&self, offset: usize, bytes: &[u8]) {
        self.memory.write(self.ring_bytes + offset, bytes);
    }

    /// Takes bytes out of the data memory.
    pub(super) fn get(&self, offset: usize, bytes: &mut [u8]) {
        self.memory.read_into(self.ring_bytes + offset, bytes);
    }

    /// A piece of the data memory.
    pub(super) fn piece(offset: usize, length: usize, flags: u16) -> Piece {
        let length = u32::try_from(length).expect("a short piece");
        Piece { address: DATA_ADDRESS + wide(offset), length, flags }
    }

    /// A table in the data memory.
    pub(super) fn table(&self, offset: usize) -> Table {
        Table { offset: self.ring_bytes + offset, address: DATA_ADDRESS + wide(offset) }
    }

    fn features(&self) -> u64 {
        let mut features =
            feature::VERSION_1 | feature::RING_INDIRECT_DESC | feature::BLK_FLUSH | feature::BLK_MQ;
        if let Layout::Packed(_) = self.shape.layout {
            features |= feature::RING_PACKED;
        }
        if self.shape.notification == Notification::EventIndex {
            features |= feature::RING_EVENT_IDX;
        }
        features
    }

    /// The messages of QEMU, in its order.
    fn start(&mut self, mut front_end: FrontEnd) -> Result<FrontEnd> {
        let protocol = protocol_feature::MQ
            | protocol_feature::REPLY_ACK
            | protocol_feature::CONFIG
            | protocol_feature::INFLIGHT_SHMFD;
        let wanted = self.features();
        let features = front_end.negotiate(wanted, protocol)?;
        ensure!(features & wanted == wanted, "of {wanted:#x} only {features:#x} is offered");
        if self.shape.tracking == Tracking::Region {
            self.share_region(&front_end)?;
        }
        front_end.must(request::SET_FEATURES, &features.to_le_bytes(), &[])?;
        let fds = [self.memory.file(), self.memory.file()];
        front_end.must(request::SET_MEM_TABLE, &Region::table(&self.regions()), &fds)?;
        for (queue, ring) in (0..).zip(&self.rings) {
            self.start_ring(&front_end, queue, &**ring)?;
        }
        for queue in 0..u32::from(self.shape.queues) {
            front_end.must(request::SET_VRING_ENABLE, &pair(queue, 1), &[])?;
        }
        Ok(front_end)
    }

    fn share_region(&mut self, front_end: &FrontEnd) -> Result<()> {
        let offered = front_end.protocol_features() & protocol_feature::INFLIGHT_SHMFD != 0;
        ensure!(offered, "the server offers no in-flight tracking (INFLIGHT_SHMFD)");
        if self.region.is_none() {
            let size = self.rings[0].size();
            let wanted = in_flight_description(self.shape.queues, size);
            let (description, file) = front_end.ask_fd(request::GET_INFLIGHT_FD, &wanted)?;
            self.region = Some(InFlightRegion { description, file });
        }
        let region = self.region.as_ref().expect("it is there by now");
        front_end.must(request::SET_INFLIGHT_FD, &region.description, &[region.file.as_fd()])
    }

    fn start_ring(&self, front_end: &FrontEnd, queue: u32, ring: &dyn DriverRing) -> Result<()> {
        let addresses = ring.areas().map(|offset| wide(self.memory.address(offset, 0).addr()));
        let must = |request, payload: &[u8]| front_end.must(request, payload, &[]);
        must(request::SET_VRING_NUM, &pair(queue, ring.size().into()))?;
        must(request::SET_VRING_BASE, &pair(queue, ring.base()))?;
        must(request::SET_VRING_ADDR, &ring_addresses(queue, addresses))?;
        let bell = |request, fd: BorrowedFd<'_>| {
            front_end.must(request, &u64::from(queue).to_le_bytes(), &[fd])
        };
        bell(request::SET_VRING_KICK, ring.bells().kick_fd())?;
        bell(request::SET_VRING_CALL, ring.bells().call_fd())
    }

    fn regions(&self) -> [Region; 2] {
        let region = |guest_address: u64, offset: usize, length: usize| Region {
            guest_address,
            size: wide(length),
            user_address: wide(self.memory.address(offset, 0).addr()),
            file_offset: wide(offset),
        };
        [
            region(RING_ADDRESS, 0, self.ring_bytes),
            region(DATA_ADDRESS, self.ring_bytes, self.shape.data_bytes),
        ]
    }
}

/// The payload of GET_INFLIGHT_FD; QEMU sends it with the padding of its structure, 24 bytes.
fn in_flight_description(queues: u16, size: u16) -> Vec<u8> {
    let mut payload = vec![0; 16];
    payload.extend(queues.to_le_bytes());
    payload.extend(size.to_le_bytes());
    payload.resize(24, 0);
    payload
}

fn is_refused(error: &anyhow::Error) -> bool {
    use std::io::ErrorKind::{ConnectionRefused, NotFound};
    let found = error.downcast_ref::<std::io::Error>().map(std::io::Error::kind);
    matches!(found, Some(ConnectionRefused | NotFound))
}

fn wide(value: usize) -> u64 {
    u64::try_from(value).expect("a usize fits 64 bits")
}
