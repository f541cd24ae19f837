//! How fast a job may be, over all of its workers.
//!
//! Threads: those of all workers, behind one lock that is taken once for each chunk. Limits: what was not used for a
//! while is not made up for.

use std::sync::Mutex;
use std::time::{Duration, Instant};

/// For how long a job that was slow may be faster.
const BURST: Duration = Duration::from_millis(100);

/// A limit of bytes in a second.
#[derive(Debug)]
pub(crate) struct RateLimit {
    bytes_per_second: u64,
    /// When all that was let through would have been, at that rate.
    until: Mutex<Option<Instant>>,
}

impl RateLimit {
    /// `bytes_per_second` is above zero.
    pub(crate) fn new(bytes_per_second: u64) -> Self {
        Self { bytes_per_second, until: Mutex::default() }
    }

    /// Whether so many bytes may be copied now; if not, when to ask again.
    pub(crate) fn take(&self, bytes: u64, now: Instant) -> Result<(), Instant> {
        let mut until = self.until.lock().expect("no holder of this lock panics");
        let begin = until.map_or(now, |until| until.max(now.checked_sub(BURST).unwrap_or(now)));
        if begin > now {
            return Err(begin);
        }
        let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(self.bytes_per_second);
        *until = Some(begin + Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_lets_as_many_bytes_through_as_was_said() {
        let rate = RateLimit::new(1000);
        let begin = block::Clock::now(&block::SystemClock);
        let (mut now, mut bytes) = (begin, 0);
        while now < begin + Duration::from_secs(10) {
            match rate.take(100, now) {
                Ok(()) => bytes += 100,
                Err(later) => now = later,
            }
        }
        assert!((9_900..=10_200).contains(&bytes), "{bytes}");
        // A pause is not made up for.
        now += Duration::from_secs(60);
        let mut at_once = 0;
        while rate.take(100, now).is_ok() {
            at_once += 100;
        }
        assert!(at_once <= 300, "{at_once}");
    }
}
