//! The operations that are under way: begun, applied piece by piece in any order, and told.
//!
//! Where it stands: between simulated iothreads and the disk. The player decides which operation goes on.
//!
//! Invariants: an operation that is told was applied as a whole, unless mischief says otherwise. When the process dies,
//! each of the others is applied, in part too, or not.

use std::ops::Range;
use std::sync::Arc;

use block::{Buffers, ByteOffset, FileId, IoFailure, Tag};
use kernel_io::Event;
use rustix::io::Errno;

use super::Mischief;
use super::disk::{Disk, OpId, SyncStart};
use super::log::{Actor, Log};
use crate::conformance::index;
use crate::rng::Rng;

/// To whom the end is told.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Addressee {
    pub(crate) thread: usize,
    pub(crate) tag: Tag,
}

impl Addressee {
    fn actor(&self) -> Actor {
        // What lanes know a request by.
        Actor { thread: self.thread, job: self.tag.0 & u64::from(u32::MAX) }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Read,
    Write,
    Zero,
    Sync(SyncStart),
}

/// An operation of the kernel.
#[derive(Debug)]
pub(crate) struct KernelOp {
    id: OpId,
    to: Addressee,
    what: What,
    file: FileId,
    bytes: Range<u64>,
    /// What is written, or was read.
    memory: Vec<u8>,
    /// Where a read leaves it.
    into: Buffers,
    /// What was not applied yet.
    left: Vec<Range<u64>>,
    result: Result<(), Errno>,
    /// It goes on only when it is woken, or nothing else can.
    is_asleep: bool,
    /// Its end was told already.
    is_told: bool,
}

impl KernelOp {
    /// Whether all of it was applied.
    pub(crate) fn is_applied(&self) -> bool {
        self.left.is_empty() || self.result.is_err()
    }

    /// What its engine is told.
    pub(crate) fn into_event(mut self) -> (Addressee, Event) {
        if self.result.is_ok() {
            self.into.copy_from(0, &self.memory);
        }
        let offset = ByteOffset(self.bytes.start);
        let result = self.result.map_err(|errno| IoFailure::Errno { offset, errno });
        (self.to, Event::Finished { tag: self.to.tag, result, bounce: None })
    }
}

/// What is to be done with a run of bytes of a file.
#[derive(Debug)]
pub(crate) enum Order {
    Read(Buffers),
    Write(Vec<u8>),
    Zero,
    Sync,
}

/// All operations that are under way.
#[derive(Debug)]
pub(crate) struct Kernel {
    pub(crate) disk: Arc<Disk>,
    mischief: Mischief,
    /// One of so many operations falls asleep; none if zero.
    sleepers: u64,
    /// One of so many operations fails, somewhere on its way; none if zero. Syncs never do: whoever lost data keeps
    /// failing, which is not what is looked at here.
    failures: u64,
    ops: Vec<KernelOp>,
}

impl Kernel {
    pub(crate) fn new(disk: Arc<Disk>, mischief: Mischief, failures: u64) -> Self {
        Self { disk, mischief, sleepers: 8, failures, ops: Vec::new() }
    }

    pub(crate) fn change_habits(&mut self, rng: &mut Rng) {
        self.sleepers = [0, 3, 10, 40][rng.index(4)];
    }

    /// Begins an operation; whether its end is told already.
    pub(crate) fn begin(
        &mut self,
        to: Addressee,
        order: Order,
        file: FileId,
        bytes: Range<u64>,
        log: &mut Log,
        rng: &mut Rng,
    ) -> bool {
        let (what, name, memory, into) = match order {
            Order::Read(into) => (What::Read, "begins to read", vec![0; into.count()], into),
            Order::Write(memory) => (What::Write, "begins to write", memory, Buffers::default()),
            Order::Zero => (What::Zero, "begins to zero", Vec::new(), Buffers::default()),
            Order::Sync => {
                let what = What::Sync(self.disk.begin_sync());
                (what, "begins to sync", Vec::new(), Buffers::default())
            }
        };
        log.host(to.actor(), name, file, bytes.clone());
        let is_told = match what {
            What::Zero => self.mischief == Mischief::LateZeroing,
            What::Sync(_) if self.mischief == Mischief::LyingSyncs => return true,
            What::Read | What::Write | What::Sync(_) => false,
        };
        let left = match what {
            What::Sync(_) => std::iter::once(0..0).collect(),
            What::Read | What::Write | What::Zero => cut(&bytes, rng),
        };
        let is_asleep = is_told || (self.sleepers > 0 && rng.one_in(self.sleepers));
        let (id, result) = (self.disk.begin(), Ok(()));
        self.ops.push(KernelOp {
            id,
            to,
            what,
            file,
            bytes,
            memory,
            into,
            left,
            result,
            is_asleep,
            is_told,
        });
        is_told
    }

    /// How many operations are under way.
    pub(crate) fn len(&self) -> usize {
        self.ops.len()
    }

    /// Those that may be applied, or told.
    pub(crate) fn ready(&self, applied: bool, into: &mut Vec<usize>) {
        into.clear();
        let ready = |(_, op): &(usize, &KernelOp)| op.is_applied() == applied && !op.is_asleep;
        into.extend(self.ops.iter().enumerate().filter(ready).map(|(place, _)| place));
    }

    /// Wakes a sleeper; whether there is one.
    pub(crate) fn wake_one(&mut self, rng: &mut Rng) -> bool {
        let asleep = |(place, op): (usize, &KernelOp)| op.is_asleep.then_some(place);
        let asleep: Vec<usize> = self.ops.iter().enumerate().filter_map(asleep).collect();
        if asleep.is_empty() {
            return false;
        }
        self.ops[asleep[rng.index(asleep.len())]].is_asleep = false;
        true
    }

    /// Applies a part of an operation.
    pub(crate) fn apply(&mut self, place: usize, log: &mut Log, rng: &mut Rng) {
        let op = &mut self.ops[place];
        let run = op.left.swap_remove(rng.index(op.left.len()));
        let name = match op.what {
            What::Read => "kernel reads",
            What::Write => "kernel writes",
            What::Zero => "kernel zeroes",
            What::Sync(_) => "kernel has synced",
        };
        log.host(op.to.actor(), name, op.file, run.clone());
        let may_fail = self.failures > 0 && !matches!(op.what, What::Sync(_));
        if may_fail && rng.one_in(self.failures) {
            let is_full = op.what == What::Write && rng.one_in(2);
            // What was done before it failed stays.
            let part: Vec<_> = sectors(&run).filter(|_| rng.one_in(2)).collect();
            if op.what != What::Read && rng.one_in(2) {
                part.iter().for_each(|sector| apply_run(&self.disk, op, sector));
            }
            op.result = Err(if is_full { Errno::NOSPC } else { Errno::IO });
        } else {
            apply_run(&self.disk, op, &run);
        }
        if op.is_applied() && op.is_told {
            self.disk.delivered(op.id);
            self.ops.swap_remove(place);
        }
    }

    /// Takes an operation whose end is told now.
    pub(crate) fn deliver(&mut self, place: usize, log: &mut Log) -> KernelOp {
        let op = self.ops.swap_remove(place);
        self.disk.delivered(op.id);
        let name = if op.result.is_ok() { "is told of" } else { "is told of the failure of" };
        log.host(op.to.actor(), name, op.file, op.bytes.clone());
        op
    }

    /// The process dies: each operation is carried out, or in part, or not at all. Returns them as failed.
    pub(crate) fn die(&mut self, log: &mut Log, rng: &mut Rng) -> Vec<KernelOp> {
        for op in &mut self.ops {
            let luck = rng.below(3);
            for run in std::mem::take(&mut op.left) {
                for sector in sectors(&run) {
                    let is_changed = luck == 0 || (luck == 1 && rng.one_in(2));
                    if is_changed && matches!(op.what, What::Write | What::Zero) {
                        log.host(op.to.actor(), "kernel still changes", op.file, sector.clone());
                        apply_run(&self.disk, op, &sector);
                    }
                }
            }
            op.result = Err(Errno::IO);
        }
        self.ops.drain(..).filter(|op| !op.is_told).collect()
    }
}

fn apply_run(disk: &Disk, op: &mut KernelOp, run: &Range<u64>) {
    let skip = index(run.start - op.bytes.start);
    let count = index(run.end - run.start);
    match op.what {
        What::Read => {
            let into = &mut op.memory[skip..skip + count];
            disk.read(op.file, run.start, into);
        }
        What::Write => disk.write(op.file, run.start, &op.memory[skip..skip + count], op.id),
        What::Zero => disk.zero(op.file, run.clone(), op.id),
        What::Sync(began) => disk.end_sync(op.file, began),
    }
}

/// Mostly whole, sometimes in parts that end with sectors.
fn cut(bytes: &Range<u64>, rng: &mut Rng) -> Vec<Range<u64>> {
    let (first, last) = (bytes.start / 512, bytes.end.div_ceil(512));
    if last - first < 2 || !rng.one_in(4) {
        return vec![bytes.clone()];
    }
    let mut ends: Vec<u64> =
        (0..1 + rng.below(3)).map(|_| (first + 1 + rng.below(last - first - 1)) * 512).collect();
    ends.push(bytes.end);
    ends.sort_unstable();
    ends.dedup();
    let mut start = bytes.start;
    let parts = ends.into_iter().map(|end| std::mem::replace(&mut start, end)..end);
    parts.collect()
}

fn sectors(run: &Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let (start, end) = (run.start, run.end);
    (start / 512..end.div_ceil(512))
        .map(move |sector| (sector * 512).max(start)..(sector * 512 + 512).min(end))
}
