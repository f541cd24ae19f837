//! Files in memory that lose what was not made durable when the power goes.
//!
//! Where it stands: the end of a stack in the pure form of the suite, and what carries its pieces out.

use std::num::NonZeroU32;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result, ensure};
use block::{
    Access, Answer, BlockLimits, ByteCount, ByteOffset, Claim, ClaimError, DiskSize, Durability,
    FileId, Lane, LaneContext, LaneError, LeafLane, Mapping, Node, Piece, PieceList, Rights,
    Target,
};

use super::stack::{Chosen, Home, Parts, Shape, Subject};
use super::stamp::{SECTOR_BYTES, Stamp};
use super::{index, number};
use crate::rng::Rng;

/// The files of a stack, by their number in it.
#[derive(Debug, Default)]
pub struct Store {
    files: Mutex<Vec<Option<File>>>,
}

#[derive(Debug)]
struct File {
    now: Vec<u8>,
    durable: Vec<u8>,
    /// The sectors in which the two may differ.
    cached: Vec<bool>,
}

impl Store {
    /// A file with its first content, unless it is there already.
    pub fn make(&self, file: usize, bytes: u64) {
        let mut files = self.files();
        if files.len() <= file {
            files.resize_with(file + 1, || None);
        }
        files[file].get_or_insert_with(|| File::new(file, index(bytes)));
    }

    /// How many bytes a file has.
    pub fn size(&self, file: FileId) -> Option<u64> {
        let files = self.files();
        let file = files.get(index(file.0.into()))?.as_ref()?;
        Some(number(file.now.len()))
    }

    /// Copies bytes out of a file.
    pub fn read(&self, file: FileId, offset: u64, bytes: &mut [u8]) -> Result<()> {
        let count = bytes.len();
        self.on(file, offset, count, |file, range| bytes.copy_from_slice(&file.now[range]))
    }

    /// Copies bytes into a file.
    pub fn write(
        &self,
        file: FileId,
        offset: u64,
        bytes: &[u8],
        durability: Durability,
    ) -> Result<()> {
        self.on(file, offset, bytes.len(), |file, range| {
            file.now[range.clone()].copy_from_slice(bytes);
            file.changed(range, durability);
        })
    }

    /// Zeroes bytes of a file.
    pub fn zero(
        &self,
        file: FileId,
        offset: u64,
        count: u64,
        durability: Durability,
    ) -> Result<()> {
        self.on(file, offset, index(count), |file, range| {
            file.now[range.clone()].fill(0);
            file.changed(range, durability);
        })
    }

    /// Makes all of a file durable.
    pub fn flush(&self, file: FileId) -> Result<()> {
        self.on(file, 0, 0, |file, _| {
            for sector in 0..file.cached.len() {
                if file.cached[sector] {
                    file.keep(sector);
                }
            }
        })
    }

    /// The power goes: each sector that was not durable stays or is what it was.
    pub fn lose_power(&self, rng: &mut Rng) {
        for file in self.files().iter_mut().flatten() {
            for sector in 0..file.cached.len() {
                if file.cached[sector] && rng.one_in(2) {
                    let bytes = sector * SECTOR_BYTES..(sector + 1) * SECTOR_BYTES;
                    file.now[bytes.clone()].copy_from_slice(&file.durable[bytes]);
                }
                file.keep(sector);
            }
        }
    }

    fn on(
        &self,
        file: FileId,
        offset: u64,
        count: usize,
        work: impl FnOnce(&mut File, Range<usize>),
    ) -> Result<()> {
        let mut files = self.files();
        let place = index(file.0.into());
        let found = files.get_mut(place).and_then(Option::as_mut);
        let found = found.with_context(|| format!("there is no {file:?}"))?;
        let start = index(offset);
        let end = start.checked_add(count).context("the end wraps")?;
        ensure!(end <= found.now.len(), "bytes {start}..{end} lie outside {file:?}");
        work(found, start..end);
        Ok(())
    }

    fn files(&self) -> MutexGuard<'_, Vec<Option<File>>> {
        // Whoever panicked has failed the test already.
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl File {
    fn new(number_of_file: usize, bytes: usize) -> Self {
        let mut now = vec![0; bytes];
        for (sector, bytes) in now.chunks_exact_mut(SECTOR_BYTES).enumerate() {
            Stamp::of_file(number_of_file, number(sector)).fill(bytes);
        }
        Self { durable: now.clone(), cached: vec![false; bytes.div_ceil(SECTOR_BYTES)], now }
    }

    fn changed(&mut self, bytes: Range<usize>, durability: Durability) {
        let sectors = bytes.start / SECTOR_BYTES..bytes.end.div_ceil(SECTOR_BYTES);
        match durability {
            Durability::Cached => self.cached[sectors].fill(true),
            Durability::Stable => {
                for sector in sectors {
                    self.keep(sector);
                }
            }
        }
    }

    fn keep(&mut self, sector: usize) {
        let bytes = sector * SECTOR_BYTES..((sector + 1) * SECTOR_BYTES).min(self.now.len());
        self.durable[bytes.clone()].copy_from_slice(&self.now[bytes]);
        self.cached[sector] = false;
    }
}

/// A file in memory as the end of a stack.
#[derive(Debug)]
pub struct MemoryFile {
    store: Arc<Store>,
    /// At most so many sectors.
    sectors_max: u64,
}

impl MemoryFile {
    /// In this store, of up to so many sectors.
    pub fn new(store: Arc<Store>, sectors_max: u64) -> Self {
        Self { store, sectors_max }
    }
}

impl Subject for MemoryFile {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn choose(&self, rng: &mut Rng, _: &Shape) -> Option<Arc<dyn Chosen>> {
        let ceiling = self.sectors_max >> rng.below(4);
        let size = (1 + rng.below(ceiling)) * number(SECTOR_BYTES);
        Some(Arc::new(ChosenFile { store: Arc::clone(&self.store), size }))
    }
}

#[derive(Debug)]
struct ChosenFile {
    store: Arc<Store>,
    size: u64,
}

impl Chosen for ChosenFile {
    fn describe(&self) -> String {
        format!("{} B", self.size)
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn home(&self, at: u64) -> Home {
        Home::File(at)
    }

    fn build(&self, parts: Parts<'_>) -> Result<Arc<dyn Node>> {
        self.store.make(parts.file, self.size);
        let file = FileId(u32::try_from(parts.file).context("the number of a file")?);
        let size = DiskSize(ByteCount(self.size));
        Ok(Arc::new(MemoryNode { name: parts.name.to_owned(), file, size }))
    }
}

#[derive(Clone, Debug)]
struct MemoryNode {
    name: String,
    file: FileId,
    size: DiskSize,
}

impl Node for MemoryNode {
    fn name(&self) -> &str {
        &self.name
    }

    fn size(&self) -> DiskSize {
        self.size
    }

    fn limits(&self) -> BlockLimits {
        let block = NonZeroU32::new(512).expect("512 is not zero");
        BlockLimits {
            request_alignment: block,
            physical_block: block,
            discard: true,
            discard_granularity: block,
            allocation_unit: block,
        }
    }

    fn access(&self) -> Access {
        Access::ReadWrite
    }

    fn flush(&self) -> std::io::Result<()> {
        Ok(())
    }

    fn claim(&self, _: Rights) -> Result<Claim, ClaimError> {
        Ok(Claim::nothing())
    }

    fn open_lane(&self, _: &LaneContext) -> Result<Box<dyn Lane>, LaneError> {
        Ok(Box::new(MemoryLane { file: self.file }))
    }
}

#[derive(Debug)]
struct MemoryLane {
    file: FileId,
}

impl LeafLane for MemoryLane {
    fn answer(&mut self, mapping: &mut Mapping, pieces: &mut PieceList) {
        let extent = mapping.operation.extent();
        let count = extent.map_or(ByteCount(0), |extent| extent.count());
        let offset = extent.map_or(ByteOffset(0), |extent| extent.start());
        let target = Target::File { file: self.file, offset };
        mapping.answer = Answer::Now(pieces.one(Piece { skip: 0, count, target }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first(store: &Store) -> Stamp {
        let mut bytes = [0; SECTOR_BYTES];
        store.read(FileId(0), 0, &mut bytes).unwrap();
        Stamp::find(&bytes).unwrap()
    }

    #[test]
    fn only_what_was_made_durable_is_sure_to_survive() {
        let (mut lost, mut kept) = (0, 0);
        for seed in 0..64 {
            let store = Store::default();
            store.make(0, 1024);
            store.zero(FileId(0), 0, 512, Durability::Stable).unwrap();
            let mut bytes = [0; SECTOR_BYTES];
            Stamp::of_request(1, 0).fill(&mut bytes);
            store.write(FileId(0), 0, &bytes, Durability::Cached).unwrap();
            store.lose_power(&mut Rng::new(seed));
            if first(&store) == Stamp::ZEROES {
                lost += 1;
            } else {
                kept += 1;
            }
            store.write(FileId(0), 0, &bytes, Durability::Cached).unwrap();
            store.flush(FileId(0)).unwrap();
            store.lose_power(&mut Rng::new(seed));
            assert_eq!(first(&store), Stamp::of_request(1, 0));
        }
        assert!(lost > 0 && kept > 0, "{lost} and {kept}");
    }

    #[test]
    fn what_lies_outside_a_file_is_refused() {
        let store = Store::default();
        store.make(0, 1024);
        assert!(store.read(FileId(0), 1000, &mut [0; 25]).is_err());
        assert!(store.read(FileId(1), 0, &mut [0; 1]).is_err());
        assert_eq!(store.size(FileId(0)), Some(1024));
    }
}
