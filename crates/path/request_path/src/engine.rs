//! What one iothread does with requests between their decoding and their outcome.
//!
//! Where it stands in the life of a request: a source adds decoded operations
//! ([`Engine::add`]) and has them mapped and started in one batch ([`Engine::start_batch`]); the
//! iothread's event loop hands kernel events in ([`Engine::dispatch`]); finished requests wait at
//! the source's route.
//!
//! Threads: belongs to one iothread. Only [`Engine::wait`] blocks.
//! Limits: what all lanes may have in flight, and each of them, so that a disk that hangs stops no other one: `lanes`
//! (sources ask [`Engine::room`] first), and [`BUFFERS`].

mod bounce;
mod cancel;
mod channels;
mod control;
mod events;
mod failures;
mod held;
mod internal_io;
mod pieces;
mod retirement;
mod status;
mod syncs;
mod timed_turns;
mod transfers;

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::task::Waker;

use block::{
    AfterPiecesAction, Answer, BatchPieces, BufferCopyPolicy, Buffers, Clock, CompletedRequest,
    InternalOperation, LaneError, Mapping, Node, Operation, Outcome, SourceRequestSlot,
};
use kernel_io::{
    Alarm, BouncePool, EngineKernel, FileTable, InlineBudget, Interest, Kernel, KernelError,
    Notifier, ReactorChoice, ReactorKind, SHORT_BYTES_MAX, ServedRings, WaitMode,
};

use crate::buffer_queues::BufferQueues;
use crate::completion_routes::{RouteIndex, SourceRoutes};
use crate::failure_reporter::{FailureReporter, StorageFailureCause};
use crate::io_request::{
    KernelEventTarget, RequestIndex, RequestOrigin, RequestPhase, RequestTable,
};
use crate::lanes::{LaneIndex, Lanes, RequestResources, weight};
use crate::range_locks::{LockRanges, lock_changed_ranges};
use crate::storage_backends::FileAndChannelBackends;
use crate::submit::must_sync;
use crate::{OutcomeMailbox, SourceKey};
pub use control::ControlEngineFactory;
use syncs::PendingSyncs;
use timed_turns::TimedTurns;

/// The most calls in one round of lanes that can go on: what goes on by itself, without end, does not
/// keep its iothread from the rings. A lane goes on with all of its requests in one call.
const LANE_CALLS_MAX: u32 = 64;

/// What the engine reports to the event loop: a kick, finished requests, a poll that ended, a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventLoopEvent {
    /// The client has kicked: give the source a turn.
    Kicked(SourceKey),
    /// What the client is told by has room again, which is no kick: give the source a turn.
    Writable(SourceKey),
    /// Finished requests wait at the source's route: give it a turn.
    Finished(SourceKey),
    /// The source's kick is not watched any more.
    Unwatched(SourceKey),
    /// Somebody signalled the notifier: look at commands and mailboxes.
    Bell,
}

/// Whether some of a batch was carried out at once by this thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BatchStartResult {
    /// This thread: some of it is over, or waits for the next turns.
    Inline,
    /// The kernel or nobody.
    Asynchronous,
}

/// One iothread's request engine: maps requests by its lanes, carries them out by the kernel, and delivers their
/// outcomes.
#[derive(Debug)]
pub struct Engine<K = Kernel> {
    kernel: K,
    notifier: Arc<Notifier>,
    /// Rings it.
    waker: Waker,
    clock: Arc<dyn Clock>,
    lanes: Lanes,
    routes: SourceRoutes,
    jobs: RequestTable,
    bounce: BouncePool,
    /// Jobs that wait for a bounce buffer, by lane.
    buffer_waiters: BufferQueues,
    /// Jobs that wait for a range somebody else is changing.
    range_waiters: VecDeque<RequestIndex>,
    /// Jobs whose pieces were not all begun, in order.
    partly_submitted: VecDeque<RequestIndex>,
    /// What may be done by hand in this turn.
    copy_budget: InlineBudget,
    /// Whether a short transfer was brought since that was last asked.
    has_short: bool,
    /// Which ranges a job needs now; kept for its room.
    wanted: LockRanges,
    syncs: PendingSyncs,
    /// What is new, or was held and may go on, and the answers.
    mappings: Vec<Mapping>,
    pieces: BatchPieces,
    /// How many more calls of lanes this round has room for.
    lane_calls_left: u32,
    /// An empty list, kept for its room.
    internal_ios: Vec<InternalOperation>,
    /// What was carried out, and its lane is to be told of.
    completed: Vec<CompletedRequest>,
    /// That lane, if there is any such request.
    completed_on: Option<LaneIndex>,
    /// Requests that lanes hold.
    held: usize,
    /// Those among them that were answered already.
    cancelled: usize,
    /// Pieces of the requests that are not over.
    pieces_open: usize,
    /// The segments of the requests added since the last batch.
    new_segments: usize,
    /// What those count for, in bytes.
    new_bytes: usize,
    timed_turns: TimedTurns,
    /// Transfers that are not over.
    transfers: usize,
    report: FailureReporter,
    /// Rings when it is time to tell how many sentences were left out; made when it is first needed.
    alarm: Option<Alarm>,
}

impl Engine {
    /// Makes the calling iothread's engine; `notifier` is how others wake it.
    pub fn new(
        table: Arc<FileTable>,
        notifier: Arc<Notifier>,
        clock: Arc<dyn Clock>,
        allowed: ReactorChoice,
    ) -> Result<Self, KernelError> {
        table.tell(&notifier);
        Ok(Self::with(Kernel::new(table, allowed)?, notifier, clock))
    }

    /// What this iothread waits with.
    pub fn waits_with(&self) -> &ReactorKind {
        self.kernel.waits_with()
    }
}

impl<K: EngineKernel> Engine<K> {
    /// An engine on that kernel, which the calling thread uses; `notifier` is how others wake it.
    pub fn with(mut kernel: K, notifier: Arc<Notifier>, clock: Arc<dyn Clock>) -> Self {
        kernel.poll(notifier.as_fd(), Interest::Read, KernelEventTarget::Bell.to_tag());
        Self {
            kernel,
            lanes: Lanes::new(Arc::clone(&notifier)),
            waker: Waker::from(Arc::clone(&notifier)),
            notifier,
            clock: Arc::clone(&clock),
            routes: SourceRoutes::default(),
            jobs: RequestTable::default(),
            bounce: BouncePool::default(),
            buffer_waiters: BufferQueues::default(),
            range_waiters: VecDeque::new(),
            partly_submitted: VecDeque::new(),
            copy_budget: InlineBudget::default(),
            has_short: false,
            wanted: LockRanges::default(),
            syncs: PendingSyncs::default(),
            mappings: Vec::new(),
            pieces: BatchPieces::default(),
            lane_calls_left: LANE_CALLS_MAX,
            internal_ios: Vec::new(),
            completed: Vec::new(),
            completed_on: None,
            held: 0,
            cancelled: 0,
            pieces_open: 0,
            new_segments: 0,
            new_bytes: 0,
            timed_turns: TimedTurns::default(),
            transfers: 0,
            report: FailureReporter::new(clock),
            alarm: None,
        }
    }

    /// This iothread's notifier.
    pub fn notifier(&self) -> &Arc<Notifier> {
        &self.notifier
    }

    /// Opens the iothread's lanes on these nodes, all or none, or uses those that are open.
    pub fn open_lanes(&mut self, nodes: &[Arc<dyn Node>]) -> Result<Vec<LaneIndex>, LaneError> {
        let mut lanes = Vec::with_capacity(nodes.len());
        for node in nodes {
            match self.lanes.open(node) {
                Ok(lane) => lanes.push(lane),
                Err(error) => {
                    lanes.into_iter().for_each(|lane| self.close_lane(lane));
                    return Err(error);
                }
            }
        }
        Ok(lanes)
    }

    /// Gives a lane back.
    pub(crate) fn close_lane(&mut self, lane: LaneIndex) {
        self.lanes.close(lane);
    }

    /// Has nobody bring anything new to this node here, until [`Engine::admit`]. What rings bring is
    /// left where it is: there is no room.
    pub fn drain(&mut self, node: &Arc<dyn Node>) -> LaneIndex {
        self.lanes.drain(node)
    }

    /// Whether nothing of a lane that is being drained is in flight here any more: then it was closed.
    /// What it holds is made due.
    pub fn is_drained(&mut self, lane: LaneIndex) -> bool {
        let is_drained = self.lanes.is_drained(lane);
        if !is_drained {
            self.release(lane);
        }
        is_drained
    }

    /// Opens a lane again on a node that is drained, for [`Engine::admit`].
    pub fn prepare_lane(&mut self, node: &Arc<dyn Node>) -> Result<(), LaneError> {
        self.lanes.prepare(node)
    }

    /// Closes the lane that was opened for that.
    pub fn withdraw_lane(&mut self, node: &Arc<dyn Node>) {
        self.lanes.withdraw(node);
    }

    /// Ends a drain: rings go on with the lane that was prepared, or all their requests fail.
    pub fn admit(&mut self, node: &Arc<dyn Node>) {
        self.lanes.admit(node);
    }

    /// Ends a drain that is given up, which is over or not: rings go on with the lane that is there, or with a new one. If
    /// none can be opened, all their requests fail.
    pub fn cancel_drain(&mut self, node: &Arc<dyn Node>) -> (LaneIndex, Result<(), LaneError>) {
        let (lane, is_drained) = self.lanes.give_up_drain(node);
        let result = if is_drained { self.lanes.prepare(node) } else { Ok(()) };
        if is_drained {
            self.lanes.admit(node);
        }
        (lane, result)
    }

    /// Gives a source of so many slots that has arrived a route.
    pub(crate) fn attach(
        &mut self,
        mailbox: &Arc<OutcomeMailbox>,
        slots: u16,
        key: SourceKey,
    ) -> RouteIndex {
        self.routes.attach(Arc::clone(mailbox), slots, key)
    }

    /// Takes a route back; what is in flight there will be posted to the source's mailbox.
    pub(crate) fn leave(&mut self, route: RouteIndex) {
        self.routes.leave(route);
    }

    /// Watches a source's kick; [`EventLoopEvent::Kicked`] follows each time that it becomes ready.
    pub fn watch(&mut self, kick: BorrowedFd<'_>, interest: Interest, key: SourceKey) {
        self.kernel.poll(kick, interest, KernelEventTarget::Kick(key).to_tag());
    }

    /// Ends watching; [`EventLoopEvent::Unwatched`] follows. The descriptor must stay open until then.
    pub fn unwatch(&mut self, key: SourceKey) {
        self.kernel.cancel_poll(KernelEventTarget::Kick(key).to_tag());
    }

    /// Tells the other side of a front end by its eventfd. Does not sleep, whatever that side did to it.
    pub(crate) fn signal(&mut self, fd: BorrowedFd<'_>, what: &str) {
        if let Err(error) = self.kernel.ring(fd) {
            tracing::debug!("{what} descriptor of the front end: {error}");
        }
    }

    /// How many more requests may be added now for that lane.
    pub(crate) fn room(&self, lane: LaneIndex) -> usize {
        self.lanes.room(lane, self.jobs.open() - self.held, self.pieces_open)
    }

    /// Takes a request on. Its memory is swapped out of `memory`. It starts with the batch.
    #[inline]
    pub(crate) fn add(
        &mut self,
        route: RouteIndex,
        lane: LaneIndex,
        slot: SourceRequestSlot,
        operation: Operation,
        memory: &mut Buffers,
    ) {
        let ticket = self.routes.open(route, slot);
        let bytes = weight(operation, memory);
        self.new_segments += memory.segments().len();
        self.new_bytes += bytes;
        self.has_short |= bytes <= SHORT_BYTES_MAX
            && matches!(operation, Operation::Read(_) | Operation::Write(..));
        let index = self.jobs.add(ticket, lane, operation, memory, bytes);
        self.mappings.push(Mapping::new(index.token(), operation));
    }

    /// Maps and starts everything added since the last batch, with one call of the lane.
    pub(crate) fn start_batch(&mut self, lane: LaneIndex) -> BatchStartResult {
        if self.mappings.is_empty() {
            return BatchStartResult::Asynchronous;
        }
        let (segments, bytes) =
            (std::mem::take(&mut self.new_segments), std::mem::take(&mut self.new_bytes));
        let waiting = self.kernel.inline_waiting();
        self.lanes.add(lane, self.mappings.len(), segments, bytes);
        self.lanes.map(lane, &mut self.mappings, &mut self.pieces);
        let (held, bytes) = self.start_answered(lane);
        self.held += held;
        self.lanes.held(lane, held, bytes);
        let started = self.deliver_finished();
        if self.kernel.inline_waiting() > waiting { BatchStartResult::Inline } else { started }
    }

    /// Starts what that lane has answered; returns how many requests it holds, and the bytes of their memory.
    fn start_answered(&mut self, lane: LaneIndex) -> (usize, usize) {
        let (mut held, mut bytes) = (0, 0);
        let mut mappings = std::mem::take(&mut self.mappings);
        // Before any of them is over.
        let pieces = mappings.iter().map(|mapping| match mapping.answer {
            Answer::Now(range) => range.count(),
            Answer::Held | Answer::Refused(_) => 0,
        });
        let pieces = pieces.sum();
        self.pieces_open += pieces;
        self.lanes.add_pieces(lane, pieces);
        for mapping in &mappings {
            if let Answer::Now(range) = mapping.answer {
                let job = self.jobs.get(RequestIndex::of(mapping.token));
                job.operation = mapping.operation;
                job.after = mapping.after;
                job.eof_policy = mapping.eof_policy;
                self.pieces.take(range, &mut job.pieces);
                if mapping.memory == BufferCopyPolicy::Copied {
                    let bytes = job.copy_memory();
                    self.lanes.internal_begun(lane, bytes);
                }
            }
        }
        // With the last of them a lane may be closed, and nothing may keep its memory then.
        self.pieces.clear();
        for mapping in &mappings {
            let index = RequestIndex::of(mapping.token);
            match mapping.answer {
                Answer::Refused(kind) => self.refused(index, kind),
                Answer::Held => {
                    held += 1;
                    bytes += self.jobs.get(index).memory.count();
                }
                Answer::Now(_) => {
                    self.jobs.get(index).phase = RequestPhase::Start;
                    self.start(index);
                }
            }
        }
        mappings.clear();
        self.mappings = mappings;
        (held, bytes)
    }

    /// What was done at once is answered in the same turn.
    fn deliver_finished(&mut self) -> BatchStartResult {
        let mut started = BatchStartResult::Asynchronous;
        loop {
            while let Some((tag, result, bounce)) = self.kernel.next_finished() {
                self.operation_over(tag, result, bounce);
                started = BatchStartResult::Inline;
            }
            if !self.run_woken_lanes() {
                return started;
            }
        }
    }

    /// Takes the finished requests of a route, into an empty list.
    pub(crate) fn take_finished(
        &mut self,
        route: RouteIndex,
        into: &mut Vec<(SourceRequestSlot, Outcome)>,
    ) {
        self.routes.take(route, into);
    }

    /// The reads that are carried out here for the ring of a route, and where their data go.
    pub(crate) fn reads_in_flight(
        &self,
        route: RouteIndex,
    ) -> impl Iterator<Item = (SourceRequestSlot, &Buffers)> {
        self.jobs
            .open_reads()
            .filter_map(move |(ticket, memory)| Some((ticket.slot_at(route)?, memory)))
    }

    /// Whether a source has brought a read or a write that is short since that was last asked.
    pub fn take_short(&mut self) -> bool {
        std::mem::take(&mut self.has_short)
    }

    /// How much may be done inline from the next wait on.
    pub fn share_inline(&mut self, share: ServedRings) {
        self.kernel.share_inline(share);
        self.copy_budget.share(share);
    }

    /// Submits what is queued and waits as told.
    pub fn wait(&mut self, wait: WaitMode) -> io::Result<()> {
        self.lane_calls_left = LANE_CALLS_MAX;
        self.lanes.channels.begin_round(None);
        self.copy_budget.begin();
        self.kernel.wait(if self.partly_submitted.is_empty() { wait } else { WaitMode::Poll })?;
        self.submit_later_pieces();
        if self.kernel.has_stale_flag() {
            // Something has to happen to get the kernel's flag down again.
            self.notifier.wake();
        }
        Ok(())
    }

    /// Whether [`Engine::wait`] without blocking would do anything: submit, or bring events.
    /// Cheap enough to be asked again and again.
    pub fn has_pending(&mut self) -> bool {
        self.has_own_work() || self.kernel.has_pending()
    }

    /// Whether something waits that [`Engine::wait`] or [`Engine::dispatch`] does without any event. Nobody
    /// may sleep then.
    pub fn has_own_work(&self) -> bool {
        self.lanes.any_woken()
            || !self.completed.is_empty()
            || self.lanes.channels.have_work()
            || !self.partly_submitted.is_empty()
            || self.has_inline_work()
    }

    /// Whether transfers wait until this thread makes them itself.
    pub(crate) fn has_inline_work(&self) -> bool {
        self.kernel.inline_waiting() > 0
    }

    /// Whether requests are being carried out here; those that are held are not.
    pub fn is_busy(&self) -> bool {
        self.jobs.open() > self.held
    }

    /// Whether nothing is in flight or held here, no transfer under way, nor is a lane about to go on by itself.
    pub fn is_over(&self) -> bool {
        let lanes = &self.lanes;
        let is_idle = self.jobs.open() == 0 && self.transfers == 0;
        is_idle && !lanes.any_woken() && !lanes.channels.any_woken()
    }

    /// Starts a mapped job, once nobody else is changing what it changes.
    fn start(&mut self, index: RequestIndex) {
        let Self { jobs, wanted, kernel, lanes, waker, .. } = self;
        let mut storages = FileAndChannelBackends { kernel, channels: &mut lanes.channels };
        let job = jobs.get(index);
        let is_free = lock_changed_ranges(job, wanted, &mut storages, waker);
        // Looked at after that: who fences something off wakes those that wait for a range.
        if let Some(storage) = storages.unfenced(job) {
            self.fail(index, storage, StorageFailureCause::Unfenced);
            self.advance(index);
        } else if is_free {
            job.phase = RequestPhase::Transfer;
            self.begin_pieces(index);
            self.advance(index);
        } else {
            self.range_waiters.push_back(index);
        }
    }

    /// Its files and channels.
    fn storages(&mut self) -> FileAndChannelBackends<'_, K> {
        FileAndChannelBackends { kernel: &mut self.kernel, channels: &mut self.lanes.channels }
    }

    fn retry_ranges(&mut self) {
        // Whoever gets nothing again goes to the end, and is not asked twice.
        for _ in 0..self.range_waiters.len() {
            let Some(index) = self.range_waiters.pop_front() else { return };
            self.start(index);
        }
    }

    /// Does what a job with nothing in flight needs next: the next staged transfer, durability,
    /// or the end.
    fn advance(&mut self, index: RequestIndex) {
        let Self { jobs, kernel, lanes, .. } = self;
        let mut storages = FileAndChannelBackends { kernel, channels: &mut lanes.channels };
        let job = jobs.get(index);
        if job.outstanding > 0 {
            return;
        }
        if job.failure.is_none() {
            if let Some(staged) = job.staged.last() {
                self.buffer_waiters.push(job.lane.place(), staged.size, index);
                return self.hand_out_buffers();
            }
            if must_sync(job, &mut storages) {
                job.phase = RequestPhase::Sync;
                // What it changed is changed.
                job.range_guards.clear();
                return self.sync(index);
            }
        }
        let outcome = job.failure.map_or(Outcome::Done, Outcome::Failed);
        match job.after {
            AfterPiecesAction::Finish => self.finish(index, outcome),
            AfterPiecesAction::NotifyLane => self.notify_later(index, outcome),
        }
    }

    /// A request is over.
    fn finish(&mut self, index: RequestIndex, outcome: Outcome) {
        let job = self.jobs.get(index);
        let outcome = job.end_status(index, outcome);
        let (lane, pieces) = (job.lane, job.pieces.len());
        let (segments, bytes) = (job.memory.segments().len(), job.memory.count());
        let request_bytes = job.weight;
        let copied = job.free_copy();
        self.pieces_open -= pieces;
        let ended = match self.jobs.remove(index) {
            RequestOrigin::Ring(ticket) => {
                self.routes.complete(ticket, outcome);
                RequestResources { pieces, segments, request_bytes, internal_bytes: copied }
            }
            RequestOrigin::Cancelled => {
                RequestResources { pieces, segments, request_bytes, internal_bytes: copied }
            }
            RequestOrigin::Lane(internal_io) => {
                internal_io.finish(outcome);
                RequestResources { pieces, segments: 0, request_bytes: 0, internal_bytes: bytes }
            }
        };
        self.lanes.over(lane, ended);
    }
}
