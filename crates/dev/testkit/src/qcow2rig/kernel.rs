//! The operations that are under way: begun, applied piece by piece in any order, and told.
//!
//! Where it stands: between simulated iothreads and the disk. The player decides which operation goes on.
//!
//! Invariants: an operation that is told was applied as a whole, unless mischief says otherwise. When the process dies,
//! each of the others is applied, in part too, or not.

use std::ops::Range;
use std::sync::Arc;

use block::{Durability, FailKind, FileId, Operation};

use super::Mischief;
use super::disk::{Disk, OpId, SyncStart};
use super::log::{Actor, Log};
use crate::conformance::{index, number};
use crate::rng::Rng;

/// Whose operation it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asker {
    /// Of a request.
    Guest,
    /// Of a lane itself.
    Lane,
}

/// To whom the end is told.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Addressee {
    pub(crate) thread: usize,
    /// The slot of the job.
    pub(crate) slot: usize,
    /// Counts jobs.
    pub(crate) job: u64,
    pub(crate) asker: Asker,
}

impl Addressee {
    pub(crate) fn actor(&self) -> Actor {
        Actor { thread: self.thread, job: self.job }
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
    pub(crate) to: Addressee,
    what: What,
    file: FileId,
    bytes: Range<u64>,
    /// Where the bytes are in the memory of the job.
    pub(crate) skip: usize,
    /// What is written, or was read.
    pub(crate) memory: Vec<u8>,
    /// What was not applied yet.
    left: Vec<Range<u64>>,
    result: Result<(), FailKind>,
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

    pub(crate) fn is_read(&self) -> bool {
        self.what == What::Read
    }

    pub(crate) fn result(&self) -> Result<(), FailKind> {
        self.result
    }
}

/// What is to be done with a run of bytes of a file.
#[derive(Debug)]
pub(crate) struct Order {
    pub(crate) operation: Operation,
    pub(crate) file: FileId,
    pub(crate) bytes: Range<u64>,
    pub(crate) skip: usize,
    pub(crate) memory: Vec<u8>,
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

    /// Begins an operation; whether its end will be told.
    pub(crate) fn begin(
        &mut self,
        to: Addressee,
        order: Order,
        log: &mut Log,
        rng: &mut Rng,
    ) -> bool {
        let Order { operation, file, bytes, skip, memory } = order;
        let (what, name) = match operation {
            Operation::Read(_) => (What::Read, "begins to read"),
            Operation::Write(..) => (What::Write, "begins to write"),
            Operation::Discard(..) => (What::Zero, "begins to discard"),
            Operation::WriteZeroes(..) => (What::Zero, "begins to zero"),
            Operation::Flush => panic!("syncs are begun by name"),
            Operation::Status(_) => panic!("the rig asks for no status"),
        };
        let guest = match to.asker {
            Asker::Guest => {
                let start = bytes_of(&operation).start + number(skip);
                start..start + bytes.end - bytes.start
            }
            Asker::Lane => 0..0,
        };
        log.both(to.actor(), name, guest, file, bytes.clone());
        let left = cut(&bytes, rng);
        let is_lie = match what {
            What::Write => to.asker == Asker::Lane && self.mischief == Mischief::UnwrittenMetadata,
            What::Zero => self.mischief == Mischief::LateZeroing,
            What::Read | What::Sync(_) => false,
        };
        self.add(to, what, file, bytes, skip, memory, left, is_lie, rng)
    }

    /// Begins to make a file durable; whether its end will be told.
    pub(crate) fn sync(
        &mut self,
        to: Addressee,
        file: FileId,
        log: &mut Log,
        rng: &mut Rng,
    ) -> bool {
        log.host(to.actor(), "begins to sync", file, 0..0);
        let what = What::Sync(self.disk.begin_sync());
        let is_lie = self.mischief == Mischief::LyingSyncs
            || (self.mischief == Mischief::LyingLaneSyncs && to.asker == Asker::Lane);
        let left = std::iter::once(0..0).collect();
        self.add(to, what, file, 0..0, 0, Vec::new(), left, is_lie, rng)
    }

    #[expect(clippy::too_many_arguments, reason = "the fields of an operation")]
    fn add(
        &mut self,
        to: Addressee,
        what: What,
        file: FileId,
        bytes: Range<u64>,
        skip: usize,
        memory: Vec<u8>,
        left: Vec<Range<u64>>,
        is_lie: bool,
        rng: &mut Rng,
    ) -> bool {
        if is_lie && matches!(what, What::Sync(_)) {
            return false;
        }
        let is_asleep = is_lie || (self.sleepers > 0 && rng.one_in(self.sleepers));
        let (id, result) = (self.disk.begin(), Ok(()));
        let is_told = is_lie;
        self.ops.push(KernelOp {
            id,
            to,
            what,
            file,
            bytes,
            skip,
            memory,
            left,
            result,
            is_asleep,
            is_told,
        });
        !is_lie
    }

    /// Whether a lane waits for a sync of its own: what it has written in some order is not durable yet.
    pub(crate) fn syncs_for_lane(&self) -> bool {
        let is_one = |op: &KernelOp| {
            op.to.asker == Asker::Lane && matches!(op.what, What::Sync(_)) && !op.is_applied()
        };
        self.ops.iter().any(is_one)
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
            op.result = Err(if is_full { FailKind::NoSpace } else { FailKind::Io });
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

    /// The process dies: each operation is carried out, or in part, or not at all.
    pub(crate) fn die(&mut self, log: &mut Log, rng: &mut Rng) {
        for mut op in self.ops.drain(..) {
            let luck = rng.below(3);
            for run in std::mem::take(&mut op.left) {
                for sector in sectors(&run) {
                    let is_changed = luck == 0 || (luck == 1 && rng.one_in(2));
                    if is_changed && matches!(op.what, What::Write | What::Zero) {
                        log.host(op.to.actor(), "kernel still changes", op.file, sector.clone());
                        apply_run(&self.disk, &mut op, &sector);
                    }
                }
            }
        }
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

/// Whether the bytes have to be synced before a job is over.
pub(crate) fn must_sync(operation: Operation) -> bool {
    operation == Operation::Flush || operation.durability() == Durability::Stable
}

/// The bytes of a piece in its job's memory.
pub(crate) fn in_memory(skip: u64, count: u64) -> Range<usize> {
    index(skip)..index(skip + count)
}

/// The bytes that an operation is about.
pub(crate) fn bytes_of(operation: &Operation) -> Range<u64> {
    operation.extent().map_or(0..0, block::Extent::bytes)
}

/// The length of a job's memory.
pub(crate) fn memory_of(operation: &Operation, memory: usize) -> u64 {
    match operation {
        Operation::Read(_) | Operation::Write(..) => number(memory),
        Operation::Status(_) => panic!("the rig asks for no status"),
        Operation::Discard(..) | Operation::WriteZeroes(..) | Operation::Flush => {
            let bytes = bytes_of(operation);
            bytes.end - bytes.start
        }
    }
}
