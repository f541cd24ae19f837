//! A throttle group: limits that several disks share.
//!
//! Threads: lanes read its generation with every batch and its budget when that has changed; limits are set
//! by threads that own no ring.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use block::Clock;

use super::bucket::Nanos;
use super::bucket_set::BucketSet;
use super::limits::ThrottleLimits;
use crate::sync::{AtomicU64, Ordering};

/// Limits that several disks share (`--object throttle-group`).
#[derive(Debug)]
pub struct ThrottleGroup {
    name: String,
    clock: Arc<dyn Clock>,
    epoch: Instant,
    generation: Generation,
    budget: Mutex<Arc<BucketSet>>,
}

/// Counts changes of the limits. Alone in its cache lines: all lanes read it, and it hardly ever changes.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Generation(AtomicU64);

impl ThrottleGroup {
    /// A group with all its budget.
    pub fn new(name: &str, limits: ThrottleLimits, clock: Arc<dyn Clock>) -> Arc<Self> {
        let budget = Mutex::new(Arc::new(BucketSet::new(limits, 0)));
        let (name, epoch) = (name.to_owned(), clock.now());
        Arc::new(Self { name, clock, epoch, generation: Generation::default(), budget })
    }

    /// The object's id.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The present limits.
    pub fn limits(&self) -> ThrottleLimits {
        *self.budget().limits()
    }

    /// Replaces the limits. What is held goes by the new ones within 50 ms; what was spent by the old ones
    /// is forgotten.
    pub fn set_limits(&self, limits: ThrottleLimits) {
        let mut budget = self.budget.lock().expect("no holder of this lock panics");
        let generation = budget.generation() + 1;
        *budget = Arc::new(BucketSet::new(limits, generation));
        self.generation.0.store(generation, Ordering::Release);
    }

    pub(super) fn generation(&self) -> u64 {
        self.generation.0.load(Ordering::Acquire)
    }

    pub(super) fn budget(&self) -> Arc<BucketSet> {
        Arc::clone(&self.budget.lock().expect("no holder of this lock panics"))
    }

    pub(super) fn clock(&self) -> Arc<dyn Clock> {
        Arc::clone(&self.clock)
    }

    pub(super) fn since_epoch(&self, instant: Instant) -> Nanos {
        let nanos = instant.saturating_duration_since(self.epoch).as_nanos();
        Nanos(u64::try_from(nanos).unwrap_or(u64::MAX)).min(Nanos::MAX)
    }

    pub(super) fn instant(&self, at: Nanos) -> Instant {
        self.epoch + Duration::from_nanos(at.0)
    }
}
