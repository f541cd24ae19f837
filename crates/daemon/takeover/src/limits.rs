//! The version of the protocol, and how long the two processes may take.

use std::time::Duration;

use exports::monotonic;

/// The version of what two processes say to each other.
pub(crate) const VERSION: u32 = 3;

/// How long the requests in flight of the old process may take when it is asked to stop its rings.
pub(crate) const DRAIN_LIMIT: Duration = Duration::from_secs(10);

/// How long a peer may take to say what it can say at once.
pub(crate) const ANSWER_LIMIT: Duration = Duration::from_secs(5);

/// How long the old process lets its guests wait for the new one to be ready, once nothing is in flight: after that
/// it ends the new process and goes on.
pub(crate) const READY_LIMIT: Duration = Duration::from_secs(5);

/// A point in time, on the clock of all processes, by which something has to be done.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Deadline(Duration);

impl Deadline {
    /// So long from now on.
    pub(crate) fn within(limit: Duration) -> Self {
        Self(monotonic().saturating_add(limit))
    }

    /// How long that still is.
    pub(crate) fn left(self) -> Duration {
        self.0.saturating_sub(monotonic())
    }
}
