//! Thousands of moves under a verifying load: no request is lost, none completed twice, and a
//! read issued after a write's completion sees it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use iothread::{SourceMove, move_many};
use kernel_io::FileTable;

use crate::guest::{Ask, BLOCK, Guest, SLOTS};
use crate::setup::{file_node, iothreads, on_both, place};

pub(crate) const RINGS: u64 = 4;
pub(crate) const BLOCKS: u64 = 64;
const MOVES: u32 = 4000;
/// The most, even if a ring makes no progress.
const MOVES_MAX: u32 = 500_000;
/// The fewest requests of each ring under the moves.
const REQUESTS_MIN: u64 = 400;
const SEED: u64 = 0x5eed;

/// Numbers that look random and are the same for the same seed (xorshift).
#[derive(Debug, Clone)]
pub(crate) struct Seeded(pub(crate) u64);

impl Seeded {
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

/// A block that says where it belongs and which write it is from.
fn stamp(block: u64, version: u64) -> Box<[u8; BLOCK]> {
    let mut data = Box::new([0; BLOCK]);
    for (place, bytes) in data.chunks_exact_mut(16).enumerate() {
        bytes[..8].copy_from_slice(&(block << 16 | place as u64).to_le_bytes());
        bytes[8..].copy_from_slice(&version.to_le_bytes());
    }
    data
}

#[derive(Debug, Clone, Copy)]
enum Doing {
    Nothing,
    Reading { block: u64, version: u64 },
    Writing { block: u64, version: u64 },
    Flushing,
}

/// One guest that works on blocks of its own and knows what each must hold.
pub(crate) struct Load {
    pub(crate) guest: Guest,
    first: u64,
    versions: Vec<u64>,
    busy: Vec<bool>,
    doing: [Doing; SLOTS as usize],
    random: Seeded,
    pub(crate) completed: u64,
}

impl Load {
    pub(crate) fn new(ring: u64) -> Self {
        let blocks = usize::try_from(BLOCKS).unwrap();
        Self {
            guest: Guest::new(),
            first: ring * BLOCKS,
            versions: vec![0; blocks],
            busy: vec![false; blocks],
            doing: [Doing::Nothing; SLOTS as usize],
            random: Seeded(SEED + ring * 7919),
            completed: 0,
        }
    }

    fn submit(&mut self, slot: u16) {
        let index = usize::try_from(self.random.below(BLOCKS)).unwrap();
        let block = self.first + index as u64;
        let (ask, doing) = match self.random.below(16) {
            0 => (Ask::Flush, Doing::Flushing),
            _ if self.busy[index] => (Ask::Flush, Doing::Flushing),
            kind if kind < 8 => {
                (Ask::Read, Doing::Reading { block, version: self.versions[index] })
            }
            _ => {
                let version = self.versions[index] + 1;
                self.guest.fill(slot, &stamp(block, version));
                (Ask::Write, Doing::Writing { block, version })
            }
        };
        if ask != Ask::Flush {
            self.busy[index] = true;
        }
        self.doing[usize::from(slot)] = doing;
        self.guest.submit(slot, ask, block);
    }

    fn check(&mut self, slot: u16) {
        assert_eq!(self.guest.status(slot), 0);
        self.completed += 1;
        let doing = std::mem::replace(&mut self.doing[usize::from(slot)], Doing::Nothing);
        match doing {
            Doing::Nothing => panic!("slot {slot} completed without a request"),
            Doing::Flushing => {}
            Doing::Writing { block, version } => {
                let index = usize::try_from(block - self.first).unwrap();
                self.versions[index] = version;
                self.busy[index] = false;
            }
            Doing::Reading { block, version } => {
                let index = usize::try_from(block - self.first).unwrap();
                self.busy[index] = false;
                let expected =
                    if version == 0 { Box::new([0; BLOCK]) } else { stamp(block, version) };
                assert!(
                    self.guest.data(slot) == expected,
                    "block {block} is not version {version}"
                );
            }
        }
    }

    pub(crate) fn run(&mut self, over: &AtomicBool, slowest: &Progress) {
        while !over.load(Ordering::Relaxed) {
            while self.guest.in_flight() < 12 {
                let slot = self.guest.free_slot().unwrap();
                self.submit(slot);
            }
            for slot in self.guest.completions() {
                self.check(slot);
            }
            slowest.note(self.first / BLOCKS, self.completed);
        }
        while self.guest.in_flight() > 0 {
            for slot in self.guest.completions() {
                self.check(slot);
            }
        }
    }
}

impl Load {
    /// How often each block of the ring was written.
    pub(crate) fn versions(&self) -> impl Iterator<Item = (u64, u64)> {
        (self.first..).zip(self.versions.iter().copied())
    }

    /// Checks that everything which was completed is in the image.
    pub(crate) fn check_image(&self, bytes: &[u8]) {
        for (index, &version) in self.versions.iter().enumerate().filter(|(_, v)| **v > 0) {
            let block = self.first + index as u64;
            let start = usize::try_from(block).unwrap() * BLOCK;
            assert!(bytes[start..start + BLOCK] == stamp(block, version)[..], "block {block}");
        }
    }
}

/// How many requests each ring has had, for the mover to see.
#[derive(Default)]
pub(crate) struct Progress([AtomicU64; 4]);

impl Progress {
    fn note(&self, ring: u64, completed: u64) {
        self.0[usize::try_from(ring).unwrap()].store(completed, Ordering::Relaxed);
    }

    pub(crate) fn least(&self) -> u64 {
        self.0.iter().map(|ring| ring.load(Ordering::Relaxed)).min().unwrap()
    }
}

fn below(random: &mut Seeded, bound: u64) -> usize {
    usize::try_from(random.below(bound)).unwrap()
}

#[test]
fn thousands_of_moves_under_load_lose_nothing_and_repeat_nothing() {
    on_both(|reactors| {
        let files = Arc::new(FileTable::default());
        let threads = iothreads::<3>(&files, reactors);
        let (node, image) = file_node(&files, RINGS * BLOCKS * BLOCK as u64);
        let mut loads: Vec<Load> = (0..RINGS).map(Load::new).collect();
        let placed: Vec<_> =
            loads.iter().map(|load| place(&load.guest, &node, &threads[0])).collect();
        let over = AtomicBool::new(false);
        let progress = Progress::default();
        std::thread::scope(|scope| {
            for load in &mut loads {
                scope.spawn(|| load.run(&over, &progress));
            }
            // Somebody else moves several at once, and names some of them twice.
            scope.spawn(|| {
                let mut random = Seeded(SEED + 1);
                while !over.load(Ordering::Relaxed) {
                    let some = |_| SourceMove {
                        source: Arc::clone(&placed[below(&mut random, RINGS)]),
                        to: Arc::clone(&threads[below(&mut random, 3)]),
                    };
                    let moves: Vec<_> = (0..6).map(some).collect();
                    move_many(&moves).into_iter().for_each(|moved| moved.unwrap());
                }
            });
            let mut random = Seeded(SEED);
            let mut moves = 0;
            // On a slow disk the requests, not the moves, say how long it takes.
            while moves < MOVES || progress.least() < REQUESTS_MIN && moves < MOVES_MAX {
                moves += 1;
                let ring = below(&mut random, RINGS);
                let to = below(&mut random, 3);
                placed[ring].move_to(&threads[to]).unwrap();
            }
            over.store(true, Ordering::Relaxed);
        });
        for (load, placed) in loads.iter().zip(placed) {
            let gauges = placed.gauges();
            assert!(gauges.moves.get() > 100 && gauges.move_ns.get() > gauges.moves.get());
            let source = placed.stop();
            assert_eq!(source.in_flight(), 0);
            let counters = source.counters();
            let counted = counters.reads + counters.writes + counters.flushes;
            assert_eq!((counted, counters.errors), (load.completed, 0));
            assert!(load.completed >= REQUESTS_MIN, "only {} requests", load.completed);
        }
        // What the guests saw completed is in the file.
        let bytes = std::fs::read(&image).unwrap();
        loads.iter().for_each(|load| load.check_image(&bytes));
    });
}
