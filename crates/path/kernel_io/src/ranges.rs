//! Who changes which range of a file now, so that a read-modify-write loses nobody's bytes.
//!
//! Where it stands in the life of a request: a file that takes only aligned I/O of more than one
//! sector may need read-modify-write; on such a file every change holds its aligned range from
//! before its first read to after its last write. Other files never come here.
//!
//! Threads: shared by all iothreads; the lock is held for a scan of the ranges, never across
//! I/O. Whoever is refused is woken when any range is given back.
//! Limits: as many ranges as there are requests in flight.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};

use crate::Notifier;

/// The ranges of one file that are being changed.
#[derive(Debug, Default, Clone)]
pub struct WriteRanges {
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    held: Vec<Range<u64>>,
    waiting: Vec<Arc<Notifier>>,
}

impl WriteRanges {
    /// Holds the range if nobody holds a part of it; otherwise `waiter` is woken once a range is
    /// given back, and should try again.
    pub fn try_hold(&self, range: Range<u64>, waiter: &Arc<Notifier>) -> Option<RangeGuard> {
        let mut state = self.lock();
        if state.held.iter().any(|held| held.start < range.end && range.start < held.end) {
            if !state.waiting.iter().any(|known| Arc::ptr_eq(known, waiter)) {
                state.waiting.push(Arc::clone(waiter));
            }
            return None;
        }
        state.held.push(range.clone());
        Some(RangeGuard { ranges: self.clone(), range })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder of this lock panics")
    }
}

/// A held range; given back when dropped.
#[derive(Debug)]
#[must_use = "the range is free again as soon as the guard is dropped"]
pub struct RangeGuard {
    ranges: WriteRanges,
    range: Range<u64>,
}

impl Drop for RangeGuard {
    fn drop(&mut self) {
        let mut state = self.ranges.lock();
        let place = state.held.iter().position(|held| *held == self.range);
        state.held.swap_remove(place.expect("a guard's range is held until the guard is dropped"));
        for waiter in state.waiting.drain(..) {
            waiter.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(held: Range<u64>, wanted: Range<u64>, free: bool) {
        let ranges = WriteRanges::default();
        let waiter = Arc::new(Notifier::new().unwrap());
        let guard = ranges.try_hold(held, &waiter).unwrap();
        assert_eq!(ranges.try_hold(wanted.clone(), &waiter).is_some(), free);
        drop(guard);
        assert!(ranges.try_hold(wanted, &waiter).is_some());
    }

    #[test]
    fn ranges_that_share_a_byte_exclude_each_other() {
        check(0..4096, 4096..8192, true);
        check(4096..8192, 0..4096, true);
        check(0..4096, 0..4096, false);
        check(0..4096, 4095..4097, false);
        check(4096..8192, 0..12288, false);
        check(0..12288, 4096..8192, false);
    }
}
