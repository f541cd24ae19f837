//! The operations that are under way: begun, applied piece by piece in any order, and told.
//!
//! Where it stands: between simulated iothreads, with their engines and channels, and the disk. The machine decides which
//! operation goes on.
//!
//! Invariants: an operation that is told was applied as a whole, unless mischief says otherwise. When the process dies,
//! each of the others is applied, in part too, or not.

use std::ops::Range;
use std::sync::Arc;

use block::{
    BlockStatus, Buffers, ByteCount, ByteOffset, Durability, FileId, IoFailure, StatusRecord,
    StatusRuns, Tag,
};
use kernel_io::{BounceBuffer, Event, FileExtent};
use rustix::io::Errno;

use super::disk::{Disk, OpId, SECTOR, SyncStart, sectors};
use super::log::{Actor, Log};
use crate::conformance::{index, number};
use crate::rng::Rng;

/// What goes wrong on purpose in the kernel and in channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KernelMischief {
    None,
    /// Discards and zeroings are told to be over, and are carried out later.
    LateZeroing,
    /// No sync does anything.
    LyingSyncs,
    /// What was under way when a connection was lost is told to be over.
    ForgetfulChannels,
    /// Channels tell that their bytes are holes.
    HolesToldByChannels,
}

/// How the kernel behaves towards the files of a game.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KernelHabits {
    pub(crate) mischief: KernelMischief,
    /// One of so many operations fails, somewhere on its way; none if zero.
    pub(crate) failures: u64,
    /// One of so many syncs fails; none if zero.
    pub(crate) sync_failures: u64,
    /// One of so many discards does nothing; none if zero.
    pub(crate) idle_discards: u64,
    /// Whether ranges can be zeroed without writing.
    pub(crate) zeroes: bool,
}

impl KernelHabits {
    pub(crate) const PLAIN: Self = Self {
        mischief: KernelMischief::None,
        failures: 0,
        sync_failures: 0,
        idle_discards: 0,
        zeroes: true,
    };
}

/// To whom the end is told.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Addressee {
    pub(crate) thread: usize,
    /// The channel, unless it is the engine.
    pub(crate) port: Option<usize>,
    pub(crate) tag: Tag,
}

impl Addressee {
    fn actor(&self) -> Actor {
        // What lanes know a request by.
        Actor { thread: self.thread, job: self.tag.0 & u64::from(u32::MAX) }
    }
}

/// What is to be done with a run of bytes of a file.
#[derive(Debug)]
pub(crate) enum Order {
    Read(Buffers),
    Write(Vec<u8>, Durability),
    Discard,
    Zero,
    Sync,
    /// What the file has at the beginning of the run.
    FindExtent,
    /// What the bytes are, as records.
    Status(Buffers),
}

/// The end of an operation, for whoever has begun it.
#[derive(Debug)]
pub(crate) struct Told {
    pub(crate) to: Addressee,
    pub(crate) event: Event,
    pub(crate) is_failed_sync: bool,
}

impl Told {
    /// What a channel hears.
    pub(super) fn finished(self) -> (Tag, Result<(), IoFailure>) {
        let Event::Finished { tag, result, .. } = self.event else {
            panic!("a channel is told of {:?}", self.event)
        };
        (tag, result)
    }
}

/// An operation of the kernel.
#[derive(Debug)]
pub(crate) struct KernelOp {
    id: OpId,
    to: Addressee,
    order: Order,
    began: SyncStart,
    file: FileId,
    bytes: Range<u64>,
    /// What was read.
    memory: Vec<u8>,
    /// Where the file ended when it was read.
    end: u64,
    extent: Option<FileExtent>,
    /// What was not applied yet.
    left: Vec<Range<u64>>,
    result: Result<(), Errno>,
    /// It goes on only when it is woken, or nothing else can.
    is_asleep: bool,
    /// Its end was told already.
    is_told: bool,
    bounce: Option<BounceBuffer>,
}

impl KernelOp {
    /// Whether all of it was applied.
    fn is_applied(&self) -> bool {
        self.left.is_empty() || self.result.is_err()
    }

    fn is_change(&self) -> bool {
        matches!(self.order, Order::Write(..) | Order::Discard | Order::Zero)
    }

    fn name(&self) -> &'static str {
        match self.order {
            Order::Read(_) => "read",
            Order::Write(..) => "write",
            Order::Discard => "discard",
            Order::Zero => "zeroing",
            Order::Sync => "sync",
            Order::FindExtent | Order::Status(_) => "status",
        }
    }

    /// What whoever has begun it is told.
    fn into_told(mut self) -> Told {
        let (to, tag, start) = (self.to, self.to.tag, self.bytes.start);
        if let (Some(found), Ok(())) = (self.extent, self.result) {
            return Told { to, event: Event::Extent { tag, found }, is_failed_sync: false };
        }
        if let (Order::FindExtent, Err(_)) = (&self.order, self.result) {
            let found = FileExtent { count: ByteCount(self.bytes.end - start), is_hole: false };
            return Told { to, event: Event::Extent { tag, found }, is_failed_sync: false };
        }
        let failed = |errno| IoFailure::Errno { offset: ByteOffset(start), errno };
        let mut result = self.result.map_err(failed);
        if let (Order::Read(into) | Order::Status(into), Ok(())) = (&mut self.order, self.result) {
            let there = index(self.end.clamp(start, self.bytes.end) - start);
            let is_short = there < index(self.bytes.end - start);
            into.copy_from(0, if is_short { &self.memory[..there] } else { &self.memory });
            if is_short {
                result = Err(IoFailure::EndOfFile { offset: ByteOffset(start + number(there)) });
            }
        }
        let is_failed_sync = matches!(self.order, Order::Sync) && result.is_err();
        let event = Event::Finished { tag, result, bounce: self.bounce };
        Told { to, event, is_failed_sync }
    }
}

/// All operations that are under way.
#[derive(Debug)]
pub(crate) struct Kernel {
    pub(crate) disk: Arc<Disk>,
    pub(crate) habits: KernelHabits,
    /// One of so many operations falls asleep; none if zero.
    sleepers: u64,
    /// Writes of these bytes fall asleep for long.
    late: Vec<(FileId, Range<u64>)>,
    ops: Vec<KernelOp>,
    /// Channels without a connection: their operations wait.
    down: Vec<usize>,
}

impl Kernel {
    pub(crate) fn new(disk: Arc<Disk>, habits: KernelHabits) -> Self {
        Self { disk, habits, sleepers: 8, late: Vec::new(), ops: Vec::new(), down: Vec::new() }
    }

    pub(crate) fn change_habits(&mut self, rng: &mut Rng) {
        self.sleepers = [0, 3, 10, 40][rng.index(4)];
    }

    /// The next write of these bytes is late.
    pub(crate) fn delay(&mut self, file: FileId, bytes: Range<u64>) {
        self.late.push((file, bytes));
    }

    /// Begins an operation; whether its end is told already.
    pub(crate) fn begin(
        &mut self,
        to: Addressee,
        (order, bounce): (Order, Option<BounceBuffer>),
        (file, bytes): (FileId, Range<u64>),
        log: &mut Log,
        rng: &mut Rng,
    ) -> Option<Told> {
        let is_late = matches!(order, Order::Write(..)).then(|| {
            let late = self.late.iter().position(|it| *it == (file, bytes.clone()));
            late.map(|place| self.late.swap_remove(place))
        });
        let is_zeroing = matches!(order, Order::Zero | Order::Discard);
        let is_told = is_zeroing && self.habits.mischief == KernelMischief::LateZeroing;
        let is_late = is_told || is_late.flatten().is_some();
        let memory = match &order {
            Order::Read(into) => vec![0; into.count()],
            Order::Write(..)
            | Order::Discard
            | Order::Zero
            | Order::Sync
            | Order::FindExtent
            | Order::Status(_) => Vec::new(),
        };
        let mut op = KernelOp {
            id: self.disk.begin(),
            to,
            order,
            began: self.disk.begin_sync(),
            file,
            left: Vec::new(),
            bytes,
            memory,
            end: u64::MAX,
            extent: None,
            result: Ok(()),
            is_asleep: is_late || self.sleepers > 0 && rng.one_in(self.sleepers),
            is_told,
            bounce,
        };
        log.host(to.actor(), "begins a", op.name(), file, op.bytes.clone());
        if is_zeroing && !self.habits.zeroes {
            op.result = Err(Errno::OPNOTSUPP);
        }
        let lies = self.habits.mischief == KernelMischief::LyingSyncs;
        if matches!(op.order, Order::Sync) && lies {
            return Some(op.into_told());
        }
        op.left = cut(&op, rng);
        let told = is_told.then(|| Told {
            to,
            event: Event::Finished { tag: to.tag, result: Ok(()), bounce: None },
            is_failed_sync: false,
        });
        self.ops.push(op);
        told
    }

    /// How many operations are under way.
    pub(crate) fn len(&self) -> usize {
        self.ops.len()
    }

    /// Any operation that may be applied, or told.
    pub(crate) fn any(&self, applied: bool, rng: &mut Rng) -> Option<usize> {
        let count = self.ops.iter().filter(|op| self.is_ready(op, applied)).count();
        if count == 0 {
            return None;
        }
        let wanted = rng.index(count);
        let ready = self.ops.iter().enumerate().filter(|(_, op)| self.is_ready(op, applied));
        ready.map(|(place, _)| place).nth(wanted)
    }

    /// Whether there is one.
    pub(crate) fn has_ready(&self, applied: bool) -> bool {
        self.ops.iter().any(|op| self.is_ready(op, applied))
    }

    fn is_ready(&self, op: &KernelOp, applied: bool) -> bool {
        let is_down = op.to.port.is_some_and(|port| self.down.contains(&port));
        op.is_applied() == applied && !op.is_asleep && !is_down
    }

    /// To whom the end of that operation is told.
    pub(crate) fn addressee(&self, place: usize) -> Addressee {
        self.ops[place].to
    }

    /// Wakes a sleeper; whether there is one.
    pub(crate) fn wake_one(&mut self, rng: &mut Rng) -> bool {
        let count = self.ops.iter().filter(|op| op.is_asleep).count();
        if count == 0 {
            return false;
        }
        let wanted = rng.index(count);
        let asleep = self.ops.iter_mut().filter(|op| op.is_asleep).nth(wanted);
        asleep.expect("one of them").is_asleep = false;
        true
    }

    /// Applies a part of an operation.
    pub(crate) fn apply(&mut self, place: usize, log: &mut Log, rng: &mut Rng) {
        let KernelHabits { failures, sync_failures, idle_discards, .. } = self.habits;
        let op = &mut self.ops[place];
        let run = op.left.swap_remove(rng.index(op.left.len()));
        log.host(op.to.actor(), "applies a", op.name(), op.file, run.clone());
        let failures = match op.order {
            Order::Sync => sync_failures,
            Order::FindExtent | Order::Status(_) => 0,
            Order::Read(_) | Order::Write(..) | Order::Discard | Order::Zero => failures,
        };
        if failures > 0 && rng.one_in(failures) {
            let is_full = matches!(op.order, Order::Write(..)) && rng.one_in(2);
            // What was done before it failed stays.
            let part: Vec<_> = sectors(run).filter(|_| rng.one_in(2)).collect();
            if op.is_change() && rng.one_in(2) {
                part.iter().for_each(|sector| apply_run(&self.disk, op, sector, rng));
            }
            if let Order::Sync = op.order {
                self.disk.fail_sync(op.file, op.began);
            }
            op.result = Err(if is_full { Errno::NOSPC } else { Errno::IO });
        } else if matches!(op.order, Order::Discard)
            && idle_discards > 0
            && rng.one_in(idle_discards)
        {
            op.left.clear();
        } else {
            apply_run(&self.disk, op, &run, rng);
            let lies = self.habits.mischief == KernelMischief::HolesToldByChannels;
            if let (Order::Status(into), true) = (&op.order, lies) {
                op.memory = hole(run.end - run.start, into.count());
            }
        }
        if op.is_applied() && op.is_told {
            self.disk.delivered(op.id);
            self.ops.swap_remove(place);
        }
    }

    /// Takes an operation whose end is told now.
    pub(crate) fn deliver(&mut self, place: usize, log: &mut Log) -> Told {
        let op = self.ops.swap_remove(place);
        self.disk.delivered(op.id);
        let what = if op.result.is_ok() { "is told of a" } else { "is told of the failure of a" };
        log.host(op.to.actor(), what, op.name(), op.file, op.bytes.clone());
        op.into_told()
    }

    /// The connection of a channel is lost: its operations are carried out once more on the next one, which is not there
    /// yet; or are said to be over, if channels are forgetful.
    pub(crate) fn lose_connection(&mut self, port: usize, log: &mut Log, rng: &mut Rng) {
        let is_forgetful = self.habits.mischief == KernelMischief::ForgetfulChannels;
        for op in self.ops.iter_mut().filter(|op| op.to.port == Some(port)) {
            log.host(
                op.to.actor(),
                "loses the connection of a",
                op.name(),
                op.file,
                op.bytes.clone(),
            );
            if is_forgetful {
                op.left.clear();
                continue;
            }
            if matches!(op.order, Order::Sync) && op.result.is_err() {
                // A second sync would find nothing to store: a server tells of the first until somebody has heard of it.
                continue;
            }
            (op.began, op.result) = (self.disk.begin_sync(), Ok(()));
            op.left = cut(op, rng);
        }
        self.down.push(port);
    }

    /// There is a new connection.
    pub(crate) fn connect(&mut self, port: usize) {
        self.down.retain(|down| *down != port);
    }

    /// Whether operations wait for a connection.
    pub(crate) fn has_lost_connections(&self) -> bool {
        !self.down.is_empty()
    }

    /// All channels are gone.
    pub(crate) fn forget_connections(&mut self) {
        self.down.clear();
    }

    /// The operations of a channel are taken back: those that were not applied never are.
    pub(crate) fn take_back(&mut self, port: usize) -> Vec<Told> {
        let own = self.ops.extract_if(.., |op| op.to.port == Some(port));
        let failed = own.map(|op| KernelOp { result: Err(Errno::CONNRESET), ..op }.into_told());
        failed.collect()
    }

    /// The process dies: each operation is carried out, or in part, or not at all. Returns them as failed.
    pub(crate) fn die(&mut self, log: &mut Log, rng: &mut Rng) -> Vec<Told> {
        for op in &mut self.ops {
            let luck = rng.below(3);
            for run in std::mem::take(&mut op.left) {
                for sector in sectors(run) {
                    let is_changed = luck == 0 || (luck == 1 && rng.one_in(2));
                    if is_changed && op.is_change() && op.result.is_ok() {
                        log.host(
                            op.to.actor(),
                            "still applies a",
                            op.name(),
                            op.file,
                            sector.clone(),
                        );
                        apply_run(&self.disk, op, &sector, rng);
                    }
                }
            }
            op.result = Err(Errno::IO);
        }
        self.late.clear();
        self.ops.drain(..).filter(|op| !op.is_told).map(KernelOp::into_told).collect()
    }
}

fn apply_run(disk: &Disk, op: &mut KernelOp, run: &Range<u64>, rng: &mut Rng) {
    let skip = index(run.start - op.bytes.start);
    let count = index(run.end - run.start);
    match &mut op.order {
        Order::Read(_) => {
            op.end = op.end.min(disk.bytes(op.file));
            disk.read(op.file, run.start, &mut op.memory[skip..skip + count]);
        }
        Order::Write(bytes, durability) => {
            disk.write(op.file, run.start, &bytes[skip..skip + count], op.id);
            if *durability == Durability::Stable {
                disk.make_stable(op.file, run, op.id);
            }
        }
        Order::Discard | Order::Zero => disk.zero(op.file, run.clone(), op.id),
        Order::Sync => disk.end_sync(op.file, op.began),
        Order::FindExtent => op.extent = Some(disk.extent(op.file, &op.bytes, rng)),
        Order::Status(into) => op.memory = records(disk, op.file, &op.bytes, into.count(), rng),
    }
}

/// What a server tells of these bytes: as far as it likes.
fn records(disk: &Disk, file: FileId, bytes: &Range<u64>, room: usize, rng: &mut Rng) -> Vec<u8> {
    let mut runs = StatusRuns::default();
    let mut at = bytes.start;
    while at < bytes.end && (at == bytes.start || !rng.one_in(16)) {
        let FileExtent { count, is_hole } = disk.extent(file, &(at..bytes.end), rng);
        let status = if is_hole { BlockStatus::ZEROES } else { BlockStatus::DATA };
        runs.add(at - bytes.start, count, status);
        at += count.0;
    }
    encode(runs, room)
}

/// That all of them are a hole.
fn hole(count: u64, room: usize) -> Vec<u8> {
    let mut runs = StatusRuns::default();
    runs.add(0, ByteCount(count), BlockStatus::ZEROES);
    encode(runs, room)
}

fn encode(mut runs: StatusRuns, room: usize) -> Vec<u8> {
    let mut memory = vec![0; room];
    let put = |at: usize, record: &[u8; StatusRecord::BYTES]| {
        memory[at..at + record.len()].copy_from_slice(record);
    };
    runs.write_with(room, put).expect("there is room for one, and one is told");
    memory
}

/// Mostly whole, sometimes in parts that end with sectors.
fn cut(op: &KernelOp, rng: &mut Rng) -> Vec<Range<u64>> {
    let bytes = op.bytes.clone();
    let (first, last) = (bytes.start / SECTOR, bytes.end.div_ceil(SECTOR));
    let is_whole = !op.is_change() && !matches!(op.order, Order::Read(_));
    if is_whole || last - first < 2 || !rng.one_in(4) {
        return vec![bytes];
    }
    let mut ends: Vec<u64> =
        (0..1 + rng.below(3)).map(|_| (first + 1 + rng.below(last - first - 1)) * SECTOR).collect();
    ends.push(bytes.end);
    ends.sort_unstable();
    ends.dedup();
    let mut start = bytes.start;
    let parts = ends.into_iter().map(|end| std::mem::replace(&mut start, end)..end);
    parts.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_sync_is_told_on_the_next_connection() {
        let (mut log, mut rng, disk) = (Log::default(), Rng::new(1), Arc::new(Disk::default()));
        let file = disk.add(&[1; 512]);
        let habits = KernelHabits { sync_failures: 1, ..KernelHabits::PLAIN };
        let mut kernel = Kernel { sleepers: 0, ..Kernel::new(disk, habits) };
        let to = Addressee { thread: 0, port: Some(3), tag: Tag(7) };
        let told = kernel.begin(to, (Order::Sync, None), (file, 0..0), &mut log, &mut rng);
        assert!(told.is_none());
        kernel.apply(0, &mut log, &mut rng);
        kernel.lose_connection(3, &mut log, &mut rng);
        assert!(!kernel.has_ready(false) && !kernel.has_ready(true));
        kernel.connect(3);
        // Not once more: that would succeed.
        assert!(!kernel.has_ready(false) && kernel.has_ready(true));
        assert!(kernel.deliver(0, &mut log).is_failed_sync);
    }
}
