//! What the loop does when nothing is to be done: it looks for a while, asks for kicks and sleeps.
//!
//! Invariants: before the thread sleeps every source was asked for kicks, and none had something new that there was
//! room for. Limits: a look takes as long as the sources and completions are worth (`polling`) for which looking pays
//! (`poll_trial`), while nobody else wants the CPU (`poll_gate`); what is due ends a look and a sleep (`wake_latency`).

use std::io;
use std::time::{Duration, Instant};

use kernel_io::{WaitMode, thread_cpu_time};
use request_path::{SleepDecision, SourceKey};

use super::EventLoop;
use crate::gauges::LoopActivity;
use crate::poll_trial::PollRule;
use crate::polling::{AdaptivePolling, IDLE_AFTER, PollSettings};
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
        if self.poll.max.is_zero() || !self.gate.is_open(self.now) {
            return false;
        }
        if self.trial.is_due(self.now) {
            self.go_on_with_trial();
        }
        let budget = self.budget();
        if budget.is_zero() {
            return false;
        }
        self.enable_idle_kicks();
        let start = self.now;
        self.gate.begin(start);
        loop {
            for polls in 1..=LOOKS_PER_CLOCK {
                if self.schedule_new() || self.engine.has_pending() {
                    self.times.found(polls);
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
            if self.gate.should_yield(self.now) && !self.offer_cpu() {
                return false;
            }
        }
    }

    /// Lets somebody else run on this CPU who waits for it; whether to go on looking.
    fn offer_cpu(&mut self) -> bool {
        let before = self.now;
        std::thread::yield_now();
        self.now = self.clock.now();
        let goes_on = self.gate.yielded(before, self.now);
        if !goes_on {
            self.trial.crowded(self.now);
        }
        goes_on
    }

    /// Tries whether looking pays.
    fn go_on_with_trial(&mut self) {
        let Self { trial, sources, now, poll, completions, .. } = self;
        let answered = |place: usize| {
            sources[place].as_ref().map_or(0, |served| served.bundle.source.answered())
        };
        if trial.step(*now, thread_cpu_time, answered) {
            let longest = AdaptivePolling::longest(&poll.where_it_pays());
            *completions = longest;
            sources.iter_mut().flatten().for_each(|served| served.adaptive = longest);
        }
    }

    /// The settings for this source now; `None` if it is not looked for.
    pub(super) fn poll_settings(&self, key: SourceKey) -> Option<PollSettings> {
        match self.trial.rule(key.0 as usize) {
            PollRule::Never => None,
            PollRule::AsSet => Some(self.poll),
            PollRule::Long => Some(self.poll.where_it_pays()),
        }
    }

    /// How long it is worth looking now: as long as for the source that is worth most, and for completions if one of
    /// those that are looked for may get some.
    fn budget(&self) -> Duration {
        let mut budget = Duration::ZERO;
        let mut has_any = false;
        for key in &self.awake {
            if let Some(served) = &self.sources[key.0 as usize]
                && self.trial.rule(key.0 as usize) != PollRule::Never
            {
                has_any = true;
                budget = budget.max(served.adaptive.budget());
            }
        }
        if has_any && self.engine.is_busy() {
            budget = budget.max(self.completions.budget());
        }
        budget
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
