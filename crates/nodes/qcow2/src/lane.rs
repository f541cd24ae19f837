//! One iothread's handle on an image: answers at once what the tables in memory say, and has tasks serve
//! the rest.
//!
//! Where it stands in the life of a request: what lies in one run costs a look into a table (`located`). Other reads, writes
//! in place and flushes become one question to the lane below for the whole batch. No lock is taken for a table that this
//! lane has seen before, and nothing is allocated.
//!
//! Limits: a batch is planned with [`BATCH_PARTS`] parts in all, and answers of at most [`ANSWER_RUNS`] runs; what is larger
//! is carried out in rounds by a task. So is what is too much for one answer of the lanes below.

mod located;

use std::ops::Range;
use std::rc::Rc;
use std::time::{Duration, Instant};

use block::{
    Access, Answer, BatchPieces, ByteCount, Clock, Durability, EofPolicy, Extent, FailKind, Lane,
    LaneCompletionDecision, LocateQuery, Mapping, Operation, Outcome, Piece, SystemClock, Target,
    Token, Unmap, WakeTime, ZeroCost, ZeroTerms,
};
use tasks::{AsyncChild, ChildMapBatch, RequestParts, TaskExecutor, extent, is_over};

use self::located::LocatedRequests;
use crate::cluster_allocator::{FreedClusterDiscards, SyncMark};
use crate::epoch::MappingEpoch;
use crate::geometry::{GuestCluster, L2Entry, StandardCluster, Subcluster, bits_of};
use crate::lane_core::{LaneCore, ServedRequest};
use crate::lane_slices::LaneSlices;
use crate::serve;
use crate::slice::L2Slice;

/// The largest request that is planned at once, in bytes.
const PLANNED_BYTES: u64 = 32 << 20;

/// How many parts of clusters the requests of a batch may have together, if they are planned at once.
const BATCH_PARTS: usize = 4096;

/// How many runs of neighbouring bytes one of them may have.
const ANSWER_RUNS: usize = 1024;

/// What lists keep of their room after a batch.
const RUNS_KEPT: usize = 1024;

/// How much later than asked for tables may go.
const CLEAN_SLACK: Duration = Duration::from_secs(1);

/// One iothread's handle on an image.
#[derive(Debug)]
pub(crate) struct Qcow2Lane {
    core: Rc<LaneCore>,
    tasks: TaskExecutor,
    seen: LaneSlices,
    located: LocatedRequests,
    access: Access,
    discards: FreedClusterDiscards,
    /// Where the bytes of a batch are, and what mappings that are not answered yet have of that.
    runs: Vec<ByteRun>,
    plans: Vec<(usize, AnswerPlan)>,
    /// How many parts this batch may still have.
    parts_left: usize,
    /// Since when tasks pause.
    paused_at: Option<Instant>,
    /// The questions to the lanes below.
    batches: [ChildMapBatch; 2],
    /// When to let go of tables without use; none while no table was seen.
    clean_at: Option<Instant>,
    /// When any of this is due, or a lane below: it changes only when these are called, and tasks go on.
    due: Option<WakeTime>,
}

/// Which of a lane's batches asks the child with the data, and which the backing file.
const DATA: usize = 0;
const BACKING: usize = 1;

/// Neighbouring bytes of a request that come from one place.
#[derive(Debug, Clone, Copy)]
struct ByteRun {
    skip: u64,
    count: u64,
    place: RunSource,
}

/// Where the bytes of a run are: in a child, or nowhere (zeroes).
#[derive(Debug, Clone, Copy)]
enum RunSource {
    /// Which batch asks the child, and the number of the question there.
    Child(usize, usize),
    Zeroes,
}

/// How a request of a batch will be answered: it is already, from runs, or by a task.
#[derive(Debug, Clone)]
enum AnswerPlan {
    /// Already.
    Answered(Answer),
    /// By those runs. A flush has one, and what it covers.
    Runs(Range<usize>, Option<MappingEpoch>, Option<SyncMark>),
    /// By a task.
    Task(Option<MappingEpoch>),
}

impl Qcow2Lane {
    pub(crate) fn new(
        core: LaneCore,
        tasks: TaskExecutor,
        access: Access,
        discards: FreedClusterDiscards,
    ) -> Self {
        let seen = LaneSlices::new(core.image.slices.room());
        // Where there is no backing file, nobody asks it.
        let backing = core.backing.as_ref().map_or(&core.data.storage, |backing| &backing.storage);
        let batches = [&core.data.storage, backing].map(ChildMapBatch::new);
        Self {
            core: Rc::new(core),
            tasks,
            seen,
            located: LocatedRequests::default(),
            access,
            discards,
            runs: Vec::new(),
            plans: Vec::new(),
            parts_left: 0,
            paused_at: None,
            batches,
            clean_at: None,
            due: None,
        }
    }

    /// How an operation is answered. Asks nobody yet.
    fn plan(&mut self, operation: Operation, pieces: &BatchPieces) -> AnswerPlan {
        let image = &self.core.image;
        if image.is_closed() {
            return AnswerPlan::Answered(Answer::Refused(image.refuse_closed()));
        }
        if operation.is_change() && (self.access == Access::ReadOnly || !image.is_written()) {
            return AnswerPlan::Answered(Answer::Refused(FailKind::ReadOnly));
        }
        let first = self.runs.len();
        let Some(bytes) = operation.extent() else {
            let epoch = self.core.enter();
            if self.core.has_data_file() {
                return AnswerPlan::Task(epoch);
            }
            let place = RunSource::Child(DATA, self.batches[DATA].add(operation));
            self.runs.push(ByteRun { skip: 0, count: 0, place });
            return AnswerPlan::Runs(first..first + 1, epoch, self.core.mark());
        };
        if bytes.bytes().end > image.size() {
            return AnswerPlan::Answered(Answer::Refused(FailKind::OutOfRange));
        }
        let is_ignored = matches!(operation, Operation::Discard(..))
            && self.discards == FreedClusterDiscards::Ignored;
        if bytes.count().0 == 0 || is_ignored {
            return AnswerPlan::Answered(Answer::Now(pieces.none()));
        }
        let epoch = self.core.enter();
        let counts = [DATA, BACKING].map(|child| self.batches[child].count());
        let planned = match operation {
            Operation::Read(bytes) | Operation::Write(bytes, _)
                if bytes.count().0 > PLANNED_BYTES =>
            {
                None
            }
            Operation::Read(bytes) => self.plan_read(bytes),
            Operation::Write(..) if self.core.compression.is_some() => None,
            Operation::Write(bytes, durability) => self.plan_write(bytes, durability),
            Operation::Status(_)
            | Operation::Discard(..)
            | Operation::WriteZeroes(..)
            | Operation::Flush => None,
        };
        if planned.is_some() && self.runs.len() - first <= ANSWER_RUNS {
            return AnswerPlan::Runs(first..self.runs.len(), epoch, None);
        }
        // What was to be asked for it, its task asks.
        self.runs.truncate(first);
        self.batches.iter_mut().zip(counts).for_each(|(batch, count)| batch.truncate(count));
        AnswerPlan::Task(epoch)
    }

    /// Adds where the bytes of a read are, if all of its clusters are in tables that are in memory.
    fn plan_read(&mut self, bytes: Extent) -> Option<()> {
        let geometry = self.core.image.geometry;
        let start = bytes.start().0;
        for (cluster, within) in geometry.clusters_in(bytes.bytes()) {
            let (_, found) = self.look_up(cluster)?;
            let cluster_start = geometry.start_of(cluster);
            for (unit, part) in geometry.parts(found, within) {
                self.take_part()?;
                let guest = cluster_start + part.start..cluster_start + part.end;
                let (skip, count) = (guest.start - start, guest.end - guest.start);
                match unit {
                    Subcluster::Zero => self.add_zeroes(skip, count),
                    Subcluster::Data(place) => {
                        let host = place.host + part.start..place.host + part.end;
                        self.add_data(Operation::Read, skip, host)?;
                    }
                    Subcluster::Nothing => self.add_backing(skip, guest)?,
                }
            }
        }
        Some(())
    }

    /// Adds where the bytes of a write go, if all of its clusters have places of their own, in tables that are in
    /// memory and in the file; and for a stable write durably.
    fn plan_write(&mut self, bytes: Extent, durability: Durability) -> Option<()> {
        let geometry = self.core.image.geometry;
        let mut skip = 0;
        for (cluster, within) in geometry.clusters_in(bytes.bytes()) {
            let (slice, found) = self.look_up(cluster)?;
            let host = found.exclusive_host().filter(|_| !slice.has_failed_write())?;
            self.take_part()?;
            let touched = bits_of(geometry.units_of(&within));
            if found.data & touched != touched {
                return None;
            }
            let operation = |extent| Operation::Write(extent, durability);
            self.add_data(operation, skip, host + within.start..host + within.end)?;
            skip += within.end - within.start;
        }
        let is_stored =
            durability == Durability::Cached || self.core.image.table_writes_are_durable();
        is_stored.then_some(())
    }

    /// What a table that is in memory says of a cluster; none if a task has to look.
    fn look_up(&mut self, cluster: GuestCluster) -> Option<(&L2Slice, StandardCluster)> {
        let geometry = self.core.image.geometry;
        let slice = self.seen.find(&self.core, geometry.slice_of(cluster))?;
        match geometry.read(slice.entry(geometry.index_of(cluster))) {
            Ok(L2Entry::Cluster(found)) => Some((slice, found)),
            Ok(L2Entry::Compressed { .. }) | Err(_) => None,
        }
    }

    /// Counts one more part of the batch, if it may have that.
    fn take_part(&mut self) -> Option<()> {
        self.parts_left = self.parts_left.checked_sub(1)?;
        Some(())
    }

    fn add_zeroes(&mut self, skip: u64, count: u64) {
        if let Some(last) = self.runs.last_mut()
            && let RunSource::Zeroes = last.place
            && last.skip + last.count == skip
            && skip > 0
        {
            last.count += count;
            return;
        }
        self.runs.push(ByteRun { skip, count, place: RunSource::Zeroes });
    }

    /// Adds bytes of the file, to the run before if they follow it there.
    fn add_data(
        &mut self,
        operation: impl Fn(Extent) -> Operation,
        skip: u64,
        host: Range<u64>,
    ) -> Option<()> {
        let count = host.end - host.start;
        if let Some(last) = self.runs.last_mut()
            && let RunSource::Child(DATA, number) = last.place
            && last.skip + last.count == skip
            && let Some(before) = self.batches[DATA].get(number).operation.extent()
            && before.bytes().end == host.start
            && skip > 0
        {
            let longer = extent(before.bytes().start..host.end).ok()?;
            self.batches[DATA].get_mut(number).operation = operation(longer);
            last.count += count;
            return Some(());
        }
        let number = self.batches[DATA].add(operation(extent(host).ok()?));
        self.runs.push(ByteRun { skip, count, place: RunSource::Child(DATA, number) });
        Some(())
    }

    /// Adds what the backing file has there, and zeroes behind its end.
    fn add_backing(&mut self, skip: u64, guest: Range<u64>) -> Option<()> {
        let size = self.core.backing.as_ref().map_or(0, |backing| backing.size);
        let end = guest.end.min(size.max(guest.start));
        let count = end - guest.start;
        if count > 0 {
            let bytes = extent(guest.start..end).ok()?;
            let number = self.batches[BACKING].add(Operation::Read(bytes));
            self.runs.push(ByteRun { skip, count, place: RunSource::Child(BACKING, number) });
        }
        if end < guest.end {
            self.add_zeroes(skip + count, guest.end - end);
        }
        Some(())
    }

    /// Asks the lanes below what was planned, and answers with that.
    fn answer_planned(&mut self, batch: &mut [Mapping], pieces: &mut BatchPieces) {
        self.batches.iter_mut().for_each(|batch| batch.ask(pieces));
        let mut plans = std::mem::take(&mut self.plans);
        for (place, plan) in plans.drain(..) {
            self.answer(&mut batch[place], plan, pieces);
        }
        self.plans = plans;
        self.runs.clear();
        self.runs.shrink_to(RUNS_KEPT);
        self.batches.iter_mut().for_each(ChildMapBatch::clear);
        self.note_due();
    }

    /// Answers a request with what the lanes below have answered.
    fn answer(&mut self, mapping: &mut Mapping, plan: AnswerPlan, pieces: &mut BatchPieces) {
        match plan {
            AnswerPlan::Answered(answer) => mapping.answer = answer,
            AnswerPlan::Task(epoch) => self.serve(mapping, epoch, pieces),
            AnswerPlan::Runs(runs, epoch, mark) => {
                self.answer_runs(mapping, runs, epoch, mark, pieces);
            }
        }
    }

    fn answer_runs(
        &mut self,
        mapping: &mut Mapping,
        runs: Range<usize>,
        epoch: Option<MappingEpoch>,
        mark: Option<SyncMark>,
        pieces: &mut BatchPieces,
    ) {
        mapping.eof_policy = EofPolicy::Zeroes;
        let mut refused = None;
        let mut is_over_at_once = true;
        for run in &self.runs[runs.clone()] {
            let Some(question) = self.question(run) else { continue };
            is_over_at_once &= is_over(question);
            mapping.memory = mapping.memory.and(question.memory);
            if let Answer::Refused(kind) = question.answer {
                refused = Some(kind);
            }
        }
        if !is_over_at_once {
            // A task waits for what lanes below hold, or want to be told of.
            self.core.begin_served(mapping.token, epoch);
            let parts = self.parts(runs, pieces);
            let Mapping { token, operation, .. } = *mapping;
            let request = ServedRequest { token, operation, mark };
            let core = Rc::clone(&self.core);
            return self.spawn(mapping, pieces, async move { core.answer(request, parts).await });
        }
        mapping.answer = match (refused, &self.runs[runs]) {
            (Some(kind), _) => Answer::Refused(kind),
            // By far the most frequent.
            (None, [run]) if let Some(question) = self.question(run) => question.answer,
            (None, all) => {
                let mark = pieces.end();
                for run in all {
                    match self.question(run).map(|question| question.answer) {
                        Some(Answer::Now(range)) => {
                            let mut place = 0;
                            while let Some(piece) = pieces.at(range, place) {
                                pieces.push(Piece { skip: run.skip + piece.skip, ..piece });
                                place += 1;
                            }
                        }
                        Some(Answer::Held | Answer::Refused(_)) | None => {
                            pieces.push(zeroes(run.skip, run.count));
                        }
                    }
                }
                Answer::Now(pieces.since(mark))
            }
        };
        match mapping.answer {
            Answer::Now(_) => mapping.after = self.core.begin_mapped(mapping.token, epoch, mark),
            Answer::Held | Answer::Refused(_) => self.core.leave(epoch),
        }
    }

    fn question(&self, run: &ByteRun) -> Option<&Mapping> {
        match run.place {
            RunSource::Child(child, number) => Some(self.batches[child].get(number)),
            RunSource::Zeroes => None,
        }
    }

    fn parts(&self, runs: Range<usize>, pieces: &BatchPieces) -> RequestParts {
        let mut parts = RequestParts::default();
        for &ByteRun { skip, count, place } in &self.runs[runs] {
            match place {
                RunSource::Child(child, number) => {
                    parts.add(skip, self.batches[child].reply(number, pieces));
                }
                RunSource::Zeroes => parts.push(zeroes(skip, count)),
            }
        }
        parts
    }

    /// Has a task serve a request.
    fn serve(
        &mut self,
        mapping: &mut Mapping,
        epoch: Option<MappingEpoch>,
        pieces: &mut BatchPieces,
    ) {
        let Mapping { token, operation, .. } = *mapping;
        self.core.begin_served(token, epoch);
        let core = Rc::clone(&self.core);
        let request = ServedRequest { token, operation, mark: None };
        match operation {
            Operation::Read(bytes) => {
                self.spawn(mapping, pieces, serve::read(core, request, bytes));
            }
            Operation::Status(bytes) => {
                self.spawn(mapping, pieces, serve::status(core, request, bytes));
            }
            Operation::Write(bytes, durability) if self.core.compression.is_some() => {
                self.spawn(mapping, pieces, serve::compress(core, request, bytes, durability));
            }
            Operation::Write(bytes, durability) => {
                self.spawn(mapping, pieces, serve::write(core, request, bytes, durability));
            }
            Operation::Discard(bytes, _) => {
                let how = serve::ZeroMode::Discard;
                self.spawn(
                    mapping,
                    pieces,
                    serve::zero(core, request, bytes, (how, ZeroCost::Any)),
                );
            }
            Operation::WriteZeroes(bytes, ZeroTerms { unmap, cost }, _) => {
                let how = match (unmap, self.discards) {
                    (Unmap::Allowed, FreedClusterDiscards::Passed) => serve::ZeroMode::Unmap,
                    (Unmap::Keep, _) | (_, FreedClusterDiscards::Ignored) => serve::ZeroMode::Keep,
                };
                self.spawn(mapping, pieces, serve::zero(core, request, bytes, (how, cost)));
            }
            Operation::Flush => {
                let request = ServedRequest { mark: core.mark(), ..request };
                self.spawn(mapping, pieces, serve::flush(core, request));
            }
        }
    }

    /// Begins a task for a request, which may answer at once.
    fn spawn(
        &mut self,
        mapping: &mut Mapping,
        pieces: &mut BatchPieces,
        task: impl Future<Output = ()> + 'static,
    ) {
        self.tasks.spawn(task);
        mapping.answer = Answer::Held;
        // Others cannot have answered meanwhile: no other task went on.
        self.core.take_answers(pieces, |answered| {
            assert_eq!(answered.token, mapping.token, "only the task that was begun answers");
            *mapping = answered;
        });
    }

    /// Notes when to call the lane next. If tasks pause that is the iothread's next round: one of them goes on in each.
    fn note_due(&mut self) {
        if self.tasks.pauses().is_empty() {
            self.paused_at = None;
        } else if self.paused_at.is_none() {
            self.paused_at = Some(SystemClock.now());
        }
        let clean = self.clean_at.map(|at| WakeTime { at, slack: CLEAN_SLACK });
        let paused = self.paused_at.map(|at| WakeTime { at, slack: Duration::ZERO });
        let own = WakeTime::first(clean, paused);
        let children = self.core.storages();
        self.due = children.fold(own, |due, storage| WakeTime::first(due, storage.due()));
    }

    /// Frees what can be, in a task of its own.
    fn reclaim(&mut self) {
        if self.core.image.begin_reclaim() {
            self.tasks.spawn(serve::reclaim(Rc::clone(&self.core)));
            self.note_due();
        }
    }
}

impl Lane for Qcow2Lane {
    fn map(&mut self, batch: &mut [Mapping], pieces: &mut BatchPieces) {
        // The tables are looked at in it, and whoever is answered so joins it.
        let epoch = self.core.enter();
        self.parts_left = BATCH_PARTS;
        let located = self.answer_located(batch, epoch, pieces);
        if located < batch.len() {
            self.answer_planned(batch, pieces);
        }
        if let Some(epoch) = epoch {
            self.core.join(epoch, located);
        }
        self.core.leave(epoch);
    }

    fn locate(&mut self, operation: Operation) -> Option<Target> {
        // Of what is written the lane hears when each request is over.
        if self.core.image.is_written() { None } else { self.locate_one(operation) }
    }

    fn locate_reads(&mut self, queries: &mut [LocateQuery]) {
        if !self.core.image.is_written() {
            self.locate_all(queries);
        }
    }

    fn due(&self) -> Option<WakeTime> {
        self.due
    }

    fn resume(&mut self, now: Instant, late: &mut Vec<Mapping>, pieces: &mut BatchPieces) {
        self.core.storages().for_each(|storage| storage.resume(now));
        self.tasks.step();
        self.tasks.go_on();
        match self.clean_at {
            Some(at) if at <= now => {
                self.core.image.clean(now);
                self.seen.drop_evicted();
                let next = self.core.image.next_clean(now);
                self.clean_at = next.filter(|_| !self.seen.is_empty());
            }
            // A table may have been loaded since.
            None => {
                self.seen.sweep(&self.core);
                self.clean_at = self.core.image.next_clean(now);
            }
            Some(_) => self.seen.sweep(&self.core),
        }
        self.core.take_answers(pieces, |answered| late.push(answered));
        self.reclaim();
        self.note_due();
    }

    fn release(&mut self) {
        self.core.storages().for_each(AsyncChild::release);
        self.note_due();
    }

    fn completed(&mut self, token: Token, outcome: Outcome) -> LaneCompletionDecision {
        let told = match self.located.take(token) {
            None => self.core.completed(token, outcome),
            epoch => {
                self.core.leave(epoch);
                LaneCompletionDecision::Finish(outcome)
            }
        };
        self.reclaim();
        told
    }
}

/// Bytes of a request that read as zeroes.
pub(crate) fn zeroes(skip: u64, count: u64) -> Piece {
    Piece { skip, count: ByteCount(count), target: Target::Zeroes }
}
