//! How long to sleep towards a point in time.
//!
//! A sleep that the kernel ends by a timer ends late: by what the host allows its timers, and by what
//! waking up takes. Who must be exact sleeps for less, by as much as sleeps were late before, and looks at
//! the clock for the rest.
//!
//! Limits: it looks at the clock for at most [`LEAD_MAX`] before each point in time.

use std::time::Duration;

/// The longest that a thread looks at the clock instead of sleeping.
const LEAD_MAX: Duration = Duration::from_micros(200);

/// What the lead is as long as no sleep was late.
const LEAD_FIRST: Duration = Duration::from_micros(60);

/// For about how many sleeps a late one is remembered. With 16 instead, requests held for 500 us and 10 ms
/// were late by 6.5 and 21 us (median, two virtual CPUs); with 64 it is 3.4 and 13 us.
const LEAD_MEMORY: u32 = 64;

/// Whether to sleep towards a point in time, and how long, or to spin on the clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SleepPlan {
    /// Sleep for at most this long.
    Sleep(Duration),
    /// It is not worth it any more.
    Spin,
}

/// Estimates how late sleeps end, so that they can be shortened by that.
#[derive(Debug)]
pub(crate) struct WakeLatency {
    lead: Duration,
}

impl Default for WakeLatency {
    fn default() -> Self {
        Self { lead: LEAD_FIRST }
    }
}

impl WakeLatency {
    /// What to do until something that is due after `left`, and may be late by `slack`.
    pub(crate) fn plan_sleep(&self, left: Duration, slack: Duration) -> SleepPlan {
        match left.checked_sub(self.lead.saturating_sub(slack)) {
            Some(sleep) if !sleep.is_zero() => SleepPlan::Sleep(sleep),
            Some(_) | None => SleepPlan::Spin,
        }
    }

    /// A sleep of at most that length took so long.
    pub(crate) fn record_wake(&mut self, limit: Duration, took: Duration) {
        let Some(late) = took.checked_sub(limit) else {
            // Something else ended it.
            return;
        };
        let late = late.min(LEAD_MAX);
        // Follows what is later at once, and what is sooner slowly: most sleeps shall end in time.
        self.lead = late.max(self.lead - (self.lead.saturating_sub(late)) / LEAD_MEMORY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn us(count: u64) -> Duration {
        Duration::from_micros(count)
    }

    #[test]
    fn sleeps_are_shorter_by_as_much_as_they_were_late() {
        let mut timer = WakeLatency::default();
        assert_eq!(timer.plan_sleep(us(1000), us(0)), SleepPlan::Sleep(us(940)));
        timer.record_wake(us(940), us(1040));
        assert_eq!(timer.plan_sleep(us(1000), us(0)), SleepPlan::Sleep(us(900)));
        assert_eq!(timer.plan_sleep(us(100), us(0)), SleepPlan::Spin);
        assert_eq!(timer.plan_sleep(us(100), us(50)), SleepPlan::Sleep(us(50)));
        assert_eq!(timer.plan_sleep(us(0), us(0)), SleepPlan::Spin);
        // Also if one of them was late by seconds.
        timer.record_wake(us(900), us(3_000_000));
        assert_eq!(timer.plan_sleep(us(1000), us(0)), SleepPlan::Sleep(us(800)));
        for _ in 0..400 {
            timer.record_wake(us(100), us(110));
        }
        let SleepPlan::Sleep(sleep) = timer.plan_sleep(us(1000), us(0)) else { panic!("no sleep") };
        assert!(sleep > us(985), "{sleep:?}");
    }
}
