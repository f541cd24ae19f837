//! The only place of this crate that reads the clock: waits for a cluster are bounded by real time.

use std::time::Instant;

/// The monotonic clock.
#[expect(
    clippy::disallowed_methods,
    reason = "waits for a cluster are real time; this is the one reader"
)]
pub(crate) fn now() -> Instant {
    Instant::now()
}
