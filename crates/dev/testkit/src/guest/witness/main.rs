//! A program for guests: it writes and reads a disk all the time and knows what must be there.
//!
//! Where it stands: `guest::witness` compiles it and tests put it into a guest that is migrated. It says
//! on the console how far it is (`@@alive OPERATIONS WRONG`) and what is wrong (`@@wrong …`). A line on
//! stdin stops it; then it checks the whole disk and prints a digest of what must be there (`@@final`).
//!
//! What it is made to see:
//! - *A page that the device wrote and that did not arrive*: the readers look at what they have read only
//!   when its place in their memory is wanted again, about a second later, and never write to that memory.
//! - *A write that is lost, old or torn*: each block has a generation, and one thread that knows it.
//! - *A request that is never answered*: the count of operations stands still.
//! - *What one half had in a page cache*: one region is written through the guest's, with fsync.
//!
//! Limits: as many threads as `stamp::REGIONS` and `READERS`; each rests between its requests.
#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, reason = "it talks to the test on the guest's console")]

mod stamp;

use std::fs::File;
use std::io::{self, BufRead};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use stamp::{BLOCK_BYTES, BLOCK_SECTORS, FIXED_BLOCKS, KNOWN_BLOCKS, REGION_BLOCKS, REGIONS};

/// `O_DIRECT` of Linux on x86-64.
const DIRECT: i32 = 0o40_000;
const READERS: u64 = 2;
/// Places in a reader's memory: 16 MiB.
const PLACES: usize = 256;
const PLACE_BLOCKS: usize = 16;
/// Blocks of the longest request of a writer.
const WRITE_BLOCKS_MAX: u64 = 8;
/// Operations of a writer from one flush to the next.
const FLUSH_EVERY: u64 = 48;
/// Flushes of the buffered writer until it drops the page cache.
const DROP_EVERY: u64 = 8;
const REST: Duration = Duration::from_millis(2);
const TELL_EVERY: Duration = Duration::from_millis(300);
const DROP_CACHES: &str = "/proc/sys/vm/drop_caches";

/// Memory that direct I/O takes.
#[repr(C, align(4096))]
struct Place([u8; PLACE_BLOCKS * BLOCK_BYTES]);

impl Place {
    fn new() -> Self {
        Self([0; PLACE_BLOCKS * BLOCK_BYTES])
    }

    fn blocks(&mut self, count: u64) -> &mut [u8] {
        let bytes = usize::try_from(count).expect("a few blocks") * BLOCK_BYTES;
        &mut self.0[..bytes]
    }
}

/// What the threads have done. Lone counters: nothing else is published by them.
#[derive(Default)]
struct Tally {
    operations: AtomicU64,
    wrong: AtomicU64,
    is_over: AtomicBool,
}

impl Tally {
    fn done(&self) {
        self.operations.fetch_add(1, Ordering::Relaxed);
    }

    fn wrong(&self, what: &str) {
        self.wrong.fetch_add(1, Ordering::Relaxed);
        println!("\n@@wrong {what}");
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }
}

/// Blocks that one thread writes, and their generations.
struct Region {
    first_block: u64,
    generations: Vec<u64>,
}

impl Region {
    fn number(index: u64) -> Self {
        let first_block = FIXED_BLOCKS + index * REGION_BLOCKS;
        Self { first_block, generations: (0..REGION_BLOCKS).map(|_| 0).collect() }
    }

    fn generation(&mut self, block: u64) -> &mut u64 {
        &mut self.generations[usize::try_from(block).expect("a region is small")]
    }
}

/// Marsaglia's xorshift.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) % end
    }
}

fn main() -> ExitCode {
    let Some(disk) = std::env::args().nth(1) else {
        println!("usage: witness DISK");
        return ExitCode::from(2);
    };
    let tally = Tally::default();
    match work(Path::new(&disk), &tally) {
        Err(error) => tally.wrong(&format!("the witness: {error}")),
        Ok(regions) => match check_all(Path::new(&disk), regions, &tally) {
            Err(error) => tally.wrong(&format!("at the end: {error}")),
            Ok(digest) => println!("\n@@final {digest:016x}"),
        },
    }
    let wrong = tally.wrong.into_inner();
    ExitCode::from(u8::from(wrong != 0))
}

/// Works until a line comes on stdin.
fn work(disk: &Path, tally: &Tally) -> io::Result<Vec<Region>> {
    let (direct, buffered) = (open(disk, DIRECT)?, open(disk, 0)?);
    std::thread::scope(|scope| {
        for seed in 1..=READERS {
            let direct = &direct;
            scope.spawn(move || told(tally, "reader", keep_reading(direct, seed, tally)));
        }
        let writers: Vec<_> = (0..REGIONS)
            .map(|index| {
                let (direct, buffered) = (&direct, &buffered);
                scope.spawn(move || {
                    let mut region = Region::number(index);
                    let is_buffered = index == REGIONS - 1;
                    let file = if is_buffered { buffered } else { direct };
                    let result = keep_writing(file, &mut region, is_buffered, tally);
                    told(tally, "writer", result);
                    region
                })
            })
            .collect();
        scope.spawn(|| {
            while !tally.is_over() {
                let operations = tally.operations.load(Ordering::Relaxed);
                println!("\n@@alive {operations} {}", tally.wrong.load(Ordering::Relaxed));
                rest(TELL_EVERY);
            }
        });
        let read = io::stdin().lock().read_line(&mut String::new());
        tally.is_over.store(true, Ordering::Relaxed);
        let regions = writers
            .into_iter()
            .map(|writer| writer.join().expect("a writer does not panic"))
            .collect();
        read.map(|_| regions)
    })
}

fn told(tally: &Tally, who: &str, result: io::Result<()>) {
    if let Err(error) = result {
        tally.wrong(&format!("a {who}: {error}"));
    }
}

fn open(disk: &Path, flags: i32) -> io::Result<File> {
    File::options().read(true).write(true).custom_flags(flags).open(disk)
}

/// Reads what never changes, and looks at it when its place is wanted again.
fn keep_reading(file: &File, seed: u64, tally: &Tally) -> io::Result<()> {
    let mut random = Random(seed * 0x1234_5678_9abc_def1);
    let mut places: Vec<(Option<u64>, Place)> = (0..PLACES).map(|_| (None, Place::new())).collect();
    let look = |(block, place): &(Option<u64>, Place)| {
        let found = block.and_then(|block| stamp::wrong(&place.0, block * BLOCK_SECTORS, 0));
        if let Some(what) = found {
            tally.wrong(&format!("read earlier: {what}"));
        }
    };
    while !tally.is_over() {
        for seat in &mut places {
            look(seat);
            let block = random.below(FIXED_BLOCKS - PLACE_BLOCKS as u64);
            file.read_exact_at(&mut seat.1.0, block * BLOCK_BYTES as u64)?;
            seat.0 = Some(block);
            tally.done();
            rest(REST);
        }
    }
    places.iter().for_each(look);
    Ok(())
}

/// Writes blocks of a region, reads others, and flushes now and then.
fn keep_writing(
    file: &File,
    region: &mut Region,
    is_buffered: bool,
    tally: &Tally,
) -> io::Result<()> {
    let mut random = Random(region.first_block * 0x0fed_cba9_8765_4321 + 1);
    let mut place = Place::new();
    let mut count = 0;
    while !tally.is_over() {
        let length = 1 + random.below(WRITE_BLOCKS_MAX);
        let block = random.below(REGION_BLOCKS - length);
        let first = region.first_block + block;
        if random.below(2) == 0 {
            for (bytes, index) in place.blocks(length).chunks_exact_mut(BLOCK_BYTES).zip(0..) {
                let generation = region.generation(block + index);
                *generation += 1;
                stamp::fill(bytes, (first + index) * BLOCK_SECTORS, *generation);
            }
            file.write_all_at(place.blocks(length), first * BLOCK_BYTES as u64)?;
        } else {
            check(file, region, block, place.blocks(length), tally)?;
        }
        count += 1;
        if count % FLUSH_EVERY == 0 {
            file.sync_data()?;
            if is_buffered && count % (FLUSH_EVERY * DROP_EVERY) == 0 {
                std::fs::write(DROP_CACHES, "1")?;
            }
        }
        tally.done();
        rest(REST);
    }
    file.sync_data()
}

/// Reads from a block of the region on, and looks at it at once.
fn check(
    file: &File,
    region: &mut Region,
    block: u64,
    bytes: &mut [u8],
    tally: &Tally,
) -> io::Result<()> {
    let first = region.first_block + block;
    file.read_exact_at(bytes, first * BLOCK_BYTES as u64)?;
    for (bytes, index) in bytes.chunks_exact(BLOCK_BYTES).zip(0..) {
        let generation = *region.generation(block + index);
        if let Some(what) = stamp::wrong(bytes, (first + index) * BLOCK_SECTORS, generation) {
            tally.wrong(&what);
        }
    }
    Ok(())
}

/// Checks every block, and gives the digest of what must be there.
fn check_all(disk: &Path, regions: Vec<Region>, tally: &Tally) -> io::Result<u64> {
    std::fs::write(DROP_CACHES, "1")?;
    let file = open(disk, DIRECT)?;
    let fixed = Region { first_block: 0, generations: (0..FIXED_BLOCKS).map(|_| 0).collect() };
    let (mut place, mut expected) = (Place::new(), [0; BLOCK_BYTES]);
    let (mut digest, mut blocks) = (0, 0);
    for mut region in std::iter::once(fixed).chain(regions) {
        let end = region.generations.len() as u64;
        for first in (0..end).step_by(PLACE_BLOCKS) {
            check(&file, &mut region, first, &mut place.0, tally)?;
            for block in first..first + PLACE_BLOCKS as u64 {
                let sector = (region.first_block + block) * BLOCK_SECTORS;
                stamp::fill(&mut expected, sector, *region.generation(block));
                digest = stamp::digest(digest, &expected);
                blocks += 1;
            }
        }
    }
    assert_eq!(blocks, KNOWN_BLOCKS);
    Ok(digest)
}

#[expect(clippy::disallowed_methods, reason = "a load that never rests cannot be migrated")]
fn rest(time: Duration) {
    std::thread::sleep(time);
}
