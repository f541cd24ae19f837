//! One bit for each granule of a disk, set and cleared by many threads without a lock.
//!
//! Where it stands: a recorder sets what was changed, after the change ended; a job clears what it is going to copy, before
//! it reads that; a monitor counts and merges.
//!
//! Invariants: whoever clears a bit sees the change that it was set for, or the bit is set again after it was cleared: setting
//! and clearing have a fence between their two sides, so that even a bit that was found set, and is left alone, is worth what
//! one that was set now is. Bits behind the end of the disk are never set.
//! Threads: any. Limits: [`BITMAP_BYTES_MAX`]; what walks over a bitmap takes a range.
//! Not here: names, successors and who may use a bitmap when.

mod words;

use std::ops::Range;

use block::DiskSize;

use crate::Granularity;
use crate::sync::{AtomicU64, Ordering, fence, zeroed_words};
use words::{WORD_BITS, WordMasks, count_of, index_of};

/// The most memory of a bitmap: 1 GiB, that is 512 TiB with the usual 64 KiB.
pub const BITMAP_BYTES_MAX: u64 = 1 << 30;

/// Which granules of a disk are dirty.
#[derive(Debug)]
pub struct DirtyBitmap {
    granularity: Granularity,
    size: DiskSize,
    words: Box<[AtomicU64]>,
}

/// Why there is no bitmap of that size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BitmapError {
    /// It would be larger than [`BITMAP_BYTES_MAX`].
    #[error(
        "a bitmap of {disk} bytes with a granularity of {granularity} takes more than {BITMAP_BYTES_MAX} bytes of memory"
    )]
    TooLarge {
        /// The size of the disk.
        disk: u64,
        /// The granularity in bytes.
        granularity: u64,
    },
    /// The process has no memory for it.
    #[error("there is no memory for a bitmap of {bytes} bytes")]
    NoMemory {
        /// The size of the bitmap.
        bytes: u64,
    },
}

impl DirtyBitmap {
    /// A clean one for a disk.
    pub fn new(size: DiskSize, granularity: Granularity) -> Result<Self, BitmapError> {
        let bytes = Self::memory_of(size, granularity);
        if bytes > BITMAP_BYTES_MAX {
            let (disk, granularity) = (size.0.0, granularity.bytes());
            return Err(BitmapError::TooLarge { disk, granularity });
        }
        let count = index_of(bytes / 8);
        let words = zeroed_words(count).ok_or(BitmapError::NoMemory { bytes })?;
        Ok(Self { granularity, size, words })
    }

    /// The memory that one takes, in bytes, if all of it is touched. Whole words, at least one.
    pub fn memory_of(size: DiskSize, granularity: Granularity) -> u64 {
        let granules = granularity.granules_of(&(0..size.0.0)).end;
        granules.div_ceil(WORD_BITS).max(1) * 8
    }

    /// The bytes of the disk that share a bit.
    pub fn granularity(&self) -> Granularity {
        self.granularity
    }

    /// The size of the disk.
    pub fn size(&self) -> DiskSize {
        self.size
    }

    /// Marks the granules that have a part of these bytes; what lies behind the end of the disk is left out. Called after the
    /// bytes were changed. A granule that is marked already costs no write to memory that others share.
    pub fn set(&self, bytes: Range<u64>) {
        self.set_all_of(std::slice::from_ref(&bytes));
    }

    /// [`Self::set`] for many runs of bytes, all of which were changed before.
    pub fn set_all_of(&self, changed: &[Range<u64>]) {
        // Beside the one in `clear`: either the look below finds what was cleared, or who cleared finds what was changed.
        fence(Ordering::SeqCst);
        for (index, mask) in changed.iter().flat_map(|bytes| self.masks(bytes.clone())) {
            let word = &self.words[index];
            if word.load(Ordering::Relaxed) & mask != mask {
                word.fetch_or(mask, Ordering::Release);
            }
        }
    }

    /// Marks the whole disk.
    pub fn set_all(&self) {
        self.set(0..self.size.0.0);
    }

    /// Cleans the granules that have a part of these bytes, and says whether one of them was marked. Called before the bytes
    /// are read. The caller has whole granules in mind, or means all of those that it touches.
    pub fn clear(&self, bytes: Range<u64>) -> bool {
        let mut was_set = false;
        for (index, mask) in self.masks(bytes) {
            let word = &self.words[index];
            if word.load(Ordering::Relaxed) & mask != 0 {
                was_set |= word.fetch_and(!mask, Ordering::AcqRel) & mask != 0;
            }
        }
        fence(Ordering::SeqCst);
        was_set
    }

    /// Whether the granule that has this byte is marked.
    pub fn is_dirty(&self, byte: u64) -> bool {
        let granule = self.granularity.granule_of(byte);
        let bit = 1 << (granule % WORD_BITS);
        let word = usize::try_from(granule / WORD_BITS).ok().and_then(|at| self.words.get(at));
        word.is_some_and(|word| word.load(Ordering::Acquire) & bit != 0)
    }

    /// The first bytes in this range that are dirty: as many as follow each other, cut to the range and to the disk.
    pub fn next_dirty(&self, bytes: Range<u64>) -> Option<Range<u64>> {
        let limit = bytes.end.min(self.size.0.0);
        let granules = self.granularity.granules_of(&(bytes.start..limit));
        let first = self.find(granules.clone(), 0)?;
        let end = self.find(first..granules.end, u64::MAX).unwrap_or(granules.end);
        let disk = self.size.0.0;
        let start = self.granularity.start_of(first, disk).max(bytes.start);
        Some(start..self.granularity.start_of(end, disk).min(limit))
    }

    /// Whether anything is marked in this range.
    pub fn is_any_dirty(&self, bytes: Range<u64>) -> bool {
        self.next_dirty(bytes).is_some()
    }

    /// How many granules are marked.
    pub fn count_granules(&self) -> u64 {
        self.words.iter().map(|word| u64::from(word.load(Ordering::Relaxed).count_ones())).sum()
    }

    /// How many bytes the marked granules have, the last one counted as if it were whole: as QEMU counts.
    pub fn count_bytes(&self) -> u64 {
        self.count_granules().saturating_mul(self.granularity.bytes())
    }

    /// Marks what is marked in the other one, whatever its granularity.
    pub fn merge(&self, other: &Self) {
        if self.granularity == other.granularity && self.size == other.size {
            for (word, other) in self.words.iter().zip(&other.words) {
                let mask = other.load(Ordering::Acquire);
                if word.load(Ordering::Relaxed) & mask != mask {
                    word.fetch_or(mask, Ordering::AcqRel);
                }
            }
            return;
        }
        let mut at = 0;
        while let Some(run) = other.next_dirty(at..other.size.0.0) {
            at = run.end;
            self.set(run);
        }
    }

    /// One with the same marks for a disk of another size. What is new is clean, as in QEMU.
    pub fn resized(&self, size: DiskSize) -> Result<Self, BitmapError> {
        let resized = Self::new(size, self.granularity)?;
        let count = resized.words.len();
        for (index, (new, old)) in resized.words.iter().zip(&self.words).enumerate() {
            let kept = if index + 1 == count { resized.last_mask() } else { u64::MAX };
            let marks = old.load(Ordering::Acquire) & kept;
            // Memory in which nothing is marked is not touched.
            if marks != 0 {
                new.store(marks, Ordering::Relaxed);
            }
        }
        Ok(resized)
    }

    /// One with the same marks.
    pub fn duplicate(&self) -> Result<Self, BitmapError> {
        self.resized(self.size)
    }

    /// The number of words that [`Self::load_words`] can give: at least one.
    pub fn word_count(&self) -> usize {
        self.words.len()
    }

    /// The words from this one on, as many as there is room for: bit n of word m is granule 64 m + n. Behind the last
    /// one there are zeroes.
    pub fn load_words(&self, first: usize, room: &mut [u64]) {
        room.fill(0);
        let words = self.words.get(first..).unwrap_or_default();
        for (to, from) in room.iter_mut().zip(words) {
            *to = from.load(Ordering::Acquire);
        }
    }

    /// Marks what is marked in these words, as [`Self::load_words`] gives them. What lies behind the disk is left out.
    pub fn merge_words(&self, first: usize, words: &[u64]) {
        let mine = self.words.get(first..).unwrap_or_default();
        for (index, (word, mask)) in mine.iter().zip(words).enumerate() {
            let is_last = first + index + 1 == self.words.len();
            let kept = if is_last { self.last_mask() } else { u64::MAX };
            word.fetch_or(mask & kept, Ordering::AcqRel);
        }
    }

    /// The bits of the last word that belong to the disk.
    fn last_mask(&self) -> u64 {
        let granules = self.granularity.granules_of(&(0..self.size.0.0)).end;
        let bits = granules - (count_of(&self.words) - 1) * WORD_BITS;
        if bits == WORD_BITS { u64::MAX } else { (1 << bits) - 1 }
    }

    fn masks(&self, bytes: Range<u64>) -> WordMasks {
        let end = bytes.end.min(self.size.0.0);
        WordMasks::of(self.granularity.granules_of(&(bytes.start..end)))
    }

    /// The first of these granules whose bit is set in its word after that was combined with this one.
    fn find(&self, granules: Range<u64>, inverted: u64) -> Option<u64> {
        WordMasks::of(granules).find_map(|(index, mask)| {
            let found = (self.words[index].load(Ordering::Acquire) ^ inverted) & mask;
            let start = index as u64 * WORD_BITS;
            (found != 0).then(|| start + u64::from(found.trailing_zeros()))
        })
    }
}

#[cfg(all(test, not(loom)))]
mod tests;

#[cfg(all(test, loom))]
mod loom_tests;
