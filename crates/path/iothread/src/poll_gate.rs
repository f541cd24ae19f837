//! Looking takes CPU time from nobody: a thread that looks lets others have its CPU, and stops looking if they take it.
//!
//! Where it stands: the event loop asks before it looks, and has it pause while it looks.
//!
//! A thread that looks never sleeps, so whoever shares its CPU (a client, a vCPU, another iothread, a stranger) waits
//! for it until its time slice is over. So it offers the CPU to them every [`YIELD_EVERY`] (sched_yield). If somebody
//! waits, that takes as long as they run, and while a request comes for a thread that sleeps the scheduler prefers it.
//! So after [`LOST_MAX`] in [`PERIOD`] it looks no more, until [`CLOSED_FOR`] is over. Then it tries again, and if that goes
//! on, more and more seldom, down to [`CLOSED_FOR_MAX`]: until others have taken enough once more, it looks in vain, which
//! costs a quarter of the CPU where the requests are carried out by other threads of this CPU and it tries again every time.
//!
//! Limits: a neighbour is seen only if the scheduler has it wait on the same CPU. What runs beside it, on the other
//! thread of a core or in another virtual machine, is not.

use std::time::{Duration, Instant};

/// How long a thread looks before it offers its CPU: some 20 times what that costs.
const YIELD_EVERY: Duration = Duration::from_micros(8);
/// An offer that took longer was accepted.
const ACCEPTED: Duration = Duration::from_micros(20);
/// In this time...
const PERIOD: Duration = Duration::from_millis(50);
/// ... others may take so much of the CPU while it looks.
const LOST_MAX: Duration = Duration::from_millis(2);
/// How long it does not look after that, if it has looked for [`PERIOD`] before...
const CLOSED_FOR: Duration = Duration::from_millis(50);
/// ... and otherwise for twice as long as the last time, up to this.
const CLOSED_FOR_MAX: Duration = Duration::from_millis(1600);

/// Whether an iothread may look before it sleeps, by what others do on its CPU.
#[derive(Debug)]
pub(crate) struct PollGate {
    /// When it opens, if it is closed.
    closed_until: Option<Instant>,
    /// How long it is closed the next time.
    closed_for: Duration,
    /// How long the thread has looked since it was open again.
    looked: Duration,
    /// When the period began, and how long others had the CPU in it.
    since: Instant,
    lost: Duration,
    /// When the thread offered its CPU last, in this look.
    offered: Instant,
}

impl PollGate {
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            closed_until: None,
            closed_for: CLOSED_FOR,
            looked: Duration::ZERO,
            since: now,
            lost: Duration::ZERO,
            offered: now,
        }
    }

    /// Whether the thread may look now.
    pub(crate) fn is_open(&mut self, now: Instant) -> bool {
        if self.closed_until.is_some_and(|until| now >= until) {
            self.closed_until = None;
            (self.since, self.lost, self.looked) = (now, Duration::ZERO, Duration::ZERO);
        }
        self.closed_until.is_none()
    }

    /// A look begins.
    pub(crate) fn begin(&mut self, now: Instant) {
        self.offered = now;
    }

    /// Whether it is time to offer the CPU to others.
    pub(crate) fn should_yield(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.offered) >= YIELD_EVERY
    }

    /// The CPU was offered, and the thread has it again; whether it may go on looking.
    pub(crate) fn yielded(&mut self, before: Instant, now: Instant) -> bool {
        self.looked += before.saturating_duration_since(self.offered);
        self.offered = now;
        if self.looked >= PERIOD {
            self.closed_for = CLOSED_FOR;
        }
        if now.saturating_duration_since(self.since) > PERIOD {
            (self.since, self.lost) = (now, Duration::ZERO);
        }
        let took = now.saturating_duration_since(before);
        if took >= ACCEPTED {
            self.lost += took;
        }
        if self.lost > LOST_MAX {
            self.closed_until = Some(now + self.closed_for);
            self.closed_for = (self.closed_for * 2).min(CLOSED_FOR_MAX);
        }
        self.closed_until.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use block::{Clock, SystemClock};

    const US: Duration = Duration::from_micros(1);

    #[test]
    fn a_thread_offers_its_cpu_while_it_looks() {
        let start = SystemClock.now();
        let mut gate = PollGate::new(start);
        gate.begin(start + 100 * US);
        assert!(!gate.should_yield(start + 107 * US));
        assert!(gate.should_yield(start + 108 * US));
        assert!(gate.yielded(start + 108 * US, start + 109 * US));
        assert!(!gate.should_yield(start + 116 * US));
    }

    #[test]
    fn who_takes_the_cpu_ends_looking_for_a_while() {
        let start = SystemClock.now();
        let mut gate = PollGate::new(start);
        let taken = start + Duration::from_millis(4);
        assert!(!gate.yielded(start, taken));
        assert!(!gate.is_open(taken + CLOSED_FOR - US));
        assert!(gate.is_open(taken + CLOSED_FOR));
        assert!(gate.yielded(taken + CLOSED_FOR, taken + CLOSED_FOR + US));
    }

    /// Looks without a pause, while others take so much of the CPU at each offer, until the gate closes; when that was.
    fn closed_after(gate: &mut PollGate, mut now: Instant, took: Duration) -> Instant {
        assert!(gate.is_open(now));
        gate.begin(now);
        loop {
            let before = now + YIELD_EVERY;
            now = before + took;
            if !gate.yielded(before, now) {
                return now;
            }
        }
    }

    #[test]
    fn who_takes_the_cpu_again_and_again_is_tried_more_and_more_seldom() {
        let mut now = SystemClock.now();
        let mut gate = PollGate::new(now);
        for times in [1, 2, 4, 8, 16, 32, 32] {
            now = closed_after(&mut gate, now, 40 * US);
            assert!(!gate.is_open(now + CLOSED_FOR * times - US), "{times}");
            now += CLOSED_FOR * times;
        }
        // Nobody wants it for a while: what comes then is new.
        assert!(gate.is_open(now));
        gate.begin(now);
        for _ in 0..PERIOD.as_micros() / YIELD_EVERY.as_micros() + 1 {
            assert!(gate.yielded(now + YIELD_EVERY, now + YIELD_EVERY));
            now += YIELD_EVERY;
        }
        now = closed_after(&mut gate, now, 40 * US);
        assert!(gate.is_open(now + CLOSED_FOR));
    }

    #[test]
    fn who_takes_little_of_it_now_and_then_does_not() {
        let start = SystemClock.now();
        let mut gate = PollGate::new(start);
        for millisecond in 0..10_000 {
            let before = start + millisecond * 1000 * US;
            // A tick of the kernel; every 100 ms a daemon.
            let took = if millisecond % 100 == 0 { 1500 * US } else { 19 * US };
            assert!(gate.yielded(before, before + took), "after {millisecond} ms");
        }
    }
}
