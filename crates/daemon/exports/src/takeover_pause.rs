//! How long the front end of an export waits while one process takes the place of another one.
//!
//! Where it stands: made by `takeover`, told by the session that serves the first ring again.

use std::time::Duration;

/// Since when an export's front end waits in a takeover.
#[derive(Debug, Clone, Copy)]
pub struct TakeoverPauseStart {
    /// When its queues were to be stopped, on the clock of [`monotonic`].
    pub since: Duration,
    /// By which process.
    pub process: u32,
}

impl TakeoverPauseStart {
    /// Says how long it has waited.
    pub fn tell(&self, export: &str) {
        let Self { since, process } = self;
        let ms = monotonic().saturating_sub(*since).as_secs_f64() * 1e3;
        tracing::info!("export {export}: served again {ms:.1} ms after process {process} stopped");
    }
}

/// The time of a clock that all processes share.
pub fn monotonic() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Duration::try_from(now).expect("the time since the start of the host is not negative")
}
