//! A seeded random workload that checks every byte against a plain `Vec<u8>`.
//!
//! Where it stands: `DiskModel` says what a disk may hold, `run` keeps all queues of a `Client` busy and compares each
//! read at its completion; afterwards the caller compares the whole disk, by way of the client and on the host.
//!
//! Invariants: requests in flight never overlap such that the result is undefined: a write, discard or write-zeroes is
//! alone on its range, reads may share one. So what a read must find is known when it completes.
//! Limits: the number of operations bounds the run; each request may take `client::REQUEST_LIMIT`.

use std::ops::Range;

use anyhow::{Context, Result, ensure};
use virtio_driver::VirtioBlkFeatureFlags;

use crate::client::{Client, Completion, REQUEST_LIMIT, Request, Segment, Status, Unmap};
use crate::deadline::Deadline;
use crate::image::SECTOR_BYTES;
use crate::rng::Rng;

mod buffers;
mod disk;

pub use disk::DiskModel;

use buffers::{SLOT_BYTES, Spread};

/// The longest request.
pub const REQUEST_BYTES_MAX: usize = 1 << 20;
/// How many recent writes are remembered, to be read again while they are fresh.
const RECENT_MAX: usize = 64;
/// How often a free range is looked for before the run waits for completions instead.
const RANGE_TRIES_MAX: usize = 8;

/// What a run does.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Everything random comes from here.
    pub seed: u64,
    /// How many requests.
    pub operations: u64,
    /// How many of them are in flight per queue.
    pub depth: usize,
    /// Offsets and lengths are multiples of this.
    pub block_bytes: usize,
}

impl Plan {
    /// The bytes of shared memory that a client needs for this plan.
    pub fn memory_bytes(&self, queues: usize) -> usize {
        queues * self.depth * SLOT_BYTES
    }
}

/// What a run did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Reads, all compared.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
    /// Flushes.
    pub flushes: u64,
    /// Discards.
    pub discards: u64,
    /// Write-zeroes requests.
    pub write_zeroes: u64,
    /// All requests by queue.
    pub by_queue: Vec<u64>,
}

/// Runs the plan; any deviation is an error that names the seed.
pub fn run(client: &mut Client, model: &mut DiskModel, plan: &Plan) -> Result<Summary> {
    let mut run = Run::new(client, model, plan)?;
    let result = run.work();
    let done = run.summary.by_queue.iter().sum::<u64>();
    result.with_context(|| format!("seed {:#x}, after {done} requests", plan.seed))?;
    Ok(run.summary)
}

/// Reads the whole disk through the client and compares it with the model.
pub fn verify_through(client: &mut Client, model: &DiskModel) -> Result<()> {
    let step = REQUEST_BYTES_MAX.min(client.memory().length());
    for offset in (0..model.length()).step_by(step) {
        let length = step.min(model.length() - offset);
        let found = client.read(disk_offset(offset), length, 0)?;
        model.check(offset, &found).context("reading the whole disk")?;
    }
    Ok(())
}

/// A request in flight.
#[derive(Debug)]
struct InFlight {
    action: Action,
    range: Range<usize>,
    spread: Spread,
}

#[derive(Debug)]
enum Action {
    Read,
    Write(Vec<u8>),
    Flush,
    Discard,
    WriteZeroes(Unmap),
}

struct Run<'a> {
    client: &'a mut Client,
    model: &'a mut DiskModel,
    plan: &'a Plan,
    rng: Rng,
    /// One entry per slot of the memory; the token of a request is its index.
    slots: Vec<Option<InFlight>>,
    recent: Vec<Range<usize>>,
    has_discard: bool,
    has_write_zeroes: bool,
    serial: u64,
    summary: Summary,
}

impl<'a> Run<'a> {
    fn new(client: &'a mut Client, model: &'a mut DiskModel, plan: &'a Plan) -> Result<Self> {
        let queues = client.queue_count();
        let needed = plan.memory_bytes(queues);
        ensure!(client.memory().length() >= needed, "the client's memory is below {needed} bytes");
        let has_discard = client.has_feature(VirtioBlkFeatureFlags::DISCARD);
        let has_write_zeroes = client.has_feature(VirtioBlkFeatureFlags::WRITE_ZEROES);
        let slots = (0..queues * plan.depth).map(|_| None).collect();
        let summary = Summary { by_queue: vec![0; queues], ..Summary::default() };
        let rng = Rng::new(plan.seed);
        let recent = Vec::new();
        let serial = 0;
        Ok(Self {
            client,
            model,
            plan,
            rng,
            slots,
            recent,
            has_discard,
            has_write_zeroes,
            serial,
            summary,
        })
    }

    fn work(&mut self) -> Result<()> {
        let mut left = self.plan.operations;
        while left > 0 || self.slots.iter().any(Option::is_some) {
            for queue in 0..self.client.queue_count() {
                while left > 0 && self.submit_one(queue)? {
                    left -= 1;
                }
                self.client.kick(queue)?;
            }
            for (queue, completion) in self.client.wait_any(Deadline::after(REQUEST_LIMIT))? {
                self.complete(queue, completion)?;
            }
        }
        Ok(())
    }

    /// Puts one more request into the queue, if it has a free slot and a free range is found.
    fn submit_one(&mut self, queue: usize) -> Result<bool> {
        let first = queue * self.plan.depth;
        let Some(slot) = (first..first + self.plan.depth).find(|slot| self.slots[*slot].is_none())
        else {
            return Ok(false);
        };
        let action = self.choose_action();
        let range = match action {
            Action::Flush => 0..0,
            Action::Read | Action::Write(_) | Action::Discard | Action::WriteZeroes(_) => {
                match self.choose_range(&action) {
                    Some(range) => range,
                    None => return Ok(false),
                }
            }
        };
        let spread = Spread::choose(&mut self.rng, slot * SLOT_BYTES, range.len());
        let entry = self.prepare(InFlight { action, range, spread });
        let token = u64::try_from(slot).expect("a slot index is small");
        self.client.submit(queue, &request(&entry), token)?;
        self.slots[slot] = Some(entry);
        Ok(true)
    }

    fn choose_action(&mut self) -> Action {
        match self.rng.below(100) {
            80..87 if self.has_discard => Action::Discard,
            87..91 if self.has_write_zeroes => Action::WriteZeroes(Unmap::Allowed),
            91..95 if self.has_write_zeroes => Action::WriteZeroes(Unmap::Forbidden),
            95.. => Action::Flush,
            40..80 => Action::Write(Vec::new()),
            _ => Action::Read,
        }
    }

    /// A range whose use by this action is defined, if one is found in a few tries.
    fn choose_range(&mut self, action: &Action) -> Option<Range<usize>> {
        let reads = matches!(action, Action::Read);
        for _ in 0..RANGE_TRIES_MAX {
            let range = self.any_range(action);
            let clash = self.slots.iter().flatten().any(|other| {
                let both_read = reads && matches!(other.action, Action::Read);
                !both_read && other.range.start < range.end && range.start < other.range.end
            });
            if !clash {
                return Some(range);
            }
        }
        None
    }

    fn any_range(&mut self, action: &Action) -> Range<usize> {
        if matches!(action, Action::Read) && !self.recent.is_empty() && self.rng.one_in(3) {
            return self.recent[self.rng.index(self.recent.len())].clone();
        }
        let block = self.plan.block_bytes;
        // Lengths spread evenly over the powers of two, with both ends of the scale well visited.
        let bits = (REQUEST_BYTES_MAX / block).ilog2() + 1;
        let ceiling = 1_usize << self.rng.below(u64::from(bits));
        let blocks = 1 + self.rng.index(ceiling);
        let length = (blocks * block).min(self.model.length());
        let room = (self.model.length() - length) / block;
        let start = self.rng.index(room + 1) * block;
        start..start + length
    }

    /// Puts the data of a write, or the canary of a read, into the slot.
    fn prepare(&mut self, mut entry: InFlight) -> InFlight {
        match &mut entry.action {
            Action::Write(bytes) => {
                *bytes = vec![0; entry.range.len()];
                self.rng.fill(&mut bytes[..SECTOR_BYTES]);
                let (first, rest) = bytes.split_at_mut(SECTOR_BYTES);
                for sector in rest.chunks_mut(SECTOR_BYTES) {
                    // The same random bytes, told apart by a number no other sector ever had.
                    sector.copy_from_slice(&first[..sector.len()]);
                    self.serial += 1;
                    sector[..8].copy_from_slice(&self.serial.to_le_bytes());
                }
                entry.spread.store(self.client.memory(), bytes);
            }
            Action::Read => entry.spread.lay_canary(self.client.memory()),
            Action::Flush | Action::Discard | Action::WriteZeroes(_) => {}
        }
        entry
    }

    /// Takes a request back: checks a read, changes the model for the others.
    fn complete(&mut self, queue: usize, completion: Completion) -> Result<()> {
        let slot = usize::try_from(completion.token).expect("the token is a slot index");
        ensure!(slot / self.plan.depth == queue, "slot {slot} came back in queue {queue}");
        let entry = self.slots[slot].take().context("a request came back twice")?;
        let range = entry.range.clone();
        ensure!(
            completion.status == Status::Ok,
            "queue {queue}: {:?} ended with {:?}",
            request(&entry),
            completion.status
        );
        let count = match entry.action {
            Action::Read => {
                let found = entry.spread.load(self.client.memory())?;
                let context = || format!("queue {queue}: read of {range:?}");
                self.model.check(range.start, &found).with_context(context)?;
                &mut self.summary.reads
            }
            Action::Write(bytes) => {
                self.model.write(range.start, &bytes);
                self.remember(range);
                &mut self.summary.writes
            }
            Action::WriteZeroes(_) => {
                self.model.zero(range.clone());
                self.remember(range);
                &mut self.summary.write_zeroes
            }
            Action::Discard => {
                self.model.discard(range);
                &mut self.summary.discards
            }
            Action::Flush => &mut self.summary.flushes,
        };
        *count += 1;
        self.summary.by_queue[queue] += 1;
        Ok(())
    }

    fn remember(&mut self, range: Range<usize>) {
        if self.recent.len() < RECENT_MAX {
            self.recent.push(range);
        } else {
            let place = self.rng.index(RECENT_MAX);
            self.recent[place] = range;
        }
    }
}

fn request(entry: &InFlight) -> Request {
    let offset = disk_offset(entry.range.start);
    let length = disk_offset(entry.range.len());
    let segments = || -> Vec<Segment> { entry.spread.segments().to_vec() };
    match &entry.action {
        Action::Read => Request::Read { offset, segments: segments() },
        Action::Write(_) => Request::Write { offset, segments: segments() },
        Action::Flush => Request::Flush,
        Action::Discard => Request::Discard { offset, length },
        Action::WriteZeroes(unmap) => Request::WriteZeroes { offset, length, unmap: *unmap },
    }
}

fn disk_offset(bytes: usize) -> u64 {
    u64::try_from(bytes).expect("a usize fits 64 bits")
}
