//! From a plan to running iothreads, nodes and exports, in the order of the command line.
//!
//! A plan is first prepared, up to everything that touches no other process: iothreads run and images
//! are open. Then each export claims its node and listens, or goes on with a socket that was taken over.
//!
//! Invariants: an export's node is claimed before its socket exists, and until everything is
//! flushed.

mod change;
mod inherit;
mod remove;

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use block::{Access, Claim, Clock, Node, Rights};
use iothread::{
    Confinement, Iothread, IothreadResources, PollArbiter, PollLimit, PollSettings, SpawnError,
};
use kernel_io::{FileTable, Notifier, ReactorChoice};
use virtio::{BlkConfig, CacheMode, MemoryRules};

use crate::activation::{ActivationPolicy, OnDemandClaim};
use crate::claim::{ExportClaimError, WaitPolicy, claim};
use crate::descriptor_check::DescriptorCheck;
use crate::descriptor_limits;
use crate::device::ExportedDisk;
use crate::export::{AdoptedSession, Export, ExportError};
use crate::export_size::ExportSize;
use crate::graph::{Graph, GraphError};
use crate::guest_memory::{self, MemoryDirectoryError};
use crate::model::{Activity, ModelError};
use crate::options::{ExportOptions, ObjectKind, ObjectOptions, Plan, PlanStep, PollOptions};
use crate::sandbox::Sandbox;
use crate::socket::{self, ExportSocket, SocketError};
use crate::storage_watchdog::StorageWatchdog;
use crate::unshared_memory::UnsharedMemoryRate;

pub use change::GraphChangeError;

/// The name of the iothread that serves exports which name none.
const MAIN: &str = "main";

/// The queues of an export that offers as many as a front end asks for.
const QUEUES_MAX: u16 = 256;

/// All running parts of the daemon: iothreads, block graph, claims, exports.
#[derive(Debug)]
pub(crate) struct Daemon {
    // Dropped in this order: exports use iothreads, and what was claimed.
    exports: Vec<Export>,
    claims: Vec<ExportClaim>,
    iothreads: HashMap<String, Arc<Iothread>>,
    graph: Graph,
    files: Arc<FileTable>,
    clock: Arc<dyn Clock>,
    polling: Arc<PollArbiter>,
    sandbox: Option<Arc<Sandbox>>,
    descriptor_check: Arc<DescriptorCheck>,
}

/// An export whose node and iothreads are ready; it lacks its claim and its socket.
#[derive(Debug)]
pub(crate) struct PreparedExport {
    pub(crate) options: ExportOptions,
    pub(crate) offer: Arc<ExportedDisk>,
    rights: Rights,
}

/// The claim of an export on its node, with its rights.
#[derive(Debug)]
struct ExportClaim {
    export: String,
    rights: Rights,
    /// There is none while a change of the graph is under way.
    claim: Option<Claim>,
}

/// The daemon could not be built as the command line asks.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// The kernel does not say which CPUs there are.
    #[error("cannot find out which CPUs may be used")]
    Cpus(#[source] std::io::Error),
    /// A directory that was named cannot hold guest memory.
    #[error(transparent)]
    Memory(#[from] MemoryDirectoryError),
    /// An iothread could not be started.
    #[error(transparent)]
    Iothread(#[from] SpawnError),
    /// A node could not be made.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// An object or an export does not fit what there is.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// An export's disk cannot be shown in blocks of the size asked for.
    #[error(
        "export {export}: the size of node {node}, {bytes} bytes, is no multiple of the logical \
         block size of {block} bytes"
    )]
    Size {
        /// The export.
        export: String,
        /// Its node.
        node: String,
        /// The node's size.
        bytes: u64,
        /// The block size.
        block: u32,
    },
    /// An export could not claim its node.
    #[error(transparent)]
    Claim(#[from] ExportClaimError),
    /// An export's socket could not be made.
    #[error("export {export}")]
    Socket {
        /// The export.
        export: String,
        /// Why.
        #[source]
        source: SocketError,
    },
    /// An export's thread could not be confined.
    #[error("export {export}: its thread cannot be confined")]
    Confine {
        /// The export.
        export: String,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// An export could not be started.
    #[error(transparent)]
    Export(#[from] ExportError),
}

impl Daemon {
    /// Nothing yet.
    pub(crate) fn nothing<C: Clock + 'static>(
        files: &Arc<FileTable>,
        clock: &Arc<C>,
        sandbox: Option<&Arc<Sandbox>>,
        descriptor_check: Arc<DescriptorCheck>,
    ) -> Result<Self, BuildError> {
        Ok(Self {
            exports: Vec::new(),
            claims: Vec::new(),
            iothreads: HashMap::new(),
            graph: Graph::new(Arc::clone(files), Arc::clone(clock) as Arc<dyn Clock>),
            files: Arc::clone(files),
            clock: Arc::clone(clock) as Arc<dyn Clock>,
            polling: PollArbiter::of_process().map(Arc::new).map_err(BuildError::Cpus)?,
            sandbox: sandbox.cloned(),
            descriptor_check,
        })
    }

    /// What waits for storage is told of from now on.
    pub(crate) fn set_watchdog(&mut self, watch: &Arc<StorageWatchdog>) {
        self.graph.set_watchdog(watch);
    }

    /// Carries the plan out, step by step, up to the first that fails: what is returned lacks only
    /// its socket. Blocks.
    pub(crate) fn carry_out(
        &mut self,
        plan: &Plan,
        policy: &mut WaitPolicy<'_>,
    ) -> Result<Vec<PreparedExport>, BuildError> {
        let prepared = self.prepare(plan)?;
        prepared.iter().try_for_each(|prepared| self.claim(prepared, policy))?;
        Ok(prepared)
    }

    /// Starts the plan's iothreads and opens its images, and checks its exports. Blocks.
    pub(crate) fn prepare(&mut self, plan: &Plan) -> Result<Vec<PreparedExport>, BuildError> {
        let mut prepared = Vec::new();
        self.graph.allow_named_files(&plan.named_files);
        let memory_files = Arc::clone(self.descriptor_check.memory_files());
        let (bytes_max, exports) = (plan.guest_memory.bytes_max, plan.exports().count());
        let rules = || Arc::new(guest_memory::rules(&memory_files, bytes_max, exports));
        for step in &plan.steps {
            match step {
                PlanStep::Object(object) => self.add_object(object)?,
                PlanStep::Blockdev(blockdev) => self.graph.add(blockdev)?,
                PlanStep::Export(export) => prepared.push(self.prepare_export(export, rules())?),
            }
        }
        let queues: Vec<u16> = prepared.iter().map(|it| it.offer.config.queues).collect();
        for (PreparedExport { offer, .. }, share) in
            prepared.iter().zip(descriptor_limits::shares(&queues))
        {
            offer.descriptors_max.store(share, Ordering::Relaxed);
        }
        Ok(prepared)
    }

    /// Claims what the export needs, unless it does that only when it serves rings. Blocks.
    pub(crate) fn claim(
        &mut self,
        prepared: &PreparedExport,
        policy: &mut WaitPolicy<'_>,
    ) -> Result<(), BuildError> {
        let (ExportedDisk { id, node, activation, .. }, rights) =
            (&*prepared.offer, prepared.rights);
        match activation {
            ActivationPolicy::Always => {
                let claim = Some(claim(id, &**node, rights, &*self.clock, policy)?);
                self.claims.push(ExportClaim { export: id.clone(), rights, claim });
            }
            ActivationPolicy::WhileServed(_) => {}
        }
        Ok(())
    }

    /// Begins to accept clients, on a thread behind the fences. What is needed has been claimed.
    pub(crate) fn start(
        &mut self,
        prepared: PreparedExport,
        socket: ExportSocket,
        adopted: Option<AdoptedSession>,
    ) -> Result<(), BuildError> {
        let ExportedDisk { id, iothreads, .. } = &*prepared.offer;
        let names: Vec<&str> = iothreads.iter().map(|iothread| iothread.name()).collect();
        let (names, path) = (names.join(", "), socket.path().to_path_buf());
        let clock = Arc::clone(&self.clock);
        let (id, export) = (id.clone(), id.clone());
        let start = || Export::start(prepared.offer, socket, adopted, clock);
        let started = match &self.sandbox {
            Some(sandbox) => {
                sandbox.inside(start).map_err(|source| BuildError::Confine { export, source })?
            }
            None => start(),
        };
        self.exports.push(started?);
        tracing::info!("export {id}: listening on {}, served by {names}", path.display());
        Ok(())
    }

    /// The exports that were started.
    pub(crate) fn exports(&self) -> &[Export] {
        &self.exports
    }

    /// The files of all nodes.
    pub(crate) fn files(&self) -> &FileTable {
        &self.files
    }

    /// Makes the socket of an export. Clients can connect from now on, and wait.
    pub(crate) fn listen(
        PreparedExport { options, .. }: &PreparedExport,
    ) -> Result<ExportSocket, BuildError> {
        let export = options.id.clone();
        ExportSocket::listen(&options.socket)
            .map_err(|source| BuildError::Socket { export, source })
    }

    /// Whether nobody serves the socket of that export. Blocks for as long as a process that is about to end may take.
    pub(crate) fn check_unserved(options: &ExportOptions) -> Result<(), BuildError> {
        let failed = |source| BuildError::Socket { export: options.id.clone(), source };
        socket::wait_until_unserved(&options.socket.path).map_err(failed)
    }

    /// Has every export that stands on a block device look at its size, and tell its front end if that is news.
    pub(crate) fn review_devices(&self) {
        for export in &self.exports {
            export.offer().size.review_devices();
        }
    }

    /// What all exports offer, with their sizes.
    pub(crate) fn offers(&self) -> Vec<Arc<ExportedDisk>> {
        self.exports.iter().map(Export::share_offer).collect()
    }

    /// Makes all exports stop, without waiting for it.
    pub(crate) fn begin_stop(&self) {
        for export in &self.exports {
            export.begin_stop();
        }
    }

    /// Stops all exports, together. Iothreads and claims stay until this is dropped.
    pub(crate) fn stop_exports(&mut self) {
        self.begin_stop();
        for export in std::mem::take(&mut self.exports) {
            let id = &export.offer().id;
            let files = self.graph.files_below_export(id);
            let paths: Vec<_> = files.iter().map(|it| it.path().display().to_string()).collect();
            let what = format!("export {id} ({}): stopping", paths.join(", "));
            self.graph.watch().during(what, || drop(export));
        }
    }

    fn add_object(&mut self, object: &ObjectOptions) -> Result<(), BuildError> {
        match object.kind {
            ObjectKind::Iothread(polling) => {
                self.graph.add_object(object.name())?;
                self.spawn(&object.id, settings(polling))?;
            }
            ObjectKind::ThrottleGroup(limits) => {
                self.graph.add_throttle_group(&object.id, limits)?;
            }
        }
        Ok(())
    }

    fn spawn(&mut self, id: &str, settings: PollSettings) -> Result<Arc<Iothread>, SpawnError> {
        let host = IothreadResources {
            files: Arc::clone(&self.files),
            clock: Arc::clone(&self.clock),
            polling: Arc::clone(&self.polling),
            reactors: ReactorChoice::Any,
            confine: self.sandbox.clone().map(|sandbox| sandbox as Arc<dyn Confinement>),
        };
        let iothread = Iothread::spawn(id, host, settings).map(Arc::new)?;
        self.iothreads.insert(id.to_owned(), Arc::clone(&iothread));
        Ok(iothread)
    }

    fn prepare_export(
        &mut self,
        options: &ExportOptions,
        memory_rules: Arc<MemoryRules>,
    ) -> Result<PreparedExport, BuildError> {
        let config = config(options, &**self.graph.node(&options.node_name)?)?;
        let rights = Rights::of_user(config.access);
        let activation = match self.graph.activity(&options.node_name)? {
            Activity::Active => ActivationPolicy::Always,
            Activity::Inactive => ActivationPolicy::WhileServed(Box::new(OnDemandClaim::new(
                rights,
                Arc::clone(&self.clock),
            ))),
        };
        let freeze_notifier =
            Notifier::new().map_err(|source| ExportError::of(&options.id, source))?;
        let node = self.graph.add_export(options.entry())?;
        let iothreads = self.iothreads_of(options)?;
        let files = self.graph.files_below(&options.node_name);
        let size = ExportSize::new(&options.id, &node, config.logical_block, files);
        size.warn_if_empty();
        let offer = Arc::new(ExportedDisk {
            id: options.id.clone(),
            node,
            memory_rules,
            descriptors_max: AtomicUsize::new(usize::MAX),
            descriptor_check: self.descriptor_check.for_export(),
            activation,
            config,
            size,
            cache: Mutex::new(config.cache),
            iothreads,
            freeze_notifier,
            resumption: Mutex::new(None),
            unshared: Arc::new(UnsharedMemoryRate::new(Arc::clone(&self.clock))),
        });
        Ok(PreparedExport { options: options.clone(), offer, rights })
    }

    /// The iothreads that serve an export, all of which there are.
    fn iothreads_of(&mut self, options: &ExportOptions) -> Result<Vec<Arc<Iothread>>, BuildError> {
        if options.iothreads.is_empty() {
            return Ok(vec![match self.iothreads.get(MAIN) {
                Some(main) => Arc::clone(main),
                None => self.spawn(MAIN, PollSettings::OFF)?,
            }]);
        }
        Ok(options.iothreads.iter().map(|id| Arc::clone(&self.iothreads[id])).collect())
    }
}

fn settings(options: PollOptions) -> PollSettings {
    let PollOptions { max_ns, grow, shrink } = options;
    let default = PollSettings::default();
    match max_ns {
        None => PollSettings { grow, shrink, ..default },
        Some(ns) => {
            PollSettings { max: Duration::from_nanos(ns), grow, shrink, limit: PollLimit::Strict }
        }
    }
}

/// What a guest is told about the disk.
fn config(options: &ExportOptions, node: &dyn Node) -> Result<BlkConfig, BuildError> {
    let (export, name) = (options.id.clone(), node.name().to_owned());
    let block = options.logical_block_size;
    let bytes = node.size().0.0;
    if !bytes.is_multiple_of(u64::from(block)) {
        return Err(BuildError::Size { export, node: name, bytes, block });
    }
    let access = options.entry().access;
    let changes = access == Access::ReadWrite;
    let limits = node.limits();
    Ok(BlkConfig {
        size: node.size(),
        logical_block: block,
        physical_block: limits.physical_block.get().max(block),
        queues: options.num_queues.unwrap_or(QUEUES_MAX),
        access,
        discard: changes,
        discard_granularity: limits.discard_granularity.get().max(block),
        unmap: limits.discard,
        write_zeroes: changes,
        cache: if options.writethrough { CacheMode::WriteThrough } else { CacheMode::WriteBack },
    })
}
