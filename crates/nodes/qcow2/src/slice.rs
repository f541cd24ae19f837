//! Slices of L2 tables in memory: read by all threads without a lock, written through.
//!
//! Where it stands: the fast path looks entries up; tasks change them by [`L2Slice::begin_write`]: what
//! waits is written together, and is seen by others only once the kernel has it.
//!
//! Invariants: an entry in memory is in the file, or was there when it was changed last. If a write of a
//! slice has failed, the file may say anything that was to be written; nothing that the slice names is
//! written until the file says again what memory says ([`L2Slice::has_failed_write`]). One write of a slice is
//! under way at a time. A slice that is pinned or doubtful, or of which a write is under way, stays in the
//! cache: there is never a second copy of it. What is no longer in the cache says so before it may be
//! loaded again.
//! Threads: any. Locks are held for a few instructions.
//! Limits: as many slices as the cache was given, and what is pinned or doubtful besides.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::task::Waker;

use block::{FailKind, HostMemory};

use crate::geometry::{RawL2Entry, SliceNumber};

/// So much memory of writes that are over is kept, of at most a slice each.
const SPARE_MAX: usize = 64;

/// How many parts the cache has, each with a lock of its own.
const SHARDS: usize = 16;

/// A slice of an L2 table in memory, read without a lock.
#[derive(Debug)]
pub(crate) struct L2Slice {
    number: SliceNumber,
    /// The words of all entries. Empty if there is no table: then all are 0.
    words: Box<[AtomicU64]>,
    /// Words of an entry: 1 or 2.
    entry_words: usize,
    /// Odd while entries of two words are changed.
    version: AtomicU64,
    is_evicted: AtomicBool,
    /// Whether it was used since the cache last looked.
    is_used: AtomicBool,
    /// Whether a write of it has failed, and none has made up for that.
    has_failed_write: AtomicBool,
    /// Tasks that may change it.
    pins: AtomicU32,
    writes: Mutex<SliceWriteQueue>,
}

/// The changes of a slice that wait to be written, and the tasks that wait for that.
#[derive(Debug, Default)]
struct SliceWriteQueue {
    /// What the next write changes.
    waiting: Vec<(usize, RawL2Entry)>,
    is_busy: bool,
    /// Of the next write.
    next: WriteResult,
    wakers: Vec<Waker>,
}

/// What a task does next for a change of a slice: write it, wait, or take the result.
#[derive(Debug)]
pub(crate) enum WriteTurn<'a> {
    /// Write this.
    Write(SliceWrite<'a>),
    /// Another task writes: ask again when woken.
    Wait,
    /// It was written, or was not.
    Written(Result<(), FailKind>),
}

/// A write of a slice that is under way. Dropped, it has failed.
#[derive(Debug)]
pub(crate) struct SliceWrite<'a> {
    slice: &'a L2Slice,
    changes: Vec<(usize, RawL2Entry)>,
    /// Whether all of the slice is written, since it is doubtful.
    is_whole: bool,
    ending: WriteResult,
    result: Result<(), FailKind>,
}

/// The result of the write that a change is part of, once it is known. Clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct WriteResult(Arc<OnceLock<Result<(), FailKind>>>);

impl L2Slice {
    /// As it is in the file.
    pub(crate) fn loaded(number: SliceNumber, bytes: &[u8], entry_words: usize) -> Self {
        let word = |bytes: &[u8]| {
            AtomicU64::new(u64::from_be_bytes(bytes.try_into().expect("chunks of 8 bytes")))
        };
        Self::new(number, bytes.chunks_exact(8).map(word).collect(), entry_words)
    }

    /// Of a table that does not exist.
    pub(crate) fn absent(number: SliceNumber) -> Self {
        Self::new(number, Box::default(), 1)
    }

    fn new(number: SliceNumber, words: Box<[AtomicU64]>, entry_words: usize) -> Self {
        Self {
            number,
            words,
            entry_words,
            version: AtomicU64::new(0),
            is_evicted: AtomicBool::new(false),
            is_used: AtomicBool::new(true),
            has_failed_write: AtomicBool::new(false),
            pins: AtomicU32::new(0),
            writes: Mutex::default(),
        }
    }

    pub(crate) fn number(&self) -> SliceNumber {
        self.number
    }

    /// Whether its table does not exist.
    pub(crate) fn is_absent(&self) -> bool {
        self.words.is_empty()
    }

    /// Whether it is in the cache no more: another copy may be. Ask before each look, inside an epoch.
    pub(crate) fn is_evicted(&self) -> bool {
        self.is_evicted.load(Ordering::Acquire)
    }

    /// Whether the file may say something else, since a write has failed: what the slice names is not
    /// written in place, and no change is over, before another write has succeeded.
    pub(crate) fn has_failed_write(&self) -> bool {
        self.has_failed_write.load(Ordering::Acquire)
    }

    /// An entry.
    #[inline]
    pub(crate) fn entry(&self, index: usize) -> RawL2Entry {
        match (&*self.words, self.entry_words) {
            ([], _) => RawL2Entry::default(),
            (words, 1) => RawL2Entry { word: words[index].load(Ordering::Acquire), bitmap: 0 },
            (words, _) => self.wide_entry(words, index),
        }
    }

    /// An entry of two words.
    fn wide_entry(&self, words: &[AtomicU64], index: usize) -> RawL2Entry {
        loop {
            // Both words of one version: if it is the same before and after, nobody stored in between.
            let before = self.version.load(Ordering::Acquire);
            let word = words[2 * index].load(Ordering::Acquire);
            let bitmap = words[2 * index + 1].load(Ordering::Acquire);
            if before & 1 == 0 && self.version.load(Ordering::Relaxed) == before {
                return RawL2Entry { word, bitmap };
            }
            std::hint::spin_loop();
        }
    }

    /// Stores entries. One task at a time.
    fn store(&self, changes: &[(usize, RawL2Entry)]) {
        if self.entry_words == 1 {
            for (index, entry) in changes {
                self.words[*index].store(entry.word, Ordering::Release);
            }
            return;
        }
        self.version.fetch_add(1, Ordering::Acquire);
        for (index, entry) in changes {
            // Whoever sees one of these sees the odd version as well.
            self.words[2 * index].store(entry.word, Ordering::Release);
            self.words[2 * index + 1].store(entry.bitmap, Ordering::Release);
        }
        self.version.fetch_add(1, Ordering::Release);
    }

    /// Notes that it is used. Mostly only a load: the line stays shared.
    pub(crate) fn touch(&self) {
        if !self.is_used.load(Ordering::Relaxed) {
            self.is_used.store(true, Ordering::Relaxed);
        }
    }

    fn writes(&self) -> MutexGuard<'_, SliceWriteQueue> {
        self.writes.lock().expect("nobody panics here")
    }

    /// Adds changes to what the next write takes. Entries of one cluster are changed by one task at a
    /// time. None at all are a question whether the file says what memory says.
    pub(crate) fn change(&self, changes: impl Iterator<Item = (usize, RawL2Entry)>) -> WriteResult {
        let mut writes = self.writes();
        writes.waiting.extend(changes);
        writes.next.clone()
    }

    /// What to do for the changes that are part of the write with that ending.
    pub(crate) fn begin_write(&self, ending: &WriteResult, waker: &Waker) -> WriteTurn<'_> {
        let mut writes = self.writes();
        if let Some(result) = ending.0.get() {
            return WriteTurn::Written(*result);
        }
        if writes.is_busy {
            writes.wakers.push(waker.clone());
            return WriteTurn::Wait;
        }
        writes.is_busy = true;
        let changes = std::mem::take(&mut writes.waiting);
        let ending = std::mem::take(&mut writes.next);
        let is_whole = self.has_failed_write();
        WriteTurn::Write(SliceWrite {
            slice: self,
            changes,
            is_whole,
            ending,
            result: Err(FailKind::Io),
        })
    }
}

impl SliceWrite<'_> {
    /// The bytes of the slice that have to be written, whole blocks of `block` bytes, and where they
    /// begin in the slice. None if the file says it all.
    pub(crate) fn bytes(&self, block: u64, spare: &SpareMemory) -> Option<(u64, HostMemory)> {
        if self.changes.is_empty() && !self.is_whole {
            return None;
        }
        let entry_bytes = self.slice.entry_words * 8;
        let places = self.changes.iter().map(|(index, _)| index * entry_bytes);
        let (first, last) = places
            .fold((usize::MAX, 0), |(first, last), place| (first.min(place), last.max(place)));
        let block = usize::try_from(block).expect("a block fits into memory");
        let end = self.slice.words.len() * 8;
        let (start, end) = if self.is_whole {
            (0, end)
        } else {
            (first - first % block, (last + entry_bytes).next_multiple_of(block).min(end))
        };
        let mut memory = spare.take(end - start);
        let words = &self.slice.words[start / 8..];
        for (word, bytes) in words.iter().zip(memory.chunks_exact_mut(8)) {
            // Only this task changes entries now.
            bytes.copy_from_slice(&word.load(Ordering::Relaxed).to_be_bytes());
        }
        for (index, entry) in &self.changes {
            let at = index * entry_bytes - start;
            memory[at..at + 8].copy_from_slice(&entry.word.to_be_bytes());
            if entry_bytes == 16 {
                memory[at + 8..at + 16].copy_from_slice(&entry.bitmap.to_be_bytes());
            }
        }
        Some((start as u64, memory))
    }

    /// How the write ended. With success everybody sees the changes.
    pub(crate) fn finish(mut self, result: Result<(), FailKind>) {
        if result.is_ok() {
            self.slice.store(&self.changes);
            if self.is_whole {
                self.slice.has_failed_write.store(false, Ordering::Release);
            }
        }
        self.result = result;
    }
}

impl Drop for SliceWrite<'_> {
    fn drop(&mut self) {
        if self.result.is_err() {
            // Before anybody is told.
            self.slice.has_failed_write.store(true, Ordering::Release);
        }
        let mut writes = self.slice.writes();
        writes.is_busy = false;
        self.ending.0.set(self.result).expect("a write ends once");
        let wakers = std::mem::take(&mut writes.wakers);
        drop(writes);
        wakers.into_iter().for_each(Waker::wake);
    }
}

/// A slice that stays in the cache while this lives.
#[derive(Debug)]
pub(crate) struct PinnedSlice(Arc<L2Slice>);

impl PinnedSlice {
    fn new(slice: Arc<L2Slice>) -> Self {
        // Under the lock of the shard, like the look at it.
        slice.pins.fetch_add(1, Ordering::Relaxed);
        Self(slice)
    }

    /// The slice, which may go from the cache when this pin is dropped.
    pub(crate) fn slice(&self) -> &Arc<L2Slice> {
        &self.0
    }
}

impl Drop for PinnedSlice {
    fn drop(&mut self) {
        // What was done under the pin comes before the slice may go.
        self.0.pins.fetch_sub(1, Ordering::Release);
    }
}

/// Memory of writes of slices that are over, for the next ones: aligned memory is dear to allocate.
#[derive(Debug, Default)]
pub(crate) struct SpareMemory(Mutex<Vec<HostMemory>>);

impl SpareMemory {
    /// So many bytes, which hold anything.
    fn take(&self, bytes: usize) -> HostMemory {
        let spare = self.0.lock().expect("nobody panics here").pop();
        spare.filter(|memory| memory.len() == bytes).unwrap_or_else(|| HostMemory::zeroed(bytes))
    }

    /// Keeps the memory, or frees it.
    pub(crate) fn give(&self, memory: HostMemory) {
        let mut spare = self.0.lock().expect("nobody panics here");
        if spare.len() < SPARE_MAX {
            spare.push(memory);
        }
    }
}

/// The cache of L2 slices of an image.
#[derive(Debug)]
pub(crate) struct SliceCache {
    /// For writes of them.
    pub(crate) spare: SpareMemory,
    shards: Vec<Mutex<Shard>>,
    /// Of each shard.
    capacity: usize,
    /// How many slices have gone.
    evicted: AtomicU64,
}

/// A part of the slice cache with a lock of its own.
#[derive(Debug, Default)]
struct Shard {
    slices: HashMap<SliceNumber, CacheEntry>,
    /// In the order in which they are looked at when one has to go.
    clock: VecDeque<SliceNumber>,
}

/// An entry of the cache: a slice, or tasks that wait for its loading.
#[derive(Debug)]
enum CacheEntry {
    Here(Arc<L2Slice>),
    /// Some task loads it; these wait.
    Loading(Vec<Waker>),
}

/// The result of a look-up in the slice cache.
#[derive(Debug)]
pub(crate) enum CacheLookup<'a> {
    /// This.
    Here(PinnedSlice),
    /// Nothing: load it.
    Missing(SliceLoadGuard<'a>),
    /// Another task loads it: ask again when woken.
    Wait,
}

/// The right to load a slice into the cache. Dropped, others may try.
#[derive(Debug)]
pub(crate) struct SliceLoadGuard<'a> {
    cache: &'a SliceCache,
    number: SliceNumber,
    is_done: bool,
}

impl SliceCache {
    /// Room for so many slices, and a few more.
    pub(crate) fn new(slices: usize) -> Self {
        let capacity = slices.div_ceil(SHARDS).max(2);
        let shards = (0..SHARDS).map(|_| Mutex::default()).collect();
        Self { spare: SpareMemory::default(), shards, capacity, evicted: AtomicU64::new(0) }
    }

    /// For how many slices there is room.
    pub(crate) fn room(&self) -> usize {
        self.capacity * SHARDS
    }

    /// How many slices have gone from the cache so far.
    pub(crate) fn evicted(&self) -> u64 {
        // A hint when to let go of them.
        self.evicted.load(Ordering::Relaxed)
    }

    fn shard(&self, number: SliceNumber) -> MutexGuard<'_, Shard> {
        let place = usize::try_from(number.0 % SHARDS as u64).expect("one of 16");
        self.shards[place].lock().expect("nobody panics here")
    }

    /// The slice if it is here, without a pin: for the fast path.
    pub(crate) fn peek(&self, number: SliceNumber) -> Option<Arc<L2Slice>> {
        self.shard(number).slices.get(&number)?.here().cloned()
    }

    /// The slice if it is here, pinned.
    pub(crate) fn pin(&self, number: SliceNumber) -> Option<PinnedSlice> {
        let shard = self.shard(number);
        let slice = shard.slices.get(&number)?.here()?;
        slice.touch();
        Some(PinnedSlice::new(Arc::clone(slice)))
    }

    /// The slice, pinned.
    pub(crate) fn find(&self, number: SliceNumber, waker: &Waker) -> CacheLookup<'_> {
        let mut shard = self.shard(number);
        match shard.slices.get_mut(&number) {
            Some(CacheEntry::Here(slice)) => {
                slice.touch();
                CacheLookup::Here(PinnedSlice::new(Arc::clone(slice)))
            }
            Some(CacheEntry::Loading(wakers)) => {
                wakers.push(waker.clone());
                CacheLookup::Wait
            }
            None => {
                shard.slices.insert(number, CacheEntry::Loading(Vec::new()));
                CacheLookup::Missing(SliceLoadGuard { cache: self, number, is_done: false })
            }
        }
    }

    /// Whether of any slice the file may say something else than memory does.
    pub(crate) fn has_failed_writes(&self) -> bool {
        let mut shards = (0..SHARDS as u64).map(|number| self.shard(SliceNumber(number)));
        shards.any(|shard| {
            shard.slices.values().filter_map(CacheEntry::here).any(|slice| slice.has_failed_write())
        })
    }

    /// Takes out what was not used since the last call and is not in use.
    pub(crate) fn clean(&self) {
        for number in 0..SHARDS as u64 {
            let mut shard = self.shard(SliceNumber(number));
            let looks = shard.clock.len();
            self.evicted.fetch_add(shard.evict(looks, |_| false), Ordering::Relaxed);
        }
    }

    /// Takes slices out whose table did not exist and now does.
    pub(crate) fn forget_absent(&self, numbers: impl Iterator<Item = SliceNumber>) {
        for number in numbers {
            let mut shard = self.shard(number);
            let slice = shard.slices.get(&number).and_then(CacheEntry::here);
            if slice.is_some_and(|slice| slice.is_absent()) {
                shard.remove(number);
                self.evicted.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

impl SliceLoadGuard<'_> {
    /// The slice is here. If there are too many now, others go.
    pub(crate) fn done(self, slice: L2Slice) -> PinnedSlice {
        self.done_if(slice, || true).expect("it is")
    }

    /// The same if that is true in the moment when others can find the slice.
    pub(crate) fn done_if(
        mut self,
        slice: L2Slice,
        is_so: impl FnOnce() -> bool,
    ) -> Option<PinnedSlice> {
        let slice = Arc::new(slice);
        let mut shard = self.cache.shard(self.number);
        if !is_so() {
            return None;
        }
        let pinned = PinnedSlice::new(Arc::clone(&slice));
        let before = shard.slices.insert(self.number, CacheEntry::Here(slice));
        shard.clock.push_back(self.number);
        // Twice around: the first time some may have been used.
        let looks = shard.clock.len() * 2;
        let evicted = shard.evict(looks, |shard| shard.slices.len() <= self.cache.capacity);
        self.cache.evicted.fetch_add(evicted, Ordering::Relaxed);
        drop(shard);
        if let Some(CacheEntry::Loading(wakers)) = before {
            wakers.into_iter().for_each(Waker::wake);
        }
        self.is_done = true;
        Some(pinned)
    }
}

impl Drop for SliceLoadGuard<'_> {
    fn drop(&mut self) {
        if self.is_done {
            return;
        }
        let loading = self.cache.shard(self.number).slices.remove(&self.number);
        if let Some(CacheEntry::Loading(wakers)) = loading {
            wakers.into_iter().for_each(Waker::wake);
        }
    }
}

impl CacheEntry {
    fn here(&self) -> Option<&Arc<L2Slice>> {
        match self {
            Self::Here(slice) => Some(slice),
            Self::Loading(_) => None,
        }
    }
}

impl Shard {
    /// Looks at so many slices, the oldest first, and takes out those that are not in use, until this is enough. Returns
    /// how many.
    fn evict(&mut self, looks: usize, is_enough: impl Fn(&Self) -> bool) -> u64 {
        let mut evicted = 0;
        for _ in 0..looks {
            if is_enough(self) {
                break;
            }
            let Some(number) = self.clock.pop_front() else { break };
            // Others were taken out before.
            let Some(slice) = self.slices.get(&number).and_then(CacheEntry::here) else { continue };
            let in_use = slice.is_used.swap(false, Ordering::Relaxed)
                || slice.pins.load(Ordering::Acquire) > 0
                || slice.has_failed_write()
                || slice.writes().is_busy;
            if in_use {
                self.clock.push_back(number);
            } else {
                self.remove(number);
                evicted += 1;
            }
        }
        evicted
    }

    fn remove(&mut self, number: SliceNumber) {
        if let Some(CacheEntry::Here(slice)) = self.slices.remove(&number) {
            // Before another copy of it can be loaded and changed: that takes this lock.
            slice.is_evicted.store(true, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Begins the write of a change, which must be its own.
    fn begin<'a>(slice: &'a L2Slice, ending: &WriteResult) -> SliceWrite<'a> {
        match slice.begin_write(ending, Waker::noop()) {
            WriteTurn::Write(write) => write,
            turn @ (WriteTurn::Wait | WriteTurn::Written(_)) => panic!("{turn:?}"),
        }
    }

    fn change(slice: &L2Slice, index: usize) -> WriteResult {
        slice.change(std::iter::once((index, RawL2Entry { word: 7, bitmap: 0 })))
    }

    #[test]
    fn a_write_that_failed_is_told_however_late() {
        let slice = L2Slice::loaded(SliceNumber(0), &[0; 4096], 1);
        let first = change(&slice, 0);
        begin(&slice, &first.clone()).finish(Err(FailKind::NoSpace));
        for round in 0..200 {
            let result = if round % 2 == 0 { Err(FailKind::Io) } else { Ok(()) };
            begin(&slice, &change(&slice, 1)).finish(result);
        }
        let told = slice.begin_write(&first, Waker::noop());
        assert!(matches!(told, WriteTurn::Written(Err(FailKind::NoSpace))), "{told:?}");
    }

    #[test]
    fn after_a_failure_all_of_the_slice_is_written() {
        let slice = L2Slice::loaded(SliceNumber(0), &[0; 4096], 1);
        let written = |write: &SliceWrite<'_>| {
            write.bytes(512, &SpareMemory::default()).map(|(at, bytes)| (at, bytes.len()))
        };
        let write = begin(&slice, &change(&slice, 100));
        assert_eq!(written(&write), Some((512, 512)));
        // Dropped, it has failed.
        drop(write);
        assert!(slice.has_failed_write());
        let write = begin(&slice, &change(&slice, 0));
        assert_eq!(written(&write), Some((0, 4096)));
        write.finish(Ok(()));
        assert!(!slice.has_failed_write());
        assert_eq!((slice.entry(0).word, slice.entry(100).word), (7, 0));
        let write = begin(&slice, &slice.change(std::iter::empty()));
        assert_eq!(written(&write), None);
    }
}
