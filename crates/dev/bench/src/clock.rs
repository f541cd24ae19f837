//! The one place of this crate that reads the clocks or sleeps: it measures real time.

use std::time::{Duration, Instant, SystemTime};

#[expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

#[expect(clippy::disallowed_methods, reason = "waits for other processes, which ring no bell")]
pub(crate) fn pause(duration: Duration) {
    std::thread::sleep(duration);
}

/// Seconds since 1970.
#[expect(clippy::disallowed_methods, reason = "results say when they were measured")]
pub(crate) fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
