//! A source that is being served, as its control thread sees it.
//!
//! Invariants: where the source is, is known under a lock that a move holds from its beginning to
//! its end; so a stop, a second move, a new call descriptor or log that comes in mid-move waits and
//! then goes to the right iothread. A move never waits for I/O: what is in flight stays behind.
//! Threads: any control thread; never an iothread, since the methods may wait for one.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak, mpsc};

use block::{LaneError, Node};
use request_path::{Fault, LaneIndex, RingLog, Source};

use crate::Iothread;
use crate::command::{Cargo, Command, Inbox, SourceId};

/// Is told what a source's guest does wrong. Called on the iothread: must not block.
pub trait Watcher: std::fmt::Debug + Send + Sync {
    /// The source's guest broke the rules. The source stays until it is stopped.
    fn broken(&self, fault: &Fault);

    /// The source was kicked more than once, and there was never anything in it since it came: whoever kicks
    /// writes to other memory. Said once.
    fn kicked_in_vain(&self);
}

/// A source could not be placed; it is handed back.
#[derive(Debug, thiserror::Error)]
#[error("iothread {iothread} cannot serve it")]
pub struct PlaceError {
    /// Where it should have gone.
    pub iothread: String,
    /// The source.
    pub rejected: Box<dyn Source>,
    /// Why.
    #[source]
    pub source: LaneError,
}

/// A source could not be moved; it is served where it was.
#[derive(Debug, thiserror::Error)]
#[error("iothread {iothread} cannot take it over")]
pub struct MoveError {
    /// Where it should have gone.
    pub iothread: String,
    /// Why.
    #[source]
    pub source: LaneError,
}

/// A source on an iothread.
#[derive(Debug)]
pub struct Placed {
    id: SourceId,
    node: Arc<dyn Node>,
    place: Mutex<Place>,
}

/// Where a source is served, and was.
#[derive(Debug)]
struct Place {
    now: Arc<Iothread>,
    /// Where it may have left requests behind.
    before: Vec<Weak<Iothread>>,
}

impl Place {
    fn inbox(&self) -> &Inbox {
        self.now.inbox()
    }

    /// The source is served there from now on.
    fn change(&mut self, to: &Arc<Iothread>) {
        let left = Arc::downgrade(&std::mem::replace(&mut self.now, Arc::clone(to)));
        if !self.before.iter().any(|known| known.ptr_eq(&left)) {
            self.before.push(left);
        }
    }
}

impl Placed {
    /// Has an iothread serve the source.
    pub fn on(
        iothread: &Arc<Iothread>,
        source: Box<dyn Source>,
        watcher: Arc<dyn Watcher>,
    ) -> Result<Self, PlaceError> {
        // Only uniqueness matters.
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let id = SourceId(NEXT.fetch_add(1, Ordering::Relaxed));
        let node = Arc::clone(source.node());
        let lane = match prepare(iothread.inbox(), &node) {
            Ok(lane) => lane,
            Err(error) => {
                let iothread = iothread.name().to_owned();
                return Err(PlaceError { iothread, rejected: source, source: error });
            }
        };
        let bell = Arc::clone(iothread.inbox().bell());
        source.mailbox().set_owner(bell as Arc<dyn request_path::Wake>);
        let cargo = Cargo { id, source, watcher };
        ask(iothread.inbox(), |reply| Command::Arrive { cargo, lane, reply });
        let place = Place { now: Arc::clone(iothread), before: Vec::new() };
        Ok(Self { id, node, place: Mutex::new(place) })
    }

    /// The iothread that serves the source now.
    pub fn iothread(&self) -> Arc<Iothread> {
        Arc::clone(&self.place().now)
    }

    /// Moves the source to another iothread while its guest runs. Returns when the other serves
    /// it; requests in flight are finished by the one that started them.
    pub fn move_to(&self, to: &Arc<Iothread>) -> Result<(), MoveError> {
        let mut place = self.place();
        if Arc::ptr_eq(&place.now, to) {
            return Ok(());
        }
        let lane = prepare(to.inbox(), &self.node)
            .map_err(|source| MoveError { iothread: to.name().to_owned(), source })?;
        let (id, destination) = (self.id, Arc::clone(to.inbox()));
        ask(place.inbox(), |reply| Command::Depart { id, to: destination, lane, reply });
        place.change(to);
        Ok(())
    }

    /// Interrupts the guest through another descriptor from now on. Does not wait.
    pub fn set_call(&self, call: Option<OwnedFd>) {
        self.place().inbox().set_call(self.id, call);
    }

    /// Marks in this log from now on what is written to guest memory, or nothing any more, without a
    /// pause. Returns when that is in effect and nobody uses the log before.
    pub fn set_log(&self, log: Option<RingLog>) {
        let (id, place) = (self.id, self.place());
        ask(place.inbox(), |reply| Command::SetLog { id, log, reply });
    }

    /// Takes nothing new, waits until nothing is in flight on any thread, and gives the source
    /// back. What layers hold of it goes on at once.
    pub fn stop(self) -> Box<dyn Source> {
        let (id, place) = (self.id, self.place());
        for iothread in place.before.iter().filter_map(Weak::upgrade) {
            iothread.inbox().send(Command::Release { node: Arc::clone(&self.node) });
        }
        ask(place.inbox(), |reply| Command::Stop { id, reply })
    }

    fn place(&self) -> MutexGuard<'_, Place> {
        self.place.lock().expect("no holder of this lock panics")
    }
}

fn prepare(inbox: &Inbox, node: &Arc<dyn Node>) -> Result<LaneIndex, LaneError> {
    let node = Arc::clone(node);
    ask(inbox, |reply| Command::Prepare { node, reply })
}

fn ask<T>(inbox: &Inbox, command: impl FnOnce(mpsc::Sender<T>) -> Command) -> T {
    let (reply, answer) = mpsc::channel();
    inbox.send(command(reply));
    answer.recv().expect("an iothread answers every command while it has a handle")
}
