//! A guest with many requests at once on one lane: everything that can happen next happens in any order, and every
//! byte is held against a plain copy of the disk.

use std::collections::BTreeSet;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll, Waker};

use anyhow::{Context, Result, bail, ensure};
use block::{
    AfterPiecesAction, Answer, BatchPieces, ByteCount, ByteOffset, Claim, Clock, Durability,
    EngineFactory, Extent, HostMemory, InternalIoFuture, InternalOperation, Lane,
    LaneCompletionDecision, LaneContext, Mapping, Node, Operation, Outcome, Piece, Rights,
    SystemClock, Token, ZeroTerms,
};
use testkit::rng::Rng;

const SECTOR: u64 = 512;

/// So many calls without any progress are a hang.
const IDLE_MAX: u32 = 10_000;

/// One iothread's guest.
pub(crate) struct Player {
    node: Arc<dyn Node>,
    lane: Box<dyn Lane>,
    io: LaneContext,
    engines: Arc<dyn EngineFactory>,
    jobs: Vec<Option<Job>>,
    errands: Vec<InternalOperation>,
    pieces: BatchPieces,
    /// Sectors that requests in flight change, and those that others read.
    changing: BTreeSet<u64>,
    reading: Vec<u64>,
    rng: Rng,
    /// What the disk holds.
    pub(crate) model: Vec<u8>,
    /// Dropped last.
    _claim: Claim,
}

struct Job {
    operation: Operation,
    phase: Phase,
    expected: Vec<u8>,
}

enum Phase {
    Held(HostMemory),
    Answered(Operation, Vec<Piece>, AfterPiecesAction, HostMemory),
    CarriedOut(InternalIoFuture, AfterPiecesAction),
}

impl Player {
    /// Claims the node, whose disk holds that.
    pub(crate) fn new(
        node: Arc<dyn Node>,
        engines: Arc<dyn EngineFactory>,
        model: Vec<u8>,
        seed: u64,
    ) -> Result<Self> {
        let claim = node.claim(Rights::of_user(node.access()))?;
        let io = LaneContext::idle();
        let lane = node.open_lane(&io)?;
        Ok(Self {
            node,
            lane,
            io,
            engines,
            jobs: Vec::new(),
            errands: Vec::new(),
            pieces: BatchPieces::default(),
            changing: BTreeSet::new(),
            reading: vec![0; model.len() / usize::try_from(SECTOR)?],
            rng: Rng::new(seed),
            model,
            _claim: claim,
        })
    }

    /// Has so many requests of at most so many sectors served, up to so many at once, and then all that is left.
    pub(crate) fn play(&mut self, requests: usize, depth: usize, sectors: u64) -> Result<()> {
        let (mut left, mut idle) = (requests, 0);
        while left > 0 || self.jobs.iter().any(Option::is_some) {
            idle += 1;
            ensure!(idle < IDLE_MAX, "requests are held for ever: {:?}", self.lane);
            let open = self.jobs.iter().flatten().count();
            match self.rng.index(4) {
                0 if left > 0 && open < depth => {
                    let count = 1 + self.rng.index(left.min(depth - open).min(6));
                    left -= count;
                    self.ask(count, sectors)?;
                    idle = 0;
                }
                1 => idle *= u32::from(!self.go_on()?),
                2 => idle *= u32::from(!self.run_errand()),
                _ => self.resume()?,
            }
        }
        Ok(())
    }

    /// Reads every byte.
    pub(crate) fn read_all(&mut self) -> Result<()> {
        let bytes = self.model.len() as u64;
        for at in (0..bytes).step_by(1 << 16) {
            let count = (bytes - at).min(1 << 16);
            let read = self.enter(Operation::Read(self.extent(at, count)?))?;
            self.begin(vec![read])?;
            self.play(0, 1, 1)?;
        }
        Ok(())
    }

    /// Discards bytes, which are zeroes afterwards.
    pub(crate) fn discard(&mut self, at: u64, count: u64) -> Result<()> {
        let discard = Operation::Discard(self.extent(at, count)?, Durability::Cached);
        let discard = self.enter(discard)?;
        self.begin(vec![discard])?;
        self.play(0, 1, 1)
    }

    /// Asks for a batch.
    fn ask(&mut self, count: usize, sectors: u64) -> Result<()> {
        let mut batch = Vec::new();
        for _ in 0..count {
            let operation = self.any_operation(sectors)?;
            batch.push(self.enter(operation)?);
        }
        self.begin(batch)
    }

    /// A new request.
    fn enter(&mut self, operation: Operation) -> Result<Mapping> {
        let memory = self.memory(operation)?;
        let expected = self.expect(operation, &memory)?;
        let place = self.jobs.iter().position(Option::is_none).unwrap_or(self.jobs.len());
        let job = Job { operation, phase: Phase::Held(memory), expected };
        match self.jobs.get_mut(place) {
            Some(free) => *free = Some(job),
            None => self.jobs.push(Some(job)),
        }
        Ok(Mapping::new(Token(u32::try_from(place)?), operation))
    }

    fn begin(&mut self, mut batch: Vec<Mapping>) -> Result<()> {
        self.pieces.clear();
        self.lane.map(&mut batch, &mut self.pieces);
        for mapping in batch.iter().filter(|mapping| mapping.answer != Answer::Held) {
            self.answered(mapping)?;
        }
        self.io.take_submitted(&mut self.errands);
        Ok(())
    }

    fn any_operation(&mut self, sectors: u64) -> Result<Operation> {
        let kind = self.rng.index(20);
        if kind == 0 {
            return Ok(Operation::Flush);
        }
        let all = self.model.len() as u64 / SECTOR;
        for _ in 0..100 {
            let count = 1 + self.rng.below(sectors);
            let start = self.rng.below(all - count + 1);
            let changes = kind.is_multiple_of(2);
            let is_free = |at: u64| {
                let place = usize::try_from(at).expect("a small disk");
                !(self.changing.contains(&at) || changes && self.reading[place] > 0)
            };
            if !(start..start + count).all(is_free) {
                continue;
            }
            let extent = self.extent(start * SECTOR, count * SECTOR)?;
            let durability =
                if self.rng.one_in(5) { Durability::Stable } else { Durability::Cached };
            return Ok(match kind {
                2 => Operation::WriteZeroes(extent, ZeroTerms::KEEP, durability),
                4 => Operation::WriteZeroes(extent, ZeroTerms::UNMAP, durability),
                _ if changes => Operation::Write(extent, durability),
                _ => Operation::Read(extent),
            });
        }
        Ok(Operation::Flush)
    }

    fn extent(&self, at: u64, count: u64) -> Result<Extent> {
        Ok(self.node.size().check(ByteOffset(at), ByteCount(count))?)
    }

    fn memory(&mut self, operation: Operation) -> Result<HostMemory> {
        let count = |extent: Extent| usize::try_from(extent.count().0);
        Ok(match operation {
            Operation::Read(extent) => HostMemory::zeroed(count(extent)?),
            Operation::Write(extent, _) => {
                let byte = u8::try_from(1 + self.rng.index(255))?;
                let mut memory = HostMemory::zeroed(count(extent)?);
                memory.fill(byte);
                memory
            }
            Operation::Status(_)
            | Operation::Discard(..)
            | Operation::WriteZeroes(..)
            | Operation::Flush => HostMemory::zeroed(0),
        })
    }

    /// What a read has to find; a change is in the model at once, and its sectors are nobody else's meanwhile.
    fn expect(&mut self, operation: Operation, memory: &HostMemory) -> Result<Vec<u8>> {
        let Some(extent) = operation.extent() else { return Ok(Vec::new()) };
        let bytes = usize::try_from(extent.bytes().start)?..usize::try_from(extent.bytes().end)?;
        let sectors = extent.bytes().start / SECTOR..extent.bytes().end / SECTOR;
        match operation {
            Operation::Read(_) => {
                for at in sectors {
                    self.reading[usize::try_from(at)?] += 1;
                }
                return Ok(self.model[bytes].to_vec());
            }
            Operation::Write(..) => self.model[bytes].copy_from_slice(memory),
            Operation::Discard(..) | Operation::WriteZeroes(..) => self.model[bytes].fill(0),
            Operation::Flush | Operation::Status(_) => {}
        }
        self.changing.extend(sectors);
        Ok(Vec::new())
    }

    fn answered(&mut self, mapping: &Mapping) -> Result<()> {
        let job = self.jobs[usize::try_from(mapping.token.0)?].as_mut().context("a request")?;
        let Answer::Now(range) = mapping.answer else {
            bail!("{:?} is answered with {:?}", job.operation, mapping.answer)
        };
        let pieces = self.pieces.get(range).to_vec();
        let Phase::Held(memory) = &mut job.phase else { bail!("it is not held") };
        let memory = std::mem::replace(memory, HostMemory::zeroed(0));
        job.phase = Phase::Answered(mapping.operation, pieces, mapping.after, memory);
        Ok(())
    }

    /// Goes on with any request; whether one could.
    fn go_on(&mut self) -> Result<bool> {
        if self.jobs.is_empty() {
            return Ok(false);
        }
        let place = self.rng.index(self.jobs.len());
        let Some(job) = &mut self.jobs[place] else { return Ok(false) };
        let held = Phase::Held(HostMemory::zeroed(0));
        match std::mem::replace(&mut job.phase, held) {
            held @ Phase::Held(_) => {
                job.phase = held;
                Ok(false)
            }
            Phase::Answered(operation, pieces, after, memory) => {
                let done = self.io.submit(operation, &pieces, memory);
                job.phase = Phase::CarriedOut(done, after);
                self.io.take_submitted(&mut self.errands);
                Ok(true)
            }
            Phase::CarriedOut(mut done, after) => {
                let context = &mut TaskContext::from_waker(Waker::noop());
                let Poll::Ready(result) = Pin::new(&mut done).poll(context) else {
                    job.phase = Phase::CarriedOut(done, after);
                    return Ok(false);
                };
                let memory = result.map_err(|kind| anyhow::anyhow!("{kind:?}"))?;
                self.completed(place, after, memory)?;
                Ok(true)
            }
        }
    }

    fn completed(
        &mut self,
        place: usize,
        after: AfterPiecesAction,
        memory: HostMemory,
    ) -> Result<()> {
        let told = match after {
            AfterPiecesAction::Finish => LaneCompletionDecision::Finish(Outcome::Done),
            AfterPiecesAction::NotifyLane => {
                self.lane.completed(Token(u32::try_from(place)?), Outcome::Done)
            }
        };
        self.io.take_submitted(&mut self.errands);
        match told {
            LaneCompletionDecision::Finish(Outcome::Done) => {}
            LaneCompletionDecision::Finish(Outcome::Failed(kind)) => {
                bail!("a request fails: {kind:?}")
            }
            LaneCompletionDecision::HoldAgain => {
                self.jobs[place].as_mut().context("a request")?.phase = Phase::Held(memory);
                return Ok(());
            }
        }
        let job = self.jobs[place].take().context("a request")?;
        let Some(extent) = job.operation.extent() else { return Ok(()) };
        for at in extent.bytes().start / SECTOR..extent.bytes().end / SECTOR {
            if let Operation::Read(_) = job.operation {
                self.reading[usize::try_from(at)?] -= 1;
            } else {
                self.changing.remove(&at);
            }
        }
        if let Operation::Read(_) = job.operation {
            ensure!(*memory == *job.expected, "{:?} finds something else", job.operation);
        }
        Ok(())
    }

    fn run_errand(&mut self) -> bool {
        if self.errands.is_empty() {
            return false;
        }
        let place = self.rng.index(self.errands.len());
        testkit::errands::run(&*self.engines, self.errands.swap_remove(place));
        true
    }

    fn resume(&mut self) -> Result<()> {
        self.pieces.clear();
        let mut late = Vec::new();
        self.lane.resume(SystemClock.now(), &mut late, &mut self.pieces);
        for mapping in &late {
            self.answered(mapping)?;
        }
        self.io.take_submitted(&mut self.errands);
        Ok(())
    }
}
