//! A front end on plain memory: its client is a thread of this process, which brings requests and finds their outcomes
//! in queues.
//!
//! Where it stands: beside the front ends of protocols, so that what `request_path` promises to all of them is seen
//! without any. Several disks, requests in segments of any size and place, moves, stops.
//!
//! Invariants: a slot has at most one request until the client has collected its outcome; two outcomes of one request
//! are an error of [`PlainClient::collect`].
//! Threads: the client is used by one thread at a time, the front end by that which serves it; a lock is between them.
#![expect(unsafe_code, reason = "names shared memory for requests")]

use std::collections::VecDeque;
use std::convert::Infallible;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard};

use anyhow::{Context, Result, ensure};
use block::{Buffers, Operation, Outcome, Segment, SourceRequestSlot};
use request_path::{
    FrontEnd, FrontEndContext, Interest, LogicalUnitIndex, NewRequest, RequestAction,
    SleepDecision, StreamTransfer,
};
use rustix::event::{EventfdFlags, eventfd};

use crate::memory::SharedMemory;

/// A request as the client makes it.
#[derive(Debug, Clone)]
pub struct PlainRequest {
    /// Names it; no other one has that name until its outcome was collected.
    pub slot: SourceRequestSlot,
    /// Which disk.
    pub unit: LogicalUnitIndex,
    /// What to do there.
    pub operation: Operation,
    /// Places in the client's memory and lengths, in order.
    pub segments: Vec<(usize, usize)>,
}

/// What is particular about a front end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Habit {
    /// Nothing.
    None,
    /// It refuses to be moved.
    Stays,
    /// It cancels all its requests when it leaves.
    CancelsAtLeave,
    /// A mistake: it brings each request a second time while the first is in flight.
    BringsTwice,
}

/// The client's side.
#[derive(Debug)]
pub struct PlainClient {
    shared: Arc<Shared>,
    open: Box<[bool]>,
}

/// The side that is served.
#[derive(Debug)]
pub struct PlainFront {
    shared: Arc<Shared>,
    habit: Habit,
    /// Kept for its room.
    memory: Buffers,
    /// Answered and not shown to the client yet.
    staged: Vec<(SourceRequestSlot, Outcome)>,
}

#[derive(Debug)]
struct Shared {
    slots: u16,
    memory: SharedMemory,
    kick: OwnedFd,
    call: OwnedFd,
    queues: Mutex<Queues>,
}

#[derive(Debug, Default)]
struct Queues {
    new: VecDeque<PlainRequest>,
    over: Vec<(SourceRequestSlot, Outcome)>,
    /// Whether nobody looks for new requests.
    wants_kicks: bool,
}

impl PlainClient {
    /// A client that may have so many requests in flight, with so many bytes of memory for all of them.
    pub fn new(slots: u16, memory_bytes: usize) -> Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let shared = Shared {
            slots,
            memory: SharedMemory::new(memory_bytes)?,
            kick: eventfd(0, flags)?,
            call: eventfd(0, flags)?,
            queues: Mutex::new(Queues { wants_kicks: true, ..Queues::default() }),
        };
        Ok(Self { shared: Arc::new(shared), open: vec![false; usize::from(slots)].into() })
    }

    /// A front end of this client, of which one is served at a time. It goes on where the one before was stopped.
    pub fn front(&self) -> PlainFront {
        self.front_with(Habit::None)
    }

    /// The same with a habit.
    pub fn front_with(&self, habit: Habit) -> PlainFront {
        let shared = Arc::clone(&self.shared);
        PlainFront { shared, habit, memory: Buffers::default(), staged: Vec::new() }
    }

    /// Its memory.
    pub fn memory(&self) -> &SharedMemory {
        &self.shared.memory
    }

    /// What becomes readable when there are outcomes.
    pub fn call(&self) -> BorrowedFd<'_> {
        self.shared.call.as_fd()
    }

    /// A slot that has no request.
    pub fn free_slot(&self) -> Option<SourceRequestSlot> {
        let place = self.open.iter().position(|open| !open)?;
        Some(SourceRequestSlot(u16::try_from(place).expect("slots are 16 bit")))
    }

    /// Requests whose outcomes were not collected.
    pub fn in_flight(&self) -> usize {
        self.open.iter().filter(|open| **open).count()
    }

    /// Brings a request, and kicks if nobody looks.
    pub fn submit(&mut self, request: PlainRequest) -> Result<()> {
        let open = &mut self.open[usize::from(request.slot.0)];
        assert!(!std::mem::replace(open, true), "{:?} has a request", request.slot);
        let mut queues = self.shared.queues();
        queues.new.push_back(request);
        if std::mem::take(&mut queues.wants_kicks) {
            rustix::io::write(&self.shared.kick, &1_u64.to_ne_bytes()).context("kick")?;
        }
        Ok(())
    }

    /// The requests that are over since the last call.
    pub fn collect(&mut self) -> Result<Vec<(SourceRequestSlot, Outcome)>> {
        let mut count = [0; 8];
        // What it says does not matter, nor that it may say nothing.
        let _count = rustix::io::read(&self.shared.call, &mut count);
        let over = std::mem::take(&mut self.shared.queues().over);
        for (slot, _) in &over {
            let open = std::mem::replace(&mut self.open[usize::from(slot.0)], false);
            ensure!(open, "{slot:?} was answered twice");
        }
        Ok(over)
    }
}

impl Shared {
    fn queues(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock().expect("no holder of this lock panics")
    }

    fn segment(&self, (at, count): (usize, usize)) -> Segment {
        let base = NonNull::new(self.memory.address(at, count)).expect("a mapping is nowhere at 0");
        // SAFETY: `address` checked that the bytes are in the mapping, which is readable and writable and lives as long
        // as `self`; a front end has that as long as it is served, so until its last request is over.
        unsafe { Segment::new(base, count) }
    }
}

impl FrontEnd for PlainFront {
    type Reply = ();
    type Fault = Infallible;

    fn kick(&self) -> BorrowedFd<'_> {
        self.shared.kick.as_fd()
    }

    fn interest(&self) -> Interest {
        Interest::Read
    }

    fn slots(&self) -> u16 {
        self.shared.slots
    }

    fn begin_batch(&mut self) {
        self.shared.queues().wants_kicks = false;
    }

    fn take(&mut self) -> Result<Option<NewRequest<'_, ()>>, Infallible> {
        let mut queues = self.shared.queues();
        let request = match self.habit {
            Habit::None | Habit::Stays | Habit::CancelsAtLeave => queues.new.pop_front(),
            Habit::BringsTwice => {
                let first = queues.new.front().cloned();
                queues.new.extend(first);
                queues.new.pop_front()
            }
        };
        drop(queues);
        let Some(PlainRequest { slot, unit, operation, segments }) = request else {
            return Ok(None);
        };
        self.memory.clear();
        segments.into_iter().for_each(|part| self.memory.push(self.shared.segment(part)));
        let work = RequestAction::Disk { unit, operation, memory: &mut self.memory };
        Ok(Some(NewRequest { slot, reply: (), work }))
    }

    fn answer(&mut self, slot: SourceRequestSlot, (): (), outcome: Outcome) {
        self.staged.push((slot, outcome));
    }

    fn publish(&mut self, port: &mut FrontEndContext<'_>) {
        if !self.staged.is_empty() {
            self.shared.queues().over.append(&mut self.staged);
            port.signal(self.shared.call.as_fd(), "call");
        }
    }

    fn unpublished(&self) -> usize {
        self.staged.len()
    }

    fn transfer_over(&mut self, transfer: StreamTransfer) {
        panic!("none was begun: {transfer:?}")
    }

    fn check(&self) -> Result<(), Infallible> {
        Ok(())
    }

    fn report_fault(&self, _: &mut FrontEndContext<'_>) {}

    fn has_new(&self) -> bool {
        !self.shared.queues().new.is_empty()
    }

    fn waiting(&self) -> u32 {
        u32::try_from(self.shared.queues().new.len()).expect("at most the number of slots")
    }

    fn rest(&mut self) -> SleepDecision {
        let mut queues = self.shared.queues();
        queues.wants_kicks = queues.new.is_empty();
        if queues.wants_kicks { SleepDecision::MaySleep } else { SleepDecision::MoreWork }
    }

    fn inherited(&self) -> usize {
        0
    }

    fn stays(&self) -> Option<&'static str> {
        (self.habit == Habit::Stays).then_some("it was told to")
    }

    fn arrive(&mut self, _: &mut FrontEndContext<'_>) {}

    fn leave(&mut self, port: &mut FrontEndContext<'_>) {
        if self.habit == Habit::CancelsAtLeave {
            (0..self.shared.slots).for_each(|slot| port.cancel(SourceRequestSlot(slot)));
        }
    }
}
