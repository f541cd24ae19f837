//! What threads that own no ring have carried out: the bytes that they read and leave, on every sort of file.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::task::Waker;

use block::{
    Access, ByteCount, ByteOffset, Clock, DiskSize, Durability, FailKind, FileId, FlushPolicy,
    HostMemory, Operation, Piece, SystemClock, Target, ZeroTerms,
};
use kernel_io::{
    Aio, Caching, FileKind, FileTable, LockOptions, Locking, OpenFile, OpenOptions, Sharing,
};
use request_path::ControlEngineFactory;
use testkit::errands;
use testkit::loop_device::LoopDevice;
use testkit::report;
use testkit::rng::Rng;

const BYTES: u64 = 3 << 20;

/// Carries one out; returns the memory as it left it.
fn run(
    table: &Arc<FileTable>,
    operation: Operation,
    pieces: &[Piece],
    memory: HostMemory,
) -> Result<HostMemory, FailKind> {
    let clock = Arc::new(SystemClock) as Arc<dyn Clock>;
    errands::carry_out(&ControlEngineFactory::new(table, &clock), operation, pieces, memory)
}

fn open(table: &FileTable, path: &Path, kind: FileKind, caching: Caching) -> FileId {
    let lock = LockOptions { locking: Locking::Off, sharing: Sharing::AsClaimed };
    let (path, access, flushes) = (path.to_owned(), Access::ReadWrite, FlushPolicy::Obeyed);
    let aio = Aio::Automatic;
    let options = OpenOptions { path, kind, access, caching, aio, flushes, lock };
    table.insert(Arc::new(OpenFile::open(&options).unwrap()))
}

fn extent(count: u64) -> block::Extent {
    DiskSize(ByteCount(count)).check(ByteOffset(0), ByteCount(count)).unwrap()
}

fn piece(file: FileId, skip: u64, at: u64, count: u64) -> Piece {
    let target = Target::File { file, offset: ByteOffset(at) };
    Piece { skip, count: ByteCount(count), target }
}

fn bytes(number: u64) -> usize {
    usize::try_from(number).unwrap()
}

/// Plays random internal I/Os on a file, against a plain buffer.
fn play(path: &Path, kind: FileKind, caching: Caching, seed: u64) {
    report::note(&format!("{} {kind} {caching:?} seed {seed}", path.display()));
    let table = Arc::<FileTable>::default();
    let file = open(&table, path, kind, caching);
    let mut rng = Rng::new(seed);
    let mut model = vec![0; bytes(BYTES)];
    rng.fill(&mut model);
    let all = [piece(file, 0, 0, BYTES)];
    let write = Operation::Write(extent(BYTES), Durability::Cached);
    run(&table, write, &all, HostMemory::of(&model)).unwrap();
    for _ in 0..60 {
        let unit = [1, 512, 4096][rng.index(3)];
        // The two halves are in the memory the other way round than in the file, with room between.
        let most = if rng.one_in(4) { 800_000 } else { 5000 };
        let half = unit * (1 + rng.below(most / unit));
        let at = unit * rng.below((BYTES - 2 * half) / unit);
        let pieces = [
            piece(file, half + unit, at, half),
            piece(file, 0, at + half, half),
            Piece { skip: half, count: ByteCount(unit), target: Target::Zeroes },
        ];
        let count = 2 * half + unit;
        let mut memory = HostMemory::zeroed(bytes(count));
        rng.fill(&mut memory);
        let (first, second) = (bytes(half + unit)..bytes(count), 0..bytes(half));
        let place = bytes(at)..bytes(at + half);
        let next = bytes(at + half)..bytes(at + 2 * half);
        let durability = if rng.one_in(8) { Durability::Stable } else { Durability::Cached };
        match rng.below(4) {
            0 => {
                let found = run(&table, Operation::Read(extent(count)), &pieces, memory).unwrap();
                assert!(found[first] == model[place], "read of {half} at {at}");
                assert!(found[second] == model[next], "read of {half} behind {at}");
                assert!(found[bytes(half)..bytes(half + unit)].iter().all(|byte| *byte == 0));
            }
            1 => {
                model[place].copy_from_slice(&memory[first]);
                model[next].copy_from_slice(&memory[second]);
                let write = Operation::Write(extent(count), durability);
                run(&table, write, &pieces, memory).unwrap();
            }
            2 => {
                model[place.start..next.end].fill(0);
                let terms = if rng.one_in(2) { ZeroTerms::UNMAP } else { ZeroTerms::KEEP };
                let zero = Operation::WriteZeroes(extent(count), terms, durability);
                run(&table, zero, &pieces, HostMemory::zeroed(0)).unwrap();
            }
            _ => {
                let discard = Operation::Discard(extent(count), durability);
                run(&table, discard, &pieces, HostMemory::zeroed(0)).unwrap();
                // What it reads as is looked up; what is around it must stay.
                let read = Operation::Read(extent(BYTES));
                let found = run(&table, read, &all, HostMemory::zeroed(bytes(BYTES))).unwrap();
                model[place.start..next.end].copy_from_slice(&found[place.start..next.end]);
            }
        }
    }
    run(&table, Operation::Flush, &[piece(file, 0, 0, 0)], HostMemory::zeroed(0)).unwrap();
    let read = Operation::Read(extent(BYTES));
    let found = run(&table, read, &all, HostMemory::zeroed(bytes(BYTES))).unwrap();
    assert!(*found == *model, "seed {seed}");
    assert!(std::fs::read(path).unwrap() == model, "seed {seed}: another reader sees other bytes");
}

fn image(directory: &Path) -> PathBuf {
    let path = directory.join("image");
    std::fs::File::create(&path).unwrap().set_len(BYTES).unwrap();
    path
}

#[test]
fn errands_on_a_regular_file_do_what_they_say() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = image(directory.path());
    for (seed, caching) in [(1, Caching::Buffered), (2, Caching::Direct)] {
        play(&path, FileKind::Regular, caching, seed);
    }
}

#[test]
fn errands_on_a_file_in_memory_do_what_they_say() {
    if !Path::new("/dev/shm").is_dir() {
        return report::skipped("there is no tmpfs at /dev/shm");
    }
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    play(&image(directory.path()), FileKind::Regular, Caching::Buffered, 3);
}

#[test]
fn errands_on_a_block_device_do_what_they_say() {
    if let Some(reason) = LoopDevice::missing() {
        return report::skipped(reason);
    }
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = image(directory.path());
    for (seed, block) in [(4, 512), (5, 4096)] {
        let device = LoopDevice::attach(&path, block).unwrap();
        for caching in [Caching::Buffered, Caching::Direct] {
            play(device.path(), FileKind::BlockDevice, caching, seed);
        }
    }
}

/// A table of a small image ends where its last entry does.
#[test]
fn behind_the_end_of_a_file_are_zeroes() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = directory.path().join("image");
    for caching in [Caching::Buffered, Caching::Direct] {
        std::fs::write(&path, vec![7; 4104]).unwrap();
        let table = Arc::<FileTable>::default();
        let file = open(&table, &path, FileKind::Regular, caching);
        let read = |at, count| {
            let pieces = [piece(file, 0, at, count)];
            let memory = HostMemory::of(&vec![1; bytes(count)]);
            run(&table, Operation::Read(extent(count)), &pieces, memory).map(|found| found.to_vec())
        };
        assert_eq!(read(4096, 8), Ok(vec![7; 8]));
        assert_eq!(read(4096, 9), Ok(vec![7, 7, 7, 7, 7, 7, 7, 7, 0]));
        assert_eq!(read(0, 8192), Ok([vec![7; 4104], vec![0; 4088]].concat()));
        assert_eq!(read(1 << 20, 1), Ok(vec![0]));
        // What is changed behind the end makes the file longer, with zeroes in between.
        let write = Operation::Write(extent(2), Durability::Stable);
        run(&table, write, &[piece(file, 0, 5000, 2)], HostMemory::of(b"ab")).unwrap();
        let mut expected = vec![0; 906];
        expected[..8].fill(7);
        expected[904..].copy_from_slice(b"ab");
        assert_eq!(read(4096, 906), Ok(expected));
    }
}

/// Internal I/Os beside each other in one block, which is read and written as a whole.
#[test]
fn changes_of_one_block_by_several_threads_lose_nothing() {
    if let Some(reason) = LoopDevice::missing() {
        return report::skipped(reason);
    }
    const ROUNDS: u8 = 200;
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let device = LoopDevice::attach(&image(directory.path()), 4096).unwrap();
    let table = Arc::<FileTable>::default();
    let file = open(&table, device.path(), FileKind::BlockDevice, Caching::Direct);
    let rewrite = |place: u64| {
        for round in 1..=ROUNDS {
            let pieces = [piece(file, 0, place * 512, 512)];
            let write = Operation::Write(extent(512), Durability::Cached);
            run(&table, write, &pieces, HostMemory::of(&[round; 512])).unwrap();
            let read = Operation::Read(extent(512));
            let found = run(&table, read, &pieces, HostMemory::zeroed(512)).unwrap();
            assert!(*found == [round; 512], "round {round} of sector {place} is lost");
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| rewrite(0));
        scope.spawn(|| rewrite(3));
    });
}

#[test]
fn an_errand_waits_for_whoever_changes_its_block() {
    if let Some(reason) = LoopDevice::missing() {
        return report::skipped(reason);
    }
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let device = LoopDevice::attach(&image(directory.path()), 4096).unwrap();
    let table = Arc::<FileTable>::default();
    let file = open(&table, device.path(), FileKind::BlockDevice, Caching::Direct);
    let held = table.get(file).medium().ranges().try_lock(0..4096, Waker::noop()).unwrap();
    let pieces = || [piece(file, 0, 512, 512)];
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let zero = Operation::WriteZeroes(extent(512), ZeroTerms::KEEP, Durability::Cached);
            run(&table, zero, &pieces(), HostMemory::zeroed(0)).unwrap();
        });
        // Reads wait for nobody.
        run(&table, Operation::Read(extent(512)), &pieces(), HostMemory::zeroed(512)).unwrap();
        assert!(!writer.is_finished(), "the block is held");
        drop(held);
        writer.join().unwrap();
    });
    let again = table.get(file).medium().ranges().try_lock(0..4096, Waker::noop());
    assert!(again.is_some(), "it gave the block back");
}

#[test]
fn what_another_process_owns_is_read_and_not_changed() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = image(directory.path());
    let table = Arc::<FileTable>::default();
    let file = open(&table, &path, FileKind::Regular, Caching::Buffered);
    let (pieces, memory) = ([piece(file, 0, 0, 4)], || HostMemory::of(b"data"));
    let write = Operation::Write(extent(4), Durability::Cached);
    let zero = Operation::WriteZeroes(extent(4), ZeroTerms::UNMAP, Durability::Cached);
    let discard = Operation::Discard(extent(4), Durability::Cached);
    run(&table, write, &pieces, memory()).unwrap();
    table.get(file).leave();
    for change in [write, zero, discard] {
        let memory = if change == write { HostMemory::of(b"lost") } else { HostMemory::zeroed(0) };
        assert_eq!(run(&table, change, &pieces, memory).map(drop), Err(FailKind::Io));
    }
    let read = Operation::Read(extent(4));
    assert_eq!(*run(&table, read, &pieces, HostMemory::zeroed(4)).unwrap(), *b"data");
    table.get(file).own();
    run(&table, zero, &pieces, HostMemory::zeroed(0)).unwrap();
    assert_eq!(std::fs::read(&path).unwrap()[..4], [0; 4]);
}

#[test]
fn a_sync_that_failed_is_remembered() {
    let table = Arc::<FileTable>::default();
    // It cannot be synced.
    let null = std::fs::File::options().write(true).open("/dev/null").unwrap();
    let null = OpenFile::adopt(null.into(), "null".into(), 0, Aio::Automatic);
    let file = table.insert(Arc::new(null));
    let write = |durability| {
        let (write, pieces) = (Operation::Write(extent(4), durability), [piece(file, 0, 0, 4)]);
        run(&table, write, &pieces, HostMemory::of(b"data")).map(drop)
    };
    assert_eq!(write(Durability::Cached), Ok(()));
    assert!(!table.get(file).medium().has_failed_sync());
    assert_eq!(write(Durability::Stable), Err(FailKind::Io));
    assert!(table.get(file).medium().has_failed_sync());
    let flush = run(&table, Operation::Flush, &[piece(file, 0, 0, 0)], HostMemory::zeroed(0));
    assert_eq!(flush.map(drop), Err(FailKind::Io));
    // What it cannot do at all is written, or was only a hint.
    let zero = Operation::WriteZeroes(extent(4), ZeroTerms::UNMAP, Durability::Cached);
    run(&table, zero, &[piece(file, 0, 0, 4)], HostMemory::zeroed(0)).unwrap();
    let discard = Operation::Discard(extent(4), Durability::Cached);
    run(&table, discard, &[piece(file, 0, 0, 4)], HostMemory::zeroed(0)).unwrap();
}
