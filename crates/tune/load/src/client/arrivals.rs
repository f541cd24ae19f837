//! Requests that arrive at random times (a Poisson process), whether earlier ones are answered or not.
//!
//! The queue asks for an interrupt for every completion, as a guest that sleeps does; the client
//! itself spins, so that its own wake-up is in neither the latency nor the times of arrival.
//!
//! Invariants: a latency starts at the time of arrival, also when the iodepth makes the request wait.

use std::time::{Duration, Instant};

use crate::client::{ClientEngine, Connection, engines};
use crate::clock;
use crate::conduct::{Continuation, STALL_LIMIT, TICK, Timing, Watch};
use crate::drive::{Ended, Engine, check};
use crate::sample::Latency;
use crate::workload::{Access, Accesses};
use crate::{LoadError, Random, Sample, Workload};

impl Connection {
    /// Has requests arrive at `per_second` on average, with at most the workload's iodepth in
    /// flight, and closes the connection.
    ///
    /// # Errors
    /// If a request fails, none completes for a long time, or the watch stops the run.
    ///
    /// # Panics
    /// If the workload has more than one job.
    pub fn arrive(
        self,
        per_second: u32,
        timing: Timing,
        watch: &mut dyn Watch,
    ) -> Result<Sample, LoadError> {
        let Self { queues, transport, buffers, workload } = self;
        assert_eq!(workload.shape().jobs(), 1, "arrivals come to one queue");
        let mut engines = engines(queues, &*transport, &buffers, &workload);
        let mut engine = engines.pop().expect("one job has one queue");
        engine.queue.set_used_notif_enabled(true);
        let result = Arrivals::new(&mut engine, &workload, per_second).run(timing, watch);
        drop(engine);
        drop(transport); // After the engine: its queue points into it.
        result
    }
}

struct Arrivals<'a> {
    engine: &'a mut ClientEngine,
    workload: &'a Workload,
    accesses: Accesses,
    random: Random,
    mean: Duration,
    next: Instant,
    /// Per slot: its last request and when that arrived.
    slots: Vec<(Access, Instant)>,
    free: Vec<u16>,
    ended: Vec<Ended>,
    done: u64,
    latency: Latency,
}

impl<'a> Arrivals<'a> {
    fn new(engine: &'a mut ClientEngine, workload: &'a Workload, per_second: u32) -> Self {
        let mut accesses = workload.accesses(0);
        let now = clock::now();
        let free: Vec<u16> = (0..workload.shape().iodepth()).collect();
        Self {
            engine,
            workload,
            slots: free.iter().map(|_| (accesses.next(), now)).collect(),
            accesses,
            random: Random::stream(workload.seed(), u64::from(u16::MAX)),
            mean: Duration::from_secs(1) / per_second,
            next: now,
            free,
            ended: Vec::new(),
            done: 0,
            latency: Latency::default(),
        }
    }

    fn run(mut self, timing: Timing, watch: &mut dyn Watch) -> Result<Sample, LoadError> {
        self.next = clock::now();
        self.run_until(self.next + timing.ramp, watch)?;
        watch.window_opens();
        let opened = clock::now();
        // What should have arrived while the counters were read arrives later.
        self.next = self.next.max(opened);
        (self.done, self.latency) = (0, Latency::default());
        self.run_until(opened + timing.runtime, watch)?;
        let elapsed = opened.elapsed();
        watch.window_closes();
        let (operations, latency) = (self.done, std::mem::take(&mut self.latency));
        let stalled = clock::now() + STALL_LIMIT;
        while self.free.len() < self.slots.len() {
            self.reap()?;
            if clock::now() > stalled {
                return Err(LoadError::Stalled { job: 0, seconds: STALL_LIMIT.as_secs() });
            }
        }
        let bytes = operations * u64::from(self.workload.shape().block().get());
        Ok(Sample { operations, bytes, elapsed, latency })
    }

    fn run_until(&mut self, end: Instant, watch: &mut dyn Watch) -> Result<(), LoadError> {
        let mut ticked = clock::now();
        loop {
            self.reap()?;
            let now = clock::now();
            if now >= end {
                return Ok(());
            }
            self.start(now)?;
            if now - ticked > TICK {
                ticked = now;
                let oldest = self.slots.iter().map(|(_, arrived)| now - *arrived).max();
                if self.free.is_empty() && oldest > Some(STALL_LIMIT) {
                    return Err(LoadError::Stalled { job: 0, seconds: STALL_LIMIT.as_secs() });
                }
                if watch.tick() == Continuation::Stop {
                    return Err(LoadError::Stopped);
                }
            }
        }
    }

    /// Starts what has arrived, as long as a slot is free.
    fn start(&mut self, now: Instant) -> Result<(), LoadError> {
        while self.next <= now
            && let Some(slot) = self.free.pop()
        {
            let access = self.accesses.next();
            self.slots[usize::from(slot)] = (access, self.next);
            self.engine.submit(slot, access)?;
            self.engine.flush()?;
            self.next += gap(self.mean, self.random.next_u64());
        }
        Ok(())
    }

    fn reap(&mut self) -> Result<(), LoadError> {
        self.engine.reap(&mut self.ended);
        if self.ended.is_empty() {
            return Ok(());
        }
        let now = clock::now();
        for Ended { slot, outcome } in self.ended.drain(..) {
            let (access, arrived) = self.slots[usize::from(slot)];
            check(outcome, access, self.workload)?;
            self.latency.record(now - arrived);
            self.done += 1;
            self.free.push(slot);
        }
        Ok(())
    }
}

/// The time to the next arrival: exponentially distributed, from 64 random bits.
fn gap(mean: Duration, random: u64) -> Duration {
    /// 53 bits fill a double; the half keeps the logarithm finite.
    const STEPS: f64 = 9_007_199_254_740_992.0;
    let high = u32::try_from(random >> 43).expect("21 bits");
    let low = u32::try_from((random >> 11) & 0xffff_ffff).expect("32 bits");
    let uniform = (f64::from(high) * 4_294_967_296.0 + f64::from(low) + 0.5) / STEPS;
    mean.mul_f64(-uniform.ln())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_have_the_mean_and_the_spread_of_a_poisson_process() {
        let (mean, mut random) = (Duration::from_micros(50), Random::new(3));
        let gaps: Vec<f64> =
            (0..20_000).map(|_| gap(mean, random.next_u64()).as_secs_f64() * 1e6).collect();
        let average = gaps.iter().sum::<f64>() / 20_000.0;
        assert!((49.0..51.0).contains(&average), "{average}");
        let longer = gaps.iter().filter(|gap| **gap > 50.0).count();
        // e⁻¹ of them are longer than the mean.
        assert!((7_100..7_600).contains(&longer), "{longer}");
    }

    #[test]
    fn the_ends_of_the_random_numbers_give_finite_gaps() {
        let mean = Duration::from_secs(1);
        assert!(gap(mean, 0) < Duration::from_secs(40));
        assert!(gap(mean, u64::MAX) < Duration::from_micros(1));
    }
}
