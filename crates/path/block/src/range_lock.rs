//! Ranges that one user at a time changes: bytes of a file, clusters of an image.
//!
//! Where it stands in the life of a request: on a file whose block is larger than a sector a change holds its aligned range
//! from before its first read to after its last write; a task of a format holds what it gives a place to.
//!
//! Invariants: a range is locked whole or not at all, and what is locked does not overlap. Whoever is refused is woken when
//! a part of that range is given back, and tries again.
//! Threads: any, shared by all iothreads; the mutex is held for a look at the ranges, never across I/O.
//! Limits: as many ranges as there are requests in flight; the room for as many is kept.

use std::future::poll_fn;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Poll, Waker};

/// Locks on byte ranges of a file or clusters of an image, shared by all threads. Clones are the same.
#[derive(Debug, Default, Clone)]
pub struct RangeLock {
    state: Arc<Mutex<State>>,
}

/// What the mutex protects: locked ranges, and who waits for which.
#[derive(Debug, Default)]
struct State {
    /// In order.
    locked: Vec<Range<u64>>,
    waiting: Vec<(Range<u64>, Waker)>,
}

impl RangeGuard {
    /// Whether it is a range of this lock.
    pub fn is_of(&self, lock: &RangeLock) -> bool {
        Arc::ptr_eq(&self.lock.state, &lock.state)
    }
}

/// A locked range. Dropped, it is given back.
#[derive(Debug)]
#[must_use = "the range is free again as soon as the guard is dropped"]
pub struct RangeGuard {
    lock: RangeLock,
    range: Range<u64>,
}

impl RangeLock {
    /// Locks the range if no part of it is locked; otherwise the waker is used once a part is given back.
    pub fn try_lock(&self, range: Range<u64>, waker: &Waker) -> Option<RangeGuard> {
        let mut state = self.state();
        let place = state.place_of(&range, waker)?;
        state.locked.insert(place, range.clone());
        Some(RangeGuard { lock: self.clone(), range })
    }

    /// Whether no part of the range is locked; otherwise the waker is used once a part is given back. For whoever needs
    /// several: what is locked and given back at once wakes others for nothing, which do the same.
    pub fn is_free(&self, range: &Range<u64>, waker: &Waker) -> bool {
        self.state().place_of(range, waker).is_some()
    }

    /// Waits until no part of the range is locked, and locks it. Two that lock several ranges do so in one order.
    pub async fn lock(&self, range: Range<u64>) -> RangeGuard {
        poll_fn(|context| {
            self.try_lock(range.clone(), context.waker()).map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }

    /// Wakes all who wait: they may have to do something else than try again.
    pub fn wake_all(&self) {
        self.state().waiting.drain(..).for_each(|(_, waker)| waker.wake());
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder of this lock panics")
    }
}

impl State {
    /// Where the range belongs if no part of it is locked; otherwise it is waited for.
    fn place_of(&mut self, range: &Range<u64>, waker: &Waker) -> Option<usize> {
        let place = self.locked.partition_point(|locked| locked.start < range.end);
        if self.locked[..place].last().is_none_or(|before| before.end <= range.start) {
            return Some(place);
        }
        // Not `will_wake`, which may tell a clone apart.
        let is_known =
            |(known, other): &(Range<u64>, Waker)| known == range && other.data() == waker.data();
        if !self.waiting.iter().any(is_known) {
            self.waiting.push((range.clone(), waker.clone()));
        }
        None
    }
}

impl Drop for RangeGuard {
    fn drop(&mut self) {
        let Range { start, end } = self.range;
        let mut state = self.lock.state();
        let place = state.locked.binary_search_by_key(&start, |locked| locked.start);
        state.locked.remove(place.expect("a guard's range is locked until it is dropped"));
        let touched = |(range, _): &mut (Range<u64>, Waker)| range.start < end && start < range.end;
        state.waiting.extract_if(.., touched).for_each(|(_, waker)| waker.wake());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::pin;
    use std::task::Context;

    #[track_caller]
    fn check(locked: Range<u64>, wanted: Range<u64>, free: bool) {
        let ranges = RangeLock::default();
        let guard = ranges.try_lock(locked, Waker::noop()).unwrap();
        assert_eq!(ranges.try_lock(wanted.clone(), Waker::noop()).is_some(), free);
        drop(guard);
        assert!(ranges.try_lock(wanted, Waker::noop()).is_some());
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

    #[test]
    fn a_lock_waits_for_those_that_it_touches_and_no_others() {
        let ranges = RangeLock::default();
        let context = &mut Context::from_waker(Waker::noop());
        let Poll::Ready(first) = pin!(ranges.lock(2..5)).poll(context) else { panic!("free") };
        for range in [0..3, 4..5, 3..4, 0..9] {
            assert!(pin!(ranges.lock(range)).poll(context).is_pending());
        }
        let mut waits = pin!(ranges.lock(4..6));
        assert!(waits.as_mut().poll(context).is_pending());
        assert!(pin!(ranges.lock(0..2)).poll(context).is_ready());
        assert!(pin!(ranges.lock(5..6)).poll(context).is_ready());
        drop(first);
        assert!(waits.as_mut().poll(context).is_ready());
    }

    #[test]
    fn who_tries_again_and_again_waits_once() {
        let ranges = RangeLock::default();
        let guard = ranges.try_lock(0..2, Waker::noop()).unwrap();
        for _ in 0..9 {
            assert!(ranges.try_lock(1..3, Waker::noop()).is_none());
        }
        assert_eq!(ranges.state().waiting.len(), 1);
        drop(guard);
        assert!(ranges.state().waiting.is_empty());
    }
}
