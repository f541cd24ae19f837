//! An export as the device of a vhost-user session: places rings on iothreads.
//!
//! Where it stands in the life of a request: before and after it. It makes a ring a source, puts
//! it on the next iothread and takes it back when the session stops it.
//!
//! Threads: belongs to the session's thread.

use std::error::Error;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use block::{Clock, DiskSize, Durability, Node};
use host::chain_of;
use iothread::{PlacedFrontEnd, SourceName, SourceObserver};
use kernel_io::Notifier;
use request_path::FrontEndSource;
use vhost_user::{
    BackendChannel, DescriptorCloseRisk, Device, DeviceError, QueueIndex, RingStart, StartResult,
};
use virtio::{BlkConfig, BlkRules, CacheMode, Features, MemoryRules, Ring, RingBase, RingDirtyLog};
use virtio_blk::{BlkRing, BlkRingSetup};

use crate::activation::{ActivationResult, SessionEndWait};
use crate::client_log::ClientLog;
use crate::connection::Connection;
use crate::descriptor_check::{self, DescriptorCheck, DescriptorCheckError, ExportDescriptorCheck};
use crate::export_error::ExportError;
use crate::export_options::ExportOptions;
use crate::exported_disk::ExportedDisk;
use crate::queue_statistics::QueueStatistics;
use crate::takeover_pause::TakeoverPauseStart;
use crate::unshared_memory::{UnsharedMemoryRate, UnsharedMemoryWarning};
use crate::vhost_user_blk_options::{QUEUES_MAX, VhostUserBlkOptions};

/// A disk as a vhost-user-blk export offers it, shared by all its sessions: what virtio and vhost-user add to it.
#[derive(Debug)]
pub struct VhostUserBlkDisk {
    /// The disk itself.
    pub disk: Arc<ExportedDisk>,
    /// As it was when the export was made; of the size, see [`ExportedDisk::size`].
    pub config: BlkConfig,
    /// The cache mode now; `config` has the first one. It stays when a front end leaves: one that
    /// comes back says nothing of it, and its driver relies on it.
    pub cache: Mutex<CacheMode>,
    /// Since when its front end waits, if it has to come back after a takeover.
    pub resumption: Mutex<Option<TakeoverPauseStart>>,
    /// What its front end may share.
    pub(crate) memory_rules: Arc<MemoryRules>,
    /// How many descriptors a session of its may hold.
    pub(crate) descriptors_max: AtomicUsize,
    /// Who looks at the descriptors that a front end sends.
    pub(crate) descriptor_check: ExportDescriptorCheck,
    /// Rung when another process wants to go on with the export, and readable until that is answered.
    pub(crate) freeze_notifier: Notifier,
    /// How often it is said that a guest's memory is not shared.
    pub(crate) unshared: Arc<UnsharedMemoryRate>,
}

impl VhostUserBlkDisk {
    /// The same disk with what a guest is told of it. A session may map so many bytes.
    pub fn new(
        disk: Arc<ExportedDisk>,
        config: BlkConfig,
        memory_bytes_max: u64,
        check: &Arc<DescriptorCheck>,
        clock: &Arc<dyn Clock>,
    ) -> Result<Self, ExportError> {
        let failed = |source| ExportError::of(&disk.id, source);
        Ok(Self {
            config,
            cache: Mutex::new(config.cache),
            resumption: Mutex::new(None),
            memory_rules: Arc::new(MemoryRules::new(
                Arc::clone(check.memory_files()),
                memory_bytes_max,
            )),
            descriptors_max: AtomicUsize::new(usize::MAX),
            descriptor_check: check.for_export(),
            freeze_notifier: Notifier::new().map_err(failed)?,
            unshared: Arc::new(UnsharedMemoryRate::new(Arc::clone(clock))),
            disk,
        })
    }

    /// The front end is served again: says how long that took, once.
    fn log_takeover_pause(&self) {
        let resumption = self.resumption.lock().expect("no holder of this lock panics").take();
        if let Some(resumption) = resumption {
            resumption.tell(&self.disk.id);
        }
    }
}

/// What a guest is told about the disk of an export, which that node is.
pub fn blk_config(
    export: &ExportOptions,
    own: &VhostUserBlkOptions,
    node: &dyn Node,
) -> Result<BlkConfig, ExportError> {
    let (id, name, block) = (export.id.clone(), node.name().to_owned(), own.logical_block_size);
    let bytes = node.size().0.0;
    if !bytes.is_multiple_of(u64::from(block)) {
        return Err(ExportError::Size { export: id, node: name, bytes, block });
    }
    let limits = node.limits();
    Ok(BlkConfig {
        size: node.size(),
        logical_block: block,
        physical_block: limits.physical_block.get().max(block),
        queues: own.num_queues.unwrap_or(QUEUES_MAX),
        access: export.access(),
        discard: export.writable,
        discard_granularity: limits.discard_granularity.get().max(block),
        unmap: limits.discard,
        write_zeroes: export.writable,
        cache: if export.writethrough { CacheMode::WriteThrough } else { CacheMode::WriteBack },
    })
}

/// The vhost-user-blk device of one session: places its rings on iothreads and stops them.
#[derive(Debug)]
pub(crate) struct BlkDevice {
    offer: Arc<VhostUserBlkDisk>,
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
        offer: Arc<VhostUserBlkDisk>,
        session: Arc<Connection>,
        statistics: Arc<Mutex<QueueStatistics>>,
        client_log: Arc<ClientLog>,
    ) -> Self {
        offer.disk.size.reset_front_end();
        let unshared = Arc::new(UnsharedMemoryWarning::new(&offer.disk.id, &offer.unshared));
        Self { offer, session, statistics, client_log, unshared, placed: Vec::new(), answers: None }
    }

    fn rules(&self, features: Features) -> BlkRules {
        let config = &self.offer.config;
        BlkRules {
            size: self.offer.disk.size.capacity().get(),
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
        // Whose requests were seen before, as by a process that was taken over, shares its memory.
        let is_untried = setup.base == RingBase::start(setup.layout);
        self.offer.disk.migration.set(start.log.is_some());
        ring.set_log(start.log);
        let front = BlkRing::new(BlkRingSetup {
            ring,
            rules,
            capacity: Arc::clone(self.offer.disk.size.capacity()),
            serial: self.offer.disk.id.clone(),
            kick: start.kick,
            call: start.call,
            error: start.error,
        });
        let source = FrontEndSource::new(front, vec![Arc::clone(&self.offer.disk.node)], nobody);
        let iothread = &self.offer.disk.iothreads().of_queue(queue.0);
        let watcher = SessionEnder {
            queue,
            session: Arc::clone(&self.session),
            unshared: is_untried.then(|| Arc::clone(&self.unshared)),
        };
        let name = SourceName { export: self.offer.disk.id.clone(), queue: queue.0 };
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
        let size = self.offer.disk.size.answer();
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
        self.offer.disk.size.set_channel(channel);
    }

    fn announced_size(&self) -> Option<DiskSize> {
        self.offer.disk.size.announced()
    }

    fn set_announced_size(&mut self, size: DiskSize) {
        self.offer.disk.size.was_told(size);
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
                tracing::debug!("export {}: write-back", self.offer.disk.id);
                Ok(())
            }
            CacheMode::WriteThrough => {
                tracing::debug!("export {}: write-through", self.offer.disk.id);
                // From now on the driver flushes no more, not even what it wrote before.
                let flushed = self.offer.disk.node.flush();
                flushed.map_err(|error| DeviceError::CacheMode(error.into()))
            }
        }
    }

    fn start(&mut self, queue: QueueIndex, start: RingStart) -> Result<StartResult, DeviceError> {
        let failed = |source| DeviceError::Start { queue, source };
        if !self.serves_any() {
            let VhostUserBlkDisk { disk, freeze_notifier, .. } = &*self.offer;
            let while_ours = &SessionEndWait { session: &self.session, freeze_notifier };
            match disk.claim.begin(while_ours).map_err(|it| failed(Box::new(it)))? {
                ActivationResult::Held => {}
                ActivationResult::Postponed => return Ok(StartResult::Postponed),
            }
            // What a front end that comes back was told, it was told by somebody else.
            self.offer.disk.size.review();
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
        let ended = self.offer.disk.claim.end();
        ended.map_err(|error| DeviceError::Rest(Box::new(error)))
    }

    fn set_call(&mut self, queue: QueueIndex, call: Option<OwnedFd>) {
        if let Some(placed) = self.slot(queue) {
            placed.post(|front, port| front.set_call(call, port));
        }
    }

    fn set_log(&mut self, queue: QueueIndex, log: Option<RingDirtyLog>) {
        self.offer.disk.migration.set(log.is_some());
        if let Some(placed) = self.slot(queue) {
            // Of a ring that somebody has stopped nothing is written any more.
            let _stopped = placed.visit(|front, port| front.set_log(log, port));
        }
    }
}

impl Drop for BlkDevice {
    fn drop(&mut self) {
        self.offer.disk.migration.set(false);
        // Its front end hears nothing any more.
        self.offer.disk.size.reset_front_end();
        self.offer.disk.size.warn_if_removed();
    }
}

/// Ends a session whose guest broke the rules of a ring. The iothread only leaves the reason and
/// hangs up; the session's thread notices, stops all rings and says why.
#[derive(Debug)]
struct SessionEnder {
    queue: QueueIndex,
    session: Arc<Connection>,
    /// Of a ring in which there has never been a request.
    unshared: Option<Arc<UnsharedMemoryWarning>>,
}

impl SourceObserver for SessionEnder {
    fn broken(&self, fault: &(dyn Error + 'static)) {
        self.session.end_because(format!("queue {}: {}", self.queue, chain_of(fault)));
    }

    fn kicked_while_empty(&self) {
        if let Some(unshared) = &self.unshared {
            unshared.no_request(self.queue);
        }
    }
}
