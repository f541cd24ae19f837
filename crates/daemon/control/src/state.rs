//! The parts of a running daemon: iothreads, nodes and exports, made step by step.
//!
//! All exports are first prepared, up to everything that touches no other process: iothreads run and images
//! are open. Then each export claims its node and listens, or goes on with a socket that was taken over.
//!
//! Invariants: an export's node is claimed before its socket exists, and until everything is
//! flushed.

mod activity;
mod bitmaps;
mod block_jobs;
mod build_error;
mod change;
mod connecting;
mod inherit;
mod iothreads;
mod nbd;
mod pools;
mod remove;
mod run_time;

use std::collections::{BTreeMap, HashMap};
use std::num::NonZero;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use block::{Clock, Durability};
use credentials::{Authorization, X509Credentials};
use exports::{
    AdoptedSession, DescriptorCheck, DiskParts, Export, ExportKind, ExportOptions, ExportSocket,
    ExportedDisk, LOGICAL_BLOCK_BYTES, ServingIothreads, StorageCondition, VhostUserBlkDisk,
    WaitPolicy,
};
use graph::{
    Blockdev, Graph, NamedFilesPolicy, ObjectKind, ObjectOptions, PollOptions, PoolOptions, Secret,
    StorageWatchdog,
};
use iothread::{
    Confinement, Iothread, PlacedSource, PollLimitStrictness, PollSettings, ProcessResources,
    SourceRegistry, SpawnError,
};
use kernel_io::{FileTable, OpenFile, ReactorChoice, SpareRings};
use nbd_server::{ListenGrant, NbdCatalog, NbdExport, NbdServer};
use sandbox::Sandbox;

use crate::health::HealthFindings;
use crate::placer::PlacedPool;
use crate::running_export::RunningExport;
use crate::served_disks::ServedDisks;
use crate::state_file::StateFile;

pub use activity::ActivityError;
pub use bitmaps::ExportedBitmapError;
use block_jobs::BlockJob;
pub use block_jobs::{
    BackingName, BackupBitmap, BackupChanges, BackupOptions, BackupSync, BitmapSync, BlockJobError,
    BlockJobProgress, CommitOptions, JobNews, JobObserver, MirrorEnd, MirrorOptions, MirrorSync,
    StreamOptions,
};
pub use build_error::BuildError;
pub use change::{AtOnce, GraphChangeError};
pub use connecting::ConnectRights;
pub use nbd::NbdTlsError;
pub use run_time::{ControlError, NoWait, StatePolicy};

/// The name of the iothread that serves exports which name none.
const MAIN: &str = "main";

/// The fewest and the most rings that are made for iothreads which start behind the fences: one for each CPU, of 280 KiB.
const SPARE_RINGS: RangeInclusive<usize> = 4..=16;

/// The most for iothreads that pools may still start.
const POOLED_RINGS_MAX: usize = 64;

/// All running parts of the daemon: iothreads, block graph, claims, exports.
#[derive(Debug)]
pub struct DaemonState {
    // Dropped in this order: jobs and exports use iothreads, and what was claimed.
    jobs: BTreeMap<String, BlockJob>,
    exports: Vec<RunningExport>,
    /// Whoever moves rings is gone before the iothreads.
    pools: HashMap<String, PlacedPool>,
    /// Pools that no export uses yet.
    unused_pools: HashMap<String, PoolOptions>,
    /// What was claimed, also for exports that have stopped: nobody else may have it before all is flushed.
    claimed: Vec<Arc<ExportedDisk>>,
    /// Its connections have ended with their exports.
    nbd_server: Option<NbdServer>,
    nbd_catalog: Arc<NbdCatalog>,
    /// Where commands may have it listen.
    listen_grants: Vec<ListenGrant>,
    /// Where nodes of commands may connect to; anywhere as long as there are no fences.
    connect_rights: Option<ConnectRights>,
    iothreads: HashMap<String, Arc<Iothread>>,
    pub(crate) graph: Graph,
    /// As they were made, or changed since.
    pub(crate) objects: BTreeMap<String, ObjectOptions>,
    credentials: BTreeMap<String, X509Credentials>,
    authorizations: BTreeMap<String, Arc<Authorization>>,
    /// Permission bits and group of the sockets of exports that commands make.
    socket_rights: (Option<u32>, Option<String>),
    pub(crate) export_options: BTreeMap<String, ExportOptions>,
    /// Whether a command has changed what the command line made.
    is_changed: bool,
    /// Where what is served with is kept for the next start.
    state_file: Option<StateFile>,
    files: Arc<FileTable>,
    clock: Arc<dyn Clock>,
    /// What the iothreads serve.
    sources: Arc<SourceRegistry>,
    served_disks: Arc<ServedDisks>,
    /// For iothreads that start behind the fences.
    spare_rings: Arc<SpareRings>,
    sandbox: Option<Arc<Sandbox>>,
    descriptor_check: Arc<DescriptorCheck>,
    /// What is found of queues and files all the time, once they are looked at.
    health: Option<Arc<HealthFindings>>,
}

/// An export whose node and iothreads are ready; it lacks its claim and its socket.
#[derive(Debug)]
pub struct PreparedExport {
    /// What was asked for.
    pub options: ExportOptions,
    /// What it offers.
    pub disk: Arc<ExportedDisk>,
    /// What the protocol adds to it.
    pub protocol: PreparedProtocol,
}

/// What the protocol of an export adds to its disk.
#[derive(Debug, Clone)]
pub enum PreparedProtocol {
    /// A device of virtio.
    VhostUserBlk(Arc<VhostUserBlkDisk>),
    /// A name on the NBD server.
    Nbd,
}

impl PreparedExport {
    /// What vhost-user-blk adds, if it is that.
    pub fn vhost_user_blk(&self) -> Option<&Arc<VhostUserBlkDisk>> {
        match &self.protocol {
            PreparedProtocol::VhostUserBlk(offer) => Some(offer),
            PreparedProtocol::Nbd => None,
        }
    }
}

/// An export that lacks only to be started.
#[derive(Debug)]
pub struct ListeningExport {
    /// What is started.
    pub prepared: PreparedExport,
    /// Where its clients wait, if it has a socket of its own.
    pub socket: Option<ExportSocket>,
}

impl DaemonState {
    /// Nothing yet. Of the graph see [`Graph::new`].
    pub fn nothing(
        files: &Arc<FileTable>,
        clock: &Arc<dyn Clock>,
        sandbox: Option<&Arc<Sandbox>>,
        descriptor_check: &Arc<DescriptorCheck>,
        named_files: &NamedFilesPolicy,
        watch: &Arc<StorageWatchdog>,
    ) -> Self {
        let (named_files, watch) = (named_files.clone(), Arc::clone(watch));
        let mut graph = Graph::new(Arc::clone(files), Arc::clone(clock), named_files, watch);
        if let Some(sandbox) = sandbox.cloned() {
            graph.set_fences(move || sandbox.confine());
        }
        Self {
            jobs: BTreeMap::new(),
            exports: Vec::new(),
            pools: HashMap::new(),
            unused_pools: HashMap::new(),
            claimed: Vec::new(),
            nbd_server: None,
            nbd_catalog: Arc::default(),
            listen_grants: Vec::new(),
            connect_rights: None,
            iothreads: HashMap::new(),
            graph,
            objects: BTreeMap::new(),
            credentials: BTreeMap::new(),
            authorizations: BTreeMap::new(),
            socket_rights: (None, None),
            export_options: BTreeMap::new(),
            is_changed: false,
            state_file: None,
            files: Arc::clone(files),
            clock: Arc::clone(clock),
            sources: Arc::default(),
            served_disks: Arc::default(),
            spare_rings: Arc::default(),
            sandbox: sandbox.cloned(),
            descriptor_check: Arc::clone(descriptor_check),
            health: None,
        }
    }

    /// What is found of queues and files from now on.
    pub fn set_health(&mut self, health: &Arc<HealthFindings>) {
        self.health = Some(Arc::clone(health));
    }

    /// What was found last of the storage of each export.
    pub fn storage(&self) -> Vec<(String, StorageCondition)> {
        self.health.as_ref().map(|it| it.storage()).unwrap_or_default()
    }

    /// Makes an object: starts an iothread, makes a throttle group, or reads a secret.
    pub fn add_object(&mut self, object: &ObjectOptions) -> Result<(), BuildError> {
        match &object.kind {
            ObjectKind::Iothread(polling) => {
                self.graph.add_object(object.name())?;
                if let Err(error) = self.spawn(&object.id, settings(*polling)) {
                    self.graph.remove_object(&object.id)?;
                    return Err(error.into());
                }
            }
            ObjectKind::IothreadPool(pool) => {
                self.graph.add_object(object.name())?;
                self.unused_pools.insert(object.id.clone(), pool.clone());
            }
            ObjectKind::ThrottleGroup(limits) => {
                self.graph.add_throttle_group(&object.id, *limits)?;
            }
            ObjectKind::Secret(options) => {
                let failed = |source| BuildError::Secret { secret: object.id.clone(), source };
                let secret = options.load().map_err(failed)?;
                self.graph.add_secret(object.name(), secret)?;
            }
            ObjectKind::MainLoop => self.graph.add_object(object.name())?,
            ObjectKind::TlsCredsX509(options) => {
                let loaded = self.load_credentials(&object.id, options)?;
                self.graph.add_credentials(object.name(), loaded.clone())?;
                self.credentials.insert(object.id.clone(), loaded);
            }
            ObjectKind::Authorization(options) => {
                let failed = |source| BuildError::Rules { object: object.id.clone(), source };
                let rules = options.load().map_err(failed)?;
                self.graph.add_object(object.name())?;
                self.authorizations.insert(object.id.clone(), Arc::new(rules));
            }
        }
        self.objects.insert(object.id.clone(), object.clone());
        Ok(())
    }

    /// Makes a node, and the nodes written inside it. Blocks.
    pub fn add_node(&mut self, blockdev: &Blockdev) -> Result<(), BuildError> {
        Ok(self.graph.add(blockdev)?)
    }

    /// Checks an export and makes what it lacks but its claim and its socket. A session of it may map so many bytes.
    pub fn prepare_export(
        &mut self,
        options: &ExportOptions,
        memory_bytes_max: u64,
    ) -> Result<PreparedExport, BuildError> {
        let node = self.graph.node(&options.node_name)?;
        let config = match &options.kind {
            ExportKind::VhostUserBlk(own) => Some(exports::blk_config(options, own, &**node)?),
            ExportKind::Nbd(_) => None,
        };
        let activity = self.graph.activity(&options.node_name)?;
        let node = self.graph.add_export(options.entry())?;
        let made = self.iothreads_of(options).and_then(|iothreads| {
            let files = self.graph.storage_files_below(&options.node_name);
            let storage = storage_of(&files.all);
            let clock = Arc::clone(&self.clock);
            let (access, logical_block) =
                (options.access(), config.map_or(LOGICAL_BLOCK_BYTES, |it| it.logical_block));
            let parts =
                DiskParts { node, access, logical_block, activity, files, iothreads, clock };
            let disk = Arc::new(ExportedDisk::new(&options.id, parts));
            let protocol = match config {
                Some(config) => PreparedProtocol::VhostUserBlk(Arc::new(VhostUserBlkDisk::new(
                    Arc::clone(&disk),
                    config,
                    memory_bytes_max,
                    &self.descriptor_check,
                    &self.clock,
                )?)),
                None => PreparedProtocol::Nbd,
            };
            Ok((PreparedExport { options: options.clone(), disk, protocol }, storage))
        });
        let (prepared, storage) = match made {
            Ok(made) => made,
            Err(error) => {
                self.graph.remove_export(&options.id)?;
                return Err(error);
            }
        };
        self.export_options.insert(options.id.clone(), options.clone());
        if let ServingIothreads::Pool(pool) = prepared.disk.iothreads() {
            self.pools[pool.name()].add(options, &prepared.disk, storage);
        }
        Ok(prepared)
    }

    /// Claims what the export needs, unless it does that only when it serves rings. Blocks.
    pub fn claim(
        &mut self,
        prepared: &PreparedExport,
        policy: &mut WaitPolicy<'_>,
    ) -> Result<(), BuildError> {
        prepared.disk.claim.take_at_start(policy)?;
        self.claimed.push(Arc::clone(&prepared.disk));
        Ok(())
    }

    /// Begins to accept clients, on a thread behind the fences. What is needed has been claimed.
    pub fn start(
        &mut self,
        ListeningExport { prepared, socket }: ListeningExport,
        adopted: Option<AdoptedSession>,
    ) -> Result<(), BuildError> {
        let PreparedExport { options, disk, protocol } = prepared;
        let (id, names) = (disk.id.clone(), disk.iothreads().to_string());
        self.sources.keep_sums(&id);
        self.served_disks.enter(&disk);
        match (protocol, &options.kind, socket) {
            (PreparedProtocol::VhostUserBlk(offer), _, Some(socket)) => {
                let path = socket.path().to_path_buf();
                let (clock, export) = (Arc::clone(&self.clock), id.clone());
                let start = || Export::start(offer, socket, adopted, clock);
                let started = Sandbox::start_inside(self.sandbox.as_deref(), start)
                    .map_err(|source| BuildError::Confine { export, source })?;
                self.exports.push(RunningExport::VhostUserBlk(started?));
                tracing::info!("export {id}: listening on {}, served by {names}", path.display());
            }
            (PreparedProtocol::Nbd, ExportKind::Nbd(own), _) => {
                let bitmaps = self.exported_bitmaps(&options)?.into();
                let durability =
                    if options.writethrough { Durability::Stable } else { Durability::Cached };
                let export = NbdExport::start(disk, own, bitmaps, durability, &self.nbd_catalog);
                tracing::info!("export {id}: NBD export '{}', served by {names}", export.name());
                self.exports.push(RunningExport::Nbd(export));
            }
            (PreparedProtocol::VhostUserBlk(_), _, None) | (PreparedProtocol::Nbd, _, _) => {
                panic!("export {id} was prepared as another type than it is")
            }
        }
        Ok(())
    }

    /// Makes the rings for iothreads that start behind the fences, where none can be made, if there will be fences.
    /// Without them those wait with epoll. Call it when the iothreads of the start have their own.
    pub fn make_spare_rings(&self) {
        if self.sandbox.is_none() {
            return;
        }
        if !exports::has_room_for_spare_rings() {
            tracing::debug!("no spare rings: the limit of open files leaves no room for them");
            return;
        }
        let cpus = std::thread::available_parallelism().map_or(1, NonZero::get);
        // Each iothread that a pool may still start needs one.
        let unstarted = |it: &PlacedPool| it.pool().slots() - it.pool().running().len();
        let pooled: usize = self.pools.values().map(unstarted).sum();
        let count =
            cpus.clamp(*SPARE_RINGS.start(), *SPARE_RINGS.end()).max(pooled.min(POOLED_RINGS_MAX));
        if let Err(error) = self.spare_rings.fill(count) {
            tracing::debug!("{} of {count} spare rings: {error}", self.spare_rings.left());
        }
    }

    /// The permission bits and the group of the sockets of exports that commands make. Called before the fences, behind which
    /// no name of a group can be looked up.
    pub fn set_socket_rights(&mut self, mode: Option<u32>, group: Option<&str>) {
        let number = |group: &str| exports::group_number(group).unwrap_or_else(|| group.to_owned());
        self.socket_rights = (mode, group.map(number));
    }

    /// A secret, for what needs it.
    pub fn secret(&self, id: &str) -> Option<&Secret> {
        self.graph.secret(id)
    }

    /// The exports that were started.
    pub fn exports(&self) -> &[RunningExport] {
        &self.exports
    }

    /// The files of all nodes.
    pub fn files(&self) -> &FileTable {
        &self.files
    }

    /// Makes the socket of an export, if it has one of its own. Clients can connect from now on, and wait.
    pub fn listen(prepared: PreparedExport) -> Result<ListeningExport, BuildError> {
        let socket = match prepared.options.vhost_user_blk() {
            Some(own) => Some(ExportSocket::listen(&own.socket).map_err(|source| {
                BuildError::Socket { export: prepared.options.id.clone(), source }
            })?),
            None => None,
        };
        Ok(ListeningExport { prepared, socket })
    }

    /// Whether nobody serves the socket of that export. Blocks for as long as a process that is about to end may take.
    pub fn check_unserved(options: &ExportOptions) -> Result<(), BuildError> {
        let failed = |source| BuildError::Socket { export: options.id.clone(), source };
        match options.vhost_user_blk() {
            // Whoever has made the socket may hold it, too.
            Some(own) if own.socket.listening_at().is_some() => Ok(()),
            Some(own) => exports::wait_until_unserved(&own.socket.path).map_err(failed),
            None => Ok(()),
        }
    }

    /// Has every export that stands on a block device look at its size, and tell its front end if that is news.
    pub fn review_devices(&self) {
        self.exports.iter().for_each(|export| export.disk().size.review_devices());
    }

    /// The disks of all exports.
    pub fn disks(&self) -> Vec<Arc<ExportedDisk>> {
        self.exports.iter().map(|export| Arc::clone(export.disk())).collect()
    }

    /// The time, as all that is served knows it.
    pub fn clock(&self) -> &dyn Clock {
        &*self.clock
    }

    /// All iothreads, by their names.
    pub fn iothreads(&self) -> Vec<Arc<Iothread>> {
        let mut all: Vec<_> = self.iothreads.values().cloned().collect();
        let pools = self.pools.values().flat_map(|it| it.pool().running());
        all.extend(pools.map(|(_, iothread)| iothread));
        all.sort_by(|one, other| one.name().cmp(other.name()));
        all
    }

    /// The pools of iothreads.
    pub(crate) fn pools(&self) -> impl Iterator<Item = &PlacedPool> {
        self.pools.values()
    }

    /// All queues that are served now.
    pub fn sources(&self) -> Vec<Arc<PlacedSource>> {
        self.sources.all()
    }

    /// What the iothreads serve, for whoever reads it on another thread.
    pub fn source_registry(&self) -> &Arc<SourceRegistry> {
        &self.sources
    }

    /// The disks that are served, for whoever looks at them on another thread.
    pub fn served_disks(&self) -> &Arc<ServedDisks> {
        &self.served_disks
    }

    /// Stops all exports, together. Iothreads and claims stay until this is dropped.
    pub fn stop_exports(&mut self) {
        self.exports.iter().for_each(RunningExport::begin_stop);
        for export in std::mem::take(&mut self.exports) {
            let id = &export.disk().id;
            let files = self.graph.files_below_export(id);
            let paths: Vec<_> = files.iter().map(|it| it.path().display().to_string()).collect();
            let what = format!("export {id} ({}): stopping", paths.join(", "));
            self.graph.watch().during(what, || drop(export));
        }
    }

    fn host(&self) -> ProcessResources {
        ProcessResources {
            files: Arc::clone(&self.files),
            clock: Arc::clone(&self.clock),
            sources: Arc::clone(&self.sources),
            reactors: ReactorChoice::Any,
            spare_rings: Arc::clone(&self.spare_rings),
            confine: self.sandbox.clone().map(|sandbox| sandbox as Arc<dyn Confinement>),
            alarm: None,
        }
    }

    fn spawn(&mut self, id: &str, settings: PollSettings) -> Result<Arc<Iothread>, SpawnError> {
        let iothread = Iothread::spawn(id, self.host(), settings).map(Arc::new)?;
        self.iothreads.insert(id.to_owned(), Arc::clone(&iothread));
        Ok(iothread)
    }

    /// The iothread that serves what names none.
    fn main_iothread(&mut self) -> Result<Arc<Iothread>, SpawnError> {
        match self.iothreads.get(MAIN) {
            Some(main) => Ok(Arc::clone(main)),
            None => self.spawn(MAIN, PollSettings::OFF),
        }
    }

    /// The iothreads that serve an export, all of which there are.
    pub(super) fn iothreads_of(
        &mut self,
        options: &ExportOptions,
    ) -> Result<ServingIothreads, BuildError> {
        let named = match &options.iothreads[..] {
            [] => vec![self.main_iothread()?],
            [id] if self.unused_pools.contains_key(id) || self.pools.contains_key(id) => {
                let storage = storage_of(&self.graph.files_below(&options.node_name));
                let pool = self.pool_for(id, storage)?;
                return Ok(ServingIothreads::Pool(Arc::clone(pool.pool())));
            }
            named => named.iter().map(|id| Arc::clone(&self.iothreads[id])).collect(),
        };
        Ok(ServingIothreads::Named(named))
    }
}

/// The device that the first file of a disk is on; `None` if that is not known.
fn storage_of(files: &[Arc<OpenFile>]) -> Option<u64> {
    use std::os::unix::fs::{FileTypeExt, MetadataExt};
    let metadata = std::fs::metadata(files.first()?.path()).ok()?;
    let is_device = metadata.file_type().is_block_device();
    Some(if is_device { metadata.rdev() } else { metadata.dev() })
}

fn settings(options: PollOptions) -> PollSettings {
    let PollOptions { max_ns, grow, shrink } = options;
    let default = PollSettings::default();
    match max_ns {
        None => PollSettings { grow, shrink, ..default },
        Some(ns) => PollSettings {
            max: Duration::from_nanos(ns),
            grow,
            shrink,
            limit: PollLimitStrictness::Strict,
        },
    }
}
