//! A clock that stands still until the test moves it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use block::{Clock, SystemClock};

/// Time as the test wants it.
#[derive(Debug)]
pub struct JumpClock {
    start: Instant,
    /// Nanoseconds since the start. Relaxed: it carries no data.
    passed: AtomicU64,
}

impl JumpClock {
    /// Some moment.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "it reads the time")]
    pub fn new() -> Self {
        Self { start: SystemClock.now(), passed: AtomicU64::new(0) }
    }

    /// Moves on to that moment; one that has passed already changes nothing.
    pub fn jump_to(&self, moment: Instant) {
        let passed = moment.saturating_duration_since(self.start).as_nanos();
        let passed = u64::try_from(passed).expect("a test lasts less than 500 years");
        self.passed.fetch_max(passed, Ordering::Relaxed);
    }
}

impl Clock for JumpClock {
    fn now(&self) -> Instant {
        self.start + Duration::from_nanos(self.passed.load(Ordering::Relaxed))
    }
}
