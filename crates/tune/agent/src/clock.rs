//! The only place of this crate that reads clocks or sleeps, and what two machines' clocks have to do with each other.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How far the clock of an agent's machine is ahead of the client's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockOffset {
    /// The agent's clock minus the client's, in nanoseconds.
    pub offset_ns: i64,
    /// The offset is right to this many nanoseconds: half of the round trip in which it was found.
    pub error_ns: u64,
}

impl ClockOffset {
    /// What a round trip tells: when the client asked, what the agent's clock said, when the answer came.
    pub(crate) fn of_round_trip(asked_ns: u64, told_ns: u64, answered_ns: u64) -> Self {
        let error_ns = answered_ns.saturating_sub(asked_ns) / 2;
        let middle = i128::from(asked_ns) + i128::from(error_ns);
        let offset = i128::from(told_ns) - middle;
        let bounded = offset.clamp(i128::from(i64::MIN), i128::from(i64::MAX));
        Self { offset_ns: i64::try_from(bounded).expect("it was clamped"), error_ns }
    }

    /// A time of the client's clock, by the agent's.
    pub(crate) fn to_agent(self, time_ns: u64) -> u64 {
        time_ns.saturating_add_signed(self.offset_ns)
    }

    /// A time of the agent's clock, by the client's.
    pub(crate) fn to_client(self, time_ns: u64) -> u64 {
        time_ns.saturating_add_signed(self.offset_ns.saturating_neg())
    }
}

/// Nanoseconds since 1970 by the wall clock.
pub(crate) fn wall_ns() -> u64 {
    since_epoch(wall())
}

/// The wall clock.
#[expect(
    clippy::disallowed_methods,
    reason = "machines have no other clock in common; this is the one reader"
)]
pub(crate) fn wall() -> SystemTime {
    SystemTime::now()
}

/// A time of the wall clock in nanoseconds since 1970; those before are 0.
pub(crate) fn since_epoch(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// The time that is so many nanoseconds after 1970.
pub(crate) fn from_epoch(nanoseconds: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_nanos(nanoseconds)
}

/// The monotonic clock.
#[expect(
    clippy::disallowed_methods,
    reason = "an agent measures real time; this is the one reader"
)]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Pauses a thread that looks after a program or waits for a time of the clock.
#[expect(
    clippy::disallowed_methods,
    reason = "a start at a time is a time, and children have no event in std"
)]
pub(crate) fn pause(duration: Duration) {
    std::thread::sleep(duration);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_of_the_round_trip_is_when_the_clock_was_read() {
        for (asked, told, answered, offset_ns, error_ns) in [
            (100, 150, 200, 0, 50),
            (100, 1_150, 200, 1_000, 50),
            (1_000, 10, 1_010, -995, 5),
            (200, 100, 100, -100, 0),
            (0, u64::MAX, 0, i64::MAX, 0),
        ] {
            let found = ClockOffset::of_round_trip(asked, told, answered);
            assert_eq!(found, ClockOffset { offset_ns, error_ns }, "{asked} {told} {answered}");
        }
        let offset = ClockOffset { offset_ns: -30, error_ns: 1 };
        assert_eq!((offset.to_agent(100), offset.to_client(70)), (70, 100));
    }
}
