//! Files in memory that remember what each sector held since it was last durable.
//!
//! Where it stands: the kernel and the storage of the rig. Simulated iothreads and control threads begin operations,
//! apply them, and are told of their end ([`Disk::delivered`]); only then a sync that begins later covers them.
//!
//! Invariants: a sector changes as a whole. When the power goes, each holds what it held at some moment since what was
//! last made durable; a file's size likewise.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use block::{ByteCount, FileId};
use kernel_io::FileExtent;

use crate::conformance::stamp::SECTOR_BYTES;
use crate::conformance::{index, number};
use crate::rng::Rng;

/// The bytes of a sector.
pub(crate) const SECTOR: u64 = 512;

/// Names an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OpId(pub u64);

/// When a sync began.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SyncStart(u64);

/// What a sector holds; `None` is zeroes.
type Bytes = Option<Arc<[u8; SECTOR_BYTES]>>;

/// The files of the rig, by their number.
#[derive(Debug, Default)]
pub struct Disk {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    files: Vec<File>,
    /// Counts operations, ends and syncs.
    moment: u64,
    /// When the end of an operation was told, of those whose bytes may not be durable.
    delivered: BTreeMap<OpId, u64>,
    /// Operations up to this one belong to processes that have died: whoever came later knows of them.
    inherited: u64,
    /// Operations that a sync was about which has failed: no later sync covers them, and no loss of power spares them.
    lost: BTreeSet<OpId>,
}

#[derive(Debug, Default)]
struct File {
    sectors: BTreeMap<u64, Sector>,
    bytes: u64,
    durable_bytes: u64,
    /// Sizes since then, oldest first.
    later_bytes: Vec<(u64, OpId)>,
    /// Sectors that have later versions.
    cached: BTreeMap<u64, ()>,
}

#[derive(Debug, Default)]
struct Sector {
    durable: Bytes,
    /// What it held since then, oldest first.
    later: Vec<(Bytes, OpId)>,
}

impl Sector {
    fn now(&self) -> &Bytes {
        self.later.last().map_or(&self.durable, |(bytes, _)| bytes)
    }
}

impl Disk {
    /// Adds a file with this content, durably.
    pub fn add(&self, content: &[u8]) -> FileId {
        let file = FileId(u32::try_from(self.count()).expect("few files"));
        self.make(file, content);
        file
    }

    /// The same under this number; those before it that are not there are empty.
    pub(crate) fn make(&self, FileId(id): FileId, content: &[u8]) {
        let mut state = self.state();
        let mut file = File::default();
        file.bytes = number(content.len());
        file.durable_bytes = file.bytes;
        for (place, bytes) in (0..).zip(content.chunks(SECTOR_BYTES)) {
            let mut sector = [0; SECTOR_BYTES];
            sector[..bytes.len()].copy_from_slice(bytes);
            if sector.iter().any(|byte| *byte != 0) {
                let sector = Sector { durable: Some(Arc::new(sector)), later: Vec::new() };
                file.sectors.insert(place, sector);
            }
        }
        let place = index(id.into());
        if state.files.len() <= place {
            state.files.resize_with(place + 1, File::default);
        }
        state.files[place] = file;
    }

    /// A new operation.
    pub fn begin(&self) -> OpId {
        OpId(self.state().tick())
    }

    /// The size of a file now.
    pub fn bytes(&self, FileId(id): FileId) -> u64 {
        self.state().files.get(index(id.into())).map_or(0, |file| file.bytes)
    }

    /// How many files there are.
    pub(crate) fn count(&self) -> usize {
        self.state().files.len()
    }

    /// Whether there is such a file.
    pub fn has(&self, file: FileId) -> bool {
        index(file.0.into()) < self.state().files.len()
    }

    /// Stores bytes; the file grows as far as they reach.
    pub fn write(&self, file: FileId, offset: u64, bytes: &[u8], by: OpId) {
        let mut state = self.state();
        let file = state.file(file);
        for run in sectors(offset..offset + number(bytes.len())) {
            let from = index(run.start - offset);
            let bytes = &bytes[from..from + index(run.end - run.start)];
            let mut sector = file.sector(run.start / SECTOR);
            let at = index(run.start % SECTOR);
            sector[at..at + bytes.len()].copy_from_slice(bytes);
            file.put(run.start / SECTOR, Some(Arc::new(sector)), by);
        }
        let end = offset + number(bytes.len());
        if end > file.bytes && !bytes.is_empty() {
            file.bytes = end;
            file.later_bytes.push((end, by));
        }
    }

    /// Zeroes what lies inside the file, as fallocate with KEEP_SIZE does.
    pub fn zero(&self, file: FileId, bytes: Range<u64>, by: OpId) {
        let mut state = self.state();
        let file = state.file(file);
        for run in sectors(bytes.start..bytes.end.min(file.bytes)) {
            let place = run.start / SECTOR;
            if run.end - run.start == SECTOR {
                file.put(place, None, by);
                continue;
            }
            let mut sector = file.sector(place);
            let at = index(run.start % SECTOR);
            sector[at..at + index(run.end - run.start)].fill(0);
            file.put(place, Some(Arc::new(sector)), by);
        }
    }

    /// Gives a file another size. What it loses is zeroes, and what is new.
    pub fn resize(&self, file: FileId, bytes: u64, by: OpId) {
        let mut state = self.state();
        let file = state.file(file);
        let behind: Vec<u64> =
            file.sectors.range(bytes.div_ceil(SECTOR)..).map(|(at, _)| *at).collect();
        behind.into_iter().for_each(|place| file.put(place, None, by));
        if !bytes.is_multiple_of(SECTOR) && bytes < file.bytes {
            let mut last = file.sector(bytes / SECTOR);
            last[index(bytes % SECTOR)..].fill(0);
            file.put(bytes / SECTOR, Some(Arc::new(last)), by);
        }
        file.bytes = bytes;
        file.later_bytes.push((bytes, by));
    }

    /// Reads bytes. Behind the end of the file are zeroes, which a format asks for
    /// ([`block::EofPolicy`]).
    pub fn read(&self, file: FileId, offset: u64, into: &mut [u8]) {
        let mut state = self.state();
        let file = state.file(file);
        for run in sectors(offset..offset + number(into.len())) {
            let from = index(run.start - offset);
            let into = &mut into[from..from + index(run.end - run.start)];
            let at = index(run.start % SECTOR);
            match file.sectors.get(&(run.start / SECTOR)).and_then(|sector| sector.now().as_ref()) {
                Some(sector) => into.copy_from_slice(&sector[at..at + into.len()]),
                None => into.fill(0),
            }
        }
    }

    /// Whoever asked for an operation knows of its end.
    pub fn delivered(&self, op: OpId) {
        let mut state = self.state();
        let moment = state.tick();
        state.delivered.insert(op, moment);
    }

    /// A sync begins.
    pub fn begin_sync(&self) -> SyncStart {
        SyncStart(self.state().tick())
    }

    /// A sync that began then is over: what was known to have ended before is durable.
    pub fn end_sync(&self, file: FileId, began: SyncStart) {
        let mut state = self.state();
        let State { files, delivered, inherited, lost, .. } = &mut *state;
        let told = |op: &OpId| delivered.get(op).is_some_and(|moment| *moment < began.0);
        let covered = |op: &OpId| (op.0 <= *inherited || told(op)) && !lost.contains(op);
        files[index(file.0.into())].make_durable(covered);
    }

    /// A sync that began then has failed: what it was about is in the cache and nowhere else, as if it were clean.
    pub fn fail_sync(&self, file: FileId, began: SyncStart) {
        let mut state = self.state();
        let State { files, delivered, inherited, lost, .. } = &mut *state;
        let told = |op: &OpId| delivered.get(op).is_some_and(|moment| *moment < began.0);
        let versions = files[index(file.0.into())].sectors.values().flat_map(|it| &it.later);
        lost.extend(versions.map(|(_, op)| *op).filter(|op| op.0 <= *inherited || told(op)));
    }

    /// What an operation has written there is durable.
    pub fn make_stable(&self, file: FileId, bytes: &Range<u64>, by: OpId) {
        self.state().file(file).make_stable(bytes, by);
    }

    /// What the file has at the beginning of these bytes, or of some of them: bytes that were written, or a hole.
    pub fn extent(&self, file: FileId, bytes: &Range<u64>, rng: &mut Rng) -> FileExtent {
        let mut state = self.state();
        let file = state.file(file);
        let is_hole = |run: &Range<u64>| {
            file.sectors.get(&(run.start / SECTOR)).is_none_or(|sector| sector.now().is_none())
        };
        let mut runs = sectors(bytes.clone());
        let Some(first) = runs.next() else {
            return FileExtent { count: ByteCount(0), is_hole: true };
        };
        let hole = is_hole(&first);
        // Who is asked need not know of every hole.
        let is_told = hole && !rng.one_in(8);
        let end = runs.take_while(|run| is_hole(run) == hole && !rng.one_in(64)).last();
        let count = end.map_or(first.end, |last| last.end) - bytes.start;
        FileExtent { count: ByteCount(count), is_hole: is_told }
    }

    /// Makes everything durable that is there.
    pub fn settle(&self) {
        let mut state = self.state();
        state.files.iter_mut().for_each(|file| file.make_durable(|_| true));
        state.delivered.clear();
        state.lost.clear();
    }

    /// The process has closed its files: whoever comes later cannot know of syncs that have failed.
    pub fn forget_failed_syncs(&self) {
        self.state().lost.clear();
    }

    /// The process is dead, and nothing of it is in flight any more: what the kernel has stays there.
    pub fn outlive_process(&self) {
        let mut state = self.state();
        state.inherited = state.moment;
        state.delivered.clear();
        state.lost.clear();
    }

    /// The power goes: of what is not durable some survives, each sector at some moment of its own.
    pub fn lose_power(&self, rng: &mut Rng) {
        let mut state = self.state();
        let mut loss = Loss::new(rng);
        loss.fates.extend(std::mem::take(&mut state.lost).into_iter().map(|op| (op, Fate::Lost)));
        for file in &mut state.files {
            file.lose_power(&mut loss, rng);
        }
        state.delivered.clear();
    }

    /// What a file holds now.
    pub fn snapshot(&self, file: FileId) -> Snapshot {
        let mut state = self.state();
        let file = state.file(file);
        let held =
            |(place, sector): (&u64, &Sector)| Some((*place, Arc::clone(sector.now().as_ref()?)));
        Snapshot { bytes: file.bytes, sectors: file.sectors.iter().filter_map(held).collect() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn tick(&mut self) -> u64 {
        self.moment += 1;
        self.moment
    }

    fn file(&mut self, FileId(id): FileId) -> &mut File {
        &mut self.files[index(id.into())]
    }
}

impl File {
    fn sector(&self, place: u64) -> [u8; SECTOR_BYTES] {
        let now = self.sectors.get(&place).and_then(|sector| sector.now().as_deref());
        now.copied().unwrap_or([0; SECTOR_BYTES])
    }

    fn put(&mut self, place: u64, bytes: Bytes, by: OpId) {
        self.sectors.entry(place).or_default().later.push((bytes, by));
        self.cached.insert(place, ());
    }

    fn make_durable(&mut self, covered: impl Fn(&OpId) -> bool) {
        let sectors = &mut self.sectors;
        let mut end = 0;
        self.cached.retain(|place, ()| {
            let sector = sectors.get_mut(place).expect("it was changed");
            if let Some(last) = sector.later.iter().rposition(|(_, by)| covered(by)) {
                sector.durable = sector.later.drain(..=last).next_back().expect("one").0;
                end = (place + 1) * SECTOR;
            }
            !sector.later.is_empty()
        });
        if let Some(last) = self.later_bytes.iter().rposition(|(_, by)| covered(by)) {
            self.durable_bytes = self.later_bytes.drain(..=last).next_back().expect("one").0;
        }
        // Whatever is durable lies inside the file.
        self.durable_bytes = self.durable_bytes.max(end.min(self.bytes));
        self.later_bytes.retain(|(bytes, _)| *bytes > self.durable_bytes);
    }

    fn make_stable(&mut self, bytes: &Range<u64>, by: OpId) {
        for place in bytes.start / SECTOR..bytes.end.div_ceil(SECTOR) {
            let Some(sector) = self.sectors.get_mut(&place) else { continue };
            if let Some(last) = sector.later.iter().rposition(|(_, op)| *op == by) {
                sector.durable = sector.later.drain(..=last).next_back().expect("one").0;
            }
            if sector.later.is_empty() {
                self.cached.remove(&place);
            }
        }
        self.durable_bytes = self.durable_bytes.max(bytes.end.min(self.bytes));
        self.later_bytes.retain(|(bytes, _)| *bytes > self.durable_bytes);
    }

    fn lose_power(&mut self, loss: &mut Loss, rng: &mut Rng) {
        for place in std::mem::take(&mut self.cached).into_keys() {
            let sector = self.sectors.get_mut(&place).expect("it was changed");
            let mut later = std::mem::take(&mut sector.later).into_iter();
            if let Some((bytes, _)) = later.rfind(|(_, by)| loss.survives(*by, rng)) {
                sector.durable = bytes;
            }
        }
        let mut later = std::mem::take(&mut self.later_bytes).into_iter();
        if let Some((bytes, _)) = later.rfind(|(_, by)| loss.survives(*by, rng)) {
            self.durable_bytes = bytes;
        }
        self.bytes = self.durable_bytes;
        let behind = self.sectors.split_off(&self.bytes.div_ceil(SECTOR));
        drop(behind);
        let inside = index(self.bytes % SECTOR);
        if inside > 0 && self.sectors.contains_key(&(self.bytes / SECTOR)) {
            let mut last = self.sector(self.bytes / SECTOR);
            last[inside..].fill(0);
            let sector = self.sectors.get_mut(&(self.bytes / SECTOR)).expect("it is there");
            sector.durable = Some(Arc::new(last));
        }
    }
}

/// Which operations survive a loss of power.
struct Loss {
    /// Of 16 operations so many survive whole, so many in part.
    whole: u64,
    part: u64,
    fates: BTreeMap<OpId, Fate>,
}

#[derive(Clone, Copy)]
enum Fate {
    Whole,
    Part,
    Lost,
}

impl Loss {
    fn new(rng: &mut Rng) -> Self {
        let (whole, part) =
            [(0, 0), (16, 0), (1, 0), (15, 0), (8, 0), (14, 1), (0, 16), (8, 4), (4, 2)]
                [rng.index(9)];
        Self { whole, part, fates: BTreeMap::new() }
    }

    fn survives(&mut self, op: OpId, rng: &mut Rng) -> bool {
        let Self { whole, part, .. } = *self;
        let fate = *self.fates.entry(op).or_insert_with(|| match rng.below(16) {
            dice if dice < whole => Fate::Whole,
            dice if dice < whole + part => Fate::Part,
            _ => Fate::Lost,
        });
        match fate {
            Fate::Whole => true,
            Fate::Part => rng.one_in(2),
            Fate::Lost => false,
        }
    }
}

/// What a file held at one moment.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    bytes: u64,
    sectors: BTreeMap<u64, Arc<[u8; SECTOR_BYTES]>>,
}

impl Snapshot {
    /// Of a file with this content.
    pub fn of(content: &[u8]) -> Self {
        let disk = Disk::default();
        let file = disk.add(content);
        disk.snapshot(file)
    }

    /// Its size.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// What is there; zeroes behind the end.
    pub fn read(&self, offset: u64, into: &mut [u8]) {
        for run in sectors(offset..offset + number(into.len())) {
            let from = index(run.start - offset);
            let into = &mut into[from..from + index(run.end - run.start)];
            let at = index(run.start % SECTOR);
            match self.sectors.get(&(run.start / SECTOR)) {
                Some(sector) => into.copy_from_slice(&sector[at..at + into.len()]),
                None => into.fill(0),
            }
        }
    }

    /// The parts that are not zeroes, in order, to be written to a file of the host.
    pub fn parts(&self) -> impl Iterator<Item = (u64, &[u8])> {
        self.sectors.iter().map(|(place, bytes)| {
            let inside = (self.bytes - place * SECTOR).min(SECTOR);
            (place * SECTOR, &bytes[..index(inside)])
        })
    }
}

/// The range, cut where sectors end.
pub(crate) fn sectors(bytes: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let Range { mut start, end } = bytes;
    std::iter::from_fn(move || {
        let next = (start - start % SECTOR + SECTOR).min(end);
        let run = start..next;
        start = next.max(start);
        (run.start < run.end).then_some(run)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(disk: &Disk, at: u64) -> u8 {
        let mut byte = [0];
        disk.snapshot(FileId(0)).read(at, &mut byte);
        byte[0]
    }

    #[test]
    fn what_was_told_before_a_sync_began_survives_and_the_rest_may_be_lost() {
        let mut seen = BTreeSet::new();
        for seed in 0..200 {
            let disk = Disk::default();
            let file = disk.add(&[0; 1024]);
            let write = |offset, byte| {
                let op = disk.begin();
                disk.write(file, offset, &[byte], op);
                op
            };
            let first = write(0, 1);
            disk.delivered(first);
            let began = disk.begin_sync();
            let second = write(0, 2);
            disk.delivered(second);
            disk.end_sync(file, began);
            write(1, 3);
            write(4000, 4);
            disk.lose_power(&mut Rng::new(seed));
            let all = (held(&disk, 0), held(&disk, 1), disk.bytes(file), held(&disk, 4000));
            seen.insert(all);
        }
        assert!(seen.iter().all(|(first, ..)| *first > 0), "{seen:?}");
        // A sector survives as it was at some moment, with all that it held then.
        assert!(!seen.iter().any(|(first, second, ..)| (*first, *second) == (1, 3)), "{seen:?}");
        for wanted in [(1, 0, 1024, 0), (2, 0, 1024, 0), (2, 3, 1024, 0), (2, 3, 4001, 4)] {
            assert!(seen.contains(&wanted), "{wanted:?} of {seen:?}");
        }
    }

    #[test]
    fn a_read_beyond_the_end_finds_zeroes_and_a_zeroing_does_not_grow_the_file() {
        let disk = Disk::default();
        let file = disk.add(&[7; 1000]);
        disk.zero(file, 512..5000, disk.begin());
        assert_eq!(disk.bytes(file), 1000);
        let mut found = [1; 1000];
        disk.read(file, 0, &mut found);
        assert_eq!((found[511], found[512], found[999]), (7, 0, 0));
        found.fill(1);
        disk.read(file, 999, &mut found);
        assert_eq!(found, [0; 1000]);
    }
}
