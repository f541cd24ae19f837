//! Which mappings are in use: a cluster that was freed may be written by a request that was mapped
//! before.
//!
//! Where it stands: a lane enters the current epoch before it looks at a table, and leaves it when the
//! request is over. Whoever takes a cluster out of the tables ends the epoch, and uses the cluster
//! again only when all lanes have left that epoch and those before it.
//!
//! Threads: each lane says for itself what its oldest epoch is; anybody asks for the oldest of all.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

/// Nothing is in use.
const IDLE: u64 = u64::MAX;

/// An epoch: requests in it may still use clusters that tables named then (epoch-based reclamation).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct MappingEpoch(u64);

/// The current epoch of an image, and the oldest that each lane still uses.
#[derive(Debug, Default)]
pub(crate) struct Epochs {
    now: AtomicU64,
    /// The oldest epoch of each lane.
    lanes: Mutex<Vec<Weak<AtomicU64>>>,
}

impl Epochs {
    /// A lane joins.
    pub(crate) fn join(self: &Arc<Self>) -> LaneEpochs {
        let oldest = Arc::new(AtomicU64::new(IDLE));
        let mut lanes = self.lanes.lock().expect("nobody panics here");
        lanes.retain(|lane| lane.strong_count() > 0);
        lanes.push(Arc::downgrade(&oldest));
        drop(lanes);
        LaneEpochs { epochs: Arc::clone(self), oldest, open: VecDeque::new() }
    }

    /// Ends the current epoch and returns it. What was taken out of the tables before may be in use
    /// until it has passed.
    pub(crate) fn end(&self) -> MappingEpoch {
        MappingEpoch(self.now.fetch_add(1, Ordering::SeqCst))
    }

    /// The oldest epoch that is in use, or that will be: those before it have passed.
    pub(crate) fn oldest(&self) -> MappingEpoch {
        // Read first: a lane that enters later enters this one or a later one.
        let now = self.now.load(Ordering::SeqCst);
        std::sync::atomic::fence(Ordering::SeqCst);
        let lanes = self.lanes.lock().expect("nobody panics here");
        let oldest = lanes.iter().filter_map(Weak::upgrade);
        // See `LaneEpochs::enter` for why a lane that is found idle is idle.
        MappingEpoch(oldest.map(|oldest| oldest.load(Ordering::SeqCst)).fold(now, u64::min))
    }
}

/// The epochs that one lane's requests in flight were mapped in.
#[derive(Debug)]
pub(crate) struct LaneEpochs {
    epochs: Arc<Epochs>,
    oldest: Arc<AtomicU64>,
    /// How many requests are in each epoch, oldest first.
    open: VecDeque<(u64, usize)>,
}

impl LaneEpochs {
    /// So many more requests are in an epoch that this lane has entered and not left.
    pub(crate) fn join(&mut self, epoch: MappingEpoch, requests: usize) {
        let place = self.open.iter().rposition(|(open, _)| *open == epoch.0);
        self.open[place.expect("it was not left")].1 += requests;
    }

    /// Enters the current epoch; tables may be looked at from now on.
    pub(crate) fn enter(&mut self) -> MappingEpoch {
        if self.open.is_empty() {
            let now = self.epochs.now.load(Ordering::Acquire);
            // Whoever asks for the oldest has a fence between taking the cluster out of the tables and asking, this lane one
            // between this and looking at the tables. If the other fence was first, this lane finds the cluster gone;
            // otherwise this is seen.
            self.oldest.store(now, Ordering::Relaxed);
            std::sync::atomic::fence(Ordering::SeqCst);
            self.open.push_back((now, 1));
            return MappingEpoch(now);
        }
        // An older epoch is said already.
        let now = self.epochs.now.load(Ordering::Acquire);
        let last = self.open.back_mut().expect("just seen");
        if last.0 == now {
            last.1 += 1;
        } else {
            self.open.push_back((now, 1));
        }
        MappingEpoch(now)
    }

    /// Leaves an epoch that was entered.
    #[inline]
    pub(crate) fn leave(&mut self, epoch: MappingEpoch) {
        if let Some((oldest, count)) = self.open.front_mut()
            && *oldest == epoch.0
            && *count > 1
        {
            *count -= 1;
            return;
        }
        self.leave_any(epoch);
    }

    fn leave_any(&mut self, epoch: MappingEpoch) {
        let place = self.open.iter().position(|(open, _)| *open == epoch.0);
        let place = place.expect("an epoch is left by who has entered it");
        self.open[place].1 -= 1;
        let mut changed = false;
        while self.open.front().is_some_and(|(_, count)| *count == 0) {
            self.open.pop_front();
            changed = true;
        }
        if changed {
            let oldest = self.open.front().map_or(IDLE, |(epoch, _)| *epoch);
            // What was done in it comes before.
            self.oldest.store(oldest, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_epoch_passes_when_all_have_left_it() {
        let epochs = Arc::new(Epochs::default());
        let (mut one, mut other) = (epochs.join(), epochs.join());
        let (first, second) = (one.enter(), other.enter());
        let ended = epochs.end();
        let late = one.enter();
        assert!(epochs.oldest() <= ended, "two are in it");
        one.leave(first);
        assert!(epochs.oldest() <= ended, "one is in it");
        other.leave(second);
        assert!(epochs.oldest() > ended, "those that came later do not count");
        one.leave(late);
        assert!(epochs.oldest() > ended);
        let next = epochs.end();
        assert!(epochs.oldest() > next, "nobody is in it");
    }
}
