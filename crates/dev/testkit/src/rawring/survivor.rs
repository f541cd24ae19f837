//! A client that outlives its server: it keeps its memory, its rings and the in-flight region, and goes on with the
//! next server on the same socket, as QEMU does with `reconnect-ms`.
//!
//! Where it stands: tests that kill a server. Each slot has one request at a time and a few blocks of the disk for
//! itself, so the client knows what each block must hold.
//!
//! Invariants: it looks at its rings only after an interrupt, as a guest does; a request that comes back twice, fails
//! or brings other bytes than the last completed write is an error.
//! Limits: [`SLOTS`] requests in flight for each queue.

use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::device::{kind, pair, ring_addresses};
use super::inflight::Inflight;
use super::message::{FrontEnd, Region, feature, protocol_feature, request};
use super::packed::RawPackedRing;
use super::ring::{Piece, RawRing, Used, flag};
use crate::client::RingLayout;
use crate::deadline::{Deadline, now};
use crate::memory::SharedMemory;
use crate::rng::Rng;

/// Requests in flight for each queue.
pub const SLOTS: u16 = 8;
/// Bytes of each request.
const BLOCK: usize = 4096;
/// Blocks of the disk that belong to one slot.
const BLOCKS: u64 = 4;
/// How long requests may take.
const LIMIT: Duration = Duration::from_secs(20);

/// Descriptors of a request: header, data, status.
const CHAIN: u16 = 3;
const SPLIT_SIZE: u16 = 32;
/// Chains of three do not fit evenly, so they lie across the end of the ring.
const PACKED_SIZE: u16 = 25;

const GUEST_ADDRESS: u64 = 0x1000_0000;
/// Rings come first, then what the slots need.
const RING_BYTES: usize = 16 << 10;
const SLOT_BYTES: usize = 2 * BLOCK;
const STATUS: usize = 512;
const STATUS_UNTOUCHED: u8 = 0xee;

/// What a wait has brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Collected {
    /// So many requests came back.
    Requests(usize),
    /// The server is gone.
    Gone,
}

/// When a request was made available, and when it was seen to have come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Made available.
    pub start: Instant,
    /// Seen.
    pub end: Instant,
}

#[derive(Debug)]
enum Ring {
    Split(RawRing),
    Packed(RawPackedRing),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slot {
    Free,
    Write { block: u64, version: u64 },
    Read { block: u64 },
}

#[derive(Debug)]
struct Queue {
    ring: Ring,
    slots: [Slot; SLOTS as usize],
    /// When each slot's last request was made available.
    started: [Instant; SLOTS as usize],
}

/// A client with work in flight.
#[derive(Debug)]
pub struct Survivor {
    socket: PathBuf,
    layout: RingLayout,
    /// Whether what is completed may still be in caches of the server.
    is_write_back: bool,
    memory: Arc<SharedMemory>,
    queues: Vec<Queue>,
    front_end: FrontEnd,
    inflight: Inflight,
    /// The version that each block of the disk holds; 0 is zeroes.
    versions: Vec<u64>,
    last_version: u64,
    /// The requests that the last `collect` has taken.
    spans: Vec<Span>,
}

impl Survivor {
    /// Connects with fresh rings and gets an in-flight region for them.
    pub fn connect(socket: &Path, layout: RingLayout, queues: u16) -> Result<Self> {
        Self::connected(socket, layout, queues, true)
    }

    /// The same as a driver that cannot flush, so that what is completed has to be durable (virtio 1.2, section 5.2.5).
    pub fn connect_write_through(socket: &Path, layout: RingLayout, queues: u16) -> Result<Self> {
        Self::connected(socket, layout, queues, false)
    }

    fn connected(
        socket: &Path,
        layout: RingLayout,
        queues: u16,
        is_write_back: bool,
    ) -> Result<Self> {
        let count = usize::from(queues);
        let memory = count * (RING_BYTES + usize::from(SLOTS) * SLOT_BYTES);
        let memory = Arc::new(SharedMemory::new(memory)?);
        let queues = (0..count)
            .map(|queue| {
                let ring = Ring::new(layout, &memory, queue * RING_BYTES)?;
                let started = [now(); SLOTS as usize];
                Ok(Queue { ring, slots: [Slot::Free; SLOTS as usize], started })
            })
            .collect::<Result<Vec<_>>>()?;
        let front_end = negotiated(socket, layout, is_write_back)?;
        let size = queues[0].ring.size();
        let inflight = Inflight::get(&front_end, u16::try_from(count).context("queues")?, size)?;
        let mut survivor = Self {
            socket: socket.to_owned(),
            layout,
            is_write_back,
            memory,
            versions: vec![0; Self::blocks(count)],
            queues,
            front_end,
            inflight,
            last_version: 0,
            spans: Vec::new(),
        };
        survivor.set_up()?;
        Ok(survivor)
    }

    /// Goes on with the server that now listens on the socket.
    pub fn reconnect(&mut self) -> Result<()> {
        self.front_end = negotiated(&self.socket, self.layout, self.is_write_back)?;
        self.set_up()
    }

    /// How large a disk must be for so many queues.
    pub fn disk_bytes(queues: u16) -> u64 {
        (Self::blocks(queues.into()) * BLOCK) as u64
    }

    fn blocks(queues: usize) -> usize {
        queues * usize::from(SLOTS) * usize::try_from(BLOCKS).expect("small")
    }

    /// Starts a request on every free slot: three of four are writes.
    pub fn submit(&mut self, rng: &mut Rng) -> Result<()> {
        for queue in 0..self.queues.len() {
            for slot in 0..SLOTS {
                if self.queues[queue].slots[usize::from(slot)] == Slot::Free {
                    self.start(queue, slot, rng);
                }
            }
            let kick = self.queues[queue].ring.kick_fd();
            rustix::io::write(kick, &1_u64.to_ne_bytes()).context("kick")?;
        }
        Ok(())
    }

    /// Requests that did not come back yet.
    pub fn in_flight(&self) -> usize {
        let slots = self.queues.iter().flat_map(|queue| &queue.slots);
        slots.filter(|slot| **slot != Slot::Free).count()
    }

    /// When each of the requests started and ended that the last `collect` took.
    pub fn spans(&self) -> &[Span] {
        &self.spans
    }

    /// Waits for an interrupt, and takes what came back.
    pub fn collect(&mut self) -> Result<Collected> {
        self.spans.clear();
        let deadline = Deadline::after(LIMIT);
        loop {
            let timeout = Timespec::try_from(deadline.remaining()).context("the time left")?;
            let socket = self.front_end.socket();
            let mut waiting: Vec<PollFd<'_>> = [socket]
                .into_iter()
                .chain(self.queues.iter().map(|queue| queue.ring.call_fd()))
                .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
                .collect();
            let woken = poll(&mut waiting, Some(&timeout)).context("poll")?;
            ensure!(woken > 0, "no interrupt within {LIMIT:?}, open: {:?}", self.queues);
            let called: Vec<bool> =
                waiting[1..].iter().map(|fd| !fd.revents().is_empty()).collect();
            let gone = !waiting[0].revents().is_empty();
            let mut requests = 0;
            for (queue, _) in called.iter().enumerate().filter(|(_, called)| **called) {
                requests += self.take(queue)?;
            }
            if requests > 0 {
                return Ok(Collected::Requests(requests));
            }
            if gone {
                return Ok(Collected::Gone);
            }
        }
    }

    /// Waits for all requests; the server must not go away.
    pub fn drain(&mut self) -> Result<()> {
        while self.in_flight() > 0 {
            ensure!(self.collect()? != Collected::Gone, "the server is gone");
        }
        Ok(())
    }

    /// What the disk must hold when nothing is in flight.
    pub fn expected(&self) -> Vec<u8> {
        self.versions.iter().flat_map(|version| content(*version)).collect()
    }

    fn set_up(&mut self) -> Result<()> {
        self.inflight.set(&self.front_end)?;
        let region = Region {
            guest_address: GUEST_ADDRESS,
            size: self.memory.length() as u64,
            user_address: self.user_address(0),
            file_offset: 0,
        };
        let table = Region::table(&[region]);
        self.front_end.must(request::SET_MEM_TABLE, &table, &[self.memory.file()])?;
        for (queue, it) in (0..).zip(&self.queues) {
            let addresses = it.ring.offsets().map(|offset| self.user_address(offset));
            let number = u64::from(queue).to_le_bytes();
            let must = |request, payload: &[u8]| self.front_end.must(request, payload, &[]);
            must(request::SET_VRING_NUM, &pair(queue, it.ring.size().into()))?;
            must(request::SET_VRING_BASE, &pair(queue, it.ring.known_base()))?;
            must(request::SET_VRING_ADDR, &ring_addresses(queue, addresses))?;
            self.front_end.must(request::SET_VRING_KICK, &number, &[it.ring.kick_fd()])?;
            self.front_end.must(request::SET_VRING_CALL, &number, &[it.ring.call_fd()])?;
            must(request::SET_VRING_ENABLE, &pair(queue, 1))?;
        }
        Ok(())
    }

    fn user_address(&self, offset: usize) -> u64 {
        self.memory.address(offset, 0).addr() as u64
    }

    fn place(&self, queue: usize, slot: u16) -> usize {
        let slot = queue * usize::from(SLOTS) + usize::from(slot);
        self.queues.len() * RING_BYTES + slot * SLOT_BYTES
    }

    fn start(&mut self, queue: usize, slot: u16, rng: &mut Rng) {
        let owner = (queue * usize::from(SLOTS) + usize::from(slot)) as u64;
        let block = owner * BLOCKS + rng.below(BLOCKS);
        let place = self.place(queue, slot);
        let (kind, data_flags, state) = if rng.below(4) == 0 {
            self.memory.fill(place + BLOCK, BLOCK, 0xdd);
            (kind::IN, flag::WRITE, Slot::Read { block })
        } else {
            self.last_version += 1;
            let version = self.last_version;
            self.memory.write(place + BLOCK, &content(version));
            (kind::OUT, 0, Slot::Write { block, version })
        };
        let mut header = [0; 16];
        header[..4].copy_from_slice(&kind.to_le_bytes());
        header[8..].copy_from_slice(&(block * (BLOCK as u64 / 512)).to_le_bytes());
        self.memory.write(place, &header);
        self.memory.write(place + STATUS, &[STATUS_UNTOUCHED]);
        let piece = |offset: usize, length, flags| Piece {
            address: GUEST_ADDRESS + (place + offset) as u64,
            length,
            flags,
        };
        let data = u32::try_from(BLOCK).expect("small");
        let pieces =
            [piece(0, 16, 0), piece(BLOCK, data, data_flags), piece(STATUS, 1, flag::WRITE)];
        let queue = &mut self.queues[queue];
        queue.ring.offer(slot, &pieces);
        queue.slots[usize::from(slot)] = state;
        queue.started[usize::from(slot)] = now();
    }

    /// Takes what came back on one queue.
    fn take(&mut self, queue: usize) -> Result<usize> {
        self.queues[queue].ring.take_calls()?;
        let mut count = 0;
        while let Some(used) = self.queues[queue].ring.take_used()? {
            self.finish(queue, used).with_context(|| format!("queue {queue}, {used:?}"))?;
            count += 1;
        }
        Ok(count)
    }

    fn finish(&mut self, queue: usize, used: Used) -> Result<()> {
        let slot = match self.queues[queue].ring {
            Ring::Split(_) => u16::try_from(used.head).context("a head")? / CHAIN,
            Ring::Packed(_) => u16::try_from(used.head).context("a buffer id")?,
        };
        let place = self.place(queue, slot);
        let state = self.queues[queue].slots.get_mut(usize::from(slot)).context("no such slot")?;
        let state = std::mem::replace(state, Slot::Free);
        let start = self.queues[queue].started[usize::from(slot)];
        self.spans.push(Span { start, end: now() });
        let status = self.memory.read(place + STATUS, 1)[0];
        ensure!(status == 0, "{state:?} has status {status}");
        match state {
            Slot::Free => bail!("a request came back that was not asked for"),
            Slot::Write { block, version } => {
                self.versions[usize::try_from(block).expect("small")] = version;
            }
            Slot::Read { block } => {
                let version = self.versions[usize::try_from(block).expect("small")];
                let found = self.memory.read(place + BLOCK, BLOCK);
                ensure!(found == content(version), "block {block} is not version {version}");
            }
        }
        Ok(())
    }
}

impl Ring {
    fn new(layout: RingLayout, memory: &Arc<SharedMemory>, offset: usize) -> Result<Self> {
        Ok(match layout {
            RingLayout::Split => Self::Split(RawRing::new(memory, offset, SPLIT_SIZE)?),
            RingLayout::Packed => Self::Packed(RawPackedRing::new(memory, offset, PACKED_SIZE)?),
        })
    }

    fn size(&self) -> u16 {
        match self {
            Self::Split(ring) => ring.size(),
            Self::Packed(ring) => ring.size(),
        }
    }

    fn offsets(&self) -> [usize; 3] {
        match self {
            Self::Split(ring) => ring.offsets(),
            Self::Packed(ring) => ring.offsets(),
        }
    }

    /// What QEMU says after a server has gone without a word: of a split ring the used index; of a packed ring what it
    /// last heard, here nothing.
    fn known_base(&self) -> u32 {
        match self {
            Self::Split(ring) => ring.used_index().into(),
            Self::Packed(_) => 0x8000_8000,
        }
    }

    fn offer(&mut self, slot: u16, pieces: &[Piece]) {
        match self {
            Self::Split(ring) => {
                ring.set_chain(slot * CHAIN, pieces);
                ring.offer(slot * CHAIN);
            }
            Self::Packed(ring) => ring.offer(slot, pieces),
        }
    }

    fn take_used(&mut self) -> Result<Option<Used>> {
        match self {
            Self::Split(ring) => Ok(ring.take_used()),
            Self::Packed(ring) => ring.take_used(),
        }
    }

    fn take_calls(&self) -> Result<()> {
        match rustix::io::read(self.call_fd(), &mut [0; 8]) {
            Ok(_) | Err(rustix::io::Errno::AGAIN) => Ok(()),
            Err(error) => Err(error).context("read the call eventfd"),
        }
    }

    fn kick_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Split(ring) => ring.kick_fd(),
            Self::Packed(ring) => ring.kick_fd(),
        }
    }

    fn call_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Split(ring) => ring.call_fd(),
            Self::Packed(ring) => ring.call_fd(),
        }
    }
}

fn negotiated(socket: &Path, layout: RingLayout, is_write_back: bool) -> Result<FrontEnd> {
    let mut front_end = FrontEnd::connect(socket)?;
    let packed = match layout {
        RingLayout::Split => 0,
        RingLayout::Packed => feature::RING_PACKED,
    };
    let flush = if is_write_back { feature::BLK_FLUSH } else { 0 };
    let wanted = feature::VERSION_1 | flush | feature::BLK_MQ | packed;
    let protocol =
        protocol_feature::MQ | protocol_feature::REPLY_ACK | protocol_feature::INFLIGHT_SHMFD;
    let features = front_end.negotiate(wanted, protocol)?;
    ensure!(features & packed == packed, "packed rings are not offered");
    Ok(front_end)
}

/// What a block holds after the write of this version.
fn content(version: u64) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK];
    if version > 0 {
        Rng::new(version).fill(&mut bytes);
    }
    bytes
}
