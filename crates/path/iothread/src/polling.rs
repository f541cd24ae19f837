//! How long to look before sleeping: QEMU's adaptive polling, for each source by itself.
//!
//! Where it stands: the event loop asks before it sleeps how long it may look
//! ([`AdaptivePolling::budget`]), and tells each source that called how long the call took to come
//! ([`AdaptivePolling::called_after`]).
//!
//! Two threads that wake each other are slow or fast, and both last: as long as each sleeps while
//! the other is being woken, no look within QEMU's limit finds anything; but while one looks for as
//! long as a wake-up takes, the other seldom gets to sleep and most calls come within a few
//! microseconds. So where the limit is left to the daemon, a source that keeps calling just beyond
//! it is looked for up to [`LONG`] in a trial. While the calls of a window then come soon on
//! average ([`PollTarget`]), that goes on; if not, the next trial comes after twice as many calls.
//!
//! Here is only the deciding; the time is an argument.

use std::time::Duration;

/// QEMU's default of `poll-max-ns`.
const MAX_NS_DEFAULT: u32 = 32_768;

/// What a source that was not polled starts with (QEMU: 4 µs).
const FIRST: Duration = Duration::from_micros(4);

/// The factor that stands for `poll-grow=0`.
const GROW_DEFAULT: u32 = 2;

/// The longest look of a trial: beyond what waking a thread takes in a virtual machine (50 to
/// 100 µs).
const LONG: Duration = Duration::from_micros(256);

/// How many calls are judged together in a trial.
const WINDOW: u32 = 32;

/// How soon completions of the kernel must come on average for a trial to go on: not much later
/// than the wake-up takes that looking for them saves. With half as much a disk at depth 16 loses
/// a tenth of its throughput (docs/performance.md).
const COMPLETIONS_WITHIN: Duration = Duration::from_micros(128);

/// After how many calls just beyond the limit the first trial comes, and the last.
const TRIAL_AFTER_FIRST: u32 = 8;
const TRIAL_AFTER_MAX: u32 = 4096;

/// How long a source may be silent before it is not looked at any more; its kick calls it back.
pub(crate) const IDLE_AFTER: Duration = Duration::from_millis(100);

/// The polling settings of an iothread, as in QEMU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PollSettings {
    /// The longest time to look before sleeping (`poll-max-ns`); 0 switches polling off.
    pub max: Duration,
    /// By how much a time that was too short grows (`poll-grow`); 0 stands for 2.
    pub grow: u32,
    /// By how much a time that was in vain shrinks (`poll-shrink`); 0 means to nothing.
    pub shrink: u32,
    /// Whether `max` is a limit that somebody has set, or may be exceeded to try.
    pub limit: PollLimitStrictness,
}

/// Whether the limit of polling is strict because somebody set it, or may be exceeded in trials.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PollLimitStrictness {
    /// It was: never exceed it.
    Strict,
    /// It was not: try longer ones now and then.
    Adaptive,
}

impl PollSettings {
    /// Never looks before sleeping.
    pub const OFF: Self =
        Self { max: Duration::ZERO, grow: 0, shrink: 0, limit: PollLimitStrictness::Strict };
}

impl Default for PollSettings {
    fn default() -> Self {
        let max = Duration::from_nanos(u64::from(MAX_NS_DEFAULT));
        Self { max, grow: 0, shrink: 0, limit: PollLimitStrictness::Adaptive }
    }
}

/// QEMU's adaptive polling for one source: how long it is worth polling.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AdaptivePolling {
    what: PollTarget,
    budget: Duration,
    trial: LongPollTrialState,
    /// After how many calls just beyond the limit the next trial comes.
    trial_after: u32,
}

/// What is polled for: a guest's requests, or the kernel's completions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PollTarget {
    /// A guest: within the limit. A guest whose calls come that soon on average, but
    /// independently of us, leaves no time to sleep anyway.
    Requests,
    /// The kernel: within [`COMPLETIONS_WITHIN`].
    Completions,
}

/// The state of a trial of polling for longer than the limit: not begun, or what was counted in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LongPollTrialState {
    /// So many calls came just beyond the limit since the last trial.
    Off { beyond: u32 },
    /// So many calls came in the current window, and that long they took together.
    On { calls: u32, total: Duration },
}

impl AdaptivePolling {
    /// Not worth it yet.
    pub(crate) fn new(what: PollTarget) -> Self {
        let (budget, trial) = (Duration::ZERO, LongPollTrialState::Off { beyond: 0 });
        Self { what, budget, trial, trial_after: TRIAL_AFTER_FIRST }
    }

    /// How long to look for it now.
    pub(crate) fn budget(&self) -> Duration {
        match self.trial {
            LongPollTrialState::Off { .. } => self.budget,
            LongPollTrialState::On { .. } => LONG,
        }
    }

    /// Whether [`AdaptivePolling::found_after`] wants to know of calls that were found by looking.
    pub(crate) fn is_on_trial(&self) -> bool {
        matches!(self.trial, LongPollTrialState::On { .. })
    }

    /// The source has called `waited` after the loop had nothing to do, and was found by looking.
    pub(crate) fn found_after(&mut self, waited: Duration, settings: &PollSettings) {
        let LongPollTrialState::On { calls, total } = self.trial else { return };
        let (calls, total) = (calls + 1, total + waited);
        let within = match self.what {
            PollTarget::Requests => settings.max,
            PollTarget::Completions => COMPLETIONS_WITHIN,
        };
        if total > within * WINDOW {
            self.budget = Duration::ZERO;
            self.trial_after = (self.trial_after * 2).min(TRIAL_AFTER_MAX);
            self.trial = LongPollTrialState::Off { beyond: 0 };
        } else if calls == WINDOW {
            self.trial_after = TRIAL_AFTER_FIRST;
            self.trial = LongPollTrialState::On { calls: 0, total: Duration::ZERO };
        } else {
            self.trial = LongPollTrialState::On { calls, total };
        }
    }

    /// The source has called `waited` after the loop had nothing to do, and the loop slept.
    pub(crate) fn called_after(&mut self, waited: Duration, settings: &PollSettings) {
        match &mut self.trial {
            LongPollTrialState::On { .. } => self.found_after(waited, settings),
            LongPollTrialState::Off { beyond } if waited > settings.max && waited <= LONG => {
                *beyond += 1;
                if settings.limit == PollLimitStrictness::Adaptive && *beyond >= self.trial_after {
                    self.trial = LongPollTrialState::On { calls: 0, total: Duration::ZERO };
                } else {
                    self.adapt(waited, settings);
                }
            }
            LongPollTrialState::Off { .. } => self.adapt(waited, settings),
        }
    }

    /// QEMU's rule.
    fn adapt(&mut self, waited: Duration, settings: &PollSettings) {
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
        let mut adaptive = AdaptivePolling::new(PollTarget::Requests);
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
    }

    const US: Duration = Duration::from_micros(1);

    /// A source whose calls have kept coming just beyond the limit, so that it is on trial.
    fn on_trial() -> (AdaptivePolling, PollSettings) {
        let settings = PollSettings::default();
        let mut adaptive = AdaptivePolling::new(PollTarget::Requests);
        for _ in 0..TRIAL_AFTER_FIRST {
            assert!(!adaptive.is_on_trial());
            adaptive.called_after(60 * US, &settings);
        }
        assert!(adaptive.is_on_trial());
        assert_eq!(adaptive.budget(), LONG);
        (adaptive, settings)
    }

    #[test]
    fn a_trial_goes_on_while_calls_come_soon_on_average() {
        let (mut adaptive, settings) = on_trial();
        for _ in 0..10 * WINDOW {
            adaptive.found_after(60 * US, &settings);
            for _ in 0..7 {
                adaptive.found_after(5 * US, &settings);
            }
            assert!(adaptive.is_on_trial());
        }
    }

    #[test]
    fn a_trial_in_vain_ends_soon_and_the_next_comes_later() {
        let (mut adaptive, settings) = on_trial();
        let polls = (0..WINDOW).take_while(|_| {
            adaptive.found_after(60 * US, &settings);
            adaptive.is_on_trial()
        });
        assert!(polls.count() < 20);
        assert!(adaptive.budget().is_zero());
        for _ in 0..2 * TRIAL_AFTER_FIRST {
            assert!(!adaptive.is_on_trial());
            adaptive.called_after(60 * US, &settings);
        }
        assert!(adaptive.is_on_trial());
    }

    #[test]
    fn completions_may_take_about_as_long_as_a_wake_up_and_no_longer() {
        let settings = PollSettings::default();
        for (wait, goes_on) in [(100, true), (150, false)] {
            let mut adaptive = AdaptivePolling::new(PollTarget::Completions);
            for _ in 0..TRIAL_AFTER_FIRST {
                adaptive.called_after(60 * US, &settings);
            }
            assert!(adaptive.is_on_trial());
            for _ in 0..WINDOW {
                adaptive.found_after(wait * US, &settings);
            }
            assert_eq!(adaptive.is_on_trial(), goes_on, "{wait} µs");
        }
    }

    #[test]
    fn a_limit_that_somebody_has_set_is_never_exceeded() {
        let mut adaptive = AdaptivePolling::new(PollTarget::Requests);
        for _ in 0..1000 {
            adaptive.called_after(60 * US, &SETTINGS);
            assert!(adaptive.budget() <= SETTINGS.max);
        }
    }
}
