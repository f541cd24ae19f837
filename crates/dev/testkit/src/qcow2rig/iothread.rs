//! A simulated iothread: one lane of the node under test, and the jobs that it has there.
//!
//! Where it stands: it does what `request_path::Engine` does, with the same duties towards the lane, but each operation
//! of the kernel goes on when the player says so.
//!
//! Invariants, checked: each mapping is answered once; the pieces of an answer cover it; what is held is known to be.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Wake, Waker};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use block::{
    After, Answer, ByteOffset, Errand, FailKind, FileId, Lane, LaneIo, Mapping, Node, Operation,
    Outcome, Piece, PieceList, Target, Token, Told,
};

use super::Mischief;
use super::kernel::{
    Addressee, Asker, Kernel, KernelOp, Order, bytes_of, in_memory, memory_of, must_sync,
};
use super::log::Log;
use crate::rng::Rng;

/// Requests that are over: their number, their outcome and their memory.
pub(crate) type Ended = Vec<(u64, Outcome, Vec<u8>)>;

/// What an iothread uses besides its own.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) kernel: Kernel,
    pub(crate) log: Log,
    pub(crate) rng: Rng,
    pub(crate) mischief: Mischief,
    pub(crate) jobs: u64,
    pub(crate) ended: Ended,
}

#[derive(Debug, Default)]
struct Called(AtomicBool);

impl Wake for Called {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Release);
    }
}

#[derive(Debug)]
enum Owner {
    Request(u64),
    Errand(Errand),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Asked,
    Held,
    Carry,
    Sync,
}

#[derive(Debug)]
struct Job {
    number: u64,
    owner: Owner,
    operation: Operation,
    /// Of a request; an errand brings its own.
    memory: Vec<u8>,
    pieces: Vec<Piece>,
    phase: Phase,
    /// Operations whose end was not told yet.
    outstanding: usize,
    after: After,
    /// Whether the lane has held it again: an answer is about a part of it.
    again: bool,
    failed: Option<FailKind>,
}

/// One iothread.
#[derive(Debug)]
pub(crate) struct Iothread {
    place: usize,
    lane: Option<Box<dyn Lane>>,
    io: LaneIo,
    called: Arc<Called>,
    jobs: Vec<Option<Job>>,
}

impl Iothread {
    pub(crate) fn open(place: usize, node: &dyn Node) -> Result<Self> {
        let called = Arc::new(Called::default());
        let io = LaneIo::new(Waker::from(Arc::clone(&called)));
        let lane = Some(node.open_lane(&io).context("open a lane")?);
        Ok(Self { place, lane, io, called, jobs: Vec::new() })
    }

    /// Its jobs that are not over: requests and errands.
    pub(crate) fn open_jobs(&self) -> usize {
        self.jobs.iter().flatten().count()
    }

    /// Its requests that are not over.
    pub(crate) fn open_requests(&self) -> usize {
        let is_request = |job: &&Job| matches!(job.owner, Owner::Request(_));
        self.jobs.iter().flatten().filter(is_request).count()
    }

    /// Whether the lane wants to be called.
    pub(crate) fn is_called(&self) -> bool {
        self.called.0.load(Ordering::Acquire)
    }

    /// When the lane has something to do.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.lane.as_ref().and_then(|lane| lane.due()).map(|due| due.at)
    }

    /// Asks the lane about new requests.
    pub(crate) fn submit(
        &mut self,
        requests: Vec<(u64, Operation, Vec<u8>)>,
        world: &mut World,
    ) -> Result<()> {
        let mut mappings = Vec::new();
        for (request, operation, memory) in requests {
            let slot = self.add(Owner::Request(request), operation, memory, world);
            let actor = self.addressee(slot).actor();
            world.log.guest(actor, name_of(&operation), bytes_of(&operation));
            mappings.push(Mapping::new(Token(u32::try_from(slot)?), operation));
        }
        let mut pieces = PieceList::default();
        self.lane().map(&mut mappings, &mut pieces);
        self.answered(&mappings, &pieces, Phase::Asked, world)?;
        self.start_errands(world)
    }

    /// Calls the lane, which goes on with what it holds.
    pub(crate) fn resume(&mut self, now: Instant, world: &mut World) -> Result<()> {
        self.called.0.store(false, Ordering::Release);
        let (mut late, mut pieces) = (Vec::new(), PieceList::default());
        self.lane().resume(now, &mut late, &mut pieces);
        self.answered(&late, &pieces, Phase::Held, world)?;
        self.start_errands(world)
    }

    /// Somebody waits for the end of what the lane holds.
    pub(crate) fn release(&mut self, world: &mut World) -> Result<()> {
        self.lane().release();
        self.start_errands(world)
    }

    /// An operation is over.
    pub(crate) fn operation_over(&mut self, op: &KernelOp, world: &mut World) -> Result<()> {
        let slot = op.to.slot;
        let job = self.job(slot);
        job.outstanding -= 1;
        match op.result() {
            Err(kind) => job.failed = job.failed.or(Some(kind)),
            Ok(()) if op.is_read() => match &mut job.owner {
                Owner::Errand(errand) => {
                    errand.memory().copy_from(op.skip, &op.memory);
                }
                Owner::Request(_) => {
                    job.memory[op.skip..op.skip + op.memory.len()].copy_from_slice(&op.memory);
                }
            },
            Ok(()) => {}
        }
        if job.outstanding == 0 && job.phase != Phase::Held {
            self.settle(slot, world)?;
        }
        self.start_errands(world)
    }

    /// What is in flight, for a report.
    pub(crate) fn describe(&self) -> String {
        let open = self.jobs.iter().flatten().map(|job| {
            format!(
                "\n  thread {} job {} {:?} {:?} {} outstanding",
                self.place, job.number, job.phase, job.operation, job.outstanding
            )
        });
        let called = self.is_called();
        format!(
            "thread {} is called: {called}, due: {:?}{}",
            self.place,
            self.due(),
            open.collect::<String>()
        )
    }

    /// Closes the lane, which has nothing in flight.
    pub(crate) fn close(&mut self) -> Result<()> {
        self.lane = None;
        let bytes = self.io.bytes_kept();
        ensure!(bytes == 0, "{bytes} bytes are kept for answers that are over");
        Ok(())
    }

    /// The process dies.
    pub(crate) fn die(&mut self) {
        self.lane = None;
        for job in self.jobs.drain(..).flatten() {
            if let Owner::Errand(errand) = job.owner {
                // Nobody waits; it frees its memory.
                errand.finish(Outcome::Failed(FailKind::Io));
            }
        }
        let mut errands = Vec::new();
        self.io.take_submitted(&mut errands);
        errands.into_iter().for_each(|errand| errand.finish(Outcome::Failed(FailKind::Io)));
    }

    fn lane(&mut self) -> &mut dyn Lane {
        &mut **self.lane.as_mut().expect("it is open")
    }

    fn job(&mut self, slot: usize) -> &mut Job {
        self.jobs[slot].as_mut().expect("it is not over")
    }

    fn add(
        &mut self,
        owner: Owner,
        operation: Operation,
        memory: Vec<u8>,
        world: &mut World,
    ) -> usize {
        world.jobs += 1;
        let job = Job {
            number: world.jobs,
            owner,
            operation,
            memory,
            pieces: Vec::new(),
            phase: Phase::Asked,
            outstanding: 0,
            again: false,
            after: After::Over,
            failed: None,
        };
        let free = self.jobs.iter().position(Option::is_none);
        let slot = free.unwrap_or(self.jobs.len());
        if slot == self.jobs.len() {
            self.jobs.push(None);
        }
        self.jobs[slot] = Some(job);
        slot
    }

    fn addressee(&self, slot: usize) -> Addressee {
        let job = self.jobs[slot].as_ref().expect("it is not over");
        let asker = match job.owner {
            Owner::Request(_) => Asker::Guest,
            Owner::Errand(_) => Asker::Lane,
        };
        Addressee { thread: self.place, slot, job: job.number, asker }
    }

    fn answered(
        &mut self,
        mappings: &[Mapping],
        pieces: &PieceList,
        was: Phase,
        world: &mut World,
    ) -> Result<()> {
        for mapping in mappings {
            let slot = usize::try_from(mapping.token.0)?;
            let job = self.jobs.get_mut(slot).and_then(Option::as_mut);
            let job =
                job.with_context(|| format!("{:?} is answered, which is not open", mapping.token))?;
            ensure!(
                job.phase == was && matches!(job.owner, Owner::Request(_)),
                "{mapping:?} answers job {} a second time, which is {:?}",
                job.number,
                job.phase
            );
            match mapping.answer {
                Answer::Refused(kind) => self.end(slot, Outcome::Failed(kind), world),
                Answer::Held if was == Phase::Asked => job.phase = Phase::Held,
                Answer::Held => bail!("{mapping:?} is held when it is resumed"),
                Answer::Now(range) => {
                    let found = pieces.get(range);
                    let extent = match (mapping.after, job.again) {
                        (After::Over, false) => Covers::All,
                        (After::Tell, _) | (After::Over, true) => Covers::Part,
                    };
                    let memory = job.memory.len();
                    check_pieces(&mapping.operation, memory, found, extent, world)?;
                    job.operation = mapping.operation;
                    job.after = mapping.after;
                    job.pieces = found.to_vec();
                    self.start(slot, world)?;
                }
            }
        }
        Ok(())
    }

    fn start_errands(&mut self, world: &mut World) -> Result<()> {
        while self.io.has_submitted() {
            let mut errands = Vec::new();
            self.io.take_submitted(&mut errands);
            for mut errand in errands {
                let operation = errand.operation();
                let pieces = errand.pieces().to_vec();
                let memory = errand.memory().count();
                check_pieces(&operation, memory, &pieces, Covers::All, world)
                    .context("an errand")?;
                let slot = self.add(Owner::Errand(errand), operation, Vec::new(), world);
                self.job(slot).pieces = pieces;
                self.start(slot, world)?;
            }
        }
        Ok(())
    }

    /// Carries an answer out, or an errand.
    fn start(&mut self, slot: usize, world: &mut World) -> Result<()> {
        let to = self.addressee(slot);
        let job = self.job(slot);
        job.phase = Phase::Carry;
        let operation = job.operation;
        // A flush only names its files.
        let pieces = if operation == Operation::Flush { Vec::new() } else { job.pieces.clone() };
        for Piece { skip, count, target } in pieces {
            let range = in_memory(skip, count.0);
            match (target, operation) {
                (Target::File { file, offset: ByteOffset(offset) }, _) => {
                    let order = Order {
                        operation,
                        file,
                        bytes: offset..offset + count.0,
                        skip: range.start,
                        memory: job.bytes(operation, range),
                    };
                    let World { kernel, log, rng, .. } = world;
                    if kernel.begin(to, order, log, rng) {
                        job.outstanding += 1;
                    }
                }
                (Target::Zeroes, Operation::Read(_)) => match &mut job.owner {
                    Owner::Errand(errand) => errand.memory().zero(range.start, range.len()),
                    Owner::Request(_) => job.memory[range].fill(0),
                },
                (Target::Channel { .. }, _) => anyhow::bail!("the rig has files alone"),
                (
                    Target::Zeroes | Target::Nothing | Target::Memory { .. } | Target::Status(_),
                    _,
                ) => {}
            }
        }
        self.read_memory(slot)?;
        let job = self.job(slot);
        let is_early = world.mischief == Mischief::EarlyEnds && job.after == After::Tell;
        if is_early && to.asker == Asker::Guest && job.outstanding > 0 {
            job.after = After::Over;
            if self.tell(slot, Outcome::Done, world).is_none() {
                return Ok(());
            }
        }
        if self.job(slot).outstanding == 0 {
            self.settle(slot, world)?;
        }
        Ok(())
    }

    /// Gives a read what it finds in memory.
    fn read_memory(&mut self, slot: usize) -> Result<()> {
        let Some(Job { pieces, memory, operation, .. }) = &mut self.jobs[slot] else {
            return Ok(());
        };
        for piece in pieces {
            let Some(bytes) = piece.in_memory() else { continue };
            ensure!(matches!(operation, Operation::Read(_)), "{operation:?} finds {piece:?}");
            memory[in_memory(piece.skip, piece.count.0)].copy_from_slice(bytes);
            piece.target = Target::Nothing;
        }
        Ok(())
    }

    /// The bytes of a job are there, and synced if that was begun.
    fn settle(&mut self, slot: usize, world: &mut World) -> Result<()> {
        let to = self.addressee(slot);
        let job = self.job(slot);
        if job.phase == Phase::Carry && job.failed.is_none() && must_sync(job.operation) {
            job.phase = Phase::Sync;
            let file = |piece: &Piece| match piece.target {
                Target::File { file, .. } => Some(file),
                Target::Channel { .. }
                | Target::Zeroes
                | Target::Nothing
                | Target::Memory { .. }
                | Target::Status(_) => None,
            };
            let mut files: Vec<FileId> = job.pieces.iter().filter_map(file).collect();
            files.sort_unstable_by_key(|file| file.0);
            files.dedup();
            for file in files {
                let World { kernel, log, rng, .. } = world;
                if kernel.sync(to, file, log, rng) {
                    job.outstanding += 1;
                }
            }
            if job.outstanding > 0 {
                return Ok(());
            }
        }
        let outcome = job.failed.map_or(Outcome::Done, Outcome::Failed);
        if matches!(job.owner, Owner::Errand(_)) {
            let job = self.jobs[slot].take().expect("it is not over");
            if let Owner::Errand(errand) = job.owner {
                errand.finish(outcome);
            }
            return Ok(());
        }
        let ended = match job.after {
            After::Over => Some(outcome),
            After::Tell => self.tell(slot, outcome, world),
        };
        if let Some(outcome) = ended {
            self.end(slot, outcome, world);
        }
        Ok(())
    }

    /// Tells the lane that an answer was carried out; how the request ended, unless it is held again.
    fn tell(&mut self, slot: usize, outcome: Outcome, world: &mut World) -> Option<Outcome> {
        let actor = self.addressee(slot).actor();
        let token = Token(u32::try_from(slot).expect("few jobs"));
        match self.lane().carried_out(token, outcome) {
            Told::Over(outcome) => Some(outcome),
            Told::Kept => {
                world.log.guest(actor, "is kept", 0..0);
                let job = self.job(slot);
                job.phase = Phase::Held;
                job.failed = None;
                job.after = After::Over;
                job.again = true;
                None
            }
        }
    }

    fn end(&mut self, slot: usize, outcome: Outcome, world: &mut World) {
        let actor = self.addressee(slot).actor();
        let job = self.jobs[slot].take().expect("it is not over");
        let what = match outcome {
            Outcome::Done => "is complete",
            Outcome::Failed(_) => "has failed",
        };
        world.log.guest(actor, what, bytes_of(&job.operation));
        if let Owner::Request(request) = job.owner {
            world.ended.push((request, outcome, job.memory));
        }
    }
}

impl Job {
    /// What the kernel is given: what is to be written, or room for what is read.
    fn bytes(&mut self, operation: Operation, range: std::ops::Range<usize>) -> Vec<u8> {
        let mut bytes = Vec::new();
        match operation {
            Operation::Read(_) => bytes.resize(range.len(), 0),
            Operation::Write(..) => match &mut self.owner {
                Owner::Errand(errand) => {
                    bytes.resize(range.len(), 0);
                    errand.memory().copy_to(range.start, &mut bytes);
                }
                Owner::Request(_) => bytes.extend_from_slice(&self.memory[range]),
            },
            Operation::Discard(..) | Operation::WriteZeroes(..) | Operation::Flush => {}
            Operation::Status(_) => panic!("the rig asks for no status"),
        }
        bytes
    }
}

/// What the pieces of an answer cover: of one that the lane is told of there may be more to come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Covers {
    All,
    Part,
}

fn check_pieces(
    operation: &Operation,
    memory: usize,
    pieces: &[Piece],
    covers: Covers,
    world: &World,
) -> Result<()> {
    for piece in pieces {
        if let Target::File { file, .. } = piece.target {
            ensure!(
                world.kernel.disk.has(file),
                "{operation:?} goes to an unknown file: {pieces:?}"
            );
        }
    }
    // A request that has been told of before, a hint and a flush may have nothing left to do.
    if pieces.is_empty() || *operation == Operation::Flush {
        return Ok(());
    }
    let mut ordered = pieces.to_vec();
    ordered.sort_by_key(|piece| piece.skip);
    let mut covered = 0;
    for piece in &ordered {
        if covers == Covers::Part && piece.skip > covered {
            covered = piece.skip;
        }
        ensure!(
            piece.skip == covered && piece.count.0 > 0,
            "{operation:?} is answered with {pieces:?}"
        );
        covered += piece.count.0;
    }
    let wanted = memory_of(operation, memory);
    let is_right = covered == wanted || covers == Covers::Part && covered < wanted;
    ensure!(is_right, "{operation:?} is answered with {covered} bytes: {pieces:?}");
    Ok(())
}

fn name_of(operation: &Operation) -> &'static str {
    match operation {
        Operation::Read(_) => "is asked to read",
        Operation::Status(_) => "is asked for block status",
        Operation::Write(..) => "is asked to write",
        Operation::Discard(..) => "is asked to discard",
        Operation::WriteZeroes(_, block::Unmap::Keep, _) => "is asked to zero",
        Operation::WriteZeroes(_, block::Unmap::Allowed, _) => "is asked to zero and unmap",
        Operation::Flush => "is asked to flush",
    }
}
