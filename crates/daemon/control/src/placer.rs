//! Places the rings of exports on the iothreads of a pool while guests run.
//!
//! Where it stands: beside the request path. A thread for each pool reads gauges, asks the policy (`placement`), starts and
//! ends iothreads and moves rings. It is the only one that moves rings of a pool's exports.
//!
//! Invariants: what cannot be done (an iothread that does not start, a ring that stays or has stopped) is left out, and the
//! policy sees that in the next snapshot. While nothing is to be done the thread sleeps without a timer.
//! Threads: its own; the others only add and take away exports. Limits: the log has at most ten lines in ten seconds.
//! Not here: what is decided (`placement`), what happens to a ring in a move (`iothread`).

mod snapshot;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Instant;

use block::{Clock, LogRateLimit};
use host::chain_of;
use iothread::{IothreadPool, SourceMove, SourceRegistry, move_many};
use placement::{
    DiskId, IothreadSlot, NextLook, Note, Order, Placer, PoolSettings, RingMove, StorageId,
};

pub(crate) use self::snapshot::SnapshotReader;

/// A pool whose rings are placed.
#[derive(Debug)]
pub(crate) struct PlacedPool {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// What the thread of a pool has, and others too.
#[derive(Debug)]
struct Shared {
    pool: Arc<IothreadPool>,
    sources: Arc<SourceRegistry>,
    clock: Arc<dyn Clock>,
    exports: Mutex<Exports>,
    is_over: AtomicBool,
}

/// The exports of a pool.
#[derive(Debug, Default)]
struct Exports {
    all: Vec<PoolExport>,
    /// How many there were.
    count: u64,
}

/// An export of a pool, as the policy knows it.
#[derive(Debug, Clone)]
pub(crate) struct PoolExport {
    pub(crate) name: String,
    disk: DiskId,
    storage: StorageId,
    /// How many iothreads it has, without what is being tried; `None` if the policy has not seen it yet.
    pub(crate) iothreads: Option<usize>,
    /// What another iothread would bring at most, as a share.
    pub(crate) gain_max: Option<f64>,
    /// Whether its queues go to and fro now.
    pub(crate) is_trying: bool,
}

impl PlacedPool {
    /// Starts the thread that places rings. Call it on a thread behind the fences, if there are some.
    pub(crate) fn start(
        pool: IothreadPool,
        settings: PoolSettings,
        reader: SnapshotReader,
        (sources, clock): (&Arc<SourceRegistry>, &Arc<dyn Clock>),
    ) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            pool: Arc::new(pool),
            sources: Arc::clone(sources),
            clock: Arc::clone(clock),
            exports: Mutex::default(),
            is_over: AtomicBool::new(false),
        });
        let theirs = Arc::clone(&shared);
        let run = move || PlacerThread::new(theirs, settings, reader).run();
        let thread = std::thread::Builder::new().name("placer".to_owned()).spawn(run)?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// The iothreads.
    pub(crate) fn pool(&self) -> &Arc<IothreadPool> {
        &self.shared.pool
    }

    /// Places the rings of an export from now on. Exports with the same number of `storage`, if that is known, stand on
    /// the same storage.
    pub(crate) fn add(&self, export: &str, storage: Option<u64>) {
        let mut exports = self.shared.exports();
        let disk = DiskId(exports.count);
        exports.count += 1;
        // Those of which nothing is known have some of their own.
        let storage = StorageId(storage.unwrap_or(u64::MAX - disk.0));
        let (name, iothreads, gain_max, is_trying) = (export.to_owned(), None, None, false);
        exports.all.push(PoolExport { name, disk, storage, iothreads, gain_max, is_trying });
        drop(exports);
        self.shared.pool.alarm().call();
    }

    /// The exports as they are placed now.
    pub(crate) fn exports(&self) -> Vec<PoolExport> {
        self.shared.exports().all.clone()
    }

    /// The export is gone.
    pub(crate) fn remove(&self, export: &str) {
        self.shared.exports().all.retain(|it| it.name != export);
    }
}

impl Drop for PlacedPool {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
        self.shared.pool.alarm().call();
        if let Some(thread) = self.thread.take() {
            thread.join().expect("a panic in a thread ends the process");
        }
    }
}

impl Shared {
    fn exports(&self) -> MutexGuard<'_, Exports> {
        self.exports.lock().expect("no holder of this lock panics")
    }
}

/// The thread of a pool.
struct PlacerThread {
    shared: Arc<Shared>,
    placer: Placer,
    reader: SnapshotReader,
    begun: Instant,
    rate: LogRateLimit,
}

impl PlacerThread {
    fn new(shared: Arc<Shared>, settings: PoolSettings, reader: SnapshotReader) -> Self {
        let begun = shared.clock.now();
        Self { shared, placer: Placer::new(settings), reader, begun, rate: LogRateLimit::default() }
    }

    fn run(mut self) {
        while !self.shared.is_over.load(Ordering::Relaxed) {
            let exports = self.shared.exports().all.clone();
            let now = self.shared.clock.now();
            let Shared { pool, sources, .. } = &*self.shared;
            let snapshot = self.reader.read(pool, &sources.all(), &exports, now);
            let decision = self.placer.decide(snapshot, now.saturating_duration_since(self.begun));
            for order in decision.orders {
                self.carry_out(order, &exports);
            }
            for note in &decision.notes {
                self.say(note, &exports);
            }
            self.publish();
            match decision.next {
                NextLook::After(time) => self.shared.pool.alarm().sleep_for(time),
                NextLook::Parked => self.shared.pool.alarm().sleep(),
            }
        }
    }

    /// Shows how the exports are placed.
    fn publish(&self) {
        for export in &mut self.shared.exports().all {
            export.iothreads = self.placer.iothreads_of(export.disk);
            export.gain_max = self.placer.gain_max_of(export.disk);
            export.is_trying = self.placer.is_trying(export.disk);
        }
    }

    fn carry_out(&self, order: Order, exports: &[PoolExport]) {
        let pool = &self.shared.pool;
        match order {
            Order::Start(IothreadSlot(slot)) => {
                if let Err(error) = pool.start(usize::from(slot)) {
                    tracing::error!("pool {}: {}", pool.name(), chain_of(&error));
                }
            }
            Order::Move(moves) => self.move_rings(&moves, exports),
            Order::End(IothreadSlot(slot)) => pool.end(usize::from(slot)),
        }
    }

    fn move_rings(&self, moves: &[RingMove], exports: &[PoolExport]) {
        let (sources, running) = (self.shared.sources.all(), self.shared.pool.running());
        let find = |ring: &RingMove| {
            let export = exports.iter().find(|it| it.disk == ring.disk)?;
            let is_meant = |name: &iothread::SourceName| {
                name.export == export.name && name.queue == ring.queue
            };
            let source = sources.iter().find(|it| is_meant(it.name()))?;
            let (_, to) = running.iter().find(|(slot, _)| *slot == usize::from(ring.to.0))?;
            Some(SourceMove { source: Arc::clone(source), to: Arc::clone(to) })
        };
        let found: Vec<_> = moves.iter().filter_map(find).collect();
        for (it, moved) in found.iter().zip(move_many(&found)) {
            if let Err(error) = moved {
                tracing::debug!("{}: not moved: {}", it.source.name(), chain_of(&error));
            }
        }
    }

    fn say(&mut self, note: &Note, exports: &[PoolExport]) {
        let name = |disk: DiskId| {
            exports.iter().find(|it| it.disk == disk).map_or("?", |it| it.name.as_str())
        };
        let percent = |share: f64| share * 100.0;
        let line = match note {
            Note::Kept { disk, from, to, gain, .. } => {
                format!(
                    "export {}: {to} iothreads (was {from}): {:+.0} %",
                    name(*disk),
                    percent(*gain)
                )
            }
            Note::Refused { disk, from, to, gain } => {
                return tracing::debug!(
                    "export {}: {to} iothreads instead of {from} would be {:+.0} %",
                    name(*disk),
                    percent(*gain)
                );
            }
            Note::QueueFillsIothread { disk, queue } => format!(
                "export {}: queue {queue} alone fills an iothread; more queues in the guest would help",
                name(*disk)
            ),
            Note::NoCpuFree { disk, gain_max } => format!(
                "export {}: more iothreads would help (+{:.0} % at most), but no CPU is free",
                name(*disk),
                percent(*gain_max)
            ),
        };
        if self.rate.admit(self.shared.clock.now()).is_some() {
            tracing::info!("{line}");
        }
    }
}
