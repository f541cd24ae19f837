//! A disk that is kept as it was at an instant, while guests change it: simulated iothreads on both sides, files in memory, and a
//! clock that jumps.
//!
//! Where it stands: beside [`super::play`], which shows that guests find what they wrote. Here only what readers of the snapshot
//! find is judged: each byte that is read is that of the instant, and what is said to be zeroes was zeroes then.
//!
//! Invariants: all that is random depends on the seed. Limits: `REQUESTS_MAX` requests, `JUMPS_MAX` jumps of the clock without
//! anything going on.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use block::{
    Child, Clock, Durability, DurableWriteMethod, Extent, Node, Operation, Outcome, StatusRecord,
    ZeroTerms,
};

use super::ends::{any_content, any_end, extent_of, failing_habits};
use super::{index, number};
use crate::rng::Rng;
use crate::simulation::World;
use crate::simulation::disk::Disk;
use crate::simulation::iothread::media;
use crate::simulation::kernel::Kernel;
use crate::simulation::machine::{Machine, Weights};

/// The most requests of a game.
const REQUESTS_MAX: u64 = 400;
/// How often the clock may jump in a row without anything going on.
const JUMPS_MAX: u32 = 10_000;
/// What is preserved together.
const CLUSTER: u64 = 64 << 10;

/// What the layer under test is made of.
#[derive(Debug)]
pub struct InstantParts<'a> {
    /// The disk.
    pub source: Arc<Child>,
    /// Where it is preserved.
    pub target: Arc<Child>,
    /// What time it is.
    pub clock: &'a Arc<dyn Clock>,
    /// Whether a change is carried out that could not be preserved.
    pub breaks_snapshot: bool,
    /// After what time a copy has failed.
    pub timeout: Option<Duration>,
}

/// The layer under test, from both sides.
#[expect(missing_debug_implementations, reason = "it has a closure")]
pub struct InstantNodes {
    /// What guests change.
    pub guest: Arc<dyn Node>,
    /// What shows the disk as it was.
    pub snapshot: Arc<dyn Node>,
    /// Whether the snapshot is broken.
    pub is_broken: Box<dyn Fn() -> bool>,
}

/// Makes the layer under test.
pub type InstantMaker<'a> = dyn Fn(InstantParts<'_>) -> Result<InstantNodes> + 'a;

/// What came of a game.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InstantTally {
    /// Reads and statuses of the snapshot that were judged.
    pub judged: u64,
    /// Requests that failed as they might.
    pub failed: u64,
    /// Games in which the snapshot was broken.
    pub broken: u64,
}

/// Who has asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Guest,
    Reader,
}

/// A request that is not over.
#[derive(Debug)]
struct Open {
    side: Side,
    operation: Operation,
    /// Whether readers had given a part of it up for good before it began.
    is_gone: bool,
}

struct Game {
    machine: Machine,
    weights: Weights,
    nodes: InstantNodes,
    guests: usize,
    /// The disk at the instant.
    instant: Vec<u8>,
    /// Whether something below may fail, or be too late.
    may_fail: bool,
    discards: bool,
    /// What readers have given up, or are about to.
    giving_up: Vec<Range<u64>>,
    given_up: Vec<Range<u64>>,
    open: BTreeMap<u64, Open>,
    requests: u64,
    tally: InstantTally,
    rng: Rng,
}

/// Plays the game of this seed.
pub fn play_instant(seed: u64, make: &InstantMaker<'_>) -> Result<InstantTally> {
    let rng = &mut Rng::new(seed);
    let failures = if rng.one_in(4) { 40 } else { 0 };
    let habits = failing_habits(rng, failures);
    let (breaks_snapshot, is_hasty) = (rng.one_in(2), rng.one_in(4));
    let timeout = is_hasty.then(|| Duration::from_millis(1 + rng.below(100)));
    let block = [1, 512, 4096][rng.index(3)];
    let text = format!(
        "seed {seed:#x}, {habits:?}, breaks the snapshot: {breaks_snapshot}, timeout {timeout:?}, block {block}"
    );
    let disk = Arc::new(Disk::default());
    let world = World::new(Kernel::new(Arc::clone(&disk), habits), Rng::new(rng.next_u64()));
    let machine = Machine::new(world);
    let size = (1 + rng.below(5 * CLUSTER / 4096)) * 4096;
    let mut instant = any_content(rng, size);
    // A part that is not there.
    let hole = rng.below(size) / 512 * 512..size;
    instant[index(hole.start)..index(hole.end.min(hole.start + CLUSTER))].fill(0);
    let rest = rng.below(3) * 4096;
    let junk = any_content(rng, size + rest);
    let clock = machine.clock();
    let mut child = |name: &str, content: &[u8]| -> Arc<Child> {
        let file = disk.add(content);
        Child::new(any_end(name, file, &disk, (&machine.world, &clock), rng))
    };
    let (source, target) = (child("source", &instant), child("target", &junk));
    let parts = InstantParts { source, target, clock: &clock, breaks_snapshot, timeout };
    let nodes = make(parts).with_context(|| text.clone())?;
    let may_fail = failures > 0 || is_hasty;
    let mut game = Game {
        machine,
        weights: Weights::any(rng, 2),
        nodes,
        guests: 1 + rng.index(2),
        instant,
        may_fail,
        discards: rng.one_in(3),
        giving_up: Vec::new(),
        given_up: Vec::new(),
        open: BTreeMap::new(),
        requests: 0,
        tally: InstantTally::default(),
        rng: rng.clone(),
    };
    game.run(block).with_context(|| text)
}

fn overlaps(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}

impl Game {
    fn run(&mut self, block: u32) -> Result<InstantTally> {
        let media = media(2, block, DurableWriteMethod::BySync);
        let readers = 1 + self.rng.index(2);
        for side in 0..self.guests + readers {
            let node = if side < self.guests { &self.nodes.guest } else { &self.nodes.snapshot };
            self.machine.open(node, &media)?;
        }
        let requests = 20 + self.rng.below(REQUESTS_MAX - 20);
        while self.requests < requests {
            self.step()?;
            self.judge()?;
        }
        self.machine.world.lock().kernel.habits.failures = 0;
        for side in 0..self.machine.iothreads.len() {
            self.finish(side)?;
        }
        self.may_fail = false;
        self.check_all().context("reading all of the snapshot")?;
        self.machine.close();
        self.tally.broken = u64::from((self.nodes.is_broken)());
        Ok(self.tally)
    }

    fn step(&mut self) -> Result<()> {
        let side = self.rng.index(self.machine.iothreads.len());
        match self.rng.below(10_000) {
            0..20 => {
                let now = self.machine.clock.now();
                self.machine.iothreads[side].release(now);
                self.finish(side)?;
            }
            20..40 => {
                self.finish(side)?;
                self.machine.iothreads[side].close_lane();
                let node =
                    if side < self.guests { &self.nodes.guest } else { &self.nodes.snapshot };
                self.machine.iothreads[side].open_lane(node)?;
            }
            40..400 => {
                self.machine.jump(&mut self.rng);
            }
            400..500 => self.machine.round(side),
            _ => {
                if let Some(side) = self.machine.step(&self.weights, true)? {
                    let asked = (0..1 + self.rng.below(4)).map(|_| self.any(side)).collect();
                    self.submit(side, asked);
                }
            }
        }
        Ok(())
    }

    /// A random request.
    fn any(&mut self, side: usize) -> Operation {
        let rng = &mut self.rng;
        let sectors = number(self.instant.len()) / 512;
        let longest = 1 << rng.below(u64::from(sectors.ilog2()) + 1);
        let mut count = 1 + rng.below(longest);
        let mut start = rng.below(sectors - count + 1);
        if rng.one_in(3) {
            let unit = 1 << rng.below(8);
            start -= start % unit;
            count = count.next_multiple_of(unit).min(sectors - start);
        }
        let extent = self.extent(start * 512..(start + count) * 512);
        let rng = &mut self.rng;
        if side < self.guests {
            return match rng.below(10) {
                0 => Operation::Read(extent),
                1 => Operation::Flush,
                2 => Operation::Discard(extent, Durability::Cached),
                3 => Operation::WriteZeroes(extent, ZeroTerms::UNMAP, Durability::Cached),
                4 => Operation::WriteZeroes(extent, ZeroTerms::KEEP, Durability::Stable),
                _ => Operation::Write(extent, Durability::Cached),
            };
        }
        match rng.below(16) {
            0..3 => Operation::Status(extent),
            3 if self.discards => Operation::Discard(extent, Durability::Cached),
            _ => Operation::Read(extent),
        }
    }

    fn extent(&self, bytes: Range<u64>) -> Extent {
        extent_of(bytes, number(self.instant.len()))
    }

    fn submit(&mut self, thread: usize, operations: Vec<Operation>) {
        let mut batch = Vec::new();
        for operation in operations {
            self.requests += 1;
            let side = if thread < self.guests { Side::Guest } else { Side::Reader };
            let bytes = operation.extent().map_or(0..0, |extent| extent.bytes());
            let data = match operation {
                Operation::Read(_) => vec![0xa5; index(bytes.end - bytes.start)],
                Operation::Write(..) => {
                    // Never what was there at the instant: that is odd.
                    vec![self.requests.to_le_bytes()[0] << 1; index(bytes.end - bytes.start)]
                }
                Operation::Status(_) => vec![0xa5; StatusRecord::BYTES << self.rng.below(6)],
                Operation::Discard(..) | Operation::WriteZeroes(..) | Operation::Flush => {
                    Vec::new()
                }
            };
            let is_gone = self.given_up.iter().any(|gone| overlaps(gone, &bytes));
            if let (Side::Reader, Operation::Discard(..)) = (side, operation) {
                self.giving_up.extend(self.clusters_in(&bytes));
            }
            self.open.insert(self.requests, Open { side, operation, is_gone });
            batch.push((self.requests, operation, data));
        }
        if !batch.is_empty() {
            self.machine.iothreads[thread].submit(batch);
        }
    }

    /// The whole clusters inside these bytes.
    fn clusters_in(&self, bytes: &Range<u64>) -> Option<Range<u64>> {
        let start = bytes.start.next_multiple_of(CLUSTER);
        let is_end = bytes.end == number(self.instant.len());
        let end = if is_end { bytes.end } else { bytes.end - bytes.end % CLUSTER };
        (start < end).then_some(start..end)
    }

    /// Judges the requests that are over.
    fn judge(&mut self) -> Result<()> {
        for crate::simulation::Ended { number, outcome, data } in self.machine.take_ended()? {
            let open = self.open.remove(&number).context("a request ends once")?;
            self.judge_one(&open, outcome, &data)
                .with_context(|| format!("request {number}, {:?}", open.operation))?;
        }
        Ok(())
    }

    fn judge_one(&mut self, open: &Open, outcome: Outcome, data: &[u8]) -> Result<()> {
        let Open { side, operation, is_gone } = *open;
        let bytes = operation.extent().map_or(0..0, |extent| extent.bytes());
        if let Outcome::Failed(kind) = outcome {
            self.tally.failed += 1;
            let is_broken = side == Side::Reader && (self.nodes.is_broken)();
            let meets = self.giving_up.iter().any(|gone| overlaps(gone, &bytes));
            let may = self.may_fail || is_broken || side == Side::Reader && meets;
            ensure!(may, "it has failed: {kind:?}");
            return Ok(());
        }
        match (side, operation) {
            (Side::Guest, _) | (_, Operation::Flush) => Ok(()),
            (Side::Reader, Operation::Discard(..)) => {
                self.given_up.extend(self.clusters_in(&bytes));
                Ok(())
            }
            (Side::Reader, Operation::Read(_)) => {
                ensure!(!is_gone, "it reads what nobody keeps any more");
                self.tally.judged += 1;
                let expected = &self.instant[index(bytes.start)..index(bytes.end)];
                let mut places = data.iter().zip(expected);
                match places.position(|(found, expected)| found != expected) {
                    None => Ok(()),
                    Some(at) => bail!("byte {at} is {} and was {}", data[at], expected[at]),
                }
            }
            (Side::Reader, Operation::Status(_)) => {
                self.tally.judged += 1;
                let mut at = index(bytes.start);
                for StatusRecord { count, status } in StatusRecord::read_all(data) {
                    let end = (at + index(count.0)).min(index(bytes.end));
                    let is_zero = self.instant[at..end].iter().all(|byte| *byte == 0);
                    ensure!(is_zero || !status.is_zero, "{at}..{end} is said to be zero");
                    at = end;
                }
                ensure!(at > index(bytes.start), "nothing is said of the first byte");
                Ok(())
            }
            (Side::Reader, Operation::Write(..) | Operation::WriteZeroes(..)) => {
                bail!("a reader has changed something")
            }
        }
    }

    /// Waits for all requests of an iothread.
    fn finish(&mut self, side: usize) -> Result<()> {
        let mut jumps = 0;
        loop {
            self.machine.settle_now(&self.weights);
            let left = self.machine.iothreads[side].open_requests();
            self.judge()?;
            if left == 0 {
                return Ok(());
            }
            let jumped = self.machine.jump(&mut self.rng);
            let now_left = self.machine.iothreads[side].open_requests();
            jumps = if now_left < left { 0 } else { jumps + 1 };
            let text = || self.machine.world.lock().log.last();
            ensure!(jumped && jumps < JUMPS_MAX, "{left} requests are not answered: {}", text());
        }
    }

    /// Reads all of the snapshot, by each reader, as far as it is there.
    fn check_all(&mut self) -> Result<()> {
        let all = number(self.instant.len());
        for side in self.guests..self.machine.iothreads.len() {
            for start in (0..all).step_by(index(CLUSTER / 4)) {
                let bytes = start..all.min(start + CLUSTER / 4);
                let extent = self.extent(bytes);
                let before = (self.tally.judged, self.tally.failed);
                self.submit(side, vec![Operation::Read(extent)]);
                self.finish(side)?;
                let after = (self.tally.judged, self.tally.failed);
                ensure!(before != after, "a request is not judged");
                let is_read = after.0 > before.0;
                ensure!(!is_read || !(self.nodes.is_broken)(), "a broken snapshot is read");
            }
        }
        Ok(())
    }
}
