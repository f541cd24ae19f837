//! A virtio-blk ring as a source of requests.
//!
//! Where it stands in the life of a request: at its beginning and its end. In a turn the ring
//! first takes back what is finished, then pops, decodes and starts new chains in one batch, and
//! last publishes all completions at once and interrupts the guest if it asked.
//!
//! Invariants: a slot for each head; the ring does not pop a head again that is in flight, so no
//! request is completed twice. Guest kicks are off from the first pop until the iothread wants to
//! sleep, and the ring is looked at again after they were switched on.
//! Threads: belongs to the iothread that serves it and travels with all its slots.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use block::{ByteCount, Node, Operation, Outcome, Segment, Slot};
use virtio::{BlkKind, BlkRequest, BlkRules, Chain, Head, Interrupt, Ring, RingLog, reached};

use crate::engine::Started;
use crate::noted::Noted;
use crate::tempo::Tempo;
use crate::{
    Appetite, Capacity, Counters, Ending, Engine, Fault, LaneIndex, Mailbox, Rest, Seat, Share,
    Source, SourceKey, Step, Turn, Wake,
};

/// What a ring is made of.
#[derive(Debug)]
pub struct RingSourceSetup {
    /// The ring itself.
    pub ring: Ring,
    /// What requests are allowed. Its size counts until there is a batch.
    pub rules: BlkRules,
    /// How large the disk is.
    pub capacity: Arc<Capacity>,
    /// Where they go.
    pub node: Arc<dyn Node>,
    /// The answer to GET_ID.
    pub serial: String,
    /// Becomes readable when the guest has made requests available.
    pub kick: OwnedFd,
    /// Interrupts the guest; without it the guest polls.
    pub call: Option<OwnedFd>,
    /// Tells the front end that the ring is broken.
    pub error: Option<OwnedFd>,
    /// Who serves it first.
    pub owner: Arc<dyn Wake>,
}

/// The most requests taken on in one turn that were in flight before the ring came.
const INHERITED_MAX: u32 = 64;

/// A request in flight.
#[derive(Debug, Clone, Copy)]
struct Open {
    kind: Kind,
    status: Segment,
    written: u32,
}

/// What a request is counted as.
#[derive(Debug, Clone, Copy)]
enum Kind {
    Read,
    Write,
    Flush,
    Discard,
    WriteZeroes,
    Other,
}

/// Where the ring is served.
#[derive(Debug, Clone, Copy)]
struct Home {
    seat: Seat,
    lane: LaneIndex,
}

/// Whether the guest has kept the rules of the ring so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Health {
    Sound,
    /// Nothing is popped any more, wherever the ring goes.
    Broken,
}

/// A ring and everything that travels with it.
pub struct RingSource {
    ring: Ring,
    rules: BlkRules,
    capacity: Arc<Capacity>,
    node: Arc<dyn Node>,
    serial: String,
    kick: OwnedFd,
    call: Option<OwnedFd>,
    error: Option<OwnedFd>,
    /// The guest is interrupted on arrival, or as soon as that is not too often.
    owes_interrupt: bool,
    tempo: Tempo,
    mailbox: Arc<Mailbox>,
    home: Option<Home>,
    health: Health,
    /// By head.
    open: Box<[Option<Open>]>,
    in_flight: usize,
    chain: Chain,
    /// Whether the last requests were carried out by the iothread itself.
    inline: bool,
    finished: Vec<(Slot, Outcome)>,
    /// What the dirty log needs to know.
    noted: Noted<Segment>,
    counters: Counters,
}

impl fmt::Debug for RingSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RingSource")
            .field("node", &self.node.name())
            .field("size", &self.ring.size())
            .field("in_flight", &self.in_flight)
            .finish_non_exhaustive()
    }
}

impl RingSource {
    /// A ring that is not served yet. If somebody was killed who served it, the guest is
    /// interrupted when it arrives: it may have been shown completions and not been told.
    pub fn new(setup: RingSourceSetup) -> Self {
        let size = setup.ring.size();
        Self {
            owes_interrupt: setup.ring.is_inherited(),
            tempo: Tempo::default(),
            mailbox: Arc::new(Mailbox::new(size, setup.owner)),
            open: vec![None; usize::from(size)].into_boxed_slice(),
            finished: Vec::with_capacity(usize::from(size)),
            noted: Noted::new(size, setup.ring.marks_buffers()),
            ring: setup.ring,
            rules: setup.rules,
            capacity: setup.capacity,
            node: setup.node,
            serial: setup.serial,
            kick: setup.kick,
            call: setup.call,
            error: setup.error,
            home: None,
            health: Health::Sound,
            in_flight: 0,
            chain: Chain::default(),
            inline: false,
            counters: Counters::default(),
        }
    }

    fn home(&self) -> Home {
        self.home.expect("a ring is only served where it has arrived")
    }

    /// Takes new requests on: a step, and more steps while nobody else has something new.
    fn take_share(&mut self, engine: &mut Engine, share: Share<'_>) -> Turn {
        let mut left = share.requests;
        loop {
            let step = if self.inline { share.inline_step } else { share.step };
            let step = Step { requests: step.requests.min(left), ..step };
            let (turn, taken) = self.take_on(engine, step);
            left -= taken;
            if !matches!(turn, Turn::More) || left == 0 || share.others.have_new() {
                return turn;
            }
        }
    }

    /// Takes on what was in flight before the ring came. Who stops still serves it: these requests are
    /// taken, and a successor may never hear of them.
    fn take_inherited(&mut self, engine: &mut Engine) -> Turn {
        match u32::try_from(self.ring.pending()).expect("at most the ring size") {
            0 => Turn::Idle,
            pending => self.take_on(engine, Step::of(pending.min(INHERITED_MAX))).0,
        }
    }

    /// Takes new requests on and starts them, in one batch. Returns how many it were, too.
    fn take_on(&mut self, engine: &mut Engine, step: Step) -> (Turn, u32) {
        let (turn, taken) = self.pop_batch(engine, step);
        if let Turn::Broken(_) = turn {
            self.health = Health::Broken;
        }
        if taken > 0 {
            self.inline = engine.start_batch(self.home().lane) == Started::Inline;
            self.collect_here(engine);
        }
        (turn, taken)
    }

    /// Takes chains from the guest until it has no more, or one of the bounds is met.
    fn pop_batch(&mut self, engine: &mut Engine, step: Step) -> (Turn, u32) {
        let (mut popped, mut bytes) = (0, 0);
        let lane = self.home().lane;
        self.ring.suppress_kicks();
        self.rules.size = self.capacity.get();
        // Once: what one batch can add is bounded by the step.
        let room = engine.room(lane);
        let turn = loop {
            if popped == step.requests || bytes >= step.bytes.0 {
                break Turn::More;
            }
            if popped as usize >= room {
                break Turn::Full;
            }
            match self.ring.pop(&mut self.chain) {
                Ok(Some(head)) => {
                    match self.begin(head, engine) {
                        Ok(count) => bytes += count.0,
                        Err(fault) => break Turn::Broken(fault),
                    }
                    popped += 1;
                }
                Ok(None) => break Turn::Idle,
                Err(error) => break Turn::Broken(error.into()),
            }
        };
        (turn, popped)
    }

    /// Starts the request in `self.chain`, or answers it at once. Returns how many bytes of the disk it is about.
    fn begin(&mut self, head: Head, engine: &mut Engine) -> Result<ByteCount, Fault> {
        let BlkRequest { header, kind, status } = virtio::decode(&mut self.chain, &self.rules)
            .map_err(|source| Fault::NoStatus { head: head.0, source })?;
        let data = self.chain.writable.count();
        let written = u32::try_from(data).unwrap_or(u32::MAX).saturating_add(1);
        let mut bytes = ByteCount(0);
        let (counted, outcome) = match kind {
            BlkKind::Disk(operation) => {
                bytes = operation.extent().map_or(bytes, |extent| extent.count());
                let Home { seat, lane } = self.home();
                let memory = match operation {
                    Operation::Read(_) => {
                        if self.noted.is_logging() {
                            let segments = self.chain.writable.segments().iter().copied();
                            self.noted.note(head, segments);
                        }
                        &mut self.chain.writable
                    }
                    Operation::Write(..)
                    | Operation::Discard(..)
                    | Operation::WriteZeroes(..)
                    | Operation::Flush => &mut self.chain.readable,
                };
                engine.add(seat, lane, Slot(head.0), operation, memory);
                (count_as(&operation), None)
            }
            BlkKind::GetId => {
                let written = virtio::write_id(&mut self.chain.writable, &self.serial);
                if self.noted.is_logging() {
                    self.noted.note(head, self.chain.writable.range(0, written));
                }
                (Kind::Other, Some(Outcome::Done))
            }
            BlkKind::Refused(kind) => {
                engine.refused_to_decode(&*self.node, header, kind);
                (Kind::Other, Some(Outcome::Failed(kind)))
            }
        };
        self.open[usize::from(head.0)] = Some(Open { kind: counted, status, written });
        self.in_flight += 1;
        if let Some(outcome) = outcome {
            self.complete(head, outcome);
        }
        Ok(bytes)
    }

    /// Takes back everything that is finished, here or on a thread the ring has left.
    fn collect(&mut self, engine: &mut Engine) {
        self.collect_here(engine);
        let mut finished = std::mem::take(&mut self.finished);
        self.mailbox.drain(|slot, outcome| finished.push((slot, outcome)));
        self.complete_all(finished);
    }

    /// Takes back what is finished here.
    fn collect_here(&mut self, engine: &mut Engine) {
        let mut finished = std::mem::take(&mut self.finished);
        engine.take_finished(self.home().seat, &mut finished);
        self.complete_all(finished);
    }

    fn complete_all(&mut self, mut finished: Vec<(Slot, Outcome)>) {
        for (slot, outcome) in finished.drain(..) {
            self.complete(Head(slot.0), outcome);
        }
        self.finished = finished;
    }

    /// Answers one request. The guest sees it with the next [`RingSource::publish`].
    fn complete(&mut self, head: Head, outcome: Outcome) {
        let open = self.open[usize::from(head.0)].take();
        let Some(Open { kind, status, written }) = open else {
            panic!("request {} was completed twice", head.0)
        };
        self.in_flight -= 1;
        virtio::write_status(status, virtio::status_byte(outcome));
        if self.noted.is_in_use() {
            let Self { noted, ring, .. } = self;
            noted.answered(head, |segment| ring.mark_buffer(segment));
            // It is written already.
            ring.mark_buffer(status);
        }
        self.ring.push_used(head, written);
        reached(virtio::Step::Staged);
        self.count(kind, outcome);
    }

    fn count(&mut self, kind: Kind, outcome: Outcome) {
        let counters = &mut self.counters;
        match kind {
            Kind::Read => counters.reads += 1,
            Kind::Write => counters.writes += 1,
            Kind::Flush => counters.flushes += 1,
            Kind::Discard => counters.discards += 1,
            Kind::WriteZeroes => counters.write_zeroes += 1,
            Kind::Other => {}
        }
        if let Outcome::Failed(_) = outcome {
            counters.errors += 1;
        }
    }

    /// Notes where the data of all reads go that this iothread carries out for the ring.
    fn note_reads(&mut self, engine: &Engine) {
        for (slot, memory) in engine.reads_in_flight(self.home().seat) {
            self.noted.note(Head(slot.0), memory.segments().iter().copied());
        }
    }

    /// Shows the guest everything answered since the last time: one index, one interrupt.
    fn publish(&mut self, engine: &mut Engine) {
        if self.ring.publish() == Interrupt::Wanted || self.owes_interrupt {
            self.interrupt(engine);
        }
    }

    /// Interrupts the guest, whether it asked or not, or owes it that.
    fn interrupt(&mut self, engine: &mut Engine) {
        let seat = self.home().seat;
        let Self { call, tempo, .. } = self;
        let rung = call.as_ref().is_none_or(|call| engine.interrupt(tempo, call.as_fd(), seat));
        self.owes_interrupt = !rung;
        if rung {
            reached(virtio::Step::Interrupted);
        }
    }
}

impl Source for RingSource {
    fn kick(&self) -> BorrowedFd<'_> {
        self.kick.as_fd()
    }

    fn node(&self) -> &Arc<dyn Node> {
        &self.node
    }

    fn mailbox(&self) -> &Arc<Mailbox> {
        &self.mailbox
    }

    fn arrive(&mut self, engine: &mut Engine, lane: LaneIndex, key: SourceKey) {
        reached(virtio::Step::Arrived);
        let seat = engine.sit(&self.mailbox, self.ring.size(), key);
        self.home = Some(Home { seat, lane });
        self.tempo.arrive();
        if self.owes_interrupt {
            self.interrupt(engine);
        }
    }

    fn turn(&mut self, engine: &mut Engine, appetite: Appetite<'_>) -> Turn {
        self.collect(engine);
        let turn = match (appetite, self.health) {
            (_, Health::Broken) => Turn::Idle,
            (Appetite::Pop(requests), Health::Sound) => self.take_on(engine, Step::of(requests)).0,
            (Appetite::Share(share), Health::Sound) => self.take_share(engine, share),
            (Appetite::DrainOnly, Health::Sound) => self.take_inherited(engine),
        };
        self.publish(engine);
        // Who stops or leaves is not told any more: nothing is taken from the guest.
        match (appetite, self.health, self.ring.check_log()) {
            (Appetite::Pop(_) | Appetite::Share(_), Health::Sound, Err(error)) => {
                self.health = Health::Broken;
                Turn::Broken(error.into())
            }
            (Appetite::Pop(_) | Appetite::Share(_) | Appetite::DrainOnly, _, _) => turn,
        }
    }

    fn has_new(&self) -> bool {
        self.health == Health::Sound && self.ring.has_available()
    }

    fn rest(&mut self) -> Rest {
        match self.health {
            Health::Sound if self.ring.request_kicks() => Rest::More,
            Health::Sound | Health::Broken => Rest::Kicks,
        }
    }

    fn depart(&mut self, engine: &mut Engine) {
        self.collect(engine);
        self.publish(engine);
        if let Some(call) = self.call.as_ref().filter(|_| self.owes_interrupt) {
            // Nobody may serve it any more.
            engine.signal(call.as_fd(), "call");
        }
        self.owes_interrupt = false;
        // Their outcomes come by mail, without the memory; a log may be there by then.
        self.note_reads(engine);
        engine.leave(self.home().seat);
        self.home = None;
        reached(virtio::Step::Departed);
    }

    fn in_flight(&self) -> usize {
        match self.health {
            Health::Sound => self.in_flight + self.ring.pending(),
            // What is still to be popped never will be.
            Health::Broken => self.in_flight,
        }
    }

    fn set_call(&mut self, engine: &mut Engine, call: Option<OwnedFd>) {
        self.call = call;
        // Whatever was signalled on the old descriptor may have been lost on the way.
        self.interrupt(engine);
    }

    fn set_log(&mut self, engine: &mut Engine, log: Option<RingLog>) {
        // What is over is the affair of the log before.
        self.collect(engine);
        self.publish(engine);
        self.ring.set_log(log);
        self.noted.follow(self.ring.marks_buffers());
        if self.noted.is_logging() {
            self.note_reads(engine);
        }
    }

    fn signal_error(&self, engine: &mut Engine) {
        if let Some(error) = &self.error {
            engine.signal(error.as_fd(), "error");
        }
    }

    fn ending(&self) -> Ending {
        Ending { base: self.ring.base(), counters: self.counters }
    }
}

fn count_as(operation: &Operation) -> Kind {
    match operation {
        Operation::Read(_) => Kind::Read,
        Operation::Write(..) => Kind::Write,
        Operation::Flush => Kind::Flush,
        Operation::Discard(..) => Kind::Discard,
        Operation::WriteZeroes(..) => Kind::WriteZeroes,
    }
}
