//! A source that is being served, as its control thread sees it.
//!
//! Invariants: where the source is, is known under a lock that a move holds from its beginning to
//! its end; so a stop, a second move, a visit that comes in mid-move waits and
//! then goes to the right iothread. A move never waits for I/O: what is in flight stays behind. What stands behind
//! `dyn Source` on the iothread is the `FrontEndSource<F>` that was placed.
//! Threads: any control thread; never an iothread, since the methods may wait for one.

use std::any::Any;
use std::error::Error;
use std::io;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak, mpsc};

use block::{Gauges, LaneError, Node};
use request_path::{
    Engine, FrontEnd, FrontEndContext, FrontEndSource, LaneIndex, Source, SourceGauges,
};

use crate::Iothread;
use crate::command::{Closure, Command, Inbox, PostKind, SourceBundle, SourceClosure, SourceId};

/// Is told on the iothread that a source's client broke the protocol, or kicks an empty ring. Called on the iothread:
/// must not block.
pub trait SourceObserver: std::fmt::Debug + Send + Sync {
    /// The source's client broke the rules. The source stays until it is stopped.
    fn broken(&self, fault: &(dyn Error + 'static));

    /// The source was kicked more than once, and there was never anything in it since it came: whoever kicks
    /// writes to other memory. Said once.
    fn kicked_while_empty(&self);
}

/// A source could not be placed on an iothread; it is handed back.
#[derive(Debug, thiserror::Error)]
#[error("iothread {iothread} cannot serve it")]
pub struct PlacementError<F: FrontEnd> {
    /// Where it should have gone.
    pub iothread: String,
    /// The source.
    pub rejected: Box<FrontEndSource<F>>,
    /// Why.
    #[source]
    pub source: LaneError,
}

/// A source could not be moved; it is served where it was.
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
}

/// A source on an iothread, as its control thread sees it: move, stop, run closures.
#[derive(Debug)]
pub struct PlacedSource<F> {
    id: SourceId,
    nodes: Vec<Arc<dyn Node>>,
    place: Mutex<Placement>,
    gauges: Gauges<SourceGauges>,
    front: PhantomData<fn() -> F>,
}

/// Which iothread serves a source now, and which may still finish requests of it.
#[derive(Debug)]
struct Placement {
    now: Arc<Iothread>,
    /// Where it may have left requests behind.
    before: Vec<Weak<Iothread>>,
}

impl Placement {
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

impl<F: FrontEnd> PlacedSource<F> {
    /// Has an iothread serve the source.
    pub fn on(
        iothread: &Arc<Iothread>,
        source: FrontEndSource<F>,
        observer: Arc<dyn SourceObserver>,
    ) -> Result<Self, PlacementError<F>> {
        let (id, source) = (next_id(), Box::new(source));
        let nodes = source.nodes().to_vec();
        let lanes = match prepare(iothread.inbox(), &nodes) {
            Ok(lanes) => lanes,
            Err(error) => {
                let iothread = iothread.name().to_owned();
                return Err(PlacementError { iothread, rejected: source, source: error });
            }
        };
        let notifier = Arc::clone(iothread.inbox().notifier());
        source.mailbox().set_owner(notifier as Arc<dyn request_path::Wake>);
        let gauges = source.gauges();
        let bundle = SourceBundle { id, source, observer };
        heard(&iothread.inbox().ask(|reply| Command::Arrive { bundle, lanes, reply }));
        let place = Placement { now: Arc::clone(iothread), before: Vec::new() };
        Ok(Self { id, nodes, place: Mutex::new(place), gauges, front: PhantomData })
    }

    /// What the source does, wherever it is served. May be read from any thread, also after it was stopped.
    pub fn gauges(&self) -> &Gauges<SourceGauges> {
        &self.gauges
    }

    /// The iothread that serves the source now.
    pub fn iothread(&self) -> Arc<Iothread> {
        Arc::clone(&self.place().now)
    }

    /// Moves the source to another iothread while its client runs. Returns when the other serves
    /// it; requests in flight are finished by the one that started them. The front end may refuse.
    pub fn move_to(&self, to: &Arc<Iothread>) -> Result<(), MoveError> {
        let mut place = self.place();
        if Arc::ptr_eq(&place.now, to) {
            return Ok(());
        }
        if let Some(why) = self.visit_at(&place, |front, _| front.stays()) {
            return Err(MoveError::Stays { iothread: place.now.name().to_owned(), why });
        }
        let lanes = prepare(to.inbox(), &self.nodes)
            .map_err(|source| MoveError::Lanes { iothread: to.name().to_owned(), source })?;
        let (id, destination) = (self.id, Arc::clone(to.inbox()));
        heard(&place.inbox().ask(|reply| Command::Depart { id, to: destination, lanes, reply }));
        place.change(to);
        Ok(())
    }

    /// Has the front end do something on its iothread, where what is finished was published before, and waits for the
    /// answer. No request waits for it.
    pub fn visit<R: Send + 'static>(
        &self,
        visit: impl FnOnce(&mut F, &mut FrontEndContext<'_>) -> R + Send + 'static,
    ) -> R {
        self.visit_at(&self.place(), visit)
    }

    fn visit_at<R: Send + 'static>(
        &self,
        place: &Placement,
        visit: impl FnOnce(&mut F, &mut FrontEndContext<'_>) -> R + Send + 'static,
    ) -> R {
        let id = self.id;
        heard(&place.inbox().ask(|reply| {
            let visit = visit_of(move |front, port| {
                reply.send(visit(front, port)).expect("whoever asks waits for the answer");
            });
            Command::Visit { id, posted: None, visit }
        }))
    }

    /// The same without an answer. Does not wait, and takes the place of what this closure of the caller's code has
    /// posted before and was not done yet.
    pub fn post(&self, visit: impl FnOnce(&mut F, &mut FrontEndContext<'_>) + Send + 'static) {
        self.place().inbox().post(self.id, PostKind::of(&visit), visit_of(visit));
    }

    /// Takes nothing new, waits until nothing is in flight on any thread, and gives the source
    /// back. What layers hold of it goes on at once.
    pub fn stop(self) -> Box<FrontEndSource<F>> {
        let (id, place) = (self.id, self.place());
        for iothread in place.before.iter().filter_map(Weak::upgrade) {
            for node in &self.nodes {
                let node = Arc::clone(node);
                iothread.inbox().call(move |engine| engine.release_on(&node));
            }
        }
        let source = heard(&place.inbox().ask(|reply| Command::Stop { id, reply }));
        let source: Box<dyn Any> = source;
        source.downcast().expect("the source that was placed")
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

/// A visit to a source with that front end.
fn visit_of<F: FrontEnd>(
    visit: impl FnOnce(&mut F, &mut FrontEndContext<'_>) + Send + 'static,
) -> SourceClosure {
    Closure(Box::new(move |source: &mut (dyn Source + 'static), engine: &mut Engine| {
        let source: &mut dyn Any = source;
        let served: &mut FrontEndSource<F> =
            source.downcast_mut().expect("the source that was placed");
        served.visit(engine, visit);
    }))
}

fn prepare(inbox: &Inbox, nodes: &[Arc<dyn Node>]) -> Result<Vec<LaneIndex>, LaneError> {
    let nodes = nodes.to_vec();
    let node = nodes[0].name().to_owned();
    let answer = inbox.call(move |engine| engine.open_lanes(&nodes)).recv();
    // While lanes are open for a source, its iothread does not end.
    answer.unwrap_or_else(|_| Err(LaneError { node, source: io::Error::other("it has ended") }))
}

fn heard<T>(answer: &mpsc::Receiver<T>) -> T {
    answer.recv().expect("an iothread answers every command while it has a handle")
}
