//! Changes of which nobody knows whether the server has made them: their connection was lost before the answer.
//!
//! Where it stands in the life of a request: between a lost connection and the answer to what was sent again. What
//! overlaps such a change waits for it, on whichever connection.
//!
//! Threads: shared by the lines of a node, behind a lock that is taken only while there are such changes.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::task::Waker;

/// By which its line knows a change: the line, and the slot there.
pub(crate) type UnknownKey = (u64, u32);

/// The changes of a node whose outcome is unknown.
#[derive(Debug, Default)]
pub(crate) struct UnknownOutcomes {
    count: AtomicUsize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    changes: Vec<(UnknownKey, Range<u64>)>,
    waiting: Vec<Waker>,
}

impl UnknownOutcomes {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder of this lock panics")
    }

    /// Whether there is none. What one thread has added before another one asks may be overlooked only if nothing orders
    /// the two: then neither does the guest.
    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    /// Nobody knows any more whether these bytes were changed.
    pub(crate) fn add(&self, key: UnknownKey, bytes: Range<u64>) {
        let mut state = self.state();
        if state.changes.iter().all(|(known, _)| *known != key) {
            state.changes.push((key, bytes));
            self.count.store(state.changes.len(), Ordering::Release);
        }
    }

    /// A change was made, or was given up and its guest told. Whoever waits is woken.
    pub(crate) fn remove(&self, key: UnknownKey) {
        let mut state = self.state();
        state.changes.retain(|(known, _)| *known != key);
        self.count.store(state.changes.len(), Ordering::Release);
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        waiting.into_iter().for_each(Waker::wake);
    }

    /// Whether such a change of another request has some of these bytes. If so, the waker is used when there is one less.
    pub(crate) fn overlaps(&self, key: UnknownKey, bytes: &Range<u64>, waker: &Waker) -> bool {
        if self.is_empty() {
            return false;
        }
        let mut state = self.state();
        let is_other = |(known, changed): &(UnknownKey, Range<u64>)| {
            *known != key && changed.start < bytes.end && bytes.start < changed.end
        };
        let overlaps = state.changes.iter().any(is_other);
        if overlaps && !state.waiting.iter().any(|known| known.will_wake(waker)) {
            state.waiting.push(waker.clone());
        }
        overlaps
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::task::Wake;

    use super::*;

    #[derive(Debug, Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn what_overlaps_a_change_of_another_request_waits_and_is_woken() {
        let (unknown, woken) = (UnknownOutcomes::default(), Arc::new(Woken::default()));
        let waker = Waker::from(Arc::clone(&woken));
        let overlaps = |key, bytes: Range<u64>| unknown.overlaps(key, &bytes, &waker);
        assert!(!overlaps((2, 0), 0..512));
        unknown.add((1, 0), 512..1024);
        unknown.add((1, 0), 512..1024);
        assert!(!overlaps((2, 0), 0..512) && !overlaps((2, 0), 1024..4096));
        assert!(!overlaps((1, 0), 512..1024), "it does not wait for itself");
        assert!(overlaps((2, 0), 1023..1025) && overlaps((1, 1), 0..4096));
        assert_eq!(woken.0.load(Ordering::Relaxed), 0);
        unknown.remove((1, 0));
        assert_eq!(woken.0.load(Ordering::Relaxed), 1);
        assert!(unknown.is_empty() && !overlaps((2, 0), 0..4096));
    }
}
