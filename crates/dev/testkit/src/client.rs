//! A vhost-user-blk front end on libblkio's driver (crate `virtio-driver`): a client nobody here wrote.
//!
//! Where it stands: tests submit `Request`s whose data lies in memory shared with the server, and take `Completion`s.
//! `model` builds its random workload on it.
//!
//! Invariants: a buffer is named by its place in the shared memory, so a request can never point outside it; the
//! queues are dropped before the transport that owns their memory.
//! Threads: one client is used by one thread.
//! Not here: reconnecting, GET_VRING_BASE, hostile rings (see `rawring`).

use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use virtio_driver::{
    EventFd, QueueNotifier, VhostUser, VirtioBlkConfig, VirtioBlkFeatureFlags, VirtioBlkQueue,
    VirtioBlkReqBuf, VirtioBlkTransport, VirtioFeatureFlags,
};

use crate::deadline::Deadline;
use crate::memory::SharedMemory;

mod packed_base;
mod raw_buffers;
mod timed;

use packed_base::Relay;

/// How long one request may take before a test gives up on it.
pub const REQUEST_LIMIT: Duration = Duration::from_secs(60);

/// Whether the client offers event suppression by index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventIndex {
    /// VIRTIO_F_EVENT_IDX is taken if offered.
    On,
    /// VIRTIO_F_EVENT_IDX is never taken.
    Off,
}

/// How the client's rings lie in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RingLayout {
    /// Split rings.
    Split,
    /// Packed rings, which the server must offer.
    Packed,
}

/// What a client asks for.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// How many queues to set up.
    pub queues: usize,
    /// Descriptors per queue, a power of two.
    pub queue_size: u16,
    /// Bytes of shared memory for data.
    pub memory_bytes: usize,
    /// Event suppression by index.
    pub event_index: EventIndex,
    /// Split or packed rings.
    pub layout: RingLayout,
}

impl Shape {
    /// One queue and a MiB of memory, for tests that do one thing at a time.
    pub fn small() -> Self {
        Self {
            queues: 1,
            queue_size: 128,
            memory_bytes: 1 << 20,
            event_index: EventIndex::On,
            layout: RingLayout::Split,
        }
    }
}

/// A piece of the shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Where it starts.
    pub offset: usize,
    /// Its bytes.
    pub length: usize,
}

/// One request; offsets and lengths are bytes of the disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Reads into the segments.
    Read {
        /// Where on the disk.
        offset: u64,
        /// Where in memory.
        segments: Vec<Segment>,
    },
    /// Writes from the segments.
    Write {
        /// Where on the disk.
        offset: u64,
        /// Where in memory.
        segments: Vec<Segment>,
    },
    /// Makes completed writes durable.
    Flush,
    /// Says that a range is not needed.
    Discard {
        /// Where on the disk.
        offset: u64,
        /// How much.
        length: u64,
    },
    /// Zeroes a range.
    WriteZeroes {
        /// Where on the disk.
        offset: u64,
        /// How much.
        length: u64,
        /// Whether the range may lose its room in the image.
        unmap: Unmap,
    },
}

/// The UNMAP flag of a write-zeroes request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unmap {
    /// The room may be given back.
    Allowed,
    /// The room stays allocated.
    Forbidden,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// VIRTIO_BLK_S_OK.
    Ok,
    /// VIRTIO_BLK_S_IOERR.
    IoError,
    /// VIRTIO_BLK_S_UNSUPP.
    Unsupported,
    /// A status byte the specification does not know.
    Unknown,
}

/// A request that came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// What the submitter called it.
    pub token: u64,
    /// How it ended.
    pub status: Status,
}

/// The fields of the configuration space that tests look at (virtio 1.2, section 5.2.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Configuration {
    /// Bytes of the disk.
    pub capacity_bytes: u64,
    /// Most data segments of a request.
    pub seg_max: u32,
    /// Logical block size in bytes.
    pub blk_size: u32,
    /// Queues on offer.
    pub num_queues: u16,
    /// Most sectors of one discard.
    pub max_discard_sectors: u32,
    /// Most sectors of one write-zeroes request.
    pub max_write_zeroes_sectors: u32,
}

/// A connected client with its queues set up.
pub struct Client {
    // Order matters: the queues point into memory that the transport unmaps when it is dropped, and the relay waits for
    // the transport to hang up.
    queues: Vec<Queue>,
    transport: Box<VirtioBlkTransport>,
    _relay: Option<Relay>,
    memory: Arc<SharedMemory>,
    features: VirtioBlkFeatureFlags,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Client").field("queues", &self.queues.len()).finish_non_exhaustive()
    }
}

struct Queue {
    ring: VirtioBlkQueue<'static, u64>,
    kick: Box<dyn QueueNotifier>,
    call: Arc<EventFd>,
}

impl Client {
    /// Connects, negotiates and sets up the queues.
    pub fn connect(socket: &Path, shape: Shape) -> Result<Self> {
        let relay = match shape.layout {
            RingLayout::Split => None,
            RingLayout::Packed => Some(Relay::start(socket)?),
        };
        let socket = relay.as_ref().map_or_else(|| socket.to_owned(), Relay::socket);
        let path = socket.to_str().context("a socket path is text")?;
        let mut wanted = VirtioFeatureFlags::VERSION_1.bits() | disk_features().bits();
        if shape.event_index == EventIndex::On {
            wanted |= VirtioFeatureFlags::RING_EVENT_IDX.bits();
        }
        if shape.layout == RingLayout::Packed {
            wanted |= VirtioFeatureFlags::RING_PACKED.bits();
        }
        let connection = VhostUser::<VirtioBlkConfig, VirtioBlkReqBuf>::new(path, wanted)
            .with_context(|| format!("connect to {path}"))?;
        let mut transport: Box<VirtioBlkTransport> = Box::new(connection);
        let chosen = transport.get_features();
        let is_packed = chosen & VirtioFeatureFlags::RING_PACKED.bits() != 0;
        ensure!(is_packed == (shape.layout == RingLayout::Packed), "features {chosen:#x}");
        let features = VirtioBlkFeatureFlags::from_bits_truncate(chosen);
        let rings =
            VirtioBlkQueue::setup_queues(transport.as_mut(), shape.queues, shape.queue_size)
                .context("set up the queues")?;
        let memory = Arc::new(SharedMemory::new(shape.memory_bytes)?);
        let address = memory.address(0, memory.length()).addr();
        transport
            .map_mem_region(address, memory.length(), memory.file().as_raw_fd(), 0)
            .context("share the data memory")?;
        let mut queues = Vec::with_capacity(rings.len());
        for (index, mut ring) in rings.into_iter().enumerate() {
            ring.set_used_notif_enabled(true);
            let kick = transport.get_submission_notifier(index);
            let call = transport.get_completion_fd(index);
            queues.push(Queue { ring, kick, call });
        }
        Ok(Self { queues, transport, _relay: relay, memory, features })
    }

    /// The memory that segments lie in.
    pub fn memory(&self) -> &SharedMemory {
        &self.memory
    }

    /// How many queues are set up.
    pub fn queue_count(&self) -> usize {
        self.queues.len()
    }

    /// The negotiated features of the disk.
    pub fn has_feature(&self, feature: VirtioBlkFeatureFlags) -> bool {
        self.features.contains(feature)
    }

    /// Reads the configuration space.
    pub fn configuration(&self) -> Result<Configuration> {
        let raw = self.transport.get_config().context("read the configuration space")?;
        Ok(Configuration {
            capacity_bytes: u64::from(raw.capacity) * 512,
            seg_max: raw.seg_max.into(),
            blk_size: raw.blk_size.into(),
            num_queues: raw.num_queues.into(),
            max_discard_sectors: raw.max_discard_sectors.into(),
            max_write_zeroes_sectors: raw.max_write_zeroes_sectors.into(),
        })
    }

    /// Puts a request into a queue; the server may not see it before `kick`.
    pub fn submit(&mut self, queue: usize, request: &Request, token: u64) -> Result<()> {
        let ring = &mut self.queues[queue].ring;
        match request {
            Request::Read { offset, segments } => {
                raw_buffers::read(ring, &self.memory, *offset, segments, token)
            }
            Request::Write { offset, segments } => {
                raw_buffers::write(ring, &self.memory, *offset, segments, token)
            }
            Request::Flush => ring.flush(token),
            Request::Discard { offset, length } => ring.discard(*offset, *length, token),
            Request::WriteZeroes { offset, length, unmap } => {
                ring.write_zeroes(*offset, *length, *unmap == Unmap::Allowed, token)
            }
        }
        .with_context(|| format!("queue {queue}: submit {request:?}"))
    }

    /// Tells the server about submitted requests, if it wants to be told.
    pub fn kick(&mut self, queue: usize) -> Result<()> {
        let queue = &mut self.queues[queue];
        if queue.ring.avail_notif_needed() {
            queue.kick.notify().context("kick")?;
        }
        Ok(())
    }

    /// Takes what has come back in one queue, without waiting.
    pub fn completions(&mut self, queue: usize) -> Vec<Completion> {
        let ring = &mut self.queues[queue].ring;
        ring.completions()
            .map(|done| Completion { token: done.context, status: status(done.ret) })
            .collect()
    }

    /// Waits until at least one request has come back in any queue; gives (queue, completion).
    pub fn wait_any(&mut self, deadline: Deadline) -> Result<Vec<(usize, Completion)>> {
        loop {
            let found = self.completions_of_all();
            if !found.is_empty() {
                return Ok(found);
            }
            // The driver's wish for an interrupt must be visible before it looks for the last time; for packed rings it
            // leaves that to its user.
            fence(Ordering::SeqCst);
            let found = self.completions_of_all();
            if !found.is_empty() {
                return Ok(found);
            }
            self.sleep_until_called(deadline)?;
        }
    }

    fn completions_of_all(&mut self) -> Vec<(usize, Completion)> {
        (0..self.queues.len())
            .flat_map(|queue| self.completions(queue).into_iter().map(move |done| (queue, done)))
            .collect()
    }

    /// Does one request and waits for its end; nothing else may be in flight in that queue.
    pub fn execute(&mut self, queue: usize, request: &Request) -> Result<Status> {
        self.submit(queue, request, 0)?;
        self.kick(queue)?;
        let deadline = Deadline::after(REQUEST_LIMIT);
        let done = self.wait_any(deadline)?;
        ensure!(done.len() == 1 && done[0].0 == queue, "{request:?} came back as {done:?}");
        Ok(done[0].1.status)
    }

    /// Reads through queue 0 by way of a buffer at `memory_offset`.
    pub fn read(&mut self, offset: u64, length: usize, memory_offset: usize) -> Result<Vec<u8>> {
        let segments = vec![Segment { offset: memory_offset, length }];
        let status = self.execute(0, &Request::Read { offset, segments })?;
        ensure!(status == Status::Ok, "read of {length} bytes at {offset} ended with {status:?}");
        Ok(self.memory.read(memory_offset, length))
    }

    /// Writes through queue 0 by way of a buffer at `memory_offset`.
    pub fn write(&mut self, offset: u64, bytes: &[u8], memory_offset: usize) -> Result<()> {
        self.memory.write(memory_offset, bytes);
        let segments = vec![Segment { offset: memory_offset, length: bytes.len() }];
        let status = self.execute(0, &Request::Write { offset, segments })?;
        ensure!(status == Status::Ok, "write of {} bytes at {offset}: {status:?}", bytes.len());
        Ok(())
    }

    /// Flushes through queue 0.
    pub fn flush(&mut self) -> Result<()> {
        let status = self.execute(0, &Request::Flush)?;
        ensure!(status == Status::Ok, "flush ended with {status:?}");
        Ok(())
    }

    /// Sleeps as a guest does: until an interrupt of any queue.
    fn sleep_until_called(&self, deadline: Deadline) -> Result<()> {
        let left = deadline.remaining();
        if left.is_zero() {
            bail!("no request came back within {:?}", deadline.limit());
        }
        let mut waiting: Vec<PollFd<'_>> = self
            .queues
            .iter()
            .map(|queue| PollFd::from_borrowed_fd(queue.call.as_fd(), PollFlags::IN))
            .collect();
        let timeout = Timespec::try_from(left).context("the time left")?;
        let woken = poll(&mut waiting, Some(&timeout)).context("poll the call eventfds")?;
        // What lies in a used ring without an interrupt is no excuse: a guest would sleep on.
        ensure!(woken > 0, "no interrupt within {:?}", deadline.limit());
        let ready: Vec<bool> =
            waiting.iter().map(|entry| entry.revents().contains(PollFlags::IN)).collect();
        for (queue, _) in self.queues.iter().zip(ready).filter(|(_, ready)| *ready) {
            queue.call.read().context("read a call eventfd")?;
        }
        Ok(())
    }
}

fn disk_features() -> VirtioBlkFeatureFlags {
    VirtioBlkFeatureFlags::SEG_MAX
        | VirtioBlkFeatureFlags::RO
        | VirtioBlkFeatureFlags::BLK_SIZE
        | VirtioBlkFeatureFlags::FLUSH
        | VirtioBlkFeatureFlags::TOPOLOGY
        | VirtioBlkFeatureFlags::MQ
        | VirtioBlkFeatureFlags::DISCARD
        | VirtioBlkFeatureFlags::WRITE_ZEROES
}

/// The driver gives a negative errno for each status byte.
fn status(result: i32) -> Status {
    match result {
        0 => Status::Ok,
        -5 => Status::IoError,
        -95 => Status::Unsupported,
        _ => Status::Unknown,
    }
}
