//! A disk behind channels: a server, in threads of this process, that is slow, answers in any order, loses its
//! connections and may stand still. Its bytes are in a file.
//!
//! Where it stands: the node [`RemoteNode`] enters a channel for each lane (`client`), which talks to a server of its
//! own (`server`); all of them serve the same [`Remote`]. The suites use it wherever they use a file.
//!
//! Invariants: what its medium promises the engine, it holds the engine to: alignment, length, room, memory. Some
//! [`Mischief`] it does on purpose, for tests that must find it.

mod client;
mod server;

use std::fs::File;
use std::io;
use std::num::NonZeroU32;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use block::{
    Access, Alignments, Answer, BatchPieces, BlockLimits, ByteCount, ByteOffset,
    CancellationSupport, ChannelId, Claim, ClaimError, DiskSize, DurableWriteMethod, Lane,
    LaneContext, LaneError, LeafLane, Mapping, Medium, Node, Piece, Rights, Target,
};

use crate::rng::Rng;
use client::RemoteChannel;

/// How a remote disk behaves.
#[derive(Clone, Copy, Debug)]
pub struct Habits {
    /// Whether its channels can take operations back, like a client on a socket, or not, like a library.
    pub cancel: CancellationSupport,
    /// How its channels hear from their servers.
    pub hears: Hears,
    /// What places and lengths of transfers must be multiples of, in bytes.
    pub alignment: u32,
    /// The most bytes of one transfer.
    pub transfer_max: u64,
    /// How a write becomes durable.
    pub stable_writes: DurableWriteMethod,
    /// How many operations a channel has room for.
    pub room: usize,
    /// How long a server takes for an answer at most.
    pub delay_max: Duration,
    /// One in so many answers is lost together with the connection; none if it is 0.
    pub loses: u64,
    /// Whether it grows with what is written behind its end, as a file does.
    pub grows: bool,
    /// Whether it can zero a range by itself.
    pub zeroes: bool,
    /// Whether it tells what bytes are.
    pub tells_status: bool,
    /// What it does wrong.
    pub mischief: Mischief,
}

/// How a channel hears that answers are there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hears {
    /// By a descriptor.
    Descriptor,
    /// By the waker of its lane, which threads of the server use.
    Waker,
}

/// What a channel does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mischief {
    /// Nothing.
    None,
    /// It says that it takes operations back, and its server still writes to their memory.
    KeepsMemory,
    /// It tells the end of an operation that it has taken back once more.
    EndsAfterAbandon,
    /// It tells the end of each operation twice.
    EndsTwice,
}

impl Habits {
    /// A client on a socket that does nothing unusual.
    pub const PLAIN: Self = Self {
        cancel: CancellationSupport::Possible,
        hears: Hears::Descriptor,
        alignment: 1,
        transfer_max: u64::MAX,
        stable_writes: DurableWriteMethod::ByThemselves,
        room: 16,
        delay_max: Duration::ZERO,
        loses: 0,
        grows: false,
        zeroes: true,
        tells_status: true,
        mischief: Mischief::None,
    };

    /// Any that do no mischief.
    pub fn choose(rng: &mut Rng) -> Self {
        let alignment = [1, 512, 4096][rng.index(3)];
        let cancel = if rng.one_in(2) {
            CancellationSupport::Possible
        } else {
            CancellationSupport::Impossible
        };
        let by_sync = rng.one_in(2);
        Self {
            cancel,
            hears: if rng.one_in(2) { Hears::Descriptor } else { Hears::Waker },
            alignment,
            transfer_max: if rng.one_in(2) { u64::MAX } else { (1 + rng.below(8)) * 4096 },
            stable_writes: if by_sync {
                DurableWriteMethod::BySync
            } else {
                DurableWriteMethod::ByThemselves
            },
            room: 1 + rng.index(16),
            delay_max: Duration::from_micros(rng.below(300)),
            // A library connects again by itself.
            loses: match cancel {
                CancellationSupport::Possible if rng.one_in(2) => 10 + rng.below(50),
                CancellationSupport::Possible | CancellationSupport::Impossible => 0,
            },
            grows: false,
            zeroes: rng.one_in(2),
            tells_status: rng.one_in(2),
            mischief: Mischief::None,
        }
    }
}

/// The disk as all its servers have it.
#[derive(Debug)]
pub struct Remote {
    file: File,
    bytes: u64,
    habits: Habits,
    medium: Arc<Medium>,
    seeds: AtomicU64,
    state: Mutex<State>,
    changed: Condvar,
}

/// What a test does to the servers, and sees of them.
#[derive(Debug, Default)]
struct State {
    stands_still: bool,
    /// Requests that no server has carried out yet.
    waiting: usize,
    /// Requests that are being carried out.
    working: usize,
    /// Connections that were made.
    connections: usize,
}

impl State {
    /// A server begins to carry a request out.
    fn begin(&mut self) {
        self.waiting -= 1;
        self.working += 1;
    }
}

impl Remote {
    /// A disk in this file.
    pub fn new(name: &str, file: File, bytes: u64, habits: Habits, seed: u64) -> Arc<Self> {
        let alignments = Alignments { offset: habits.alignment, ..Alignments::NONE };
        let medium = Medium::new(name.to_owned(), alignments, habits.stable_writes);
        let medium = Arc::new(medium.with_transfer_max(match habits.transfer_max {
            u64::MAX => u64::MAX - u64::MAX % u64::from(habits.alignment),
            bytes => bytes,
        }));
        let (state, changed) = Default::default();
        Arc::new(Self { file, bytes, habits, medium, seeds: seed.into(), state, changed })
    }

    /// What its engines share.
    pub fn medium(&self) -> &Arc<Medium> {
        &self.medium
    }

    /// Nothing is carried out from now on, until [`Remote::go_on`].
    pub fn stand_still(&self) {
        self.state().stands_still = true;
    }

    /// Ends that.
    pub fn go_on(&self) {
        self.state().stands_still = false;
        self.changed.notify_all();
    }

    /// Waits until so many requests lie at servers that stand still; fails after a minute.
    pub fn wait_for(&self, requests: usize) {
        let limit = Duration::from_secs(60);
        let missing = |state: &mut State| state.waiting < requests;
        let waited = self.changed.wait_timeout_while(self.state(), limit, missing);
        let (state, waited) = waited.expect("no holder of this lock panics");
        assert!(!waited.timed_out(), "{} requests have come", state.waiting);
    }

    /// Waits until no request is left, taken back or not; fails after a minute.
    pub fn wait_until_idle(&self) {
        let limit = Duration::from_secs(60);
        let is_busy = |state: &mut State| state.waiting + state.working > 0;
        let waited = self.changed.wait_timeout_while(self.state(), limit, is_busy);
        let (_state, waited) = waited.expect("no holder of this lock panics");
        assert!(!waited.timed_out(), "requests are left");
    }

    /// How many bytes it has now.
    fn bytes(&self) -> u64 {
        if !self.habits.grows {
            return self.bytes;
        }
        self.file.metadata().map_or(self.bytes, |found| found.len())
    }

    /// All its bytes.
    pub fn content(&self) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; usize::try_from(self.bytes()).expect("64-bit host")];
        self.file.read_exact_at(&mut bytes, 0)?;
        Ok(bytes)
    }

    /// How many connections were made, the first of each channel among them.
    pub fn connections(&self) -> usize {
        self.state().connections
    }

    fn rng(&self) -> Rng {
        Rng::new(self.seeds.fetch_add(1, Ordering::Relaxed))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder of this lock panics")
    }
}

/// A node of that disk.
#[derive(Debug)]
pub struct RemoteNode {
    name: String,
    remote: Arc<Remote>,
}

impl RemoteNode {
    /// Under this node-name.
    pub fn new(name: &str, remote: &Arc<Remote>) -> Self {
        Self { name: name.to_owned(), remote: Arc::clone(remote) }
    }
}

impl Node for RemoteNode {
    fn name(&self) -> &str {
        &self.name
    }

    fn size(&self) -> DiskSize {
        DiskSize(ByteCount(self.remote.bytes()))
    }

    fn limits(&self) -> BlockLimits {
        let block = self.remote.habits.alignment.max(512);
        let block = NonZeroU32::new(block).expect("512 is not zero");
        BlockLimits {
            request_alignment: block,
            physical_block: block,
            discard: true,
            discard_granularity: block,
            allocation_unit: block,
        }
    }

    fn access(&self) -> Access {
        Access::ReadWrite
    }

    fn flush(&self) -> io::Result<()> {
        self.remote.file.sync_data()
    }

    fn claim(&self, _: Rights) -> Result<Claim, ClaimError> {
        Ok(Claim::nothing())
    }

    fn open_lane(&self, io: &LaneContext) -> Result<Box<dyn Lane>, LaneError> {
        let failed = |source| LaneError { node: self.name.clone(), source };
        let channel = RemoteChannel::new(&self.remote, io.waker()).map_err(failed)?;
        Ok(Box::new(RemoteLane { channel: io.enter(Box::new(channel)) }))
    }
}

#[derive(Debug)]
struct RemoteLane {
    channel: ChannelId,
}

impl LeafLane for RemoteLane {
    fn answer(&mut self, mapping: &mut Mapping, pieces: &mut BatchPieces) {
        let extent = mapping.operation.extent();
        let count = extent.map_or(ByteCount(0), |extent| extent.count());
        let offset = extent.map_or(ByteOffset(0), |extent| extent.start());
        let target = Target::Channel { channel: self.channel, offset };
        mapping.answer = Answer::Now(pieces.one(Piece { skip: 0, count, target }));
    }
}
