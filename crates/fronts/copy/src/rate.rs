//! How fast a job may be, over all of its workers.
//!
//! Threads: those of all workers, behind one lock that is taken once for each chunk. Limits: what was not used for a
//! while is not made up for.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// For how long a job that was slow may be faster.
const BURST: Duration = Duration::from_millis(100);

/// A limit of bytes in a second, or none.
#[derive(Debug)]
pub(crate) struct RateLimit {
    /// Zero is none.
    bytes_per_second: AtomicU64,
    /// When all that was let through would have been, at that rate.
    until: Mutex<Option<Instant>>,
}

impl RateLimit {
    pub(crate) fn new(bytes_per_second: Option<u64>) -> Self {
        let bytes_per_second = AtomicU64::new(bytes_per_second.unwrap_or(0));
        Self { bytes_per_second, until: Mutex::default() }
    }

    /// Another limit from now on.
    pub(crate) fn set(&self, bytes_per_second: Option<u64>) {
        let mut until = self.until.lock().expect("no holder of this lock panics");
        self.bytes_per_second.store(bytes_per_second.unwrap_or(0), Ordering::Relaxed);
        *until = None;
    }

    /// What may be copied in the time that a job may be faster for.
    pub(crate) fn burst_bytes(&self) -> u64 {
        let bytes_per_second = self.bytes_per_second.load(Ordering::Relaxed);
        let bytes = u128::from(bytes_per_second) * BURST.as_millis() / 1000;
        if bytes_per_second == 0 { u64::MAX } else { u64::try_from(bytes).unwrap_or(u64::MAX) }
    }

    /// Whether anything may be copied now; if not, when to ask again.
    pub(crate) fn check(&self, now: Instant) -> Result<(), Instant> {
        if self.bytes_per_second.load(Ordering::Relaxed) == 0 {
            return Ok(());
        }
        let until = *self.until.lock().expect("no holder of this lock panics");
        begin(until, now).map(drop)
    }

    /// Whether so many bytes may be copied now; if not, when to ask again.
    pub(crate) fn take(&self, bytes: u64, now: Instant) -> Result<(), Instant> {
        let bytes_per_second = self.bytes_per_second.load(Ordering::Relaxed);
        if bytes_per_second == 0 {
            return Ok(());
        }
        let mut until = self.until.lock().expect("no holder of this lock panics");
        let begin = begin(*until, now)?;
        let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(bytes_per_second);
        *until = Some(begin + Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)));
        Ok(())
    }
}

/// From when on what is let through now counts.
fn begin(until: Option<Instant>, now: Instant) -> Result<Instant, Instant> {
    let begin = until.map_or(now, |until| until.max(now.checked_sub(BURST).unwrap_or(now)));
    if begin > now { Err(begin) } else { Ok(begin) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_lets_as_many_bytes_through_as_was_said() {
        let rate = RateLimit::new(Some(1000));
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
