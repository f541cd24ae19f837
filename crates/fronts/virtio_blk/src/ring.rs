//! A virtio-blk ring as a front end.
//!
//! Where it stands in the life of a request: at its beginning and its end. It pops chains and decodes them; what is
//! answered it stages, publishes all at once, and interrupts the guest if it asked.
//!
//! Invariants: the ring does not pop a head again that is in flight, so a head names a request until its answer.
//! Guest kicks are off from the first pop until the iothread wants to sleep, and the ring is looked at again after
//! they were switched on.
//! Threads: belongs to the iothread that serves it.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use block::{Capacity, Operation, Outcome, Sector, Segment, SourceRequestSlot};
use request_path::{
    FrontEnd, FrontEndContext, Interest, LogicalUnitIndex, NewRequest, RequestAction,
    SleepDecision, StreamTransfer,
};
use virtio::{
    BlkHeader, BlkRequest, BlkRequestKind, BlkRules, Chain, Head, Interrupt, Ring, RingBase,
    RingDirtyLog, reached,
};

use crate::in_flight_reads::DirtyLogReads;
use crate::interrupts::InterruptSender;

/// What a ring is made of.
#[derive(Debug)]
pub struct BlkRingSetup {
    /// The ring itself.
    pub ring: Ring,
    /// What requests are allowed. Its size counts until there is a batch.
    pub rules: BlkRules,
    /// How large the disk is.
    pub capacity: Arc<Capacity>,
    /// The answer to GET_ID.
    pub serial: String,
    /// Becomes readable when the guest has made requests available.
    pub kick: OwnedFd,
    /// Interrupts the guest; without it the guest polls.
    pub call: Option<OwnedFd>,
    /// Tells the other side that the ring is broken.
    pub error: Option<OwnedFd>,
}

/// Why a virtio-blk ring cannot be served any more.
#[derive(Debug, thiserror::Error)]
pub enum BlkRingFault {
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
        source: virtio::MalformedRequest,
    },
}

/// The one disk of a virtio-blk device.
const DISK: LogicalUnitIndex = LogicalUnitIndex(0);

/// What is kept to answer a request: where its status byte goes, and how much was written.
#[derive(Debug, Clone, Copy)]
pub struct BlkReplyTarget {
    /// Where the status byte goes.
    status: Segment,
    /// The bytes that the device may have written.
    written: u32,
}

/// A virtio-blk ring as a front end, with its kick, call and error eventfds.
pub struct BlkRing {
    ring: Ring,
    rules: BlkRules,
    capacity: Arc<Capacity>,
    serial: String,
    kick: OwnedFd,
    error: Option<OwnedFd>,
    interrupts: InterruptSender,
    chain: Chain,
    /// What the guest has asked for that is refused.
    refused: RefusedRequestDisplay,
    /// What the dirty log needs to know.
    reads: DirtyLogReads<Segment>,
}

impl fmt::Debug for BlkRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlkRing").field("size", &self.ring.size()).finish_non_exhaustive()
    }
}

impl BlkRing {
    /// A ring that is not served yet. If somebody was killed who served it, the guest is
    /// interrupted when it arrives: it may have been shown completions and not been told.
    pub fn new(setup: BlkRingSetup) -> Self {
        Self {
            interrupts: InterruptSender::new(setup.call, setup.ring.is_inherited()),
            reads: DirtyLogReads::new(setup.ring.size(), setup.ring.marks_buffers()),
            ring: setup.ring,
            rules: setup.rules,
            capacity: setup.capacity,
            serial: setup.serial,
            kick: setup.kick,
            error: setup.error,
            chain: Chain::default(),
            refused: RefusedRequestDisplay(BlkHeader { request_type: 0, sector: Sector(0) }),
        }
    }

    /// How far the ring has been served: where a successor goes on.
    pub fn base(&self) -> RingBase {
        self.ring.base()
    }

    /// Replaces the descriptor that interrupts the guest, and interrupts it.
    pub fn set_call(&mut self, call: Option<OwnedFd>, port: &mut FrontEndContext<'_>) {
        self.interrupts.set_call(call, port);
    }

    /// Has another log, or none, mark what is written for requests that are not answered yet. Those that are must have
    /// been published: they are the affair of the log before.
    pub fn set_log(&mut self, log: Option<RingDirtyLog>, port: &FrontEndContext<'_>) {
        self.ring.set_log(log);
        self.reads.follow(self.ring.marks_buffers());
        if self.reads.is_logging() {
            self.note_reads(port);
        }
    }

    /// Notes where the data of all reads go that this iothread carries out for the ring.
    fn note_reads(&mut self, port: &FrontEndContext<'_>) {
        for (slot, memory) in port.open_reads() {
            self.reads.note(slot, memory.segments().iter().copied());
        }
    }

    /// What is to be done for the request in `self.chain`.
    #[inline(always)]
    fn work(
        &mut self,
        slot: SourceRequestSlot,
        header: BlkHeader,
        kind: BlkRequestKind,
    ) -> RequestAction<'_> {
        match kind {
            BlkRequestKind::Disk(operation) => {
                let memory = match operation {
                    Operation::Read(_) | Operation::Status(_) => {
                        if self.reads.is_logging() {
                            let segments = self.chain.writable.segments().iter().copied();
                            self.reads.note(slot, segments);
                        }
                        &mut self.chain.writable
                    }
                    Operation::Write(..)
                    | Operation::Discard(..)
                    | Operation::WriteZeroes(..)
                    | Operation::Flush => &mut self.chain.readable,
                };
                RequestAction::Disk { unit: DISK, operation, memory }
            }
            BlkRequestKind::GetId => {
                let written = virtio::write_id(&mut self.chain.writable, &self.serial);
                if self.reads.is_logging() {
                    self.reads.note(slot, self.chain.writable.range(0, written));
                }
                RequestAction::Done
            }
            BlkRequestKind::Refused(kind) => {
                self.refused = RefusedRequestDisplay(header);
                RequestAction::Refuse { unit: DISK, kind, what: &self.refused }
            }
        }
    }
}

impl FrontEnd for BlkRing {
    type Reply = BlkReplyTarget;
    type Fault = BlkRingFault;

    fn kick(&self) -> BorrowedFd<'_> {
        self.kick.as_fd()
    }

    fn interest(&self) -> Interest {
        Interest::Read
    }

    fn slots(&self) -> u16 {
        self.ring.size()
    }

    fn begin_batch(&mut self) {
        self.ring.suppress_kicks();
        self.rules.size = self.capacity.get();
    }

    // What a call returns goes through memory: 4 ns.
    #[inline(always)]
    fn take(&mut self) -> Result<Option<NewRequest<'_, BlkReplyTarget>>, BlkRingFault> {
        let Some(head) = self.ring.pop(&mut self.chain)? else { return Ok(None) };
        let BlkRequest { header, kind, status } = virtio::decode(&mut self.chain, &self.rules)
            .map_err(|source| BlkRingFault::NoStatus { head: head.0, source })?;
        let data = self.chain.writable.count();
        let written = u32::try_from(data).unwrap_or(u32::MAX).saturating_add(1);
        let (slot, reply) = (SourceRequestSlot(head.0), BlkReplyTarget { status, written });
        Ok(Some(NewRequest { slot, reply, work: self.work(slot, header, kind) }))
    }

    #[inline]
    fn answer(&mut self, slot: SourceRequestSlot, reply: BlkReplyTarget, outcome: Outcome) {
        let BlkReplyTarget { status, written } = reply;
        virtio::write_status(status, virtio::status_byte(outcome));
        if self.reads.is_in_use() {
            let Self { reads, ring, .. } = self;
            reads.answered(slot, |segment| ring.mark_buffer(segment));
            // It is written already.
            ring.mark_buffer(status);
        }
        self.ring.push_used(Head(slot.0), written);
        reached(virtio::FaultPoint::Staged);
    }

    /// One index, one interrupt.
    fn publish(&mut self, port: &mut FrontEndContext<'_>) {
        if self.ring.publish() == Interrupt::Wanted || self.interrupts.are_pending() {
            self.interrupts.send(port);
        }
    }

    /// A used ring has an element for each request that a driver makes.
    fn unpublished(&self) -> usize {
        0
    }

    fn transfer_over(&mut self, transfer: StreamTransfer) {
        panic!("a ring has no socket: {transfer:?}")
    }

    fn check(&self) -> Result<(), BlkRingFault> {
        Ok(self.ring.check_log()?)
    }

    fn report_fault(&self, port: &mut FrontEndContext<'_>) {
        if let Some(error) = &self.error {
            port.signal(error.as_fd(), "error");
        }
    }

    fn has_new(&self) -> bool {
        self.ring.has_available()
    }

    fn waiting(&self) -> u32 {
        self.ring.available().into()
    }

    fn rest(&mut self) -> SleepDecision {
        if self.ring.request_kicks() { SleepDecision::MoreWork } else { SleepDecision::MaySleep }
    }

    fn inherited(&self) -> usize {
        self.ring.pending()
    }

    fn stays(&self) -> Option<&'static str> {
        None
    }

    fn arrive(&mut self, port: &mut FrontEndContext<'_>) {
        reached(virtio::FaultPoint::Arrived);
        self.interrupts.arrive(port);
    }

    fn leave(&mut self, port: &mut FrontEndContext<'_>) {
        self.interrupts.leave(port);
        // Their outcomes come by mail, without the memory; a log may be there by then.
        self.note_reads(port);
        reached(virtio::FaultPoint::Departed);
    }
}

/// A refused request as the log shows it: type and sector.
#[derive(Debug)]
struct RefusedRequestDisplay(BlkHeader);

impl fmt::Display for RefusedRequestDisplay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let BlkHeader { request_type, sector } = self.0;
        write!(f, "a guest's request of type {request_type} at sector {}", sector.0)
    }
}
