//! The only place of this crate that reads the clock or sleeps: a load generator measures real time.

use std::time::{Duration, Instant};

/// The current time of the monotonic clock.
#[expect(
    clippy::disallowed_methods,
    reason = "a load generator measures real time; this is its one clock"
)]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Pauses the coordinating thread of a run; job threads never call this.
#[expect(
    clippy::disallowed_methods,
    reason = "the length of a run is a time, there is no event to wait for"
)]
pub(crate) fn pause(duration: Duration) {
    std::thread::sleep(duration);
}
