//! What an iothread serves, and the one dynamic call per source and turn.
//!
//! Threads: a source belongs to one iothread at a time and travels whole; what belongs to a
//! thread (lanes, operations in flight) stays in that thread's [`Engine`].

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use block::{ByteCount, Node};
use virtio::{RingBase, RingLog};

use crate::{Engine, LaneIndex, Mailbox};

/// What an iothread calls a source that it serves now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SourceKey(pub u32);

/// How much a source may take on in a turn.
#[derive(Debug, Clone, Copy)]
pub enum Appetite<'a> {
    /// At most so many new requests.
    Pop(u32),
    /// What is fair while other sources are served too.
    Share(Share<'a>),
    /// None: only finish what is in flight.
    DrainOnly,
}

/// How much a source may take on beside others: a step, and further steps while nobody else has
/// something new.
#[derive(Debug, Clone, Copy)]
pub struct Share<'a> {
    /// At most so many new requests in the whole turn; at least 1.
    pub requests: u32,
    /// How far to go before the others are asked.
    pub step: Step,
    /// The same while requests are carried out by this thread itself (`kernel_io::inline`).
    pub inline_step: Step,
    /// Whom to ask.
    pub others: &'a dyn Others,
}

/// How many new requests a source takes on at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// At most so many; at least 1.
    pub requests: u32,
    /// None after those that have so many bytes together; at least 1.
    pub bytes: ByteCount,
}

impl Step {
    /// The most bytes before the last request of any step: how many pieces a batch may have goes with them.
    const BYTES_MAX: ByteCount = ByteCount(16 << 20);

    /// So many requests, or fewer large ones.
    #[must_use]
    pub const fn of(requests: u32) -> Self {
        Self { requests, bytes: Self::BYTES_MAX }
    }
}

/// The other sources of the iothread.
pub trait Others: std::fmt::Debug {
    /// Whether one of them has something new that nobody knew of before the turn. Cheap, but not
    /// for nothing: asked once per [`Step`].
    fn have_new(&self) -> bool;
}

/// What a turn left behind.
#[derive(Debug)]
#[must_use = "a source that has more to do must get another turn"]
pub enum Turn {
    /// Nothing to do until there is something new, its mailbox or an outcome calls.
    Idle,
    /// There is more; give it another turn soon.
    More,
    /// There may be more, but the iothread has no room; give it another turn after completions.
    Full,
    /// The guest broke the rules of the ring: it is not served any more.
    Broken(Fault),
}

/// Whether a source lets its iothread sleep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "what came meanwhile comes without a kick"]
pub enum Rest {
    /// It will kick when there is something new.
    Kicks,
    /// Something new came meanwhile, for which no kick may come: give it a turn.
    More,
}

/// Why a source cannot be served any more.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// The ring itself is wrong.
    #[error(transparent)]
    Ring(#[from] virtio::RingError),
    /// A request cannot be answered.
    #[error("request {head} cannot be answered")]
    NoStatus {
        /// The request's head.
        head: u16,
        /// Why.
        #[source]
        source: virtio::NoStatus,
    },
}

/// How many requests of each kind a source has completed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Reads.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
    /// Flushes.
    pub flushes: u64,
    /// Discards.
    pub discards: u64,
    /// Write-zeroes.
    pub write_zeroes: u64,
    /// Requests that ended with an error, whatever their kind.
    pub errors: u64,
}

/// What remains of a source when it is stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ending {
    /// How far the ring has been served: where a successor goes on.
    pub base: RingBase,
    /// What it did.
    pub counters: Counters,
}

/// Something that brings requests: a ring.
pub trait Source: std::fmt::Debug + Send {
    /// The descriptor that becomes readable when there is something new.
    fn kick(&self) -> BorrowedFd<'_>;

    /// The node its requests go to.
    fn node(&self) -> &Arc<dyn Node>;

    /// Where outcomes from other threads arrive.
    fn mailbox(&self) -> &Arc<Mailbox>;

    /// Settles down on the calling iothread, with a lane it has opened on [`Source::node`].
    fn arrive(&mut self, engine: &mut Engine, lane: LaneIndex, key: SourceKey);

    /// Does a bounded piece of work. Afterwards new requests need not come with a kick: before
    /// the iothread sleeps it must look ([`Source::has_new`]) or call [`Source::rest`].
    fn turn(&mut self, engine: &mut Engine, appetite: Appetite<'_>) -> Turn;

    /// Whether there is something new. Cheap enough to be asked again and again.
    fn has_new(&self) -> bool;

    /// Asks for kicks, so that the iothread need not look any more.
    fn rest(&mut self) -> Rest;

    /// Leaves the calling iothread: takes along what is finished, leaves what is in flight.
    fn depart(&mut self, engine: &mut Engine);

    /// Requests taken from the guest and not yet completed.
    fn in_flight(&self) -> usize;

    /// Replaces the descriptor that interrupts the guest, and interrupts it.
    fn set_call(&mut self, engine: &mut Engine, call: Option<OwnedFd>);

    /// Has another log, or none, mark what is written for requests that are not answered yet. The
    /// source is served here.
    fn set_log(&mut self, engine: &mut Engine, log: Option<RingLog>);

    /// Tells the front end of a fault, if it has given a descriptor for that.
    fn signal_error(&self, engine: &mut Engine);

    /// What it has done, and where a successor would go on.
    fn ending(&self) -> Ending;
}
