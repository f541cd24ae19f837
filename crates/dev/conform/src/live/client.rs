//! Clients of the disk under test: guests with a ring each, threads with plain memory, and peers behind a socket.
//!
//! Where it stands: the player brings its requests through any of them, and does not know which.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::mpsc::channel;

use anyhow::{Context, Result, anyhow, ensure};
use block::{Capacity, DiskSize, Durability, Node, Operation, Outcome};
use iothread::{Iothread, PlacedFrontEnd, SourceName};
use kernel_io::Notifier;
use request_path::{FrontEnd, FrontEndSource, LogicalUnitIndex};
use testkit::conformance::workload::{Ended, Request};
use testkit::plain_front::{PlainClient, PlainFront, PlainRequest};
use testkit::rng::Rng;
use testkit::stream_front::StreamFront;
use testkit::stream_front::client::StreamClient;
use virtio::{BlkRules, Ring, RingBase};
use virtio_blk::{BlkRing, BlkRingSetup};

use super::guest::Guest;
use super::segments::{SLOT_BYTES, SLOTS, lay_out, spread, take_in};
use super::{PATIENCE, Watch};

/// A client, and where it is served.
pub(crate) trait Client {
    /// Has it served, where it was stopped.
    fn start(&mut self, node: &Arc<dyn Node>, on: &Arc<Iothread>, watch: Watch) -> Result<()>;

    /// Moves it to the other of two iothreads, if it is served.
    fn change_iothread(&self, iothreads: &[Arc<Iothread>; 2]) -> Result<()>;

    /// Ends that it is served, if it is. Its requests are answered then but for those that were not begun.
    fn stop(&mut self) -> Result<()>;

    fn has_room(&self) -> bool;

    fn in_flight(&self) -> usize;

    /// What becomes readable when there is something for it.
    fn call(&self) -> BorrowedFd<'_>;

    /// Whether it can ask what bytes are.
    fn asks_status(&self) -> bool;

    fn submit(&mut self, request: Request, rng: &mut Rng) -> Result<()>;

    /// The requests that are over since the last call, with what reads have brought.
    fn collect(&mut self) -> Result<Vec<(Request, Ended)>>;
}

/// A guest with a virtio-blk ring.
pub(crate) struct OnRing {
    guest: Guest,
    durability: Durability,
    base: RingBase,
    placed: Option<PlacedFrontEnd<BlkRing>>,
}

impl OnRing {
    pub(crate) fn new(durability: Durability) -> Result<Self> {
        Ok(Self { guest: Guest::new()?, durability, base: RingBase(0), placed: None })
    }
}

impl Client for OnRing {
    fn start(&mut self, node: &Arc<dyn Node>, on: &Arc<Iothread>, watch: Watch) -> Result<()> {
        let Self { guest, durability, base, placed } = self;
        let rules = BlkRules {
            size: node.size(),
            access: node.access(),
            durability: *durability,
            discard: true,
            write_zeroes: true,
        };
        let ring = BlkRing::new(BlkRingSetup {
            ring: Ring::new(guest.memory(), guest.setup(*base))?,
            rules,
            capacity: Arc::new(Capacity::new(node.size())),
            serial: "conform".to_owned(),
            kick: guest.kick_fd()?,
            call: Some(guest.call_fd()?),
            error: None,
        });
        *placed = Some(place(ring, node, on, watch)?);
        Ok(())
    }

    fn change_iothread(&self, iothreads: &[Arc<Iothread>; 2]) -> Result<()> {
        self.placed.as_ref().map_or(Ok(()), |placed| to_the_other(placed, iothreads))
    }

    fn stop(&mut self) -> Result<()> {
        if let Some(placed) = self.placed.take() {
            self.base = stop(placed)?.front().base();
        }
        Ok(())
    }

    fn has_room(&self) -> bool {
        self.guest.has_room()
    }

    fn in_flight(&self) -> usize {
        self.guest.in_flight()
    }

    fn call(&self) -> BorrowedFd<'_> {
        self.guest.call().as_fd()
    }

    fn asks_status(&self) -> bool {
        false
    }

    fn submit(&mut self, request: Request, rng: &mut Rng) -> Result<()> {
        self.guest.submit(request, rng)
    }

    fn collect(&mut self) -> Result<Vec<(Request, Ended)>> {
        let over = self.guest.collect()?.into_iter();
        over.map(|(request, status)| match status {
            0 => Ok((request, Ended::Well)),
            1 => Ok((request, Ended::FailedSomehow)),
            other => Err(anyhow!("{:?}: status {other}", request.operation)),
        })
        .collect()
    }
}

/// A request that the device has.
struct Open {
    request: Request,
    /// Places in memory and lengths, in order.
    segments: Vec<(usize, usize)>,
}

/// A thread with plain memory.
pub(crate) struct OnPlainMemory {
    client: PlainClient,
    /// By slot.
    open: [Option<Open>; SLOTS],
    placed: Option<PlacedFrontEnd<PlainFront>>,
}

impl OnPlainMemory {
    pub(crate) fn new() -> Result<Self> {
        let client = PlainClient::new(u16::try_from(SLOTS)?, SLOTS * SLOT_BYTES)?;
        Ok(Self { client, open: std::array::from_fn(|_| None), placed: None })
    }
}

impl Client for OnPlainMemory {
    fn start(&mut self, node: &Arc<dyn Node>, on: &Arc<Iothread>, watch: Watch) -> Result<()> {
        self.placed = Some(place(self.client.front(), node, on, watch)?);
        Ok(())
    }

    fn change_iothread(&self, iothreads: &[Arc<Iothread>; 2]) -> Result<()> {
        self.placed.as_ref().map_or(Ok(()), |placed| to_the_other(placed, iothreads))
    }

    fn stop(&mut self) -> Result<()> {
        if let Some(placed) = self.placed.take() {
            stop(placed)?;
        }
        Ok(())
    }

    fn has_room(&self) -> bool {
        self.client.free_slot().is_some()
    }

    fn in_flight(&self) -> usize {
        self.client.in_flight()
    }

    fn call(&self) -> BorrowedFd<'_> {
        self.client.call()
    }

    fn asks_status(&self) -> bool {
        true
    }

    fn submit(&mut self, request: Request, rng: &mut Rng) -> Result<()> {
        let slot = self.client.free_slot().context("a free slot")?;
        let operation = request.operation;
        let segments = match operation {
            Operation::Read(_) | Operation::Status(_) | Operation::Write(..) => {
                let start = usize::from(slot.0) * SLOT_BYTES;
                let segments = spread(start, request.data.len(), rng);
                lay_out(self.client.memory(), &request, &segments);
                segments
            }
            Operation::Discard(..) | Operation::WriteZeroes(..) | Operation::Flush => Vec::new(),
        };
        self.open[usize::from(slot.0)] = Some(Open { request, segments: segments.clone() });
        self.client.submit(PlainRequest { slot, unit: LogicalUnitIndex(0), operation, segments })
    }

    fn collect(&mut self) -> Result<Vec<(Request, Ended)>> {
        let Self { client, open, .. } = self;
        let over = client.collect()?.into_iter();
        over.map(|(slot, outcome)| {
            let open = open[usize::from(slot.0)].take();
            let Open { mut request, segments } = open.context("a request of that slot")?;
            take_in(client.memory(), &mut request, &segments)?;
            let ended = match outcome {
                Outcome::Done => Ended::Well,
                Outcome::Failed(_) => Ended::FailedSomehow,
            };
            Ok((request, ended))
        })
        .collect()
    }
}

/// A peer behind a socket.
pub(crate) struct OnStream {
    client: StreamClient,
    /// By slot.
    open: [Option<Request>; SLOTS],
    /// While it is not served.
    front: Option<StreamFront>,
    placed: Option<PlacedFrontEnd<StreamFront>>,
}

impl OnStream {
    pub(crate) fn new(size: DiskSize) -> Result<Self> {
        let (slots, bytes) = (u16::try_from(SLOTS)?, SLOT_BYTES);
        let (client, front) = StreamClient::new(vec![size], slots, bytes)?;
        let open = std::array::from_fn(|_| None);
        Ok(Self { client, open, front: Some(front), placed: None })
    }
}

impl Client for OnStream {
    fn start(&mut self, node: &Arc<dyn Node>, on: &Arc<Iothread>, watch: Watch) -> Result<()> {
        let front = self.front.take().context("it is served already")?;
        self.placed = Some(place(front, node, on, watch)?);
        Ok(())
    }

    fn change_iothread(&self, iothreads: &[Arc<Iothread>; 2]) -> Result<()> {
        self.placed.as_ref().map_or(Ok(()), |placed| to_the_other(placed, iothreads))
    }

    fn stop(&mut self) -> Result<()> {
        if let Some(placed) = self.placed.take() {
            // With the answers that were not sent.
            self.front = Some(stop(placed)?.into_front());
        }
        Ok(())
    }

    fn has_room(&self) -> bool {
        self.client.free_slot().is_some()
    }

    fn in_flight(&self) -> usize {
        self.client.in_flight()
    }

    fn call(&self) -> BorrowedFd<'_> {
        self.client.call()
    }

    fn asks_status(&self) -> bool {
        false
    }

    fn submit(&mut self, request: Request, _: &mut Rng) -> Result<()> {
        let slot = self.client.free_slot().context("a free slot")?;
        let data = match request.operation {
            Operation::Write(..) => &request.data[..],
            Operation::Read(_)
            | Operation::Status(_)
            | Operation::Discard(..)
            | Operation::WriteZeroes(..)
            | Operation::Flush => &[],
        };
        self.client.submit(slot, LogicalUnitIndex(0), request.operation, data)?;
        self.open[usize::from(slot.0)] = Some(request);
        Ok(())
    }

    fn collect(&mut self) -> Result<Vec<(Request, Ended)>> {
        let Self { client, open, .. } = self;
        let over = client.collect()?.into_iter();
        over.map(|(slot, outcome, data)| {
            let mut request = open[usize::from(slot.0)].take().context("a request of that slot")?;
            if let Operation::Read(_) = request.operation
                && outcome == Outcome::Done
            {
                request.data = data;
            }
            let ended = match outcome {
                Outcome::Done => Ended::Well,
                Outcome::Failed(_) => Ended::FailedSomehow,
            };
            Ok((request, ended))
        })
        .collect()
    }
}

fn place<F: FrontEnd>(
    front: F,
    node: &Arc<dyn Node>,
    on: &Arc<Iothread>,
    watch: Watch,
) -> Result<PlacedFrontEnd<F>> {
    let source = FrontEndSource::new(front, vec![Arc::clone(node)], Arc::new(Notifier::new()?));
    let name = SourceName { export: "conform".to_owned(), queue: 0 };
    let placed = PlacedFrontEnd::on(on, name, source, Arc::new(watch));
    placed.map_err(|error| anyhow!("place a client: {error}"))
}

fn to_the_other<F: FrontEnd>(
    placed: &PlacedFrontEnd<F>,
    iothreads: &[Arc<Iothread>; 2],
) -> Result<()> {
    let on_first = placed.iothread().is_some_and(|now| Arc::ptr_eq(&now, &iothreads[0]));
    Ok(placed.move_to(&iothreads[usize::from(on_first)])?)
}

fn stop<F: FrontEnd>(placed: PlacedFrontEnd<F>) -> Result<Box<FrontEndSource<F>>> {
    let (stopped, source) = channel();
    // It has no limit of its own.
    std::thread::spawn(move || {
        // Nobody waits for it any more, after too long.
        let _late = stopped.send(placed.stop());
    });
    let source = source.recv_timeout(PATIENCE).context("a client's source does not stop")?;
    ensure!(source.in_flight() == 0, "a source was stopped with requests in flight");
    Ok(source)
}
