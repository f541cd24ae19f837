//! Turns that front ends have asked for at a time of their own.
//!
//! Invariants: a source that is here then gets its turn.
//! Limits: a note for each time that was asked for and has not come.

use std::time::{Duration, Instant};

use block::WakeTime;
use kernel_io::EngineKernel;

use super::{Engine, EventLoopEvent};
use crate::{RouteIndex, SourceKey};

/// How much later a turn does no harm that is put off anyway.
const SLACK: Duration = Duration::from_millis(1);

/// Turns that sources have asked for at a time (a timer list).
#[derive(Debug, Default)]
pub(super) struct TimedTurns(Vec<(Instant, SourceKey)>);

impl TimedTurns {
    pub(super) fn due(&self) -> Option<WakeTime> {
        let first = self.0.iter().map(|(at, _)| *at).min()?;
        Some(WakeTime { at: first, slack: SLACK })
    }

    /// The sources whose time has come.
    pub(super) fn take(&mut self, now: Instant) -> impl Iterator<Item = EventLoopEvent> + '_ {
        let over = self.0.extract_if(.., move |(at, _)| *at <= now);
        over.map(|(_, key)| EventLoopEvent::Finished(key))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<K: EngineKernel> Engine<K> {
    /// The time.
    pub(crate) fn now(&self) -> Instant {
        self.clock.now()
    }

    /// Gives the source of that route a turn then.
    pub(crate) fn call_at(&mut self, at: Instant, route: RouteIndex) {
        self.timed_turns.0.extend(self.routes.key(route).map(|key| (at, key)));
    }
}
