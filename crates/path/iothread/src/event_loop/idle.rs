//! What the loop does when nothing is to be done: it looks for a while, asks for kicks and sleeps.
//!
//! Invariants: before the thread sleeps every source was asked for kicks, and none had something new that there was
//! room for. Limits: a look takes as long as the sources and completions are worth (`polling`), if it gets a permit
//! (`poll_gate`); what is due ends a look and a sleep (`wake_latency`).

use std::io;
use std::time::{Duration, Instant};

use kernel_io::WaitMode;
use request_path::{SleepDecision, SourceKey};

use super::EventLoop;
use crate::gauges::LoopActivity;
use crate::polling::IDLE_AFTER;
use crate::wake_latency::SleepPlan;

/// How often to look between two looks at the clock, which cost about as much as ten of them.
const LOOKS_PER_CLOCK: u32 = 16;

impl EventLoop {
    /// Looks for work, and sleeps until there is some or something is due, if none was found. Returns
    /// how long there has been nothing to do if it slept.
    pub(super) fn find_work(&mut self) -> io::Result<Option<Duration>> {
        self.now = self.clock.now();
        self.times.spent(LoopActivity::Work, self.now);
        self.sample.pause();
        if self.engine.has_own_work() {
            // No time to sleep, so no reason to ask for kicks.
            self.schedule_new();
            return Ok(None);
        }
        let start = *self.idle_since.get_or_insert(self.now);
        if self.look() {
            return Ok(None);
        }
        let wait = match self.engine.due() {
            None => WaitMode::Block,
            Some(due) => {
                self.now = self.clock.now();
                self.times.spent(LoopActivity::Work, self.now);
                match self.timer.plan_sleep(due.at.saturating_duration_since(self.now), due.slack) {
                    SleepPlan::Sleep(limit) => WaitMode::AtMost(limit),
                    SleepPlan::Spin => {
                        self.poll_until(due.at);
                        return Ok(None);
                    }
                }
            }
        };
        if self.enable_all_kicks() {
            return Ok(None);
        }
        self.gate.sleep();
        self.times.rounds(std::mem::take(&mut self.rounds));
        self.engine.wait(wait)?;
        let asleep = self.now;
        self.now = self.clock.now();
        self.times.spent(LoopActivity::Sleep, self.now);
        if let WaitMode::AtMost(limit) = wait {
            self.timer.record_wake(limit, self.now.saturating_duration_since(asleep));
        }
        Ok(Some(self.now.saturating_duration_since(start)))
    }

    /// Looks for something new until then: something is due, and too soon for a sleep.
    fn poll_until(&mut self, due: Instant) {
        while self.now < due && !self.schedule_new() && !self.engine.has_pending() {
            std::hint::spin_loop();
            self.now = self.clock.now();
            self.times.looked(1, self.now);
        }
    }

    /// Looks for something new as long as the sources are worth it; whether there was any.
    fn look(&mut self) -> bool {
        let budget = self.budget();
        if budget.is_zero() || !self.gate.may_poll(self.now) {
            return false;
        }
        self.enable_idle_kicks();
        let start = self.now;
        loop {
            for polls in 1..=LOOKS_PER_CLOCK {
                if self.schedule_new() {
                    self.times.found(polls);
                    self.requests_found(start);
                    return true;
                }
                if self.engine.has_pending() {
                    self.times.found(polls);
                    self.completions_found(start);
                    return true;
                }
                std::hint::spin_loop();
            }
            self.now = self.clock.now();
            self.times.looked(LOOKS_PER_CLOCK, self.now);
            if self.engine.due().is_some_and(|due| due.at <= self.now) {
                return true;
            }
            if self.now.saturating_duration_since(start) >= budget {
                return false;
            }
        }
    }

    /// Tells the called sources that are on trial how long the look took.
    fn requests_found(&mut self, start: Instant) {
        let settings = *self.gate.settings();
        let mut waited = None;
        for key in &self.ready {
            if let Some(served) = &mut self.sources[key.0 as usize]
                && served.adaptive.is_on_trial()
            {
                let now = &mut self.now;
                let waited = *waited.get_or_insert_with(|| {
                    *now = self.clock.now();
                    now.saturating_duration_since(start)
                });
                served.adaptive.found_after(waited, &settings);
            }
        }
    }

    /// The kernel has something; while requests are being carried out that is almost always their
    /// completions.
    fn completions_found(&mut self, start: Instant) {
        if self.gate.is_trying_completions() && self.engine.is_busy() {
            self.now = self.clock.now();
            self.gate.completion_found(self.now.saturating_duration_since(start));
        }
    }

    /// How long it is worth looking now: as long as for the source that is worth most.
    fn budget(&self) -> Duration {
        let of_source = |key: &SourceKey| {
            let served = self.sources[key.0 as usize].as_ref();
            served.map_or(Duration::ZERO, |served| served.adaptive.budget())
        };
        let sources = self.awake.iter().map(of_source).max().unwrap_or_default();
        let busy = self.engine.is_busy();
        let completions = if busy { self.gate.completions_budget() } else { Duration::ZERO };
        sources.max(completions)
    }

    /// Asks all sources for kicks; whether one has something new for which no kick may come.
    fn enable_all_kicks(&mut self) -> bool {
        while let Some(key) = self.awake.pop() {
            self.enable_kicks(key);
        }
        !self.ready.is_empty()
    }

    /// Asks the sources for kicks that have been silent for long: looking at them would cost those
    /// that are not.
    pub(super) fn enable_idle_kicks(&mut self) {
        let now = self.now;
        let mut place = 0;
        while let Some(&key) = self.awake.get(place) {
            let idle = self.sources[key.0 as usize]
                .as_ref()
                .is_none_or(|served| now.saturating_duration_since(served.last_new) > IDLE_AFTER);
            if idle {
                self.awake.swap_remove(place);
                self.enable_kicks(key);
            } else {
                place += 1;
            }
        }
    }

    fn enable_kicks(&mut self, key: SourceKey) {
        let Some(served) = &mut self.sources[key.0 as usize] else { return };
        served.awake = false;
        if served.state.is_serving()
            && served.bundle.source.rest() == SleepDecision::MoreWork
            && !served.full
        {
            self.schedule(key);
        }
    }
}
