//! A front end as a source: the hot loop, the same for all protocols.
//!
//! Where it stands in the life of a request: at its beginning and its end. In a turn a source first
//! takes back what is finished, then takes new requests from its front end and starts them in one batch,
//! and last has the front end publish all answers at once.
//!
//! Invariants: exactly one answer for each request (`open_requests`). After a fault nothing is taken any more, wherever the
//! source goes. A batch is of one unit: one call of its lane.
//! Transfers on a socket are cancelled when the source leaves, so none keeps it where it is, and come by mail if they end
//! later.
//! Threads: belongs to the iothread that serves it and travels with all its requests.
//! Limits: of several units, a request whose unit has no room waits here, and nothing is taken after it.
//! Not here: what a request is and how it is answered ([`FrontEnd`]).

mod batch;

use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use block::{ByteCount, Gauges, Node, Outcome, SourceRequestSlot};

use self::batch::{Batch, PendingRequest};
use crate::engine::BatchStartResult;
use crate::front_end::{LogicalUnitIndex, NewRequest, RequestAction};
use crate::gauges::{SourceGauges, SourceMeter, Ticks, TurnStartCounts};
use crate::open_requests::{OpenRequests, RequestKind};
use crate::open_transfers::OpenTransfers;
use crate::{
    BatchLimit, Counters, Engine, FairTurnBudget, FrontEnd, FrontEndContext, Interest, LaneIndex,
    OutcomeMailbox, RouteIndex, SleepDecision, Source, SourceKey, StreamDirection, StreamTransfer,
    TurnBudget, TurnResult, Wake,
};

/// The most requests taken on in one turn that were in flight before the source came.
const INHERITED_MAX: u32 = 64;

/// A front end as a source of an iothread, with its requests in flight.
pub struct FrontEndSource<F: FrontEnd> {
    front: F,
    /// The disks that its requests go to, by unit.
    nodes: Vec<Arc<dyn Node>>,
    mailbox: Arc<OutcomeMailbox>,
    attachment: Option<Attachment>,
    health: FrontEndHealth,
    open: OpenRequests<F::Reply>,
    transfers: OpenTransfers,
    meter: SourceMeter,
    /// New requests that the last measured turn has left.
    left: u32,
    wait: Option<TurnWaitSample>,
    /// New requests that this turn has taken.
    taken: u32,
    /// What times of requests are counted from.
    epoch: Option<Instant>,
    waiting: Option<PendingRequest>,
    /// Whether the last requests were carried out by the iothread itself; the first ones may be.
    inline: bool,
    /// Whether it has ever brought anything.
    has_had_requests: bool,
    finished: Vec<(SourceRequestSlot, Outcome)>,
}

/// Where a source is served: its route and its lanes there.
#[derive(Debug)]
struct Attachment {
    route: RouteIndex,
    /// By unit.
    lanes: Vec<LaneIndex>,
}

/// How long a source waited for its turn, and how many new requests it had when the wait began.
#[derive(Debug)]
struct TurnWaitSample {
    time: Duration,
    /// New requests that were seen when it began.
    found: u32,
}

/// Whether a front end may still be asked for requests, or has failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FrontEndHealth {
    Sound,
    Broken,
}

impl<F: FrontEnd> fmt::Debug for FrontEndSource<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FrontEndSource")
            .field("front", &self.front)
            .field("in_flight", &self.open.count())
            .finish_non_exhaustive()
    }
}

impl<F: FrontEnd> FrontEndSource<F> {
    /// A source that is not served yet, whose units are these nodes, at least one. `owner` is woken until it is placed.
    pub fn new(front: F, nodes: Vec<Arc<dyn Node>>, owner: Arc<dyn Wake>) -> Self {
        assert!(!nodes.is_empty(), "the requests of a source go to a disk");
        let slots = front.slots();
        Self {
            front,
            nodes,
            mailbox: Arc::new(OutcomeMailbox::new(slots, owner)),
            attachment: None,
            health: FrontEndHealth::Sound,
            open: OpenRequests::new(slots),
            transfers: OpenTransfers::default(),
            meter: SourceMeter::new(),
            left: 0,
            wait: None,
            taken: 0,
            epoch: None,
            waiting: None,
            inline: true,
            has_had_requests: false,
            finished: Vec::with_capacity(usize::from(slots)),
        }
    }

    /// The front end.
    pub fn front(&self) -> &F {
        &self.front
    }

    /// What it has done so far.
    pub fn counters(&self) -> Counters {
        *self.open.counters()
    }

    /// What it does, for whoever watches it.
    pub fn gauges(&self) -> Gauges<SourceGauges> {
        self.meter.gauges()
    }

    /// A time as requests have it, which the clock says now.
    fn ticks(&mut self, at: Instant) -> Ticks {
        let now = Ticks::after(at.saturating_duration_since(*self.epoch.get_or_insert(at)));
        self.open.see(now);
        now
    }

    /// The front end, once nothing of it is in flight: with those answers that its client was not shown.
    pub fn into_front(self) -> F {
        assert_eq!(self.in_flight(), 0, "a front end is kept until nothing of it is in flight");
        self.front
    }

    /// Requests taken from the client and not yet answered, and transfers that are not over.
    pub fn in_flight(&self) -> usize {
        let open = self.open.count() + self.transfers.count();
        match self.health {
            FrontEndHealth::Sound => open + self.front.inherited(),
            // What is still to be taken never will be.
            FrontEndHealth::Broken => open,
        }
    }

    /// Has the front end do something where it is served. What is finished is answered before.
    pub fn visit<R>(
        &mut self,
        engine: &mut Engine,
        visit: impl FnOnce(&mut F, &mut FrontEndContext<'_>) -> R,
    ) -> R {
        let before = self.open.count();
        self.collect(engine);
        self.publish(engine);
        let result = self.with_port(engine, visit);
        if self.open.count() != before {
            let Self { open, meter, .. } = self;
            meter.turn_over(open.counters(), (open.count(), open.timed()), false);
        }
        self.show();
        result
    }

    /// Shows in the gauges what it has done.
    fn show(&mut self) {
        let Self { open, meter, .. } = self;
        meter.show(open.counters(), (open.count(), open.timed()));
    }

    /// Counts how long requests have waited for the turn that is over.
    fn count_wait(&mut self, wait: &TurnWaitSample, carried_out: u32) {
        let found = wait.found.max(self.taken);
        let left = std::mem::take(&mut self.left).min(found);
        self.meter.waited(wait.time, TurnStartCounts { left, came: found - left, carried_out });
    }

    fn attachment(&self) -> &Attachment {
        self.attachment.as_ref().expect("a source is only served where it has arrived")
    }

    fn with_port<R>(
        &mut self,
        engine: &mut Engine,
        lent: impl FnOnce(&mut F, &mut FrontEndContext<'_>) -> R,
    ) -> R {
        let route = self.attachment().route;
        let Self { front, waiting, transfers, .. } = self;
        let unstarted = waiting.as_ref().map(|waiting| waiting.slot);
        let read = waiting.as_ref().and_then(PendingRequest::as_read);
        let mut port = FrontEndContext::new(engine, route, read, *transfers, unstarted);
        let result = lent(front, &mut port);
        *transfers = port.transfers();
        if port.unstarted() != unstarted {
            *waiting = None;
            unstarted.into_iter().for_each(|slot| engine.cancel_unstarted(route, slot));
        }
        result
    }

    /// Takes new requests on, as many as it may.
    fn take_new(&mut self, engine: &mut Engine, budget: TurnBudget<'_>) -> TurnResult {
        match (budget, self.health) {
            (_, FrontEndHealth::Broken) => TurnResult::Idle,
            (TurnBudget::Alone(_) | TurnBudget::Shared(_), FrontEndHealth::Sound)
                if self.waits_for_thread(engine) =>
            {
                TurnResult::More
            }
            (TurnBudget::Alone(requests), FrontEndHealth::Sound) => {
                let limit = BatchLimit::of(requests);
                let limit = if self.inline { limit.inline() } else { limit };
                self.take_on(engine, limit).0
            }
            (TurnBudget::Shared(share), FrontEndHealth::Sound) => self.take_share(engine, share),
            (TurnBudget::CompletionsOnly, FrontEndHealth::Sound) => self.take_inherited(engine),
        }
    }

    /// Whether enough of what it has brought waits for this thread to carry it out.
    fn waits_for_thread(&self, engine: &Engine) -> bool {
        self.inline && self.open.bytes() >= BatchLimit::INLINE_BYTES_MAX && engine.has_inline_work()
    }

    /// Takes new requests on: a step, and more steps while nobody else has something new.
    fn take_share(&mut self, engine: &mut Engine, share: FairTurnBudget<'_>) -> TurnResult {
        let mut left = share.requests;
        loop {
            let step = if self.inline { share.inline_step } else { share.step };
            let step = BatchLimit { requests: step.requests.min(left), ..step };
            let (turn, taken) = self.take_on(engine, step);
            left -= taken;
            let is_over = !matches!(turn, TurnResult::More) || left == 0;
            if is_over || self.waits_for_thread(engine) || share.others.have_new() {
                return turn;
            }
        }
    }

    /// Takes on what was in flight before the source came. Who stops still serves it: these requests are
    /// taken, and a successor may never hear of them.
    fn take_inherited(&mut self, engine: &mut Engine) -> TurnResult {
        match requests(self.front.inherited()) {
            0 => TurnResult::Idle,
            inherited => self.take_on(engine, BatchLimit::of(inherited.min(INHERITED_MAX))).0,
        }
    }

    /// Takes new requests on and starts them. Returns how many it were, too.
    fn take_on(&mut self, engine: &mut Engine, step: BatchLimit) -> (TurnResult, u32) {
        let mut batch = Batch::of(LogicalUnitIndex(0), self.attachment(), engine);
        let (turn, taken) = self.take(engine, step, &mut batch);
        if let TurnResult::Broken(_) = turn {
            self.health = FrontEndHealth::Broken;
        }
        if taken > 0 {
            self.taken += taken;
            self.has_had_requests = true;
            self.inline = engine.start_batch(batch.lane) == BatchStartResult::Inline;
            self.collect_here(engine);
            self.time_new(engine);
        }
        (turn, taken)
    }

    /// What was not over at once is worth a look at the clock.
    fn time_new(&mut self, engine: &Engine) {
        if self.open.has_untimed() {
            let now = self.ticks(engine.now());
            self.open.time(now);
        }
    }

    /// Takes requests from the front end until it has no more, or one of the bounds is met. The last batch is still to
    /// be started.
    fn take(
        &mut self,
        engine: &mut Engine,
        step: BatchLimit,
        batch: &mut Batch,
    ) -> (TurnResult, u32) {
        let Self { front, nodes, attachment, open, meter, waiting, .. } = self;
        let attachment = attachment.as_ref().expect("a source is only served where it has arrived");
        let (mut taken, mut bytes) = (0, 0);
        front.begin_batch();
        let turn = loop {
            if taken == step.requests || bytes >= step.bytes.0 {
                break TurnResult::More;
            }
            // Of several units, another one may have room.
            if batch.room == 0 && nodes.len() == 1 {
                break TurnResult::Full;
            }
            let NewRequest { slot, reply, work } = match front.take() {
                Ok(Some(request)) => request,
                Ok(None) => break TurnResult::Idle,
                Err(fault) => break TurnResult::Broken(Box::new(fault)),
            };
            taken += 1;
            match work {
                RequestAction::Disk { unit, operation, memory } => {
                    let count = operation.extent().map_or(ByteCount(0), |extent| extent.count());
                    open.enter(slot, RequestKind::of(&operation), count, reply);
                    bytes += count.0;
                    if unit != batch.unit {
                        engine.start_batch(batch.lane);
                        *batch = Batch::of(unit, attachment, engine);
                    }
                    if batch.room == 0 {
                        let memory = std::mem::take(memory);
                        *waiting = Some(PendingRequest { slot, unit, operation, memory });
                        break TurnResult::Full;
                    }
                    batch.room -= 1;
                    engine.add(attachment.route, batch.lane, slot, operation, memory);
                }
                RequestAction::Done => {
                    open.enter(slot, RequestKind::Other, ByteCount(0), reply);
                    answer(front, open, meter, slot, Outcome::Done);
                }
                RequestAction::Refuse { unit, kind, what } => {
                    engine.refused_by_front(&*nodes[usize::from(unit.0)], what, kind);
                    open.enter(slot, RequestKind::Other, ByteCount(0), reply);
                    answer(front, open, meter, slot, Outcome::Failed(kind));
                }
            }
        };
        (turn, taken)
    }

    /// Starts the request that waits for room in its unit, if there is some. Whether none waits any more.
    fn start_waiting(&mut self, engine: &mut Engine) -> bool {
        let Some(waiting) = &self.waiting else { return true };
        let batch = Batch::of(waiting.unit, self.attachment(), engine);
        if batch.room == 0 {
            return false;
        }
        if let Some(PendingRequest { slot, operation, mut memory, .. }) = self.waiting.take() {
            engine.add(self.attachment().route, batch.lane, slot, operation, &mut memory);
            self.inline = engine.start_batch(batch.lane) == BatchStartResult::Inline;
            self.collect_here(engine);
            self.time_new(engine);
        }
        true
    }

    /// Takes back everything that is finished, here or on a thread the source has left.
    fn collect(&mut self, engine: &mut Engine) {
        self.collect_here(engine);
        let Self { front, open, meter, mailbox, .. } = self;
        mailbox.drain(|slot, outcome| answer(front, open, meter, slot, outcome));
        if self.transfers.count() > 0 {
            self.collect_transfers(engine);
        }
    }

    /// Gives back the transfers that are over, here or on a thread the source has left.
    fn collect_transfers(&mut self, engine: &mut Engine) {
        let route = self.attachment().route;
        let Self { front, transfers, mailbox, .. } = self;
        let mut over = |transfer: StreamTransfer| {
            transfers.end(transfer.direction());
            front.transfer_over(transfer);
        };
        mailbox.drain_transfers(&mut over);
        engine.take_transfers(route, over);
    }

    /// Takes back what is finished here.
    fn collect_here(&mut self, engine: &mut Engine) {
        let route = self.attachment().route;
        self.open.now = self.open.are_timed().then(|| self.ticks(engine.now()));
        let Self { front, open, meter, finished, .. } = self;
        engine.take_finished(route, finished);
        for (slot, outcome) in finished.drain(..) {
            answer(front, open, meter, slot, outcome);
        }
    }

    /// Shows the client everything answered since the last time; whether the front end wants another turn.
    fn publish(&mut self, engine: &mut Engine) -> bool {
        self.with_port(engine, |front, port| {
            front.publish(port);
            port.wants_turn()
        })
    }

    /// What a turn with that result has left behind, now that all answers were published.
    fn judge(&self, turn: TurnResult, budget: TurnBudget<'_>, wants_turn: bool) -> TurnResult {
        match (budget, self.health) {
            // Of a source that stops, leaves or is broken nobody is told any more: nothing is taken from its client.
            (TurnBudget::CompletionsOnly, _) | (_, FrontEndHealth::Broken) => turn,
            (TurnBudget::Alone(_) | TurnBudget::Shared(_), FrontEndHealth::Sound) => {
                match self.front.check() {
                    Err(fault) => TurnResult::Broken(Box::new(fault)),
                    Ok(()) if wants_turn && matches!(turn, TurnResult::Idle) => TurnResult::More,
                    Ok(()) => turn,
                }
            }
        }
    }
}

/// A number of requests of one source.
fn requests(count: usize) -> u32 {
    u32::try_from(count).expect("at most the number of slots")
}

impl<F: FrontEnd> Source for FrontEndSource<F> {
    fn kick(&self) -> BorrowedFd<'_> {
        self.front.kick()
    }

    fn interest(&self) -> Interest {
        self.front.interest()
    }

    fn nodes(&self) -> &[Arc<dyn Node>] {
        &self.nodes
    }

    fn lanes(&self) -> &[LaneIndex] {
        &self.attachment().lanes
    }

    fn mailbox(&self) -> &Arc<OutcomeMailbox> {
        &self.mailbox
    }

    fn arrive(&mut self, engine: &mut Engine, lanes: Vec<LaneIndex>, key: SourceKey) {
        assert_eq!(lanes.len(), self.nodes.len(), "a lane for each unit");
        let route = engine.attach(&self.mailbox, self.front.slots(), key);
        self.attachment = Some(Attachment { route, lanes });
        self.transfers.is_closed = false;
        self.with_port(engine, |front, port| front.arrive(port));
    }

    fn turn(&mut self, engine: &mut Engine, budget: TurnBudget<'_>) -> TurnResult {
        let sampled = self.meter.is_sampled().then(|| engine.now());
        self.open.begin = sampled.map(|begun| self.ticks(begun));
        let before = self.open.count();
        self.collect(engine);
        let carried_out = requests(before - self.open.count());
        self.taken = 0;
        let turn = if self.start_waiting(engine) {
            self.take_new(engine, budget)
        } else {
            TurnResult::Full
        };
        let wants_turn = self.publish(engine);
        let turn = self.judge(turn, budget, wants_turn);
        if let TurnResult::Broken(_) = turn {
            self.health = FrontEndHealth::Broken;
            self.with_port(engine, |front, port| front.report_fault(port));
        }
        if let Some(begun) = sampled {
            self.meter.timed(engine.now().saturating_duration_since(begun));
        }
        if self.taken > 0 || self.open.count() != before {
            let Self { open, meter, .. } = self;
            let is_cut = matches!(turn, TurnResult::More);
            meter.turn_over(open.counters(), (open.count(), open.timed()), is_cut);
        }
        if let TurnBudget::CompletionsOnly = budget {
            self.show();
        }
        if let Some(wait) = self.wait.take() {
            self.count_wait(&wait, carried_out);
        }
        turn
    }

    fn begin_wait(&mut self) {
        self.left = self.front.waiting();
    }

    fn waited(&mut self, time: Duration) {
        self.wait = Some(TurnWaitSample { time, found: self.front.waiting() });
    }

    fn moved(&mut self, pause: Duration) {
        self.meter.moved(pause);
    }

    fn has_new(&self) -> bool {
        self.health == FrontEndHealth::Sound && self.front.has_new()
    }

    fn has_room(&self, engine: &Engine) -> bool {
        let unit = self.waiting.as_ref().map_or(LogicalUnitIndex(0), |waiting| waiting.unit);
        engine.room(self.attachment().lanes[usize::from(unit.0)]) > 0
    }

    fn has_had_requests(&self) -> bool {
        self.has_had_requests
    }

    fn bring_up_to_date(&mut self, engine: &mut Engine) {
        self.visit(engine, |_, _| ());
        if self.open.are_timed() {
            self.ticks(engine.now());
            self.meter.show_open(self.open.timed());
        }
    }

    fn rest(&mut self) -> SleepDecision {
        self.show();
        match self.health {
            FrontEndHealth::Sound => self.front.rest(),
            FrontEndHealth::Broken => SleepDecision::MaySleep,
        }
    }

    fn begin_leaving(&mut self, engine: &mut Engine) {
        self.transfers.is_closed = true;
        let route = self.attachment().route;
        for direction in [StreamDirection::Receive, StreamDirection::Send] {
            if self.transfers.has(direction) {
                engine.cancel_transfer(route, direction);
            }
        }
    }

    fn stays(&self) -> Option<&'static str> {
        self.front.stays()
    }

    fn depart(&mut self, engine: &mut Engine) {
        self.collect(engine);
        self.publish(engine);
        self.with_port(engine, |front, port| front.leave(port));
        // What it has cancelled last is answered already, and published where it arrives.
        self.collect_here(engine);
        self.show();
        if let Some(Attachment { route, lanes }) = self.attachment.take() {
            engine.leave(route);
            lanes.into_iter().for_each(|lane| engine.close_lane(lane));
        }
    }

    fn taken(&self) -> u32 {
        self.taken
    }

    fn answered(&self) -> u64 {
        let Counters { reads, writes, flushes, discards, write_zeroes, .. } = self.open.counters();
        reads + writes + flushes + discards + write_zeroes
    }

    fn in_flight(&self) -> usize {
        self.in_flight()
    }
}

/// A request is over: its client is told with the next publish.
#[inline]
fn answer<F: FrontEnd>(
    front: &mut F,
    open: &mut OpenRequests<F::Reply>,
    meter: &mut SourceMeter,
    slot: SourceRequestSlot,
    outcome: Outcome,
) {
    let reply = open.answer(slot, outcome, meter);
    front.answer(slot, reply, outcome);
}
