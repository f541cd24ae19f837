//! The only place of this crate that reads clocks or sleeps.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The current time of the monotonic clock.
#[expect(clippy::disallowed_methods, reason = "the tuner measures real time; its one clock")]
pub fn now() -> Instant {
    Instant::now()
}

/// Time since 1970, for the results and as a seed when none is given.
#[expect(clippy::disallowed_methods, reason = "results carry the wall clock; its one reader")]
pub fn since_epoch() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// How long a tick of the kernel's clock is: 1 to 10 ms.
pub fn kernel_tick() -> Duration {
    // The coarse clocks are those that go on with each tick.
    let tick = rustix::time::clock_getres(rustix::time::ClockId::RealtimeCoarse);
    Duration::try_from(tick).unwrap_or_default()
}

/// Pauses while a child process starts or stops, for which there is no event to wait for.
#[expect(clippy::disallowed_methods, reason = "a child's start and end are polled")]
pub fn pause(duration: Duration) {
    std::thread::sleep(duration);
}

/// How often something that is held is asked for again.
const HELD_POLL: Duration = Duration::from_millis(20);

/// Tries again, for as long as `limit`, while `act` fails because somebody holds what it needs, perhaps for a moment only: a
/// process that is just ending, a child between fork and exec.
pub fn while_held<T, E>(
    limit: Duration,
    is_held: impl Fn(&E) -> bool,
    act: impl Fn() -> Result<T, E>,
) -> Result<T, E> {
    let deadline = now() + limit;
    loop {
        match act() {
            Err(error) if is_held(&error) && now() < deadline => pause(HELD_POLL),
            result => return result,
        }
    }
}
