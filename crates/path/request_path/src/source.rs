//! What an iothread serves, and the one dynamic call per source and turn.
//!
//! Threads: a source belongs to one iothread at a time and travels whole; what belongs to a
//! thread (lanes, operations in flight) stays in that thread's [`Engine`].

use std::any::Any;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use block::{ByteCount, Node};

use crate::{Engine, Interest, LaneIndex, OutcomeMailbox};

/// The index of a source in its iothread's table, while it is served there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SourceKey(pub u32);

/// How many new requests a source may take in a turn.
#[derive(Debug, Clone, Copy)]
pub enum TurnBudget<'a> {
    /// At most so many new requests.
    Alone(u32),
    /// What is fair while other sources are served too.
    Shared(FairTurnBudget<'a>),
    /// None: only finish what is in flight.
    CompletionsOnly,
}

/// The budget of a turn beside other sources: batches, as long as no other source has new requests.
#[derive(Debug, Clone, Copy)]
pub struct FairTurnBudget<'a> {
    /// At most so many new requests in the whole turn; at least 1.
    pub requests: u32,
    /// How far to go before the others are asked.
    pub step: BatchLimit,
    /// The same while requests are carried out by this thread itself (`kernel_io::inline`).
    pub inline_step: BatchLimit,
    /// Whom to ask.
    pub others: &'a dyn OtherSources,
}

/// The most requests and bytes of one batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchLimit {
    /// At most so many; at least 1.
    pub requests: u32,
    /// None after those that have so many bytes together; at least 1.
    pub bytes: ByteCount,
}

impl BatchLimit {
    /// The most bytes before the last request of any step: how many pieces a batch may have goes with them.
    const BYTES_MAX: ByteCount = ByteCount(16 << 20);

    /// The most bytes of requests that this thread carries out itself, begun or in a batch: what it does in one turn.
    /// More would only wait for the next ones.
    pub(crate) const INLINE_BYTES_MAX: ByteCount = ByteCount(1 << 20);

    /// So many requests, or fewer large ones.
    #[must_use]
    pub const fn of(requests: u32) -> Self {
        Self { requests, bytes: Self::BYTES_MAX }
    }

    /// The same of requests that this thread carries out itself.
    #[must_use]
    pub(crate) const fn inline(self) -> Self {
        Self { bytes: Self::INLINE_BYTES_MAX, ..self }
    }
}

/// The other sources of the iothread, as a turn asks about them.
pub trait OtherSources: std::fmt::Debug {
    /// Whether one of them has something new that nobody knew of before the turn. Cheap, but not
    /// for nothing: asked once per [`BatchLimit`].
    fn have_new(&self) -> bool;
}

/// How a turn ended: idle, more to do, out of room, or the client broke the protocol.
#[derive(Debug)]
#[must_use = "a source that has more to do must get another turn"]
pub enum TurnResult {
    /// Nothing to do until there is something new, its mailbox or an outcome calls.
    Idle,
    /// There is more; give it another turn soon.
    More,
    /// There may be more, but the iothread has no room; give it another turn after completions.
    Full,
    /// The client broke the rules: it is not served any more.
    Broken(SourceFault),
}

/// Whether a source lets its iothread sleep: kicks are on, or new requests have arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "what came meanwhile comes without a kick"]
pub enum SleepDecision {
    /// It will kick when there is something new.
    MaySleep,
    /// Something new came meanwhile, for which no kick may come: give it a turn.
    MoreWork,
}

/// Why a source cannot be served any more.
pub type SourceFault = Box<dyn std::error::Error + Send + Sync>;

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
    /// Bytes of reads without an error.
    pub read_bytes: u64,
    /// Bytes of writes without an error.
    pub written_bytes: u64,
}

impl Counters {
    /// With what another source has completed.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        // Gauges wrap around, too.
        let sum = u64::wrapping_add;
        Self {
            reads: sum(self.reads, other.reads),
            writes: sum(self.writes, other.writes),
            flushes: sum(self.flushes, other.flushes),
            discards: sum(self.discards, other.discards),
            write_zeroes: sum(self.write_zeroes, other.write_zeroes),
            errors: sum(self.errors, other.errors),
            read_bytes: sum(self.read_bytes, other.read_bytes),
            written_bytes: sum(self.written_bytes, other.written_bytes),
        }
    }
}

/// What an iothread serves in turns: a source of requests, such as a virtqueue.
pub trait Source: Any + std::fmt::Debug + Send {
    /// The descriptor that becomes ready when it needs a turn.
    fn kick(&self) -> BorrowedFd<'_>;

    /// What for.
    fn interest(&self) -> Interest;

    /// The nodes its requests go to, by unit.
    fn nodes(&self) -> &[Arc<dyn Node>];

    /// The lanes its requests go to where it is served, by unit.
    fn lanes(&self) -> &[LaneIndex];

    /// Where outcomes from other threads arrive.
    fn mailbox(&self) -> &Arc<OutcomeMailbox>;

    /// Settles down on the calling iothread, with lanes that it has opened on [`Source::nodes`].
    fn arrive(&mut self, engine: &mut Engine, lanes: Vec<LaneIndex>, key: SourceKey);

    /// Does a bounded piece of work. Afterwards new requests need not come with a kick: before
    /// the iothread sleeps it must look ([`Source::has_new`]) or call [`Source::rest`].
    fn turn(&mut self, engine: &mut Engine, budget: TurnBudget<'_>) -> TurnResult;

    /// The time from the end of its last turn to its next one is measured.
    fn begin_wait(&mut self);

    /// Its next turn, which begins now, comes so long after the last one, or after others got theirs while it had none. Said
    /// of one round in [`Sampler::EVERY`](crate::Sampler::EVERY).
    fn waited(&mut self, time: Duration);

    /// It comes from another iothread and is about to get its first turn; nothing was taken from it for so long.
    fn moved(&mut self, pause: Duration);

    /// Whether there is something new. Cheap enough to be asked again and again.
    fn has_new(&self) -> bool;

    /// Whether there is room by now for that for which there was none in its last turn.
    fn has_room(&self, engine: &Engine) -> bool;

    /// Whether there was ever anything in it, wherever it was served.
    fn has_had_requests(&self) -> bool;

    /// Answers what is finished, and shows in its gauges all that it has done.
    fn bring_up_to_date(&mut self, engine: &mut Engine);

    /// Asks for kicks, so that the iothread need not look any more.
    fn rest(&mut self) -> SleepDecision;

    /// It will leave the calling iothread soon, or stop: what waits for its client only is cancelled.
    fn begin_leaving(&mut self, engine: &mut Engine);

    /// Why no other iothread can serve it from now on; `None` if any can.
    fn stays(&self) -> Option<&'static str>;

    /// Leaves the calling iothread and its lanes: takes along what is finished, leaves what is in flight.
    fn depart(&mut self, engine: &mut Engine);

    /// How many new requests its last turn has taken.
    fn taken(&self) -> u32;

    /// How many requests it has answered since it was made, whatever their outcome.
    fn answered(&self) -> u64;

    /// Requests taken from the client and not yet answered, and transfers that are not over.
    fn in_flight(&self) -> usize;
}
