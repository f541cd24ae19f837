//! Builds what a plan asks for, serves until a signal, and takes everything down again.
//!
//! Where it stands in the life of a request: around all of them.
//!
//! Invariants: forks come before any thread and any io_uring. Going down: exports stop taking
//! requests and drain, then files are made durable, then iothreads end; sockets and pidfile are
//! removed on every way out but a second signal; before there are any, the first leaves at once.
//! Threads: this is the process's first thread; it waits for signals.

use std::io;
use std::os::fd::{OwnedFd, RawFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use block::{Clock, LogRateLimit, SystemClock, TakeoverOwner};
use control::{BuildError, ControlError, DaemonState, PreparedExport, StateFileError, UsageReport};
use exports::{
    DescriptorCheck, DescriptorCheckStartError, ExportClaimError, LOCK_WAIT_MAX,
    MemoryDirectoryError, WaitPolicy,
};
use graph::{RemoteFlushError, ServerAddress, StorageWatchdog};
use host::{
    DaemonizeError, DescriptorError, ForkResult, Pidfile, PidfileError, ReadinessPipe,
    StartOutcome, chain_of, since_1970,
};
use kernel_io::FileTable;
use metrics::MetricsError;
use monitor::{ChardevError, DaemonFate, MonitorSetupError, Monitors};
use nbd_server::ListenAddress;
use options::{CommandLineError, Daemonize, Plan, PlanStep, TakeoverMode};
use sandbox::{Sandbox, SandboxError};
use takeover::{
    TakeoverError, TakeoverListener, TakeoverOutcome, TakeoverResult, answer, take_over,
};

use crate::finish::{Finish, Finished};
use crate::gauges_output::GaugesOutput;
use crate::inherited_descriptors;
use crate::kept_state::State;
use crate::log::Log;
use crate::metrics_output::MetricsOutput;
use crate::service_manager::{service_manager, tell_end, tell_ready};
use crate::signals::{MainDescriptors, MainEvent, SignalListener};
use crate::uevents::{UeventMonitor, device_news};

/// How long a new process waits for the storage of one file before the old one has been asked for anything.
const OPEN_LIMIT: Duration = Duration::from_secs(10);

/// Why serving did not begin or did not end well.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The plan has no export.
    #[error("nothing to serve: no --export offers what the line makes to a guest; see --help")]
    NothingExported,
    /// The process could not go to the background.
    #[error(transparent)]
    Daemonize(#[from] DaemonizeError),
    /// The process in the background has ended, and has said why.
    #[error("the daemon did not start")]
    ChildFailed,
    /// A directory that was named cannot hold guest memory.
    #[error(transparent)]
    Memory(#[from] MemoryDirectoryError),
    /// Gauges cannot be written to the descriptor that was named.
    #[error("--gauges-fd {descriptor}")]
    Gauges {
        /// Which.
        descriptor: RawFd,
        /// Why.
        #[source]
        source: DescriptorError,
    },
    /// There is no connection to an NBD server where one was named.
    #[error("server.type=fd,server.str={descriptor}")]
    Server {
        /// Which.
        descriptor: RawFd,
        /// Why.
        #[source]
        source: DescriptorError,
    },
    /// What was asked for could not be built.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// The place of another process could not be taken.
    #[error(transparent)]
    Takeover(#[from] TakeoverError),
    /// The pidfile could not be written.
    #[error(transparent)]
    Pidfile(#[from] PidfileError),
    /// Nobody would look at what front ends send.
    #[error(transparent)]
    DescriptorCheck(#[from] DescriptorCheckStartError),
    /// What was kept for this start is not to be had.
    #[error(transparent)]
    StateFile(#[from] StateFileError),
    /// What commands made before this start cannot be made again.
    #[error("{place}")]
    State {
        /// Where it was kept.
        place: String,
        /// What is wrong with it.
        #[source]
        source: CommandLineError,
    },
    /// What commands made before this start is not what this start may open.
    #[error(
        "{place}: {} is neither on the command line nor below a directory of --allow-below; add it, or begin anew with \
         --state-reset", path.display()
    )]
    NotAllowed {
        /// Where it was kept.
        place: String,
        /// The file or socket.
        path: PathBuf,
    },
    /// The NBD server that commands made before this start is not one that this start may make.
    #[error(
        "{place}: the NBD server at {address} is neither on the command line nor allowed by --allow-listen or \
         --allow-below; add it, or begin anew with --state-reset"
    )]
    MayNotListen {
        /// Where it was kept.
        place: String,
        /// Where it would listen.
        address: ListenAddress,
    },
    /// A server that commands connected to before this start is not one that this start may connect to.
    #[error(
        "{place}: the NBD server {address} is neither on the command line nor allowed by --allow-connect or --allow-below; \
         add it, or begin anew with --state-reset"
    )]
    MayNotConnect {
        /// Where it was kept.
        place: String,
        /// The server.
        address: ServerAddress,
    },
    /// The process that was taken over has kept something else than is served now.
    #[error(
        "state file {}: the process that was taken over has changed what it serves meanwhile; nothing is kept any more \
         until this daemon is started again", .0.display()
    )]
    StateChanged(PathBuf),
    /// The command line contradicts what is served.
    #[error("{place}: {difference}")]
    Contradiction {
        /// Where that is kept.
        place: String,
        /// What contradicts it.
        difference: String,
    },
    /// What is served cannot be kept.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// Monitors cannot be set up.
    #[error(transparent)]
    Monitors(#[from] MonitorSetupError),
    /// Metrics cannot be served.
    #[error(transparent)]
    Metrics(#[from] MetricsError),
    /// A fence that was asked for cannot be put up.
    #[error("the sandbox cannot be closed")]
    Sandbox(#[source] SandboxError),
    /// Something of the process itself is wrong.
    #[error("cannot {action}")]
    Process {
        /// What was tried.
        action: &'static str,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Data may be lost.
    #[error("disk {path}: the last flush failed")]
    Flush {
        /// Which file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The same of a disk of a server.
    #[error(transparent)]
    RemoteFlush(#[from] RemoteFlushError),
}

/// Closes the descriptors that the process was started with and nobody means. Call it before anything of its own is
/// opened, its log included.
pub fn close_inherited(plan: &Plan) -> Result<(), ServeError> {
    // Now a number that is open is one of theirs.
    gauges_descriptor(plan)?;
    for descriptor in inherited_descriptors::servers(plan) {
        let failed = |source| ServeError::Server { descriptor, source };
        host::duplicate(descriptor).map(drop).map_err(failed)?;
    }
    let action = "close the descriptors that it was started with";
    host::close_descriptors_but(&inherited_descriptors::meant(plan))
        .map_err(|source| ServeError::Process { action, source })
}

/// The descriptor for gauges, if there is to be one.
fn gauges_descriptor(plan: &Plan) -> Result<Option<OwnedFd>, ServeError> {
    let duplicate = |descriptor| {
        let failed = |source| ServeError::Gauges { descriptor, source };
        host::duplicate_for_writing(descriptor).map_err(failed)
    };
    plan.gauges.map(duplicate).transpose()
}

/// Sets up what the plan asks for and serves it until a signal says stop.
pub fn serve(mut plan: Plan, log: &Arc<Log>) -> Result<(), ServeError> {
    let failed = |action| move |source| ServeError::Process { action, source };
    let started = since_1970();
    let directory = std::env::current_dir().map_err(failed("find the current directory"))?;
    let readiness = match fork(&plan)? {
        ForkSide::Parent => return Ok(()),
        ForkSide::Daemon(readiness) => readiness,
    };
    prepare_process(&plan, log);
    let state = State::open(&mut plan)?;
    // Monitors can make all that is served.
    if plan.exports().next().is_none() && plan.monitors.is_empty() {
        return Err(ServeError::NothingExported);
    }
    let gauges = gauges_descriptor(&plan)?;
    let manager = service_manager();
    let check = DescriptorCheck::start(&plan.guest_memory.memory_files()?, plan.sandbox)?;
    let mut attention = SignalListener::of(&plan).map_err(failed("catch signals"))?;
    virtio::catch_lost_memory().map_err(failed("catch the loss of guest memory"))?;
    let (files, clock): (_, Arc<dyn Clock>) = (Arc::<FileTable>::default(), Arc::new(SystemClock));
    let sandbox =
        Sandbox::prepare(plan.sandbox, &plan.sandbox_needs()).map_err(ServeError::Sandbox)?;
    let watch =
        start_threads(log, &attention, sandbox.as_deref()).map_err(failed("start its threads"))?;
    let start_output =
        |descriptor| GaugesOutput::start(descriptor, sandbox.as_deref(), clock.now());
    let gauges = gauges.map(start_output).transpose().map_err(failed("start its threads"))?;
    let mut built =
        DaemonState::nothing(&files, &clock, sandbox.as_ref(), &check, &plan.named_files, &watch);
    let (mode, group) = &plan.socket_rights;
    built.set_socket_rights(*mode, group.as_deref());
    // Before anybody is replaced, so that whoever wants to replace this one asks and does not kill.
    let takeover_listener = TakeoverListener::open();
    let taken = match start(&plan, &mut built, &watch, &mut attention) {
        Ok(taken) => taken,
        Err(error) => return abandon(built, &files, &watch, error),
    };
    let news = device_news(&files);
    let (plan, fences) = (&plan, sandbox.as_ref());
    let finish = Finish { plan, directory: &directory, sandbox: fences, check: &check, started };
    let finished = finish.run(&mut built, taken, state, readiness, log, &mut attention);
    let Finished { pidfile, mut monitors, metrics, health } = match finished {
        Ok(finished) => finished,
        // Clients that were taken over may have written.
        Err(error) => return abandon(built, &files, &watch, error),
    };
    let sources = EventSources {
        takeover_listener: takeover_listener.as_ref(),
        news: news.as_ref(),
        gauges,
        monitors: monitors.as_mut(),
        metrics: metrics.as_ref(),
    };
    if let Some(manager) = &manager {
        tell_ready(manager, &built, sandbox.as_deref());
    }
    let reason = wait(&mut attention, log, sources, &mut built);
    // Nobody is answered any more.
    drop((monitors, metrics, health));
    if let Some(manager) = &manager {
        tell_end(manager, reason.successor());
    }
    match reason {
        EndReason::Quit => tracing::info!("quit: stopping"),
        EndReason::Signal(name) => {
            tracing::info!("{name}: stopping; a second signal leaves at once");
        }
        EndReason::GivenAway { process } => {
            tracing::info!("process {process} has taken over");
            // It has what was written in its page cache, and flushes when it leaves.
            drop(built);
            drop(pidfile);
            return Ok(());
        }
    }
    take_down(built, &files, &watch, pidfile)
}

/// Raises the limit of open files, and warns of what this host does not give a daemon.
fn prepare_process(plan: &Plan, log: &Log) {
    if plan.daemonize == Daemonize::Background && !log.has_place() {
        tracing::warn!(
            "this host has no journal and no syslog: what the daemon says once it is in the background is \
             lost; see --log-file"
        );
    }
    for source in &plan.config {
        if let Some(writers) = &source.writers {
            tracing::warn!(
                "config {}: {writers}, and so decide what is served",
                source.path.display()
            );
        }
    }
    if let Err(error) = host::raise_open_files_limit() {
        tracing::warn!("cannot raise the limit of open files: {error}");
    }
}

/// Starts the threads that write the log, and that tell of storage which does not answer and handle signals.
fn start_threads(
    log: &Arc<Log>,
    attention: &SignalListener,
    sandbox: Option<&Sandbox>,
) -> io::Result<Arc<StorageWatchdog>> {
    let watch = Arc::new(StorageWatchdog::default());
    let start = || {
        log.leave_to_thread()?;
        let log = Arc::clone(log);
        watch.start(attention.hear_here(), move || log.settle())
    };
    Sandbox::start_inside(sandbox, start).flatten()?;
    Ok(watch)
}

/// Carries the plan out up to where clients can connect, and wait to be accepted.
fn start(
    plan: &Plan,
    built: &mut DaemonState,
    watch: &StorageWatchdog,
    attention: &mut SignalListener,
) -> Result<TakeoverOutcome, ServeError> {
    let rate = &mut LogRateLimit::default();
    match plan.takeover {
        TakeoverMode::Never => {
            // Before any wait for an image: whoever serves the socket has the image, too.
            plan.exports().try_for_each(DaemonState::check_unserved)?;
            let policy = &mut WaitPolicy { limit: LOCK_WAIT_MAX, wait: attention, rate };
            let prepared = prepare(plan, built)?;
            prepared.iter().try_for_each(|prepared| built.claim(prepared, policy))?;
            // Whoever sees a socket may count on an end in good order.
            attention.shut_down_gracefully();
            let listening =
                prepared.into_iter().map(DaemonState::listen).collect::<Result<_, _>>()?;
            Ok(TakeoverOutcome { listening, predecessor: None })
        }
        TakeoverMode::WhereServed => {
            // Who serves goes on, and whoever upgrades is to hear that it came to nothing.
            watch.set_limit(Some(OPEN_LIMIT));
            let prepared = prepare(plan, built)?;
            watch.set_limit(None);
            attention.shut_down_gracefully();
            let policy = &mut WaitPolicy { limit: LOCK_WAIT_MAX, wait: attention, rate };
            Ok(take_over(prepared, plan.pidfile.as_deref(), built, policy)?)
        }
    }
}

/// Makes what the plan asks for, in its order, up to what the exports claim. Blocks.
fn prepare(plan: &Plan, built: &mut DaemonState) -> Result<Vec<PreparedExport>, BuildError> {
    let mut prepared = Vec::new();
    let bytes_max = plan.guest_memory.session_bytes_max(plan.exports().count());
    for step in &plan.steps {
        match step {
            PlanStep::Object(object) => built.add_object(object)?,
            PlanStep::Blockdev(blockdev) => built.add_node(blockdev)?,
            PlanStep::Export(export) => prepared.push(built.prepare_export(export, bytes_max)?),
        }
    }
    built.make_spare_rings();
    let disks: Vec<_> =
        prepared.iter().filter_map(|it| it.vhost_user_blk()).map(|it| &**it).collect();
    // All that the daemon opens for itself is open now, but for a few.
    exports::share_descriptors(&disks);
    Ok(prepared)
}

/// Drains the exports, makes everything durable, and removes sockets and pidfile.
fn take_down(
    mut built: DaemonState,
    files: &FileTable,
    watch: &StorageWatchdog,
    pidfile: Option<Pidfile>,
) -> Result<(), ServeError> {
    built.stop_block_jobs();
    built.stop_exports();
    let flushed = flush_remotes(&built, watch, flush(files, watch));
    watch.during("closing all disks".to_owned(), || drop(built));
    drop(pidfile);
    flushed
}

/// Why serving ends: a signal, or a takeover.
enum EndReason {
    /// By this name.
    Signal(&'static str),
    /// A client of a monitor asked for it.
    Quit,
    /// Another process goes on.
    GivenAway { process: u32 },
}

impl EndReason {
    /// The process that goes on.
    fn successor(&self) -> Option<u32> {
        match self {
            Self::GivenAway { process } => Some(*process),
            Self::Signal(_) | Self::Quit => None,
        }
    }
}

/// What the first thread waits for besides signals.
struct EventSources<'a> {
    takeover_listener: Option<&'a TakeoverListener>,
    news: Option<&'a UeventMonitor>,
    gauges: Option<GaugesOutput>,
    monitors: Option<&'a mut Monitors>,
    metrics: Option<&'a MetricsOutput>,
}

/// Serves until there is a reason to end.
fn wait(
    attention: &mut SignalListener,
    log: &Log,
    mut sources: EventSources<'_>,
    built: &mut DaemonState,
) -> EndReason {
    // What has changed since the files were opened.
    built.review_devices();
    let rate = &mut LogRateLimit::default();
    let mut review = None;
    let mut usage = UsageReport::since(SystemClock.now());
    loop {
        let EventSources { takeover_listener, news, gauges, monitors, metrics } = &mut sources;
        let descriptors = MainDescriptors {
            takeover_listener: *takeover_listener,
            news: *news,
            monitors: monitors.as_deref(),
            metrics: *metrics,
        };
        match attention.wait(descriptors, gauges.as_ref().map(|it| it.due)) {
            MainEvent::End(name) => return EndReason::Signal(name),
            MainEvent::Look => look(log, built, &mut review),
            MainEvent::Usage => {
                for line in usage.lines(built, SystemClock.now()) {
                    tracing::info!("{line}");
                }
            }
            MainEvent::Due => {
                *gauges = gauges.take().and_then(|it| it.write(built, SystemClock.now()));
            }
            MainEvent::Monitors => {
                let fate = monitors.as_mut().map(|monitors| monitors.serve(built));
                if fate == Some(DaemonFate::Ends) {
                    return EndReason::Quit;
                }
            }
            MainEvent::Metrics => {
                if let Some(metrics) = metrics {
                    metrics.answer(built, monitors.as_deref_mut());
                }
            }
            MainEvent::News(news) => {
                if news.take() {
                    built.review_devices();
                }
            }
            MainEvent::Doorbell(takeover_listener) => {
                match answer(takeover_listener, built, &SystemClock, rate) {
                    TakeoverResult::Refused => {}
                    TakeoverResult::HandedOver(process) => return EndReason::GivenAway { process },
                }
            }
        }
    }
}

/// What SIGHUP asks for: the log file is opened anew, and all disks are measured.
fn look(log: &Log, built: &DaemonState, review: &mut Option<JoinHandle<()>>) {
    match log.open_again() {
        Ok(None) => tracing::info!("SIGHUP: files are measured again"),
        Ok(Some(path)) => {
            let path = path.display();
            tracing::info!("SIGHUP: log file {path} is opened anew, and files are measured again");
        }
        Err(error) => tracing::error!(
            "SIGHUP: {}; the log goes on in the file that was open. The sandbox lets a log file be made anew \
             in a directory that holds nothing but files named *.log*",
            chain_of(&error)
        ),
    }
    // A file system may take its time; whoever is being measured is not measured once more.
    if review.as_ref().is_none_or(JoinHandle::is_finished) {
        let offers = built.disks();
        let spawned = std::thread::Builder::new()
            .name("review".to_owned())
            .spawn(move || offers.iter().for_each(|offer| offer.size.review()));
        match spawned {
            Ok(thread) => *review = Some(thread),
            Err(error) => tracing::error!("cannot measure files: {error}"),
        }
    }
}

/// Takes down what was built before a step failed; clients may have written to it.
fn abandon(
    built: DaemonState,
    files: &FileTable,
    watch: &StorageWatchdog,
    error: ServeError,
) -> Result<(), ServeError> {
    let flushed = take_down(built, files, watch, None);
    match (error, flushed) {
        (error, flushed) if is_signal(&error) => {
            tracing::info!("{error}");
            flushed
        }
        (error, Ok(())) => Err(error),
        (error, Err(lost)) => {
            tracing::error!("{}", chain_of(&lost));
            Err(error)
        }
    }
}

/// Whether nothing failed, but a signal came while it waited.
fn is_signal(error: &ServeError) -> bool {
    matches!(
        error,
        ServeError::Takeover(
            TakeoverError::Stopped
                | TakeoverError::Build(BuildError::Claim(ExportClaimError::Stopped(..)))
        ) | ServeError::Monitors(MonitorSetupError::Chardev(ChardevError::Stopped(_)))
            | ServeError::Build(BuildError::Claim(ExportClaimError::Stopped(..)))
    )
}

/// Which process this is after the fork.
enum ForkSide {
    /// The one that serves; it tells its parent, if it has one, that it is ready.
    Daemon(Option<ReadinessPipe>),
    /// The parent of a daemon that is ready.
    Parent,
}

/// Forks if that was asked for.
fn fork(plan: &Plan) -> Result<ForkSide, ServeError> {
    match plan.daemonize {
        Daemonize::Foreground => Ok(ForkSide::Daemon(None)),
        Daemonize::Background => match host::daemonize()? {
            ForkResult::Child(readiness) => Ok(ForkSide::Daemon(Some(readiness))),
            ForkResult::Parent(StartOutcome::Ready) => Ok(ForkSide::Parent),
            ForkResult::Parent(StartOutcome::Failed) => Err(ServeError::ChildFailed),
        },
    }
}

/// Makes everything that was written durable: the guests were told that it is written.
fn flush(files: &FileTable, watch: &StorageWatchdog) -> Result<(), ServeError> {
    let mut result = Ok(());
    // What another process owns, it flushes.
    for file in files.all().iter().filter(|file| file.medium().owner() == TakeoverOwner::This) {
        let what = format!("disk {}: last flush", file.path().display());
        if let Err(source) = watch.during(what, || file.sync())
            && result.is_ok()
        {
            result = Err(ServeError::Flush { path: file.path().to_path_buf(), source });
        }
    }
    result
}

/// The same of disks of servers.
fn flush_remotes(
    built: &DaemonState,
    watch: &StorageWatchdog,
    mut result: Result<(), ServeError>,
) -> Result<(), ServeError> {
    let flush = || built.graph().flush_remotes();
    for error in watch.during("last flush of disks of NBD servers".to_owned(), flush) {
        match result {
            Ok(()) => result = Err(error.into()),
            Err(_) => tracing::error!("{}", chain_of(&error)),
        }
    }
    result
}
