//! How many iothreads may look at once without taking CPU from anybody else.
//!
//! An iothread that looks instead of sleeping uses a whole CPU, partly for work, partly for looking.
//! That is free only as long as nobody else wants the CPU: what is available is the idle time of
//! the CPUs that the process may use, plus the CPU time that the process itself uses. At most that
//! many hold a permit.
//!
//! Threads: shared by all iothreads of a process; counters only, and one lock that is only tried.
//! Limits: measured at most every [`MEASURE_EVERY`]; there is a band between gaining and losing a
//! permit ([`GAIN_PERCENT`], [`LOSE_PERCENT`]), so that the number does not swing.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// How often the idle time is read.
const MEASURE_EVERY: Duration = Duration::from_millis(100);

/// How much of a CPU must be there for one more permit.
const GAIN_PERCENT: u64 = 85;

/// How much of a CPU must be left for a permit that is there.
const LOSE_PERCENT: u64 = 70;

/// How many iothreads may poll at once without taking CPU time from others.
#[derive(Debug)]
pub(crate) struct PollPermits {
    cpus: usize,
    /// How many may look at once. A lone number: nothing else is published by it.
    allowed: AtomicUsize,
    /// How many hold a permit now.
    held: AtomicUsize,
    measured: Mutex<Option<CpuSample>>,
}

/// CPU use as it was measured last, and when.
#[derive(Debug, Clone, Copy)]
struct CpuSample {
    at: Instant,
    used: CpuTimeTotals,
}

/// CPU time since some point in the past: idle, and used by this process.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CpuTimeTotals {
    /// By nobody: of the CPUs that the process may use.
    pub(crate) idle: Duration,
    /// By the process.
    pub(crate) own: Duration,
}

impl PollPermits {
    /// Permits for that many CPUs, all of them free at first.
    pub(crate) fn new(cpus: usize) -> Self {
        Self {
            cpus,
            allowed: AtomicUsize::new(cpus),
            held: AtomicUsize::new(0),
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

    /// Measures anew if it is time and nobody else is doing it. `used` reads the idle time of the
    /// process's CPUs and its own CPU time, each since some point in the past.
    pub(crate) fn measure(&self, now: Instant, used: impl FnOnce() -> Option<CpuTimeTotals>) {
        let Ok(mut measured) = self.measured.try_lock() else { return };
        if measured.is_some_and(|last| now.saturating_duration_since(last.at) < MEASURE_EVERY) {
            return;
        }
        let Some(used) = used() else { return };
        let current = CpuSample { at: now, used };
        if let Some(last) = measured.replace(current) {
            let allowed = self.allowed.load(Ordering::Relaxed);
            let next = adjust(allowed, percent_available(last, current)).min(self.cpus);
            self.allowed.store(next, Ordering::Relaxed);
        }
    }
}

/// How many hundredths of a CPU were there to look with between two measurements.
fn percent_available(last: CpuSample, current: CpuSample) -> u64 {
    let elapsed = current.at.saturating_duration_since(last.at).as_nanos().max(1);
    let idle = current.used.idle.saturating_sub(last.used.idle);
    let own = current.used.own.saturating_sub(last.used.own);
    u64::try_from((idle + own).as_nanos() * 100 / elapsed).unwrap_or(u64::MAX)
}

/// The next number of permits.
fn adjust(allowed: usize, percent: u64) -> usize {
    let whole = |percent: u64| usize::try_from(percent / 100).unwrap_or(usize::MAX);
    let gained = whole(percent + 100 - GAIN_PERCENT);
    let kept = whole(percent + 100 - LOSE_PERCENT);
    allowed.clamp(gained, kept)
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
    fn permits_follow_the_free_cpus_with_a_band_between() {
        check(1, 200, 2);
        check(1, 185, 2);
        check(1, 184, 1);
        check(2, 170, 2);
        check(2, 169, 1);
        check(1, 100, 1);
        check(1, 70, 1);
        check(1, 69, 0);
        check(0, 84, 0);
        check(0, 85, 1);
        check(0, 100, 1);
        check(4, 0, 0);
    }

    fn used(idle_ms: u64, own_ms: u64) -> Option<CpuTimeTotals> {
        let ms = Duration::from_millis;
        Some(CpuTimeTotals { idle: ms(idle_ms), own: ms(own_ms) })
    }

    #[test]
    fn what_the_process_uses_itself_counts_as_free() {
        let start = block::SystemClock.now();
        let permits = PollPermits::new(2);
        permits.measure(start, || used(0, 0));
        assert!(permits.take() && permits.take() && !permits.take());
        // One CPU is busy with somebody else's work, the other with ours.
        permits.measure(start + Duration::from_secs(1), || used(0, 1000));
        assert!(permits.too_many());
        permits.give_back();
        assert!(!permits.too_many() && !permits.take());
    }

    #[test]
    fn a_permit_comes_back_when_the_cpu_is_free_again() {
        let start = block::SystemClock.now();
        let second = Duration::from_secs(1);
        let permits = PollPermits::new(2);
        permits.measure(start, || used(0, 0));
        permits.measure(start + second, || used(0, 300));
        assert!(!permits.take());
        // Now we sleep most of the time, and nobody else wants that CPU.
        permits.measure(start + 2 * second, || used(700, 600));
        assert!(permits.take());
    }
}
