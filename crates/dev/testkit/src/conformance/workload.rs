//! Random requests to a disk, and the judgement of their results.
//!
//! Where it stands: both forms of the suite ask [`Workload`] what to do next, carry it out in their own way, and give
//! back what came of it. It knows what may be there and what may fail.
//!
//! Invariants: a request that touches nothing refused ends well, one that must be refused does not, and the kind of
//! the failure is one of those that it meets.

use std::ops::Range;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use block::{
    ByteCount, ByteOffset, DiskSize, Durability, FailKind, Operation, StatusRecord, ZeroTerms,
};

use super::faults::{Mischief, Refusal, Victims};
use super::history::{Effect, History, Kept, Moment};
use super::layout::{Layout, Refusals, sector_range};
use super::stack::End;
use super::stamp::{SECTOR_BYTES, Stamp};
use super::{index, number, status};
use crate::rng::Rng;

/// What memory holds that nothing was read into.
pub const CANARY: u8 = 0xa5;

/// How requests are chosen.
#[derive(Clone, Copy, Debug)]
pub struct Habits {
    /// The most sectors of a request.
    pub sectors_max: u64,
    /// Whether requests may touch what others in flight change.
    pub overlap: Overlap,
    /// What changes ask for; random if `None`.
    pub durability: Option<Durability>,
}

/// Whether requests in flight may touch each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overlap {
    /// They may: who comes last is left open.
    Allowed,
    /// A change is alone on its sectors.
    Avoided,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// It was carried out.
    Well,
    /// It failed in this way.
    Failed(FailKind),
    /// It failed, and whoever tells it does not know the kind.
    FailedSomehow,
}

/// A request that a workload has asked for, and its memory.
#[derive(Debug)]
pub struct Request {
    /// What is asked.
    pub operation: Operation,
    /// What a write writes, or where a read or a status goes.
    pub data: Vec<u8>,
    begun: Moment,
    /// Which refusals it may have met: from this one on.
    refusals: usize,
}

/// How many requests of each kind there were.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// That ended well.
    pub done: u64,
    /// That were refused, as they had to be or might be.
    pub refused: u64,
}

/// The requests to one disk.
#[derive(Debug)]
pub struct Workload {
    layout: Layout,
    history: History,
    /// By sector: whether it was written, and the last write of it did not fail.
    is_sure: Vec<bool>,
    habits: Habits,
    size: DiskSize,
    requests: u64,
    /// For how many records the next status has room.
    records: usize,
    /// What was refused at any time, oldest first; the last is now.
    refusals: Vec<Refusals>,
    /// The sectors of requests in flight that change something, or only read.
    in_flight: Vec<(Moment, Range<usize>, bool)>,
    /// Whether what stores the bytes may fail by itself.
    may_fail: bool,
    /// What came of them.
    pub tally: Tally,
}

impl Workload {
    /// For a disk that holds what its files hold first.
    pub fn new(layout: Layout, habits: Habits) -> Self {
        let history = History::new(layout.first_content());
        let size = DiskSize(ByteCount(number(layout.ends.len() * SECTOR_BYTES)));
        let (refusals, sectors) = (vec![layout.refusals()], layout.ends.len());
        Self {
            layout,
            history,
            is_sure: vec![false; sectors],
            habits,
            size,
            requests: 0,
            records: 1,
            refusals,
            in_flight: Vec::new(),
            may_fail: false,
            tally: Tally::default(),
        }
    }

    /// From now on what stores the bytes may fail by itself.
    pub fn let_storage_fail(&mut self) {
        self.may_fail = true;
    }

    /// Where the sectors live.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// A random request, if one is found that does not meet another.
    pub fn next(&mut self, rng: &mut Rng) -> Option<Request> {
        let durability = self.habits.durability.unwrap_or_else(|| match rng.below(4) {
            0 => Durability::Stable,
            _ => Durability::Cached,
        });
        let kind = rng.below(100);
        if kind < 6 {
            return Some(self.begin(Operation::Flush));
        }
        for _ in 0..8 {
            let sectors = self.any_sectors(rng);
            let extent = self.extent(&sectors);
            let operation = match kind {
                6..46 => Operation::Read(extent),
                46..80 => Operation::Write(extent, durability),
                80..88 => Operation::Discard(extent, durability),
                88..94 => Operation::WriteZeroes(extent, ZeroTerms::KEEP, durability),
                _ => Operation::WriteZeroes(extent, ZeroTerms::UNMAP, durability),
            };
            if self.may_begin(&operation, &sectors) {
                return Some(self.begin(operation));
            }
        }
        None
    }

    /// What some random bytes are, if some are found that do not meet another request.
    pub fn next_status(&mut self, rng: &mut Rng) -> Option<Request> {
        let sectors = self.any_sectors(rng);
        self.records = 1 << rng.below(7);
        let operation = Operation::Status(self.extent(&sectors));
        self.may_begin(&operation, &sectors).then(|| self.begin(operation))
    }

    /// A read of those sectors.
    pub fn read(&mut self, sectors: &Range<usize>) -> Request {
        let extent = self.extent(sectors);
        self.begin(Operation::Read(extent))
    }

    /// A request is over. Its data are what a read has found.
    pub fn complete(&mut self, request: &Request, ended: Ended) -> Result<()> {
        let Request { operation, begun, .. } = *request;
        self.in_flight.retain(|(moment, ..)| *moment != begun);
        let judged = self.judge(request, ended);
        match ended {
            Ended::Well => self.tally.done += 1,
            Ended::Failed(_) | Ended::FailedSomehow => self.tally.refused += 1,
        }
        let sectors = operation.extent().map_or(0..0, |extent| sector_range(&extent.bytes()));
        let is_done = ended == Ended::Well;
        match operation {
            Operation::Read(_) | Operation::Status(_) => self.history.end_read(begun),
            Operation::Flush if is_done => self.history.flushed(begun),
            Operation::Flush => {}
            Operation::Write(_, durability)
            | Operation::Discard(_, durability)
            | Operation::WriteZeroes(_, _, durability) => {
                let is_sure = is_done && !matches!(operation, Operation::Discard(..));
                if !matches!(operation, Operation::Discard(..)) {
                    self.is_sure[sectors.clone()].fill(is_done);
                }
                let effect = if is_sure { Effect::Sure } else { Effect::Possible };
                let kept = match durability {
                    Durability::Stable => Kept::AtOnce,
                    Durability::Cached => Kept::WithFlush,
                };
                self.history.end_change(sectors.start, sectors.len(), begun, effect, kept);
            }
        }
        judged.with_context(|| format!("{operation:?}"))
    }

    /// Refuses something else from now on.
    pub fn change_refusals(&mut self, rng: &mut Rng) {
        for faults in self.layout.faults() {
            let refusal = rng.one_in(2).then(|| {
                let sectors = faults.size() / number(SECTOR_BYTES);
                let start = rng.below(sectors);
                let end = (start + 1 + rng.below(16)).min(sectors);
                let victims = [Victims::Reads, Victims::Changes, Victims::All, Victims::Flushes];
                let kinds = [FailKind::Io, FailKind::NoSpace, FailKind::ReadOnly];
                let sector = number(SECTOR_BYTES);
                Refusal {
                    victims: victims[rng.index(victims.len())],
                    bytes: start * sector..end * sector,
                    kind: kinds[rng.index(kinds.len())],
                }
            });
            faults.refuse(refusal);
        }
        self.refusals.push(self.layout.refusals());
    }

    /// From now on nothing is refused, held or mixed.
    pub fn end_mischief(&mut self) {
        for faults in self.layout.faults() {
            faults.refuse(None);
            faults.play(Mischief { hold_longest: Duration::ZERO, ..Mischief::default() });
        }
        self.refusals.push(self.layout.refusals());
    }

    /// The power goes: requests in flight are forgotten, and what was not durable may be lost.
    pub fn lose_power(&mut self) {
        self.in_flight.clear();
        self.history.lose_power();
    }

    fn check_below(&mut self, sector: usize, found: &[u8]) -> Result<()> {
        let begun = self.history.begin_read();
        let judged = self.check_stored(sector, begun, found);
        self.history.end_read(begun);
        judged
    }

    /// Compares a sector of a second copy with the sector of the disk that it is a copy of: if that was written, and the
    /// last write of it did not fail.
    pub fn check_copy(&mut self, sector: usize, found: &[u8]) -> Result<()> {
        match self.layout.ends[sector] {
            End::File(..) if self.is_sure[sector] => self.check_below(sector, found),
            End::File(..) | End::Zeroes | End::Nothing => Ok(()),
        }
    }

    /// Compares every sector of a file below: with the sector of the disk that lives there, or with its first content.
    pub fn check_file(&mut self, file: usize, bytes: &[u8]) -> Result<()> {
        let mut sectors = vec![None; bytes.len() / SECTOR_BYTES];
        for (sector, end) in self.layout.ends.iter().enumerate() {
            match *end {
                End::File(its, at) if its == file => {
                    let place = sectors.get_mut(index(at) / SECTOR_BYTES);
                    *place.with_context(|| format!("byte {at} of file {file}"))? = Some(sector);
                }
                End::File(..) | End::Zeroes | End::Nothing => {}
            }
        }
        for (place, found) in bytes.chunks_exact(SECTOR_BYTES).enumerate() {
            let judged = match sectors[place] {
                Some(sector) => self.check_below(sector, found),
                None if Stamp::find(found) == Some(Stamp::of_file(file, number(place))) => Ok(()),
                None => Err(anyhow!("it belongs to nobody, but was changed")),
            };
            judged.with_context(|| format!("sector {place} of file {file}"))?;
        }
        Ok(())
    }

    fn begin(&mut self, operation: Operation) -> Request {
        self.requests += 1;
        let extent = operation.extent();
        let bytes = extent.map_or(0, |extent| index(extent.count().0));
        let sectors = extent.map_or(0..0, |extent| sector_range(&extent.bytes()));
        let request = self.requests;
        let stamp = |sector: usize| Stamp::of_request(request, number(sector));
        let mut data = Vec::new();
        let begun = match operation {
            Operation::Read(_) => {
                data = vec![CANARY; bytes];
                self.history.begin_read()
            }
            Operation::Status(_) => {
                data = vec![CANARY; self.records * StatusRecord::BYTES + 3];
                self.history.begin_read()
            }
            Operation::Write(..) => {
                data = vec![0; bytes];
                for (sector, bytes) in sectors.clone().zip(data.chunks_exact_mut(SECTOR_BYTES)) {
                    stamp(sector).fill(bytes);
                }
                self.history.begin_change(sectors.start, sectors.clone().map(stamp))
            }
            Operation::Discard(..) | Operation::WriteZeroes(..) => {
                let zeroes = sectors.clone().map(|_| Stamp::ZEROES);
                self.history.begin_change(sectors.start, zeroes)
            }
            Operation::Flush => self.history.tick(),
        };
        if extent.is_some() {
            self.in_flight.push((begun, sectors, operation.is_change()));
        }
        Request { operation, data, begun, refusals: self.refusals.len() - 1 }
    }

    fn may_begin(&self, operation: &Operation, sectors: &Range<usize>) -> bool {
        let is_change = operation.is_change();
        let clashes = self.in_flight.iter().any(|(_, other, changes)| {
            (is_change || *changes) && other.start < sectors.end && sectors.start < other.end
        });
        self.habits.overlap == Overlap::Allowed || !clashes
    }

    fn extent(&self, sectors: &Range<usize>) -> block::Extent {
        let (start, count) = (sectors.start * SECTOR_BYTES, sectors.len() * SECTOR_BYTES);
        let extent = self.size.check(ByteOffset(number(start)), ByteCount(number(count)));
        extent.expect("sectors of the disk lie inside it")
    }

    /// Lengths spread evenly over the powers of two; ends that are often aligned and often not.
    fn any_sectors(&self, rng: &mut Rng) -> Range<usize> {
        let all = self.size.sectors();
        let longest = self.habits.sectors_max.min(all);
        let ceiling = (1 << rng.below(u64::from(longest.ilog2()) + 1)).min(longest);
        let mut count = 1 + rng.below(ceiling);
        let mut start = rng.below(all - count + 1);
        if rng.one_in(3) {
            let unit = 1 << rng.below(8);
            start -= start % unit;
            count = count.next_multiple_of(unit).min(all - start);
        }
        index(start)..index(start + count)
    }

    fn judge(&self, request: &Request, ended: Ended) -> Result<()> {
        let operation = &request.operation;
        let failures = self.layout.failures(operation, &self.refusals[request.refusals..]);
        let may = match ended {
            Ended::Well => {
                ensure!(!failures.must, "it should have been refused");
                return self.check_read(request);
            }
            Ended::Failed(FailKind::Io | FailKind::NoSpace) if self.may_fail => true,
            Ended::Failed(kind) => failures.may.contains(&kind),
            Ended::FailedSomehow => !failures.may.is_empty(),
        };
        ensure!(may, "it ended with {ended:?}, which nothing on its way can cause");
        Ok(())
    }

    fn check_read(&self, request: &Request) -> Result<()> {
        let extent = match request.operation {
            Operation::Read(extent) => extent,
            Operation::Status(extent) => {
                let known = (&self.layout, &self.history);
                return status::check(known, (extent, request.begun), &request.data);
            }
            Operation::Write(..)
            | Operation::Discard(..)
            | Operation::WriteZeroes(..)
            | Operation::Flush => return Ok(()),
        };
        let sectors = sector_range(&extent.bytes());
        for (sector, found) in sectors.zip(request.data.chunks_exact(SECTOR_BYTES)) {
            match self.layout.ends[sector] {
                End::File(..) => self.check_stored(sector, request.begun, found)?,
                End::Zeroes if found.iter().all(|byte| *byte == 0) => {}
                End::Nothing if found.iter().all(|byte| *byte == CANARY) => {}
                end @ (End::Zeroes | End::Nothing) => {
                    bail!("sector {sector} reads {:02x?}… from {end:?}", &found[..8]);
                }
            }
        }
        Ok(())
    }

    fn check_stored(&self, sector: usize, begun: Moment, found: &[u8]) -> Result<()> {
        let stamp = Stamp::find(found);
        let torn = || format!("sector {sector} holds {}", Stamp::describe_torn(found));
        self.history.check(sector, begun, stamp.with_context(torn)?)
    }
}
