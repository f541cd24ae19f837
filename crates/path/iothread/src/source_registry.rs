//! The sources that are served in a process, and its iothreads: whoever watches, moves or drains them finds them here.
//!
//! Where it stands: every [`PlacedSource`] is entered when it is served, and every iothread when it
//! starts. Beside the request path: a request never comes here.
//!
//! Invariants: a drained section holds for all iothreads of the process, also for those that start while it lasts: they
//! enter it before anybody can place a source there. The sums of an export only grow as long as they are kept, whatever
//! sources come and go.
//! Threads: any control thread. What is drained is under a lock that is held while iothreads answer, which never wait for
//! it; what is served, and all that is read of it, under one that nobody holds for longer than a moment.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak, mpsc};
use std::time::{Duration, Instant};

use block::{Gauges, LaneError, Node};
use request_path::{LatencyTotals, SourceGauges, SourceTotals};

use crate::command::{Command, Inbox};
use crate::{Iothread, PlacedSource};

/// All sources that the iothreads of a process serve.
#[derive(Debug, Default)]
pub struct SourceRegistry {
    /// Held by whoever begins or ends a drain, and by an iothread that is entered. Taken before `entries`.
    drains: Mutex<Drains>,
    /// Held for a moment only.
    entries: Mutex<Entries>,
    /// How many drains there are now.
    draining: AtomicUsize,
}

/// What is known of a process.
#[derive(Debug, Default)]
struct Entries {
    sources: Vec<EnteredSource>,
    /// What sources that are gone have done, by export.
    kept: BTreeMap<String, KeptSums>,
    inboxes: Vec<Weak<Inbox>>,
}

/// What is drained now.
#[derive(Debug, Default)]
struct Drains {
    now: Vec<Drain>,
    /// How many there were.
    begun: u64,
}

/// A source that was entered, and what it does, which can be read when it is gone.
#[derive(Debug, Clone)]
struct EnteredSource {
    source: Weak<PlacedSource>,
    export: String,
    queue: u16,
    gauges: Gauges<SourceGauges>,
    /// Whether its export is still the one that it was entered for.
    is_of_export: bool,
}

/// What the sources of an export have done that are gone.
#[derive(Debug, Default, Clone)]
struct KeptSums {
    /// By the number of the source.
    queues: BTreeMap<u16, SourceTotals>,
    latency: LatencyTotals,
}

/// What the sources of an export have done since its sums are kept, those that are gone included.
#[derive(Debug, Default)]
pub struct ExportSums {
    /// Its sources, by number.
    pub queues: BTreeMap<u16, QueueSums>,
    /// How long the requests of all of them took.
    pub latency: LatencyTotals,
}

/// What all sources of one number have done, one after the other.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct QueueSums {
    /// What they have done.
    pub totals: SourceTotals,
    /// Requests of the present one that are not answered.
    pub in_flight: u64,
    /// The iothread that serves it, if there is one now.
    pub iothread: Option<String>,
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
        let sources: Vec<_> =
            self.lock().sources.iter().filter_map(|it| it.source.upgrade()).collect();
        sources.into_iter().filter(|source| source.is_served(None)).collect()
    }

    /// The sources that this iothread serves now.
    pub fn served_by(&self, iothread: &Arc<Iothread>) -> Vec<Arc<PlacedSource>> {
        let is_there = |source: &Arc<PlacedSource>| source.is_served(Some(iothread));
        self.all().into_iter().filter(is_there).collect()
    }

    /// From now on what sources of this export have done counts on when they are gone, for each number of a source.
    pub fn keep_sums(&self, export: &str) {
        self.lock().kept.entry(export.to_owned()).or_default();
    }

    /// Forgets what sources of this export have done: one that gets the same name begins at nothing.
    pub fn forget_sums(&self, export: &str) {
        let mut entries = self.lock();
        entries.kept.remove(export);
        let all = entries.sources.iter_mut().filter(|it| it.export == export);
        all.for_each(|it| it.is_of_export = false);
    }

    /// What the exports have done whose sums are kept, by name. Waits for no iothread.
    pub fn sums(&self) -> BTreeMap<String, ExportSums> {
        let mut entries = self.lock();
        entries.settle();
        let kept = entries.kept.clone();
        let entered = entries.sources.iter().filter(|it| it.is_of_export);
        let live: Vec<_> = entered.filter(|it| kept.contains_key(&it.export)).cloned().collect();
        drop(entries);
        let of = |kept: KeptSums| {
            let queue = |totals| QueueSums { totals, ..QueueSums::default() };
            let queues = kept.queues.into_iter().map(|(number, it)| (number, queue(it))).collect();
            ExportSums { queues, latency: kept.latency }
        };
        let mut sums: BTreeMap<String, ExportSums> =
            kept.into_iter().map(|(export, kept)| (export, of(kept))).collect();
        for EnteredSource { source, export, queue, gauges, .. } in live {
            let export = sums.get_mut(&export).expect("they were looked for");
            export.latency.add(&gauges.latency);
            let queue = export.queues.entry(queue).or_default();
            queue.totals = queue.totals.plus(SourceTotals::of(&gauges));
            // One that has ended meanwhile counts all the same.
            if let Some(iothread) = source.upgrade().and_then(|source| source.serving_name()) {
                queue.in_flight = gauges.in_flight.get();
                queue.iothread = Some(iothread);
            }
        }
        sums
    }

    /// Whether any node is drained now, or about to be. Waits for no iothread.
    pub fn is_draining(&self) -> bool {
        // Nothing else is read because of it: a drain and whoever moves meanwhile do not harm each other.
        self.draining.load(Ordering::Relaxed) > 0
    }

    /// Has every iothread turn once: what says that it has, or that it has ended. Does not wait.
    pub fn turn_all(&self) -> Vec<mpsc::Receiver<()>> {
        self.inboxes().iter().map(|inbox| inbox.call(|_| ())).collect()
    }

    /// Asks every iothread to turn that has done so since it was asked last. Does not wait.
    pub fn ask_to_turn(&self, now: Instant) {
        self.inboxes().iter().for_each(|inbox| inbox.ask_to_turn(now));
    }

    /// The iothreads that were asked to turn, and have not, with for how long.
    pub fn unanswered(&self, now: Instant) -> Vec<(String, Duration)> {
        let of = |inbox: Arc<Inbox>| (inbox.name().to_owned(), inbox.probe().unanswered(now));
        let all = self.inboxes().into_iter().map(of);
        all.filter(|(_, time)| !time.is_zero()).collect()
    }

    fn inboxes(&self) -> Vec<Arc<Inbox>> {
        self.lock().inboxes.iter().filter_map(Weak::upgrade).collect()
    }

    pub(crate) fn enter(&self, source: &Arc<PlacedSource>) {
        let mut entries = self.lock();
        entries.settle();
        let name = source.name();
        entries.sources.push(EnteredSource {
            source: Arc::downgrade(source),
            export: name.export.clone(),
            queue: name.queue,
            gauges: source.gauges().clone(),
            is_of_export: true,
        });
    }

    /// Enters an iothread, on which nothing was placed yet. What is drained now is drained there, too.
    pub(crate) fn enter_iothread(&self, inbox: &Arc<Inbox>) {
        let mut drains = self.drains();
        let mut entries = self.lock();
        entries.inboxes.retain(|inbox| inbox.strong_count() > 0);
        entries.inboxes.push(Arc::downgrade(inbox));
        drop(entries);
        for drain in &mut drains.now {
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
        let mut drains = self.drains();
        let id = DrainId(drains.begun);
        drains.begun += 1;
        self.draining.fetch_add(1, Ordering::Relaxed);
        let inboxes = self.inboxes();
        let drain = Drain { id, nodes, inboxes };
        let begin = |(inbox, node): DrainedNode| {
            let over = begin_drain(&inbox, &node);
            ((inbox, node), over)
        };
        let begun = drain.pairs().map(begin).collect();
        drains.now.push(drain);
        (id, begun)
    }

    /// Ends a drain: opens lanes again, on all iothreads or none. If that fails, all is drained as before.
    pub(crate) fn end_drain(&self, id: DrainId) -> Result<(), (String, LaneError)> {
        let mut drains = self.drains();
        let place = drains.place(id);
        let drain = &drains.now[place];
        for (inbox, node) in drain.pairs() {
            if let Err(error) = heard(&inbox.call(move |engine| engine.prepare_lane(&node))) {
                drain.withdraw();
                return Err((inbox.name().to_owned(), error));
            }
        }
        for (inbox, node) in drain.pairs() {
            inbox.call(move |engine| engine.admit(&node));
        }
        drains.now.remove(place);
        self.draining.fetch_sub(1, Ordering::Relaxed);
        Ok(())
    }

    /// Ends a drain that is given up, over or not.
    pub(crate) fn cancel_drain(&self, id: DrainId) {
        let mut drains = self.drains();
        let place = drains.place(id);
        for (inbox, node) in drains.now.remove(place).pairs() {
            if let Err(error) = heard(&inbox.ask(|reply| Command::CancelDrain { node, reply })) {
                let cause = &error.source;
                tracing::error!("iothread {}: {error}: {cause}; requests fail", inbox.name());
            }
        }
        self.draining.fetch_sub(1, Ordering::Relaxed);
    }

    fn drains(&self) -> MutexGuard<'_, Drains> {
        self.drains.lock().expect("no holder of this lock panics")
    }

    fn lock(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().expect("no holder of this lock panics")
    }
}

impl Entries {
    /// Takes sources out that are gone, and keeps what they have done if that is wanted.
    fn settle(&mut self) {
        let Self { sources, kept, .. } = self;
        sources.retain(|it| {
            let is_there = it.source.strong_count() > 0;
            let is_wanted = !is_there && it.is_of_export;
            if let Some(kept) = kept.get_mut(&it.export).filter(|_| is_wanted) {
                kept.latency.add(&it.gauges.latency);
                let queue = kept.queues.entry(it.queue).or_default();
                *queue = queue.plus(SourceTotals::of(&it.gauges));
            }
            is_there
        });
    }
}

impl Drains {
    fn place(&self, id: DrainId) -> usize {
        let place = self.now.iter().position(|drain| drain.id == id);
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
