//! A source that is being served, as all control threads see it: its owner, and whoever watches, moves or stops it.
//!
//! Invariants: whoever changes where the source is, or does something with it there, has the lock `changes`, a move from
//! its beginning to its end; so a second move, a visit or a stop that comes in mid-move waits for that and then goes to the
//! right iothread. Where it is, is under a lock of its own that nobody holds while an iothread answers: whoever looks never
//! waits for one, and finds it in mid-move where it was. A move never waits for I/O: what is in flight stays behind. A stop
//! waits for all of it, and not under `changes`: a move that meets it is refused at once. A source is stopped once.
//! Limits: a stop waits for storage that is no file for [`STOP_MAX`].
//! Threads: any control thread; never an iothread, since methods that change something may wait for one.

mod moves;

use std::error::Error;
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Weak, mpsc};
use std::time::Duration;

use block::{Gauges, LaneError, Node};
use request_path::{Engine, LaneIndex, Source, SourceGauges};

use crate::Iothread;
use crate::command::{Closure, Command, Inbox, PostKind, SourceBundle, SourceClosure, SourceId};
use crate::poll_trial::PollFinding;

pub use moves::{SourceMove, move_many};

/// How long a stop waits for storage that is no file: then its requests there fail. As long as a change of the graph waits.
const STOP_MAX: Duration = Duration::from_secs(30);

/// How often a stop looks whether somebody else has given that storage up meanwhile.
const STOP_LOOK: Duration = Duration::from_secs(1);

/// Is told on the iothread that a source's client broke the protocol, or kicks an empty ring. Called on the iothread:
/// must not block.
pub trait SourceObserver: fmt::Debug + Send + Sync {
    /// The source's client broke the rules. The source stays until it is stopped.
    fn broken(&self, fault: &(dyn Error + 'static));

    /// The source was kicked more than once, and there was never anything in it since it came: whoever kicks
    /// writes to other memory. Said once.
    fn kicked_while_empty(&self);
}

/// A source could not be moved; it is where it was.
#[derive(Debug, thiserror::Error)]
pub enum MoveError {
    /// Its disks cannot be used there.
    #[error("iothread {iothread} cannot take it over")]
    Lanes {
        /// Where it should have gone.
        iothread: String,
        /// Why.
        #[source]
        source: LaneError,
    },
    /// Its front end refuses.
    #[error("it stays on iothread {iothread}: {why}")]
    Stays {
        /// Where it is served.
        iothread: String,
        /// Why.
        why: &'static str,
    },
    /// Nobody serves it any more.
    #[error(transparent)]
    Stopped(#[from] SourceStopped),
}

/// Somebody has stopped the source already, or is about to.
#[derive(Debug, thiserror::Error)]
#[error("it was stopped")]
pub struct SourceStopped;

/// What a source is called: its export, and its number among the sources of that.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SourceName {
    /// The export.
    pub export: String,
    /// The queue, if the export has some.
    pub queue: u16,
}

impl fmt::Display for SourceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "export {}: queue {}", self.export, self.queue)
    }
}

/// A source on an iothread, as any control thread sees it: move, stop, read what it does.
#[derive(Debug)]
pub struct PlacedSource {
    id: SourceId,
    name: SourceName,
    nodes: Vec<Arc<dyn Node>>,
    /// Held by one who changes where it is, or needs that to stay. Taken before `place`.
    changes: Mutex<()>,
    /// Changed by whoever has `changes`, and by a stop at its end. Held for a moment only.
    place: Mutex<Placement>,
    /// Notified when it has stopped.
    stopped: Condvar,
    gauges: Gauges<SourceGauges>,
}

/// Where a source is.
#[derive(Debug)]
enum Placement {
    /// An iothread serves it; on others it may have left requests behind.
    Served { now: Arc<Iothread>, before: Vec<Weak<Inbox>> },
    /// It stops there.
    Stopping(Arc<Iothread>),
    /// It has stopped on the iothread of that name; its owner takes it.
    Stopped { on: String, source: Option<Box<dyn Source>> },
}

impl Placement {
    /// Which iothread serves it, or stops it.
    fn iothread(&self) -> Result<&Arc<Iothread>, SourceStopped> {
        match self {
            Self::Served { now, .. } | Self::Stopping(now) => Ok(now),
            Self::Stopped { .. } => Err(SourceStopped),
        }
    }
}

impl PlacedSource {
    /// Has an iothread serve the source, on lanes that it has opened for it.
    pub(crate) fn arrive(
        iothread: &Arc<Iothread>,
        name: SourceName,
        source: Box<dyn Source>,
        gauges: Gauges<SourceGauges>,
        (lanes, observer): (Vec<LaneIndex>, Arc<dyn SourceObserver>),
    ) -> Arc<Self> {
        let (id, nodes) = (next_id(), source.nodes().to_vec());
        let notifier = Arc::clone(iothread.inbox().notifier());
        source.mailbox().set_owner(notifier as Arc<dyn request_path::Wake>);
        let (leaving_since, polling) = (None, PollFinding::default());
        let bundle = SourceBundle { id, source, observer, leaving_since, polling };
        heard(&iothread.inbox().ask(|reply| Command::Arrive { bundle, lanes, reply }));
        let place = Placement::Served { now: Arc::clone(iothread), before: Vec::new() };
        let (changes, place, stopped) = (Mutex::default(), Mutex::new(place), Condvar::new());
        let placed = Arc::new(Self { id, name, nodes, changes, place, stopped, gauges });
        iothread.sources().enter(&placed);
        placed
    }

    /// What it is called.
    pub fn name(&self) -> &SourceName {
        &self.name
    }

    /// What the source does, wherever it is served. May be read from any thread, also after it was stopped.
    pub fn gauges(&self) -> &Gauges<SourceGauges> {
        &self.gauges
    }

    /// The iothread that serves the source now, or in mid-move the one that it leaves; `None` if it has stopped. Waits for
    /// no iothread.
    pub fn iothread(&self) -> Option<Arc<Iothread>> {
        self.place().iothread().ok().cloned()
    }

    /// Whether an iothread serves it, or this one if one is named. As [`PlacedSource::iothread`], without a handle whose
    /// drop may wait for the end of an iothread.
    pub(crate) fn is_served(&self, by: Option<&Arc<Iothread>>) -> bool {
        let place = self.place();
        let now = place.iothread().ok();
        now.is_some_and(|now| by.is_none_or(|by| Arc::ptr_eq(now, by)))
    }

    /// The name of the iothread that serves the source, or has served it last. Waits for no iothread.
    pub fn iothread_name(&self) -> String {
        match &*self.place() {
            Placement::Served { now, .. } | Placement::Stopping(now) => now.name().to_owned(),
            Placement::Stopped { on, .. } => on.clone(),
        }
    }

    /// The name of the iothread that serves the source now; `None` if it has stopped.
    pub(crate) fn serving_name(&self) -> Option<String> {
        self.place().iothread().ok().map(|iothread| iothread.name().to_owned())
    }

    /// Has it answer what is finished and show in its gauges all that it has done, soon: beside others that keep its
    /// iothread busy a quiet source shows its last turns late. Does not wait for that. In mid-move nothing is done: a
    /// source that leaves shows all.
    pub fn bring_up_to_date(&self) {
        let show = |source: &mut (dyn Source + 'static), engine: &mut Engine| {
            source.bring_up_to_date(engine);
        };
        if let Ok(_changes) = self.changes.try_lock() {
            self.post_there(PostKind::of(&show), Closure(Box::new(show)));
        }
    }

    /// Moves the source to another iothread while its client runs. Returns when the other serves it; requests in flight
    /// are finished by the one that started them. The front end may refuse. One that stops is not moved.
    pub fn move_to(&self, to: &Arc<Iothread>) -> Result<(), MoveError> {
        moves::move_all(&[(self, to)]).pop().expect("one result for one move")
    }

    /// Takes nothing new and waits until nothing is in flight on any thread; then nobody serves the source any more, and
    /// its owner has it. What layers hold of it goes on at once. Storage that is no file and answers nothing is given up
    /// after 30 s, or soon if another stop has given it up and it has carried out nothing since: requests that wait
    /// for it there fail, also those of others. If somebody else has stopped the source or does, waits for that and says so.
    pub fn stop(&self) -> Result<(), SourceStopped> {
        let changes = self.changes();
        let mut place = self.place();
        let Placement::Served { now, before } = &*place else {
            drop(changes);
            let is_stopping = |place: &mut Placement| matches!(place, Placement::Stopping(_));
            let over = self.stopped.wait_while(place, is_stopping);
            drop(over.expect("no holder of this lock panics"));
            return Err(SourceStopped);
        };
        let mut used_on = before.clone();
        used_on.push(Arc::downgrade(now.inbox()));
        for inbox in before.iter().filter_map(Weak::upgrade) {
            for node in &self.nodes {
                let node = Arc::clone(node);
                inbox.call(move |engine| engine.release_on(&node));
            }
        }
        let now = Arc::clone(now);
        let answer = now.inbox().ask(|reply| Command::Stop { id: self.id, reply });
        *place = Placement::Stopping(Arc::clone(&now));
        drop((place, changes));
        let source = self.wait_for_stop(&answer, &used_on);
        let on = now.name().to_owned();
        *self.place() = Placement::Stopped { on, source: Some(source) };
        self.stopped.notify_all();
        // As after a move.
        drop(now);
        Ok(())
    }

    /// Waits until nothing of the source is in flight on these iothreads.
    fn wait_for_stop(
        &self,
        answer: &mpsc::Receiver<Box<dyn Source>>,
        used_on: &[Weak<Inbox>],
    ) -> Box<dyn Source> {
        let mut waited = Duration::ZERO;
        loop {
            match answer.recv_timeout(STOP_LOOK) {
                Ok(source) => return source,
                Err(mpsc::RecvTimeoutError::Timeout) => waited += STOP_LOOK,
                Err(mpsc::RecvTimeoutError::Disconnected) => {
                    panic!("an iothread answers while it serves a source")
                }
            }
            let is_late = waited >= STOP_MAX;
            for inbox in used_on.iter().filter_map(Weak::upgrade) {
                for node in &self.nodes {
                    let node = Arc::clone(node);
                    inbox.call(move |engine| match is_late {
                        true => engine.abandon(&node),
                        false => engine.abandon_unresponsive(&node),
                    });
                }
            }
            if is_late {
                waited = Duration::ZERO;
            }
        }
    }

    /// Stops it, if nobody has, and takes it.
    pub(crate) fn take(&self) -> Box<dyn Source> {
        // Whoever did it: it has stopped.
        let _by_others = self.stop();
        let Placement::Stopped { source, .. } = &mut *self.place() else {
            panic!("a source that was stopped is not served again")
        };
        source.take().expect("a source has one owner")
    }

    /// Does something with it, and waits until that has answered.
    pub(crate) fn visit<R>(
        &self,
        visit: impl FnOnce(mpsc::Sender<R>) -> SourceClosure,
    ) -> Result<R, SourceStopped> {
        let answer = {
            let _changes = self.changes();
            self.ask(self.place().iothread()?, visit)
        };
        // Of one that stops meanwhile there is none.
        answer.recv().ok().ok_or(SourceStopped)
    }

    /// Does something with it, unless it has stopped.
    pub(crate) fn post(&self, kind: PostKind, visit: SourceClosure) {
        let _changes = self.changes();
        self.post_there(kind, visit);
    }

    /// The same for whoever has `changes`.
    fn post_there(&self, kind: PostKind, visit: SourceClosure) {
        if let Ok(iothread) = self.place().iothread() {
            iothread.inbox().post(self.id, kind, visit);
        }
    }

    /// Does something with it where it is served.
    fn ask<R>(
        &self,
        at: &Iothread,
        visit: impl FnOnce(mpsc::Sender<R>) -> SourceClosure,
    ) -> mpsc::Receiver<R> {
        let id = self.id;
        at.inbox().ask(|reply| Command::Visit { id, posted: None, visit: visit(reply) })
    }

    fn changes(&self) -> MutexGuard<'_, ()> {
        self.changes.lock().expect("no holder of this lock panics")
    }

    fn place(&self) -> MutexGuard<'_, Placement> {
        self.place.lock().expect("no holder of this lock panics")
    }
}

fn next_id() -> SourceId {
    // Only uniqueness matters.
    static NEXT: AtomicU64 = AtomicU64::new(0);
    SourceId(NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Has an iothread open lanes on these nodes. As long as they are open for a source, it does not end.
pub(crate) fn prepare(inbox: &Inbox, nodes: &[Arc<dyn Node>]) -> Result<Vec<LaneIndex>, LaneError> {
    hear_lanes(&ask_lanes(inbox, nodes), nodes)
}

fn ask_lanes(
    inbox: &Inbox,
    nodes: &[Arc<dyn Node>],
) -> mpsc::Receiver<Result<Vec<LaneIndex>, LaneError>> {
    let nodes = nodes.to_vec();
    inbox.call(move |engine| engine.open_lanes(&nodes))
}

fn hear_lanes(
    answer: &mpsc::Receiver<Result<Vec<LaneIndex>, LaneError>>,
    nodes: &[Arc<dyn Node>],
) -> Result<Vec<LaneIndex>, LaneError> {
    answer.recv().unwrap_or_else(|_| {
        let (node, source) = (nodes[0].name().to_owned(), io::Error::other("it has ended"));
        Err(LaneError { node, source })
    })
}

fn heard<T>(answer: &mpsc::Receiver<T>) -> T {
    answer.recv().expect("an iothread answers while it serves a source or has lanes for it")
}
