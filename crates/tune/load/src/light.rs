//! The lightest loop: the calling thread drives all engines, counts, and times one request in 64.
//!
//! For `cargo xtask bench`, whose servers answer in less time than a histogram and two readings of
//! the clock per request take. Not here: the tuner's loop, which times every request (`drive`).
//!
//! Invariants: as in `drive`: a slot belongs to at most one request at a time.
//! Threads: everything happens on the calling thread; engines may sleep or return without anything.
//! Limits: the watch and the clock are asked every [`TURNS_PER_LOOK`] turns of every engine.

use std::time::Instant;

use crate::clock;
use crate::conduct::{Continuation, STALL_LIMIT, TICK, Timing, Watch};
use crate::drive::{Ended, Engine, check};
use crate::sample::Latency;
use crate::workload::{Access, Accesses};
use crate::{LoadError, Sample, Workload};

const TURNS_PER_LOOK: u32 = 32;
/// One request in so many is timed, by a clock that takes a tenth of a fast request's time.
const REQUESTS_PER_TIMING: u32 = 64;

/// Runs the workload, engine `n` as job `n`.
pub(crate) fn drive_lightly<E: Engine>(
    engines: &mut [E],
    workload: &Workload,
    timing: Timing,
    watch: &mut dyn Watch,
) -> Result<Sample, LoadError> {
    let mut jobs = Vec::with_capacity(engines.len());
    for (job, engine) in (0_u16..).zip(engines) {
        jobs.push(Job::start(engine, workload, job)?);
    }
    let mut light =
        Light { jobs, workload, ended: Vec::new(), done: 0, latency: Latency::default() };
    light.run_until(clock::now() + timing.ramp, watch)?;
    watch.window_opens();
    let opened = clock::now();
    (light.done, light.latency) = (0, Latency::default());
    light.run_until(opened + timing.runtime, watch)?;
    let elapsed = opened.elapsed();
    watch.window_closes();
    let operations = light.done;
    let latency = std::mem::take(&mut light.latency);
    light.drain()?;
    let bytes = operations * u64::from(workload.shape().block().get());
    Ok(Sample { operations, bytes, elapsed, latency })
}

struct Light<'a, E> {
    jobs: Vec<Job<'a, E>>,
    workload: &'a Workload,
    ended: Vec<Ended>,
    done: u64,
    latency: Latency,
}

/// An engine with what belongs to it.
struct Job<'a, E> {
    engine: &'a mut E,
    accesses: Accesses,
    slots: Vec<Access>,
    /// The request being timed, and since when.
    timed: Option<(u16, Instant)>,
    untimed: u32,
}

impl<'a, E: Engine> Job<'a, E> {
    fn start(engine: &'a mut E, workload: &Workload, job: u16) -> Result<Self, LoadError> {
        let mut accesses = workload.accesses(job);
        let slots: Vec<_> = (0..workload.shape().iodepth()).map(|_| accesses.next()).collect();
        for (slot, &access) in (0_u16..).zip(&slots) {
            engine.submit(slot, access)?;
        }
        engine.flush()?;
        Ok(Self { engine, accesses, slots, timed: None, untimed: 0 })
    }
}

impl<E: Engine> Light<'_, E> {
    fn run_until(&mut self, end: Instant, watch: &mut dyn Watch) -> Result<(), LoadError> {
        let mut ticked = clock::now();
        let mut progress = (self.done, ticked);
        loop {
            for _ in 0..TURNS_PER_LOOK {
                self.turn()?;
            }
            let now = clock::now();
            if now >= end {
                return Ok(());
            }
            if now - ticked < TICK {
                continue;
            }
            ticked = now;
            if watch.tick() == Continuation::Stop {
                return Err(LoadError::Stopped);
            }
            if progress.0 != self.done {
                progress = (self.done, now);
            } else if now - progress.1 > STALL_LIMIT {
                return Err(LoadError::Stalled { job: 0, seconds: STALL_LIMIT.as_secs() });
            }
        }
    }

    /// Lets every engine bring what has ended, and starts as many new requests.
    fn turn(&mut self) -> Result<(), LoadError> {
        let Self { jobs, workload, ended, done, latency } = self;
        for job in jobs {
            job.engine.wait(ended)?;
            if ended.is_empty() {
                continue;
            }
            for Ended { slot, outcome } in ended.drain(..) {
                let access = &mut job.slots[usize::from(slot)];
                check(outcome, *access, workload)?;
                *done += 1;
                match job.timed {
                    Some((timed, since)) if timed == slot => {
                        latency.record(since.elapsed());
                        job.timed = None;
                    }
                    _ => job.untimed += 1,
                }
                if job.untimed >= REQUESTS_PER_TIMING && job.timed.is_none() {
                    (job.timed, job.untimed) = (Some((slot, clock::now())), 0);
                }
                *access = job.accesses.next();
                job.engine.submit(slot, *access)?;
            }
            job.engine.flush()?;
        }
        Ok(())
    }

    /// Waits until nothing is in flight.
    fn drain(&mut self) -> Result<(), LoadError> {
        for job in &mut self.jobs {
            let mut in_flight = job.slots.len();
            let mut progress = clock::now();
            while in_flight > 0 {
                job.engine.wait(&mut self.ended)?;
                if self.ended.is_empty() && progress.elapsed() > STALL_LIMIT {
                    return Err(LoadError::Stalled { job: 0, seconds: STALL_LIMIT.as_secs() });
                }
                for Ended { slot, outcome } in self.ended.drain(..) {
                    check(outcome, job.slots[usize::from(slot)], self.workload)?;
                    in_flight -= 1;
                    progress = clock::now();
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::drive::Outcome;
    use crate::{BlockBytes, Shape};

    /// Completes everything at once; every second wait brings nothing.
    #[derive(Default)]
    struct Instantly {
        queued: Vec<u16>,
        completed: u64,
        odd: bool,
    }

    impl Engine for Instantly {
        fn submit(&mut self, slot: u16, _: Access) -> Result<(), LoadError> {
            assert!(!self.queued.contains(&slot), "slot {slot} is in flight twice");
            self.queued.push(slot);
            Ok(())
        }

        fn flush(&mut self) -> Result<(), LoadError> {
            Ok(())
        }

        fn wait(&mut self, ended: &mut Vec<Ended>) -> Result<(), LoadError> {
            self.odd = !self.odd;
            if self.odd {
                return Ok(());
            }
            self.completed += self.queued.len() as u64;
            ended.extend(self.queued.drain(..).map(|slot| Ended { slot, outcome: Outcome::Done }));
            Ok(())
        }
    }

    struct Patient(u32);

    impl Watch for Patient {
        fn window_opens(&mut self) {
            self.0 += 1;
        }
        fn window_closes(&mut self) {
            self.0 += 10;
        }
        fn tick(&mut self) -> Continuation {
            Continuation::GoOn
        }
        fn second(&mut self, _: &crate::Interval) {}
        fn fifth(&mut self, _: &crate::Fifth) {}
    }

    #[test]
    fn all_engines_are_driven_and_drained_and_few_requests_timed() {
        let block = BlockBytes::try_from(4096).unwrap();
        let shape = Shape::new("randread".parse().unwrap(), block, 2, 3).unwrap();
        let workload = Workload::new(shape, 1 << 20, 1).unwrap();
        let mut engines = [Instantly::default(), Instantly::default()];
        let window = Duration::from_millis(5);
        let timing = Timing { ramp: Duration::ZERO, runtime: window };
        let mut watch = Patient(0);
        let sample = drive_lightly(&mut engines, &workload, timing, &mut watch).unwrap();
        assert_eq!(watch.0, 11, "the window opened and closed once");
        assert!(sample.elapsed >= window);
        assert!(engines.iter().all(|engine| engine.queued.is_empty() && engine.completed > 100));
        assert!(sample.operations <= engines.iter().map(|engine| engine.completed).sum());
        let timed = sample.latency.count();
        assert!(timed > 0 && timed <= sample.operations / 64, "{timed}");
    }
}
