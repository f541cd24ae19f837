//! Two rounds that follow each other without a pause, timed: how long sources wait for their turns.
//!
//! Where it stands: the loop tells it of each round beside others and each turn in it; in the second round of a pair every
//! source hears how long its turn has come after the one in the first ([`Source::waited`](request_path::Source::waited)).
//!
//! Limits: about one round in 64 begins a pair, with two looks at the clock for each turn of the two. A pair that is cut by
//! a pause tells nothing: who is served after a pause has not waited for others.

use std::time::{Duration, Instant};

use block::Clock;
use request_path::Sampler;

/// A sampled pair of rounds of the event loop, while it is timed.
#[derive(Debug, Default)]
pub(super) struct RoundSample {
    rounds: Sampler,
    round: RoundSampleState,
}

/// Where a sampled pair of rounds is: none, in its first round, or in its second.
#[derive(Debug, Default, Clone, Copy)]
enum RoundSampleState {
    /// None.
    #[default]
    Other,
    /// The first one, which began then.
    First(Instant),
    /// The second one, after a first one that began then.
    Second(Instant),
}

impl RoundSample {
    /// A round begins. `alone` if no other source is awake: nobody waits then.
    #[inline]
    pub(super) fn begin(&mut self, alone: bool, clock: &dyn Clock) {
        self.round = match self.round {
            _ if alone => RoundSampleState::Other,
            RoundSampleState::First(start) => RoundSampleState::Second(start),
            RoundSampleState::Other | RoundSampleState::Second(_) if self.rounds.picks() => {
                RoundSampleState::First(clock.now())
            }
            RoundSampleState::Other | RoundSampleState::Second(_) => RoundSampleState::Other,
        };
    }

    /// The loop had nothing to do.
    pub(super) fn pause(&mut self) {
        self.round = RoundSampleState::Other;
    }

    /// A turn begins of a source whose last timed one ended then. Returns how long it has waited, if that is known now.
    #[inline]
    pub(super) fn turn_begins(&self, last_end: Instant, clock: &dyn Clock) -> Option<Duration> {
        let RoundSampleState::Second(start) = self.round else { return None };
        Some(clock.now().saturating_duration_since(last_end.max(start)))
    }

    /// A turn is over. Returns when, if that matters.
    #[inline]
    pub(super) fn turn_ends(&self, clock: &dyn Clock) -> Option<Instant> {
        let RoundSampleState::First(_) = self.round else { return None };
        Some(clock.now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use block::SystemClock;
    use std::sync::Mutex;

    /// A clock that goes on by a microsecond with each look.
    #[derive(Debug)]
    struct Steps(Mutex<Instant>);

    impl Clock for Steps {
        fn now(&self) -> Instant {
            let mut now = self.0.lock().unwrap();
            *now += Duration::from_micros(1);
            *now
        }
    }

    #[test]
    fn a_wait_counts_from_the_end_of_the_last_turn_and_at_most_from_the_first_round() {
        let start = SystemClock.now();
        let clock = Steps(Mutex::new(start));
        let mut sample = RoundSample::default();
        sample.begin(false, &clock);
        assert!(sample.turn_begins(start, &clock).is_none());
        let ended = sample.turn_ends(&clock).unwrap();
        sample.begin(false, &clock);
        assert_eq!(sample.turn_begins(ended, &clock), Some(Duration::from_micros(1)));
        assert!(sample.turn_ends(&clock).is_none());
        // A source that had no turn in the first round.
        assert_eq!(sample.turn_begins(start, &clock), Some(Duration::from_micros(3)));
        sample.begin(false, &clock);
        assert!(sample.turn_begins(start, &clock).is_none());
    }

    #[test]
    fn nobody_has_waited_who_is_alone_or_is_served_after_a_pause() {
        let start = SystemClock.now();
        let mut sample = RoundSample::default();
        for _ in 0..1000 {
            sample.begin(true, &SystemClock);
            assert!(sample.turn_begins(start, &SystemClock).is_none());
        }
        let mut firsts = 0;
        for _ in 0..1000 {
            sample.begin(false, &SystemClock);
            firsts += usize::from(sample.turn_ends(&SystemClock).is_some());
            sample.pause();
            assert!(sample.turn_begins(start, &SystemClock).is_none());
        }
        assert!((8..24).contains(&firsts), "{firsts}");
    }
}
