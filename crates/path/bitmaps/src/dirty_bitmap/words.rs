//! Which bits of which words a run of granules has.

use std::ops::Range;

/// The bits of a word.
pub(super) const WORD_BITS: u64 = u64::BITS as u64;

/// The words of a run of granules, each with the bits that belong to the run.
#[derive(Debug)]
pub(super) struct WordMasks {
    granules: Range<u64>,
}

impl WordMasks {
    pub(super) fn of(granules: Range<u64>) -> Self {
        Self { granules }
    }
}

impl Iterator for WordMasks {
    type Item = (usize, u64);

    fn next(&mut self) -> Option<Self::Item> {
        let Range { start, end } = self.granules;
        if start >= end {
            return None;
        }
        let word = start / WORD_BITS;
        let from = start % WORD_BITS;
        let count = (WORD_BITS - from).min(end - start);
        self.granules.start = start + count;
        let ones = u64::MAX >> (WORD_BITS - count);
        Some((index_of(word), ones << from))
    }
}

/// The index of a word of a bitmap.
pub(super) fn index_of(word: u64) -> usize {
    usize::try_from(word).expect("the words of a bitmap are in memory")
}

/// The number of words.
pub(super) fn count_of<T>(words: &[T]) -> u64 {
    words.len() as u64
}
