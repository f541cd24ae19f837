//! How often something may be said that a guest or client can cause.
//!
//! Limits: [`SENTENCES_MAX`] in [`WINDOW`]; what was left out is counted, to be said later.

use std::time::{Duration, Instant};

const SENTENCES_MAX: u32 = 10;
const WINDOW: Duration = Duration::from_secs(10);

/// Decides which sentences are said. Pure: the time is an argument.
#[derive(Debug, Default)]
pub struct SentenceRate {
    since: Option<Instant>,
    said: u32,
    left_out: u64,
}

impl SentenceRate {
    /// Whether a sentence may be said now. If so: how many were left out since the last one.
    pub fn admit(&mut self, now: Instant) -> Option<u64> {
        if self.since.is_none_or(|since| now.saturating_duration_since(since) >= WINDOW) {
            self.since = Some(now);
            self.said = 0;
        }
        if self.said == SENTENCES_MAX {
            self.left_out += 1;
            return None;
        }
        self.said += 1;
        Some(std::mem::take(&mut self.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Clock;

    #[test]
    fn a_flood_is_cut_and_counted() {
        let start = crate::SystemClock.now();
        let mut rate = SentenceRate::default();
        let said = (0..100).filter(|_| rate.admit(start).is_some()).count();
        assert_eq!(said, 10);
        assert_eq!(rate.admit(start + WINDOW), Some(90));
        assert_eq!(rate.admit(start + WINDOW), Some(0));
    }
}
