//! Where the data of a ring's reads go, kept until they are answered, for the dirty log.
//!
//! Where it stands in the life of a request: beside it. As long as nothing is logged a ring does not
//! know where the data of a request are: the job has the list. When a log comes, and when the ring
//! leaves an iothread, the ring notes the lists of its open jobs; and as long as buffers are logged,
//! that of each new read.
//!
//! Invariants: while buffers are logged there is a list for each read in flight, wherever it is
//! carried out. Threads: travels with its ring.
//! Limits: a list for each read in flight, as long as its request's own (`lanes` bounds the segments of all of them);
//! beside those a number for each slot, and room for [`SPARE_MAX`] short lists. Without a log nothing is kept.

use block::SourceRequestSlot;

/// The most segments whose room a list keeps for the next read.
const ROOM_KEPT: usize = 16;

/// How many lists are kept that are not needed now.
const SPARE_MAX: usize = 64;

/// No list, as the place of one.
const NONE: u16 = u16::MAX;

/// The buffers of a ring's reads in flight, kept for the dirty log.
#[derive(Debug)]
pub(crate) struct DirtyLogReads<S> {
    /// The number of slots.
    size: u16,
    /// By slot, the place of its list. Made with the first list.
    places: Box<[u16]>,
    /// Those that are not empty, in no order.
    open: Vec<(SourceRequestSlot, Vec<S>)>,
    /// Empty ones, kept for their room.
    spare: Vec<Vec<S>>,
    /// Whether new reads are noted.
    logging: bool,
    /// Whether answers must ask here: `logging`, or a list is left. One look for each answer.
    in_use: bool,
}

impl<S> DirtyLogReads<S> {
    /// Nothing was noted yet of a ring of so many slots; new reads are if buffers are logged.
    pub(crate) fn new(size: u16, logging: bool) -> Self {
        let (places, open, spare) = (Box::default(), Vec::new(), Vec::new());
        Self { size, places, open, spare, logging, in_use: logging }
    }

    /// Whether new reads are to be noted.
    pub(crate) fn is_logging(&self) -> bool {
        self.logging
    }

    /// Whether answers are to be told ([`DirtyLogReads::answered`]).
    pub(crate) fn is_in_use(&self) -> bool {
        self.in_use
    }

    /// Notes new reads from now on, or does not.
    pub(crate) fn follow(&mut self, logging: bool) {
        self.logging = logging;
        self.look_if_in_use();
    }

    /// Notes where data of a request go, instead of what was noted of it before.
    pub(crate) fn note(&mut self, slot: SourceRequestSlot, segments: impl IntoIterator<Item = S>) {
        let mut list = self.take(slot).or_else(|| self.spare.pop()).unwrap_or_default();
        list.clear();
        list.extend(segments);
        if !list.is_empty() {
            if self.places.is_empty() {
                self.places = vec![NONE; usize::from(self.size)].into_boxed_slice();
            }
            let place = u16::try_from(self.open.len()).expect("fewer than slots, at most 32768");
            self.places[usize::from(slot.0)] = place;
            self.open.push((slot, list));
        }
        self.look_if_in_use();
    }

    /// Says what was noted of a request, which is over.
    #[cold]
    pub(crate) fn answered(&mut self, slot: SourceRequestSlot, mut mark: impl FnMut(S)) {
        let Some(mut list) = self.take(slot) else { return };
        list.drain(..).for_each(&mut mark);
        if list.capacity() <= ROOM_KEPT && self.spare.len() < SPARE_MAX {
            self.spare.push(list);
        }
        self.look_if_in_use();
    }

    /// Takes the list of a request out.
    fn take(&mut self, slot: SourceRequestSlot) -> Option<Vec<S>> {
        let place = self.places.get_mut(usize::from(slot.0))?;
        let place = usize::from(std::mem::replace(place, NONE));
        if place == usize::from(NONE) {
            return None;
        }
        let (_, list) = self.open.swap_remove(place);
        if let Some((moved, _)) = self.open.get(place) {
            self.places[usize::from(moved.0)] = u16::try_from(place).expect("it had a larger one");
        }
        Some(list)
    }

    fn look_if_in_use(&mut self) {
        self.in_use = self.logging || !self.open.is_empty();
        if self.open.is_empty() {
            self.open.shrink_to(SPARE_MAX);
        }
        if !self.in_use {
            *self = Self::new(self.size, false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOTS: u16 = 1 << 15;

    impl<S> DirtyLogReads<S> {
        /// What it keeps room for, in bytes.
        fn bytes(&self) -> usize {
            let of = |list: &Vec<S>| list.capacity() * size_of::<S>() + size_of::<Vec<S>>();
            let open = self.open.iter().map(|(_, list)| of(list)).sum::<usize>();
            let spare = self.spare.iter().map(of).sum::<usize>();
            let places = size_of_val(&*self.places) + self.open.capacity() * size_of::<usize>();
            places + open + spare
        }
    }

    fn answered(reads: &mut DirtyLogReads<u64>, slot: u16) -> Vec<u64> {
        let mut marked = Vec::new();
        reads.answered(SourceRequestSlot(slot), |segment| marked.push(segment));
        marked
    }

    #[test]
    fn what_was_noted_last_of_a_request_is_said_once() {
        let mut reads = DirtyLogReads::new(SLOTS, true);
        for slot in [7, 0, SLOTS - 1, 9] {
            reads.note(SourceRequestSlot(slot), [1, 2]);
            reads.note(SourceRequestSlot(slot), [u64::from(slot), 5, 6]);
        }
        reads.note(SourceRequestSlot(9), []);
        for slot in [0, SLOTS - 1, 7] {
            assert_eq!(answered(&mut reads, slot), [u64::from(slot), 5, 6]);
            assert!(answered(&mut reads, slot).is_empty());
        }
        assert!(answered(&mut reads, 9).is_empty());
    }

    #[test]
    fn lists_are_kept_as_long_as_they_are_needed_after_the_log_has_gone() {
        let mut reads = DirtyLogReads::new(4, true);
        reads.note(SourceRequestSlot(3), [1]);
        reads.follow(false);
        assert!(reads.is_in_use() && !reads.is_logging());
        assert_eq!(answered(&mut reads, 3), [1]);
        assert!(!reads.is_in_use());
        assert_eq!(reads.bytes(), 0);
    }

    /// Half a gigabyte for each ring, before.
    #[test]
    fn a_read_of_many_segments_on_each_head_leaves_little_behind() {
        let mut reads = DirtyLogReads::new(SLOTS, true);
        for slots in (0..SLOTS).collect::<Vec<_>>().chunks(1000) {
            slots.iter().for_each(|&slot| reads.note(SourceRequestSlot(slot), 0..1024));
            assert!(reads.bytes() <= 1000 * 1024 * 8 + (128 << 10), "{}", reads.bytes());
            for &slot in slots {
                assert_eq!(answered(&mut reads, slot).len(), 1024);
            }
        }
        assert!(reads.bytes() <= 128 << 10, "{} bytes are kept", reads.bytes());
        // Short lists are kept for the next reads.
        (0..100).for_each(|slot| reads.note(SourceRequestSlot(slot), 0..16));
        (0..100).for_each(|slot| assert_eq!(answered(&mut reads, slot).len(), 16));
        assert_eq!(reads.spare.len(), SPARE_MAX);
    }
}
