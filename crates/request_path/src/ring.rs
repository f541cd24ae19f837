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

use block::{Node, Operation, Outcome, Segment};
use rustix::io::Errno;
use virtio::{BlkKind, BlkRequest, BlkRules, Chain, Head, Interrupt, Ring, Step, reached};

use crate::{
    Appetite, Counters, Ending, Engine, Fault, LaneIndex, Mailbox, Rest, Seat, Source, SourceKey,
    Turn, Wake,
};

/// What a ring is made of.
#[derive(Debug)]
pub struct RingSourceSetup {
    /// The ring itself.
    pub ring: Ring,
    /// What requests are allowed.
    pub rules: BlkRules,
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

/// A request in flight, by head.
#[derive(Debug, Clone, Copy)]
enum Slot {
    Free,
    Busy { kind: Kind, status: Segment, written: u32 },
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
    node: Arc<dyn Node>,
    serial: String,
    kick: OwnedFd,
    call: Option<OwnedFd>,
    error: Option<OwnedFd>,
    mailbox: Arc<Mailbox>,
    home: Option<Home>,
    health: Health,
    slots: Box<[Slot]>,
    in_flight: usize,
    chain: Chain,
    finished: Vec<(Head, Outcome)>,
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
    /// interrupted: it may have been shown completions and not been told.
    pub fn new(setup: RingSourceSetup) -> Self {
        let size = setup.ring.size();
        if setup.ring.is_inherited()
            && let Some(call) = &setup.call
        {
            signal(call, "call");
        }
        Self {
            mailbox: Arc::new(Mailbox::new(size, setup.owner)),
            slots: vec![Slot::Free; usize::from(size)].into_boxed_slice(),
            finished: Vec::with_capacity(usize::from(size)),
            ring: setup.ring,
            rules: setup.rules,
            node: setup.node,
            serial: setup.serial,
            kick: setup.kick,
            call: setup.call,
            error: setup.error,
            home: None,
            health: Health::Sound,
            in_flight: 0,
            chain: Chain::default(),
            counters: Counters::default(),
        }
    }

    fn home(&self) -> Home {
        self.home.expect("a ring is only served where it has arrived")
    }

    /// Takes chains from the guest until it has no more, or one of the bounds is met.
    fn pop_batch(&mut self, engine: &mut Engine, most: u32) -> Turn {
        let mut popped = 0;
        self.ring.suppress_kicks();
        loop {
            if popped == most {
                return Turn::More;
            }
            if engine.room() == 0 {
                return Turn::Full;
            }
            match self.ring.pop(&mut self.chain) {
                Ok(Some(head)) => match self.begin(head, engine) {
                    Ok(()) => popped += 1,
                    Err(fault) => return Turn::Broken(fault),
                },
                Ok(None) => return Turn::Idle,
                Err(error) => return Turn::Broken(error.into()),
            }
        }
    }

    /// Starts the request in `self.chain`, or answers it at once.
    fn begin(&mut self, head: Head, engine: &mut Engine) -> Result<(), Fault> {
        let BlkRequest { kind, status } = virtio::decode(&mut self.chain, &self.rules)
            .map_err(|source| Fault::NoStatus { head: head.0, source })?;
        let data = self.chain.writable.count();
        let written = u32::try_from(data).unwrap_or(u32::MAX).saturating_add(1);
        let (counted, outcome) = match kind {
            BlkKind::Disk(operation) => {
                let seat = self.home().seat;
                let memory = match operation {
                    Operation::Read(_) => &mut self.chain.writable,
                    Operation::Write(..)
                    | Operation::Discard(..)
                    | Operation::WriteZeroes(..)
                    | Operation::Flush => &mut self.chain.readable,
                };
                engine.add(seat, head, operation, memory);
                (count_as(&operation), None)
            }
            BlkKind::GetId => {
                virtio::write_id(&mut self.chain.writable, &self.serial);
                (Kind::Other, Some(Outcome::Done))
            }
            BlkKind::Refused(kind) => (Kind::Other, Some(Outcome::Failed(kind))),
        };
        self.slots[usize::from(head.0)] = Slot::Busy { kind: counted, status, written };
        self.in_flight += 1;
        if let Some(outcome) = outcome {
            self.complete(head, outcome);
        }
        Ok(())
    }

    /// Takes back everything that is finished, here or on a thread the ring has left.
    fn collect(&mut self, engine: &mut Engine) {
        let mut finished = std::mem::take(&mut self.finished);
        engine.take_finished(self.home().seat, &mut finished);
        self.mailbox.drain(|head, outcome| finished.push((head, outcome)));
        for (head, outcome) in finished.drain(..) {
            self.complete(head, outcome);
        }
        self.finished = finished;
    }

    /// Answers one request. The guest sees it with the next [`RingSource::publish`].
    fn complete(&mut self, head: Head, outcome: Outcome) {
        let slot = std::mem::replace(&mut self.slots[usize::from(head.0)], Slot::Free);
        let Slot::Busy { kind, status, written } = slot else {
            panic!("request {} was completed twice", head.0)
        };
        self.in_flight -= 1;
        virtio::write_status(status, virtio::status_byte(outcome));
        self.ring.push_used(head, written);
        reached(Step::Staged);
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

    /// Shows the guest everything answered since the last time: one index, one interrupt.
    fn publish(&mut self) {
        if self.ring.publish() == Interrupt::Wanted
            && let Some(call) = &self.call
        {
            signal(call, "call");
            reached(Step::Interrupted);
        }
    }

    /// What the turn may pop at most. Who stops still serves what was in flight before it came:
    /// these requests are taken, and a successor may never hear of them.
    fn most(&self, appetite: Appetite) -> u32 {
        match (self.health, appetite) {
            (Health::Broken, _) => 0,
            (Health::Sound, Appetite::Pop(most)) => most,
            (Health::Sound, Appetite::DrainOnly) => {
                u32::try_from(self.ring.pending()).expect("at most the ring size")
            }
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
        reached(Step::Arrived);
        let seat = engine.sit(&self.mailbox, self.ring.size(), key);
        self.home = Some(Home { seat, lane });
    }

    fn turn(&mut self, engine: &mut Engine, appetite: Appetite) -> Turn {
        self.collect(engine);
        let turn = match self.most(appetite) {
            0 => Turn::Idle,
            most => {
                let turn = self.pop_batch(engine, most);
                if let Turn::Broken(_) = turn {
                    self.health = Health::Broken;
                }
                engine.start_batch(self.home().lane);
                self.collect(engine);
                turn
            }
        };
        self.publish();
        turn
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
        self.publish();
        engine.leave(self.home().seat);
        self.home = None;
        reached(Step::Departed);
    }

    fn in_flight(&self) -> usize {
        match self.health {
            Health::Sound => self.in_flight + self.ring.pending(),
            // What is still to be popped never will be.
            Health::Broken => self.in_flight,
        }
    }

    fn set_call(&mut self, call: Option<OwnedFd>) {
        self.call = call;
        // Whatever was signalled on the old descriptor may have been lost on the way.
        if let Some(call) = &self.call {
            signal(call, "call");
        }
    }

    fn signal_error(&self) {
        if let Some(error) = &self.error {
            signal(error, "error");
        }
    }

    fn ending(&self) -> Ending {
        Ending { base: self.ring.base(), counters: self.counters }
    }
}

/// Writes to an eventfd of the front end.
fn signal(fd: &OwnedFd, what: &str) {
    match rustix::io::write(fd, &1_u64.to_ne_bytes()) {
        // A full counter means that the other side has been told already.
        Ok(_) | Err(Errno::AGAIN) => {}
        Err(errno) => tracing::debug!("{what} descriptor of the front end: {errno}"),
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
