//! How many changes a server has answered, and how many of them a flush has made durable.
//!
//! Where it stands: lines count here; whoever closes the node asks whether there is anything to flush. So a disk that
//! nobody has changed is closed without a word to a server that may be gone.
//!
//! Invariants: a change is counted before its answer reaches anybody, and a flush covers what was counted before it was
//! sent. So what counts as durable is so; what is not may be. Threads: any.

use std::sync::atomic::{AtomicU64, Ordering};

/// The changes of a node's users, counted, and the flushes among them.
#[derive(Debug, Default)]
pub(crate) struct FlushCoverage {
    changes: AtomicU64,
    durable: AtomicU64,
}

/// The changes that a flush covers: those that were answered before it was sent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct CoveredChanges(u64);

impl FlushCoverage {
    /// A change that is durable only with a flush is about to be answered.
    pub(crate) fn add_change(&self) {
        self.changes.fetch_add(1, Ordering::AcqRel);
    }

    /// What a flush covers that is sent now.
    pub(crate) fn now(&self) -> CoveredChanges {
        CoveredChanges(self.changes.load(Ordering::Acquire))
    }

    /// A flush has succeeded.
    pub(crate) fn flushed(&self, CoveredChanges(changes): CoveredChanges) {
        self.durable.fetch_max(changes, Ordering::AcqRel);
    }

    /// Whether all changes that were answered are durable.
    pub(crate) fn is_complete(&self) -> bool {
        // In this order: what is added meanwhile is found, or belongs to somebody who has no answer yet.
        let durable = self.durable.load(Ordering::Acquire);
        durable == self.changes.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flush_covers_what_was_answered_before_it_was_sent() {
        let coverage = FlushCoverage::default();
        assert!(coverage.is_complete(), "nothing was changed");
        coverage.add_change();
        let first = coverage.now();
        coverage.add_change();
        let second = coverage.now();
        coverage.flushed(second);
        assert!(coverage.is_complete());
        // A flush that is answered late takes nothing back.
        coverage.flushed(first);
        assert!(coverage.is_complete());
        coverage.add_change();
        coverage.flushed(second);
        assert!(!coverage.is_complete());
    }
}
