//! A disk that answers later than the one below it (driver `delay`).
//!
//! Where it stands in the life of a request: a request is held first, and then the lane below is asked. So
//! it takes its delay and what the lower disk takes.
//!
//! Invariants: what is held is passed on once, whatever becomes of the settings meanwhile. Ordered requests go to
//! the lane below, and are over, in the order in which they came; below several are carried out at once. Without any
//! delay the clock is not read.
//! Threads: settings are replaced by control threads; lanes see it by one load for each batch, and take
//! the lock only then.

mod distribution;
mod histogram;
mod order;
mod random;
#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use block::{
    Access, Answer, BatchPieces, Child, Claim, ClaimError, Clock, DelayQueue, Lane,
    LaneCompletionDecision, LaneContext, LaneError, Mapping, Node, Operation, Outcome, Rights,
    Token, WakeTime,
};

use crate::child_node::same_as_child;
pub use distribution::{Distribution, Latency, LatencyTooLong, UniformLatency};
pub use histogram::{Histogram, HistogramError};
use order::ArrivalOrderQueue;
use random::Random;

/// Whether requests may overtake each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DelayOrder {
    /// They may.
    Any,
    /// Those of one iothread do not, neither while they are held nor when they are over.
    AsBegun,
}

/// How long requests are delayed. Any combination is legal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DelaySettings {
    /// Reads.
    pub read: Distribution,
    /// Whatever changes the disk: writes, discards and zeroings.
    pub write: Distribution,
    /// Flushes.
    pub flush: Distribution,
    /// Whether requests may overtake each other.
    pub order: DelayOrder,
}

impl DelaySettings {
    /// How an operation is delayed. A status is no I/O, and passes.
    fn of(&self, operation: &Operation) -> Option<&Distribution> {
        match operation {
            Operation::Read(_) => Some(&self.read),
            Operation::Write(..) | Operation::Discard(..) | Operation::WriteZeroes(..) => {
                Some(&self.write)
            }
            Operation::Flush => Some(&self.flush),
            Operation::Status(_) => None,
        }
    }

    fn is_none(&self) -> bool {
        self.read.is_none() && self.write.is_none() && self.flush.is_none()
    }
}

/// A node that delays what goes to its child.
#[derive(Debug)]
pub struct DelayNode {
    name: String,
    child: Arc<Child>,
    access: Access,
    control: Arc<SharedSettings>,
    clock: Arc<dyn Clock>,
    seed: u64,
    /// How many lanes were opened; each has random numbers of its own. Relaxed: it carries no data.
    lanes: AtomicU64,
}

/// The present delay settings, shared by all lanes; they look at its generation.
#[derive(Debug)]
struct SharedSettings {
    settings: Mutex<Arc<DelaySettings>>,
    /// Changes with the settings. Released after they were replaced, acquired before they are taken.
    generation: AtomicU64,
}

impl SharedSettings {
    fn lock(&self) -> MutexGuard<'_, Arc<DelaySettings>> {
        self.settings.lock().expect("no holder of this lock panics")
    }
}

impl DelayNode {
    /// Delays what goes to that child. Random delays depend on the seed, the name and the number of
    /// the lane, in the order of their opening.
    pub fn new(
        name: &str,
        child: Arc<Child>,
        access: Access,
        settings: DelaySettings,
        seed: u64,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let settings = Mutex::new(Arc::new(settings));
        let control = Arc::new(SharedSettings { settings, generation: AtomicU64::new(0) });
        let lanes = AtomicU64::new(0);
        Self { name: name.to_owned(), child, access, control, clock, seed, lanes }
    }

    /// What is set now.
    pub fn settings(&self) -> Arc<DelaySettings> {
        Arc::clone(&self.control.lock())
    }

    /// Has requests that come from now on delayed in another way. Those that are held keep their time.
    /// May be called while requests run, from any thread but an iothread; each lane follows with its next
    /// batch.
    pub fn set(&self, settings: DelaySettings) {
        let mut now = self.control.lock();
        *now = Arc::new(settings);
        self.control.generation.fetch_add(1, Ordering::Release);
    }
}

impl Node for DelayNode {
    same_as_child!();

    fn claim(&self, rights: Rights) -> Result<Claim, ClaimError> {
        self.child.node().claim(rights)
    }

    fn open_lane(&self, io: &LaneContext) -> Result<Box<dyn Lane>, LaneError> {
        let below = self.child.node().open_lane(io)?;
        let stream = self.lanes.fetch_add(1, Ordering::Relaxed);
        let generation = self.control.generation.load(Ordering::Acquire);
        let settings = self.settings();
        Ok(Box::new(DelayLane {
            below,
            control: Arc::clone(&self.control),
            generation,
            delays: !settings.is_none(),
            settings,
            clock: Arc::clone(&self.clock),
            random: Random::new(self.seed, &self.name, stream),
            held: DelayQueue::default(),
            last: None,
            order: ArrivalOrderQueue::default(),
            io: io.clone(),
            passed_on: Vec::new(),
        }))
    }
}

/// One iothread's handle on a [`DelayNode`].
#[derive(Debug)]
struct DelayLane {
    below: Box<dyn Lane>,
    control: Arc<SharedSettings>,
    generation: u64,
    settings: Arc<DelaySettings>,
    /// Whether these settings delay anything.
    delays: bool,
    clock: Arc<dyn Clock>,
    random: Random,
    held: DelayQueue,
    /// When the last of those is due that must not be overtaken.
    last: Option<Instant>,
    /// Those, until they are over.
    order: ArrivalOrderQueue,
    io: LaneContext,
    /// Room for what is passed on later.
    passed_on: Vec<Mapping>,
}

impl DelayLane {
    /// Takes over settings that were replaced.
    fn follow(&mut self) {
        let generation = self.control.generation.load(Ordering::Acquire);
        if generation != self.generation {
            // If they are replaced again meanwhile, this is done again with the next batch.
            self.settings = Arc::clone(&self.control.lock());
            self.delays = !self.settings.is_none();
            self.generation = generation;
        }
    }

    /// Whether what comes now is ordered.
    fn is_ordered(&self) -> bool {
        self.settings.order == DelayOrder::AsBegun
    }

    /// Whether nothing can be held by these settings.
    fn passes_all(&self) -> bool {
        !self.delays && (!self.is_ordered() || self.held.due().is_none())
    }

    /// Holds a request if it has to wait. The clock is read once for a batch, into `now`.
    fn hold(&mut self, mapping: &mut Mapping, now: &mut Option<Instant>) -> DelayDecision {
        let settings = &self.settings;
        let ordered = settings.order == DelayOrder::AsBegun;
        let delay = settings.of(&mapping.operation);
        let delay = delay.map_or(Latency::ZERO, |delay| delay.draw(&mut self.random));
        if delay == Latency::ZERO && (!ordered || self.held.due().is_none()) {
            return DelayDecision::Free;
        }
        let now = *now.get_or_insert_with(|| self.clock.now());
        let mut at = now + delay.duration();
        if ordered {
            at = self.last.map_or(at, |last| at.max(last));
            self.last = Some(at);
        }
        self.held.hold(mapping, now, at);
        DelayDecision::Held
    }

    /// Asks the lane below about requests that need not wait.
    fn pass_on(&mut self, batch: &mut [Mapping], pieces: &mut BatchPieces) {
        self.below.map(batch, pieces);
        if !self.order.is_empty() {
            batch.iter_mut().for_each(|mapping| self.order.answered(mapping));
        }
    }

    /// Has the iothread call the lane if others have waited for what is over now.
    fn note_ordered(&self) {
        if self.order.has_waited() {
            self.io.waker().wake_by_ref();
        }
    }
}

/// Whether a request goes to the lane below at once or is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DelayDecision {
    Free,
    Held,
}

impl Lane for DelayLane {
    fn map(&mut self, batch: &mut [Mapping], pieces: &mut BatchPieces) {
        self.follow();
        if self.is_ordered() {
            batch.iter().for_each(|mapping| self.order.enter(mapping));
        }
        // Neighbours that need not wait are passed on together.
        let (mut now, mut first) = (None, 0);
        if !self.passes_all() {
            for place in 0..batch.len() {
                if self.hold(&mut batch[place], &mut now) == DelayDecision::Held {
                    if first < place {
                        self.pass_on(&mut batch[first..place], pieces);
                    }
                    first = place + 1;
                }
            }
        }
        if first < batch.len() {
            self.pass_on(&mut batch[first..], pieces);
        }
        self.note_ordered();
    }

    fn due(&self) -> Option<WakeTime> {
        let own = self.held.due().map(|at| WakeTime { at, slack: Duration::ZERO });
        WakeTime::first(own, self.below.due())
    }

    fn resume(&mut self, now: Instant, late: &mut Vec<Mapping>, pieces: &mut BatchPieces) {
        let mut passed_on = std::mem::take(&mut self.passed_on);
        passed_on.extend(std::iter::from_fn(|| self.held.take(now)));
        if !passed_on.is_empty() {
            self.pass_on(&mut passed_on, pieces);
            // What the lane below holds in its turn comes from its own `resume`.
            late.extend(passed_on.drain(..).filter(|mapping| mapping.answer != Answer::Held));
        }
        self.passed_on = passed_on;
        let (first, mut place) = (late.len(), 0);
        self.below.resume(now, late, pieces);
        late.retain_mut(|mapping| {
            place += 1;
            if place > first {
                self.order.answered(mapping);
            }
            place <= first || mapping.answer != Answer::Held
        });
        late.extend(std::iter::from_fn(|| self.order.take_waited(pieces)));
    }

    fn release(&mut self) {
        // What comes later waits for its own time only.
        self.last = None;
        self.held.release();
        self.below.release();
    }

    fn completed(&mut self, token: Token, outcome: Outcome) -> LaneCompletionDecision {
        let told = self.order.completed(&mut *self.below, token, outcome);
        self.note_ordered();
        told
    }
}
