//! One run: start the jobs, let the ramp pass, open and close the window, collect, slice by slice.
//!
//! Called by `client` and `host` on the caller's thread; starts one thread per job and runs `drive`
//! on it.
//!
//! Threads: the coordinating thread only sleeps, asks the watch, flips phase and slice, and adds up. Limits: a job
//! without a completion for `STALL_LIMIT` ends the run, so a dead daemon cannot hang it.

use std::thread;
use std::time::{Duration, Instant};

use crate::clock;
use crate::drive::{Engine, Phase, Stage, drive};
use crate::seconds::{Collector, Counter, Cut, WindowPart, cuts};
use crate::{Fifth, Interval, LoadError, Sample, Workload};

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
pub enum Continuation {
    /// Go on.
    GoOn,
    /// End the run; its result is lost.
    Stop,
}

/// The caller's view into a run. All methods are called on the thread that called `run`.
pub trait Watch {
    /// The window opens now: the place to read counters.
    fn window_opens(&mut self);
    /// The window closes now; all jobs still run.
    fn window_closes(&mut self);
    /// Called every few milliseconds.
    fn tick(&mut self) -> Continuation;
    /// What was done in the next second of the window: all of them in order, some of them when the window is closed. The
    /// last is shorter or longer by up to half a second, so that their lengths are that of the window. The light loops
    /// (`run_lightly`, `spin`, `arrive`) do not call it.
    fn second(&mut self, interval: &Interval);
    /// What was done in the next fifth of the window: all five of them in order, told as the seconds are. There are none if
    /// the window is shorter than the clock can cut. The light loops do not call it either.
    fn fifth(&mut self, fifth: &Fifth);
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
    let shape = workload.shape();
    let stage = Stage::new(shape.jobs());
    let stage = &stage;
    let cuts = cuts(timing.runtime);
    let (collector, counters) = Collector::new(shape.jobs(), shape.block().get(), cuts.clone());
    thread::scope(|scope| {
        let jobs: Vec<_> = (0_u16..)
            .zip(makers.into_iter().zip(counters))
            .map(|(job, (make, counter))| {
                scope.spawn(move || job_thread(make, workload, stage, job, counter))
            })
            .collect();
        let mut coordinator = Coordinator::new(stage, jobs.len(), collector);
        let conducted = coordinator.conduct(timing.ramp, &cuts, watch);
        if conducted.is_err() {
            stage.set_phase(Phase::Abandon);
            wake();
        }
        // The error of a job explains more than the coordinator's, who only saw it end.
        let ended = jobs.into_iter().map(|job| job.join().expect("a job does not panic"));
        let failed = ended.filter_map(Result::err).collect::<Vec<_>>();
        match failed.into_iter().find(|error| !matches!(error, LoadError::Stopped)) {
            Some(error) => Err(error),
            None => conducted.map(|()| coordinator.finish(watch)),
        }
    })
}

fn job_thread<E: Engine>(
    make: impl FnOnce() -> Result<E, LoadError>,
    workload: &Workload,
    stage: &Stage,
    job: u16,
    counter: Counter,
) -> Result<(), LoadError> {
    let result = make().and_then(|mut engine| {
        stage.note_ready();
        drive(&mut engine, workload, stage, job, counter)
    });
    stage.note_ended();
    result
}

struct Coordinator<'a> {
    stage: &'a Stage,
    jobs: usize,
    /// Per job: its last count, and since when it stands.
    progress: Vec<(u64, Instant)>,
    collector: Collector,
}

impl<'a> Coordinator<'a> {
    fn new(stage: &'a Stage, jobs: usize, collector: Collector) -> Self {
        let now = clock::now();
        Self { stage, jobs, progress: vec![(0, now); jobs], collector }
    }

    /// Takes the jobs through all phases, and through all slices of the window.
    fn conduct(
        &mut self,
        ramp: Duration,
        cuts: &[Cut],
        watch: &mut dyn Watch,
    ) -> Result<(), LoadError> {
        while self.stage.ready() < self.jobs {
            self.step(watch, TICK)?;
        }
        self.pass_until(watch, clock::now() + ramp)?;
        watch.window_opens();
        let opened = clock::now();
        self.stage.set_phase(Phase::Measure);
        self.collector.mark(opened);
        for (next, cut) in (1..).zip(cuts) {
            self.pass_until(watch, opened + cut.at)?;
            if Some(cut) == cuts.last() {
                // Before any job can end: counters of a thread go with it.
                watch.window_closes();
                self.stage.set_phase(Phase::Drain);
            } else {
                self.stage.set_slice(next);
            }
            self.collector.mark(clock::now());
        }
        while self.stage.ended() < self.jobs {
            self.pause(watch, TICK)?;
        }
        Ok(())
    }

    /// Tells of the rest, when all jobs have ended.
    fn finish(mut self, watch: &mut dyn Watch) -> Sample {
        while let Some(told) = self.collector.rest() {
            tell(watch, &told);
        }
        self.collector.into_sample()
    }

    fn pass_until(&mut self, watch: &mut dyn Watch, end: Instant) -> Result<(), LoadError> {
        loop {
            let left = end.saturating_duration_since(clock::now());
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
        if watch.tick() == Continuation::Stop {
            return Err(LoadError::Stopped);
        }
        while let Some(told) = self.collector.next() {
            tell(watch, &told);
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

fn tell(watch: &mut dyn Watch, told: &WindowPart) {
    match told {
        WindowPart::Second(interval) => watch.second(interval),
        WindowPart::Fifth(fifth) => watch.fifth(fifth),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::drive::{Ended, Outcome};
    use crate::workload::Access;
    use crate::{BlockBytes, Shape};

    /// Ends each request at once. Dropped, its job is about to end.
    struct Null<'a> {
        submitted: Vec<u16>,
        dropped: &'a AtomicUsize,
    }

    impl Engine for Null<'_> {
        fn submit(&mut self, slot: u16, _: Access) -> Result<(), LoadError> {
            self.submitted.push(slot);
            Ok(())
        }

        fn flush(&mut self) -> Result<(), LoadError> {
            Ok(())
        }

        fn wait(&mut self, ended: &mut Vec<Ended>) -> Result<(), LoadError> {
            let done = |slot| Ended { slot, outcome: Outcome::Done };
            ended.extend(self.submitted.drain(..).map(done));
            Ok(())
        }
    }

    impl Drop for Null<'_> {
        fn drop(&mut self) {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    struct Counting<'a> {
        dropped: &'a AtomicUsize,
        at_close: Option<usize>,
    }

    impl Watch for Counting<'_> {
        fn window_opens(&mut self) {}

        fn window_closes(&mut self) {
            // Long enough for jobs that were told to end.
            clock::pause(Duration::from_millis(50));
            self.at_close = Some(self.dropped.load(Ordering::Relaxed));
        }

        fn tick(&mut self) -> Continuation {
            Continuation::GoOn
        }

        fn second(&mut self, _: &Interval) {}

        fn fifth(&mut self, _: &Fifth) {}
    }

    /// Counters of a thread that has ended cannot be read any more.
    #[test]
    fn all_jobs_run_while_counters_are_read() {
        let block = BlockBytes::try_from(4096_u64).unwrap();
        let shape = Shape::new("randread".parse().unwrap(), block, 2, 4).unwrap();
        let workload = Workload::new(shape, 1 << 20, 7).unwrap();
        let dropped = AtomicUsize::new(0);
        let timing = Timing { ramp: Duration::from_millis(5), runtime: Duration::from_millis(100) };
        let mut watch = Counting { dropped: &dropped, at_close: None };
        let make = || Ok(Null { submitted: Vec::new(), dropped: &dropped });
        conduct(&workload, timing, &mut watch, vec![make, make], &|| {}).unwrap();
        assert_eq!((watch.at_close, dropped.into_inner()), (Some(0), 2));
    }
}
