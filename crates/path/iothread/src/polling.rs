//! How long to look before sleeping: QEMU's adaptive polling, for each source by itself.
//!
//! Where it stands: the event loop asks before it sleeps how long it may look
//! ([`AdaptivePolling::budget`]), and tells each source that called how long the call took to come
//! ([`AdaptivePolling::called_after`]). Whether looking pays at all is found out by `poll_trial`.
//!
//! Here is only the deciding; the time is an argument.

use std::time::Duration;

/// QEMU's default of `poll-max-ns`.
const MAX_NS_DEFAULT: u32 = 32_768;

/// What a source that was not polled starts with (QEMU: 4 µs).
const FIRST: Duration = Duration::from_micros(4);

/// The factor that stands for `poll-grow=0`.
const GROW_DEFAULT: u32 = 2;

/// The longest look where looking was found to pay: beyond what waking a thread takes in a virtual machine (50 to
/// 100 µs). Two threads that wake each other are slow or fast, and both last: as long as each sleeps while the other is
/// being woken, no look within QEMU's limit finds anything; but while one looks for as long as a wake-up takes, most
/// calls come within a few microseconds.
const LONG: Duration = Duration::from_micros(256);

/// The divisor that stands for `poll-shrink=0` in longer looks: a single late call does not end them.
const SHRINK_LONG: u32 = 2;

/// How long a source may be silent before it is not looked at any more; its kick calls it back.
pub(crate) const IDLE_AFTER: Duration = Duration::from_millis(100);

/// The polling settings of an iothread, as in QEMU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct PollSettings {
    /// The longest time to look before sleeping (`poll-max-ns`); 0 switches polling off.
    pub max: Duration,
    /// By how much a time that was too short grows (`poll-grow`); 0 stands for 2.
    pub grow: u32,
    /// By how much a time that was in vain shrinks (`poll-shrink`); 0 means to nothing.
    pub shrink: u32,
    /// Whether `max` is a limit that somebody has set, or may be exceeded where that pays.
    pub limit: PollLimitStrictness,
}

/// Whether the limit of polling is strict because somebody set it, or may be exceeded where that pays.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum PollLimitStrictness {
    /// It was: never exceed it.
    Strict,
    /// It was not: look for longer where that was found to pay.
    Adaptive,
}

impl PollSettings {
    /// Never looks before sleeping.
    pub const OFF: Self =
        Self { max: Duration::ZERO, grow: 0, shrink: 0, limit: PollLimitStrictness::Strict };

    /// The settings for sources for which looking was found to pay, or is being tried.
    pub(crate) fn where_it_pays(&self) -> Self {
        let shrink = if self.shrink == 0 { SHRINK_LONG } else { self.shrink };
        match self.limit {
            PollLimitStrictness::Strict => *self,
            PollLimitStrictness::Adaptive => Self { max: self.max.max(LONG), shrink, ..*self },
        }
    }
}

impl Default for PollSettings {
    fn default() -> Self {
        let max = Duration::from_nanos(u64::from(MAX_NS_DEFAULT));
        Self { max, grow: 0, shrink: 0, limit: PollLimitStrictness::Adaptive }
    }
}

/// QEMU's adaptive polling, for a source or for the completions of a kernel: how long it is worth polling.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AdaptivePolling {
    budget: Duration,
}

impl AdaptivePolling {
    /// Worth as long as these settings allow.
    pub(crate) fn longest(settings: &PollSettings) -> Self {
        Self { budget: settings.max }
    }

    /// How long to look for it now.
    pub(crate) fn budget(&self) -> Duration {
        self.budget
    }

    /// The source has called `waited` after the loop had nothing to do, and the loop slept. QEMU's rule.
    pub(crate) fn called_after(&mut self, waited: Duration, settings: &PollSettings) {
        if waited <= self.budget {
            // Looking paid off.
        } else if waited > settings.max {
            // No time that is allowed would have been enough.
            self.budget = match settings.shrink {
                0 => Duration::ZERO,
                divisor => self.budget / divisor,
            };
        } else if self.budget.is_zero() {
            self.budget = FIRST.min(settings.max);
        } else {
            let grow = if settings.grow == 0 { GROW_DEFAULT } else { settings.grow };
            self.budget = self.budget.saturating_mul(grow).min(settings.max);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETTINGS: PollSettings = PollSettings {
        max: Duration::from_nanos(32_768),
        grow: 0,
        shrink: 0,
        limit: PollLimitStrictness::Strict,
    };

    /// The budget in nanoseconds after each call, by how long the calls took to come.
    #[track_caller]
    fn check(settings: &PollSettings, waits_ns: &[u64], expected_ns: &[u64]) {
        let mut adaptive = AdaptivePolling::default();
        let found: Vec<u128> = waits_ns
            .iter()
            .map(|&wait| {
                adaptive.called_after(Duration::from_nanos(wait), settings);
                adaptive.budget().as_nanos()
            })
            .collect();
        assert_eq!(found, expected_ns.iter().map(|&ns| u128::from(ns)).collect::<Vec<_>>());
    }

    #[test]
    fn the_budget_grows_while_it_is_too_short_and_stops_at_the_limit() {
        let waits = [10_000, 10_000, 10_000, 10_000, 30_000, 30_000];
        check(&SETTINGS, &waits, &[4_000, 8_000, 16_000, 16_000, 32_000, 32_000]);
        check(&SETTINGS, &[32_768; 6], &[4_000, 8_000, 16_000, 32_000, 32_768, 32_768]);
        let fast = PollSettings { grow: 10, ..SETTINGS };
        check(&fast, &[30_000; 3], &[4_000, 32_768, 32_768]);
    }

    #[test]
    fn a_wait_that_no_budget_could_cover_shrinks_it() {
        check(&SETTINGS, &[5_000, 5_000, 40_000, 5_000], &[4_000, 8_000, 0, 4_000]);
        let gently = PollSettings { shrink: 2, ..SETTINGS };
        check(&gently, &[5_000, 5_000, 40_000, 40_000], &[4_000, 8_000, 4_000, 2_000]);
    }

    #[test]
    fn nothing_is_looked_for_when_polling_is_off() {
        check(&PollSettings::OFF, &[1, 1_000, 1_000_000], &[0, 0, 0]);
        assert_eq!(PollSettings::OFF.where_it_pays(), PollSettings::OFF);
    }

    #[test]
    fn a_limit_is_exceeded_only_if_nobody_has_set_it() {
        assert_eq!(SETTINGS.where_it_pays().max, SETTINGS.max);
        let longer = PollSettings::default().where_it_pays();
        assert_eq!((longer.max, longer.shrink), (LONG, SHRINK_LONG));
        assert_eq!(AdaptivePolling::longest(&longer).budget(), LONG);
    }
}
