//! A disk that is copied while guests change it: simulated iothreads for guests and for the two sides of the copy, files in
//! memory, and a clock that jumps.
//!
//! Where it stands: beside [`super::instant`]. What guests find is judged by [`super::play`]; here the target has to become
//! equal to the source, whatever fails on the way, once guests rest and nothing fails any more.
//!
//! Invariants: all that is random depends on the seed. Limits: `REQUESTS_MAX` requests of guests, `JUMPS_MAX` jumps of the
//! clock without anything going on.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use block::{
    Child, Clock, Durability, DurableWriteMethod, Extent, FileId, Node, Operation, Outcome,
    ZeroTerms,
};

use super::ends::{any_content, any_end, extent_of, failing_habits};
use super::index;
use crate::rng::Rng;
use crate::simulation::World;
use crate::simulation::disk::Disk;
use crate::simulation::iothread::{SLOTS, media};
use crate::simulation::kernel::Kernel;
use crate::simulation::machine::{Machine, Weights};

/// The most requests of guests.
const REQUESTS_MAX: u64 = 300;
/// How often the clock may jump in a row without anything going on.
const JUMPS_MAX: u32 = 10_000;

/// What the layer under test is made of.
#[derive(Debug)]
pub struct MirrorParts<'a> {
    /// The disk.
    pub source: Arc<Child>,
    /// What it is copied to; of the same size.
    pub target: Arc<dyn Node>,
    /// What time it is.
    pub clock: &'a Arc<dyn Clock>,
}

/// What the copy asks of one of its sides.
#[derive(Debug)]
pub struct CopyRequest {
    /// Names it until it is over.
    pub slot: u16,
    /// Whether it is for the target.
    pub is_of_target: bool,
    /// What is asked.
    pub operation: Operation,
    /// Its memory: what is written, or room for what is read.
    pub data: Vec<u8>,
}

/// The copy, as a player sees it.
pub trait Copier {
    /// What it asks next; nothing if it waits, or is equal.
    fn next(&mut self) -> Option<CopyRequest>;
    /// What it has asked is over.
    fn end(&mut self, slot: u16, outcome: Outcome, data: &[u8]);
    /// Changes are carried out on both from now on, or are only noted.
    fn set_blocking(&mut self, is_blocking: bool);
    /// From now on nothing is put off. Whether source and target are said to be equal, since this was asked last.
    fn is_equal(&mut self) -> bool;
}

/// The layer under test, from both sides.
#[expect(missing_debug_implementations, reason = "it has a trait object")]
pub struct MirrorNodes {
    /// What guests change.
    pub guest: Arc<dyn Node>,
    /// The copy.
    pub copier: Box<dyn Copier>,
}

/// Makes the layer under test.
pub type MirrorMaker<'a> = dyn Fn(MirrorParts<'_>) -> Result<MirrorNodes> + 'a;

/// What came of a game.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MirrorTally {
    /// Changes of guests.
    pub changes: u64,
    /// Requests of the copy.
    pub copied: u64,
    /// Requests that failed as they might.
    pub failed: u64,
}

/// Whose request it is that is not over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    Guest,
    Copy(u16),
}

struct Game {
    machine: Machine,
    weights: Weights,
    disk: Arc<Disk>,
    files: (FileId, FileId),
    nodes: MirrorNodes,
    guests: usize,
    bytes: u64,
    may_fail: bool,
    open: BTreeMap<u64, Asked>,
    requests: u64,
    tally: MirrorTally,
    rng: Rng,
}

/// Plays the game of this seed.
pub fn play_mirror(seed: u64, make: &MirrorMaker<'_>) -> Result<MirrorTally> {
    let rng = &mut Rng::new(seed);
    let failures = if rng.one_in(3) { 30 } else { 0 };
    let habits = failing_habits(rng, failures);
    let text = format!("seed {seed:#x}, {habits:?}");
    let disk = Arc::new(Disk::default());
    let world = World::new(Kernel::new(Arc::clone(&disk), habits), Rng::new(rng.next_u64()));
    let machine = Machine::new(world);
    let bytes = (1 + rng.below(80)) * 4096;
    let (clock, content) = (machine.clock(), any_content(rng, bytes));
    let files = (disk.add(&content), disk.add(&any_content(rng, bytes)));
    let mut end = |name: &str, file| any_end(name, file, &disk, (&machine.world, &clock), rng);
    let (source, target) = (Child::new(end("source", files.0)), end("target", files.1));
    let sides = [source.node(), Arc::clone(&target)];
    let nodes =
        make(MirrorParts { source, target, clock: &clock }).with_context(|| text.clone())?;
    let mut game = Game {
        machine,
        weights: Weights::any(rng, 2),
        disk,
        files,
        nodes,
        guests: 1 + rng.index(2),
        bytes,
        may_fail: failures > 0,
        open: BTreeMap::new(),
        requests: 0,
        tally: MirrorTally::default(),
        rng: rng.clone(),
    };
    game.run(&sides).with_context(|| text)
}

impl Game {
    fn run(&mut self, sides: &[Arc<dyn Node>; 2]) -> Result<MirrorTally> {
        let media = media(2, 1, DurableWriteMethod::BySync);
        for _ in 0..self.guests {
            self.machine.open(&self.nodes.guest, &media)?;
        }
        for side in sides {
            self.machine.open(side, &media)?;
        }
        let requests = 20 + self.rng.below(REQUESTS_MAX - 20);
        while self.requests < requests {
            self.step()?;
            self.end_requests()?;
        }
        // What has failed before may be told later.
        self.machine.world.lock().kernel.habits.failures = 0;
        self.finish()?;
        self.check_equal()?;
        self.machine.close();
        Ok(self.tally)
    }

    fn step(&mut self) -> Result<()> {
        match self.rng.below(10_000) {
            0..20 => {
                let is_blocking = self.rng.one_in(2);
                self.nodes.copier.set_blocking(is_blocking);
            }
            20..400 => {
                self.machine.jump(&mut self.rng);
            }
            400..2000 => self.copy(),
            _ => match self.machine.step(&self.weights, true)? {
                Some(thread) if thread < self.guests => self.ask(thread),
                Some(_) => self.copy(),
                None => {}
            },
        }
        Ok(())
    }

    /// A guest asks for something.
    fn ask(&mut self, thread: usize) {
        let batch = (0..1 + self.rng.below(4)).map(|_| {
            let (operation, data) = any_request(&mut self.rng, self.bytes);
            self.requests += 1;
            self.tally.changes += 1;
            self.open.insert(self.requests, Asked::Guest);
            (self.requests, operation, data)
        });
        let batch = batch.collect();
        self.machine.iothreads[thread].submit(batch);
    }

    /// The copy asks for something, if there is room.
    fn copy(&mut self) {
        for _ in 0..1 + self.rng.below(4) {
            let (source, target) = (self.guests, self.guests + 1);
            let open = |thread: usize| self.machine.iothreads[thread].open_requests();
            if open(source).max(open(target)) >= usize::from(SLOTS) {
                return;
            }
            let Some(asked) = self.nodes.copier.next() else { return };
            let CopyRequest { slot, is_of_target, operation, data } = asked;
            self.requests += 1;
            self.tally.copied += 1;
            self.open.insert(self.requests, Asked::Copy(slot));
            let thread = if is_of_target { target } else { source };
            self.machine.iothreads[thread].submit(vec![(self.requests, operation, data)]);
        }
    }

    fn end_requests(&mut self) -> Result<()> {
        for crate::simulation::Ended { number, outcome, data } in self.machine.take_ended()? {
            let asked = self.open.remove(&number).context("a request ends once")?;
            if let Outcome::Failed(kind) = outcome {
                self.tally.failed += 1;
                ensure!(self.may_fail, "{asked:?} has failed: {kind:?}");
            }
            if let Asked::Copy(slot) = asked {
                self.nodes.copier.end(slot, outcome, &data);
            }
        }
        Ok(())
    }

    /// Waits for all requests, and for the copy to have nothing left.
    fn finish(&mut self) -> Result<()> {
        let mut jumps = 0;
        loop {
            self.machine.settle_now(&self.weights);
            self.end_requests()?;
            let before = self.tally.copied;
            self.copy();
            if self.open.is_empty() && self.nodes.copier.is_equal() {
                return Ok(());
            }
            if self.tally.copied > before {
                jumps = 0;
                continue;
            }
            jumps += 1;
            let text = || self.machine.world.lock().log.last();
            let left = self.open.len();
            ensure!(jumps < JUMPS_MAX, "{left} requests are not answered: {}", text());
            self.machine.jump(&mut self.rng);
        }
    }

    fn check_equal(&self) -> Result<()> {
        let read = |file| {
            let mut content = vec![0; index(self.bytes)];
            self.disk.read(file, 0, &mut content);
            content
        };
        let (source, target) = (read(self.files.0), read(self.files.1));
        match source.iter().zip(&target).position(|(one, other)| one != other) {
            None => Ok(()),
            Some(at) => {
                bail!("byte {at} of the target is {} and is {} there", target[at], source[at])
            }
        }
    }
}

/// A change of a guest, seldom a read or a flush.
fn any_request(rng: &mut Rng, bytes: u64) -> (Operation, Vec<u8>) {
    let extent = any_extent(rng, bytes);
    let count = index(extent.count().0);
    match rng.below(12) {
        0 => (Operation::Read(extent), vec![0; count]),
        1 => (Operation::Flush, Vec::new()),
        2 => (Operation::Discard(extent, Durability::Cached), Vec::new()),
        3 => (Operation::WriteZeroes(extent, ZeroTerms::UNMAP, Durability::Cached), Vec::new()),
        4 => (Operation::WriteZeroes(extent, ZeroTerms::KEEP, Durability::Stable), Vec::new()),
        _ => (Operation::Write(extent, Durability::Cached), any_content(rng, extent.count().0)),
    }
}

fn any_extent(rng: &mut Rng, bytes: u64) -> Extent {
    let sectors = bytes / 512;
    let longest = 1 << rng.below(u64::from(sectors.ilog2()) + 1);
    let count = 1 + rng.below(longest);
    let start = rng.below(sectors - count + 1);
    extent_of(start * 512..(start + count) * 512, bytes)
}
