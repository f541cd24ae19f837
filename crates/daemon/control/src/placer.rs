//! Places the rings of exports on the iothreads of a pool while guests run.
//!
//! Where it stands: beside the request path. A thread for each pool reads gauges, asks the policy (`placement`), starts and
//! ends iothreads and moves rings. It is the only one that moves rings of a pool's exports.
//!
//! Invariants: what cannot be done (an iothread that does not start, a ring that stays or has stopped) is left out, and the
//! policy sees that in the next snapshot. Rings of an export whose guest is migrated stay where they are, and all rings
//! while a node is drained. While nothing is to be done the thread sleeps without a timer.
//! Threads: its own; the others only add and take away exports. Limits: the log has at most ten lines in ten seconds.
//! Not here: what is decided (`placement`), what happens to a ring in a move (`iothread`).

#[cfg(feature = "fault-points")]
mod random_moves;
mod snapshot;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Instant;

use block::{Clock, LogRateLimit};
use exports::{ExportOptions, ExportedDisk, MigrationFlag, QueuePin};
use graph::PoolMode;
use host::chain_of;
use iothread::{IothreadPool, SourceMove, SourceRegistry, move_many};
use placement::{
    DiskId, DiskMode, IothreadSlot, NextLook, Note, Order, Placer, PoolSettings, RingMove,
    Snapshot, StorageId,
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
    mode: Mutex<PoolMode>,
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
    pins: Arc<[QueuePin]>,
    migration: Arc<MigrationFlag>,
    /// How many iothreads it has, without what is being tried; `None` if the policy has not seen it yet.
    pub(crate) iothreads: Option<usize>,
    /// What another iothread would bring at most, as a share.
    pub(crate) gain_max: Option<f64>,
    /// Whether its queues go to and fro now.
    pub(crate) is_trying: bool,
    /// On how many iothreads that is tried, and what it is expected to change, as a share.
    pub(crate) trial: Option<(usize, f64)>,
    /// What was said of its placement last.
    pub(crate) note: Option<Arc<str>>,
}

impl PlacedPool {
    /// Starts the thread that places rings. Call it on a thread behind the fences, if there are some.
    pub(crate) fn start(
        pool: IothreadPool,
        (settings, mode): (PoolSettings, PoolMode),
        reader: SnapshotReader,
        (sources, clock): (&Arc<SourceRegistry>, &Arc<dyn Clock>),
    ) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            pool: Arc::new(pool),
            sources: Arc::clone(sources),
            clock: Arc::clone(clock),
            exports: Mutex::default(),
            mode: Mutex::new(mode),
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
    pub(crate) fn add(&self, options: &ExportOptions, served: &ExportedDisk, storage: Option<u64>) {
        let mut exports = self.shared.exports();
        let disk = DiskId(exports.count);
        exports.count += 1;
        // Those of which nothing is known have some of their own.
        let storage = StorageId(storage.unwrap_or(u64::MAX - disk.0));
        exports.all.push(PoolExport {
            name: options.id.clone(),
            disk,
            storage,
            pins: options.pins().into(),
            migration: Arc::clone(&served.migration),
            iothreads: None,
            gain_max: None,
            is_trying: false,
            trial: None,
            note: None,
        });
        drop(exports);
        self.shared.pool.alarm().call();
    }

    /// Whether its rings are moved as the load asks.
    pub(crate) fn mode(&self) -> PoolMode {
        *self.shared.mode()
    }

    /// From now on its rings are moved as the load asks, or stay where they are. What is being tried is taken back.
    pub(crate) fn set_mode(&self, mode: PoolMode) {
        *self.shared.mode() = mode;
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

impl PoolExport {
    /// The iothread that is to serve a queue whatever the load, if one is.
    fn pin_of(&self, queue: u16) -> Option<IothreadSlot> {
        let pin = self.pins.iter().find(|pin| pin.queue == queue)?;
        Some(IothreadSlot(pin.iothread))
    }
}

impl Shared {
    /// What may be done with the rings of an export now.
    fn mode_of(&self, export: &PoolExport) -> DiskMode {
        if self.sources.is_draining() || export.migration.is_set() {
            DiskMode::Suspended
        } else if *self.mode() == PoolMode::Frozen {
            DiskMode::Frozen
        } else {
            DiskMode::Auto
        }
    }

    fn mode(&self) -> MutexGuard<'_, PoolMode> {
        self.mode.lock().expect("no holder of this lock panics")
    }

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
    #[cfg(feature = "fault-points")]
    random: Option<random_moves::RandomMoves>,
}

impl PlacerThread {
    fn new(shared: Arc<Shared>, settings: PoolSettings, reader: SnapshotReader) -> Self {
        let begun = shared.clock.now();
        Self {
            shared,
            placer: Placer::new(settings),
            reader,
            begun,
            rate: LogRateLimit::default(),
            #[cfg(feature = "fault-points")]
            random: random_moves::RandomMoves::from_environment(),
        }
    }

    fn run(mut self) {
        while !self.shared.is_over.load(Ordering::Relaxed) {
            let exports = self.shared.exports().all.clone();
            let now = self.shared.clock.now();
            let Shared { pool, sources, .. } = &*self.shared;
            let mode = |export: &PoolExport| self.shared.mode_of(export);
            let snapshot = self.reader.read(pool, &sources.all(), &exports, (mode, now));
            for order in pinned(&snapshot, &exports) {
                self.carry_out(order, &exports);
            }
            #[cfg(feature = "fault-points")]
            if self.move_at_random(&snapshot, &exports) {
                continue;
            }
            let decision = self.placer.decide(snapshot, now.saturating_duration_since(self.begun));
            for order in decision.orders {
                self.carry_out(order, &exports);
            }
            for note in &decision.notes {
                self.say(note);
            }
            self.publish();
            self.set_home(usize::from(self.placer.home_of_new_disk().0));
            match decision.next {
                NextLook::After(time) => self.shared.pool.alarm().sleep_for(time),
                NextLook::Parked => self.shared.pool.alarm().sleep(),
            }
        }
    }

    /// If tests ask for that.
    #[cfg(feature = "fault-points")]
    fn move_at_random(&mut self, snapshot: &Snapshot, exports: &[PoolExport]) -> bool {
        let Some(mut random) = self.random.take() else { return false };
        let orders = random.orders(snapshot, self.shared.pool.slots());
        random.note(orders.into_iter().map(|order| self.carry_out(order, exports)).sum());
        if let Some(home) = random.home(self.shared.pool.slots()) {
            self.set_home(home);
        }
        self.shared.pool.alarm().sleep_for(random.pause());
        self.random = Some(random);
        true
    }

    /// Has the rings of new disks begin there.
    fn set_home(&self, slot: usize) {
        if let Err(error) = self.shared.pool.set_home(slot) {
            tracing::error!("pool {}: {}", self.shared.pool.name(), chain_of(&error));
        }
    }

    /// Shows how the exports are placed.
    fn publish(&self) {
        for export in &mut self.shared.exports().all {
            export.iothreads = self.placer.iothreads_of(export.disk);
            export.gain_max = self.placer.gain_max_of(export.disk);
            export.is_trying = self.placer.is_trying(export.disk);
            export.trial = self.placer.trial_of(export.disk);
        }
    }

    /// Returns how many rings were moved.
    fn carry_out(&self, order: Order, exports: &[PoolExport]) -> u64 {
        let pool = &self.shared.pool;
        match order {
            Order::Start(IothreadSlot(slot)) => {
                if let Err(error) = pool.start(usize::from(slot)) {
                    tracing::error!("pool {}: {}", pool.name(), chain_of(&error));
                }
                0
            }
            Order::Move(moves) => self.move_rings(&moves, exports),
            Order::End(IothreadSlot(slot)) => {
                pool.end(usize::from(slot));
                0
            }
        }
    }

    /// Moves what can be moved. Returns how many rings that were.
    fn move_rings(&self, moves: &[RingMove], exports: &[PoolExport]) -> u64 {
        let (sources, running) = (self.shared.sources.all(), self.shared.pool.running());
        let find = |ring: &RingMove| {
            let export = exports.iter().find(|it| it.disk == ring.disk)?;
            if self.shared.mode_of(export) == DiskMode::Suspended {
                return None;
            }
            let is_meant = |name: &iothread::SourceName| {
                name.export == export.name && name.queue == ring.queue
            };
            let source = sources.iter().find(|it| is_meant(it.name()))?;
            let (_, to) = running.iter().find(|(slot, _)| *slot == usize::from(ring.to.0))?;
            Some(SourceMove { source: Arc::clone(source), to: Arc::clone(to) })
        };
        let found: Vec<_> = moves.iter().filter_map(find).collect();
        let mut count = 0;
        for (it, moved) in found.iter().zip(move_many(&found)) {
            match moved {
                Ok(()) => count += 1,
                Err(error) => {
                    tracing::debug!("{}: not moved: {}", it.source.name(), chain_of(&error));
                }
            }
        }
        count
    }

    /// Says it in the log, and to whoever asks how the disk is placed.
    fn say(&mut self, note: &Note) {
        let (disk, sentence) = sentence(note);
        let mut exports = self.shared.exports();
        let Some(export) = exports.all.iter_mut().find(|it| it.disk == disk) else { return };
        export.note = Some(sentence.as_str().into());
        let line = format!("export {}: {sentence}", export.name);
        drop(exports);
        if let Note::Refused { .. } = note {
            tracing::debug!("{line}");
        } else if self.rate.admit(self.shared.clock.now()).is_some() {
            tracing::info!("{line}");
        }
    }
}

/// What is said of which disk.
fn sentence(note: &Note) -> (DiskId, String) {
    let percent = |share: f64| share * 100.0;
    match note {
        Note::Kept { disk, from, to, gain, .. } => {
            (*disk, format!("{to} iothreads (was {from}): {:+.0} %", percent(*gain)))
        }
        Note::Refused { disk, from, to, gain } => {
            (*disk, format!("{to} iothreads instead of {from} would be {:+.0} %", percent(*gain)))
        }
        Note::QueueFillsIothread { disk, queue } => {
            let text = "alone fills an iothread; more queues in the guest would help";
            (*disk, format!("queue {queue} {text}"))
        }
        Note::NoCpuFree { disk, gain_max } => {
            let share = percent(*gain_max);
            let text =
                format!("more iothreads would help (+{share:.0} % at most), but no CPU is free");
            (*disk, text)
        }
    }
}

/// What puts pinned rings where they belong.
fn pinned(snapshot: &Snapshot, exports: &[PoolExport]) -> Vec<Order> {
    let mut moves = Vec::new();
    for disk in &snapshot.disks {
        let Some(export) = exports.iter().find(|it| it.disk == disk.id) else { continue };
        let misplaced = disk.rings.iter().filter_map(|ring| {
            let to = export.pin_of(ring.queue).filter(|to| *to != ring.iothread)?;
            Some(RingMove { disk: disk.id, queue: ring.queue, to })
        });
        moves.extend(misplaced);
    }
    with_starts(moves, snapshot)
}

/// Moves, after the starts of the iothreads that they lead to.
fn with_starts(moves: Vec<RingMove>, snapshot: &Snapshot) -> Vec<Order> {
    let runs = |slot: &IothreadSlot| snapshot.iothreads.iter().any(|it| it.slot == *slot);
    let missing: BTreeSet<IothreadSlot> =
        moves.iter().map(|it| it.to).filter(|slot| !runs(slot)).collect();
    let mut orders: Vec<Order> = missing.into_iter().map(Order::Start).collect();
    orders.extend((!moves.is_empty()).then_some(Order::Move(moves)));
    orders
}
