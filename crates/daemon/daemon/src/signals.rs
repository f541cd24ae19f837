//! The signals that the daemon hears, and what each of them means.
//!
//! SIGTERM and SIGINT end it, and so does SIGHUP in the foreground, where it says that the terminal is gone. Where there
//! is no terminal to lose (`--daemonize`, `--log-file`) SIGHUP asks for a look: the log file is opened anew, and files are
//! measured. Where they would end it, SIGINT and SIGHUP stay ignored if they were when it started (nohup(1)). SIGUSR1, SIGUSR2,
//! SIGALRM and SIGXFSZ mean nothing, and are said instead of ending it.
//!
//! Threads: the process's first.

use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use block::{Clock, SentenceRate, SystemClock};
use host::Impatience;
use rustix::event::{PollFd, PollFlags};
use signal_hook::consts::{SIGALRM, SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2, SIGXFSZ};
use signal_hook::iterator::Signals;
use signal_hook::low_level::{pipe, signal_name};

use crate::claim::{Told, Wait};
use crate::device_news::DeviceNews;
use crate::options::{Daemonize, Plan};
use crate::takeover::Doorbell;

/// What mean nothing. SIGXFSZ comes with the error of a write beyond RLIMIT_FSIZE, which is told with its request.
const MEANINGLESS: [i32; 4] = [SIGUSR1, SIGUSR2, SIGALRM, SIGXFSZ];

/// What the first thread waits for.
pub(crate) enum Heard<'a> {
    /// The daemon is to end, by this signal.
    End(&'static str),
    /// SIGHUP, where it asks for a look.
    Look,
    Doorbell(&'a Doorbell),
    News(&'a DeviceNews),
}

/// The signals, and what was heard of them.
pub(crate) struct Attention {
    signals: Signals,
    /// Readable after a signal.
    pipe: UnixStream,
    impatience: Arc<Impatience>,
    mood: Mood,
    /// The signals that end the daemon.
    ending: Vec<i32>,
    heard: Pending,
    /// How often a signal without meaning is said.
    rate: SentenceRate,
}

/// What was heard and not acted on yet.
#[derive(Debug, Default)]
struct Pending {
    end: Option<i32>,
    look: bool,
}

/// What the first signal that ends the daemon does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mood {
    /// It ends the process at once, but while [`Wait::pause`] waits.
    Hasty,
    /// It ends the process in good order.
    Patient,
}

impl Attention {
    /// Until [`Attention::be_patient`] every signal that ends the daemon ends the process at once: there is nothing to
    /// finish yet, and what is being set up may block.
    pub(crate) fn of(plan: &Plan) -> io::Result<Self> {
        let mut ending = vec![SIGTERM];
        let mut asking = MEANINGLESS.to_vec();
        for signal in [SIGINT, SIGHUP] {
            match () {
                // It ends nothing, so there is no reason to ignore it.
                () if signal == SIGHUP && has_no_terminal_to_lose(plan) => asking.push(signal),
                () if host::is_ignored(signal)? => {}
                () => ending.push(signal),
            }
        }
        let impatience = Arc::new(Impatience::full());
        for signal in &ending {
            host::leave_if_impatient(*signal, &impatience)?;
        }
        let all = || ending.iter().chain(&asking);
        let signals = Signals::new(all())?;
        // After those: a signal that is seen here is pending there.
        let (pipe, writer) = UnixStream::pair()?;
        pipe.set_nonblocking(true)?;
        for signal in all() {
            pipe::register(*signal, writer.try_clone()?)?;
        }
        let (mood, heard, rate) = (Mood::Hasty, Pending::default(), SentenceRate::default());
        Ok(Self { signals, pipe, impatience, mood, ending, heard, rate })
    }

    /// From now on the first signal ends the process in good order, and the second one at once.
    pub(crate) fn be_patient(&mut self) {
        self.mood = Mood::Patient;
        self.impatience.forget();
    }

    /// Whether every signal ends the process at once, while it is hasty.
    fn haste(&self, is_hasty: bool) {
        match (self.mood, is_hasty) {
            (Mood::Hasty, true) => self.impatience.fill(),
            (Mood::Hasty, false) => self.impatience.forget(),
            // Whatever it is, a signal has made it so.
            (Mood::Patient, _) => {}
        }
    }

    /// Waits until a signal came, somebody rang, or devices have changed; a signal goes first.
    pub(crate) fn wait<'a>(
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
            self.listen();
            if let Some(signal) = self.heard.end {
                return Heard::End(signal_name(signal).unwrap_or("a signal"));
            }
            if std::mem::take(&mut self.heard.look) {
                return Heard::Look;
            }
            // What is left of a signal that was heard before.
            let _nothing_there = self.pipe.read(&mut [0; 64]);
            if let Some(doorbell) = rung {
                return Heard::Doorbell(doorbell);
            }
            if let Some(news) = told {
                return Heard::News(news);
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
impl Wait for Attention {
    fn pause(&mut self, time: Duration) -> Told {
        self.haste(false);
        let time = rustix::event::Timespec::try_from(time).expect("a wait is short");
        match rustix::event::poll(&mut [], Some(&time)) {
            // A signal that comes elsewhere is seen a pause later.
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => panic!("poll on nothing: {errno}"),
        }
        self.listen();
        if self.heard.end.is_some() { Told::Stop } else { Told::GoOn }
    }

    fn done(&mut self) {
        self.haste(true);
    }
}
