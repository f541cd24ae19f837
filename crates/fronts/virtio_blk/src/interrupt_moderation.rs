//! How often a ring interrupts its guest if that is expensive: the kernel calls everybody who waits on the eventfd, and the
//! front end can have tens of thousands wait.
//!
//! Where it stands in the life of a request: at its end; `interrupts` asks before it rings.
//!
//! Limits: every [`SAMPLED`]th call is timed. If one took [`EXPENSIVE`], the next ones are measured by the thread's CPU
//! time, which no other thread's work adds to. What they take beyond that is added up, what they stay below it is taken off
//! again, and what is then beyond [`OUTLIERS`] is followed by a pause of [`PAUSE`] times as long. So a ring whose interrupts
//! are expensive uses little more than a ninth of its iothread for them, after the first few. A guest of which a thread
//! sleeps on another CPU has a call take 10 µs in a virtual machine, and one in some hundreds 20 to 100 µs: such a ring
//! has no pauses.

use std::time::{Duration, Instant};

/// Each so many calls one is timed, which costs a tenth of a call.
const SAMPLED: u8 = 4;

/// More than a call takes with some dozens of waiters.
const EXPENSIVE: Duration = Duration::from_micros(20);

/// How much more than [`EXPENSIVE`] calls may take in all before there are pauses.
const OUTLIERS: Duration = Duration::from_micros(200);

/// How much longer a pause is than what calls took beyond what they may.
const PAUSE: u32 = 8;

/// So many calls are measured after one that was expensive.
const WATCHED: u8 = 64;

/// Limits how much CPU time a ring spends on interrupts, if they are expensive.
#[derive(Debug, Default)]
pub(crate) struct InterruptModeration {
    /// Calls since one was timed.
    calls: u8,
    /// How many more are measured.
    watched: u8,
    /// How much longer than [`EXPENSIVE`] those took that were measured; up to [`OUTLIERS`].
    excess: Duration,
    /// The end of the pause.
    not_before: Option<Instant>,
    /// Whether the iothread knows when an interrupt is owed.
    reads: bool,
}

/// How the next interrupt is sent: untimed, or with its wall time or CPU time measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum InterruptMeasurement {
    /// Ring.
    Ring,
    /// Ring, and tell how long it took.
    Timed,
    /// Ring if there is no pause, and tell how much CPU time it took.
    Measured,
}

impl InterruptModeration {
    /// How the next interrupt is sent.
    pub(crate) fn next_timing(&mut self) -> InterruptMeasurement {
        if self.watched > 0 {
            return InterruptMeasurement::Measured;
        }
        self.calls += 1;
        if self.calls < SAMPLED {
            return InterruptMeasurement::Ring;
        }
        self.calls = 0;
        InterruptMeasurement::Timed
    }

    /// A call took so long, or the thread was kept from it.
    pub(crate) fn timed(&mut self, took: Duration) {
        if took >= EXPENSIVE {
            self.watched = WATCHED;
        }
    }

    /// Until when to wait with the next one.
    pub(crate) fn pause(&self, now: Instant) -> Option<Instant> {
        self.not_before.filter(|at| *at > now)
    }

    /// A call took so much CPU time, and is over now.
    pub(crate) fn measured(&mut self, took: Duration, now: Instant) {
        self.reads = false;
        if took >= EXPENSIVE {
            self.watched = WATCHED;
        } else {
            self.watched -= 1;
        }
        self.excess = (self.excess + took).saturating_sub(EXPENSIVE);
        let beyond = self.excess.saturating_sub(OUTLIERS);
        self.excess -= beyond;
        self.not_before = (!beyond.is_zero()).then(|| now + beyond * PAUSE);
    }

    /// Whether the iothread has still to be told of the pause; then it is, now.
    pub(crate) fn note(&mut self) -> bool {
        !std::mem::replace(&mut self.reads, true)
    }

    /// The ring is on another iothread.
    pub(crate) fn arrive(&mut self) {
        self.reads = false;
    }
}

#[cfg(test)]
mod tests {
    use block::{Clock, SystemClock};

    use super::*;

    #[test]
    fn cheap_interrupts_are_timed_now_and_then_and_never_wait() {
        let mut moderation = InterruptModeration::default();
        for call in 1..100_u8 {
            let expected = if call % SAMPLED == 0 {
                InterruptMeasurement::Timed
            } else {
                InterruptMeasurement::Ring
            };
            assert_eq!(moderation.next_timing(), expected);
            if expected == InterruptMeasurement::Timed {
                moderation.timed(EXPENSIVE / 2);
            }
        }
    }

    #[test]
    fn after_an_expensive_interrupt_there_is_a_pause_in_proportion() {
        let mut moderation = InterruptModeration::default();
        moderation.timed(Duration::from_millis(5));
        let now = SystemClock.now();
        // It may have been the thread that was slow.
        assert_eq!(
            (moderation.next_timing(), moderation.pause(now)),
            (InterruptMeasurement::Measured, None)
        );
        moderation.measured(Duration::from_millis(5), now);
        let end = now + (Duration::from_millis(5) - EXPENSIVE - OUTLIERS) * PAUSE;
        assert_eq!(
            (moderation.next_timing(), moderation.pause(now)),
            (InterruptMeasurement::Measured, Some(end))
        );
        assert!(moderation.note() && !moderation.note());
        assert_eq!(moderation.pause(end), None);
        for _ in 0..WATCHED {
            assert_eq!(moderation.next_timing(), InterruptMeasurement::Measured);
            moderation.measured(EXPENSIVE / 2, end);
            assert_eq!(moderation.pause(now), None);
        }
        assert_eq!(moderation.next_timing(), InterruptMeasurement::Ring);
    }

    #[test]
    fn an_outlier_among_cheap_interrupts_is_no_reason_for_a_pause() {
        let (mut moderation, now) = (InterruptModeration::default(), SystemClock.now());
        moderation.timed(EXPENSIVE);
        for call in 0..10_000 {
            let took = if call % 50 == 0 { EXPENSIVE * 5 } else { EXPENSIVE / 2 };
            moderation.measured(took, now);
            assert_eq!(moderation.pause(now), None, "after {call}");
        }
    }

    #[test]
    fn interrupts_that_are_all_somewhat_expensive_have_short_pauses() {
        let (mut moderation, now) = (InterruptModeration::default(), SystemClock.now());
        moderation.timed(EXPENSIVE);
        let excess = Duration::from_micros(5);
        for _ in 0..=OUTLIERS.as_micros() / excess.as_micros() {
            assert_eq!(moderation.pause(now), None);
            moderation.measured(EXPENSIVE + excess, now);
        }
        for _ in 0..100 {
            assert_eq!(moderation.pause(now), Some(now + excess * PAUSE));
            moderation.measured(EXPENSIVE + excess, now);
        }
    }
}
