//! What the log says of a client from its coming to its leaving: with which queues and features it is served, that it
//! has stopped or changed them, and that somebody else waits meanwhile.
//!
//! Where it stands: the device of a session notes which rings it serves; the session's thread looks at the visit between
//! two messages ([`ClientLog::look`]).
//!
//! Invariants: a line is said when the queues have been as they are for [`SETTLED`], because a front end starts and stops
//! them one by one; what a client was served with is said before it leaves. Who waits is said when he speaks, or has
//! stayed for [`PATIENCE`]: whoever asks who serves a socket connects and leaves without a word.
//! Threads: that of the session. Limits: all visits of an export share two [`LogRateLimit`]s, one for each kind of line.

use std::collections::BTreeMap;
use std::fmt::{self, Display};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};

use block::LogRateLimit;
use host::peer_of;
use kernel_io::Alarm;
use rustix::event::{Timespec, epoll};
use vhost_user::QueueIndex;
use virtio::{CacheMode, RingLayout, RingSetup};

use crate::socket::{ExportSocket, WaitingClientState};

/// For how long the queues must have been as they are before it is said.
const SETTLED: Duration = Duration::from_millis(200);

/// How long somebody who is silent must have waited before it is said.
const PATIENCE: Duration = Duration::from_secs(1);

/// The rate limits of the log lines about an export's clients.
#[derive(Debug, Default)]
pub(crate) struct ClientLogRates {
    clients: Mutex<LogRateLimit>,
    waiting: Mutex<LogRateLimit>,
}

/// How a client came: it connected, or was taken over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ClientOrigin {
    /// It has connected.
    Connected,
    /// Another process has served it on the same connection.
    TakenOver,
}

/// What is logged about one client, from its connection to its end.
#[derive(Debug)]
pub(crate) struct ClientLog {
    export: String,
    coming: ClientOrigin,
    process: Option<u32>,
    /// None where the host has no descriptors for it: then less is said.
    watch: OnceLock<SessionEpoll>,
    has_asked: AtomicBool,
    /// Whether it was said of who is next that he waits.
    is_next_told: AtomicBool,
    notes: Mutex<ClientNotes>,
}

/// An epoll instance of what a session's thread waits for besides messages: timers, the next client.
#[derive(Debug)]
struct SessionEpoll {
    epoll: OwnedFd,
    settled: Alarm,
    policy: Alarm,
}

/// What is known of a client, and what was logged of it.
#[derive(Debug, Default)]
struct ClientNotes {
    queues: BTreeMap<QueueIndex, ServedQueue>,
    cache: Option<CacheMode>,
    /// What was in flight when this process took the queues up; none if all of them began anew.
    inherited: Option<usize>,
    /// How the client was served before the last queues were stopped.
    had: Option<ClientServiceState>,
    /// Whether the last thing that happened to a queue is that it was started.
    is_growing: bool,
    /// What was said last.
    said: Option<ClientServiceState>,
}

/// A queue that is served, and its features.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ServedQueue {
    size: u16,
    layout: RingLayout,
    event_idx: bool,
    indirect: bool,
}

/// Whether a client's queues are served, and the words in which the log says how.
#[derive(Debug, Clone, PartialEq, Eq)]
enum ClientServiceState {
    /// Not.
    Idle,
    /// In these words.
    Served(String),
}

impl ClientLog {
    /// A client on that connection.
    pub(crate) fn new(export: &str, coming: ClientOrigin, connection: impl AsFd) -> Self {
        Self {
            export: export.to_owned(),
            coming,
            process: peer_of(connection).ok().and_then(|peer| peer.process),
            watch: OnceLock::new(),
            has_asked: AtomicBool::new(false),
            is_next_told: AtomicBool::new(false),
            notes: Mutex::default(),
        }
    }

    /// The session has a thread that looks when there is something to look at.
    pub(crate) fn begin(&self, socket: &ExportSocket) {
        match SessionEpoll::over(socket) {
            Ok(watch) => {
                self.watch.set(watch).expect("a session has one thread");
                self.settle();
            }
            Err(error) => tracing::debug!("export {}: cannot watch: {error}", self.export),
        }
    }

    /// Readable when there is something to look at.
    pub(crate) fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        self.watch.get().map(|watch| watch.epoll.as_fd())
    }

    /// A queue is served; `inherited` is what of it was in flight at another process, if one has served it before.
    pub(crate) fn started(
        &self,
        queue: QueueIndex,
        setup: &RingSetup,
        cache: CacheMode,
        inherited: Option<usize>,
    ) {
        let RingSetup { layout, size, event_idx, indirect, .. } = *setup;
        let mut notes = self.notes();
        notes.queues.insert(queue, ServedQueue { size, layout, event_idx, indirect });
        notes.cache = Some(cache);
        notes.is_growing = true;
        // After a stop it was this process that has served it before.
        if let Some(count) = inherited.filter(|_| notes.had.is_none()) {
            *notes.inherited.get_or_insert(0) += count;
        }
        drop(notes);
        self.settle();
    }

    /// A queue is not served any more.
    pub(crate) fn stopped(&self, queue: QueueIndex) {
        let mut notes = self.notes();
        if notes.had.is_none() || notes.is_growing {
            notes.had = Some(notes.served());
            notes.is_growing = false;
        }
        notes.queues.remove(&queue);
        drop(notes);
        self.settle();
    }

    /// Says what has settled, and who waits at that socket.
    pub(crate) fn look(&self, socket: &ExportSocket, rates: &ClientLogRates, now: Instant) {
        let Some(watch) = self.watch.get() else { return };
        let news = watch.news();
        if news.settled {
            self.say(&rates.clients, now);
        }
        let next = socket.look_for_next(|next| {
            self.is_next_told.store(false, Ordering::Relaxed);
            let watched = watch.add(next).and_then(|()| watch.policy.set(PATIENCE));
            watched.unwrap_or_else(|error| self.complain(&error));
        });
        let waits = match next {
            WaitingClientState::Nobody => false,
            WaitingClientState::Silent => news.patience_ended,
            WaitingClientState::Speaks => true,
        };
        if waits && !self.is_next_told.swap(true, Ordering::Relaxed) && admit(&rates.waiting, now) {
            tracing::warn!(
                "export {}: another client waits at {} and is served when this one has left{}: a socket \
                 serves one at a time",
                self.export,
                socket.path().display(),
                ProcessIdDisplay(self.process)
            );
        }
    }

    /// It asks what there is, as each front end does first.
    pub(crate) fn has_asked(&self) {
        self.has_asked.store(true, Ordering::Relaxed);
    }

    /// Whether it has asked for nothing, and nothing was said of it: somebody who asks who serves the socket.
    pub(crate) fn was_in_vain(&self) -> bool {
        !self.has_asked.load(Ordering::Relaxed) && self.notes().said.is_none()
    }

    /// Says what the client was served with, if it leaves before that was said.
    pub(crate) fn say_before_end(&self) {
        let notes = self.notes();
        if let (Some(had), None) = (&notes.had, &notes.said) {
            self.say_line(&notes, had);
        }
    }

    fn settle(&self) {
        if let Some(watch) = self.watch.get() {
            watch.settled.set(SETTLED).unwrap_or_else(|error| self.complain(&error));
        }
    }

    fn say(&self, rate: &Mutex<LogRateLimit>, now: Instant) {
        let mut notes = self.notes();
        let served = notes.served();
        if notes.said.as_ref() == Some(&served) {
            return;
        }
        if admit(rate, now) {
            self.say_line(&notes, &served);
        }
        notes.said = Some(served);
    }

    fn say_line(&self, notes: &ClientNotes, now: &ClientServiceState) {
        let (export, process) = (&self.export, ProcessIdDisplay(self.process));
        let came = match (self.coming, notes.inherited) {
            (ClientOrigin::TakenOver, _) => "a client was taken over".to_owned(),
            (ClientOrigin::Connected, None) => "a client has come".to_owned(),
            (ClientOrigin::Connected, Some(1)) => {
                "a client has come back with 1 request in flight".to_owned()
            }
            (ClientOrigin::Connected, Some(count)) => {
                format!("a client has come back with {count} requests in flight")
            }
        };
        match (&notes.said, now) {
            (None, ClientServiceState::Served(how)) => {
                tracing::info!("export {export}: {came}{process}: {how}")
            }
            (None, ClientServiceState::Idle) => {
                tracing::info!("export {export}: {came}{process} and has started no queue yet");
            }
            (Some(_), ClientServiceState::Served(how)) => {
                tracing::info!("export {export}: the client is served: {how}");
            }
            (Some(_), ClientServiceState::Idle) => tracing::info!(
                "export {export}: the client has stopped its queues: its guest was reset, paused, shut down or \
                 has moved to another host"
            ),
        }
    }

    fn complain(&self, error: &io::Error) {
        tracing::debug!("export {}: cannot watch who waits, or set an alarm: {error}", self.export);
    }

    fn notes(&self) -> MutexGuard<'_, ClientNotes> {
        self.notes.lock().expect("no holder of this lock panics")
    }
}

impl ClientNotes {
    fn served(&self) -> ClientServiceState {
        let Some(first) = self.queues.values().next() else { return ClientServiceState::Idle };
        let count = self.queues.len();
        let mut how =
            format!("{count} queue{} of {}", if count == 1 { "" } else { "s" }, first.size);
        if self.queues.values().any(|queue| queue.size != first.size) {
            how.push_str(" and other sizes");
        }
        how.push_str(match first.layout {
            RingLayout::Split => ", split",
            RingLayout::Packed => ", packed",
        });
        for (is_so, word) in [(first.event_idx, ", event_idx"), (first.indirect, ", indirect")] {
            if is_so {
                how.push_str(word);
            }
        }
        how.push_str(match self.cache {
            Some(CacheMode::WriteThrough) => ", write-through",
            Some(CacheMode::WriteBack) | None => ", write-back",
        });
        ClientServiceState::Served(how)
    }
}

/// Which of a client log's timers went off: its queues have settled, or the next client was silent for long.
#[derive(Debug, Clone, Copy, Default)]
struct ClientTimerEvents {
    settled: bool,
    patience_ended: bool,
}

impl SessionEpoll {
    const NEXT: u64 = 0;
    const SETTLED: u64 = 1;
    const PATIENCE: u64 = 2;

    fn over(socket: &ExportSocket) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let (settled, policy) = (Alarm::new()?, Alarm::new()?);
        for (fd, data) in [(settled.as_fd(), Self::SETTLED), (policy.as_fd(), Self::PATIENCE)] {
            epoll::add(&epoll, fd, epoll::EventData::new_u64(data), epoll::EventFlags::IN)?;
        }
        let watch = Self { epoll, settled, policy };
        watch.add(socket.listener())?;
        Ok(watch)
    }

    /// Tells of what comes on the listener, or of the next client. An edge: as long as that waits, both stay readable.
    fn add(&self, fd: impl AsFd) -> io::Result<()> {
        let flags = epoll::EventFlags::IN | epoll::EventFlags::RDHUP | epoll::EventFlags::ET;
        Ok(epoll::add(&self.epoll, fd, epoll::EventData::new_u64(Self::NEXT), flags)?)
    }

    /// Takes what has come. Does not wait.
    fn news(&self) -> ClientTimerEvents {
        let mut news = ClientTimerEvents::default();
        let mut space = [MaybeUninit::uninit(); 4];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let Ok((events, _)) = epoll::wait(&self.epoll, &mut space, Some(&now)) else { return news };
        for event in events {
            match { event.data }.u64() {
                Self::NEXT => {}
                Self::SETTLED => {
                    self.settled.clear();
                    news.settled = true;
                }
                _patience => {
                    self.policy.clear();
                    news.patience_ended = true;
                }
            }
        }
        news
    }
}

/// Whether one more line may be said; those that were left out are not worth one of their own.
fn admit(rate: &Mutex<LogRateLimit>, now: Instant) -> bool {
    rate.lock().expect("no holder of this lock panics").admit(now).is_some()
}

/// Shows ` (process 4711)`, if it is known.
struct ProcessIdDisplay(Option<u32>);

impl Display for ProcessIdDisplay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(process) => write!(f, " (process {process})"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(size: u16, layout: RingLayout, is_new: bool) -> ServedQueue {
        ServedQueue { size, layout, event_idx: is_new, indirect: is_new }
    }

    #[track_caller]
    fn check(queues: &[ServedQueue], cache: CacheMode, expected: &str) {
        let queues = (0..).map(QueueIndex).zip(queues.iter().copied()).collect();
        let notes = ClientNotes { queues, cache: Some(cache), ..ClientNotes::default() };
        let ClientServiceState::Served(how) = notes.served() else { panic!("it is served") };
        assert_eq!(how, expected);
    }

    #[test]
    fn queues_and_features_are_said_in_plain_words() {
        let (split, packed) = (RingLayout::Split, RingLayout::Packed);
        let old = [queue(128, split, false)];
        check(&old, CacheMode::WriteThrough, "1 queue of 128, split, write-through");
        let new = [queue(256, packed, true); 4];
        check(
            &new,
            CacheMode::WriteBack,
            "4 queues of 256, packed, event_idx, indirect, write-back",
        );
        let mixed = [queue(256, split, false), queue(64, split, false)];
        check(&mixed, CacheMode::WriteBack, "2 queues of 256 and other sizes, split, write-back");
        assert_eq!(ClientNotes::default().served(), ClientServiceState::Idle);
    }
}
