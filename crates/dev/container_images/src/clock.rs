//! The only place of this crate that reads the clock or sleeps.

use std::time::{Duration, Instant};

/// How long to rest between two looks at a program that has no event for us.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// When waiting ends.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Deadline(Instant);

impl Deadline {
    /// After that time.
    #[expect(
        clippy::disallowed_methods,
        reason = "waits for other processes are bounded by real time"
    )]
    pub(crate) fn after(limit: Duration) -> Self {
        Self(Instant::now() + limit)
    }

    /// Rests for a moment. False if it is over, without a rest.
    #[expect(
        clippy::disallowed_methods,
        reason = "the states of other programs have no event for us"
    )]
    pub(crate) fn rest(self) -> bool {
        let is_before = Instant::now() < self.0;
        if is_before {
            std::thread::sleep(LOOK_INTERVAL);
        }
        is_before
    }
}
