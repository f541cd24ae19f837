//! Builds what a plan asks for, serves until a signal, and takes everything down again.
//!
//! Where it stands in the life of a request: around all of them.
//!
//! Invariants: the fork comes before any thread and any io_uring. Going down: exports stop taking
//! requests and drain, then files are made durable, then iothreads end; sockets and pidfile are
//! removed on every way out but a second signal; before there are any, the first leaves at once.
//! Threads: this is the process's first thread; it waits for signals.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use block::{SentenceRate, SystemClock};
use kernel_io::{DaemonizeError, Daemonized, FileTable, Readiness, Verdict};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::attach;
use crate::build::{BuildError, Built};
use crate::chain::chain_of;
use crate::claim::{ClaimFailure, LOCK_PATIENCE, Patience, Told, Wait};
use crate::options::{Daemonize, Plan};
use crate::pidfile::{Pidfile, PidfileError};
use crate::sandbox::{Sandbox, SandboxError};

/// Why serving did not begin or did not end well.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The process could not go to the background.
    #[error(transparent)]
    Daemonize(#[from] DaemonizeError),
    /// The process in the background has ended, and has said why.
    #[error("the daemon did not start")]
    ChildFailed,
    /// What was asked for could not be built.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// The pidfile could not be written.
    #[error(transparent)]
    Pidfile(#[from] PidfileError),
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
}

/// Sets up what the plan asks for and serves it until a signal says stop.
#[expect(clippy::needless_pass_by_value, reason = "a plan is carried out once")]
pub fn serve(plan: Plan) -> Result<(), ServeError> {
    let failed = |action| move |source| ServeError::Process { action, source };
    let directory = std::env::current_dir().map_err(failed("find the current directory"))?;
    let readiness = match leave_terminal(&plan)? {
        Side::Parent => return Ok(()),
        Side::Daemon(readiness) => readiness,
    };
    let mut leave = Leave::prepare().map_err(failed("catch signals"))?;
    if let Err(error) = kernel_io::raise_open_files_limit() {
        tracing::warn!("cannot raise the limit of open files: {error}");
    }
    virtio::catch_lost_memory().map_err(failed("catch the loss of guest memory"))?;
    let files = Arc::new(FileTable::default());
    let sandbox = Sandbox::prepare(&plan).map_err(ServeError::Sandbox)?;
    let mut built = Built::nothing(&files, &Arc::new(SystemClock), sandbox.as_ref())?;
    let rate = &mut SentenceRate::default();
    let patience = &mut Patience { limit: LOCK_PATIENCE, wait: &mut leave, rate };
    if let Err(error) = built.carry_out(&plan, patience) {
        return abandon(built, &files, error);
    }
    if let Some(sandbox) = &sandbox {
        sandbox.look_at_threads().map_err(ServeError::Sandbox)?;
    }
    // Whoever sees a socket may count on an end in good order.
    leave.be_patient();
    let sockets = built.listen()?;
    let pidfile = plan.pidfile.as_deref().map(Pidfile::write).transpose()?;
    print_attach_lines(&plan, &directory).map_err(failed("print how to attach a guest"))?;
    // Nobody is served, and nobody told that we are ready, before the fences are up.
    if let Some(sandbox) = &sandbox {
        sandbox.close().map_err(ServeError::Sandbox)?;
    }
    built.open(sockets);
    if let Some(readiness) = readiness {
        readiness.tell()?;
    }
    leave.wait();
    tracing::info!("stopping; a second signal leaves at once");
    built.stop_exports();
    let flushed = flush(&files);
    drop(built);
    drop(pidfile);
    flushed
}

/// Takes down what was built before a step failed; clients may have written to it.
fn abandon(mut built: Built, files: &FileTable, error: BuildError) -> Result<(), ServeError> {
    built.stop_exports();
    let flushed = flush(files);
    drop(built);
    match (error, flushed) {
        (BuildError::Claim(stopped @ ClaimFailure::Stopped { .. }), flushed) => {
            tracing::info!("{stopped}");
            flushed
        }
        (error, Ok(())) => Err(error.into()),
        (error, Err(lost)) => {
            tracing::error!("{}", chain_of(&lost));
            Err(error.into())
        }
    }
}

/// Which process this is after the fork, if there was one.
enum Side {
    /// The one that serves; it tells its parent, if it has one, that it is ready.
    Daemon(Option<Readiness>),
    /// The parent of a daemon that is ready.
    Parent,
}

/// Forks if that was asked for.
fn leave_terminal(plan: &Plan) -> Result<Side, ServeError> {
    match plan.daemonize {
        Daemonize::Foreground => Ok(Side::Daemon(None)),
        Daemonize::Background => match kernel_io::daemonize()? {
            Daemonized::Child(readiness) => Ok(Side::Daemon(Some(readiness))),
            Daemonized::Parent(Verdict::Ready) => Ok(Side::Parent),
            Daemonized::Parent(Verdict::Failed) => Err(ServeError::ChildFailed),
        },
    }
}

fn print_attach_lines(plan: &Plan, directory: &Path) -> io::Result<()> {
    let Some(format) = plan.print else { return Ok(()) };
    let lines = attach::render(format, plan, directory);
    let mut stdout = io::stdout().lock();
    match stdout.write_all(lines.as_bytes()).and_then(|()| stdout.flush()) {
        // Whoever does not want to read on is served all the same.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}

/// Makes everything that was written durable: the guests were told that it is written.
fn flush(files: &FileTable) -> Result<(), ServeError> {
    let mut result = Ok(());
    for file in files.all() {
        if let Err(source) = file.sync()
            && result.is_ok()
        {
            result = Err(ServeError::Flush { path: file.path().to_path_buf(), source });
        }
    }
    result
}

/// The signals that end the daemon.
struct Leave {
    signals: Signals,
    /// Whether the next signal ends the process at once.
    impatient: Arc<AtomicBool>,
}

impl Leave {
    /// Until [`Leave::be_patient`] every signal ends the process at once: there is nothing to
    /// finish yet, and what is being set up may block.
    fn prepare() -> io::Result<Self> {
        let impatient = Arc::new(AtomicBool::new(true));
        for signal in [SIGTERM, SIGINT, SIGHUP] {
            // In the handler, in this order: leave if impatient, otherwise become it.
            let flag = Arc::clone(&impatient);
            signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, flag)?;
            signal_hook::flag::register(signal, Arc::clone(&impatient))?;
        }
        Ok(Self { signals: Signals::new([SIGTERM, SIGINT, SIGHUP])?, impatient })
    }

    /// From now on the first signal ends the process in good order.
    fn be_patient(&self) {
        self.impatient.store(false, Ordering::SeqCst);
    }

    /// Waits for the first signal.
    fn wait(&mut self) {
        self.signals.forever().next();
    }
}

/// While a starting daemon waits for a lock, the first signal ends it in good order too.
impl Wait for Leave {
    fn pause(&mut self, time: Duration) -> Told {
        self.be_patient();
        let time = rustix::event::Timespec::try_from(time).expect("a wait is short");
        match rustix::event::poll(&mut [], Some(&time)) {
            // A signal that comes elsewhere is seen a pause later.
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => panic!("poll on nothing: {errno}"),
        }
        if self.signals.pending().next().is_some() { Told::Stop } else { Told::GoOn }
    }

    fn done(&mut self) {
        self.impatient.store(true, Ordering::SeqCst);
    }
}
