//! One iothread's handle on an image: answers at once what the tables in memory say, and has tasks serve
//! the rest.
//!
//! Where it stands in the life of a request: reads, writes in place and flushes cost a look into a table
//! and one question to the lane below for the whole batch. No lock is taken for a table that this
//! lane has seen before, and nothing is allocated.
//!
//! Limits: a batch is planned with [`BATCH_PARTS`] parts in all, and answers of at most [`ANSWER_RUNS`] runs; what is larger
//! is carried out in rounds by a task. So is what is too much for one answer of the lanes below.

use std::ops::Range;
use std::rc::Rc;
use std::time::{Duration, Instant};

use block::{
    Access, Answer, ByteCount, Clock, CompletionDecision, Durability, EofPolicy, Extent, FailKind,
    Lane, Mapping, Operation, Outcome, Piece, PieceList, SystemClock, Target, Token, Unmap,
    WakeTime,
};
use tasks::{ChildIo, MapBatch, RequestParts, TaskExecutor, extent, is_over};

use crate::cluster_allocator::{Qcow2Discards, SyncMark};
use crate::epoch::Epoch;
use crate::geometry::{L2Entry, Subcluster, bits_of};
use crate::lane_core::LaneCore;
use crate::lane_slices::LaneSlices;
use crate::serve;

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
    access: Access,
    discards: Qcow2Discards,
    /// Where the bytes of a batch are, and what each mapping has of that.
    runs: Vec<ByteRun>,
    plans: Vec<AnswerPlan>,
    /// How many parts this batch may still have.
    parts_left: usize,
    /// Since when tasks pause.
    paused_at: Option<Instant>,
    /// The questions to the lanes below.
    to_data: MapBatch,
    to_backing: Option<MapBatch>,
    /// When to let go of tables without use; none while no table was seen.
    clean_at: Option<Instant>,
}

/// Neighbouring bytes of a request that come from one place.
#[derive(Debug, Clone, Copy)]
struct ByteRun {
    skip: u64,
    count: u64,
    place: RunSource,
}

/// Where the bytes of a run are: data, backing file, or nowhere (zeroes).
#[derive(Debug, Clone, Copy)]
enum RunSource {
    /// Among the data: the number of the question.
    Data(usize),
    /// In the backing file, likewise.
    Backing(usize),
    Zeroes,
}

/// How a request of a batch will be answered: from runs, as a flush, or by a task.
#[derive(Debug, Clone)]
enum AnswerPlan {
    /// Already.
    Answered,
    /// By those runs.
    Runs(Range<usize>, Option<Epoch>),
    /// It is a flush; the number of the question to the file, and what it covers.
    Flush(usize, Option<Epoch>, Option<SyncMark>),
    /// By a task.
    Task(Option<Epoch>),
}

impl Qcow2Lane {
    pub(crate) fn new(
        core: LaneCore,
        tasks: TaskExecutor,
        access: Access,
        discards: Qcow2Discards,
    ) -> Self {
        let seen = LaneSlices::new(core.image.slices().room());
        let to_data = MapBatch::new(&core.data.storage);
        let to_backing = core.backing.as_ref().map(|backing| MapBatch::new(&backing.storage));
        Self {
            core: Rc::new(core),
            tasks,
            seen,
            access,
            discards,
            runs: Vec::new(),
            plans: Vec::new(),
            parts_left: 0,
            paused_at: None,
            to_data,
            to_backing,
            clean_at: None,
        }
    }

    /// How an operation is answered. Asks nobody yet.
    fn plan(&mut self, mapping: &mut Mapping, pieces: &PieceList) -> AnswerPlan {
        let operation = mapping.operation;
        let image = &self.core.image;
        if image.is_closed() {
            mapping.answer = Answer::Refused(image.refuse_closed());
            return AnswerPlan::Answered;
        }
        if operation.is_change() && (self.access == Access::ReadOnly || !image.is_written()) {
            mapping.answer = Answer::Refused(FailKind::ReadOnly);
            return AnswerPlan::Answered;
        }
        let Some(bytes) = operation.extent() else {
            let epoch = self.core.enter();
            if self.core.has_data_file() {
                return AnswerPlan::Task(epoch);
            }
            return AnswerPlan::Flush(self.to_data.add(operation), epoch, self.core.mark());
        };
        if bytes.bytes().end > self.core.image.size() {
            mapping.answer = Answer::Refused(FailKind::OutOfRange);
            return AnswerPlan::Answered;
        }
        if bytes.count().0 == 0 {
            mapping.answer = Answer::Now(pieces.none());
            return AnswerPlan::Answered;
        }
        let epoch = self.core.enter();
        let first = self.runs.len();
        let data = self.to_data.count();
        let backing = self.to_backing.as_ref().map_or(0, MapBatch::count);
        let is_planned = match operation {
            Operation::Read(bytes) | Operation::Write(bytes, _)
                if bytes.count().0 > PLANNED_BYTES =>
            {
                false
            }
            Operation::Read(bytes) => self.plan_read(bytes),
            Operation::Write(bytes, durability) => self.plan_write(bytes, durability),
            Operation::Discard(..) if self.discards == Qcow2Discards::Ignored => {
                self.core.leave(epoch);
                mapping.answer = Answer::Now(pieces.none());
                return AnswerPlan::Answered;
            }
            Operation::Status(_)
            | Operation::Discard(..)
            | Operation::WriteZeroes(..)
            | Operation::Flush => false,
        };
        if is_planned && self.runs.len() - first <= ANSWER_RUNS {
            return AnswerPlan::Runs(first..self.runs.len(), epoch);
        }
        // What was to be asked for it, its task asks.
        self.runs.truncate(first);
        self.to_data.truncate(data);
        if let Some(questions) = &mut self.to_backing {
            questions.truncate(backing);
        }
        AnswerPlan::Task(epoch)
    }

    /// Whether all clusters of a read are in tables that are in memory. Adds where.
    fn plan_read(&mut self, bytes: Extent) -> bool {
        let geometry = self.core.image.geometry();
        let (mut at, end) = (bytes.bytes().start, bytes.bytes().end);
        let start = at;
        while at < end {
            let cluster = geometry.cluster_of(at);
            let next = (at - geometry.within(at) + geometry.cluster_bytes()).min(end);
            let Some(slice) = self.seen.find(&self.core, geometry.slice_of(cluster)) else {
                return false;
            };
            let Ok(L2Entry::Cluster(found)) =
                geometry.read(slice.entry(geometry.index_of(cluster)))
            else {
                return false;
            };
            let cluster_start = geometry.start_of(cluster);
            for (unit, part) in geometry.parts(found, at - cluster_start..next - cluster_start) {
                if !self.take_part() {
                    return false;
                }
                let guest = cluster_start + part.start..cluster_start + part.end;
                let (skip, count) = (guest.start - start, guest.end - guest.start);
                let is_good = match unit {
                    Subcluster::Zero => self.add_zeroes(skip, count),
                    Subcluster::Data(place) => {
                        let host = place.host + part.start..place.host + part.end;
                        self.add_data(Operation::Read, skip, host)
                    }
                    Subcluster::Nothing => self.add_backing(skip, guest),
                };
                if !is_good {
                    return false;
                }
            }
            at = next;
        }
        true
    }

    /// Whether all clusters of a write have places of their own, in tables that are in memory and in
    /// the file; and for a stable write durably. Adds where.
    fn plan_write(&mut self, bytes: Extent, durability: Durability) -> bool {
        let geometry = self.core.image.geometry();
        let (mut at, end) = (bytes.bytes().start, bytes.bytes().end);
        let start = at;
        while at < end {
            let cluster = geometry.cluster_of(at);
            let next = (at - geometry.within(at) + geometry.cluster_bytes()).min(end);
            let Some(slice) = self.seen.find(&self.core, geometry.slice_of(cluster)) else {
                return false;
            };
            let Ok(L2Entry::Cluster(found)) =
                geometry.read(slice.entry(geometry.index_of(cluster)))
            else {
                return false;
            };
            let Some(host) = found.exclusive_host().filter(|_| !slice.has_failed_write()) else {
                return false;
            };
            if !self.take_part() {
                return false;
            }
            let within = geometry.within(at)..geometry.within(at) + (next - at);
            let touched = bits_of(geometry.units_of(&within));
            if found.data & touched != touched {
                return false;
            }
            let host = host + within.start;
            let operation = |extent| Operation::Write(extent, durability);
            if !self.add_data(operation, at - start, host..host + (next - at)) {
                return false;
            }
            at = next;
        }
        durability == Durability::Cached || self.core.image.table_writes_are_durable()
    }

    /// Whether the batch may have one more part.
    fn take_part(&mut self) -> bool {
        let may = self.parts_left > 0;
        self.parts_left -= usize::from(may);
        may
    }

    fn add_zeroes(&mut self, skip: u64, count: u64) -> bool {
        if let Some(last) = self.runs.last_mut()
            && let RunSource::Zeroes = last.place
            && last.skip + last.count == skip
            && skip > 0
        {
            last.count += count;
            return true;
        }
        self.runs.push(ByteRun { skip, count, place: RunSource::Zeroes });
        true
    }

    /// Adds bytes of the file, to the run before if they follow it there.
    fn add_data(
        &mut self,
        operation: impl Fn(Extent) -> Operation,
        skip: u64,
        host: Range<u64>,
    ) -> bool {
        let count = host.end - host.start;
        if let Some(last) = self.runs.last_mut()
            && let RunSource::Data(number) = last.place
            && last.skip + last.count == skip
            && let Some(before) = self.to_data.get(number).operation.extent()
            && before.bytes().end == host.start
            && skip > 0
        {
            let Ok(longer) = extent(before.bytes().start..host.end) else { return false };
            self.to_data.get_mut(number).operation = operation(longer);
            last.count += count;
            return true;
        }
        let Ok(bytes) = extent(host) else { return false };
        let place = RunSource::Data(self.to_data.add(operation(bytes)));
        self.runs.push(ByteRun { skip, count, place });
        true
    }

    /// Adds what the backing file has there, and zeroes behind its end.
    fn add_backing(&mut self, skip: u64, guest: Range<u64>) -> bool {
        let (Some(backing), Some(questions)) = (&self.core.backing, &mut self.to_backing) else {
            return self.add_zeroes(skip, guest.end - guest.start);
        };
        let end = guest.end.min(backing.size.max(guest.start));
        let count = end - guest.start;
        if count > 0 {
            let Ok(bytes) = extent(guest.start..end) else { return false };
            let place = RunSource::Backing(questions.add(Operation::Read(bytes)));
            self.runs.push(ByteRun { skip, count, place });
        }
        if end < guest.end {
            self.add_zeroes(skip + count, guest.end - end);
        }
        true
    }

    /// Answers a request with what the lanes below have answered.
    fn answer(&mut self, mapping: &mut Mapping, plan: AnswerPlan, pieces: &mut PieceList) {
        match plan {
            AnswerPlan::Answered => {}
            AnswerPlan::Task(epoch) => self.serve(mapping, epoch, pieces),
            AnswerPlan::Flush(number, epoch, mark) => {
                let question = *self.to_data.get(number);
                if !is_over(&question) {
                    let mut parts = RequestParts::default();
                    parts.add(0, self.to_data.reply(number, pieces));
                    let (core, token) = (Rc::clone(&self.core), mapping.token);
                    self.core.begin_served(token, epoch);
                    return self.spawn(
                        mapping,
                        pieces,
                        serve::flush_parts(core, token, mark, parts),
                    );
                }
                mapping.answer = question.answer;
                match question.answer {
                    Answer::Refused(_) => self.core.leave(epoch),
                    Answer::Now(_) | Answer::Held => {
                        mapping.after = self.core.begin_flush(mapping.token, epoch, mark);
                    }
                }
            }
            AnswerPlan::Runs(runs, epoch) => self.answer_runs(mapping, runs, epoch, pieces),
        }
    }

    fn answer_runs(
        &mut self,
        mapping: &mut Mapping,
        runs: Range<usize>,
        epoch: Option<Epoch>,
        pieces: &mut PieceList,
    ) {
        mapping.eof_policy = EofPolicy::Zeroes;
        let mut refused = None;
        let mut is_over_at_once = true;
        for run in &self.runs[runs.clone()] {
            let question = self.question(run);
            let Some(question) = question else { continue };
            is_over_at_once &= is_over(question);
            mapping.memory = mapping.memory.and(question.memory);
            if let Answer::Refused(kind) = question.answer {
                refused = Some(kind);
            }
        }
        if !is_over_at_once {
            return self.wait_for_runs(mapping, runs, epoch, pieces);
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
                            let (skip, count) = (run.skip, ByteCount(run.count));
                            pieces.push(Piece { skip, count, target: Target::Zeroes });
                        }
                    }
                }
                Answer::Now(pieces.since(mark))
            }
        };
        match mapping.answer {
            Answer::Now(_) => mapping.after = self.core.begin_mapped(mapping.token, epoch),
            Answer::Held | Answer::Refused(_) => self.core.leave(epoch),
        }
    }

    fn question(&self, run: &ByteRun) -> Option<&Mapping> {
        match run.place {
            RunSource::Data(number) => Some(self.to_data.get(number)),
            RunSource::Backing(number) => self.to_backing.as_ref().map(|asked| asked.get(number)),
            RunSource::Zeroes => None,
        }
    }

    /// Has a task wait for what lanes below hold, or want to be told of.
    fn wait_for_runs(
        &mut self,
        mapping: &mut Mapping,
        runs: Range<usize>,
        epoch: Option<Epoch>,
        pieces: &mut PieceList,
    ) {
        let mut parts = RequestParts::default();
        for run in &self.runs[runs] {
            let ByteRun { skip, count, place } = *run;
            let (questions, number) = match place {
                RunSource::Data(number) => (Some(&self.to_data), number),
                RunSource::Backing(number) => (self.to_backing.as_ref(), number),
                RunSource::Zeroes => (None, 0),
            };
            match questions {
                Some(questions) => parts.add(skip, questions.reply(number, pieces)),
                None => {
                    let count = ByteCount(count);
                    parts.push(Piece { skip, count, target: Target::Zeroes });
                }
            }
        }
        self.core.begin_served(mapping.token, epoch);
        let task = serve::parts(Rc::clone(&self.core), mapping.token, mapping.operation, parts);
        self.spawn(mapping, pieces, task);
    }

    /// Has a task serve a request.
    fn serve(&mut self, mapping: &mut Mapping, epoch: Option<Epoch>, pieces: &mut PieceList) {
        let (token, operation) = (mapping.token, mapping.operation);
        self.core.begin_served(token, epoch);
        let core = Rc::clone(&self.core);
        match operation {
            Operation::Read(bytes) => {
                self.spawn(mapping, pieces, serve::read(core, token, bytes));
            }
            Operation::Status(bytes) => {
                self.spawn(mapping, pieces, serve::status(core, token, bytes));
            }
            Operation::Write(bytes, durability) => {
                self.spawn(mapping, pieces, serve::write(core, token, bytes, durability));
            }
            Operation::Discard(bytes, durability) => {
                let how = serve::ZeroMode::Discard;
                self.spawn(mapping, pieces, serve::zero(core, token, bytes, how, durability));
            }
            Operation::WriteZeroes(bytes, unmap, durability) => {
                let how = match (unmap, self.discards) {
                    (Unmap::Allowed, Qcow2Discards::Passed) => serve::ZeroMode::Unmap,
                    (Unmap::Keep, _) | (_, Qcow2Discards::Ignored) => serve::ZeroMode::Keep,
                };
                self.spawn(mapping, pieces, serve::zero(core, token, bytes, how, durability));
            }
            Operation::Flush => {
                let mark = self.core.mark();
                self.spawn(mapping, pieces, serve::flush(core, token, mark));
            }
        }
    }

    /// Begins a task for a request, which may answer at once.
    fn spawn(
        &mut self,
        mapping: &mut Mapping,
        pieces: &mut PieceList,
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

    /// Has the iothread call the lane in its next round, if tasks pause: one of them goes on in each.
    fn note_pauses(&mut self) {
        if self.tasks.pauses().is_empty() {
            self.paused_at = None;
        } else if self.paused_at.is_none() {
            self.paused_at = Some(SystemClock.now());
        }
    }

    /// Frees what can be, in a task of its own.
    fn reclaim(&mut self) {
        if self.core.image.space().is_ok_and(|space| space.begin_reclaim()) {
            self.tasks.spawn(serve::reclaim(Rc::clone(&self.core)));
        }
    }
}

impl Lane for Qcow2Lane {
    fn map(&mut self, batch: &mut [Mapping], pieces: &mut PieceList) {
        let mut plans = std::mem::take(&mut self.plans);
        self.parts_left = BATCH_PARTS;
        for mapping in batch.iter_mut() {
            let plan = self.plan(mapping, pieces);
            plans.push(plan);
        }
        self.to_data.ask(pieces);
        if let Some(questions) = &mut self.to_backing {
            questions.ask(pieces);
        }
        for (mapping, plan) in batch.iter_mut().zip(plans.drain(..)) {
            self.answer(mapping, plan, pieces);
        }
        self.plans = plans;
        self.runs.clear();
        self.runs.shrink_to(RUNS_KEPT);
        self.to_data.clear();
        if let Some(questions) = &mut self.to_backing {
            questions.clear();
        }
        self.note_pauses();
    }

    fn due(&self) -> Option<WakeTime> {
        let clean = self.clean_at.map(|at| WakeTime { at, slack: CLEAN_SLACK });
        let paused = self.paused_at.map(|at| WakeTime { at, slack: Duration::ZERO });
        self.core.storages().fold(WakeTime::first(clean, paused), |due, storage| {
            WakeTime::first(due, storage.due())
        })
    }

    fn resume(&mut self, now: Instant, late: &mut Vec<Mapping>, pieces: &mut PieceList) {
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
        self.note_pauses();
    }

    fn release(&mut self) {
        self.core.storages().for_each(ChildIo::release);
    }

    fn completed(&mut self, token: Token, outcome: Outcome) -> CompletionDecision {
        let told = self.core.completed(token, outcome);
        self.reclaim();
        told
    }
}
