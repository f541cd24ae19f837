//! One iothread's handle on a node that copies on read, and the tasks that copy.
//!
//! Where it stands: guests' requests go to one lane of the child, copies to another one.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::rc::Rc;
use std::time::Instant;

use block::{
    Access, Answer, BatchPieces, DiskSize, Durability, FailKind, HostMemory, Lane,
    LaneCompletionDecision, LaneContext, Mapping, Operation, Outcome, RangeGuard, RangeLock, Token,
    WakeTime, ZeroTerms,
};
use tasks::{AsyncChild, Semaphore, TaskExecutor, extent};

use super::{CHUNK_BYTES, COPIED_BYTES, CopySource};
use crate::in_flight_changes::InFlightChanges;

/// What the tasks of one lane share that copy what is read into the image below.
#[derive(Debug)]
pub(super) struct CopyTasks {
    storage: AsyncChild,
    ranges: RangeLock,
    source: CopySource,
    size: u64,
    /// What the image gives a place to at once, in bytes.
    unit: u64,
    room: Semaphore,
    /// The reads whose bytes are there, or cannot be.
    over: RefCell<Vec<(Token, Result<(), FailKind>)>>,
}

impl CopyTasks {
    pub(super) fn new(
        storage: AsyncChild,
        ranges: RangeLock,
        source: CopySource,
        DiskSize(size): DiskSize,
        unit: u64,
    ) -> Self {
        let (room, over) = (Semaphore::new(COPIED_BYTES), RefCell::default());
        Self { storage, ranges, source, size: size.0, unit, room, over }
    }

    /// Copies what a read finds below the image, and says that the read may go on.
    async fn serve(self: Rc<Self>, token: Token, bytes: Range<u64>) {
        let end = bytes.end.next_multiple_of(self.unit).min(self.size.max(bytes.end));
        let whole = bytes.start - bytes.start % self.unit..end;
        let result = self.copy(whole).await;
        self.over.borrow_mut().push((token, result));
    }

    /// Copies what is to be copied of these units.
    async fn copy(&self, bytes: Range<u64>) -> Result<(), FailKind> {
        let chunk = CHUNK_BYTES.max(self.unit);
        for run in self.missing(bytes).await? {
            let mut at = run.start;
            while at < run.end {
                let end = run.end.min(at + chunk);
                self.copy_chunk(at..end).await?;
                at = end;
            }
        }
        Ok(())
    }

    /// Copies what is to be copied of that, while nobody changes it.
    async fn copy_chunk(&self, bytes: Range<u64>) -> Result<(), FailKind> {
        let count = usize::try_from(bytes.end - bytes.start).expect("a chunk fits into memory");
        let _memory = self.room.take(count).await;
        let _held = self.ranges.lock(bytes.clone()).await;
        // Others may have written or copied it meanwhile.
        for run in self.missing(bytes).await? {
            let found = self.storage.read(run.clone()).await?;
            if found.iter().all(|byte| *byte == 0) {
                let zero =
                    Operation::WriteZeroes(extent(run)?, ZeroTerms::KEEP, Durability::Cached);
                self.storage.run(zero, HostMemory::zeroed(0)).await?;
            } else {
                self.storage.write(run.start, found).await?;
            }
        }
        Ok(())
    }

    /// The parts of these bytes that are to be copied; no two touch.
    async fn missing(&self, bytes: Range<u64>) -> Result<Vec<Range<u64>>, FailKind> {
        let mut missing: Vec<Range<u64>> = Vec::new();
        let mut at = bytes.start;
        while at < bytes.end {
            let from = at;
            for run in self.storage.status(from..bytes.end).await? {
                at = from + run.skip + run.record.count.0;
                if !self.source.has(run.record.status) {
                    continue;
                }
                match missing.last_mut() {
                    Some(last) if last.end == from + run.skip => last.end = at,
                    Some(_) | None => missing.push(from + run.skip..at),
                }
            }
        }
        Ok(missing)
    }
}

/// One iothread's handle on a copy-on-read node: answers reads from copies, and passes on the rest.
#[derive(Debug)]
pub(super) struct CopyOnReadLane {
    below: Box<dyn Lane>,
    io: LaneContext,
    copies: Rc<CopyTasks>,
    tasks: TaskExecutor,
    access: Access,
    /// Reads that wait for their copies.
    reads: HashMap<Token, Mapping>,
    /// Changes that wait for their ranges, in order.
    waiting: VecDeque<Mapping>,
    /// Those that are under way, with their ranges, which are given back when they are carried out.
    changes: InFlightChanges<RangeGuard>,
    /// What is asked below. Empty between calls.
    asked: Vec<Mapping>,
}

impl CopyOnReadLane {
    pub(super) fn new(
        below: Box<dyn Lane>,
        io: &LaneContext,
        copies: CopyTasks,
        access: Access,
    ) -> Self {
        Self {
            below,
            io: io.clone(),
            copies: Rc::new(copies),
            tasks: TaskExecutor::new(io.waker().clone()),
            access,
            reads: HashMap::new(),
            waiting: VecDeque::new(),
            changes: InFlightChanges::default(),
            asked: Vec::new(),
        }
    }

    /// Begins with a new request: it is refused, held, or to be asked below.
    fn begin(&mut self, mapping: &mut Mapping) {
        mapping.answer = Answer::Held;
        match mapping.operation {
            Operation::Read(bytes) if bytes.count().0 > 0 => {
                self.reads.insert(mapping.token, *mapping);
                let copies = Rc::clone(&self.copies);
                self.tasks.spawn(copies.serve(mapping.token, bytes.bytes()));
            }
            Operation::Read(_) | Operation::Status(_) | Operation::Flush => {
                self.asked.push(*mapping);
            }
            Operation::Write(..) | Operation::Discard(..) | Operation::WriteZeroes(..) => {
                if self.access == Access::ReadOnly {
                    mapping.answer = Answer::Refused(FailKind::ReadOnly);
                } else if self.lock(mapping) {
                    self.asked.push(*mapping);
                } else {
                    self.waiting.push_back(*mapping);
                }
            }
        }
    }

    /// Whether a change has its range, now.
    fn lock(&mut self, mapping: &Mapping) -> bool {
        let bytes = mapping.operation.extent().map_or(0..0, |extent| extent.bytes());
        if bytes.is_empty() {
            return true;
        }
        let Some(held) = self.copies.ranges.try_lock(bytes, self.io.waker()) else { return false };
        self.changes.begin(mapping.token, held);
        true
    }

    /// Asks below what is to be asked.
    fn ask(&mut self, pieces: &mut BatchPieces) {
        if !self.asked.is_empty() {
            self.below.map(&mut self.asked, pieces);
        }
        let Self { asked, changes, .. } = self;
        asked.iter_mut().for_each(|mapping| drop(changes.answered(mapping)));
    }

    /// Has those asked that have waited for long enough; those that cannot go on are answered.
    fn go_on(&mut self, late: &mut Vec<Mapping>) {
        for (token, result) in self.copies.over.borrow_mut().drain(..) {
            let read = self.reads.remove(&token).expect("a copy is for a read");
            match result {
                Ok(()) => self.asked.push(read),
                Err(kind) => late.push(Mapping { answer: Answer::Refused(kind), ..read }),
            }
        }
        for _ in 0..self.waiting.len() {
            let Some(change) = self.waiting.pop_front() else { return };
            if self.lock(&change) {
                self.asked.push(change);
            } else {
                self.waiting.push_back(change);
            }
        }
    }
}

impl Lane for CopyOnReadLane {
    fn map(&mut self, batch: &mut [Mapping], pieces: &mut BatchPieces) {
        batch.iter_mut().for_each(|mapping| self.begin(mapping));
        self.ask(pieces);
        let mut asked = self.asked.drain(..).peekable();
        for mapping in batch {
            if let Some(answered) = asked.next_if(|answered| answered.token == mapping.token) {
                *mapping = answered;
            }
        }
        if !self.copies.over.borrow().is_empty() {
            self.io.waker().wake_by_ref();
        }
    }

    fn due(&self) -> Option<WakeTime> {
        WakeTime::first(self.below.due(), self.copies.storage.due())
    }

    fn resume(&mut self, now: Instant, late: &mut Vec<Mapping>, pieces: &mut BatchPieces) {
        self.copies.storage.resume(now);
        self.tasks.go_on();
        self.go_on(late);
        self.ask(pieces);
        late.extend(self.asked.drain(..).filter(|mapping| mapping.answer != Answer::Held));
        let first = late.len();
        self.below.resume(now, late, pieces);
        late[first..].iter_mut().for_each(|mapping| drop(self.changes.answered(mapping)));
    }

    fn release(&mut self) {
        self.below.release();
        self.copies.storage.release();
    }

    fn completed(&mut self, token: Token, outcome: Outcome) -> LaneCompletionDecision {
        let (told, _) = self.changes.completed(&mut *self.below, token, outcome);
        told
    }
}
