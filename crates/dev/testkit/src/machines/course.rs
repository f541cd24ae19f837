//! What a machine does over a session besides noise: it drifts, remembers, and warms up.
//!
//! Invariants: 1 is the undisturbed machine; what a course does depends on the asks alone, not on chance.

use super::{Ask, Load, WINDOWS};

/// Steps in which a window is followed where the rate depends on what was written.
const STEPS: usize = 8;

/// A change over the session, whatever is run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Drift {
    /// None.
    None,
    /// Straight from 1 to `1 + change`, then it stays.
    Linear {
        /// −0.2 is 20 % less.
        change: f64,
        /// Seconds until then.
        over_s: f64,
    },
    /// At once.
    Step {
        /// −0.2 is 20 % less.
        change: f64,
        /// Seconds until then.
        at_s: f64,
    },
    /// A sine around 1.
    Periodic {
        /// 0.1 is 10 % up and 10 % down.
        amplitude: f64,
        /// Seconds.
        period_s: f64,
    },
}

impl Drift {
    fn at(self, time_s: f64) -> f64 {
        match self {
            Self::None => 1.0,
            Self::Linear { change, over_s } => 1.0 + change * (time_s / over_s).clamp(0.0, 1.0),
            Self::Step { change, at_s } => 1.0 + if time_s < at_s { 0.0 } else { change },
            Self::Periodic { amplitude, period_s } => {
                1.0 + amplitude * (std::f64::consts::TAU * time_s / period_s).sin()
            }
        }
    }
}

/// Which runs are remembered.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Trigger {
    /// With at least so many requests in flight.
    InFlight(u16),
    /// With at least so many iothreads.
    Iothreads(u16),
}

impl Trigger {
    fn is_met(self, ask: &Ask) -> bool {
        match self {
            Self::InFlight(least) => ask.load.in_flight() >= f64::from(least),
            Self::Iothreads(least) => ask.iothreads >= least,
        }
    }
}

/// After some runs the next are faster or slower for a while.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Memory {
    /// Which runs.
    pub after: Trigger,
    /// What follows is so many times as fast.
    pub factor: f64,
    /// For so many seconds after the end of the run.
    pub for_s: f64,
}

/// What changes within a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum WarmUp {
    /// Nothing.
    None,
    /// A run begins at `1 + change` and comes to 1.
    Settles {
        /// −0.4 begins 40 % lower.
        change: f64,
        /// Seconds after which a third of that is left.
        tau_s: f64,
    },
    /// A cache takes writes until it is full; it empties all the time.
    Cache {
        /// How much it takes.
        bytes: f64,
        /// What is left of the rate when it is full: a share.
        full: f64,
        /// Bytes per second that leave it.
        emptied: f64,
    },
}

/// All of them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Course {
    /// Over the session.
    pub drift: Drift,
    /// From run to run.
    pub memory: Option<Memory>,
    /// Within a run.
    pub warm_up: WarmUp,
}

/// What the machine remembers.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct State {
    /// The end of the last run of the kind that is remembered.
    ended_s: Option<f64>,
    cached_bytes: f64,
    /// Until when `cached_bytes` is told.
    told_s: f64,
}

impl Course {
    /// Nothing happens.
    pub const STILL: Self = Self { drift: Drift::None, memory: None, warm_up: WarmUp::None };

    /// The rates of the windows of a run that has `iops` on the undisturbed machine.
    pub(super) fn windows(&self, state: &mut State, ask: &Ask, iops: f64) -> [f64; WINDOWS] {
        let after = self.remembered(state, ask.started_s);
        let ends_s = ask.started_s + ask.ramp_s + ask.seconds;
        if self.memory.is_some_and(|memory| memory.after.is_met(ask)) {
            state.ended_s = Some(ends_s);
        }
        if let WarmUp::Cache { emptied, .. } = self.warm_up {
            let idle_s = (ask.started_s - state.told_s).max(0.0);
            state.cached_bytes = (state.cached_bytes - idle_s * emptied).max(0.0);
            state.told_s = ends_s;
        }
        self.passes(state, ask, iops * after, 0.0, ask.ramp_s);
        let window_s = ask.seconds / WINDOWS as f64;
        std::array::from_fn(|window| {
            let from_s = ask.ramp_s + window as f64 * window_s;
            self.passes(state, ask, iops * after, from_s, window_s)
        })
    }

    /// The mean rate from `from_s` after the start of the run, for `for_s`.
    fn passes(&self, state: &mut State, ask: &Ask, iops: f64, from_s: f64, for_s: f64) -> f64 {
        let step_s = for_s / STEPS as f64;
        let rates = (0..STEPS).map(|step| {
            let in_run_s = from_s + (step as f64 + 0.5) * step_s;
            let rate = iops * self.drift.at(ask.started_s + in_run_s);
            rate * self.warmth(state, ask.load, rate, in_run_s, step_s)
        });
        rates.sum::<f64>() / STEPS as f64
    }

    fn warmth(&self, state: &mut State, load: Load, rate: f64, in_run_s: f64, step_s: f64) -> f64 {
        match self.warm_up {
            WarmUp::None => 1.0,
            WarmUp::Settles { change, tau_s } => 1.0 + change * (-in_run_s / tau_s).exp(),
            WarmUp::Cache { bytes, full, emptied } => {
                let share = match (load.op.writes(), state.cached_bytes < bytes) {
                    (false, _) | (true, true) => 1.0,
                    (true, false) => full,
                };
                let written =
                    if load.op.writes() { share * rate * f64::from(load.bytes) } else { 0.0 };
                let cached = state.cached_bytes + (written - emptied) * step_s;
                state.cached_bytes = cached.clamp(0.0, 1.1 * bytes);
                share
            }
        }
    }

    fn remembered(&self, state: &State, started_s: f64) -> f64 {
        let recent = |memory: &Memory| {
            state.ended_s.is_some_and(|ended_s| started_s - ended_s < memory.for_s)
        };
        self.memory.as_ref().filter(|memory| recent(memory)).map_or(1.0, |memory| memory.factor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machines::{Op, Subject};

    fn ask(started_s: f64, op: Op, jobs: u16) -> Ask {
        let load = Load { op, bytes: 4096, jobs, iodepth: 1 };
        Ask { subject: Subject::Vm, iothreads: 1, load, started_s, ramp_s: 1.0, seconds: 5.0 }
    }

    fn mean(course: &Course, state: &mut State, ask: &Ask) -> f64 {
        course.windows(state, ask, 100.0).iter().sum::<f64>() / WINDOWS as f64
    }

    #[track_caller]
    fn check_drift(drift: Drift, expected: &[(f64, f64)]) {
        let course = Course { drift, ..Course::STILL };
        for &(started_s, expected) in expected {
            let rate = mean(&course, &mut State::default(), &ask(started_s - 3.5, Op::Read, 1));
            assert!((rate - expected).abs() < 0.5, "{drift:?} at {started_s}: {rate}");
        }
    }

    #[test]
    fn drifts_have_their_shape() {
        check_drift(Drift::None, &[(10.0, 100.0), (1000.0, 100.0)]);
        let linear = Drift::Linear { change: -0.2, over_s: 1000.0 };
        check_drift(linear, &[(10.0, 99.8), (500.0, 90.0), (2000.0, 80.0)]);
        let step = Drift::Step { change: -0.2, at_s: 500.0 };
        check_drift(step, &[(400.0, 100.0), (600.0, 80.0)]);
        let sine = Drift::Periodic { amplitude: 0.1, period_s: 400.0 };
        check_drift(sine, &[(100.0, 110.0), (200.0, 100.0), (300.0, 90.0)]);
    }

    #[test]
    fn what_follows_a_high_load_is_slower_for_a_while() {
        let memory = Memory { after: Trigger::InFlight(8), factor: 0.7, for_s: 30.0 };
        let course = Course { memory: Some(memory), ..Course::STILL };
        let mut state = State::default();
        let mut rate = |started_s, jobs| mean(&course, &mut state, &ask(started_s, Op::Read, jobs));
        assert!((rate(0.0, 4) - 100.0).abs() < 1e-9, "nothing went before");
        assert!((rate(10.0, 8) - 100.0).abs() < 1e-9, "itself it is not slower");
        assert!((rate(20.0, 4) - 70.0).abs() < 1e-9);
        assert!((rate(50.0, 4) - 100.0).abs() < 1e-9, "forgotten");
    }

    #[test]
    fn a_run_that_settles_begins_lower() {
        let warm_up = WarmUp::Settles { change: -0.5, tau_s: 2.0 };
        let course = Course { warm_up, ..Course::STILL };
        let windows = course.windows(&mut State::default(), &ask(0.0, Op::Read, 1), 100.0);
        assert!(windows.windows(2).all(|pair| pair[0] < pair[1]), "{windows:?}");
        assert!(windows[0] < 80.0 && windows[4] > 95.0, "{windows:?}");
    }

    #[test]
    fn a_full_cache_slows_writes_until_it_is_empty_again() {
        let warm_up = WarmUp::Cache { bytes: 3.0 * 409_600.0, full: 0.3, emptied: 20_000.0 };
        let course = Course { warm_up, ..Course::STILL };
        let mut state = State::default();
        let first = course.windows(&mut state, &ask(0.0, Op::Write, 1), 100.0);
        assert!(first[0] > 99.0 && first[4] < 31.0, "{first:?}");
        let reads = course.windows(&mut state, &ask(6.0, Op::Read, 1), 100.0);
        assert!(reads.iter().all(|&rate| rate > 99.0), "{reads:?}");
        let still_full = course.windows(&mut state, &ask(12.0, Op::Write, 1), 100.0);
        assert!(still_full[4] < 60.0, "{still_full:?}");
        let rested = course.windows(&mut state, &ask(500.0, Op::Write, 1), 100.0);
        assert!(rested[0] > 99.0, "{rested:?}");
    }
}
