//! Deadlines for tests: the one place of this crate that reads the clock or sleeps.
//!
//! Invariants: no test waits without a bound; what was waited for is named in the error.
//! Limits: a probe is repeated every `PROBE_INTERVAL`, which is short against any deadline in use.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// How long to rest between two looks at something that cannot be waited for in the kernel.
const PROBE_INTERVAL: Duration = Duration::from_millis(5);

/// A point in time after which a test gives up.
#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    end: Instant,
    limit: Duration,
}

impl Deadline {
    /// The deadline `limit` from now.
    pub fn after(limit: Duration) -> Self {
        Self { end: now() + limit, limit }
    }

    /// The time that is left; zero if the deadline has passed.
    pub fn remaining(&self) -> Duration {
        self.end.saturating_duration_since(now())
    }

    /// Whether the deadline has passed.
    pub fn has_passed(&self) -> bool {
        self.remaining().is_zero()
    }

    /// How long this deadline was when it was set, for messages.
    pub fn limit(&self) -> Duration {
        self.limit
    }

    /// How much of the limit has been used up, for reports of a test's duration.
    pub fn elapsed(&self) -> Duration {
        self.limit.saturating_sub(self.remaining())
    }
}

/// Repeats `probe` until it gives a value; `what` completes the sentence "waited for …".
pub fn poll_until<T>(
    what: &str,
    limit: Duration,
    mut probe: impl FnMut() -> Result<Option<T>>,
) -> Result<T> {
    let deadline = Deadline::after(limit);
    loop {
        if let Some(value) = probe()? {
            return Ok(value);
        }
        if deadline.has_passed() {
            bail!("waited {limit:?} for {what}");
        }
        pause(PROBE_INTERVAL);
    }
}

#[expect(clippy::disallowed_methods, reason = "tests bound their waits by the wall clock")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

#[expect(
    clippy::disallowed_methods,
    reason = "other processes' sockets and exits have no event to wait for that works everywhere; a kill has its time"
)]
pub(crate) fn pause(duration: Duration) {
    std::thread::sleep(duration);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_probe_that_never_succeeds_ends_with_an_error_that_names_it() {
        let result = poll_until("the moon", Duration::from_millis(1), || Ok(None::<()>));
        let message = result.expect_err("the probe never succeeds").to_string();
        assert!(message.contains("the moon"), "{message}");
    }

    #[test]
    fn the_first_value_ends_the_wait() {
        let mut looks = 0;
        let value = poll_until("the third look", Duration::from_secs(5), || {
            looks += 1;
            Ok((looks == 3).then_some(looks))
        });
        assert_eq!(value.expect("the third look succeeds"), 3);
    }
}
