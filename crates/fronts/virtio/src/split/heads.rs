//! Which chains are in flight, one bit for each descriptor.

/// A set of chain heads, a bit each: the chains in flight.
#[derive(Debug)]
pub(super) struct HeadSet {
    words: Box<[u64]>,
}

impl HeadSet {
    /// The empty set, with room for heads below `size`.
    pub(super) fn none(size: u16) -> Self {
        Self { words: vec![0; usize::from(size).div_ceil(64)].into_boxed_slice() }
    }

    /// Adds a head below the size; `false` if it was there.
    pub(super) fn insert(&mut self, head: u16) -> bool {
        let (word, bit) = place(head);
        let was = self.words[word] & bit;
        self.words[word] |= bit;
        was == 0
    }

    /// Takes a head out; `false` if it was not there.
    pub(super) fn remove(&mut self, head: u16) -> bool {
        let (word, bit) = place(head);
        let Some(word) = self.words.get_mut(word) else {
            return false;
        };
        let was = *word & bit;
        *word &= !bit;
        was != 0
    }
}

fn place(head: u16) -> (usize, u64) {
    (usize::from(head / 64), 1 << (head % 64))
}
