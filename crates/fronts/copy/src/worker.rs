//! A worker of a job: a front end that brings what is next, as long as something is left.
//!
//! Where it stands in the life of a request: at its beginning and its end. Unit 0 is the source, unit 1 the target. The
//! source is asked what a region is; data are read, looked through for zeroes and written, zeroes are made. What is left of
//! a copy whose source is written is claimed first, and asked about then if it is worth the question.
//!
//! Invariants: of a chunk one request is under way; a request that fails ends the job, or what its error policy says, but
//! for the question what bytes are, whose answer is then taken to be data.
//! Threads: belongs to the iothread that serves it. Limits: [`SLOTS`] chunks of [`LARGE_CHUNK_BYTES`], with memory for
//! what is read from each side; fewer and larger ones if the target is written more at a time.

mod shares;
mod verified;

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use bitmaps::CopyClaim;
use block::{
    BlockStatus, Buffers, ByteOffset, FailKind, HostMemory, Outcome, RequestMemory,
    SourceRequestSlot, ZeroTerms,
};
use request_path::{
    FrontEnd, FrontEndContext, Interest, NewRequest, RequestAction, SleepDecision, StreamTransfer,
};
use rustix::event::{EventfdFlags, eventfd};

use crate::chunk::{Chunk, SourceRun, Step, first_difference, request_of, runs_of, whole_units};
use crate::job::{CopiedSource, CopyAction, CopyEnd, CopyError, CopyJob, CopySide, WorkerKick};
use crate::zeroes::{Part, parts};
use verified::comparison;

/// How many chunks are worked on at once: enough to keep a disk behind a network busy.
const SLOTS: u16 = 16;

/// How many at least: what disks in memory carry out at once is written while a CPU's cache has it.
const SLOTS_AT_ONCE: usize = 2;

/// How many bytes of data: so few that those of a few slots stay in the caches of a CPU that copies them.
pub(crate) const CHUNK_BYTES: usize = 256 << 10;

/// The same where all slots are in use: a disk whose requests take time is asked less often for the same bytes.
const LARGE_CHUNK_BYTES: usize = 1 << 20;

/// The least memory of a chunk, for what its source tells of it.
const MEMORY_BYTES_MIN: usize = 4096;

/// How many questions a worker has under way about what it has claimed: what one answer says may spare the others, and a file
/// system that looks for the end of a run takes a CPU for it.
const QUESTIONS_MAX: usize = 2;

/// How long it rests after an error that is ignored.
const ERROR_REST: Duration = Duration::from_millis(100);

/// Whether a job has something left for a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Supply {
    /// It may have.
    Unknown,
    /// Not before this worker, or another one, has heard from the source.
    Awaited,
    /// Nothing is left.
    Over,
}

/// A worker of a job, as a front end of source and target.
#[derive(Debug)]
pub struct CopyWorker {
    job: Arc<CopyJob>,
    /// Rung when the source has told another worker of its bytes, for which this one may wait.
    kick: Arc<WorkerKick>,
    /// The same, for those who hold what it wants.
    waker: Waker,
    chunks: Box<[Option<Chunk>]>,
    free: Vec<SourceRequestSlot>,
    /// How many chunks may be worked on: more where their requests take time.
    depth: usize,
    /// Chunks whose next step is due.
    due: VecDeque<SourceRequestSlot>,
    /// Its own share of what the source has told, that was not begun.
    runs: VecDeque<SourceRun>,
    /// Whether the job has something for it, as far as it knows.
    supply: Supply,
    /// Whom to kick.
    waiting: Vec<Arc<WorkerKick>>,
    /// Whether guests wait for what is claimed.
    is_of_instant: bool,
    /// When the job's rate lets it go on.
    later: Option<Instant>,
    /// Until when it claims nothing.
    rest: Option<Instant>,
    /// Memory that no chunk has.
    spare: Vec<RequestMemory>,
    /// How much each chunk has from a side.
    memory_bytes: usize,
    /// Kept for their room.
    named: Buffers,
    parts: Vec<Part>,
}

impl CopyWorker {
    /// A worker that is not served yet. Its nodes are the source, and the target if the job has one. Fails if no eventfd
    /// can be made.
    pub fn new(job: &Arc<CopyJob>) -> io::Result<Self> {
        let kick = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let kick = Arc::new(WorkerKick::new(kick));
        job.enter(&kick);
        let unit = usize::try_from(job.settings.target_unit).expect("a unit fits memory");
        let memory_bytes = usize::try_from(job.limits().chunk_bytes)
            .unwrap_or(usize::MAX)
            .clamp(MEMORY_BYTES_MIN, LARGE_CHUNK_BYTES)
            .max(unit);
        Ok(Self {
            job: Arc::clone(job),
            waker: Waker::from(Arc::clone(&kick)),
            kick,
            chunks: (0..SLOTS).map(|_| None).collect(),
            free: (0..SLOTS).rev().map(SourceRequestSlot).collect(),
            depth: SLOTS_AT_ONCE,
            due: VecDeque::new(),
            runs: VecDeque::new(),
            supply: Supply::Unknown,
            waiting: Vec::new(),
            is_of_instant: job.backlog().is_some_and(|it| it.backlog.is_of_instant()),
            later: None,
            rest: None,
            spare: Vec::new(),
            memory_bytes,
            named: Buffers::default(),
            parts: Vec::new(),
        })
    }

    /// How many questions are open.
    fn asked(&self) -> usize {
        let asks = |chunk: &&Chunk| matches!(chunk.step, Step::Status(_));
        self.chunks.iter().flatten().filter(asks).count()
    }

    /// Whether it may ask about more.
    fn may_ask(&self) -> bool {
        self.asked() < QUESTIONS_MAX
    }

    fn open(&self) -> usize {
        self.chunks.len() - self.free.len()
    }

    /// The next chunk whose step is to be brought.
    fn next(&mut self) -> Option<SourceRequestSlot> {
        if let Some(slot) = self.due.pop_front() {
            return Some(slot);
        }
        while self.may_begin() {
            let slot = *self.free.last()?;
            if self.runs.is_empty() && !self.may_ask() {
                return None;
            }
            if self.runs.is_empty()
                && let Some(asking) = self.get_share(slot)
            {
                return Some(asking);
            }
            // Others may begin to verify, or end it, at any time: once for both.
            let is_verifying = self.job.is_verifying();
            let SourceRun { bytes, status, claim } = self.next_run(is_verifying)?;
            let begun = match (self.job.settings.action, status.is_zero) {
                // Whatever the source says of them.
                (CopyAction::Copy, _) if is_verifying => comparison(false),
                (CopyAction::Copy, true) if !self.target_is_zero(claim.as_deref()) => {
                    (Step::Zero(bytes.clone(), ZeroTerms::UNMAP), None)
                }
                (CopyAction::Copy, true) => {
                    let count = bytes.end - bytes.start;
                    self.job.count_done(count);
                    if let Some(claim) = claim {
                        claim.finish(count);
                    }
                    continue;
                }
                (CopyAction::Copy, false) | (CopyAction::Populate, _) => {
                    (Step::Read(CopySide::Source), None)
                }
                (CopyAction::Compare, is_zero) => comparison(is_zero),
                (CopyAction::Map, _) => panic!("a map has no chunks of data"),
            };
            let (step, then) = begun;
            return Some(self.begin(slot, bytes, step, then, claim));
        }
        None
    }

    /// Whether it may begin something new.
    fn may_begin(&self) -> bool {
        let is_resting = self.later.is_some() || self.rest.is_some();
        let in_memory = usize::from(SLOTS) * LARGE_CHUNK_BYTES / self.memory_bytes;
        let depth = self.depth.min(self.job.limits().chunks).min(in_memory.max(SLOTS_AT_ONCE));
        !is_resting && !self.job.is_paused() && self.open() < depth
    }

    fn begin(
        &mut self,
        slot: SourceRequestSlot,
        bytes: Range<u64>,
        step: Step,
        then: Option<Step>,
        claim: Option<Arc<CopyClaim>>,
    ) -> SourceRequestSlot {
        let taken = self.free.pop();
        assert_eq!(taken, Some(slot), "the slot that was looked at");
        let bytes_each = self.memory_bytes;
        let mut memory = || {
            let fresh = || HostMemory::zeroed(bytes_each).into();
            self.spare.pop().unwrap_or_else(fresh)
        };
        let steps: VecDeque<Step> = then.into_iter().collect();
        let reads = |side| {
            let wanted = Step::Read(side);
            step == wanted || steps.contains(&wanted)
        };
        let source = matches!(step, Step::Status(_)) || reads(CopySide::Source);
        let source = source.then(&mut memory);
        let target = reads(CopySide::Target).then(&mut memory);
        let pauses = self.job.pauses();
        let chunk = Chunk { bytes, steps, step, source, target, pauses, claim };
        self.chunks[usize::from(slot.0)] = Some(chunk);
        slot
    }

    /// A chunk is finished, or given up.
    fn end(&mut self, slot: SourceRequestSlot, chunk: Chunk) {
        self.spare.extend(chunk.source.into_iter().chain(chunk.target));
        self.free.push(slot);
    }

    /// What the source says of bytes, record by record; what it does not tell is asked again, or taken for data.
    fn told(&mut self, range: Range<u64>, memory: &[u8], claim: Option<Arc<CopyClaim>>) {
        let (mut runs, mut at) = runs_of(&range, memory);
        if claim.is_some() && at < range.end {
            runs.push((at..range.end, BlockStatus::DATA));
        }
        let unit = self.job.settings.target_unit;
        // Those that are only put into a backlog are asked about again.
        if unit > 1 && (claim.is_some() || self.job.backlog().is_none()) {
            (runs, at) = whole_units(&range, &runs, unit);
        }
        match claim {
            None => self.waiting = self.job.told(runs, at),
            Some(claim) => {
                self.job.claim_told(runs.iter().all(|(_, status)| status.is_zero));
                let run = |(bytes, status)| {
                    let claim = Some(Arc::clone(&claim));
                    SourceRun { bytes, status, claim }
                };
                self.runs.extend(runs.into_iter().map(run));
            }
        }
        self.supply = Supply::Unknown;
    }

    /// Decides what follows a step that has gone well.
    fn follow(&mut self, chunk: &mut Chunk, step: &Step) -> Result<(), CopyError> {
        let count = chunk.len();
        match step {
            Step::Status(range) => {
                let mut memory = chunk.source.take().expect("it was asked with memory");
                self.told(range.clone(), memory.bytes(), chunk.claim.clone());
                chunk.source = Some(memory);
            }
            Step::Read(CopySide::Source) => {
                self.job.count_data(count as u64);
                self.fill_up(chunk, CopySide::Source);
                let is_compared = chunk.target.is_some();
                if self.job.settings.action == CopyAction::Copy && !is_compared {
                    self.plan_writes(chunk);
                }
            }
            Step::Read(CopySide::Target) => {
                self.fill_up(chunk, CopySide::Target);
                let difference = first_difference(chunk);
                if self.job.settings.action == CopyAction::Copy {
                    self.follow_verified(chunk, difference);
                } else if let Some(place) = difference {
                    let offset = ByteOffset(chunk.bytes.start + place as u64);
                    return Err(CopyError::Differs(offset));
                }
            }
            Step::Write(part) => self.job.count_written(part.len() as u64),
            Step::Zero(..) | Step::Discard => {}
        }
        Ok(())
    }

    /// What a side lacks of the last sector is zero.
    fn fill_up(&self, chunk: &mut Chunk, side: CopySide) {
        let (all, has) = (chunk.len(), self.job.settings.on(side, &chunk.bytes));
        let has = usize::try_from(has.end - has.start).expect("a chunk fits memory");
        if has < all
            && let Some(memory) = chunk.memory_of(&Step::Read(side))
        {
            memory.bytes()[has..all].fill(0);
        }
    }

    /// What was read is written, but for zeroes.
    fn plan_writes(&mut self, chunk: &mut Chunk) {
        let count = chunk.len();
        let has_zeroes = self.target_is_zero(chunk.claim.as_deref());
        let memory = chunk.source.as_mut().expect("it was read into memory");
        let settings = &self.job.settings;
        let unit = usize::try_from(settings.target_unit).expect("a unit fits memory");
        parts(&memory.bytes()[..count], settings.zero_unit.max(unit), &mut self.parts);
        for Part { bytes, is_zero } in self.parts.drain(..) {
            let disk = chunk.bytes.start + bytes.start as u64..chunk.bytes.start + bytes.end as u64;
            match (is_zero, has_zeroes) {
                (false, _) => chunk.steps.push_back(Step::Write(bytes)),
                (true, true) => {}
                (true, false) => chunk.steps.push_back(Step::Zero(disk, ZeroTerms::UNMAP)),
            }
        }
    }

    /// Begins nothing more of a claim, which is given back when what was begun is over.
    fn forget(&mut self, claim: &Arc<CopyClaim>) {
        let is_same = |run: &SourceRun| run.claim.as_ref().is_some_and(|it| Arc::ptr_eq(it, claim));
        self.runs.retain(|run| !is_same(run));
    }

    fn fail(&mut self, chunk: &Chunk, step: &Step, kind: FailKind) {
        let (side, operation) = match step {
            Step::Status(_) => (CopySide::Source, "block status"),
            Step::Read(side) => (*side, "read"),
            Step::Write(_) => (CopySide::Target, "write"),
            Step::Zero(..) => (CopySide::Target, "write-zeroes"),
            Step::Discard => (CopySide::Source, "discard"),
        };
        let offset = ByteOffset(match step {
            Step::Write(part) => chunk.bytes.start + part.start as u64,
            Step::Zero(range, _) => range.start,
            Step::Status(_) | Step::Read(_) | Step::Discard => chunk.bytes.start,
        });
        let error = CopyError::Disk { side, operation, offset, kind };
        self.job.disk_failed(error, chunk.pauses);
        // What is left of the claim comes back with the others'.
        if let Some(claim) = &chunk.claim {
            self.forget(claim);
        }
        self.rest = Some(self.job.clock.now() + ERROR_REST);
    }
}

impl FrontEnd for CopyWorker {
    type Reply = ();
    type Fault = CopyEnd;

    fn kick(&self) -> BorrowedFd<'_> {
        self.kick.event.as_fd()
    }

    fn interest(&self) -> Interest {
        Interest::Read
    }

    fn slots(&self) -> u16 {
        SLOTS
    }

    fn begin_batch(&mut self) {
        if self.kick.take() && self.supply == Supply::Awaited && self.asked() == 0 {
            self.supply = Supply::Unknown;
        }
        // The limit may be another one by now.
        self.later = None;
        let (now, is_hurried) = (self.job.clock.now(), self.job.is_hurried());
        let _over = self.rest.take_if(|at| is_hurried || *at <= now);
        if self.job.is_paused() {
            self.runs.clear();
        }
    }

    fn take(&mut self) -> Result<Option<NewRequest<'_, ()>>, CopyEnd> {
        if let Some(end) = self.job.end() {
            self.runs.clear();
            while let Some(slot) = self.due.pop_front() {
                let chunk = self.chunks[usize::from(slot.0)].take().expect("its step is due");
                self.end(slot, chunk);
            }
            return if self.open() == 0 { Err(end) } else { Ok(None) };
        }
        let Some(slot) = self.next() else {
            let is_over = self.open() == 0 && self.supply == Supply::Over;
            return if is_over { Err(CopyEnd::Done) } else { Ok(None) };
        };
        let chunk = self.chunks[usize::from(slot.0)].as_mut().expect("its step is due");
        let (unit, operation) = request_of(chunk, &self.job.settings);
        let count = operation.extent().map_or(0, |extent| extent.count().0);
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        let step = chunk.step.clone();
        let bytes = match &step {
            Step::Status(_) => 0..self.memory_bytes.min(CHUNK_BYTES),
            Step::Read(_) => 0..count,
            Step::Write(part) => part.start..part.start + count,
            Step::Zero(..) | Step::Discard => 0..0,
        };
        self.named.clear();
        if let Some(memory) = chunk.memory_of(&step) {
            memory.lend(bytes, &mut self.named);
        }
        let work = RequestAction::Disk { unit, operation, memory: &mut self.named };
        Ok(Some(NewRequest { slot, reply: (), work }))
    }

    fn answer(&mut self, slot: SourceRequestSlot, (): (), outcome: Outcome) {
        let mut chunk = self.chunks[usize::from(slot.0)].take().expect("its request is open");
        let step = chunk.step.clone();
        if let Some(memory) = chunk.memory_of(&step) {
            memory.take_back();
        }
        match (outcome, &step) {
            (Outcome::Done, _) => {
                if let Err(error) = self.follow(&mut chunk, &step) {
                    self.job.fail(error);
                    return self.end(slot, chunk);
                }
            }
            // Who cannot say what it has may be read all the same.
            (Outcome::Failed(_), Step::Status(range)) => {
                self.told(range.clone(), &[], chunk.claim.clone());
            }
            // As in QEMU: what was copied stays where it was.
            (Outcome::Failed(_), Step::Discard) => {}
            (Outcome::Failed(kind), _) => {
                self.fail(&chunk, &step, kind);
                return self.end(slot, chunk);
            }
        }
        match chunk.steps.pop_front() {
            Some(next) => {
                chunk.step = next;
                self.chunks[usize::from(slot.0)] = Some(chunk);
                self.due.push_back(slot);
            }
            None => {
                if !matches!(step, Step::Status(_) | Step::Discard) {
                    let count = chunk.bytes.end - chunk.bytes.start;
                    self.job.count_done(count);
                    // What was claimed is given back: a filter on the source has its changes wait for that.
                    if let Some(claim) = chunk.claim.take() {
                        claim.finish(count);
                    }
                    if self.job.settings.copied == CopiedSource::Discarded {
                        chunk.step = Step::Discard;
                        self.chunks[usize::from(slot.0)] = Some(chunk);
                        return self.due.push_back(slot);
                    }
                }
                self.end(slot, chunk);
            }
        }
    }

    fn publish(&mut self, port: &mut FrontEndContext<'_>) {
        // A question takes its time also where data do not, and what this thread has to do takes as long for one as for many.
        let is_waiting = self.open() > self.due.len() + self.asked() && !port.has_inline_work();
        self.depth = if is_waiting {
            (self.depth * 2).min(self.chunks.len())
        } else {
            (self.depth / 2).max(SLOTS_AT_ONCE)
        };
        if let Some(at) = [self.later, self.rest].into_iter().flatten().max() {
            port.call_at(at);
        }
        for kick in self.waiting.drain(..) {
            kick.mark();
            port.signal(kick.event.as_fd(), "kick of a worker");
        }
        if self.has_new() {
            port.call();
        }
    }

    fn unpublished(&self) -> usize {
        0
    }

    fn transfer_over(&mut self, transfer: StreamTransfer) {
        panic!("none was begun: {transfer:?}")
    }

    fn check(&self) -> Result<(), CopyEnd> {
        Ok(())
    }

    fn report_fault(&self, _: &mut FrontEndContext<'_>) {}

    fn has_new(&self) -> bool {
        if self.job.end().is_some() {
            return !self.due.is_empty() || self.open() == 0;
        }
        let may_get_more = self.supply == Supply::Unknown && self.may_ask();
        let has_runs = !self.runs.is_empty() || may_get_more;
        let may_begin = self.may_begin() && has_runs;
        !self.due.is_empty() || may_begin || (self.open() == 0 && self.supply == Supply::Over)
    }

    fn waiting(&self) -> u32 {
        self.has_new().into()
    }

    fn rest(&mut self) -> SleepDecision {
        if self.has_new() { SleepDecision::MoreWork } else { SleepDecision::MaySleep }
    }

    fn inherited(&self) -> usize {
        0
    }

    fn stays(&self) -> Option<&'static str> {
        None
    }

    fn arrive(&mut self, port: &mut FrontEndContext<'_>) {
        port.call();
    }

    fn leave(&mut self, _: &mut FrontEndContext<'_>) {}
}

#[cfg(test)]
mod tests;
