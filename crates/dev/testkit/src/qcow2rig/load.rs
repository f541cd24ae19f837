//! The requests of the rig, and what each sector of the disk may hold.
//!
//! Invariants: a request in flight, and a discard, may have changed each of its sectors or not. What was found after a
//! crash stays there.

use std::collections::BTreeMap;
use std::ops::Range;

use anyhow::{Context, Result, anyhow, ensure};
use block::{ByteCount, ByteOffset, DiskSize, Durability, Operation, Outcome, ZeroTerms};

use crate::conformance::history::{Effect, History, Kept, Moment};
use crate::conformance::stamp::{SECTOR_BYTES, Stamp};
use crate::conformance::{index, number};
use crate::rng::Rng;

/// What memory holds that nothing was read into.
const CANARY: u8 = 0xa5;
/// The most clusters that a request touches.
const CLUSTERS_MAX: u64 = 5;

/// A sector holds what it must not.
#[derive(Debug)]
pub(crate) struct WrongSector {
    pub(crate) sector: usize,
    pub(crate) error: anyhow::Error,
}

/// How many requests of each kind ended well.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    /// Reads.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
    /// Discards and zeroings.
    pub zeroings: u64,
    /// Flushes.
    pub flushes: u64,
    /// Those of all kinds that failed, as they may if operations fail.
    pub failed: u64,
}

impl Tally {
    /// Counts others too.
    pub fn add(&mut self, other: &Self) {
        self.reads += other.reads;
        self.writes += other.writes;
        self.zeroings += other.zeroings;
        self.flushes += other.flushes;
        self.failed += other.failed;
    }
}

/// What is asked more often.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Habits {
    /// So many requests of 100 go to hot clusters.
    hot: u64,
    /// So many of 100 are reads, discards or zeroings, flushes; the others write.
    reads: u64,
    zeroings: u64,
    flushes: u64,
    /// So many changes of 100 are stable.
    stable: u64,
    /// So many of 8 requests are for whole clusters: they come and go.
    whole: u64,
}

impl Habits {
    pub(crate) fn any(rng: &mut Rng) -> Self {
        let one_of = |rng: &mut Rng, list: &[u64]| list[rng.index(list.len())];
        Self {
            hot: one_of(rng, &[0, 50, 90]),
            reads: one_of(rng, &[5, 20, 40]),
            zeroings: one_of(rng, &[0, 5, 20, 45]),
            flushes: one_of(rng, &[0, 1, 3, 8]),
            stable: one_of(rng, &[0, 0, 20, 100]),
            whole: one_of(rng, &[0, 0, 3, 6]),
        }
    }
}

#[derive(Debug)]
struct Open {
    operation: Operation,
    begun: Moment,
}

/// The requests to one disk.
#[derive(Debug)]
pub(crate) struct Load {
    history: History,
    size: DiskSize,
    cluster: u64,
    pub(crate) habits: Habits,
    /// Clusters that many requests go to.
    hot: Vec<u64>,
    requests: u64,
    open: BTreeMap<u64, Open>,
    pub(crate) tally: Tally,
    /// Whether the disk has a right to fail.
    may_fail: bool,
}

impl Load {
    /// To a disk that holds this, with clusters of so many bytes.
    pub(crate) fn new(content: &[u8], cluster: u64, may_fail: bool, rng: &mut Rng) -> Result<Self> {
        let mut load = Self {
            history: History::new(std::iter::empty()),
            size: DiskSize(ByteCount(number(content.len()))),
            cluster,
            habits: Habits::any(rng),
            hot: Vec::new(),
            requests: 0,
            open: BTreeMap::new(),
            tally: Tally::default(),
            may_fail,
        };
        load.start_from(content)?;
        Ok(load)
    }

    /// Forgets the past: this is what the disk holds.
    pub(crate) fn start_from(&mut self, content: &[u8]) -> Result<()> {
        let stamps = content
            .chunks_exact(SECTOR_BYTES)
            .enumerate()
            .map(|(sector, bytes)| Stamp::find(bytes).with_context(|| torn(sector, bytes)));
        self.history = History::new(stamps.collect::<Result<Vec<_>>>()?.into_iter());
        Ok(())
    }

    /// Chooses other habits, and other hot clusters.
    pub(crate) fn change_habits(&mut self, rng: &mut Rng) {
        self.habits = Habits::any(rng);
        let clusters = self.size.0.0.div_ceil(self.cluster);
        let count = 1 + rng.below(4);
        self.hot = (0..count).map(|_| rng.below(clusters)).collect();
    }

    /// The next request: its number, what it asks, its memory.
    pub(crate) fn begin(&mut self, rng: &mut Rng) -> (u64, Operation, Vec<u8>) {
        let operation = self.any_operation(rng);
        self.requests += 1;
        let request = self.requests;
        let sectors = sectors_of(&operation);
        let mut data = Vec::new();
        let begun = match operation {
            Operation::Read(_) => {
                data = vec![CANARY; sectors.len() * SECTOR_BYTES];
                self.history.begin_read()
            }
            Operation::Write(..) => {
                data = vec![0; sectors.len() * SECTOR_BYTES];
                let stamp = |sector: usize| Stamp::of_request(request, number(sector));
                for (sector, bytes) in sectors.clone().zip(data.chunks_exact_mut(SECTOR_BYTES)) {
                    stamp(sector).fill(bytes);
                }
                self.history.begin_change(sectors.start, sectors.map(stamp))
            }
            Operation::Discard(..) | Operation::WriteZeroes(..) => {
                self.history.begin_change(sectors.start, sectors.map(|_| Stamp::ZEROES))
            }
            Operation::Flush => self.history.tick(),
            Operation::Status(_) => panic!("the rig asks for no status"),
        };
        self.open.insert(request, Open { operation, begun });
        (request, operation, data)
    }

    /// A request is over; `data` are what a read has found.
    pub(crate) fn end(
        &mut self,
        request: u64,
        outcome: Outcome,
        data: &[u8],
    ) -> Result<(), WrongSector> {
        let Open { operation, begun } = self.open.remove(&request).expect("it was begun");
        let sectors = sectors_of(&operation);
        let first = sectors.start;
        match operation {
            Operation::Read(_) => {
                self.tally.reads += 1;
                let found = sectors.zip(data.chunks_exact(SECTOR_BYTES));
                let judged = match outcome {
                    Outcome::Done => self.check(begun, found),
                    Outcome::Failed(_) => Ok(()),
                };
                self.history.end_read(begun);
                judged?;
            }
            Operation::Flush => {
                self.tally.flushes += 1;
                if outcome == Outcome::Done {
                    self.history.flushed(begun);
                }
            }
            Operation::Write(..) | Operation::Discard(..) | Operation::WriteZeroes(..) => {
                if matches!(operation, Operation::Write(..)) {
                    self.tally.writes += 1;
                } else {
                    self.tally.zeroings += 1;
                }
                let is_hint = matches!(operation, Operation::Discard(..));
                let effect = match outcome {
                    Outcome::Done if !is_hint => Effect::Sure,
                    Outcome::Done | Outcome::Failed(_) => Effect::Possible,
                };
                let kept = match operation.durability() {
                    Durability::Stable => Kept::AtOnce,
                    Durability::Cached => Kept::WithFlush,
                };
                self.history.end_change(first, sectors.len(), begun, effect, kept);
            }
            Operation::Status(_) => panic!("the rig asks for no status"),
        }
        match outcome {
            Outcome::Done => Ok(()),
            Outcome::Failed(_) if self.may_fail => {
                self.tally.failed += 1;
                Ok(())
            }
            Outcome::Failed(kind) => {
                let error = anyhow!("request {request}, {operation:?}, failed: {kind:?}");
                Err(WrongSector { sector: first, error })
            }
        }
    }

    /// The process has died: what was in flight may have happened or not.
    pub(crate) fn die(&mut self) {
        for Open { operation, begun } in std::mem::take(&mut self.open).into_values() {
            let sectors = sectors_of(&operation);
            match operation {
                Operation::Read(_) => self.history.end_read(begun),
                Operation::Flush | Operation::Status(_) => {}
                Operation::Write(..) | Operation::Discard(..) | Operation::WriteZeroes(..) => {
                    let (first, count) = (sectors.start, sectors.len());
                    self.history.end_change(first, count, begun, Effect::Possible, Kept::WithFlush);
                }
            }
        }
    }

    /// The power went: what was not durable may be lost.
    pub(crate) fn lose_power(&mut self) {
        self.history.lose_power();
    }

    /// Compares the whole disk.
    pub(crate) fn check_all(&mut self, content: &[u8]) -> Result<(), WrongSector> {
        let begun = self.history.begin_read();
        let judged = self.check(begun, content.chunks_exact(SECTOR_BYTES).enumerate());
        self.history.end_read(begun);
        judged
    }

    fn check<'a>(
        &self,
        begun: Moment,
        found: impl Iterator<Item = (usize, &'a [u8])>,
    ) -> Result<(), WrongSector> {
        for (sector, bytes) in found {
            let judged = match Stamp::find(bytes) {
                Some(stamp) => self.history.check(sector, begun, stamp),
                None => Err(anyhow!(torn(sector, bytes))),
            };
            judged.map_err(|error| WrongSector { sector, error })?;
        }
        Ok(())
    }

    fn any_operation(&self, rng: &mut Rng) -> Operation {
        let Habits { reads, zeroings, flushes, stable, .. } = self.habits;
        let dice = rng.below(100);
        if dice < flushes {
            return Operation::Flush;
        }
        let durability = match rng.below(100) < stable {
            true => Durability::Stable,
            false => Durability::Cached,
        };
        let extent = self.any_extent(rng);
        match dice - flushes {
            dice if dice < reads => Operation::Read(extent),
            dice if dice < reads + zeroings => match rng.below(4) {
                0 => Operation::WriteZeroes(extent, ZeroTerms::KEEP, durability),
                1 => Operation::WriteZeroes(extent, ZeroTerms::UNMAP, durability),
                _ => Operation::Discard(extent, durability),
            },
            _ => Operation::Write(extent, durability),
        }
    }

    /// Whole clusters, parts of one, or what crosses some.
    fn any_extent(&self, rng: &mut Rng) -> block::Extent {
        let (size, cluster) = (self.size.0.0, self.cluster);
        let clusters = size.div_ceil(cluster);
        let place = match self.hot.is_empty() || rng.below(100) >= self.habits.hot {
            true => rng.below(clusters),
            false => self.hot[rng.index(self.hot.len())],
        };
        let per_cluster = cluster / 512;
        let dice = rng.below(8);
        let (start, count) = match rng.below(8) {
            _ if dice < self.habits.whole => (0, cluster),
            0 => (0, cluster),
            1 => (0, cluster * (1 + rng.below(CLUSTERS_MAX))),
            2 => (rng.below(per_cluster) * 512, (1 + rng.below(per_cluster * 2)) * 512),
            3 => (rng.below(per_cluster) * 512, (1 + rng.below(per_cluster * CLUSTERS_MAX)) * 512),
            4 => (rng.below(per_cluster) * 512, 512),
            _ => {
                let count = 1 + rng.below(per_cluster.min(16));
                (rng.below(per_cluster - count + 1) * 512, count * 512)
            }
        };
        let start = (place * cluster + start).min(size - 512);
        let count = count.min(size - start);
        self.size.check(ByteOffset(start), ByteCount(count)).expect("it was cut to fit")
    }
}

/// Checks that a size is whole sectors.
pub(crate) fn check_size(bytes: u64) -> Result<()> {
    ensure!(bytes > 0 && bytes.is_multiple_of(512), "a disk of {bytes} bytes");
    Ok(())
}

fn torn(sector: usize, bytes: &[u8]) -> String {
    format!("sector {sector} holds {}", Stamp::describe_torn(bytes))
}

fn sectors_of(operation: &Operation) -> Range<usize> {
    let bytes = operation.extent().map_or(0..0, block::Extent::bytes);
    index(bytes.start) / SECTOR_BYTES..index(bytes.end).div_ceil(SECTOR_BYTES)
}
