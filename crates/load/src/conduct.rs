//! One run: start the jobs, let the ramp pass, open and close the window, collect.
//!
//! Called by `client` and `host` on the caller's thread; starts one thread per job and runs `drive`
//! on it.
//!
//! Threads: the coordinating thread only sleeps, asks the watch and flips the phase. Limits: a job
//! without a completion for `STALL_LIMIT` ends the run, so a dead daemon cannot hang it.

use std::thread;
use std::time::{Duration, Instant};

use crate::clock;
use crate::drive::{Engine, Phase, Stage, Tally, drive};
use crate::{Latency, LoadError, Sample, Workload};

/// How often the watch is asked.
pub(crate) const TICK: Duration = Duration::from_millis(20);
/// Longer than any disk may need for one request, and than the kernel's own 30 s before it retries.
pub(crate) const STALL_LIMIT: Duration = Duration::from_secs(40);

/// How long to run before and inside the measured window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Timing {
    /// Time before anything is counted.
    pub ramp: Duration,
    /// Length of the window.
    pub runtime: Duration,
}

/// What a watch answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Go on.
    GoOn,
    /// End the run; its result is lost.
    Stop,
}

/// The caller's view into a run. All methods are called on the thread that called `run`.
pub trait Watch {
    /// The window opens now: the place to read counters.
    fn window_opens(&mut self);
    /// The window closes now.
    fn window_closes(&mut self);
    /// Called every few milliseconds.
    fn tick(&mut self) -> Verdict;
}

/// Runs one engine per job. `make` builds an engine on the thread of its job; `wake` makes jobs
/// that sleep in `Engine::wait` look at the phase.
pub(crate) fn conduct<E, M>(
    workload: &Workload,
    timing: Timing,
    watch: &mut dyn Watch,
    makers: Vec<M>,
    wake: &dyn Fn(),
) -> Result<Sample, LoadError>
where
    E: Engine,
    M: FnOnce() -> Result<E, LoadError> + Send,
{
    let stage = Stage::new(workload.shape().jobs());
    let stage = &stage;
    thread::scope(|scope| {
        let jobs: Vec<_> = (0_u16..)
            .zip(makers)
            .map(|(job, make)| scope.spawn(move || job_thread(make, workload, stage, job)))
            .collect();
        let elapsed = Coordinator::new(stage, jobs.len()).conduct(timing, watch);
        if elapsed.is_err() {
            stage.set_phase(Phase::Abandon);
            wake();
        }
        let tallies = jobs.into_iter().map(|job| job.join().expect("a job does not panic"));
        collect(workload, elapsed, tallies.collect())
    })
}

fn job_thread<E: Engine>(
    make: impl FnOnce() -> Result<E, LoadError>,
    workload: &Workload,
    stage: &Stage,
    job: u16,
) -> Result<Tally, LoadError> {
    let result = make().and_then(|mut engine| {
        stage.note_ready();
        drive(&mut engine, workload, stage, job)
    });
    stage.note_ended();
    result
}

/// Joins the jobs. The error of a job explains more than the coordinator's, who only saw it end.
fn collect(
    workload: &Workload,
    elapsed: Result<Duration, LoadError>,
    tallies: Vec<Result<Tally, LoadError>>,
) -> Result<Sample, LoadError> {
    let mut operations = 0;
    let mut latency = Latency::default();
    for tally in tallies {
        match tally {
            Ok(tally) => {
                operations += tally.operations;
                latency.merge(&tally.latency);
            }
            Err(LoadError::Stopped) => {}
            Err(error) => return Err(error),
        }
    }
    let bytes = operations * u64::from(workload.shape().block().get());
    elapsed.map(|elapsed| Sample { operations, bytes, elapsed, latency })
}

struct Coordinator<'a> {
    stage: &'a Stage,
    jobs: usize,
    /// Per job: its last count, and since when it stands.
    progress: Vec<(u64, Instant)>,
}

impl<'a> Coordinator<'a> {
    fn new(stage: &'a Stage, jobs: usize) -> Self {
        let now = clock::now();
        Self { stage, jobs, progress: vec![(0, now); jobs] }
    }

    /// Takes the jobs through all phases and returns the length of the window.
    fn conduct(&mut self, timing: Timing, watch: &mut dyn Watch) -> Result<Duration, LoadError> {
        while self.stage.ready() < self.jobs {
            self.step(watch, TICK)?;
        }
        self.pass(watch, timing.ramp)?;
        watch.window_opens();
        let opened = clock::now();
        self.stage.set_phase(Phase::Measure);
        self.pass(watch, timing.runtime)?;
        self.stage.set_phase(Phase::Drain);
        let elapsed = opened.elapsed();
        watch.window_closes();
        while self.stage.ended() < self.jobs {
            self.pause(watch, TICK)?;
        }
        Ok(elapsed)
    }

    fn pass(&mut self, watch: &mut dyn Watch, duration: Duration) -> Result<(), LoadError> {
        let start = clock::now();
        loop {
            let left = duration.saturating_sub(start.elapsed());
            if left.is_zero() {
                return Ok(());
            }
            self.step(watch, left.min(TICK))?;
        }
    }

    /// One pause in which no job may end.
    fn step(&mut self, watch: &mut dyn Watch, duration: Duration) -> Result<(), LoadError> {
        self.pause(watch, duration)?;
        if self.stage.ended() > 0 {
            return Err(LoadError::Stopped);
        }
        Ok(())
    }

    fn pause(&mut self, watch: &mut dyn Watch, duration: Duration) -> Result<(), LoadError> {
        clock::pause(duration);
        if watch.tick() == Verdict::Stop {
            return Err(LoadError::Stopped);
        }
        let now = clock::now();
        for (job, (count, entry)) in self.stage.completed().zip(&mut self.progress).enumerate() {
            if entry.0 != count {
                *entry = (count, now);
            } else if now - entry.1 > STALL_LIMIT {
                return Err(LoadError::Stalled { job, seconds: STALL_LIMIT.as_secs() });
            }
        }
        Ok(())
    }
}
