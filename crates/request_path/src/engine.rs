//! What one iothread does with requests between their decoding and their outcome.
//!
//! Where it stands in the life of a request: a source adds decoded operations
//! ([`Engine::add`]) and has them mapped and started in one batch ([`Engine::start_batch`]); the
//! iothread's event loop hands kernel events in ([`Engine::dispatch`]); finished requests wait at
//! the source's seat.
//!
//! Threads: belongs to one iothread. Only [`Engine::wait`] blocks.
//! Limits: [`REQUESTS_MAX`] requests in flight; sources ask [`Engine::room`] first.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use block::{
    Answer, Buffers, Clock, FailKind, FileId, LaneError, Mapping, Node, Operation, Outcome, Target,
};
use kernel_io::{
    BounceBuffer, BouncePool, Event, FileTable, InlineShare, IoFailure, Kernel, KernelError,
    Notifier, Reactors, Wait, WaitsWith,
};
use virtio::Head;

use crate::holds::{hold_changes, hold_sync_turns};
use crate::job::{Addressee, Job, JobIndex, Jobs, Phase};
use crate::lanes::{LaneIndex, Lanes};
use crate::report::Report;
use crate::seats::{Seat, Seats};
use crate::staged::{Chunk, Next, Staged, StagedKind, Step};
use crate::submit::{
    Run, fail_kind, must_sync, submit_run, submit_sync, unsupported, whole_blocks,
};
use crate::{Mailbox, SourceKey};

/// The most requests one iothread has in flight: sixteen full rings of 256.
const REQUESTS_MAX: usize = 4096;

/// Something for the event loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// The guest has kicked: give the source a turn.
    Kicked(SourceKey),
    /// Finished requests wait at the source's seat: give it a turn.
    Finished(SourceKey),
    /// The source's kick is not watched any more.
    Unwatched(SourceKey),
    /// Somebody rang the bell: look at commands and mailboxes.
    Bell,
}

/// Who carries a batch out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Started {
    /// This thread, some of it at least, and that is over.
    Inline,
    /// The kernel or nobody.
    Elsewhere,
}

/// One iothread's lanes, jobs and way to the kernel.
#[derive(Debug)]
pub struct Engine {
    kernel: Kernel,
    bell: Arc<Notifier>,
    lanes: Lanes,
    seats: Seats,
    jobs: Jobs,
    bounce: BouncePool,
    /// Jobs that wait for a bounce buffer, in order.
    want_buffer: VecDeque<JobIndex>,
    /// Jobs that wait for a range somebody else is changing, or for their turn to sync.
    want_range: VecDeque<JobIndex>,
    batch: Vec<JobIndex>,
    mappings: Vec<Mapping>,
    report: Report,
}

impl Engine {
    /// Makes the calling iothread's engine; `bell` is how others wake it.
    pub fn new(
        table: Arc<FileTable>,
        bell: Arc<Notifier>,
        clock: Arc<dyn Clock>,
        allowed: Reactors,
    ) -> Result<Self, KernelError> {
        let mut kernel = Kernel::new(table, allowed)?;
        kernel.poll(bell.as_fd(), Addressee::Bell.to_tag());
        Ok(Self {
            kernel,
            bell,
            lanes: Lanes::default(),
            seats: Seats::default(),
            jobs: Jobs::default(),
            bounce: BouncePool::default(),
            want_buffer: VecDeque::new(),
            want_range: VecDeque::new(),
            batch: Vec::new(),
            mappings: Vec::new(),
            report: Report::new(clock),
        })
    }

    /// What this iothread waits with.
    pub fn waits_with(&self) -> &WaitsWith {
        self.kernel.waits_with()
    }

    /// This iothread's bell.
    pub fn bell(&self) -> &Arc<Notifier> {
        &self.bell
    }

    /// Opens the iothread's lane on a node, or uses the one that is open.
    pub fn open_lane(&mut self, node: &Arc<dyn Node>) -> Result<LaneIndex, LaneError> {
        self.lanes.open(node)
    }

    /// Gives a lane back.
    pub fn close_lane(&mut self, lane: LaneIndex) {
        self.lanes.close(lane);
    }

    /// Gives a ring that has arrived a seat.
    pub fn sit(&mut self, mailbox: &Arc<Mailbox>, size: u16, key: SourceKey) -> Seat {
        self.seats.sit(Arc::clone(mailbox), size, key)
    }

    /// Takes a seat back; what is in flight there will be posted to the ring's mailbox.
    pub fn leave(&mut self, seat: Seat) {
        self.seats.leave(seat);
    }

    /// Watches a source's kick.
    pub fn watch(&mut self, kick: BorrowedFd<'_>, key: SourceKey) {
        self.kernel.poll(kick, Addressee::Kick(key).to_tag());
    }

    /// Ends watching; [`Signal::Unwatched`] follows. The descriptor must stay open until then.
    pub fn unwatch(&mut self, key: SourceKey) {
        self.kernel.cancel_poll(Addressee::Kick(key).to_tag());
    }

    /// How many more requests may be added now.
    pub fn room(&self) -> usize {
        REQUESTS_MAX.saturating_sub(self.jobs.open())
    }

    /// Takes a request on. Its memory is swapped out of `memory`. It starts with the batch.
    pub fn add(&mut self, seat: Seat, head: Head, operation: Operation, memory: &mut Buffers) {
        let ticket = self.seats.open(seat, head);
        self.batch.push(self.jobs.add(ticket, operation, memory));
        // What no lane answers is refused.
        let answer = Answer::Refused(FailKind::Io);
        self.mappings.push(Mapping { operation, answer });
    }

    /// Maps and starts everything added since the last batch, with one call of the lane.
    pub(crate) fn start_batch(&mut self, lane: LaneIndex) -> Started {
        if self.batch.is_empty() {
            return Started::Elsewhere;
        }
        self.lanes.map(lane, &mut self.mappings);
        let (batch, mappings) = (self.batch.len(), std::mem::take(&mut self.mappings));
        for (place, mapping) in mappings.iter().enumerate().take(batch) {
            let index = self.batch[place];
            match &mapping.answer {
                Answer::Refused(kind) => self.finish(index, Outcome::Failed(*kind)),
                Answer::Now(pieces) => {
                    let job = self.jobs.get(index);
                    job.operation = mapping.operation;
                    job.pieces.copy_from(pieces);
                    self.start(index);
                }
            }
        }
        self.batch.clear();
        self.mappings = mappings;
        self.mappings.clear();
        // What was done at once is answered in the same turn.
        let mut started = Started::Elsewhere;
        while let Some((tag, result, bounce)) = self.kernel.next_finished() {
            self.operation_over(tag, result, bounce);
            started = Started::Inline;
        }
        started
    }

    /// Takes the finished requests of a seat, into an empty list.
    pub(crate) fn take_finished(&mut self, seat: Seat, into: &mut Vec<(Head, Outcome)>) {
        self.seats.take(seat, into);
    }

    /// How much may be done inline from the next wait on.
    pub fn share_inline(&mut self, share: InlineShare) {
        self.kernel.share_inline(share);
    }

    /// Submits what is queued and waits as told.
    pub fn wait(&mut self, wait: Wait) -> io::Result<()> {
        self.kernel.wait(wait)?;
        if self.kernel.is_misled() {
            // Something has to happen to get the kernel's flag down again.
            self.bell.wake();
        }
        Ok(())
    }

    /// Whether [`Engine::wait`] without blocking would do anything: submit, or bring events.
    /// Cheap enough to be asked again and again.
    pub fn has_news(&mut self) -> bool {
        self.kernel.has_news()
    }

    /// Whether something waits that [`Engine::wait`] does itself, so that it would not sleep.
    pub fn has_own_work(&self) -> bool {
        self.kernel.has_inline_work()
    }

    /// Whether requests are being carried out here.
    pub fn is_busy(&self) -> bool {
        self.jobs.open() > 0
    }

    /// Works off all kernel events; what concerns the event loop goes to `signals`.
    pub fn dispatch(&mut self, signals: &mut Vec<Signal>) {
        while let Some(event) = self.kernel.next_event() {
            match event {
                Event::Finished { tag, result, bounce } => self.operation_over(tag, result, bounce),
                Event::Readable { tag } => match Addressee::from_tag(tag) {
                    Addressee::Kick(key) => signals.push(Signal::Kicked(key)),
                    Addressee::Bell => {
                        self.bell.clear();
                        self.retry_ranges();
                        signals.push(Signal::Bell);
                    }
                    Addressee::Job(..) => panic!("a request is no descriptor"),
                },
                Event::PollEnded { tag } => match Addressee::from_tag(tag) {
                    Addressee::Kick(key) => signals.push(Signal::Unwatched(key)),
                    Addressee::Bell | Addressee::Job(..) => panic!("only kicks are unwatched"),
                },
            }
        }
        signals.extend(self.seats.drain_called().map(Signal::Finished));
    }

    fn operation_over(
        &mut self,
        tag: kernel_io::Tag,
        result: Result<(), IoFailure>,
        bounce: Option<BounceBuffer>,
    ) {
        let Addressee::Job(index, piece) = Addressee::from_tag(tag) else {
            panic!("only requests have operations")
        };
        self.jobs.get(index).outstanding -= 1;
        match bounce {
            Some(buffer) => self.staged_step_over(index, result, buffer),
            None => {
                if let Err(failure) = result {
                    self.piece_failed(index, piece, failure);
                }
                self.settle(index);
            }
        }
    }

    /// Starts a mapped job, once nobody else is changing what it changes.
    fn start(&mut self, index: JobIndex) {
        let Self { jobs, kernel, bell, .. } = self;
        let job = jobs.get(index);
        if hold_changes(job, kernel, bell) {
            job.phase = Phase::Transfer;
            self.submit_pieces(index);
            self.settle(index);
        } else {
            self.want_range.push_back(index);
        }
    }

    /// Makes a job's bytes durable, once nobody else is syncing their files.
    fn sync(&mut self, index: JobIndex) {
        let Self { jobs, kernel, bell, .. } = self;
        let job = jobs.get(index);
        if hold_sync_turns(job, kernel, bell) {
            self.submit_syncs(index);
            self.settle(index);
        } else {
            self.want_range.push_back(index);
        }
    }

    fn retry_ranges(&mut self) {
        // Whoever gets nothing again goes to the end, and is not asked twice.
        for _ in 0..self.want_range.len() {
            let Some(index) = self.want_range.pop_front() else { return };
            match self.jobs.get(index).phase {
                Phase::Start => self.start(index),
                Phase::Sync => self.sync(index),
                Phase::Transfer => panic!("a job that is on its way waits for nothing"),
            }
        }
    }

    fn submit_pieces(&mut self, index: JobIndex) {
        let Self { jobs, kernel, .. } = self;
        let Job { pieces, operation, memory, staged, outstanding, .. } = jobs.get(index);
        let mut skip = 0;
        for (place, &piece) in pieces.as_slice().iter().enumerate() {
            let tag = Addressee::Job(index, u8::try_from(place).expect("at most 4 pieces"));
            let count = usize::try_from(piece.count.0).expect("64-bit host");
            match (piece.target, *operation) {
                (Target::Nothing, _) => {}
                (Target::Zeroes, Operation::Read(_)) => memory.zero(skip, count),
                (
                    Target::Zeroes,
                    Operation::Write(..)
                    | Operation::Discard(..)
                    | Operation::WriteZeroes(..)
                    | Operation::Flush,
                ) => {}
                // A flush has no bytes; it only syncs.
                (Target::File { .. }, _) if count == 0 => {}
                (Target::File { file, offset }, operation) => {
                    let run = Run { file, offset, skip, count };
                    *outstanding += submit_run(kernel, operation, run, memory, staged, tag);
                }
            }
            skip += count;
        }
    }

    /// Does what a job with nothing in flight needs next: the next staged transfer, durability,
    /// or the end.
    fn settle(&mut self, index: JobIndex) {
        let job = self.jobs.get(index);
        if job.outstanding > 0 {
            return;
        }
        if job.failure.is_none() {
            if let Some(staged) = job.staged.last_mut() {
                match self.bounce.take() {
                    Some(buffer) => {
                        let next = staged.begin();
                        self.staged_next(index, next, buffer);
                    }
                    None => self.want_buffer.push_back(index),
                }
                return;
            }
            if must_sync(job, &mut self.kernel) {
                job.phase = Phase::Sync;
                // What it changed is changed.
                job.holds.clear();
                return self.sync(index);
            }
        }
        let outcome = job.failure.map_or(Outcome::Done, Outcome::Failed);
        self.finish(index, outcome);
    }

    fn submit_syncs(&mut self, index: JobIndex) {
        let Self { jobs, kernel, .. } = self;
        let job = jobs.get(index);
        for (place, piece) in job.pieces.as_slice().iter().enumerate() {
            if let Target::File { file, .. } = piece.target {
                let tag = Addressee::Job(index, u8::try_from(place).expect("at most 4 pieces"));
                job.outstanding += submit_sync(kernel, file, tag, &mut job.failure);
            }
        }
    }

    fn staged_step_over(
        &mut self,
        index: JobIndex,
        result: Result<(), IoFailure>,
        buffer: BounceBuffer,
    ) {
        let job = self.jobs.get(index);
        let staged = job.staged.last_mut().expect("a bounce buffer belongs to a staged transfer");
        if let Err(failure) = result {
            let file = staged.file;
            let kind = self.report_failure(index, file, failure);
            self.jobs.get(index).fail(kind);
            self.give_back(buffer);
            return self.settle(index);
        }
        if staged.kind == StagedKind::Read && staged.step == Step::Reading {
            let chunk = staged.chunk();
            buffer.drain(chunk.lead, &mut job.memory, staged.skip, chunk.body);
        }
        let next = staged.proceed();
        self.staged_next(index, next, buffer);
    }

    fn staged_next(&mut self, index: JobIndex, next: Next, mut buffer: BounceBuffer) {
        let Self { jobs, kernel, .. } = self;
        let job = jobs.get(index);
        let staged = job.staged.last().expect("the current staged transfer");
        let tag = Addressee::Job(index, 0).to_tag();
        match next {
            Next::Read(Chunk { start, count, .. }) => {
                kernel.read_bounce(staged.file, start, count, buffer, tag);
                job.outstanding += 1;
            }
            Next::FillAndWrite(Chunk { start, count, lead, body }) => {
                if staged.kind == StagedKind::Zero {
                    buffer.zero(lead, body);
                } else {
                    buffer.fill(lead, &job.memory, staged.skip, body);
                }
                let durability = job.operation.durability();
                kernel.write_bounce(staged.file, start, durability, count, buffer, tag);
                job.outstanding += 1;
            }
            Next::Finished => {
                job.staged.pop();
                self.give_back(buffer);
                self.settle(index);
            }
        }
    }

    fn give_back(&mut self, buffer: BounceBuffer) {
        self.bounce.put(buffer);
        if let Some(index) = self.want_buffer.pop_front() {
            self.settle(index);
        }
    }

    /// A piece failed: some failures mean another way, the others are the guest's.
    fn piece_failed(&mut self, index: JobIndex, piece: u8, failure: IoFailure) {
        let job = self.jobs.get(index);
        let place = usize::from(piece);
        let piece = job.pieces.as_slice()[place];
        let Target::File { file, offset } = piece.target else {
            panic!("only a file's operations fail")
        };
        if job.phase == Phase::Sync {
            self.kernel.file(file).remember_failed_sync();
        } else if unsupported(failure) {
            match job.operation {
                // A hint that the file system cannot take.
                Operation::Discard(..) => return,
                Operation::WriteZeroes(..) => {
                    let open = self.kernel.file(file);
                    let alignment = u64::from(open.offset_alignment());
                    let bytes = offset.0..offset.0 + piece.count.0;
                    let whole = whole_blocks(&bytes, u64::from(open.allocation_alignment()));
                    let (kind, step) = (StagedKind::Zero, Step::Idle);
                    let (at, left) = (whole.start, whole.end - whole.start);
                    job.staged.push(Staged { kind, file, at, skip: 0, left, alignment, step });
                    return;
                }
                Operation::Read(_) | Operation::Write(..) | Operation::Flush => {}
            }
        }
        let kind = self.report_failure(index, file, failure);
        self.jobs.get(index).fail(kind);
    }

    fn report_failure(&mut self, index: JobIndex, file: FileId, failure: IoFailure) -> FailKind {
        let operation = self.jobs.get(index).operation;
        let path = self.kernel.file(file).path().display();
        let name = operation.name();
        let cause = std::error::Error::source(&failure).map(|errno| format!(": {errno}"));
        let cause = cause.unwrap_or_default();
        match operation.extent() {
            Some(extent) => self.report.say(format_args!(
                "disk {path}: {name} of {} bytes at byte {} failed: {failure}{cause}",
                extent.count(),
                extent.start()
            )),
            None => self.report.say(format_args!("disk {path}: {name} failed{cause}")),
        }
        fail_kind(failure)
    }

    fn finish(&mut self, index: JobIndex, outcome: Outcome) {
        let ticket = self.jobs.remove(index);
        self.seats.complete(ticket, outcome);
    }
}
