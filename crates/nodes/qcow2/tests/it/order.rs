//! The order of what two iothreads write, one step at a time: what was told to be durable is found again, also if
//! syncs are late and writes of tables fail.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use block::{
    Access, AfterPiecesAction, Answer, BatchPieces, ByteCount, ByteOffset, Child, Claim, Clock,
    Durability, Extent, FailKind, FileId, HostMemory, InternalOperation, Lane,
    LaneCompletionDecision, LaneContext, Mapping, Node, Operation, Outcome, Rights, SystemClock,
    Target, Token, ZeroTerms,
};
use qcow2::{Children, FreedClusterDiscards, OverlapCheck, Qcow2Node, Qcow2Settings};
use testkit::qcow2rig::check::check;
use testkit::qcow2rig::child::{ControlThread, FileChild, Life};
use testkit::qcow2rig::disk::Disk;
use testkit::qcow2rig::make::Recipe;
use testkit::rng::Rng;

const CLUSTER: u64 = 64 << 10;
const SIZE: u64 = 16 * CLUSTER;
const BLOCK: u64 = 4096;

/// An image on a disk that loses power, and the lanes of two iothreads on it.
struct Bench {
    disk: Arc<Disk>,
    image: FileId,
    data: Option<FileId>,
    runner: ControlThread,
    threads: Vec<Thread>,
    _claim: Claim,
}

struct Thread {
    lane: Box<dyn Lane>,
    io: LaneContext,
    pieces: BatchPieces,
    mapping: Mapping,
    memory: Vec<u8>,
    /// Whether the request was answered and carried out before.
    is_carried_out: bool,
    /// What becomes of the lane's own internal I/Os.
    errands: Errands,
    held: Vec<InternalOperation>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Errands {
    Run,
    /// Syncs stay under way that begin after the request was carried out.
    HoldSyncs,
    /// Writes reach the disk, and are said to have failed.
    FailWrites,
}

/// Each byte of a request's memory, afterwards.
type Ended = Result<u8, FailKind>;

impl Bench {
    fn new(recipe: &Recipe) -> Self {
        let made = recipe.make(&mut Rng::new(1)).unwrap();
        let disk = Arc::new(Disk::default());
        let image = disk.add(&made.image);
        let data = made.data.map(|content| disk.add(&content));
        Self::open(disk, image, data)
    }

    fn open(disk: Arc<Disk>, image: FileId, data: Option<FileId>) -> Self {
        let life = Life::new(u64::MAX);
        let access = Access::ReadWrite;
        let child = |file: FileId| {
            let (name, disk, life) = (format!("{file:?}"), Arc::clone(&disk), Arc::clone(&life));
            Child::new(Arc::new(FileChild { name, disk, file, access, discards: true, life }))
        };
        let children = Children { file: child(image), backing: None, data_file: data.map(child) };
        let settings = Qcow2Settings {
            access,
            discards: FreedClusterDiscards::Passed,
            l2_cache: ByteCount(1 << 20),
            refcount_cache: ByteCount(1 << 20),
            clean_after: None,
            overlap_check: OverlapCheck::Cached,
        };
        let runner = || ControlThread { disk: Arc::clone(&disk), life: Arc::clone(&life) };
        let node = Qcow2Node::open("image", children, settings, Arc::new(runner())).unwrap();
        let claim = node.claim(Rights::of_user(access)).unwrap();
        let thread = |_| {
            let io = LaneContext::idle();
            let lane = node.open_lane(&io).unwrap();
            let mapping = Mapping::new(Token(0), Operation::Flush);
            let (pieces, errands) = (BatchPieces::default(), Errands::Run);
            let (memory, held, is_carried_out) = (Vec::new(), Vec::new(), false);
            Thread { lane, io, pieces, mapping, memory, is_carried_out, errands, held }
        };
        let (threads, runner) = ((0..2).map(thread).collect(), runner());
        Self { disk, image, data, runner, threads, _claim: claim }
    }

    /// The process dies here, and with `power` the power goes as well; the next process.
    fn die(self, power: Option<u64>) -> Self {
        self.runner.life.end();
        let Self { disk, image, data, .. } = self;
        match power {
            None => disk.outlive_process(),
            Some(seed) => disk.lose_power(&mut Rng::new(seed)),
        }
        Self::open(disk, image, data)
    }

    /// Closes the image, and opens it again.
    fn reopen(mut self) -> Self {
        for place in [0, 1] {
            while self.threads[place].io.has_submitted() {
                self.go_on(place);
            }
        }
        self.threads.clear();
        let Self { disk, image, data, .. } = self;
        Self::open(disk, image, data)
    }

    fn write(&mut self, thread: usize, at: u64, byte: u8, durability: Durability) -> Ended {
        let write = Operation::Write(extent(at, BLOCK), durability);
        self.run(thread, write, byte)
    }

    fn read(&mut self, thread: usize, at: u64) -> Ended {
        self.run(thread, Operation::Read(extent(at, BLOCK)), 0)
    }

    fn run(&mut self, thread: usize, operation: Operation, byte: u8) -> Ended {
        self.begin(thread, operation, byte);
        for _ in 0..1000 {
            if let Some(ended) = self.go_on(thread) {
                return ended;
            }
        }
        panic!("{operation:?} is held for ever");
    }

    /// Asks; as what the request is carried out, if that is known at once.
    fn begin(&mut self, thread: usize, operation: Operation, byte: u8) -> Operation {
        let thread = &mut self.threads[thread];
        let count = operation.extent().map_or(0, |extent| extent.count().0);
        thread.memory = vec![byte; usize::try_from(count).unwrap()];
        thread.is_carried_out = false;
        thread.pieces.clear();
        let mut batch = [Mapping::new(Token(0), operation)];
        thread.lane.map(&mut batch, &mut thread.pieces);
        [thread.mapping] = batch;
        thread.mapping.operation
    }

    /// Carries out one internal I/O of the lane, for which no request waits.
    fn go_on_without_request(&mut self, thread: usize) {
        let Self { runner, threads, .. } = self;
        let thread = &mut threads[thread];
        let mut errands = Vec::new();
        thread.io.take_submitted(&mut errands);
        errands.into_iter().for_each(|errand| runner.run(errand));
        let mut late = Vec::new();
        thread.lane.resume(SystemClock.now(), &mut late, &mut thread.pieces);
        assert!(late.is_empty(), "there is no request");
    }

    /// Goes on with a request; its end.
    fn go_on(&mut self, thread: usize) -> Option<Ended> {
        let Self { disk, runner, threads, .. } = self;
        let thread = &mut threads[thread];
        if thread.mapping.answer == Answer::Held {
            let mut errands = Vec::new();
            thread.io.take_submitted(&mut errands);
            for errand in errands {
                let is_sync = errand.operation() == Operation::Flush;
                match (thread.errands, errand.operation()) {
                    (Errands::HoldSyncs, _) if is_sync && thread.is_carried_out => {
                        thread.held.push(errand);
                    }
                    (Errands::FailWrites, Operation::Write(..)) => fail(disk, errand),
                    _ => runner.run(errand),
                }
            }
            let mut late = Vec::new();
            thread.lane.resume(SystemClock.now(), &mut late, &mut thread.pieces);
            thread.mapping = late.pop()?;
        }
        match thread.mapping.answer {
            Answer::Held => None,
            Answer::Refused(kind) => Some(Err(kind)),
            Answer::Now(_) => thread.carry_out(runner),
        }
    }
}

impl Thread {
    /// Carries out an answer; the end of the request, unless the lane keeps it.
    fn carry_out(&mut self, runner: &ControlThread) -> Option<Ended> {
        let Answer::Now(range) = self.mapping.answer else { panic!("it is answered") };
        let (io, memory) = (LaneContext::idle(), HostMemory::of(&self.memory));
        let done = io.submit(self.mapping.operation, self.pieces.get(range), memory);
        let mut errands = Vec::new();
        io.take_submitted(&mut errands);
        errands.into_iter().for_each(|errand| runner.run(errand));
        let context = &mut Context::from_waker(Waker::noop());
        let Poll::Ready(memory) = std::pin::pin!(done).poll(context) else { panic!("it was run") };
        let memory = memory.unwrap();
        let byte = memory.first().copied().unwrap_or_default();
        assert!(memory.iter().all(|other| *other == byte), "all are written together");
        self.is_carried_out = true;
        self.pieces.clear();
        self.mapping.answer = Answer::Held;
        if self.mapping.after == AfterPiecesAction::Finish {
            return Some(Ok(byte));
        }
        match self.lane.completed(self.mapping.token, Outcome::Done) {
            LaneCompletionDecision::Finish(Outcome::Done) => Some(Ok(byte)),
            LaneCompletionDecision::Finish(Outcome::Failed(kind)) => Some(Err(kind)),
            LaneCompletionDecision::HoldAgain => None,
        }
    }
}

/// Carries out a write, and says that it has failed.
fn fail(disk: &Disk, mut errand: InternalOperation) {
    for piece in errand.pieces().to_vec() {
        let Target::File { file, offset: ByteOffset(offset) } = piece.target else {
            panic!("of a file")
        };
        let mut bytes = vec![0; usize::try_from(piece.count.0).unwrap()];
        errand.memory().copy_to(usize::try_from(piece.skip).unwrap(), &mut bytes);
        let op = disk.begin();
        disk.write(file, offset, &bytes, op);
        disk.delivered(op);
    }
    errand.finish(Outcome::Failed(FailKind::Io));
}

fn extent(start: u64, count: u64) -> Extent {
    block::DiskSize(ByteCount(SIZE)).check(ByteOffset(start), ByteCount(count)).unwrap()
}

fn plain() -> Recipe {
    Recipe::plain(16, SIZE)
}

/// The power goes in many ways after the second block of the disk was written, stably.
#[track_caller]
fn check_stable(recipe: &Recipe, write: impl Fn(Bench) -> Bench) {
    for seed in 0..40 {
        let bench = write(Bench::new(recipe));
        let mut bench = bench.die(Some(seed));
        assert_eq!(bench.read(0, BLOCK), Ok(2), "with seed {seed}");
    }
}

#[test]
fn a_stable_write_waits_for_the_entry_that_another_syncs() {
    check_stable(&plain(), |mut bench| {
        bench.threads[0].errands = Errands::HoldSyncs;
        bench.begin(0, Operation::Write(extent(0, BLOCK), Durability::Stable), 1);
        while bench.threads[0].held.is_empty() {
            assert_eq!(bench.go_on(0), None, "it waits for its sync");
        }
        assert_eq!(bench.write(1, BLOCK, 2, Durability::Stable), Ok(2));
        bench
    });
}

#[test]
fn a_stable_write_in_place_makes_the_entry_durable() {
    for recipe in [plain(), Recipe { data_file: true, ..plain() }] {
        check_stable(&recipe, |mut bench| {
            assert_eq!(bench.write(0, 0, 1, Durability::Cached), Ok(1));
            assert_eq!(bench.write(1, BLOCK, 2, Durability::Stable), Ok(2));
            bench
        });
    }
}

#[test]
fn a_stable_write_makes_an_entry_durable_that_the_process_before_has_written() {
    for version in [2, 3] {
        check_stable(&Recipe { version, ..plain() }, |mut bench| {
            assert_eq!(bench.write(0, 0, 1, Durability::Cached), Ok(1));
            let mut bench = bench.die(None);
            assert_eq!(bench.write(0, BLOCK, 2, Durability::Stable), Ok(2));
            bench
        });
    }
}

#[test]
fn a_stable_write_in_place_syncs_nothing_else_if_the_entry_is_durable() {
    for recipe in [plain(), Recipe { data_file: true, ..plain() }] {
        let mut bench = Bench::new(&recipe);
        let stable = Operation::Write(extent(0, BLOCK), Durability::Stable);
        let cached = Operation::Write(extent(0, BLOCK), Durability::Cached);
        assert_eq!(bench.write(0, 0, 1, Durability::Cached), Ok(1));
        assert_eq!(bench.begin(0, stable, 2), cached, "it ends with a sync");
        while bench.go_on(0).is_none() {}
        assert_eq!(bench.begin(0, stable, 2), stable, "the write before has synced the entry");
        while bench.go_on(0).is_none() {}
        assert_eq!(bench.write(1, CLUSTER, 1, Durability::Cached), Ok(1));
        bench.run(0, Operation::Flush, 0).unwrap();
        assert_eq!(bench.begin(1, stable, 3), stable, "a flush has synced it");
    }
}

/// Has a change of the first cluster fail after it has reached the disk; then that cluster is written.
#[track_caller]
fn check_doubtful(recipe: &Recipe, change: Operation) {
    for between in [None, Some(CLUSTER), Some(2 * CLUSTER)] {
        let mut bench = Bench::new(recipe);
        assert_eq!(bench.write(0, 0, 1, Durability::Cached), Ok(1));
        assert_eq!(bench.write(0, CLUSTER, 1, Durability::Cached), Ok(1));
        bench.run(0, Operation::Flush, 0).unwrap();
        bench.threads[0].errands = Errands::FailWrites;
        assert_eq!(bench.run(0, change, 0), Err(FailKind::Io), "{change:?}");
        assert_eq!(bench.read(1, 0), Ok(1), "reads go on");
        // As long as the table cannot be written, neither can what it names.
        assert_eq!(bench.write(0, 0, 2, Durability::Cached), Err(FailKind::Io), "{change:?}");
        bench.threads[0].errands = Errands::Run;
        if let Some(at) = between {
            assert_eq!(bench.write(0, at, 3, Durability::Cached), Ok(3));
        }
        assert_eq!(bench.write(1, 0, 4, Durability::Cached), Ok(4));
        bench.run(1, Operation::Flush, 0).unwrap();
        let mut bench = bench.die(None);
        assert_eq!(bench.read(0, 0), Ok(4), "{change:?}, with a write at {between:?} before");
        let mut bench = bench.reopen();
        assert_eq!(bench.read(0, 0), Ok(4), "{change:?}, after a close");
        assert_eq!(bench.read(0, CLUSTER), Ok(if between == Some(CLUSTER) { 3 } else { 1 }));
    }
}

#[test]
fn writes_in_place_are_kept_after_a_table_was_written_and_that_failed() {
    let first = extent(0, CLUSTER);
    let discard = Operation::Discard(first, Durability::Cached);
    let unmap = Operation::WriteZeroes(first, ZeroTerms::UNMAP, Durability::Cached);
    let zero = Operation::WriteZeroes(first, ZeroTerms::KEEP, Durability::Cached);
    for change in [discard, unmap, zero] {
        check_doubtful(&plain(), change);
        check_doubtful(&Recipe { extended_l2: true, ..plain() }, change);
        check_doubtful(&Recipe { data_file: true, ..plain() }, change);
    }
}

#[test]
fn zeroes_are_kept_after_a_write_has_failed() {
    for change in [
        Operation::WriteZeroes(extent(CLUSTER, CLUSTER), ZeroTerms::UNMAP, Durability::Cached),
        Operation::WriteZeroes(extent(CLUSTER, BLOCK), ZeroTerms::KEEP, Durability::Cached),
    ] {
        let mut bench = Bench::new(&plain());
        assert_eq!(bench.write(0, 0, 1, Durability::Cached), Ok(1));
        bench.threads[0].errands = Errands::FailWrites;
        assert_eq!(bench.write(0, CLUSTER, 2, Durability::Cached), Err(FailKind::Io));
        assert_eq!(bench.read(1, CLUSTER), Ok(0));
        bench.threads[0].errands = Errands::Run;
        // Memory says that nothing is there; the file says that the block was written.
        bench.run(1, change, 0).unwrap();
        bench.run(1, Operation::Flush, 0).unwrap();
        let mut bench = bench.die(None);
        assert_eq!(bench.read(0, CLUSTER), Ok(0), "{change:?}");
        assert_eq!(bench.read(0, 0), Ok(1), "{change:?}");
    }
}

/// A lane may go while its task frees clusters, which are not lost with it.
#[test]
fn clusters_are_freed_though_the_lane_that_does_it_goes() {
    for steps in 0..20 {
        let mut bench = Bench::new(&plain());
        let discard = |at: u64| Operation::Discard(extent(at, CLUSTER), Durability::Cached);
        for cluster in [2, 3, 7] {
            bench.write(0, cluster * CLUSTER, 1, Durability::Cached).unwrap();
            bench.run(0, discard(cluster * CLUSTER), 0).unwrap();
        }
        bench.run(0, Operation::Flush, 0).unwrap();
        assert!(bench.threads[0].io.has_submitted(), "the lane frees clusters");
        for _ in 0..steps {
            bench.go_on_without_request(0);
        }
        bench.threads.clear();
        let (disk, image) = (Arc::clone(&bench.disk), bench.image);
        drop(bench);
        let verdict = check(&disk.snapshot(image)).unwrap();
        assert!(verdict.errors.is_empty() && verdict.leaks == 0, "{steps} steps: {verdict:?}");
    }
}
