//! One iothread's handle on a node that copies before it writes: changes wait until what they change is preserved.
//!
//! Where it stands: guests' requests go to one lane of the child, copies read another one.
//!
//! Limits: a task for each change that waits, and for [`LATE_COPIES_MAX`] that have waited until their time was over.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use block::{
    Access, Answer, BatchPieces, Clock, DiscardPolicy, FailKind, Lane, LaneCompletionDecision,
    LaneContext, LocateQuery, Mapping, Operation, Outcome, Target, Token, WakeTime,
};
use tasks::TaskExecutor;

use super::preserving::PreservingTasks;
use super::{CbwErrorPolicy, CopyBeforeWriteSettings};

/// How much later than its timeout a change may fail.
const SLACK: Duration = Duration::from_millis(50);

/// How many copies may go on whose changes have failed because their time was over; as long as there are more, others fail at
/// once.
const LATE_COPIES_MAX: usize = 4096;

/// A change that waits until its clusters are preserved.
#[derive(Debug)]
struct WaitingChange {
    mapping: Mapping,
    /// When it has waited for too long.
    deadline: Option<Instant>,
}

/// One iothread's handle on a copy-before-write node.
#[derive(Debug)]
pub(super) struct CopyBeforeWriteLane {
    below: Box<dyn Lane>,
    io: LaneContext,
    copies: Rc<PreservingTasks>,
    tasks: TaskExecutor,
    access: Access,
    discards: DiscardPolicy,
    settings: CopyBeforeWriteSettings,
    clock: Arc<dyn Clock>,
    /// By the number of the task; those of longer ago first, as are the deadlines.
    waiting: BTreeMap<u64, WaitingChange>,
    next: u64,
    /// How many copies go on for which nobody waits any more.
    late_copies: usize,
    /// What is asked below late. Empty between calls.
    asked: Vec<Mapping>,
}

impl CopyBeforeWriteLane {
    pub(super) fn new(
        (below, io): (Box<dyn Lane>, &LaneContext),
        copies: PreservingTasks,
        (access, discards): (Access, DiscardPolicy),
        settings: CopyBeforeWriteSettings,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let (waiting, next, asked) = (BTreeMap::new(), 0, Vec::new());
        let tasks = TaskExecutor::new(io.waker().clone());
        let (io, copies) = (io.clone(), Rc::new(copies));
        Self {
            below,
            io,
            copies,
            tasks,
            access,
            discards,
            settings,
            clock,
            waiting,
            next,
            late_copies: 0,
            asked,
        }
    }

    /// Whether an operation may be asked below now.
    fn passes(&self, operation: Operation) -> bool {
        let Some(extent) = operation.extent().filter(|_| operation.is_change()) else {
            return true;
        };
        let state = &self.copies.state;
        state.next_pending(extent.bytes()).is_none() || state.broken().is_some()
    }

    /// Begins with a new request: it is to be asked below, or answered, or held.
    fn begin(&mut self, mapping: &mut Mapping, pieces: &BatchPieces) -> Disposition {
        let operation = match (mapping.operation, self.discards) {
            (Operation::WriteZeroes(extent, terms, durability), DiscardPolicy::Ignore) => {
                Operation::WriteZeroes(extent, terms.keeping_space(), durability)
            }
            (operation, _) => operation,
        };
        if operation.is_change() && self.access == Access::ReadOnly {
            mapping.answer = Answer::Refused(FailKind::ReadOnly);
            return Disposition::Over;
        }
        if let (Operation::Discard(..), DiscardPolicy::Ignore) = (operation, self.discards) {
            mapping.answer = Answer::Now(pieces.none());
            return Disposition::Over;
        }
        mapping.operation = operation;
        if self.passes(operation) {
            return Disposition::Below;
        }
        if self.late_copies >= LATE_COPIES_MAX
            && self.settings.on_error == CbwErrorPolicy::BreakGuestWrite
        {
            // It would wait for nothing, as those have.
            mapping.answer = Answer::Refused(FailKind::Io);
            return Disposition::Over;
        }
        mapping.answer = Answer::Held;
        self.hold(mapping);
        Disposition::Over
    }

    fn hold(&mut self, mapping: &Mapping) {
        let extent = mapping.operation.extent().expect("a change has bytes");
        let number = self.next;
        self.next += 1;
        let deadline = self.settings.timeout.and_then(|it| self.clock.now().checked_add(it));
        self.waiting.insert(number, WaitingChange { mapping: *mapping, deadline });
        self.copies.state.wake_if_broken(self.io.waker());
        self.tasks.spawn(Rc::clone(&self.copies).serve(number, extent.bytes()));
    }

    /// Has those asked whose clusters are preserved; those that cannot go on are answered.
    fn go_on(&mut self, now: Instant, late: &mut Vec<Mapping>) {
        if self.copies.state.broken().is_some() {
            // Nothing is preserved any more, whatever becomes of the copies.
            self.asked.extend(std::mem::take(&mut self.waiting).into_values().map(|it| it.mapping));
        }
        for (number, result) in self.copies.take_over() {
            if !self.waiting.contains_key(&number) {
                self.late_copies = self.late_copies.saturating_sub(1);
            }
            self.end(number, result, late);
        }
        let is_late = |change: &WaitingChange| change.deadline.is_some_and(|it| it <= now);
        while let Some((number, _)) = self.waiting.first_key_value().filter(|it| is_late(it.1)) {
            let number = *number;
            self.late_copies += 1;
            self.end(number, Err(FailKind::Io), late);
        }
    }

    /// The copy for a change is over, or its time is.
    fn end(&mut self, number: u64, result: Result<(), FailKind>, late: &mut Vec<Mapping>) {
        let Some(WaitingChange { mapping, .. }) = self.waiting.remove(&number) else { return };
        match (result, self.settings.on_error) {
            (Ok(()), _) => self.asked.push(mapping),
            (Err(kind), CbwErrorPolicy::BreakGuestWrite) => {
                late.push(Mapping { answer: Answer::Refused(kind), ..mapping });
            }
            (Err(kind), CbwErrorPolicy::BreakSnapshot) => {
                self.copies.state.break_for(kind);
                self.asked.push(mapping);
            }
        }
    }
}

/// What becomes of a new request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Disposition {
    /// It is asked below.
    Below,
    /// It is answered, or held.
    Over,
}

impl Lane for CopyBeforeWriteLane {
    fn map(&mut self, batch: &mut [Mapping], pieces: &mut BatchPieces) {
        let mut passed_on = 0;
        for place in 0..batch.len() {
            if self.begin(&mut batch[place], pieces) == Disposition::Over {
                if passed_on < place {
                    self.below.map(&mut batch[passed_on..place], pieces);
                }
                passed_on = place + 1;
            }
        }
        if passed_on < batch.len() {
            self.below.map(&mut batch[passed_on..], pieces);
        }
        if self.copies.has_over() {
            self.io.waker().wake_by_ref();
        }
    }

    fn locate(&mut self, operation: Operation) -> Option<Target> {
        let is_writable = !operation.is_change() || self.access == Access::ReadWrite;
        // What is preserved stays so.
        if is_writable && self.passes(operation) { self.below.locate(operation) } else { None }
    }

    fn locate_reads(&mut self, queries: &mut [LocateQuery]) {
        self.below.locate_reads(queries);
    }

    fn due(&self) -> Option<WakeTime> {
        let own = self.waiting.values().next().and_then(|change| change.deadline);
        let own = own.map(|at| WakeTime { at, slack: SLACK });
        let copies = WakeTime::first(self.copies.source.due(), self.copies.target.due());
        WakeTime::first(own, WakeTime::first(self.below.due(), copies))
    }

    fn resume(&mut self, now: Instant, late: &mut Vec<Mapping>, pieces: &mut BatchPieces) {
        self.copies.source.resume(now);
        self.copies.target.resume(now);
        self.tasks.go_on();
        self.go_on(now, late);
        if !self.asked.is_empty() {
            self.below.map(&mut self.asked, pieces);
            // What is held below comes from there when it is due.
            late.extend(self.asked.drain(..).filter(|mapping| mapping.answer != Answer::Held));
        }
        self.below.resume(now, late, pieces);
    }

    fn release(&mut self) {
        self.below.release();
        self.copies.source.release();
        self.copies.target.release();
    }

    fn completed(&mut self, token: Token, outcome: Outcome) -> LaneCompletionDecision {
        self.below.completed(token, outcome)
    }
}
