//! The pure form of the suite: files in memory, a clock that jumps, several lanes on one thread.
//!
//! Where it stands: takes the place of the engine of an iothread. It asks lanes for batches, carries the pieces out one
//! by one in any order across all requests, goes on with what was held, releases, closes and opens lanes, changes what
//! is refused, and lets the power go.
//!
//! Limits: a stack has `REQUESTS_MAX` requests; what is held must be answered after `JUMPS_MAX` jumps of the clock.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Wake;

use anyhow::{Context, Result, bail, ensure};
use block::{
    Answer, BlockStatus, ByteCount, Clock, CompletionAction, CompletionDecision, FileId,
    InternalIo, Lane, LaneContext, Mapping, Node, Operation, Outcome, Piece, PieceList,
    StatusRecord, StatusRuns, Target, Token, WakeTime,
};

use super::checked::Complaints;
use super::clock::JumpClock;
use super::faults::Faulty;
use super::layout::Layout;
use super::stack::{Sizes, Stack, Subject, Which};
use super::stamp::SECTOR_BYTES;
use super::store::{MemoryFile, Store};
use super::workload::{Ended, Habits, Overlap, Request, Tally, Workload};
use super::{index, number};
use crate::rng::Rng;

/// The most requests one stack gets before it is compared as a whole.
const REQUESTS_MAX: u64 = 400;
/// How often the clock may jump in a row without anything going on.
const JUMPS_MAX: u32 = 10_000;
/// The most requests in flight on one lane.
const DEPTH: usize = 24;

/// What came of a stack.
#[derive(Clone, Debug)]
pub struct Played {
    /// The subjects in it.
    pub names: Vec<&'static str>,
    /// Its requests.
    pub tally: Tally,
    /// How often a node held one of them.
    pub held: u64,
    /// How often a node kept one of them that was carried out.
    pub kept: u64,
}

/// Makes the stack of this seed of the subjects, files in memory and nodes with faults, and plays with it.
pub fn play(seed: u64, subjects: &[Arc<dyn Subject>], which: Which<'_>) -> Result<Played> {
    let rng = &mut Rng::new(seed);
    let store = Arc::new(Store::default());
    let sectors_max = if rng.one_in(32) { 16_384 } else { 1024 };
    let memory: Arc<dyn Subject> = Arc::new(MemoryFile::new(Arc::clone(&store), sectors_max));
    let mut all = subjects.to_vec();
    all.push(Arc::new(Faulty));
    // Several times: most stacks are to store something.
    all.extend(std::iter::repeat_n(memory, 3));
    let stack = Stack::new(rng, &all, which).with_context(|| format!("seed {seed:#x}"))?;
    let text = stack.to_string();
    let played = Player::new(stack, store, rng.clone()).and_then(Player::run);
    played.with_context(|| format!("seed {seed:#x}, stack {text}"))
}

/// One lane, with what is under way on it.
#[derive(Debug)]
struct Side {
    lane: Box<dyn Lane>,
    /// By token.
    jobs: Vec<Option<Job>>,
    held: usize,
    io: LaneContext,
    /// Whether the lane has to be called.
    called: Arc<Called>,
    /// With what is still to be carried out.
    errands: Vec<(InternalIo, Vec<Piece>, StatusRuns)>,
}

#[derive(Debug, Default)]
struct Called(AtomicBool);

impl Wake for Called {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[derive(Debug)]
struct Job {
    request: Request,
    state: State,
    /// What a status was told.
    runs: StatusRuns,
}

#[derive(Debug)]
enum State {
    Held,
    /// With what is still to be carried out, and whether the lane is told then.
    Running(Operation, Vec<Piece>, CompletionAction),
}

struct Player {
    stack: Stack,
    store: Arc<Store>,
    clock: Arc<JumpClock>,
    complaints: Arc<Complaints>,
    workload: Workload,
    node: Arc<dyn Node>,
    sides: Vec<Side>,
    pieces: PieceList,
    rng: Rng,
}

impl Player {
    fn new(stack: Stack, store: Arc<Store>, mut rng: Rng) -> Result<Self> {
        let clock = Arc::new(JumpClock::new());
        let complaints = Arc::new(Complaints::default());
        let node = build(&stack, &clock, &complaints, &store)?;
        let overlap = if rng.one_in(3) { Overlap::Avoided } else { Overlap::Allowed };
        let habits = Habits { sectors_max: 1 << rng.below(15), overlap, durability: None };
        let workload = Workload::new(Layout::new(&stack)?, habits);
        let pieces = PieceList::default();
        let sides = Vec::new();
        let mut player =
            Self { stack, store, clock, complaints, workload, node, sides, pieces, rng };
        player.open_lanes()?;
        Ok(player)
    }

    fn run(mut self) -> Result<Played> {
        let requests = 20 + self.rng.below(REQUESTS_MAX - 20);
        let mut begun = 0;
        while begun < requests {
            begun += self.step()?;
            self.complaints.check()?;
        }
        self.workload.end_mischief();
        for side in 0..self.sides.len() {
            self.finish(side)?;
        }
        self.check_all().context("reading the whole disk")?;
        self.check_files().context("in the files below")?;
        self.complaints.check()?;
        Ok(Played {
            names: self.stack.names(),
            tally: self.workload.tally,
            held: self.complaints.held(),
            kept: self.complaints.kept(),
        })
    }

    /// Something random; returns how many requests it began.
    fn step(&mut self) -> Result<u64> {
        let side = self.rng.index(self.sides.len());
        match self.rng.below(1000) {
            0..350 => return self.begin_batch(side),
            350..700 => {
                for _ in 0..1 + self.rng.below(8) {
                    let side = self.rng.index(self.sides.len());
                    self.carry_out_one(side)?;
                }
            }
            700..900 => self.jump()?,
            // Too early for most.
            900..940 => self.resume(side)?,
            940..960 => self.release(side)?,
            960..975 => self.reopen(side)?,
            975..995 => self.workload.change_refusals(&mut self.rng),
            _ => self.lose_power()?,
        }
        Ok(0)
    }

    fn open_lanes(&mut self) -> Result<()> {
        for _ in 0..1 + self.rng.below(3) {
            self.sides.push(Side::open(self.node.as_ref())?);
        }
        Ok(())
    }

    fn begin_batch(&mut self, side: usize) -> Result<u64> {
        let mut batch = Vec::new();
        for _ in 0..1 + self.rng.below(8) {
            let Some(token) = self.sides[side].free_token() else { break };
            let request = match self.rng.below(16) {
                0 => self.workload.next_status(&mut self.rng),
                _ => self.workload.next(&mut self.rng),
            };
            let Some(request) = request else { break };
            batch.push(self.sides[side].add(token, request));
        }
        let count = number(batch.len());
        self.map(side, batch)?;
        Ok(count)
    }

    fn map(&mut self, side: usize, mut batch: Vec<Mapping>) -> Result<()> {
        if batch.is_empty() {
            return Ok(());
        }
        self.pieces.clear();
        self.sides[side].lane.map(&mut batch, &mut self.pieces);
        // Before the answers are used: pieces of a broken answer may lie anywhere.
        self.complaints.check()?;
        self.take_answers(side, &batch)?;
        self.attend(side)
    }

    fn resume(&mut self, side: usize) -> Result<()> {
        let mut late = Vec::new();
        self.pieces.clear();
        self.sides[side].lane.resume(self.clock.now(), &mut late, &mut self.pieces);
        self.complaints.check()?;
        self.sides[side].held -= late.len();
        self.take_answers(side, &late)?;
        self.attend(side)
    }

    /// Takes internal I/Os, and calls the lane if it has to be.
    fn attend(&mut self, side: usize) -> Result<()> {
        let Side { io, called, errands, .. } = &mut self.sides[side];
        let mut new = Vec::new();
        io.take_submitted(&mut new);
        for errand in new {
            let pieces = errand.pieces().to_vec();
            errands.push((errand, pieces, StatusRuns::default()));
        }
        if called.0.swap(false, Ordering::Relaxed) { self.resume(side) } else { Ok(()) }
    }

    fn take_answers(&mut self, side: usize, answered: &[Mapping]) -> Result<()> {
        for mapping in answered {
            let token = index(mapping.token.0.into());
            let Side { jobs, held, .. } = &mut self.sides[side];
            let job = jobs[token].as_mut().context("an answer to nobody")?;
            match mapping.answer {
                Answer::Held => {
                    *held += 1;
                }
                Answer::Refused(kind) => self.over(side, token, Ended::Failed(kind))?,
                Answer::Now(range) => {
                    let mut pieces = self.pieces.get(range).to_vec();
                    take_memory(mapping.operation, &mut pieces, &mut job.request.data)?;
                    let is_nothing = pieces.is_empty();
                    job.state = State::Running(mapping.operation, pieces, mapping.after);
                    if is_nothing {
                        self.completed(side, token, mapping.after)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// All of an answer was carried out. The lane may have to be called after that.
    fn completed(&mut self, side: usize, token: usize, after: CompletionAction) -> Result<()> {
        if after == CompletionAction::Finish {
            return self.over(side, token, Ended::Well);
        }
        let Side { lane, jobs, held, .. } = &mut self.sides[side];
        let name = Token(u32::try_from(token).context("a few tokens")?);
        match lane.completed(name, Outcome::Done) {
            CompletionDecision::HoldAgain => {
                *held += 1;
                jobs[token].as_mut().context("it was answered")?.state = State::Held;
            }
            CompletionDecision::Finish(Outcome::Done) => self.over(side, token, Ended::Well)?,
            CompletionDecision::Finish(Outcome::Failed(kind)) => {
                self.over(side, token, Ended::Failed(kind))?
            }
        }
        Ok(())
    }

    /// Carries out one piece of any internal I/O of the side.
    fn carry_out_errand(&mut self, side: usize) -> Result<bool> {
        let Self { sides, rng, store, .. } = self;
        let errands = &mut sides[side].errands;
        if errands.is_empty() {
            return Ok(false);
        }
        let place = rng.index(errands.len());
        let (errand, pieces, runs) = &mut errands[place];
        if let Some(piece) = pieces.pop() {
            let mut data = vec![0; index(piece.count.0)];
            let there = Piece { skip: 0, ..piece.clone() };
            errand.memory().copy_to(index(piece.skip), &mut data);
            let operation = errand.operation();
            if let Operation::Status(_) = operation {
                tell(store, &piece, runs, rng)?;
            } else {
                carry_out(store, operation, &there, &mut data, rng).context("an errand")?;
                errand.memory().copy_from(index(piece.skip), &data);
            }
        }
        if pieces.is_empty() {
            let (mut errand, _, mut runs) = errands.swap_remove(place);
            let mut told = Ok(());
            if let Operation::Status(_) = errand.operation() {
                told = runs.write(&mut errand.memory());
            }
            errand.finish(told.map_or_else(Outcome::Failed, |()| Outcome::Done));
            self.attend(side)?;
        }
        Ok(true)
    }

    /// Carries out one piece of any request or internal I/O of the side.
    fn carry_out_one(&mut self, side: usize) -> Result<bool> {
        if self.rng.one_in(2) && self.carry_out_errand(side)? {
            return Ok(true);
        }
        let jobs = &mut self.sides[side].jobs;
        let is_running = |job: &Option<Job>| {
            job.as_ref().is_some_and(|job| matches!(job.state, State::Running(..)))
        };
        let running: Vec<usize> = (0..jobs.len()).filter(|it| is_running(&jobs[*it])).collect();
        if running.is_empty() {
            return self.carry_out_errand(side);
        }
        let token = running[self.rng.index(running.len())];
        let Some(Job { request, state: State::Running(operation, pieces, after), runs }) =
            &mut jobs[token]
        else {
            return Ok(false);
        };
        let piece = pieces.swap_remove(self.rng.index(pieces.len()));
        let (is_last, after) = (pieces.is_empty(), *after);
        let Self { store, rng, .. } = self;
        let done = if let Operation::Status(_) = operation {
            tell(store, &piece, runs, rng)
        } else {
            carry_out(store, *operation, &piece, &mut request.data, rng)
        };
        done.with_context(|| format!("{piece:?} of {operation:?}"))?;
        if is_last {
            self.completed(side, token, after)?;
            self.attend(side)?;
        }
        Ok(true)
    }

    /// A request is over.
    fn over(&mut self, side: usize, token: usize, ended: Ended) -> Result<()> {
        let mut job = self.sides[side].jobs[token].take().context("a request ends twice")?;
        let mut ended = ended;
        if matches!(job.request.operation, Operation::Status(_)) && ended == Ended::Well {
            let data = &mut job.request.data;
            let bytes = data.len();
            let put = |at, record: &[u8; StatusRecord::BYTES]| {
                data[at..at + record.len()].copy_from_slice(record);
            };
            if let Err(kind) = job.runs.write_with(bytes, put) {
                ended = Ended::Failed(kind);
            }
        }
        self.workload.complete(&job.request, ended)
    }

    /// Goes to the moment when the first lane has something to do, or a little later, and lets all go on that may.
    fn jump(&mut self) -> Result<()> {
        let due = self.sides.iter().map(|side| side.lane.due()).fold(None, WakeTime::first);
        let Some(WakeTime { at, slack }) = due else { return Ok(()) };
        let late = if self.rng.one_in(2) { slack } else { slack * 100 };
        let late = if self.rng.one_in(2) { late } else { std::time::Duration::ZERO };
        self.clock.jump_to(at + late);
        let now = self.clock.now();
        for side in 0..self.sides.len() {
            if self.sides[side].lane.due().is_some_and(|due| due.at <= now) {
                self.resume(side)?;
            }
        }
        Ok(())
    }

    /// Drains a lane, as a stop does: what it holds must come without a jump of the clock. What is let go may be held
    /// once more by each layer below, or wait until others are carried out.
    fn release(&mut self, side: usize) -> Result<()> {
        let layers = self.stack.names().len();
        for _ in 0..=layers {
            self.sides[side].lane.release();
            let now = self.clock.now();
            if self.sides[side].lane.due().is_some_and(|due| due.at <= now) {
                self.resume(side)?;
            }
            while self.carry_out_one(side)? {}
        }
        if self.stack.copies_on_read() {
            // They may wait for what others change.
            self.finish(side)?;
        }
        let held = self.sides[side].held;
        ensure!(held == 0, "{held} requests are held after a release");
        Ok(())
    }

    /// Waits for all requests of a lane.
    fn finish(&mut self, side: usize) -> Result<()> {
        let mut jumps = 0;
        loop {
            for any in 0..self.sides.len() {
                while self.carry_out_one(any)? {}
                // Another one may have woken it.
                self.attend(any)?;
            }
            let left = self.sides[side].in_flight();
            if left == 0 {
                break;
            }
            self.jump()?;
            self.complaints.check()?;
            jumps = if self.sides[side].in_flight() < left { 0 } else { jumps + 1 };
            ensure!(jumps < JUMPS_MAX, "{left} requests are not answered");
        }
        let kept = self.sides[side].io.answer_memory_bytes();
        ensure!(kept == 0, "{kept} bytes are kept for answers that are over");
        Ok(())
    }

    fn reopen(&mut self, side: usize) -> Result<()> {
        self.release(side)?;
        self.finish(side)?;
        self.sides[side] = Side::open(self.node.as_ref())?;
        Ok(())
    }

    fn lose_power(&mut self) -> Result<()> {
        self.complaints.abandon(true);
        self.sides.clear();
        self.complaints.abandon(false);
        self.workload.lose_power();
        self.store.lose_power(&mut self.rng);
        self.node = build(&self.stack, &self.clock, &self.complaints, &self.store)?;
        self.open_lanes()
    }

    fn check_all(&mut self) -> Result<()> {
        let all = self.workload.layout().ends.len();
        let step = 1 + self.rng.index(all);
        for start in (0..all).step_by(step) {
            let request = self.workload.read(&(start..(start + step).min(all)));
            let mapping = self.sides[0].add(0, request);
            self.map(0, vec![mapping])?;
            self.finish(0)?;
        }
        Ok(())
    }

    fn check_files(&mut self) -> Result<()> {
        for file in 0..self.stack.files() {
            let id = FileId(u32::try_from(file).context("the number of a file")?);
            // Not every end has a file.
            let Some(size) = self.store.size(id) else { continue };
            let mut bytes = vec![0; index(size)];
            self.store.read(id, 0, &mut bytes)?;
            self.workload.check_file(file, &bytes)?;
        }
        Ok(())
    }
}

impl Side {
    fn open(node: &dyn Node) -> Result<Self> {
        let called = Arc::new(Called::default());
        let io = LaneContext::new(Arc::clone(&called).into());
        let lane = node.open_lane(&io)?;
        let jobs = std::iter::repeat_with(|| None).take(DEPTH).collect();
        Ok(Self { lane, jobs, held: 0, io, called, errands: Vec::new() })
    }

    /// How many requests are not over.
    fn in_flight(&self) -> usize {
        self.jobs.iter().flatten().count()
    }

    fn free_token(&self) -> Option<usize> {
        self.jobs.iter().position(Option::is_none)
    }

    fn add(&mut self, token: usize, request: Request) -> Mapping {
        let operation = request.operation;
        self.jobs[token] = Some(Job { request, state: State::Held, runs: StatusRuns::default() });
        Mapping::new(Token(u32::try_from(token).expect("a few tokens")), operation)
    }
}

fn build(
    stack: &Stack,
    clock: &Arc<JumpClock>,
    complaints: &Arc<Complaints>,
    store: &Arc<Store>,
) -> Result<Arc<dyn Node>> {
    let clock: Arc<dyn Clock> = Arc::clone(clock) as Arc<dyn Clock>;
    let store = Arc::clone(store);
    let sizes: Sizes = Arc::new(move |file| store.size(file));
    stack.build(&clock, complaints, &sizes)
}

/// Gives a read what it finds in memory; leaves the other pieces.
fn take_memory(operation: Operation, pieces: &mut Vec<Piece>, data: &mut [u8]) -> Result<()> {
    let is_in_files = pieces.iter().all(|piece| piece.in_memory().is_none());
    let may_find = is_in_files || matches!(operation, Operation::Read(_));
    ensure!(may_find, "{operation:?} finds {pieces:?}");
    pieces.retain(|piece| {
        let Some(bytes) = piece.in_memory() else { return true };
        data[index(piece.skip)..][..bytes.len()].copy_from_slice(bytes);
        false
    });
    Ok(())
}

fn carry_out(
    store: &Store,
    operation: Operation,
    piece: &Piece,
    data: &mut [u8],
    rng: &mut Rng,
) -> Result<()> {
    let (skip, count) = (index(piece.skip), piece.count.0);
    let bytes = skip..skip + index(count);
    match (operation, piece.target.clone()) {
        (Operation::Read(_), Target::Zeroes) => {
            data.get_mut(bytes).context("beyond the memory")?.fill(0);
        }
        (_, Target::Zeroes | Target::Nothing) => {}
        (_, Target::Memory { .. } | Target::Channel { .. }) => {
            bail!("an errand has files alone")
        }
        (Operation::Read(_), Target::File { file, offset }) => {
            let data = data.get_mut(bytes).context("beyond the memory")?;
            store.read(file, offset.0, data)?;
        }
        (Operation::Write(_, durability), Target::File { file, offset }) => {
            let data = data.get(bytes).context("beyond the memory")?;
            store.write(file, offset.0, data, durability)?;
        }
        (Operation::Discard(_, durability), Target::File { file, offset }) => {
            if rng.one_in(2) {
                store.zero(file, offset.0, count, durability)?;
            }
        }
        (Operation::WriteZeroes(_, _, durability), Target::File { file, offset }) => {
            store.zero(file, offset.0, count, durability)?;
        }
        (Operation::Flush, Target::File { file, .. }) => store.flush(file)?,
        (Operation::Status(_), _) | (_, Target::Status(_)) => bail!("a status moves no bytes"),
    }
    Ok(())
}

/// Adds what the bytes of a piece are: of a file zeroes are a hole, or they are not.
fn tell(store: &Store, piece: &Piece, runs: &mut StatusRuns, rng: &mut Rng) -> Result<()> {
    let Target::File { file, offset } = piece.target else {
        runs.add(piece.skip, piece.count, piece.target.status());
        return Ok(());
    };
    let mut bytes = vec![0; index(piece.count.0)];
    store.read(file, offset.0, &mut bytes)?;
    let is_sparse = !rng.one_in(4);
    let mut skip = piece.skip;
    for sector in bytes.chunks(SECTOR_BYTES) {
        let is_hole = is_sparse && sector.iter().all(|byte| *byte == 0);
        let status = if is_hole { BlockStatus::ZEROES } else { BlockStatus::DATA };
        runs.add(skip, ByteCount(number(sector.len())), status);
        skip += number(sector.len());
    }
    Ok(())
}
