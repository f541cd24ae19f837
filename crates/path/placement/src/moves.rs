//! How often rings may be moved.
//!
//! Limits: of the pool [`POOL_PER_SECOND`] on average, of a disk [`DISK_PER_SECOND`]; a trial begins only if there is
//! something left, and may then use more than there is.

/// Moves per second of all rings, and how many may be saved up.
const POOL_PER_SECOND: f64 = 200.0;
const POOL_SAVED: f64 = 1000.0;
/// The same of one disk.
const DISK_PER_SECOND: f64 = 60.0;
const DISK_SAVED: f64 = 500.0;

/// What is left of an allowance that grows with time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MoveBudget {
    left: f64,
    per_second: f64,
    saved: f64,
}

impl MoveBudget {
    pub(crate) fn of_pool() -> Self {
        Self { left: POOL_SAVED, per_second: POOL_PER_SECOND, saved: POOL_SAVED }
    }

    pub(crate) fn of_disk() -> Self {
        Self { left: DISK_SAVED, per_second: DISK_PER_SECOND, saved: DISK_SAVED }
    }

    pub(crate) fn pass(&mut self, seconds: f64) {
        self.left = (self.left + self.per_second * seconds).min(self.saved);
    }

    pub(crate) fn take(&mut self, moves: f64) {
        self.left -= moves;
    }

    /// Whether something may begin that moves rings.
    pub(crate) fn allows(&self) -> bool {
        self.left > 0.0
    }
}
