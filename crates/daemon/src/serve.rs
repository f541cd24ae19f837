//! Builds what a plan asks for, serves until a signal, and takes everything down again.
//!
//! Where it stands in the life of a request: around all of them.
//!
//! Invariants: the fork comes before any thread and any io_uring. Going down: exports stop taking
//! requests and drain, then files are made durable, then iothreads end; sockets and pidfile are
//! removed on every way out but a second signal; before there are any, the first leaves at once.
//! Threads: this is the process's first thread; it waits for signals.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use block::{SentenceRate, SystemClock};
use kernel_io::{DaemonizeError, Daemonized, FileKind, FileTable, Readiness, Verdict};
use rustix::event::{PollFd, PollFlags};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::attach;
use crate::build::{BuildError, Built};
use crate::chain::chain_of;
use crate::claim::{ClaimFailure, LOCK_PATIENCE, Patience, Told, Wait};
use crate::device_news::DeviceNews;
use crate::inherited;
use crate::options::{Daemonize, Plan, Takeover};
use crate::pidfile::{Pidfile, PidfileError};
use crate::sandbox::{Sandbox, SandboxError};
use crate::takeover::{Answer, Doorbell, Predecessor, Taken, TakeoverError, answer, take_over};

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
    /// The place of another process could not be taken.
    #[error(transparent)]
    Takeover(#[from] TakeoverError),
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
    // Before anything of its own is opened.
    kernel_io::close_descriptors_but(&inherited::meant(&plan))
        .map_err(failed("close the descriptors that it was started with"))?;
    let directory = std::env::current_dir().map_err(failed("find the current directory"))?;
    let readiness = match leave_terminal(&plan)? {
        Side::Parent => return Ok(()),
        Side::Daemon(readiness) => readiness,
    };
    let mut leave = Leave::prepare().map_err(failed("catch signals"))?;
    raise_limits();
    virtio::catch_lost_memory().map_err(failed("catch the loss of guest memory"))?;
    let files = Arc::new(FileTable::default());
    let sandbox = Sandbox::prepare(&plan).map_err(ServeError::Sandbox)?;
    let mut built = Built::nothing(&files, &Arc::new(SystemClock), sandbox.as_ref())?;
    // Before anybody is replaced, so that whoever wants to replace this one asks and does not kill.
    let doorbell = Doorbell::open();
    let Taken { listening, predecessor } = match start(&plan, &mut built, &mut leave) {
        Ok(taken) => taken,
        Err(error) => return abandon(built, &files, error),
    };
    let guests = if predecessor.is_some() { Guests::Served } else { Guests::None };
    let news = device_news(&files);
    let finish = || -> Result<Option<Pidfile>, ServeError> {
        let pidfile = match predecessor {
            None => plan.pidfile.as_deref().map(Pidfile::write).transpose()?,
            Some(predecessor) => write_pidfile_after(&plan, &predecessor),
        };
        let printed = print_attach_lines(&plan, &directory);
        guests.bear(printed.map_err(failed("print how to attach a guest")))?;
        // Nobody is accepted, and nobody told that we are ready, before the fences are up. Who was
        // taken over is served already, on threads that lack only the filter of system calls.
        if let Some(sandbox) = &sandbox {
            sandbox.look_at_threads().map_err(ServeError::Sandbox)?;
            sandbox.close().map_err(ServeError::Sandbox)?;
        }
        for (prepared, socket) in listening {
            guests.bear(built.start(prepared, socket, None).map_err(ServeError::from))?;
        }
        readiness.map_or(Ok(()), |readiness| guests.hear_of(readiness))?;
        Ok(pidfile)
    };
    let pidfile = match finish() {
        Ok(pidfile) => pidfile,
        // Clients that were taken over may have written.
        Err(error) => return abandon(built, &files, error),
    };
    let lost = match wait(&mut leave, doorbell.as_ref(), news.as_ref(), &mut built) {
        Reason::Signal => None,
        Reason::GivenAway { process } => {
            tracing::info!("process {process} has taken over");
            // It has what was written in its page cache, and flushes when it leaves.
            drop(built);
            drop(pidfile);
            return Ok(());
        }
        Reason::Lost(error) => Some(error),
    };
    tracing::info!("stopping; a second signal leaves at once");
    let flushed = take_down(built, &files, pidfile);
    flushed.and_then(|()| lost.map_or(Ok(()), |error| Err(BuildError::Claim(error).into())))
}

fn raise_limits() {
    if let Err(error) = kernel_io::raise_open_files_limit() {
        tracing::warn!("cannot raise the limit of open files: {error}");
    }
}

/// Carries the plan out up to where clients can connect, and wait to be accepted.
fn start(plan: &Plan, built: &mut Built, leave: &mut Leave) -> Result<Taken, ServeError> {
    let rate = &mut SentenceRate::default();
    match plan.takeover {
        Takeover::Never => {
            let patience = &mut Patience { limit: LOCK_PATIENCE, wait: leave, rate };
            let prepared = built.carry_out(plan, patience)?;
            // Whoever sees a socket may count on an end in good order.
            leave.be_patient();
            let listen = |prepared| Built::listen(&prepared).map(|socket| (prepared, socket));
            let listening = prepared.into_iter().map(listen).collect::<Result<_, _>>()?;
            Ok(Taken { listening, predecessor: None })
        }
        Takeover::WhereServed => {
            let prepared = built.prepare(plan)?;
            leave.be_patient();
            let patience = &mut Patience { limit: LOCK_PATIENCE, wait: leave, rate };
            Ok(take_over(prepared, plan.pidfile.as_deref(), built, patience)?)
        }
    }
}

/// Whether anybody is served when the last steps of the start are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Guests {
    None,
    Served,
}

impl Guests {
    /// What goes wrong is a reason to end if nobody is served. Guests count more: it is said.
    fn bear(self, result: Result<(), ServeError>) -> Result<(), ServeError> {
        match (self, result) {
            (Self::Served, Err(error)) => {
                tracing::error!("{}; serving all the same", chain_of(&error));
                Ok(())
            }
            (_, result) => result,
        }
    }

    /// Lets whoever started the daemon hear of it, and leaves the terminal.
    fn hear_of(self, mut readiness: Readiness) -> Result<(), ServeError> {
        match self {
            Self::None => {
                readiness.leave_terminal()?;
                readiness.tell()?;
            }
            Self::Served => {
                // In this order, so that it can be said.
                self.bear(readiness.tell().map_err(ServeError::from))?;
                self.bear(readiness.leave_terminal().map_err(ServeError::from))?;
            }
        }
        Ok(())
    }
}

/// Drains the exports, makes everything durable, and removes sockets and pidfile.
fn take_down(
    mut built: Built,
    files: &FileTable,
    pidfile: Option<Pidfile>,
) -> Result<(), ServeError> {
    built.stop_exports();
    let flushed = flush(files);
    drop(built);
    drop(pidfile);
    flushed
}

/// Why serving ends.
enum Reason {
    Signal,
    /// Another process goes on.
    GivenAway {
        process: u32,
    },
    /// Another process wanted to go on and could not, and now has the image.
    Lost(ClaimFailure),
}

/// Serves until there is a reason to end.
fn wait(
    leave: &mut Leave,
    doorbell: Option<&Doorbell>,
    news: Option<&DeviceNews>,
    built: &mut Built,
) -> Reason {
    // What has changed since the files were opened.
    built.review_devices();
    let rate = &mut SentenceRate::default();
    loop {
        let doorbell = match leave.wait(doorbell, news) {
            Heard::Signal => return Reason::Signal,
            Heard::Doorbell(doorbell) => doorbell,
            Heard::News(news) => {
                if news.take() {
                    built.review_devices();
                }
                continue;
            }
        };
        let patience = &mut Patience { limit: LOCK_PATIENCE, wait: leave, rate };
        match answer(doorbell, built, &SystemClock, patience) {
            Answer::Kept => {}
            Answer::Given(process) => return Reason::GivenAway { process },
            Answer::Lost(error) => return Reason::Lost(error),
        }
    }
}

/// The pidfile of a process that has taken over. Guests are being served, so it is no reason to end.
fn write_pidfile_after(plan: &Plan, predecessor: &Predecessor) -> Option<Pidfile> {
    predecessor.wait_for_end();
    match plan.pidfile.as_deref().map(Pidfile::write).transpose() {
        Ok(pidfile) => pidfile,
        Err(error) => {
            tracing::error!("{}", chain_of(&error));
            None
        }
    }
}

/// Takes down what was built before a step failed; clients may have written to it.
fn abandon(built: Built, files: &FileTable, error: ServeError) -> Result<(), ServeError> {
    let flushed = take_down(built, files, None);
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
                | TakeoverError::Build(BuildError::Claim(ClaimFailure::Stopped { .. }))
        ) | ServeError::Build(BuildError::Claim(ClaimFailure::Stopped { .. }))
    )
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

/// Where to hear that a block device has changed, if there is one below. Without it sizes are looked at when a client
/// comes or asks.
fn device_news(files: &FileTable) -> Option<DeviceNews> {
    files.all().iter().find(|file| file.kind() == FileKind::BlockDevice)?;
    let news = DeviceNews::listen();
    news.inspect_err(|error| {
        tracing::info!(
            "the kernel's news of devices cannot be heard, so a running guest is not told when a disk \
             grows: {error}"
        );
    })
    .ok()
}

/// What the first thread waits for.
enum Heard<'a> {
    Signal,
    Doorbell(&'a Doorbell),
    News(&'a DeviceNews),
}

/// The signals that end the daemon.
struct Leave {
    signals: Signals,
    /// Readable after a signal.
    pipe: UnixStream,
    /// Whether the next signal ends the process at once.
    impatient: Arc<AtomicBool>,
    mood: Mood,
}

/// What the first signal does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mood {
    /// It ends the process at once, but while [`Wait::pause`] waits.
    Hasty,
    /// It ends the process in good order.
    Patient,
}

impl Leave {
    /// Until [`Leave::be_patient`] every signal ends the process at once: there is nothing to
    /// finish yet, and what is being set up may block.
    fn prepare() -> io::Result<Self> {
        let impatient = Arc::new(AtomicBool::new(true));
        for signal in [SIGTERM, SIGINT, SIGHUP] {
            kernel_io::leave_if_impatient(signal, &impatient)?;
        }
        let signals = Signals::new([SIGTERM, SIGINT, SIGHUP])?;
        // After those: a signal that is seen here is pending there.
        let (pipe, writer) = UnixStream::pair()?;
        pipe.set_nonblocking(true)?;
        for signal in [SIGTERM, SIGINT, SIGHUP] {
            signal_hook::low_level::pipe::register(signal, writer.try_clone()?)?;
        }
        Ok(Self { signals, pipe, impatient, mood: Mood::Hasty })
    }

    /// From now on the first signal ends the process in good order, and the second one at once.
    fn be_patient(&mut self) {
        self.mood = Mood::Patient;
        self.impatient.store(false, Ordering::SeqCst);
    }

    /// Whether every signal ends the process at once, while it is hasty.
    fn haste(&self, impatient: bool) {
        match self.mood {
            Mood::Hasty => self.impatient.store(impatient, Ordering::SeqCst),
            // Whatever it is, a signal has made it so.
            Mood::Patient => {}
        }
    }

    /// Waits until a signal came, somebody rang, or devices have changed; a signal goes first.
    fn wait<'a>(
        &mut self,
        doorbell: Option<&'a Doorbell>,
        news: Option<&'a DeviceNews>,
    ) -> Heard<'a> {
        loop {
            let mut fds = vec![PollFd::new(&self.pipe, PollFlags::IN)];
            fds.extend(doorbell.map(|doorbell| PollFd::new(doorbell, PollFlags::IN)));
            fds.extend(news.map(|news| PollFd::new(news, PollFlags::IN)));
            match rustix::event::poll(&mut fds, None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(errno) => panic!("poll on descriptors of our own: {errno}"),
            }
            let mut others = fds[1..].iter().map(|fd| !fd.revents().is_empty());
            let rung = doorbell.filter(|_| others.next() == Some(true));
            let told = news.filter(|_| others.next() == Some(true));
            if self.signals.pending().next().is_some() {
                return Heard::Signal;
            }
            // What is left of a signal that was heard before.
            let _nothing_there = self.pipe.read(&mut [0; 8]);
            if let Some(doorbell) = rung {
                return Heard::Doorbell(doorbell);
            }
            if let Some(news) = told {
                return Heard::News(news);
            }
        }
    }
}

/// While a starting daemon waits for a lock, the first signal ends it in good order too.
impl Wait for Leave {
    fn pause(&mut self, time: Duration) -> Told {
        self.haste(false);
        let time = rustix::event::Timespec::try_from(time).expect("a wait is short");
        match rustix::event::poll(&mut [], Some(&time)) {
            // A signal that comes elsewhere is seen a pause later.
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => panic!("poll on nothing: {errno}"),
        }
        if self.signals.pending().next().is_some() { Told::Stop } else { Told::GoOn }
    }

    fn done(&mut self) {
        self.haste(true);
    }
}
