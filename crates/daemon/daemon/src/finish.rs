//! The last steps of a start: pidfile, monitors, state file, the fences, clients, and that it is told to be ready.
//!
//! Invariants: nobody is accepted, and nobody told that the daemon is ready, before the fences are up. What goes wrong is a
//! reason to end if nobody is served; guests that were taken over count more, and it is said.
//! Threads: the process's first one.

use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use block::{Clock, SystemClock};
use control::{DaemonState, HealthWatch};
use exports::{DescriptorCheck, InterruptibleWait, attach_lines};
use host::{Pidfile, ReadinessPipe, chain_of};
use monitor::Monitors;
use nbd_server::nbd_attach_lines;
use options::Plan;
use sandbox::Sandbox;
use takeover::{PredecessorProcess, TakeoverOutcome};

use crate::kept_state::State;
use crate::log::{Log, is_journal};
use crate::metrics_output::MetricsOutput;
use crate::serve::ServeError;

/// The last steps of a start: the fences, clients, monitors, and that it is told to be ready.
pub(crate) struct Finish<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) directory: &'a Path,
    pub(crate) sandbox: Option<&'a Arc<Sandbox>>,
    pub(crate) check: &'a DescriptorCheck,
    /// When the process was started, since 1970.
    pub(crate) started: Duration,
}

/// What there is besides what is served, at the end of a start.
pub(crate) struct Finished {
    pub(crate) pidfile: Option<Pidfile>,
    pub(crate) monitors: Option<Monitors>,
    pub(crate) metrics: Option<MetricsOutput>,
    /// Watches queues and files; dropped, it ends.
    pub(crate) health: Option<HealthWatch>,
}

impl Finish<'_> {
    /// Pidfile, monitors and metrics, if there are such.
    pub(crate) fn run(
        &self,
        built: &mut DaemonState,
        taken: TakeoverOutcome,
        mut state: State,
        readiness: Option<ReadinessPipe>,
        log: &Log,
        wait: &mut dyn InterruptibleWait,
    ) -> Result<Finished, ServeError> {
        let Self { plan, directory, sandbox, check, .. } = self;
        let failed = |action| move |source| ServeError::Process { action, source };
        let TakeoverOutcome { listening, predecessor } = taken;
        let guests = match predecessor {
            Some(_) => StartupErrorPolicy::Served,
            None => StartupErrorPolicy::None,
        };
        // Who was taken over has its pidfile, its monitors' sockets and its state file until it has ended.
        let pidfile = match predecessor {
            None => plan.pidfile.as_deref().map(Pidfile::write).transpose()?,
            Some(predecessor) => write_pidfile_after(plan, &predecessor),
        };
        let (chardevs, memory) = (&plan.chardevs, &plan.guest_memory);
        let opened = Monitors::open(chardevs, &plan.monitors, memory, *sandbox, wait);
        let mut monitors = guests.some_if_served(opened.map_err(ServeError::from))?;
        let metrics = plan.metrics.as_ref().map(MetricsOutput::open).transpose();
        let mut metrics = guests.some_if_served(metrics)?.flatten();
        built.allow_listening(plan.allow_listen.clone());
        built.allow_connecting(plan.connect_rights());
        if let Some(options) = &plan.nbd_server {
            let opened = built.open_nbd_server(options).map_err(ServeError::from);
            guests.log_if_served(opened)?;
        }
        let state_file = guests.some_if_served(state.lock(plan))?.flatten();
        let printed = print_attach_lines(plan, directory);
        guests.log_if_served(printed.map_err(failed("print how to attach a guest")))?;
        // Nobody is accepted, and nobody told that we are ready, before the fences are up. Who was
        // taken over is served already, on threads that lack only the filter of system calls.
        if let Some(sandbox) = sandbox {
            sandbox.look_at_threads().map_err(ServeError::Sandbox)?;
            sandbox.close().map_err(ServeError::Sandbox)?;
            check.judge(plan.sandbox)?;
        }
        if state.is_changed {
            built.set_changed();
        }
        if let Some(file) = state_file {
            guests.log_if_served(built.keep_state(file).map_err(ServeError::from))?;
        }
        // Before anybody is accepted: whoever sees an export sees all threads that stay.
        let health = guests.some_if_served(self.watch(built))?;
        if let Some(health) = &health {
            built.set_health(health.findings());
        }
        for export in listening {
            guests.log_if_served(built.start(export, None).map_err(ServeError::from))?;
        }
        guests.log_if_served(built.start_nbd_server().map_err(ServeError::from))?;
        if let Some(monitors) = &mut monitors {
            guests.log_if_served(monitors.start(built).map_err(ServeError::from))?;
        }
        if let (Some(metrics), Some(health)) = (&mut metrics, &health) {
            let (found, fences) = (health.findings(), sandbox.map(|it| &**it));
            let started = metrics.start(built, monitors.as_mut(), found, (self.started, fences));
            guests.log_if_served(started)?;
        }
        readiness.map_or(Ok(()), |readiness| guests.report_ready(readiness, log))?;
        Ok(Finished { pidfile, monitors, metrics, health })
    }

    /// Watches queues and files from now on, on threads behind the fences.
    fn watch(&self, built: &DaemonState) -> Result<HealthWatch, ServeError> {
        let (sources, disks) =
            (Arc::clone(built.source_registry()), Arc::clone(built.served_disks()));
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let start = || HealthWatch::start(sources, disks, clock);
        let started = Sandbox::start_inside(self.sandbox.map(|it| &**it), start).flatten();
        let action = "start its threads";
        started.map_err(|source| ServeError::Process { action, source })
    }
}

/// Whether an error in the last steps of the start ends the process, or is only logged because guests are served
/// already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StartupErrorPolicy {
    None,
    Served,
}

impl StartupErrorPolicy {
    /// What goes wrong is a reason to end if nobody is served. Guests count more: it is said.
    fn log_if_served(self, result: Result<(), ServeError>) -> Result<(), ServeError> {
        match (self, result) {
            (Self::Served, Err(error)) => {
                tracing::error!("{}; serving all the same", chain_of(&error));
                Ok(())
            }
            (_, result) => result,
        }
    }

    /// The same of what there is then not.
    fn some_if_served<T>(self, result: Result<T, ServeError>) -> Result<Option<T>, ServeError> {
        match result {
            Ok(found) => Ok(Some(found)),
            Err(error) => self.log_if_served(Err(error)).map(|()| None),
        }
    }

    /// Lets whoever started the daemon hear of it, and leaves the terminal.
    fn report_ready(self, mut readiness: ReadinessPipe, log: &Log) -> Result<(), ServeError> {
        match self {
            Self::None => {
                leave_terminal(&readiness, log)?;
                readiness.tell()?;
            }
            Self::Served => {
                // In this order, so that it can be said.
                log.settle();
                self.log_if_served(readiness.tell().map_err(ServeError::from))?;
                self.log_if_served(leave_terminal(&readiness, log))?;
            }
        }
        Ok(())
    }
}

fn leave_terminal(readiness: &ReadinessPipe, log: &Log) -> Result<(), ServeError> {
    // Whoever watches the start sees all of it.
    log.settle();
    readiness.leave_terminal()?;
    let action = "lead stderr to the log";
    log.leave_stderr().map_err(|source| ServeError::Process { action, source })
}

/// The pidfile of a process that has taken over. Guests are being served, so it is no reason to end.
fn write_pidfile_after(plan: &Plan, predecessor: &PredecessorProcess) -> Option<Pidfile> {
    predecessor.wait_for_end();
    match plan.pidfile.as_deref().map(Pidfile::write).transpose() {
        Ok(pidfile) => pidfile,
        Err(error) => {
            tracing::error!("{}", chain_of(&error));
            None
        }
    }
}

fn print_attach_lines(plan: &Plan, directory: &Path) -> io::Result<()> {
    let by_default = plan.print_by_default.filter(|_| !is_journal(io::stdout()));
    let Some(format) = plan.print.or(by_default) else { return Ok(()) };
    let mut lines = attach_lines(format, plan.exports(), directory);
    if let Some(server) = &plan.nbd_server {
        lines += &nbd_attach_lines(format, &server.address, plan.exports(), directory);
    }
    let mut stdout = io::stdout().lock();
    match stdout.write_all(lines.as_bytes()).and_then(|()| stdout.flush()) {
        // Whoever does not want to read on is served all the same.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}
