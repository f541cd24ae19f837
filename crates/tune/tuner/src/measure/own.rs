//! Runs of the tuner's own loads: straight on the file, or as a client of the daemon.
//!
//! Limits: a daemon that does not listen or does not answer within `START_LIMIT` fails the run; it is longer than the
//! 30 s for which a daemon waits for the lock of its image.

use std::io::ErrorKind;
use std::time::{Duration, Instant};

use anyhow::{Context, Error, Result, anyhow, bail};
use load::client::{self, Connection};
use load::{Continuation, Fifth, Interval, LoadError, Sample, Watch, Workload, host};
use plan::contender::Iothreads;
use plan::runs::PlannedRun;
use records::meter::{Cost, Group, GroupName, Meter};
use records::results::{OWN_LOAD, Run, nanoseconds};
use storage::clock;

use super::{Bench, KeptDisk, Planned};
use crate::daemon::{Running, START_LIMIT, Service};

const CONNECT_PAUSE: Duration = Duration::from_millis(3);

/// The load straight on the file.
pub(super) fn host(bench: &Bench<'_>, planned: &Planned<'_>) -> Result<Run> {
    let [disk] = planned.disks else {
        bail!("the client's own load drives one disk; --load fio drives several")
    };
    let path = disk.host_path().context("the host reads no such image")?;
    let group = Group::new(GroupName::Load, std::process::id());
    let mut watch = RunWatch::new(bench, planned.name, vec![group], None);
    let result = host::run(
        path,
        disk.cache,
        planned.workload,
        planned.run.timing(bench.settings),
        &mut watch,
    );
    watch.conclude(planned.run, 0, result)
}

/// A client of a daemon, which is started for this run, or goes on from the phase before.
pub(super) fn client(
    bench: &Bench<'_>,
    held: &mut Option<KeptDisk<Running>>,
    planned: &Planned<'_>,
    iothreads: Iothreads,
) -> Result<Run> {
    let key = &planned.run.key;
    let service = Service {
        disks: planned.disks,
        aio: key.variant.aio,
        iothreads,
        queues: planned.run.jobs_max,
        writable: key.cell.writes(),
    };
    let mut running = match KeptDisk::take(held, key, &bench.settings.jobs) {
        Some(running) => running,
        None => Running::start(&bench.daemon, &service, &bench.daemon_log())?,
    };
    let groups = vec![
        Group::new(GroupName::Daemon, running.pid()),
        Group::new(GroupName::Load, std::process::id()),
    ];
    let mut watch = RunWatch::new(bench, planned.name, groups, Some(&mut running));
    let timing = planned.run.timing(bench.settings);
    let result = watch.connect(planned.workload).and_then(|it| it.run(timing, &mut watch));
    let mut measured = watch.conclude(planned.run, planned.workload.shape().jobs(), result)?;
    if let Some(running) = KeptDisk::keep(held, key, running) {
        measured.crashes.extend(running.stop()?.map(|crash| crash.to_string()));
    }
    Ok(measured)
}

/// Looks after a run: signals, the life of the daemon, CPU time, progress.
struct RunWatch<'a> {
    bench: &'a Bench<'a>,
    name: &'a str,
    meter: Meter,
    opened: Option<Instant>,
    cost: Cost,
    per_second: Vec<(u64, u64)>,
    windows: Vec<(u64, u64)>,
    daemon: Option<&'a mut Running>,
    deadline: Option<Instant>,
    /// Why the run was told to stop.
    reason: Option<Error>,
}

impl<'a> RunWatch<'a> {
    fn new(
        bench: &'a Bench<'a>,
        name: &'a str,
        groups: Vec<Group>,
        daemon: Option<&'a mut Running>,
    ) -> Self {
        let meter = Meter::new(groups);
        Self {
            bench,
            name,
            meter,
            opened: None,
            cost: Cost::default(),
            per_second: Vec::new(),
            windows: Vec::new(),
            daemon,
            deadline: None,
            reason: None,
        }
    }

    /// Connects as soon as the daemon listens.
    fn connect(&mut self, workload: &Workload) -> Result<Connection, LoadError> {
        let socket = self.daemon.as_ref().expect("a client has a daemon").socket(0).to_path_buf();
        self.deadline = Some(clock::now() + START_LIMIT);
        let connection = loop {
            match client::connect(&socket, workload, self) {
                Err(LoadError::SetUp { source, .. }) if is_not_yet(&source) => {
                    clock::pause(CONNECT_PAUSE);
                    if self.tick() == Continuation::Stop {
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
    fn conclude(
        mut self,
        planned: &PlannedRun,
        queues: u16,
        result: Result<Sample, LoadError>,
    ) -> Result<Run> {
        match result {
            Ok(sample) => {
                let run = Run::new(planned, OWN_LOAD.to_owned(), sample, self.cost);
                let (per_second, windows) = (self.per_second, self.windows);
                Ok(Run { queues, per_second, windows, ..run })
            }
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
        let now = clock::now();
        self.meter.close(now);
        self.opened = Some(now);
    }

    fn window_closes(&mut self) {
        let now = clock::now();
        self.meter.close(now);
        if let Some(opened) = self.opened {
            self.cost = self.meter.between(opened, now);
        }
    }

    fn tick(&mut self) -> Continuation {
        self.bench.progress.tick(self.name);
        match self.complaint() {
            Ok(()) => Continuation::GoOn,
            Err(reason) => {
                self.reason = Some(reason);
                Continuation::Stop
            }
        }
    }

    fn second(&mut self, interval: &Interval) {
        self.per_second.push((nanoseconds(interval.elapsed), interval.operations));
        self.bench.progress.interval(interval);
    }

    fn fifth(&mut self, fifth: &Fifth) {
        self.windows.push((nanoseconds(fifth.elapsed), fifth.operations));
    }
}
