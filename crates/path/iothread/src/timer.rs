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

/// What is left of what a sleep may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Nap {
    /// Sleep for at most this long.
    Sleep(Duration),
    /// It is not worth it any more.
    Look,
}

/// Knows how late sleeps end.
#[derive(Debug)]
pub(crate) struct Timer {
    lead: Duration,
}

impl Default for Timer {
    fn default() -> Self {
        Self { lead: LEAD_FIRST }
    }
}

impl Timer {
    /// What to do until something that is due after `left`, and may be late by `slack`.
    pub(crate) fn nap(&self, left: Duration, slack: Duration) -> Nap {
        match left.checked_sub(self.lead.saturating_sub(slack)) {
            Some(sleep) if !sleep.is_zero() => Nap::Sleep(sleep),
            Some(_) | None => Nap::Look,
        }
    }

    /// A sleep of at most that length took so long.
    pub(crate) fn woke(&mut self, limit: Duration, took: Duration) {
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
        let mut timer = Timer::default();
        assert_eq!(timer.nap(us(1000), us(0)), Nap::Sleep(us(940)));
        timer.woke(us(940), us(1040));
        assert_eq!(timer.nap(us(1000), us(0)), Nap::Sleep(us(900)));
        assert_eq!(timer.nap(us(100), us(0)), Nap::Look);
        assert_eq!(timer.nap(us(100), us(50)), Nap::Sleep(us(50)));
        assert_eq!(timer.nap(us(0), us(0)), Nap::Look);
        // Also if one of them was late by seconds.
        timer.woke(us(900), us(3_000_000));
        assert_eq!(timer.nap(us(1000), us(0)), Nap::Sleep(us(800)));
        for _ in 0..400 {
            timer.woke(us(100), us(110));
        }
        let Nap::Sleep(sleep) = timer.nap(us(1000), us(0)) else { panic!("no sleep") };
        assert!(sleep > us(985), "{sleep:?}");
    }
}
