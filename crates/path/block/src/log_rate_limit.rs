//! How often something may be said that a guest or client can cause.
//!
//! Limits: [`SENTENCES_MAX`] in any [`WINDOW`]; what was left out is counted, to be said later.

use std::time::{Duration, Instant};

const SENTENCES_MAX: usize = 10;
const WINDOW: Duration = Duration::from_secs(10);

/// Limits how often a kind of log line is written. Pure: the time is an argument.
#[derive(Debug, Default)]
pub struct LogRateLimit {
    /// When the last sentences were said; the oldest is at `oldest`.
    said: [Option<Instant>; SENTENCES_MAX],
    oldest: usize,
    left_out: u64,
}

impl LogRateLimit {
    /// Whether a sentence may be said now. If so: how many were left out since the last one.
    pub fn admit(&mut self, now: Instant) -> Option<u64> {
        if self.free_at().is_some_and(|free_at| now < free_at) {
            self.left_out += 1;
            return None;
        }
        self.said[self.oldest] = Some(now);
        self.oldest = (self.oldest + 1) % SENTENCES_MAX;
        Some(self.forget_left_out())
    }

    /// When it may be said how many were left out, if any were and no sentence comes before.
    pub fn due(&self) -> Option<Instant> {
        if self.left_out > 0 { self.free_at() } else { None }
    }

    /// How many were left out since the last sentence; they count as told.
    pub fn forget_left_out(&mut self) -> u64 {
        std::mem::take(&mut self.left_out)
    }

    /// When the next sentence may be said, if there was one for each place.
    fn free_at(&self) -> Option<Instant> {
        self.said[self.oldest].map(|said| said + WINDOW)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Clock;

    #[test]
    fn a_flood_is_cut_and_counted() {
        let start = crate::SystemClock.now();
        let mut rate = LogRateLimit::default();
        let said = (0..100).filter(|_| rate.admit(start).is_some()).count();
        assert_eq!(said, 10);
        assert_eq!(rate.due(), Some(start + WINDOW));
        assert_eq!(rate.admit(start + WINDOW), Some(90));
        assert_eq!(rate.due(), None);
        assert_eq!(rate.admit(start + WINDOW), Some(0));
    }

    #[test]
    fn no_window_has_more_sentences_wherever_it_begins() {
        let start = crate::SystemClock.now();
        let mut rate = LogRateLimit::default();
        // Five a second: ten are said in the first two seconds, and then ten more, ten seconds later.
        let times: Vec<Duration> =
            (0..150).map(|count| Duration::from_millis(count * 200)).collect();
        let said: Vec<Duration> =
            times.into_iter().filter(|time| rate.admit(start + *time).is_some()).collect();
        assert_eq!(said.len(), 30);
        for window in said.windows(SENTENCES_MAX + 1) {
            assert!(window[SENTENCES_MAX] - window[0] >= WINDOW, "{window:?}");
        }
    }
}
