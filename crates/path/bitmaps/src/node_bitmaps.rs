//! The named bitmaps of one node, and what may be done with each: QEMU's rules and its sentences.
//!
//! Where it stands: the graph keeps one set for each node that has bitmaps, commands change it, a recorder sets what was
//! changed in those that record, exports and jobs use single bitmaps.
//!
//! Invariants: what is done in place loses no change that is recorded meanwhile: bits are cleared and merged where they are.
//! What is taken back ([`NodeBitmaps::undo`]), frozen or resized is exact only while no change of the node is in flight. A
//! bitmap that is used by an export or a job is changed by nobody else.
//! Threads: any. Lanes look at a number to see whether they know which bitmaps record; the mutex is for commands.
//! Limits: [`BITMAPS_MAX`], [`NAME_BYTES_MAX`], [`NODE_BYTES_MAX`].

mod named;
mod users;

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};

use block::{DiskSize, SECTOR_BYTES};

use crate::sync::{AtomicU64, Ordering};
use crate::{BitmapError, DirtyBitmap, Granularity};
use named::{Contents, NamedBitmap, Use};

pub use users::{BusyBitmap, FrozenBitmap};

/// The most bitmaps of a node, as many as a qcow2 image has in QEMU.
pub const BITMAPS_MAX: usize = 65535;

/// The longest name, in bytes: QEMU's.
pub const NAME_BYTES_MAX: usize = 1023;

/// The most memory of all bitmaps of a node: 2 GiB.
pub const NODE_BYTES_MAX: u64 = 2 << 30;

/// The named bitmaps of a node.
#[derive(Debug)]
pub struct NodeBitmaps {
    /// Another number whenever others record.
    generation: AtomicU64,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    size: DiskSize,
    /// The most bytes that it has had: what it has not now, and gets again, is not what it was.
    most_bytes: u64,
    /// The newest first, as QEMU lists them.
    bitmaps: Vec<NamedBitmap>,
}

/// The bitmaps of a node that record changes, as far as a lane knows.
#[derive(Debug, Default)]
pub struct RecordingBitmaps {
    /// The number of the set that they are of; none at first.
    generation: Option<u64>,
    bitmaps: Vec<Arc<DirtyBitmap>>,
    is_alone: bool,
}

impl RecordingBitmaps {
    /// These bytes may have been changed.
    pub fn set(&self, changed: &[Range<u64>]) {
        self.bitmaps.iter().for_each(|bitmap| bitmap.set_all_of(changed));
    }

    /// Whether the node has no bitmaps at all, also none that record nothing.
    pub fn is_alone(&self) -> bool {
        self.is_alone
    }
}

/// Whether a bitmap records changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recording {
    /// It does.
    On,
    /// It keeps what it has.
    Off,
}

/// Where a bitmap is when its node is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Persistence {
    /// Nowhere.
    Volatile,
    /// In the image.
    Kept,
}

/// A bitmap that is to be added.
#[derive(Debug, Clone)]
pub struct NewBitmap {
    /// Its name.
    pub name: String,
    /// How many bytes share a bit.
    pub granularity: Granularity,
    /// Whether it records.
    pub recording: Recording,
    /// Whether it is kept.
    pub persistence: Persistence,
}

/// What is known of a bitmap (QEMU's `BlockDirtyInfo`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BitmapInfo {
    /// Its name.
    pub name: String,
    /// How many bytes are dirty.
    pub count: u64,
    /// How many bytes share a bit.
    pub granularity: Granularity,
    /// Whether it, or what takes its place, records.
    pub recording: Recording,
    /// Whether an export or a job uses it.
    pub is_busy: bool,
    /// Whether it is kept in the image.
    pub persistence: Persistence,
    /// Whether it was not stored when its image was used last: it can only be removed.
    pub is_inconsistent: bool,
}

/// A bitmap as it is stored, or changes hands.
#[derive(Debug)]
pub struct StoredBitmap {
    /// Its name.
    pub name: String,
    /// How many bytes share a bit.
    pub granularity: Granularity,
    /// Whether it is to record.
    pub recording: Recording,
    /// Its bits; none of one that is inconsistent.
    pub bits: Option<Arc<DirtyBitmap>>,
}

/// How something that was done with a bitmap is taken back.
#[derive(Debug)]
#[must_use = "what it is of is taken back with it, or stays"]
pub struct BitmapUndo(UndoStep);

#[derive(Debug)]
enum UndoStep {
    Add(String),
    Remove(usize, NamedBitmap),
    Record(String, Recording),
    Change(String, DirtyBitmap),
}

/// Why something cannot be done with a bitmap. QEMU's sentences where it has some.
#[derive(Debug, thiserror::Error)]
pub enum BitmapRefusal {
    /// It has no name.
    #[error("Bitmap name cannot be empty")]
    NoName,
    /// Its name has more than [`NAME_BYTES_MAX`].
    #[error("Bitmap name too long: {0}")]
    LongName(String),
    /// The name is taken.
    #[error("Bitmap already exists: {0}")]
    Exists(String),
    /// There is none of that name.
    #[error("Dirty bitmap '{0}' not found")]
    Missing(String),
    /// An export or a job uses it.
    #[error("Bitmap '{0}' is currently in use by another operation and cannot be used")]
    Busy(String),
    /// It was not stored when its image was used last.
    #[error("Bitmap '{0}' is inconsistent and cannot be used")]
    Inconsistent(String),
    /// One of a disk of another size.
    #[error(
        "Bitmaps are of different sizes (destination size is {target}, source size is {source_bytes}) and can't be merged"
    )]
    Sizes {
        /// Of the one that is merged into.
        target: u64,
        /// Of the other one.
        source_bytes: u64,
    },
    /// A node has [`BITMAPS_MAX`] of them.
    #[error("a node has {BITMAPS_MAX} bitmaps at most")]
    TooMany,
    /// All of a node have [`NODE_BYTES_MAX`].
    #[error("the bitmaps of a node take {NODE_BYTES_MAX} bytes of memory at most")]
    NodeMemory,
    /// There is no memory for it.
    #[error(transparent)]
    Bitmap(#[from] BitmapError),
}

impl NodeBitmaps {
    /// None yet, of a node of that size.
    pub fn new(size: DiskSize) -> Arc<Self> {
        let state = State { size, most_bytes: size.0.0, bitmaps: Vec::new() };
        Arc::new(Self { generation: AtomicU64::new(0), state: Mutex::new(state) })
    }

    /// Whether [`Self::recording`] would still give these.
    pub fn is_current(&self, known: &RecordingBitmaps) -> bool {
        known.generation == Some(self.generation.load(Ordering::Acquire))
    }

    /// The bitmaps in which changes are to be recorded, by now.
    pub fn recording(&self) -> RecordingBitmaps {
        let state = self.state();
        let bitmaps = state.bitmaps.iter().filter_map(NamedBitmap::records_in).cloned().collect();
        let generation = Some(self.generation.load(Ordering::Relaxed));
        RecordingBitmaps { generation, bitmaps, is_alone: state.bitmaps.is_empty() }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.state().bitmaps.is_empty()
    }

    /// How many there are, and the memory in bytes that they take at most.
    pub fn memory(&self) -> (usize, u64) {
        let state = self.state();
        (state.bitmaps.len(), state.memory())
    }

    /// What is known of each.
    pub fn describe(&self) -> Vec<BitmapInfo> {
        let all = self.state().bitmaps.iter().map(NamedBitmap::describe).collect::<Vec<_>>();
        // Lanes do not wait while marks are counted.
        let counted = all.into_iter().map(|(info, bits)| {
            let count = bits.map_or(0, |bits| bits.count_bytes());
            BitmapInfo { count, ..info }
        });
        counted.collect()
    }

    /// The bits of a bitmap that can be used, by whom else ever.
    pub fn bits(&self, name: &str) -> Result<Arc<DirtyBitmap>, BitmapRefusal> {
        let state = self.state();
        Ok(Arc::clone(state.find(name)?.bits()?))
    }

    /// Adds a bitmap.
    pub fn add(&self, new: &NewBitmap) -> Result<BitmapUndo, BitmapRefusal> {
        let mut state = self.state();
        state.check_new(&new.name, new.granularity)?;
        let bits = Arc::new(DirtyBitmap::new(state.size, new.granularity)?);
        let NewBitmap { name, recording, persistence, .. } = new.clone();
        let undo = BitmapUndo(UndoStep::Add(name.clone()));
        let contents = Contents::Bits(bits);
        state.bitmaps.insert(0, NamedBitmap::new(name, contents, recording, persistence));
        self.changed(&state);
        Ok(undo)
    }

    /// Adds one that was found in the image.
    pub fn add_stored(&self, stored: StoredBitmap) -> Result<(), BitmapRefusal> {
        let mut state = self.state();
        state.add(Persistence::Kept, stored)?;
        self.changed(&state);
        Ok(())
    }

    /// All of them, the oldest first, as another process goes on with them. No change of the node is in flight, and no job uses
    /// one of them.
    pub fn all(&self) -> Vec<(Persistence, StoredBitmap)> {
        self.state().bitmaps.iter().rev().map(NamedBitmap::contents).collect()
    }

    /// Goes on with one of another process, in place of what is known of it here. It is of a disk of this size.
    pub fn adopt(
        &self,
        persistence: Persistence,
        adopted: StoredBitmap,
    ) -> Result<(), BitmapRefusal> {
        let mut state = self.state();
        state.bitmaps.retain(|it| it.name() != adopted.name);
        state.add(persistence, adopted)?;
        self.changed(&state);
        Ok(())
    }

    /// The persistent ones, as they are to be stored, the oldest first.
    pub fn persistent(&self) -> Vec<StoredBitmap> {
        let state = self.state();
        state.bitmaps.iter().rev().filter_map(NamedBitmap::stored).collect()
    }

    /// The names of those that are lost with this process.
    pub fn volatile(&self) -> Vec<String> {
        let state = self.state();
        let volatile = state.bitmaps.iter().filter(|it| !it.is_persistent());
        volatile.map(|it| it.name().to_owned()).collect()
    }

    /// Removes a bitmap.
    pub fn remove(&self, name: &str) -> Result<BitmapUndo, BitmapRefusal> {
        let mut state = self.state();
        let place = state.place_of(name)?;
        state.bitmaps[place].check_free()?;
        let gone = state.bitmaps.remove(place);
        self.changed(&state);
        Ok(BitmapUndo(UndoStep::Remove(place, gone)))
    }

    /// Removes all that are persistent: they are in the image by now, and somebody else's. None of them is in use.
    pub fn forget_persistent(&self) {
        let mut state = self.state();
        state.bitmaps.retain(|it| !it.is_persistent());
        self.changed(&state);
    }

    /// Has a bitmap record, or not.
    pub fn set_recording(&self, name: &str, to: Recording) -> Result<BitmapUndo, BitmapRefusal> {
        let mut state = self.state();
        let bitmap = state.find_mut(name)?;
        bitmap.check_usable()?;
        let undo = BitmapUndo(UndoStep::Record(name.to_owned(), bitmap.set_recording(to)));
        self.changed(&state);
        Ok(undo)
    }

    /// Cleans a bitmap. What is recorded while it is done may stay.
    pub fn clear(&self, name: &str) -> Result<BitmapUndo, BitmapRefusal> {
        let bits = self.usable_bits(name)?;
        let undo = BitmapUndo(UndoStep::Change(name.to_owned(), bits.duplicate()?));
        bits.clear(0..bits.size().0.0);
        Ok(undo)
    }

    /// A clean bitmap into which others are merged, to be merged into that one then.
    pub fn begin_merge(&self, target: &str) -> Result<DirtyBitmap, BitmapRefusal> {
        let state = self.state();
        Ok(DirtyBitmap::new(state.size, state.find(target)?.granularity())?)
    }

    /// Merges a bitmap of this node into that one.
    pub fn merge_from(&self, name: &str, into: &DirtyBitmap) -> Result<(), BitmapRefusal> {
        let bits = self.usable_bits(name)?;
        check_sizes(into, &bits)?;
        into.merge(&bits);
        Ok(())
    }

    /// Marks in a bitmap of this node what is marked in that one.
    pub fn merge_into(&self, name: &str, from: &DirtyBitmap) -> Result<BitmapUndo, BitmapRefusal> {
        let bits = self.usable_bits(name)?;
        check_sizes(&bits, from)?;
        let undo = BitmapUndo(UndoStep::Change(name.to_owned(), bits.duplicate()?));
        bits.merge(from);
        Ok(undo)
    }

    /// Takes back what was done last.
    pub fn undo(&self, BitmapUndo(step): BitmapUndo) {
        let mut state = self.state();
        match step {
            UndoStep::Add(name) => state.bitmaps.retain(|it| it.name() != name),
            UndoStep::Remove(place, bitmap) => state.bitmaps.insert(place, bitmap),
            UndoStep::Record(name, before) => {
                if let Ok(bitmap) = state.find_mut(&name) {
                    bitmap.set_recording(before);
                }
            }
            UndoStep::Change(name, before) => {
                if let Ok(bitmap) = state.find_mut(&name) {
                    bitmap.set_bits(Arc::new(before));
                }
            }
        }
        self.changed(&state);
    }

    /// The node has another size by now; what is new was or may have been changed. No lane is open, or the node only grew.
    pub fn catch_up(&self, size: DiskSize) -> Result<(), BitmapRefusal> {
        let mut state = self.state();
        if state.size == size {
            return Ok(());
        }
        let before = state.size.0.0;
        let resized = state.resized(size)?;
        resized.iter().flatten().for_each(|bits| bits.set(before..size.0.0));
        state.put_resized(size, resized);
        self.changed(&state);
        Ok(())
    }

    /// Gives the node another size with `resize`, and the bitmaps too: what is new is clean, as in QEMU, but for what was cut off
    /// before and comes back as zeroes. No lane is open.
    pub fn resize<E: From<BitmapRefusal>>(
        &self,
        size: DiskSize,
        resize: impl FnOnce() -> Result<(), E>,
    ) -> Result<(), E> {
        let mut state = self.state();
        let resized = state.resized(size)?;
        resize()?;
        let before = state.size.0.0;
        state.most_bytes = state.most_bytes.max(before);
        let again = before..size.0.0.min(state.most_bytes);
        if !again.is_empty() {
            resized.iter().flatten().for_each(|bits| bits.set(again.clone()));
        }
        state.put_resized(size, resized);
        self.changed(&state);
        Ok(())
    }

    /// The bits of a bitmap that nobody else uses. What takes long is done with them without the lock, which lanes take.
    fn usable_bits(&self, name: &str) -> Result<Arc<DirtyBitmap>, BitmapRefusal> {
        let state = self.state();
        let bitmap = state.find(name)?;
        bitmap.check_usable()?;
        Ok(Arc::clone(bitmap.bits()?))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder of this lock panics")
    }

    /// Others may record from now on.
    fn changed(&self, _: &MutexGuard<'_, State>) {
        self.generation.fetch_add(1, Ordering::Release);
    }
}

fn check_sizes(target: &DirtyBitmap, source: &DirtyBitmap) -> Result<(), BitmapRefusal> {
    // QEMU's disks end with a sector.
    let [target, source_bytes] =
        [target, source].map(|bits| bits.size().0.0.next_multiple_of(SECTOR_BYTES));
    if target == source_bytes {
        return Ok(());
    }
    Err(BitmapRefusal::Sizes { target, source_bytes })
}

impl State {
    fn place_of(&self, name: &str) -> Result<usize, BitmapRefusal> {
        let place = self.bitmaps.iter().position(|it| it.name() == name);
        place.ok_or_else(|| BitmapRefusal::Missing(name.to_owned()))
    }

    fn find(&self, name: &str) -> Result<&NamedBitmap, BitmapRefusal> {
        self.place_of(name).map(|place| &self.bitmaps[place])
    }

    fn find_mut(&mut self, name: &str) -> Result<&mut NamedBitmap, BitmapRefusal> {
        self.place_of(name).map(|place| &mut self.bitmaps[place])
    }

    /// Adds one that is known already.
    fn add(&mut self, persistence: Persistence, known: StoredBitmap) -> Result<(), BitmapRefusal> {
        let StoredBitmap { name, granularity, recording, bits } = known;
        self.check_new(&name, granularity)?;
        let contents = bits.map_or(Contents::Inconsistent(granularity), Contents::Bits);
        self.bitmaps.insert(0, NamedBitmap::new(name, contents, recording, persistence));
        Ok(())
    }

    /// Whether there may be another bitmap of that name.
    fn check_new(&self, name: &str, granularity: Granularity) -> Result<(), BitmapRefusal> {
        if name.is_empty() {
            return Err(BitmapRefusal::NoName);
        }
        if self.place_of(name).is_ok() {
            return Err(BitmapRefusal::Exists(name.to_owned()));
        }
        if name.len() > NAME_BYTES_MAX {
            return Err(BitmapRefusal::LongName(name.to_owned()));
        }
        if self.bitmaps.len() >= BITMAPS_MAX {
            return Err(BitmapRefusal::TooMany);
        }
        self.check_memory(DirtyBitmap::memory_of(self.size, granularity))
    }

    /// Whether there may be so many bytes more.
    fn check_memory(&self, more: u64) -> Result<(), BitmapRefusal> {
        if self.memory().saturating_add(more) > NODE_BYTES_MAX {
            return Err(BitmapRefusal::NodeMemory);
        }
        Ok(())
    }

    /// The memory that all take if all of it is touched.
    fn memory(&self) -> u64 {
        let all = self.bitmaps.iter().flat_map(NamedBitmap::all_bits);
        all.map(|bits| DirtyBitmap::memory_of(bits.size(), bits.granularity())).sum()
    }

    /// The bits of all, for that size.
    fn resized(&self, size: DiskSize) -> Result<Vec<Vec<DirtyBitmap>>, BitmapRefusal> {
        let resized = |it: &NamedBitmap| it.all_bits().map(|bits| bits.resized(size)).collect();
        Ok(self.bitmaps.iter().map(resized).collect::<Result<_, BitmapError>>()?)
    }

    fn put_resized(&mut self, size: DiskSize, resized: Vec<Vec<DirtyBitmap>>) {
        self.size = size;
        self.bitmaps.iter_mut().zip(resized).for_each(|(bitmap, bits)| bitmap.put_all(bits));
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
