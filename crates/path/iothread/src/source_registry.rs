//! The sources that are served in a process, and its iothreads: whoever watches, moves or drains them finds them here.
//!
//! Where it stands: every [`PlacedSource`] is entered when it is served, and every iothread when it
//! starts. Beside the request path: a request never comes here.
//!
//! Invariants: a drained section holds for all iothreads of the process, also for those that start while it lasts: they
//! enter it before anybody can place a source there.
//! Threads: any control thread. The lock is held while iothreads answer, which never wait for it.

use std::sync::{Arc, Mutex, MutexGuard, Weak, mpsc};

use block::{LaneError, Node};

use crate::command::{Command, Inbox};
use crate::{Iothread, PlacedSource};

/// All sources that the iothreads of a process serve.
#[derive(Debug, Default)]
pub struct SourceRegistry {
    entries: Mutex<Entries>,
}

/// What is known of a process.
#[derive(Debug, Default)]
pub(crate) struct Entries {
    sources: Vec<Weak<PlacedSource>>,
    inboxes: Vec<Weak<Inbox>>,
    drains: Vec<Drain>,
    /// How many drains there were.
    drains_begun: u64,
}

/// The identifier of a drained section.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DrainId(u64);

/// Nodes that are drained on these iothreads.
#[derive(Debug)]
struct Drain {
    id: DrainId,
    nodes: Vec<Arc<dyn Node>>,
    inboxes: Vec<Arc<Inbox>>,
}

/// An iothread and a node that is drained there.
pub(crate) type DrainedNode = (Arc<Inbox>, Arc<dyn Node>);

impl SourceRegistry {
    /// The sources that are served now, in the order in which they came.
    pub fn all(&self) -> Vec<Arc<PlacedSource>> {
        let sources: Vec<_> = self.lock().sources.iter().filter_map(Weak::upgrade).collect();
        // A move may be under way, whose end the registry need not wait for.
        sources.into_iter().filter(|source| source.iothread().is_some()).collect()
    }

    /// The sources that this iothread serves now.
    pub fn served_by(&self, iothread: &Arc<Iothread>) -> Vec<Arc<PlacedSource>> {
        let is_there = |source: &Arc<PlacedSource>| {
            source.iothread().is_some_and(|now| Arc::ptr_eq(&now, iothread))
        };
        self.all().into_iter().filter(is_there).collect()
    }

    /// Whether any node is drained now, or about to be.
    pub fn is_draining(&self) -> bool {
        !self.lock().drains.is_empty()
    }

    /// Has every iothread turn once: its name, and what says that it has, or that it has ended. Does not wait.
    pub fn turn_all(&self) -> Vec<(String, mpsc::Receiver<()>)> {
        let inboxes: Vec<_> = self.lock().inboxes.iter().filter_map(Weak::upgrade).collect();
        let turn = |inbox: Arc<Inbox>| (inbox.name().to_owned(), inbox.call(|_| ()));
        inboxes.into_iter().map(turn).collect()
    }

    pub(crate) fn enter(&self, source: &Arc<PlacedSource>) {
        let mut entries = self.lock();
        entries.sources.retain(|source| source.strong_count() > 0);
        entries.sources.push(Arc::downgrade(source));
    }

    /// Enters an iothread, on which nothing was placed yet. What is drained now is drained there, too.
    pub(crate) fn enter_iothread(&self, inbox: &Arc<Inbox>) {
        let mut entries = self.lock();
        entries.inboxes.retain(|inbox| inbox.strong_count() > 0);
        entries.inboxes.push(Arc::downgrade(inbox));
        for drain in &mut entries.drains {
            for node in &drain.nodes {
                // Nothing is in flight there: it does not take long.
                let _drained = begin_drain(inbox, node).recv();
            }
            drain.inboxes.push(Arc::clone(inbox));
        }
    }

    /// Has all iothreads take nothing new for these nodes. Returns where, and what says that it is over there.
    pub(crate) fn begin_drain(
        &self,
        nodes: Vec<Arc<dyn Node>>,
    ) -> (DrainId, Vec<(DrainedNode, mpsc::Receiver<()>)>) {
        let mut entries = self.lock();
        let id = DrainId(entries.drains_begun);
        entries.drains_begun += 1;
        let inboxes = entries.inboxes.iter().filter_map(Weak::upgrade).collect();
        let drain = Drain { id, nodes, inboxes };
        let begin = |(inbox, node): DrainedNode| {
            let over = begin_drain(&inbox, &node);
            ((inbox, node), over)
        };
        let begun = drain.pairs().map(begin).collect();
        entries.drains.push(drain);
        (id, begun)
    }

    /// Ends a drain: opens lanes again, on all iothreads or none. If that fails, all is drained as before.
    pub(crate) fn end_drain(&self, id: DrainId) -> Result<(), (String, LaneError)> {
        let mut entries = self.lock();
        let place = entries.place(id);
        let drain = &entries.drains[place];
        for (inbox, node) in drain.pairs() {
            if let Err(error) = heard(&inbox.call(move |engine| engine.prepare_lane(&node))) {
                drain.withdraw();
                return Err((inbox.name().to_owned(), error));
            }
        }
        for (inbox, node) in drain.pairs() {
            inbox.call(move |engine| engine.admit(&node));
        }
        entries.drains.remove(place);
        Ok(())
    }

    /// Ends a drain that is given up, over or not.
    pub(crate) fn cancel_drain(&self, id: DrainId) {
        let mut entries = self.lock();
        let place = entries.place(id);
        for (inbox, node) in entries.drains.remove(place).pairs() {
            if let Err(error) = heard(&inbox.ask(|reply| Command::CancelDrain { node, reply })) {
                let cause = &error.source;
                tracing::error!("iothread {}: {error}: {cause}; requests fail", inbox.name());
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().expect("no holder of this lock panics")
    }
}

impl Entries {
    fn place(&self, id: DrainId) -> usize {
        let place = self.drains.iter().position(|drain| drain.id == id);
        place.expect("a drain is known until it is over")
    }
}

impl Drain {
    fn pairs(&self) -> impl Iterator<Item = DrainedNode> + '_ {
        let of = |inbox| self.nodes.iter().map(move |node| (Arc::clone(inbox), Arc::clone(node)));
        self.inboxes.iter().flat_map(of)
    }

    fn withdraw(&self) {
        for (inbox, node) in self.pairs() {
            // One that has ended has none.
            let _ended = inbox.call(move |engine| engine.withdraw_lane(&node)).recv();
        }
    }
}

fn begin_drain(inbox: &Inbox, node: &Arc<dyn Node>) -> mpsc::Receiver<()> {
    let node = Arc::clone(node);
    inbox.ask(|reply| Command::Drain { node, reply })
}

/// The answer of an iothread; one that has ended opens no lane and needs none.
fn heard(answer: &mpsc::Receiver<Result<(), LaneError>>) -> Result<(), LaneError> {
    answer.recv().unwrap_or(Ok(()))
}
