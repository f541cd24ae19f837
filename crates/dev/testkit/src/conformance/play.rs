//! The pure form of the suite: simulated iothreads on files in memory, a clock that jumps, and power that goes.
//!
//! Where it stands: [`crate::simulation`] carries out what is asked, with real engines; here is decided what that is, and
//! when lanes are drained, closed and opened, what is refused, and when the power goes.
//!
//! Limits: a stack has `REQUESTS_MAX` requests; what is held must be answered after `JUMPS_MAX` jumps of the clock.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use block::{Clock, DurableWriteMethod, FileId, Node, Outcome};

use super::checked::Complaints;
use super::ends::{Reached, SimulatedEnd};
use super::faults::Faulty;
use super::index;
use super::layout::Layout;
use super::stack::{Sizes, Stack, Subject, Which};
use super::workload::{Ended, Habits, Overlap, Request, Tally, Workload};
use crate::rng::Rng;
use crate::simulation::World;
use crate::simulation::disk::Disk;
use crate::simulation::iothread::media;
use crate::simulation::kernel::{Kernel, KernelHabits, KernelMischief};
use crate::simulation::machine::{Machine, Weights};

/// The most requests one stack gets before it is compared as a whole.
const REQUESTS_MAX: u64 = 400;
/// How often the clock may jump in a row without anything going on.
const JUMPS_MAX: u32 = 10_000;

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
    play_with(seed, subjects, which, KernelMischief::None)
}

/// The same with something that goes wrong below.
pub(super) fn play_with(
    seed: u64,
    subjects: &[Arc<dyn Subject>],
    which: Which<'_>,
    mischief: KernelMischief,
) -> Result<Played> {
    let rng = &mut Rng::new(seed);
    let disk = Arc::new(Disk::default());
    let habits = KernelHabits {
        failures: if rng.one_in(8) { 200 } else { 0 },
        sync_failures: if rng.one_in(16) { 20 } else { 0 },
        idle_discards: 2,
        zeroes: !rng.one_in(4),
        mischief,
    };
    let world = World::new(Kernel::new(Arc::clone(&disk), habits), Rng::new(rng.next_u64()));
    let machine = Machine::new(world);
    let end = |reached, sectors_max, block| -> Arc<dyn Subject> {
        let (disk, world) = (Arc::clone(&disk), machine.world.clone());
        Arc::new(SimulatedEnd { disk, world, sectors_max, block, reached })
    };
    let sectors_max = if rng.one_in(32) { 16_384 } else { 1024 };
    let block = [1, 1, 512, 4096][rng.index(4)];
    let mut all = subjects.to_vec();
    all.push(Arc::new(Faulty));
    // Several times: most stacks are to store something.
    all.extend(std::iter::repeat_n(end(Reached::AsFile, sectors_max, block), 2));
    all.push(end(Reached::ByChannel, sectors_max, block));
    let stack = Stack::new(rng, &all, which).with_context(|| format!("seed {seed:#x}"))?;
    let text = format!("seed {seed:#x}, stack {stack}, {habits:?}");
    let played = Player::new(stack, machine, disk, block, rng.clone()).and_then(Player::run);
    played.with_context(|| text)
}

struct Player {
    stack: Stack,
    disk: Arc<Disk>,
    machine: Machine,
    weights: Weights,
    complaints: Arc<Complaints>,
    workload: Workload,
    node: Arc<dyn Node>,
    /// What operations on files are a multiple of.
    block: u32,
    /// The requests that are not over, by number.
    open: BTreeMap<u64, Request>,
    requests: u64,
    rng: Rng,
}

impl Player {
    fn new(
        stack: Stack,
        machine: Machine,
        disk: Arc<Disk>,
        block: u32,
        mut rng: Rng,
    ) -> Result<Self> {
        let complaints = Arc::new(Complaints::default());
        let node = build(&stack, &machine.clock(), &complaints, &disk)?;
        let overlap = if rng.one_in(3) { Overlap::Avoided } else { Overlap::Allowed };
        let habits = Habits { sectors_max: 1 << rng.below(15), overlap, durability: None };
        let mut workload = Workload::new(Layout::new(&stack)?, habits);
        let KernelHabits { failures, sync_failures, .. } = machine.world.lock().kernel.habits;
        if failures + sync_failures > 0 {
            workload.let_storage_fail();
        }
        let weights = Weights::any(&mut rng, 2);
        let (open, requests) = (BTreeMap::new(), 0);
        let mut player = Self {
            stack,
            disk,
            machine,
            weights,
            complaints,
            workload,
            node,
            block,
            open,
            requests,
            rng,
        };
        player.open_lanes()?;
        Ok(player)
    }

    fn run(mut self) -> Result<Played> {
        let requests = 20 + self.rng.below(REQUESTS_MAX - 20);
        while self.requests < requests {
            self.step()?;
            self.judge()?;
        }
        self.workload.end_mischief();
        {
            let habits = &mut self.machine.world.lock().kernel.habits;
            (habits.failures, habits.sync_failures) = (0, 0);
        }
        for side in 0..self.machine.iothreads.len() {
            self.finish(side)?;
        }
        self.check_all().context("reading the whole disk")?;
        self.check_files().context("in the files below")?;
        self.machine.close();
        self.complaints.check()?;
        Ok(Played {
            names: self.stack.names(),
            tally: self.workload.tally,
            held: self.complaints.held(),
            kept: self.complaints.kept(),
        })
    }

    /// Something random.
    fn step(&mut self) -> Result<()> {
        let side = self.rng.index(self.machine.iothreads.len());
        match self.rng.below(10_000) {
            0..20 => self.release(side)?,
            20..35 => self.reopen(side)?,
            35..65 => self.workload.change_refusals(&mut self.rng),
            65..72 => self.lose_power()?,
            // Time passes also when something else could go on; mostly too early for most.
            72..500 => {
                self.machine.jump(&mut self.rng);
            }
            500..600 => self.machine.round(side),
            _ => {
                if let Some(side) = self.machine.step(&self.weights, true)? {
                    self.ask(side);
                }
            }
        }
        Ok(())
    }

    /// Judges the requests that are over.
    fn judge(&mut self) -> Result<()> {
        self.complaints.check()?;
        for crate::simulation::Ended { number, outcome, data } in self.machine.take_ended()? {
            let mut request = self.open.remove(&number).context("a request ends once")?;
            request.data = data;
            self.workload.complete(
                &request,
                match outcome {
                    Outcome::Done => Ended::Well,
                    Outcome::Failed(kind) => Ended::Failed(kind),
                },
            )?;
        }
        Ok(())
    }

    fn open_lanes(&mut self) -> Result<()> {
        let stable =
            [DurableWriteMethod::BySync, DurableWriteMethod::ByThemselves][self.rng.index(2)];
        let media = media(self.stack.files(), self.block, stable);
        for _ in 0..1 + self.rng.below(3) {
            self.machine.open(&self.node, &media)?;
        }
        Ok(())
    }

    fn ask(&mut self, side: usize) {
        let mut batch = Vec::new();
        for _ in 0..1 + self.rng.below(8) {
            let request = match self.rng.below(16) {
                0 => self.workload.next_status(&mut self.rng),
                _ => self.workload.next(&mut self.rng),
            };
            batch.extend(request);
        }
        self.submit(side, batch);
    }

    fn submit(&mut self, side: usize, requests: Vec<Request>) {
        let mut batch = Vec::new();
        for mut request in requests {
            self.requests += 1;
            batch.push((self.requests, request.operation, std::mem::take(&mut request.data)));
            self.open.insert(self.requests, request);
        }
        if !batch.is_empty() {
            self.machine.iothreads[side].submit(batch);
        }
    }

    /// Drains a lane, as a stop does: what it holds must come without a jump of the clock.
    fn release(&mut self, side: usize) -> Result<()> {
        let now = self.machine.clock.now();
        self.machine.iothreads[side].release(now);
        self.machine.settle_now(&self.weights);
        self.judge()?;
        let is_excused = self.stack.waits_for_copies() || self.machine.has_lost_connections();
        if is_excused {
            // They may wait for what others change, or for a connection.
            return self.finish(side);
        }
        let held = self.machine.iothreads[side].open_requests();
        ensure!(held == 0, "{held} requests are held after a release");
        Ok(())
    }

    /// Waits for all requests of a lane.
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
            ensure!(jumped && jumps < JUMPS_MAX, "{left} requests are not answered");
        }
    }

    fn reopen(&mut self, side: usize) -> Result<()> {
        self.release(side)?;
        self.finish(side)?;
        self.machine.iothreads[side].close_lane();
        self.machine.iothreads[side].open_lane(&self.node)
    }

    fn lose_power(&mut self) -> Result<()> {
        self.complaints.abandon(true);
        self.machine.kill("the power goes");
        self.complaints.abandon(false);
        self.open.clear();
        self.workload.lose_power();
        self.disk.lose_power(&mut self.rng);
        let clock = self.machine.clock();
        self.node = build(&self.stack, &clock, &self.complaints, &self.disk)?;
        self.open_lanes()
    }

    fn check_all(&mut self) -> Result<()> {
        let all = self.workload.layout().ends.len();
        let step = 1 + self.rng.index(all);
        for start in (0..all).step_by(step) {
            let sectors: Range<usize> = start..(start + step).min(all);
            let request = self.workload.read(&sectors);
            self.submit(0, vec![request]);
            self.finish(0)?;
        }
        Ok(())
    }

    fn check_files(&mut self) -> Result<()> {
        for file in 0..self.stack.files() {
            let id = FileId(u32::try_from(file).context("the number of a file")?);
            let mut bytes = vec![0; index(self.disk.bytes(id))];
            // Not every end has a file.
            if !bytes.is_empty() {
                self.disk.read(id, 0, &mut bytes);
                self.workload.check_file(file, &bytes)?;
            }
        }
        Ok(())
    }
}

fn build(
    stack: &Stack,
    clock: &Arc<dyn Clock>,
    complaints: &Arc<Complaints>,
    disk: &Arc<Disk>,
) -> Result<Arc<dyn Node>> {
    let disk = Arc::clone(disk);
    let sizes: Sizes = Arc::new(move |file| Some(disk.bytes(file)));
    stack.build(clock, complaints, &sizes)
}
