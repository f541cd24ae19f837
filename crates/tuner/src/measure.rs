//! One run: start the daemon, connect, put the load on it, read the CPU time, stop the daemon.
//!
//! `run` calls `Bench::measure` for each planned run and stores what it returns.
//!
//! Limits: a daemon that does not listen or does not answer within `START_LIMIT` fails the run; it
//! is longer than the 30 s for which a daemon waits for the lock of its image.

use std::io::ErrorKind;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Error, Result, anyhow};
use load::client::{self, Connection};
use load::{LoadError, Sample, Timing, Verdict, Watch, Workload, host};

use crate::cell::{Contender, Iothreads};
use crate::clock;
use crate::cpu::CpuMeter;
use crate::daemon::{Daemon, Running, Service};
use crate::interrupt::Interrupt;
use crate::plan::PlannedRun;
use crate::progress::Progress;
use crate::results::Run;
use crate::target::Target;

const START_LIMIT: Duration = Duration::from_secs(40);
const CONNECT_PAUSE: Duration = Duration::from_millis(3);

/// Everything that stays the same from run to run.
#[derive(Debug)]
pub(crate) struct Bench<'a> {
    pub(crate) daemon: Daemon,
    pub(crate) target: &'a Target,
    pub(crate) timing: Timing,
    pub(crate) daemon_log: PathBuf,
    pub(crate) interrupt: &'a Interrupt,
    pub(crate) progress: &'a Progress,
}

impl Bench<'_> {
    /// Measures one run.
    ///
    /// # Errors
    /// If anything fails, or a signal comes (`Interrupted`). The daemon is stopped in any case.
    pub(crate) fn measure(&self, planned: &PlannedRun) -> Result<Run> {
        let name = run_name(planned);
        let workload = Workload::new(planned.cell.shape(), self.target.bytes, planned.seed)?;
        self.progress.begin(&name);
        let (sample, cpu) = match planned.contender {
            Contender::Host => self.host(&workload, &name),
            Contender::Client { iothreads } => self.client(&workload, iothreads, &name),
        }
        .with_context(|| name.clone())?;
        let run = Run::new(planned, &sample, cpu);
        self.progress.end(&name, run.iops());
        Ok(run)
    }

    fn host(&self, workload: &Workload, name: &str) -> Result<(Sample, Option<Duration>)> {
        let mut watch = RunWatch::new(self, name, CpuMeter::of_this_process(), None);
        let Target { path, cache, .. } = self.target;
        let result = host::run(path, *cache, workload, self.timing, &mut watch);
        watch.conclude(result)
    }

    fn client(
        &self,
        workload: &Workload,
        iothreads: Iothreads,
        name: &str,
    ) -> Result<(Sample, Option<Duration>)> {
        let service = Service {
            target: self.target,
            iothreads,
            queues: workload.shape().jobs(),
            writable: workload.shape().operation().writes(),
        };
        let mut running = Running::start(&self.daemon, &service, &self.daemon_log)?;
        let meter = CpuMeter::of_process(running.pid());
        let mut watch = RunWatch::new(self, name, meter, Some(&mut running));
        let result = watch.connect(workload).and_then(|it| it.run(self.timing, &mut watch));
        let measured = watch.conclude(result)?;
        running.stop()?;
        Ok(measured)
    }
}

/// `randread 4k jobs=2 iodepth=16, 2 iothreads`.
fn run_name(planned: &PlannedRun) -> String {
    let contender = match planned.contender {
        Contender::Host => "host".to_owned(),
        Contender::Client { iothreads: Iothreads::NONE } => "no iothread".to_owned(),
        Contender::Client { iothreads } => {
            crate::units::counted(usize::from(iothreads.count()), "iothread")
        }
    };
    format!("{}, {contender}", planned.cell)
}

/// Looks after a run: signals, the life of the daemon, CPU time, progress.
struct RunWatch<'a> {
    bench: &'a Bench<'a>,
    name: &'a str,
    meter: CpuMeter,
    cpu: Option<Duration>,
    daemon: Option<&'a mut Running>,
    deadline: Option<Instant>,
    /// Why the run was told to stop.
    reason: Option<Error>,
}

impl<'a> RunWatch<'a> {
    fn new(
        bench: &'a Bench<'a>,
        name: &'a str,
        meter: CpuMeter,
        daemon: Option<&'a mut Running>,
    ) -> Self {
        Self { bench, name, meter, cpu: None, daemon, deadline: None, reason: None }
    }

    /// Connects as soon as the daemon listens.
    fn connect(&mut self, workload: &Workload) -> Result<Connection, LoadError> {
        let socket = self.daemon.as_ref().expect("a client has a daemon").socket().to_path_buf();
        self.deadline = Some(clock::now() + START_LIMIT);
        let connection = loop {
            match client::connect(&socket, workload, self) {
                Err(LoadError::SetUp { source, .. }) if is_not_yet(&source) => {
                    clock::pause(CONNECT_PAUSE);
                    if self.tick() == Verdict::Stop {
                        return Err(LoadError::Stopped);
                    }
                }
                result => break result,
            }
        };
        self.deadline = None;
        connection
    }

    /// The result of the load, or the true reason why there is none.
    fn conclude(mut self, result: Result<Sample, LoadError>) -> Result<(Sample, Option<Duration>)> {
        match result {
            Ok(sample) => Ok((sample, self.cpu)),
            Err(error) => {
                // A request may fail because the daemon died a moment ago.
                let reason = self.reason.take().or_else(|| self.complaint().err());
                Err(reason.unwrap_or_else(|| Error::from(error)))
            }
        }
    }

    fn complaint(&mut self) -> Result<()> {
        self.bench.interrupt.check()?;
        if let Some(daemon) = &mut self.daemon {
            daemon.check_alive()?;
        }
        if self.deadline.is_some_and(|deadline| clock::now() > deadline) {
            let limit = START_LIMIT.as_secs();
            return Err(anyhow!("the daemon does not answer on its socket after {limit} s"));
        }
        Ok(())
    }
}

fn is_not_yet(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused)
}

impl Watch for RunWatch<'_> {
    fn window_opens(&mut self) {
        self.meter.start();
    }

    fn window_closes(&mut self) {
        self.cpu = self.meter.elapsed();
    }

    fn tick(&mut self) -> Verdict {
        self.bench.progress.tick(self.name);
        match self.complaint() {
            Ok(()) => Verdict::GoOn,
            Err(reason) => {
                self.reason = Some(reason);
                Verdict::Stop
            }
        }
    }
}
