//! The only place of this crate that reads the clock or sleeps.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::Watch;

/// How long to rest between two looks at something that cannot be waited for in the kernel.
const LOOK_INTERVAL: Duration = Duration::from_millis(5);

/// The current time of the monotonic clock.
#[expect(clippy::disallowed_methods, reason = "waits for other processes are bounded by real time")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

#[expect(
    clippy::disallowed_methods,
    reason = "sockets and ends of processes have no event for all"
)]
fn pause(duration: Duration) {
    std::thread::sleep(duration);
}

/// Looks again and again until there is a value; `what` completes the sentence "waited for …".
pub(crate) fn wait_for<T>(
    what: &str,
    limit: Duration,
    watch: Watch<'_>,
    mut look: impl FnMut() -> Result<Option<T>>,
) -> Result<T> {
    let end = now() + limit;
    loop {
        watch()?;
        if let Some(value) = look()? {
            return Ok(value);
        }
        if now() >= end {
            bail!("waited {limit:?} for {what}");
        }
        pause(LOOK_INTERVAL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_ends_with_its_limit_or_its_watch() {
        let look = || Ok(None::<()>);
        let limit = Duration::from_millis(1);
        let error = wait_for("the moon", limit, &mut || Ok(()), look).expect_err("never there");
        assert!(error.to_string().contains("the moon"), "{error}");
        let hour = Duration::from_secs(3600);
        let error = wait_for("it", hour, &mut || bail!("enough"), look).expect_err("watched");
        assert_eq!(error.to_string(), "enough");
    }
}
