//! The only place of this crate that reads the clock or sleeps.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow};

/// How long to rest between two looks: each starts a program or two.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// The current time of the monotonic clock.
#[expect(clippy::disallowed_methods, reason = "waits for other processes are bounded by real time")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Rests.
#[expect(clippy::disallowed_methods, reason = "the states of other programs have no event for us")]
pub(crate) fn pause(duration: Duration) {
    std::thread::sleep(duration);
}

/// Tries again and again until it works. The error is that of the last try; `what` completes "waited for …".
pub(crate) fn wait_for<T>(
    what: &str,
    limit: Duration,
    mut attempt: impl FnMut() -> Result<Attempt<T>>,
) -> Result<T> {
    let end = now() + limit;
    loop {
        let reason = match attempt()? {
            Attempt::Done(value) => return Ok(value),
            Attempt::Later(reason) => reason,
        };
        if now() >= end {
            return Err(reason).with_context(|| format!("waited {limit:?} for {what}"));
        }
        pause(LOOK_INTERVAL);
    }
}

/// How a try ended that is no error for good.
#[derive(Debug)]
pub(crate) enum Attempt<T> {
    /// It worked.
    Done(T),
    /// Not yet, and why.
    Later(anyhow::Error),
}

impl<T> Attempt<T> {
    /// Not yet, for this reason.
    pub(crate) fn later(reason: impl Into<String>) -> Self {
        Self::Later(anyhow!(reason.into()))
    }

    /// Each error may pass.
    pub(crate) fn of(result: Result<T>) -> Self {
        result.map_or_else(Self::Later, Self::Done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_ends_with_the_last_reason() {
        let attempt = || Ok(Attempt::<()>::later("it is cloudy"));
        let error = wait_for("the moon", Duration::ZERO, attempt).expect_err("never there");
        let text = format!("{error:#}");
        assert!(text.contains("the moon") && text.contains("cloudy"), "{text}");
    }

    #[test]
    fn a_wait_ends_as_soon_as_it_works_or_can_never_work() {
        let hour = Duration::from_secs(3600);
        assert_eq!(wait_for("it", hour, || Ok(Attempt::Done(7))).expect("it is there"), 7);
        let error = wait_for::<()>("it", hour, || Err(anyhow!("gone"))).expect_err("gone for good");
        assert_eq!(error.to_string(), "gone");
    }
}
