//! The loop of one job: keep `iodepth` requests in flight, count and time what completes.
//!
//! Called on a job's own thread by `conduct`; calls the job's `Engine`, which is the only difference
//! between the subjects `client` and `host`.
//!
//! Invariants: a slot belongs to at most one request; a slot is reused only after its completion.
//! Threads: the job thread owns engine, slots and counter; phase, slice and progress are shared atomics.

use std::io;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use crate::clock;
use crate::seconds::Counter;
use crate::workload::{Access, Accesses};
use crate::{Direction, LoadError, Workload};

/// How a job puts requests in flight and learns of their end.
pub(crate) trait Engine {
    /// Takes a request for a slot that is free. It may be held back until `flush` or `wait`.
    fn submit(&mut self, slot: u16, access: Access) -> Result<(), LoadError>;
    /// Hands over everything submitted so far.
    fn flush(&mut self) -> Result<(), LoadError>;
    /// Sleeps until something completes and appends what did. May return without anything.
    fn wait(&mut self, ended: &mut Vec<Ended>) -> Result<(), LoadError>;
}

/// A request that left its slot.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) slot: u16,
    pub(crate) outcome: Outcome,
}

/// How a request ended.
#[derive(Debug)]
pub(crate) enum Outcome {
    Done,
    Short(u32),
    Failed(io::Error),
}

/// What the coordinator wants the jobs to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Phase {
    /// Run, count nothing.
    Ramp = 0,
    /// Run and count.
    Measure = 1,
    /// Start nothing new, wait for what is in flight.
    Drain = 2,
    /// Leave now.
    Abandon = 3,
}

/// The state that coordinator and jobs share. All of it is relaxed: it carries no other data.
#[derive(Debug)]
pub(crate) struct Stage {
    phase: AtomicU8,
    /// The slice of the window that runs, from 0.
    slice: AtomicU32,
    ready: AtomicUsize,
    ended: AtomicUsize,
    completed: Vec<AtomicU64>,
}

impl Stage {
    pub(crate) fn new(jobs: u16) -> Self {
        let completed = (0..jobs).map(|_| AtomicU64::new(0)).collect();
        let (ready, ended) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let (phase, slice) = (AtomicU8::new(0), AtomicU32::new(0));
        Self { phase, slice, ready, ended, completed }
    }

    pub(crate) fn set_phase(&self, phase: Phase) {
        self.phase.store(phase as u8, Ordering::Relaxed);
    }

    fn phase(&self) -> Phase {
        match self.phase.load(Ordering::Relaxed) {
            0 => Phase::Ramp,
            1 => Phase::Measure,
            2 => Phase::Drain,
            _ => Phase::Abandon,
        }
    }

    pub(crate) fn set_slice(&self, slice: u32) {
        self.slice.store(slice, Ordering::Relaxed);
    }

    fn slice(&self) -> u32 {
        self.slice.load(Ordering::Relaxed)
    }

    pub(crate) fn note_ready(&self) {
        self.ready.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn note_ended(&self) {
        self.ended.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn ready(&self) -> usize {
        self.ready.load(Ordering::Relaxed)
    }

    pub(crate) fn ended(&self) -> usize {
        self.ended.load(Ordering::Relaxed)
    }

    pub(crate) fn completed(&self) -> impl Iterator<Item = u64> {
        self.completed.iter().map(|job| job.load(Ordering::Relaxed))
    }
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    access: Access,
    submitted: Instant,
}

/// Runs one job from its first request until the coordinator ends it. What completes in the window is counted.
pub(crate) fn drive<E: Engine>(
    engine: &mut E,
    workload: &Workload,
    stage: &Stage,
    job: u16,
    mut counter: Counter,
) -> Result<(), LoadError> {
    let mut accesses = workload.accesses(job);
    let mut slots = fill_queue(engine, &mut accesses, workload.shape().iodepth())?;
    let mut in_flight = slots.len();
    let mut ended = Vec::with_capacity(slots.len());
    let mut completed = 0_u64;
    while in_flight > 0 {
        engine.wait(&mut ended)?;
        let now = clock::now();
        let phase = stage.phase();
        if phase == Phase::Abandon {
            return Err(LoadError::Stopped);
        }
        if phase == Phase::Measure {
            counter.enter(stage.slice());
        }
        for Ended { slot, outcome } in ended.drain(..) {
            let entry = &mut slots[usize::from(slot)];
            check(outcome, entry.access, workload)?;
            completed += 1;
            if phase == Phase::Measure {
                let is_read = entry.access.direction == Direction::Read;
                counter.count(is_read, now - entry.submitted);
            }
            if phase == Phase::Drain {
                in_flight -= 1;
            } else {
                *entry = Slot { access: accesses.next(), submitted: now };
                engine.submit(slot, entry.access)?;
            }
        }
        engine.flush()?;
        stage.completed[usize::from(job)].store(completed, Ordering::Relaxed);
    }
    counter.finish();
    Ok(())
}

fn fill_queue<E: Engine>(
    engine: &mut E,
    accesses: &mut Accesses,
    iodepth: u16,
) -> Result<Vec<Slot>, LoadError> {
    let submitted = clock::now();
    let mut slots = Vec::with_capacity(usize::from(iodepth));
    for slot in 0..iodepth {
        let access = accesses.next();
        engine.submit(slot, access)?;
        slots.push(Slot { access, submitted });
    }
    engine.flush()?;
    Ok(slots)
}

/// Turns the outcome of a request into an error that names the request.
pub(crate) fn check(
    outcome: Outcome,
    access: Access,
    workload: &Workload,
) -> Result<(), LoadError> {
    let Access { direction, offset } = access;
    let length = workload.shape().block().get();
    match outcome {
        Outcome::Done => Ok(()),
        Outcome::Short(moved) => Err(LoadError::Short { direction, offset, length, moved }),
        Outcome::Failed(source) => Err(LoadError::Request { direction, offset, length, source }),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::seconds::{Collector, cuts};
    use crate::{BlockBytes, Sample, Shape};

    /// Completes everything at once, and ends the run after a number of waits.
    struct Instantly<'a> {
        stage: &'a Stage,
        queued: Vec<u16>,
        waits: Vec<Phase>,
        fails_at: Option<usize>,
    }

    impl Engine for Instantly<'_> {
        fn submit(&mut self, slot: u16, _: Access) -> Result<(), LoadError> {
            assert!(!self.queued.contains(&slot), "slot {slot} is in flight twice");
            self.queued.push(slot);
            Ok(())
        }

        fn flush(&mut self) -> Result<(), LoadError> {
            Ok(())
        }

        fn wait(&mut self, ended: &mut Vec<Ended>) -> Result<(), LoadError> {
            let failed = self.fails_at == Some(self.waits.len());
            self.stage.set_phase(self.waits.pop().expect("the job drained"));
            for slot in self.queued.drain(..) {
                let error = || Outcome::Failed(io::Error::from_raw_os_error(5));
                let outcome = if failed { error() } else { Outcome::Done };
                ended.push(Ended { slot, outcome });
            }
            Ok(())
        }
    }

    fn run(waits: &[Phase], fails_at: Option<usize>) -> Result<Sample, LoadError> {
        let block = BlockBytes::try_from(4096).unwrap();
        let shape = Shape::new("randread".parse().unwrap(), block, 1, 3).unwrap();
        let workload = Workload::new(shape, 1 << 20, 1).unwrap();
        let stage = Stage::new(1);
        let waits = waits.iter().rev().copied().collect();
        let mut engine = Instantly { stage: &stage, queued: Vec::new(), waits, fails_at };
        let (mut collector, mut counters) = Collector::new(1, 4096, cuts(Duration::ZERO));
        collector.mark(clock::now());
        drive(&mut engine, &workload, &stage, 0, counters.pop().unwrap())?;
        collector.mark(clock::now());
        while collector.rest().is_some() {}
        Ok(collector.into_sample())
    }

    #[test]
    fn only_the_window_is_counted() {
        let sample =
            run(&[Phase::Ramp, Phase::Measure, Phase::Measure, Phase::Drain], None).unwrap();
        assert_eq!((sample.operations, sample.bytes), (6, 6 * 4096));
        assert_eq!(sample.latency.count(), 6);
    }

    #[test]
    fn a_failed_request_fails_the_run_and_names_the_place() {
        let error = run(&[Phase::Ramp, Phase::Measure], Some(1)).unwrap_err();
        let LoadError::Request { length: 4096, source, .. } = error else {
            panic!("unexpected {error}")
        };
        assert_eq!(source.raw_os_error(), Some(5));
    }

    #[test]
    fn an_abandoned_job_leaves() {
        assert!(matches!(run(&[Phase::Abandon], None), Err(LoadError::Stopped)));
    }
}
