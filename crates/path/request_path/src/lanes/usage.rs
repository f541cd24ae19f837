//! What keeps an iothread that shall end: lanes.

use super::{LaneState, Lanes};

impl Lanes {
    /// Whether a source uses one of them, or one is open for a source that is on its way.
    pub(crate) fn is_any_used(&self) -> bool {
        self.places.iter().flatten().any(|open| open.users > 0)
    }

    /// Whether any is open, also for requests that sources have left behind, or for the end of a drain.
    pub(crate) fn is_any_open(&self) -> bool {
        self.places.iter().flatten().any(|open| !matches!(open.state, LaneState::Drained))
    }
}
