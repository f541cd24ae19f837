//! What a front end uses of the iothread that serves it.
//!
//! Where it stands in the life of a request: at its end, when the client is told; of a client behind a socket also before
//! its beginning, when it is received.
//!
//! Threads: only there, and only as long as the call that it was lent for.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use block::{Buffers, SourceRequestSlot};

use crate::open_transfers::OpenTransfers;
use crate::{Engine, RouteIndex, StreamDirection, StreamGoal, StreamTransfer};

/// What a front end can use of the iothread that serves it: clock, eventfds, timers, its socket, its open reads.
#[derive(Debug)]
pub struct FrontEndContext<'a> {
    engine: &'a mut Engine,
    route: RouteIndex,
    /// A read that waits for room in its lane.
    waiting: Option<(SourceRequestSlot, &'a Buffers)>,
    wants_turn: bool,
    transfers: OpenTransfers,
    /// The request that waits for room in its lane, until it is cancelled.
    unstarted: Option<SourceRequestSlot>,
}

impl<'a> FrontEndContext<'a> {
    pub(crate) fn new(
        engine: &'a mut Engine,
        route: RouteIndex,
        waiting: Option<(SourceRequestSlot, &'a Buffers)>,
        transfers: OpenTransfers,
        unstarted: Option<SourceRequestSlot>,
    ) -> Self {
        Self { engine, route, waiting, wants_turn: false, transfers, unstarted }
    }

    /// Tells the other side by its eventfd. Does not sleep, whatever that side did to it.
    pub fn signal(&mut self, fd: BorrowedFd<'_>, what: &str) {
        self.engine.signal(fd, what);
    }

    /// The time.
    pub fn now(&self) -> Instant {
        self.engine.now()
    }

    /// The CPU time that this thread has used.
    pub fn cpu_time(&self) -> Duration {
        kernel_io::thread_cpu_time()
    }

    /// Whether transfers wait until this thread makes them itself, in the next turns: more of them would be no sooner over.
    pub fn has_inline_work(&self) -> bool {
        self.engine.has_inline_work()
    }

    /// Has the source given a turn soon: there is something new, and no kick will tell.
    pub fn call(&mut self) {
        self.wants_turn = true;
    }

    /// Has the source given a turn at that time, or a little later.
    pub fn call_at(&mut self, at: Instant) {
        self.engine.call_at(at, self.route);
    }

    /// The reads that were brought and are carried out on this iothread, or wait, and where their data go.
    pub fn open_reads(&self) -> impl Iterator<Item = (SourceRequestSlot, &Buffers)> {
        self.engine.reads_in_flight(self.route).chain(self.waiting)
    }

    /// Begins to receive into the memory of `transfer`, which belongs to the in-flight table until
    /// [`FrontEnd::transfer_over`](crate::FrontEnd::transfer_over) gives it back. What was received before stays, and counts.
    /// Handed back at once if the source leaves this iothread or stops: the front end begins again when it arrives
    /// somewhere. No other receive may be under way.
    ///
    /// The socket stays open until then, and is not the kick.
    pub fn receive(
        &mut self,
        socket: BorrowedFd<'_>,
        transfer: StreamTransfer,
        goal: StreamGoal,
    ) -> Result<(), StreamTransfer> {
        self.begin(socket, transfer, (StreamDirection::Receive, goal))
    }

    /// Begins to send what is left of `transfer`, as with [`FrontEndContext::receive`]. No other send may be under way.
    pub fn send(
        &mut self,
        socket: BorrowedFd<'_>,
        transfer: StreamTransfer,
    ) -> Result<(), StreamTransfer> {
        self.begin(socket, transfer, (StreamDirection::Send, StreamGoal::All))
    }

    /// Has a transfer end soon that is under way, whatever the peer does. Nothing happens to one that an iothread has begun
    /// which the source has left: that was cancelled then.
    pub fn cancel_transfer(&mut self, direction: StreamDirection) {
        if self.transfers.has(direction) {
            self.engine.cancel_transfer(self.route, direction);
        }
    }

    /// Whether a transfer of this direction is under way.
    pub fn has_transfer(&self, direction: StreamDirection) -> bool {
        self.transfers.has(direction)
    }

    fn begin(
        &mut self,
        socket: BorrowedFd<'_>,
        transfer: StreamTransfer,
        (direction, goal): (StreamDirection, StreamGoal),
    ) -> Result<(), StreamTransfer> {
        if self.transfers.is_closed {
            return Err(transfer);
        }
        self.transfers.begin(direction);
        self.engine.begin_transfer(self.route, socket, transfer, (direction, goal));
        Ok(())
    }

    /// Asks that a request which was brought and not answered ends soon. It has its one answer as ever, in a later turn:
    /// [`FailKind::Cancelled`](block::FailKind::Cancelled), or how it ended if that came first. Of a change that was
    /// cancelled all, some or nothing may have been stored, and of a flush nothing is known; after the answer neither
    /// changes any more, nor does the memory of a read.
    ///
    /// What a lane holds, what waits for room, for a range that others change, for a bounce buffer or for a sync, and what
    /// was not begun ends at once. What the kernel or a server works on is waited for, and what another iothread carries
    /// out, which the source has left, ends as if nothing had been asked.
    pub fn cancel(&mut self, slot: SourceRequestSlot) {
        if self.unstarted == Some(slot) {
            self.unstarted = None;
        } else {
            self.engine.cancel(self.route, slot);
        }
    }

    /// The request that waits for room, if it was not cancelled.
    pub(crate) fn unstarted(&self) -> Option<SourceRequestSlot> {
        self.unstarted
    }

    pub(crate) fn wants_turn(&self) -> bool {
        self.wants_turn
    }

    pub(crate) fn transfers(&self) -> OpenTransfers {
        self.transfers
    }
}
