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
use std::time::Duration;

use block::{
    Answer, Buffers, Clock, FailKind, FileId, LaneError, Mapping, Node, Operation, Outcome, Target,
};
use kernel_io::{
    Alarm, BounceBuffer, BouncePool, Caching, Event, FileTable, InlineShare, IoFailure, Kernel,
    KernelError, Notifier, Reactors, Ringer, Wait, WaitsWith,
};
use virtio::Head;

use crate::holds::{hold_changes, hold_sync_turns};
use crate::job::{Addressee, Job, JobIndex, Jobs, Phase};
use crate::lanes::{LaneIndex, Lanes};
use crate::report::{Report, Trouble};
use crate::seats::{Seat, Seats};
use crate::staged::{Chunk, Next, Staged, StagedKind, Step};
use crate::submit::{
    Run, fail_kind, may_hide_lost_data, must_sync, staged_durability, submit_run, unsupported,
    whole_blocks,
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
    ringer: Ringer,
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
    /// Rings when it is time to tell how many sentences were left out; made when it is first needed.
    alarm: Option<Alarm>,
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
            ringer: Ringer::of_host(),
            lanes: Lanes::default(),
            seats: Seats::default(),
            jobs: Jobs::default(),
            bounce: BouncePool::default(),
            want_buffer: VecDeque::new(),
            want_range: VecDeque::new(),
            batch: Vec::new(),
            mappings: Vec::new(),
            report: Report::new(clock),
            alarm: None,
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

    /// Tells the other side of a ring by its eventfd. Does not sleep, whatever that side did to it.
    pub fn signal(&mut self, fd: BorrowedFd<'_>, what: &str) {
        if let Err(error) = self.ringer.ring(fd) {
            tracing::debug!("{what} descriptor of the front end: {error}");
        }
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

    /// The reads that are carried out here for the ring of a seat, and where their data go.
    pub(crate) fn reads_in_flight(&self, seat: Seat) -> impl Iterator<Item = (Head, &Buffers)> {
        self.jobs
            .open_reads()
            .filter_map(move |(ticket, memory)| Some((ticket.head_at(seat)?, memory)))
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
                    Addressee::Alarm => self.alarm_rang(),
                    Addressee::Job(..) => panic!("a request is no descriptor"),
                },
                Event::PollEnded { tag } => match Addressee::from_tag(tag) {
                    Addressee::Kick(key) => signals.push(Signal::Unwatched(key)),
                    Addressee::Bell | Addressee::Alarm | Addressee::Job(..) => {
                        panic!("only kicks are unwatched")
                    }
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
                match result {
                    Err(failure) => self.piece_failed(index, piece, failure),
                    Ok(()) => self.piece_done(index, piece),
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
        let pieces = self.jobs.get(index).pieces;
        for (place, piece) in pieces.as_slice().iter().enumerate() {
            let Target::File { file, .. } = piece.target else { continue };
            if self.kernel.file(file).has_failed_sync() {
                // No later sync can undo that.
                self.fail(index, file, Trouble::EarlierSync);
                continue;
            }
            let tag = Addressee::Job(index, u8::try_from(place).expect("at most 4 pieces"));
            self.kernel.sync(file, tag.to_tag());
            self.jobs.get(index).outstanding += 1;
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
            let (file, step) = (staged.file, staged.step);
            if step == Step::Writing
                && may_hide_lost_data(staged_durability(job.operation), failure)
            {
                self.kernel.file(file).remember_failed_sync();
            }
            self.fail(index, file, Trouble::Failure(failure));
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
                let durability = staged_durability(job.operation);
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
        } else if let Operation::Write(_, durability) = job.operation
            && may_hide_lost_data(durability, failure)
            && self.kernel.file(file).caching() == Caching::Direct
        {
            self.kernel.file(file).remember_failed_sync();
        }
        self.fail(index, file, Trouble::Failure(failure));
    }

    /// A piece is done. A sync is worth nothing if another one failed meanwhile: the kernel tells each
    /// loss only once.
    fn piece_done(&mut self, index: JobIndex, piece: u8) {
        let job = self.jobs.get(index);
        if job.phase == Phase::Sync
            && let Target::File { file, .. } = job.pieces.as_slice()[usize::from(piece)].target
            && self.kernel.file(file).has_failed_sync()
        {
            self.fail(index, file, Trouble::EarlierSync);
        }
    }

    /// Notes that a request fails, and says so; only once for each request.
    fn fail(&mut self, index: JobIndex, file: FileId, trouble: Trouble) {
        let job = self.jobs.get(index);
        if job.failure.is_some() {
            return;
        }
        job.failure = Some(match trouble {
            Trouble::Failure(failure) => fail_kind(failure),
            Trouble::EarlierSync => FailKind::Io,
        });
        let (operation, phase) = (job.operation, job.phase);
        let path = self.kernel.file(file).path();
        if let Some(wait) = self.report.failed(path, operation, phase, trouble) {
            self.set_alarm(wait);
        }
    }

    /// Has the report catch up after this time, if nothing fails meanwhile.
    fn set_alarm(&mut self, after: Duration) {
        if let Err(error) = self.try_set_alarm(after) {
            // Then it is told with the next sentence, or at the end.
            tracing::debug!("no timer: {error}");
        }
    }

    fn try_set_alarm(&mut self, after: Duration) -> io::Result<()> {
        if let Some(alarm) = &self.alarm {
            return alarm.set(after);
        }
        let alarm = Alarm::new()?;
        self.kernel.poll(alarm.as_fd(), Addressee::Alarm.to_tag());
        let set = alarm.set(after);
        self.alarm = Some(alarm);
        set
    }

    fn alarm_rang(&mut self) {
        if let Some(alarm) = &self.alarm {
            alarm.clear();
        }
        if let Some(wait) = self.report.catch_up() {
            self.set_alarm(wait);
        }
    }

    fn finish(&mut self, index: JobIndex, outcome: Outcome) {
        let ticket = self.jobs.remove(index);
        self.seats.complete(ticket, outcome);
    }
}
