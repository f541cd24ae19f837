//! What a protocol implements to bring requests: a front end.
//!
//! Where it stands in the life of a request: at its beginning and its end. [`FrontEndSource`](crate::FrontEndSource)
//! asks a front end for new requests, tells it how they ended and has it show its client the answers; everything
//! between is the same for all protocols and stands in `FrontEndSource`.
//!
//! Invariants: a [`SourceRequestSlot`] that was brought is not brought again before it was answered (`FrontEndSource` checks
//! it). Answers and transfers that are over come on the iothread that serves the front end, each exactly once. Threads: a front end belongs to one
//! iothread at a time and travels whole, with its requests in flight. Limits: [`FrontEnd::slots`] requests in flight.
//! Not here: turns, fairness and drains (`front_end_source`), when a source gets a turn (`iothread`).

use std::error::Error;
use std::fmt;
use std::os::fd::BorrowedFd;

use block::{Buffers, FailKind, Operation, Outcome, SourceRequestSlot};

use crate::{FrontEndContext, Interest, SleepDecision, StreamTransfer};

/// What a protocol implements: takes requests from a client, and answers them (virtio-blk now; NBD, jobs later).
pub trait FrontEnd: fmt::Debug + Send + 'static {
    /// What it needs to answer a request, kept for it until then.
    type Reply: fmt::Debug + Copy + Send;

    /// Why it cannot be served any more.
    type Fault: Error + Send + Sync + 'static;

    /// The descriptor that becomes ready when there is something new, or room for answers that could not be published.
    /// Always the same.
    fn kick(&self) -> BorrowedFd<'_>;

    /// What for. It has a turn each time that its kick becomes ready, and need not have one while it stays so.
    fn interest(&self) -> Interest;

    /// How many requests it may have in flight: all its slots are smaller. Always the same.
    fn slots(&self) -> u16;

    /// A batch of new requests begins. From now on until [`FrontEnd::rest`] nobody needs its kicks.
    fn begin_batch(&mut self);

    /// Takes the next new request from its client, if there is one. After a fault it is not asked again.
    fn take(&mut self) -> Result<Option<NewRequest<'_, Self::Reply>>, Self::Fault>;

    /// Answers a request that it has brought. Its client need not see that before [`FrontEnd::publish`].
    fn answer(&mut self, slot: SourceRequestSlot, reply: Self::Reply, outcome: Outcome);

    /// Shows its client everything answered since the last time, or as much as there is room for. Called at the end of
    /// each turn.
    fn publish(&mut self, port: &mut FrontEndContext<'_>);

    /// How many answers its client was not shown, for want of room. A stop does not wait for a client that makes none: they
    /// stay with the front end, which whoever stops it has back. That one may have it served again, and loses nothing.
    fn unpublished(&self) -> usize;

    /// A transfer on its socket is over that it has begun ([`FrontEndContext::receive`]), and says how
    /// ([`StreamTransfer::end`](crate::StreamTransfer::end)). Once for each, wherever the front end is served by then. One
    /// that was cancelled, as all are when the source moves or stops, has kept what was transferred and can be gone on with.
    /// The next one is begun in [`FrontEnd::publish`] or [`FrontEnd::arrive`].
    fn transfer_over(&mut self, transfer: StreamTransfer);

    /// Whether it can still be served. Asked at the end of each turn in which it may bring something new.
    fn check(&self) -> Result<(), Self::Fault>;

    /// Tells its client of a fault: nothing new is taken any more.
    fn report_fault(&self, port: &mut FrontEndContext<'_>);

    /// Whether there is something new. Cheap enough to be asked again and again.
    fn has_new(&self) -> bool;

    /// How many new requests lie ready that it has not brought, as far as that is seen at one look: at least 1 if there is
    /// something new. For gauges.
    fn waiting(&self) -> u32;

    /// Asks for kicks, so that the iothread need not look any more.
    fn rest(&mut self) -> SleepDecision;

    /// How many of those requests that it will bring first were in flight before it came. They are taken on also while
    /// it stops.
    fn inherited(&self) -> usize;

    /// Why no other iothread can serve it from now on; `None` if any can. Asked before each move.
    fn stays(&self) -> Option<&'static str>;

    /// It is served on this iothread from now on.
    fn arrive(&mut self, port: &mut FrontEndContext<'_>);

    /// It leaves this iothread; everything answered was published. What is in flight stays and is answered later,
    /// wherever it is served then.
    fn leave(&mut self, port: &mut FrontEndContext<'_>);
}

/// The number of a disk among those a front end serves (a LUN).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LogicalUnitIndex(pub u16);

/// A request that a front end has decoded.
#[derive(Debug)]
pub struct NewRequest<'a, R> {
    /// Names it until it is answered.
    pub slot: SourceRequestSlot,
    /// Comes back with its answer.
    pub reply: R,
    /// What is to be done for it.
    pub work: RequestAction<'a>,
}

/// What the engine does for a new request: an operation on a disk, nothing, or report a refusal.
#[derive(Debug)]
pub enum RequestAction<'a> {
    /// An operation on a disk.
    Disk {
        /// Which of them.
        unit: LogicalUnitIndex,
        /// Inside the disk, allowed there and of whole sectors, but at the end of a disk that ends inside one.
        operation: Operation,
        /// What is read into or written from; swapped for an empty list. It stays mapped until the answer.
        memory: &'a mut Buffers,
    },
    /// Nothing: the front end has carried it out.
    Done,
    /// Nothing: it cannot be carried out. The operator hears of it.
    Refuse {
        /// Of which disk the sentence is.
        unit: LogicalUnitIndex,
        /// Why.
        kind: FailKind,
        /// Says what was asked, such as `a guest's request of type 77`.
        what: &'a dyn RefusedRequestText,
    },
}

/// The text of a refused request for the log.
pub trait RefusedRequestText: fmt::Debug + fmt::Display {}

impl<T: fmt::Debug + fmt::Display> RefusedRequestText for T {}
