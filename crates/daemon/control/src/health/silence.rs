//! Which iothreads do not turn though they were asked to. Decides; the time and what was seen are arguments.
//!
//! Invariants: that an iothread stands still is said once when it has lasted [`TOLD_AFTER`], and its end once if it was said.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// How long an iothread does not answer before that is said.
const TOLD_AFTER: Duration = Duration::from_secs(5);

/// The iothreads of which it was said that they stand still, and since when they do.
#[derive(Debug, Default)]
pub(super) struct SilenceWatch(BTreeMap<String, Instant>);

impl SilenceWatch {
    /// Sees those that have not answered, with for how long; gives what is to be said.
    pub(super) fn look(&mut self, silent: Vec<(String, Duration)>, now: Instant) -> Vec<String> {
        let mut sentences = Vec::new();
        self.0.retain(|name, since| {
            let is_silent = silent.iter().any(|(silent, _)| silent == name);
            if !is_silent {
                let lasted = now.saturating_duration_since(*since);
                sentences.push(format!("iothread {name} turns again after {}", seconds(lasted)));
            }
            is_silent
        });
        for (name, time) in silent.into_iter().filter(|(_, time)| *time >= TOLD_AFTER) {
            let said = &mut sentences;
            self.0.entry(name).or_insert_with_key(|name| {
                let time_said = seconds(time);
                said.push(format!(
                    "iothread {name} has not turned for {time_said}: its queues are not served"
                ));
                now.checked_sub(time).unwrap_or(now)
            });
        }
        sentences
    }
}

fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use block::{Clock, SystemClock};

    use super::*;

    #[test]
    fn that_an_iothread_stands_still_is_said_once_and_so_is_its_end() {
        let start = SystemClock.now();
        let mut watch = SilenceWatch::default();
        let mut look = |silent: &[(&str, u64)], at| {
            let of = |(name, time): &(&str, u64)| ((*name).to_owned(), Duration::from_secs(*time));
            watch.look(silent.iter().map(of).collect(), start + Duration::from_secs(at))
        };
        assert!(look(&[("t0", 4)], 104).is_empty());
        let said = look(&[("t0", 6), ("t1", 1)], 106);
        assert_eq!(said, ["iothread t0 has not turned for 6.0 s: its queues are not served"]);
        assert!(look(&[("t0", 60), ("t1", 2)], 160).is_empty());
        assert_eq!(look(&[], 165), ["iothread t0 turns again after 65.0 s"]);
        assert!(look(&[], 170).is_empty());
    }
}
