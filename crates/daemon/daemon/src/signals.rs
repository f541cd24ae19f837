//! The signals that the daemon hears, and what each of them means.
//!
//! SIGTERM and SIGINT end it, and so does SIGHUP in the foreground, where it says that the terminal is gone. Where
//! there is no terminal to lose (`--daemonize`, `--log-file`) SIGHUP asks for a look: the log file is opened anew, and
//! files are measured. Where they would end it, SIGINT and SIGHUP stay ignored if they were when it started (nohup(1)).
//! SIGUSR1 asks for a table of what iothreads and queues do. SIGUSR2, SIGALRM and SIGXFSZ mean nothing, and are said instead of ending it.
//!
//! Threads: the process's first. Handlers run on the one that watches it ([`SignalListener::hear_here`]): the first one
//! may be in a system call on a disk that hangs, where none can.

use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use block::{Clock, LogRateLimit, SystemClock};
use exports::{InterruptibleWait, WaitResult};
use host::SignalEscalation;
use monitor::Monitors;
use options::{Daemonize, Plan};
use rustix::event::{PollFd, PollFlags};
use signal_hook::consts::{SIGALRM, SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2, SIGXFSZ};
use signal_hook::iterator::Signals;
use signal_hook::low_level::{pipe, signal_name};
use takeover::TakeoverListener;

use crate::metrics_output::MetricsOutput;
use crate::uevents::UeventMonitor;

/// What mean nothing. SIGXFSZ comes with the error of a write beyond RLIMIT_FSIZE, which is told with its request.
const MEANINGLESS: [i32; 3] = [SIGUSR2, SIGALRM, SIGXFSZ];

/// What the first thread has waited for: a signal, a takeover, a device change, or a time.
pub(crate) enum MainEvent<'a> {
    /// The daemon is to end, by this signal.
    End(&'static str),
    /// SIGHUP, where it asks for a look.
    Look,
    /// SIGUSR1: what iothreads and queues do.
    Usage,
    Doorbell(&'a TakeoverListener),
    News(&'a UeventMonitor),
    /// A monitor has something to be carried out.
    Monitors,
    /// Whoever answers for metrics asks for what only the first thread knows.
    Metrics,
    /// It is the time that was waited for.
    Due,
}

/// What the first thread waits for besides signals.
#[derive(Clone, Copy)]
pub(crate) struct MainDescriptors<'a> {
    pub(crate) takeover_listener: Option<&'a TakeoverListener>,
    pub(crate) news: Option<&'a UeventMonitor>,
    pub(crate) monitors: Option<&'a Monitors>,
    pub(crate) metrics: Option<&'a MetricsOutput>,
}

/// The signals of the daemon, and what ends the first thread's wait.
pub(crate) struct SignalListener {
    signals: Signals,
    /// Readable after a signal.
    pipe: UnixStream,
    escalation: Arc<SignalEscalation>,
    mode: ShutdownMode,
    /// The signals that end the daemon.
    ending: Vec<i32>,
    heard: PendingSignals,
    /// How often a signal without meaning is said.
    rate: LogRateLimit,
}

/// Signals that came and were not acted on yet.
#[derive(Debug, Default)]
struct PendingSignals {
    end: Option<i32>,
    look: bool,
    usage: bool,
}

/// Whether the first terminating signal ends the process at once or in good order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ShutdownMode {
    /// It ends the process at once, but while [`InterruptibleWait::pause`] waits.
    Immediate,
    /// It ends the process in good order.
    Graceful,
}

impl SignalListener {
    /// Until [`SignalListener::shut_down_gracefully`] every signal that ends the daemon ends the process at once: there
    /// is nothing to finish yet, and what is being set up may block.
    pub(crate) fn of(plan: &Plan) -> io::Result<Self> {
        let mut ending = vec![SIGTERM];
        let mut asking = MEANINGLESS.to_vec();
        asking.push(SIGUSR1);
        for signal in [SIGINT, SIGHUP] {
            match () {
                // It ends nothing, so there is no reason to ignore it.
                () if signal == SIGHUP && has_no_terminal_to_lose(plan) => asking.push(signal),
                () if host::is_ignored(signal)? => {}
                () => ending.push(signal),
            }
        }
        let escalation = Arc::new(SignalEscalation::full());
        for signal in &ending {
            host::exit_on_second_signal(*signal, &escalation)?;
        }
        let all = || ending.iter().chain(&asking);
        let signals = Signals::new(all())?;
        // After those: a signal that is seen here is pending there.
        let (pipe, writer) = UnixStream::pair()?;
        pipe.set_nonblocking(true)?;
        for signal in all() {
            pipe::register(*signal, writer.try_clone()?)?;
        }
        host::block_signals(&ending)?;
        let (mode, heard, rate) =
            (ShutdownMode::Immediate, PendingSignals::default(), LogRateLimit::default());
        Ok(Self { signals, pipe, escalation, mode, ending, heard, rate })
    }

    /// To be called on the thread that handles the signals which end the daemon; all others block them.
    pub(crate) fn hear_here(&self) -> impl FnOnce() + Send + 'static {
        let ending = self.ending.clone();
        move || host::unblock_signals(&ending).expect("they were blocked before")
    }

    /// From now on the first signal ends the process in good order, and the second one at once.
    pub(crate) fn shut_down_gracefully(&mut self) {
        self.mode = ShutdownMode::Graceful;
        self.escalation.forget();
    }

    /// Whether every signal ends the process at once, while it is hasty.
    fn set_immediate(&self, is_hasty: bool) {
        match (self.mode, is_hasty) {
            (ShutdownMode::Immediate, true) => self.escalation.fill(),
            (ShutdownMode::Immediate, false) => self.escalation.forget(),
            // Whatever it is, a signal has made it so.
            (ShutdownMode::Graceful, _) => {}
        }
    }

    /// Waits until a signal came, somebody rang, devices have changed, or it is `due`; a signal goes first.
    pub(crate) fn wait<'a>(
        &mut self,
        descriptors: MainDescriptors<'a>,
        due: Option<Instant>,
    ) -> MainEvent<'a> {
        let MainDescriptors { takeover_listener, news, monitors, metrics } = descriptors;
        loop {
            let mut fds = vec![PollFd::new(&self.pipe, PollFlags::IN)];
            fds.extend(
                takeover_listener
                    .map(|takeover_listener| PollFd::new(takeover_listener, PollFlags::IN)),
            );
            fds.extend(news.map(|news| PollFd::new(news, PollFlags::IN)));
            fds.extend(monitors.map(|monitors| PollFd::new(monitors, PollFlags::IN)));
            fds.extend(metrics.map(|metrics| PollFd::new(metrics, PollFlags::IN)));
            let left = due.map(|due| due.saturating_duration_since(SystemClock.now()));
            let left = left.and_then(|left| rustix::event::Timespec::try_from(left).ok());
            match rustix::event::poll(&mut fds, left.as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(errno) => panic!("poll on descriptors of our own: {errno}"),
            }
            let mut others = fds[1..].iter().map(|fd| !fd.revents().is_empty());
            let rung = takeover_listener.filter(|_| others.next() == Some(true));
            let told = news.filter(|_| others.next() == Some(true));
            let asked = monitors.filter(|_| others.next() == Some(true));
            let scraped = metrics.filter(|_| others.next() == Some(true));
            self.listen();
            if let Some(signal) = self.heard.end {
                return MainEvent::End(signal_name(signal).unwrap_or("a signal"));
            }
            if std::mem::take(&mut self.heard.look) {
                return MainEvent::Look;
            }
            if std::mem::take(&mut self.heard.usage) {
                return MainEvent::Usage;
            }
            // What is left of a signal that was heard before.
            let _nothing_there = self.pipe.read(&mut [0; 64]);
            if let Some(takeover_listener) = rung {
                return MainEvent::Doorbell(takeover_listener);
            }
            if let Some(news) = told {
                return MainEvent::News(news);
            }
            if asked.is_some() {
                return MainEvent::Monitors;
            }
            if scraped.is_some() {
                return MainEvent::Metrics;
            }
            if due.is_some_and(|due| due <= SystemClock.now()) {
                return MainEvent::Due;
            }
        }
    }

    /// Takes the signals that came.
    fn listen(&mut self) {
        for signal in self.signals.pending() {
            if self.ending.contains(&signal) {
                self.heard.end.get_or_insert(signal);
            } else if signal == SIGHUP {
                self.heard.look = true;
            } else if signal == SIGUSR1 {
                self.heard.usage = true;
            } else if self.rate.admit(SystemClock.now()).is_some() {
                let name = signal_name(signal).unwrap_or("a signal");
                tracing::warn!("{name} means nothing to this process: SIGTERM ends it");
            }
        }
    }
}

/// Whether nothing ends with the terminal that the process was started from.
fn has_no_terminal_to_lose(plan: &Plan) -> bool {
    plan.daemonize == Daemonize::Background || plan.log_file.is_some()
}

/// While a starting daemon waits for a lock, the first signal ends it in good order too.
impl InterruptibleWait for SignalListener {
    fn pause(&mut self, time: Duration) -> WaitResult {
        self.set_immediate(false);
        let time = rustix::event::Timespec::try_from(time).expect("a wait is short");
        match rustix::event::poll(&mut [], Some(&time)) {
            // A signal that comes elsewhere is seen a pause later.
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => panic!("poll on nothing: {errno}"),
        }
        self.listen();
        if self.heard.end.is_some() { WaitResult::Stop } else { WaitResult::GoOn }
    }

    fn done(&mut self) {
        self.set_immediate(true);
    }
}
