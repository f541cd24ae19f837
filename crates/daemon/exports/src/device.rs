//! An export as the device of a vhost-user session: places rings on iothreads.
//!
//! Where it stands in the life of a request: before and after it. It makes a ring a source, puts
//! it on the next iothread and takes it back when the session stops it.
//!
//! Threads: belongs to the session's thread.

use std::error::Error;
use std::fmt;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use block::{Clock, DiskSize, Durability, Node, Rights};
use graph::Activity;
use host::chain_of;
use iothread::{Iothread, IothreadPool, PlacedFrontEnd, SourceName, SourceObserver};
use kernel_io::{Notifier, OpenFile};
use request_path::FrontEndSource;
use vhost_user::{
    BackendChannel, DescriptorCloseRisk, Device, DeviceError, QueueIndex, RingStart, StartResult,
};
use virtio::{BlkConfig, BlkRules, CacheMode, Features, MemoryRules, Ring, RingBase, RingDirtyLog};
use virtio_blk::{BlkRing, BlkRingSetup};

use crate::activation::{ActivationResult, ExportClaim, SessionEndWait};
use crate::client_log::ClientLog;
use crate::connection::Connection;
use crate::descriptor_check::{self, DescriptorCheck, DescriptorCheckError, ExportDescriptorCheck};
use crate::export_error::ExportError;
use crate::export_size::ExportSize;
use crate::queue_statistics::QueueStatistics;
use crate::takeover_pause::TakeoverPauseStart;
use crate::unshared_memory::{UnsharedMemoryRate, UnsharedMemoryWarning};

/// A disk as an export offers it, shared by all its sessions: node, configuration, iothreads, size, cache mode.
#[derive(Debug)]
pub struct ExportedDisk {
    /// Its name.
    pub id: String,
    /// The top of the graph below it.
    pub node: Arc<dyn Node>,
    /// What its front end may share.
    pub(crate) memory_rules: Arc<MemoryRules>,
    /// How many descriptors a session of its may hold.
    pub(crate) descriptors_max: AtomicUsize,
    /// Who looks at the descriptors that a front end sends.
    pub(crate) descriptor_check: ExportDescriptorCheck,
    /// What it holds of the node, and when.
    pub claim: ExportClaim,
    /// As it was when the export was made; of the size, see `size`.
    pub config: BlkConfig,
    /// How large the disk is now, and who is told of that.
    pub size: ExportSize,
    /// The cache mode now; `config` has the first one. It stays when a front end leaves: one that
    /// comes back says nothing of it, and its driver relies on it.
    pub cache: Mutex<CacheMode>,
    /// Who serves the rings.
    iothreads: Mutex<ServingIothreads>,
    /// Whether its guest is being migrated.
    pub migration: Arc<MigrationFlag>,
    /// Rung when another process wants to go on with the export, and readable until that is answered.
    pub(crate) freeze_notifier: Notifier,
    /// Since when its front end waits, if it has to come back after a takeover.
    pub resumption: Mutex<Option<TakeoverPauseStart>>,
    /// How often it is said that a guest's memory is not shared.
    pub(crate) unshared: Arc<UnsharedMemoryRate>,
}

/// Whether the guest of an export is being migrated: what is written is logged, and its queues stay where they are.
#[derive(Debug, Default)]
pub struct MigrationFlag(AtomicBool);

impl MigrationFlag {
    fn set(&self, is_migrated: bool) {
        // Whoever moves a queue because it sees this late does no harm.
        self.0.store(is_migrated, Ordering::Relaxed);
    }

    /// Whether it is so now.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// The iothreads that serve the rings of an export.
#[derive(Debug, Clone)]
pub enum ServingIothreads {
    /// These, round-robin; never empty.
    Named(Vec<Arc<Iothread>>),
    /// Those of a pool. A ring begins where the pool says, and is moved.
    Pool(Arc<IothreadPool>),
}

impl ServingIothreads {
    /// Where a queue begins.
    pub fn of_queue(&self, queue: u16) -> Arc<Iothread> {
        match self {
            Self::Named(all) => Arc::clone(&all[usize::from(queue) % all.len()]),
            Self::Pool(pool) => pool.home(),
        }
    }
}

impl fmt::Display for ServingIothreads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Named(all) => {
                let names: Vec<&str> = all.iter().map(|iothread| iothread.name()).collect();
                f.write_str(&names.join(", "))
            }
            Self::Pool(pool) => write!(f, "pool {}", pool.name()),
        }
    }
}

/// What a disk is offered with.
#[derive(Debug)]
pub struct DiskParts {
    /// The top of the graph below the export.
    pub node: Arc<dyn Node>,
    /// What a guest is told ([`ExportOptions::blk_config`](crate::export_options::ExportOptions::blk_config)).
    pub config: BlkConfig,
    /// Whether the node is held from the start.
    pub activity: Activity,
    /// The files below the node.
    pub files: Vec<Arc<OpenFile>>,
    /// Who serves the rings.
    pub iothreads: ServingIothreads,
    /// How many bytes a session may map.
    pub memory_bytes_max: u64,
    /// What waits and log lines go by.
    pub clock: Arc<dyn Clock>,
}

impl ExportedDisk {
    /// A disk that is not claimed and not offered yet. Says if there is nothing on it.
    pub fn new(
        id: &str,
        parts: DiskParts,
        check: &Arc<DescriptorCheck>,
    ) -> Result<Self, ExportError> {
        let DiskParts { node, config, activity, files, iothreads, memory_bytes_max, clock } = parts;
        let size = ExportSize::new(id, &node, config.logical_block, files);
        size.warn_if_empty();
        Ok(Self {
            id: id.to_owned(),
            memory_rules: Arc::new(MemoryRules::new(
                Arc::clone(check.memory_files()),
                memory_bytes_max,
            )),
            descriptors_max: AtomicUsize::new(usize::MAX),
            descriptor_check: check.for_export(),
            claim: ExportClaim::new(id, &node, Rights::of_user(config.access), activity, &clock),
            node,
            config,
            size,
            cache: Mutex::new(config.cache),
            iothreads: Mutex::new(iothreads),
            migration: Arc::default(),
            freeze_notifier: Notifier::new().map_err(|source| ExportError::of(id, source))?,
            resumption: Mutex::new(None),
            unshared: Arc::new(UnsharedMemoryRate::new(clock)),
        })
    }

    /// What it claims of its node.
    pub fn rights(&self) -> Rights {
        Rights::of_user(self.config.access)
    }

    /// Who serves the rings that are started from now on.
    pub fn iothreads(&self) -> ServingIothreads {
        self.iothreads.lock().expect("no holder of this lock panics").clone()
    }

    /// Rings that are started from now on are served by these. Those that run stay where they are.
    pub fn set_iothreads(&self, iothreads: ServingIothreads) {
        *self.iothreads.lock().expect("no holder of this lock panics") = iothreads;
    }

    /// The front end is served again: says how long that took, once.
    fn log_takeover_pause(&self) {
        let resumption = self.resumption.lock().expect("no holder of this lock panics").take();
        if let Some(resumption) = resumption {
            resumption.tell(&self.id);
        }
    }
}

/// The vhost-user-blk device of one session: places its rings on iothreads and stops them.
#[derive(Debug)]
pub(crate) struct BlkDevice {
    offer: Arc<ExportedDisk>,
    session: Arc<Connection>,
    statistics: Arc<Mutex<QueueStatistics>>,
    client_log: Arc<ClientLog>,
    unshared: Arc<UnsharedMemoryWarning>,
    placed: Vec<Option<PlacedFrontEnd<BlkRing>>>,
    /// Where answers about descriptors arrive, once the front end has sent any.
    answers: Option<OwnedFd>,
}

impl BlkDevice {
    /// The device of a session on that connection.
    pub(crate) fn new(
        offer: Arc<ExportedDisk>,
        session: Arc<Connection>,
        statistics: Arc<Mutex<QueueStatistics>>,
        client_log: Arc<ClientLog>,
    ) -> Self {
        offer.size.reset_front_end();
        let unshared = Arc::new(UnsharedMemoryWarning::new(&offer.id, &offer.unshared));
        Self { offer, session, statistics, client_log, unshared, placed: Vec::new(), answers: None }
    }

    fn rules(&self, features: Features) -> BlkRules {
        let config = &self.offer.config;
        BlkRules {
            size: self.offer.size.capacity().get(),
            access: config.access,
            durability: self.cache_mode().durability(features),
            discard: config.discard,
            write_zeroes: config.write_zeroes,
        }
    }

    fn place(
        &self,
        queue: QueueIndex,
        start: RingStart,
    ) -> Result<PlacedFrontEnd<BlkRing>, Box<dyn Error + Send + Sync>> {
        let (rules, setup) = (self.rules(start.features), start.setup);
        // The mailbox needs somebody to wake before the ring is placed.
        let nobody = Arc::new(Notifier::new()?);
        let mut ring = match &start.inflight {
            Some(inflight) => Ring::tracked(start.memory, setup, inflight)?,
            None => Ring::new(start.memory, setup)?,
        };
        let inherited = ring.is_inherited().then(|| ring.pending());
        self.offer.migration.set(start.log.is_some());
        ring.set_log(start.log);
        let front = BlkRing::new(BlkRingSetup {
            ring,
            rules,
            capacity: Arc::clone(self.offer.size.capacity()),
            serial: self.offer.id.clone(),
            kick: start.kick,
            call: start.call,
            error: start.error,
        });
        let source = FrontEndSource::new(front, vec![Arc::clone(&self.offer.node)], nobody);
        let iothread = &self.offer.iothreads().of_queue(queue.0);
        let watcher = SessionEnder {
            queue,
            session: Arc::clone(&self.session),
            unshared: Arc::clone(&self.unshared),
        };
        let name = SourceName { export: self.offer.id.clone(), queue: queue.0 };
        let placed = PlacedFrontEnd::on(iothread, name, source, Arc::new(watcher))
            // The source goes with the session.
            .map_err(|refusal| Box::new(refusal.source))?;
        let cache = match self.cache_mode().durability(start.features) {
            Durability::Cached => CacheMode::WriteBack,
            Durability::Stable => CacheMode::WriteThrough,
        };
        self.client_log.started(queue, &setup, cache, inherited);
        Ok(placed)
    }

    fn ask_about_descriptors(
        &mut self,
        of: BorrowedFd<'_>,
    ) -> Result<DescriptorCloseRisk, DescriptorCheckError> {
        let answers = match self.answers.take() {
            Some(answers) => answers,
            None => descriptor_check::answers()?,
        };
        self.offer.descriptor_check.look(of, self.answers.insert(answers))
    }

    fn serves_any(&self) -> bool {
        self.placed.iter().any(Option::is_some)
    }

    fn slot(&mut self, queue: QueueIndex) -> &mut Option<PlacedFrontEnd<BlkRing>> {
        let place = usize::from(queue.0);
        if place >= self.placed.len() {
            self.placed.resize_with(place + 1, || None);
        }
        &mut self.placed[place]
    }
}

impl Device for BlkDevice {
    fn features(&self) -> Features {
        self.client_log.has_asked();
        self.offer.config.features()
    }

    fn queues_max(&self) -> u16 {
        self.offer.config.queues
    }

    fn config(&self, chosen: Features) -> Vec<u8> {
        let cache = self.cache_mode().shown_to(chosen);
        let size = self.offer.size.answer();
        BlkConfig { size, cache, ..self.offer.config }.to_bytes().to_vec()
    }

    fn descriptors_max(&self) -> usize {
        // Stored before the export has a thread.
        self.offer.descriptors_max.load(Ordering::Relaxed)
    }

    fn inspect_descriptors(
        &mut self,
        connection: BorrowedFd<'_>,
    ) -> Result<DescriptorCloseRisk, DeviceError> {
        let answered = self.ask_about_descriptors(connection);
        answered.map_err(|error| DeviceError::Descriptors(Box::new(error)))
    }

    fn memory_rules(&self) -> &Arc<MemoryRules> {
        &self.offer.memory_rules
    }

    fn set_channel(&mut self, channel: Arc<BackendChannel>) {
        self.offer.size.set_channel(channel);
    }

    fn announced_size(&self) -> Option<DiskSize> {
        self.offer.size.announced()
    }

    fn set_announced_size(&mut self, size: DiskSize) {
        self.offer.size.was_told(size);
    }

    fn no_memory_shared(&mut self, queue: QueueIndex) {
        self.unshared.no_memory(queue);
    }

    fn cache_mode(&self) -> CacheMode {
        *self.offer.cache.lock().expect("no holder of this lock panics")
    }

    fn set_cache_mode(&mut self, mode: CacheMode) -> Result<(), DeviceError> {
        // Also if the flush fails: what is stricter than a driver believes does no harm.
        *self.offer.cache.lock().expect("no holder of this lock panics") = mode;
        match mode {
            CacheMode::WriteBack => {
                tracing::debug!("export {}: write-back", self.offer.id);
                Ok(())
            }
            CacheMode::WriteThrough => {
                tracing::debug!("export {}: write-through", self.offer.id);
                // From now on the driver flushes no more, not even what it wrote before.
                let flushed = self.offer.node.flush();
                flushed.map_err(|error| DeviceError::CacheMode(error.into()))
            }
        }
    }

    fn start(&mut self, queue: QueueIndex, start: RingStart) -> Result<StartResult, DeviceError> {
        let failed = |source| DeviceError::Start { queue, source };
        if !self.serves_any() {
            let ExportedDisk { claim, freeze_notifier, .. } = &*self.offer;
            let while_ours = &SessionEndWait { session: &self.session, freeze_notifier };
            match claim.begin(while_ours).map_err(|it| failed(Box::new(it)))? {
                ActivationResult::Held => {}
                ActivationResult::Postponed => return Ok(StartResult::Postponed),
            }
            // What a front end that comes back was told, it was told by somebody else.
            self.offer.size.review();
        }
        match self.place(queue, start) {
            Ok(placed) => {
                *self.slot(queue) = Some(placed);
                self.offer.log_takeover_pause();
                Ok(StartResult::Served)
            }
            // The session ends, and rests first.
            Err(source) => Err(failed(source)),
        }
    }

    fn stop(&mut self, queue: QueueIndex) -> Result<RingBase, DeviceError> {
        let placed = self.slot(queue).take().expect("a session stops only what it has started");
        let iothread = placed.iothread_name();
        let source = placed.stop();
        self.client_log.stopped(queue);
        let mut statistics = self.statistics.lock().expect("no holder of this lock panics");
        statistics.add(queue, &iothread, source.counters());
        drop(statistics);
        Ok(source.front().base())
    }

    /// Gives the node back, if it is to be inactive now.
    fn rings_stopped(&mut self) -> Result<(), DeviceError> {
        assert!(!self.serves_any(), "a session that rests has stopped its rings");
        let ended = self.offer.claim.end();
        ended.map_err(|error| DeviceError::Rest(Box::new(error)))
    }

    fn set_call(&mut self, queue: QueueIndex, call: Option<OwnedFd>) {
        if let Some(placed) = self.slot(queue) {
            placed.post(|front, port| front.set_call(call, port));
        }
    }

    fn set_log(&mut self, queue: QueueIndex, log: Option<RingDirtyLog>) {
        self.offer.migration.set(log.is_some());
        if let Some(placed) = self.slot(queue) {
            // Of a ring that somebody has stopped nothing is written any more.
            let _stopped = placed.visit(|front, port| front.set_log(log, port));
        }
    }
}

impl Drop for BlkDevice {
    fn drop(&mut self) {
        self.offer.migration.set(false);
        // Its front end hears nothing any more.
        self.offer.size.reset_front_end();
        self.offer.size.warn_if_removed();
    }
}

/// Ends a session whose guest broke the rules of a ring. The iothread only leaves the reason and
/// hangs up; the session's thread notices, stops all rings and says why.
#[derive(Debug)]
struct SessionEnder {
    queue: QueueIndex,
    session: Arc<Connection>,
    unshared: Arc<UnsharedMemoryWarning>,
}

impl SourceObserver for SessionEnder {
    fn broken(&self, fault: &(dyn Error + 'static)) {
        self.session.end_because(format!("queue {}: {}", self.queue, chain_of(fault)));
    }

    fn kicked_while_empty(&self) {
        self.unshared.no_request(self.queue);
    }
}
