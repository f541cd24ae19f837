//! How many iothreads may look at once without taking CPU from anybody else.
//!
//! An iothread that looks instead of sleeping uses a whole CPU, partly for work, partly for looking.
//! That is free only as long as nobody else wants the CPU: what is available is the idle time of
//! the CPUs that the process may use, plus the CPU time that its own iothreads use while they hold
//! a permit. At most that many hold one.
//!
//! Threads: shared by all iothreads of a process; counters only, and one lock that is only tried.
//! Limits: measured at most every [`MEASURE_EVERY`]; changes only by what is clearly seen
//! ([`MARGIN_PERCENT`]), so that the number does not swing.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// How often the idle time is read.
const MEASURE_EVERY: Duration = Duration::from_millis(100);

/// A permit is given or taken only if the CPU for it is there, or missing, beyond this part of a
/// CPU.
const MARGIN_PERCENT: u64 = 20;

/// Permits to look.
#[derive(Debug)]
pub(crate) struct PollPermits {
    cpus: usize,
    /// How many may look at once. A lone number: nothing else is published by it.
    allowed: AtomicUsize,
    /// How many hold a permit now.
    held: AtomicUsize,
    /// Nanoseconds of CPU used under permits, by all.
    used_ns: AtomicU64,
    measured: Mutex<Option<Measured>>,
}

#[derive(Debug, Clone, Copy)]
struct Measured {
    at: Instant,
    idle: Duration,
    used_ns: u64,
}

impl PollPermits {
    /// Permits for that many CPUs, all of them free at first.
    pub(crate) fn new(cpus: usize) -> Self {
        Self {
            cpus,
            allowed: AtomicUsize::new(cpus),
            held: AtomicUsize::new(0),
            used_ns: AtomicU64::new(0),
            measured: Mutex::new(None),
        }
    }

    /// Takes a permit, if looking takes CPU from nobody.
    pub(crate) fn take(&self) -> bool {
        let allowed = self.allowed.load(Ordering::Relaxed);
        let one_more = |held| (held < allowed).then_some(held + 1);
        self.held.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).is_ok()
    }

    /// Whether more permits are held than are allowed now, so that one must be given back.
    pub(crate) fn too_many(&self) -> bool {
        self.held.load(Ordering::Relaxed) > self.allowed.load(Ordering::Relaxed)
    }

    /// Gives a permit back.
    pub(crate) fn give_back(&self) {
        self.held.fetch_sub(1, Ordering::Relaxed);
    }

    /// Notes CPU time used under a permit.
    pub(crate) fn note_use(&self, used: Duration) {
        let used = u64::try_from(used.as_nanos()).unwrap_or(u64::MAX);
        self.used_ns.fetch_add(used, Ordering::Relaxed);
    }

    /// Measures anew if it is time and nobody else is doing it. `idle` reads the idle time of the
    /// process's CPUs since some point in the past.
    pub(crate) fn measure(&self, now: Instant, idle: impl FnOnce() -> Option<Duration>) {
        let Ok(mut measured) = self.measured.try_lock() else { return };
        if measured.is_some_and(|last| now.saturating_duration_since(last.at) < MEASURE_EVERY) {
            return;
        }
        let Some(idle) = idle() else { return };
        let used_ns = self.used_ns.load(Ordering::Relaxed);
        let current = Measured { at: now, idle, used_ns };
        if let Some(last) = measured.replace(current) {
            let allowed = self.allowed.load(Ordering::Relaxed);
            let next = adjust(allowed, percent_available(last, current)).min(self.cpus);
            self.allowed.store(next, Ordering::Relaxed);
        }
    }
}

/// How many hundredths of a CPU were there to look with between two measurements.
fn percent_available(last: Measured, current: Measured) -> u64 {
    let elapsed = current.at.saturating_duration_since(last.at).as_nanos().max(1);
    let idle = current.idle.saturating_sub(last.idle).as_nanos();
    let used = u128::from(current.used_ns.saturating_sub(last.used_ns));
    u64::try_from((idle + used) * 100 / elapsed).unwrap_or(u64::MAX)
}

/// The next number of permits: as many as there are whole CPUs, with a margin against swinging.
fn adjust(allowed: usize, percent: u64) -> usize {
    let whole = |percent: u64| usize::try_from(percent / 100).unwrap_or(usize::MAX);
    let more = whole(percent.saturating_sub(MARGIN_PERCENT));
    let fewer = whole(percent + MARGIN_PERCENT);
    if more > allowed {
        more
    } else if fewer < allowed {
        fewer
    } else {
        allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use block::Clock;

    #[track_caller]
    fn check(allowed: usize, percent: u64, expected: usize) {
        assert_eq!(adjust(allowed, percent), expected, "{percent} % with {allowed} permits");
    }

    #[test]
    fn permits_follow_the_free_cpus_with_a_margin() {
        check(1, 200, 1);
        check(1, 220, 2);
        check(2, 180, 2);
        check(2, 179, 1);
        check(1, 85, 1);
        check(1, 79, 0);
        check(0, 119, 0);
        check(0, 120, 1);
    }

    #[test]
    fn what_is_used_under_a_permit_counts_as_free() {
        let start = block::SystemClock.now();
        let permits = PollPermits::new(2);
        permits.measure(start, || Some(Duration::ZERO));
        assert!(permits.take() && permits.take() && !permits.take());
        // One CPU is busy with somebody else's work, the other with ours.
        permits.note_use(Duration::from_secs(1));
        permits.measure(start + Duration::from_secs(1), || Some(Duration::ZERO));
        assert!(permits.too_many());
        permits.give_back();
        assert!(!permits.too_many() && !permits.take());
    }

    #[test]
    fn nobody_looks_when_all_cpus_are_busy() {
        let start = block::SystemClock.now();
        let permits = PollPermits::new(2);
        permits.measure(start, || Some(Duration::ZERO));
        permits.measure(start + Duration::from_secs(1), || Some(Duration::ZERO));
        assert!(!permits.take());
        permits.measure(start + Duration::from_secs(2), || Some(Duration::from_secs(2)));
        assert!(permits.take());
    }
}
