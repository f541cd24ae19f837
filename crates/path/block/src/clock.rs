//! The time, as an argument.
//!
//! Code that needs the time takes a `&dyn Clock`, so that a test can own it.

use std::fmt::Debug;
use std::time::Instant;

/// Tells the monotonic time. May be called from any thread.
pub trait Clock: Debug + Send + Sync {
    /// Now.
    fn now(&self) -> Instant;
}

/// The host's monotonic clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "this is the one place that reads the clock")]
    fn now(&self) -> Instant {
        Instant::now()
    }
}
