//! How an iothread spends its time, for whoever watches it.
//!
//! Where it stands: the event loop tells it at each look at the clock that it takes anyway, and every 64 rounds if there
//! was none; that is all it costs.
//!
//! Invariants: the times add up to the time since the start, but for what has passed since the last look at the clock.
//! Threads: written by the iothread, read by anybody.
//! Limits: a look that finds something ends without a look at the clock. It counts by what looks took before, so the times
//! of work and looks are exact only together.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use block::{Gauge, GaugeWriter, Gauges, nanoseconds};
use kernel_io::{SchedstatFile, ThreadClock, ThreadSchedulerTimes};

use crate::turn_probe::TurnProbe;
use crate::work_alarm::{WorkAlarm, WorkSinceArmed};

/// The statistics of one event loop since its start: time working, polling and sleeping.
#[derive(Debug, Default)]
pub struct LoopGauges {
    /// Nanoseconds in which it worked: events, turns, submissions.
    pub work_ns: Gauge,
    /// Nanoseconds in which it looked for work, and there was none.
    pub poll_ns: Gauge,
    /// Nanoseconds in which it slept until something woke it.
    pub sleep_ns: Gauge,
    /// Rounds of the loop, each with at most one turn for each source. Up to 63 are not counted before it sleeps.
    pub rounds: Gauge,
    /// How often it looked for work.
    pub polls: Gauge,
    /// How often it slept.
    pub sleeps: Gauge,
}

/// An iothread's gauges, and its thread's scheduler statistics.
#[derive(Debug, Clone)]
pub struct IothreadUsage {
    gauges: Gauges<LoopGauges>,
    thread: Arc<ThreadTimes>,
    probe: Arc<TurnProbe>,
}

/// Where the times of a thread are read.
#[derive(Debug)]
pub(crate) struct ThreadTimes {
    stat: SchedstatFile,
    clock: ThreadClock,
    /// The longest wait for a CPU that was found, where the kernel does not say.
    run_delay_ns: AtomicU64,
}

impl ThreadTimes {
    /// Of the calling thread.
    pub(crate) fn of_this() -> Self {
        let (stat, clock) = (SchedstatFile::of_this(), ThreadClock::of_this());
        Self { stat, clock, run_delay_ns: AtomicU64::new(0) }
    }

    /// Of a thread whose times no file tells: what it was awake for and not on a CPU, it waited for one.
    fn by_clock(&self, awake_ns: u64) -> Option<ThreadSchedulerTimes> {
        let cpu = self.clock.read()?;
        let waited = Duration::from_nanos(awake_ns).saturating_sub(cpu);
        let waited = nanoseconds(waited);
        // What it was awake for is told late now and then; a sum does not shrink.
        let before = self.run_delay_ns.fetch_max(waited, Ordering::Relaxed);
        Some(ThreadSchedulerTimes { cpu, run_delay: Duration::from_nanos(waited.max(before)) })
    }
}

impl IothreadUsage {
    pub(crate) fn new(
        gauges: Gauges<LoopGauges>,
        thread: ThreadTimes,
        probe: &Arc<TurnProbe>,
    ) -> Self {
        Self { gauges, thread: Arc::new(thread), probe: Arc::clone(probe) }
    }

    /// For how long it has not turned though it was asked to; nothing if it has, or was not asked since. What it serves waits
    /// meanwhile.
    pub fn unanswered(&self, now: Instant) -> Duration {
        self.probe.unanswered(now)
    }

    /// What it has done.
    pub fn gauges(&self) -> &LoopGauges {
        &self.gauges
    }

    /// How long it was on a CPU, and how long it waited for one; `None` if the kernel does not say. Of an iothread that has
    /// started behind the fences the wait is what it was awake for without being on a CPU, so calls that block are in it.
    /// May be called from any thread; it is a system call.
    pub fn thread_times(&self) -> Option<ThreadSchedulerTimes> {
        let awake_ns = || self.gauges.work_ns.get() + self.gauges.poll_ns.get();
        self.thread.stat.read().or_else(|| self.thread.by_clock(awake_ns()))
    }
}

/// What the loop did since it last read the clock: work, poll or sleep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LoopActivity {
    Work,
    Look,
    Sleep,
}

/// Accounts an event loop's time to work, polling and sleep.
#[derive(Debug)]
pub(crate) struct TimeAccount {
    writer: GaugeWriter<LoopGauges>,
    /// Whoever is told of work, and what was told.
    alarm: Option<(Arc<WorkAlarm>, WorkSinceArmed)>,
    /// Up to when time is counted.
    since: Instant,
    /// What one look took lately.
    look: Duration,
}

/// What a look takes before any was measured.
const LOOK_FIRST: Duration = Duration::from_nanos(50);

impl TimeAccount {
    pub(crate) fn new(
        writer: GaugeWriter<LoopGauges>,
        alarm: Option<Arc<WorkAlarm>>,
        now: Instant,
    ) -> Self {
        let alarm = alarm.map(|it| (it, WorkSinceArmed::default()));
        Self { writer, alarm, since: now, look: LOOK_FIRST }
    }

    /// All time up to now went there.
    pub(crate) fn spent(&mut self, on: LoopActivity, now: Instant) {
        let passed = now.saturating_duration_since(self.since);
        self.since = self.since.max(now);
        self.count(on, passed);
        if let (LoopActivity::Work, Some((alarm, known))) = (on, &mut self.alarm) {
            alarm.worked(known, passed);
        }
        if on == LoopActivity::Sleep {
            self.writer.add(|it| &it.sleeps, 1);
        }
    }

    /// So many looks found nothing, and took until now.
    pub(crate) fn looked(&mut self, polls: u32, now: Instant) {
        self.look = now.saturating_duration_since(self.since) / polls;
        self.spent(LoopActivity::Look, now);
        self.writer.add(|it| &it.polls, u64::from(polls));
    }

    /// Of so many looks the last one found something; nobody looked at the clock.
    pub(crate) fn found(&mut self, polls: u32) {
        let took = self.look * polls;
        self.since += took;
        self.count(LoopActivity::Look, took);
        self.writer.add(|it| &it.polls, u64::from(polls));
    }

    /// So many rounds are over.
    pub(crate) fn rounds(&mut self, rounds: u32) {
        self.writer.add(|it| &it.rounds, u64::from(rounds));
    }

    fn count(&mut self, on: LoopActivity, passed: Duration) {
        self.writer.add(|it| it.time_of(on), nanoseconds(passed));
    }
}

impl LoopGauges {
    fn time_of(&self, activity: LoopActivity) -> &Gauge {
        match activity {
            LoopActivity::Work => &self.work_ns,
            LoopActivity::Look => &self.poll_ns,
            LoopActivity::Sleep => &self.sleep_ns,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use block::{Clock, SystemClock};

    #[test]
    fn times_add_up_and_a_look_without_a_clock_counts_as_looks_did_before() {
        let writer = GaugeWriter::<LoopGauges>::default();
        let gauges = writer.gauges();
        let start = SystemClock.now();
        let at = |us| start + Duration::from_micros(us);
        let mut times = TimeAccount::new(writer, None, start);
        times.spent(LoopActivity::Work, at(10));
        times.looked(16, at(26));
        times.found(3);
        times.spent(LoopActivity::Work, at(40));
        times.spent(LoopActivity::Sleep, at(100));
        times.rounds(64);
        let found = [&gauges.work_ns, &gauges.poll_ns, &gauges.sleep_ns].map(|it| it.get() / 1000);
        assert_eq!(found, [10 + 11, 16 + 3, 60]);
        assert_eq!((gauges.polls.get(), gauges.sleeps.get(), gauges.rounds.get()), (19, 1, 64));
    }

    #[test]
    fn a_clock_that_is_behind_an_estimate_takes_nothing_back() {
        let start = SystemClock.now();
        let mut times = TimeAccount::new(GaugeWriter::default(), None, start);
        times.found(1000);
        times.spent(LoopActivity::Work, start + Duration::from_nanos(1));
        assert_eq!(times.writer.gauges().work_ns.get(), 0);
    }
}
