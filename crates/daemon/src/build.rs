//! From a plan to running iothreads, nodes and exports, in the order of the command line.
//!
//! Invariants: an export's node is claimed before its socket exists, and until everything is
//! flushed.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use block::{Access, Claim, Clock, Node, Rights};
use iothread::{Confine, Host, Iothread, PollLimit, PollSettings, Polling, SpawnError};
use kernel_io::{FileTable, Reactors};
use virtio::{BlkConfig, CacheMode};

use crate::claim::{ClaimFailure, Patience, claim};
use crate::device::Offer;
use crate::export::{Export, ExportError};
use crate::graph::{Graph, GraphError};
use crate::holding::{Holding, OnDemand};
use crate::options::{Activity, ExportOptions, Plan, PollOptions, SocketOptions, Step};
use crate::sandbox::Sandbox;
use crate::socket::{Socket, SocketError};

/// The name of the iothread that serves exports which name none.
const MAIN: &str = "main";

/// The queues of an export that offers as many as a front end asks for.
const QUEUES_MAX: u16 = 256;

/// Everything that serves.
#[derive(Debug)]
pub(crate) struct Built {
    // Dropped in this order: exports use iothreads, and what was claimed.
    exports: Vec<Export>,
    claims: Vec<Claim>,
    /// Where each export will listen, in the same order.
    places: Vec<Place>,
    iothreads: HashMap<String, Arc<Iothread>>,
    graph: Graph,
    files: Arc<FileTable>,
    clock: Arc<dyn Clock>,
    polling: Arc<Polling>,
    sandbox: Option<Arc<Sandbox>>,
}

/// Where an export is to listen.
#[derive(Debug)]
struct Place {
    export: String,
    socket: SocketOptions,
    /// Who serves it, for the log.
    iothreads: String,
}

/// A step of the plan failed.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// The kernel does not say which CPUs there are.
    #[error("cannot find out which CPUs may be used")]
    Cpus(#[source] std::io::Error),
    /// An iothread could not be started.
    #[error(transparent)]
    Iothread(#[from] SpawnError),
    /// A node could not be made.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// An export names an iothread that there is not.
    #[error("export {export}: there is no iothread '{iothread}'")]
    NoIothread {
        /// The export.
        export: String,
        /// The name.
        iothread: String,
    },
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
    /// An export is to be writable and its node is not.
    #[error("export {export}: node {node} is read-only, so writable=on cannot be")]
    ReadOnly {
        /// The export.
        export: String,
        /// Its node.
        node: String,
    },
    /// An export could not claim its node.
    #[error(transparent)]
    Claim(#[from] ClaimFailure),
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

impl Built {
    /// Nothing yet.
    pub(crate) fn nothing<C: Clock + 'static>(
        files: &Arc<FileTable>,
        clock: &Arc<C>,
        sandbox: Option<&Arc<Sandbox>>,
    ) -> Result<Self, BuildError> {
        Ok(Self {
            exports: Vec::new(),
            claims: Vec::new(),
            places: Vec::new(),
            iothreads: HashMap::new(),
            graph: Graph::new(Arc::clone(files), sandbox.cloned()),
            files: Arc::clone(files),
            clock: Arc::clone(clock) as Arc<dyn Clock>,
            polling: Polling::of_process().map(Arc::new).map_err(BuildError::Cpus)?,
            sandbox: sandbox.cloned(),
        })
    }

    /// Carries the plan out, step by step, up to the first that fails, but for the sockets. Blocks.
    pub(crate) fn carry_out(
        &mut self,
        plan: &Plan,
        patience: &mut Patience<'_>,
    ) -> Result<(), BuildError> {
        for step in &plan.steps {
            match step {
                Step::Object(object) => {
                    self.spawn(&object.id, settings(object.polling))?;
                }
                Step::Blockdev(blockdev) => self.graph.add(blockdev)?,
                Step::Export(export) => self.export(export, patience)?,
            }
        }
        Ok(())
    }

    /// Makes the sockets of all exports, in order. Clients can connect from now on, and wait.
    pub(crate) fn listen(&self) -> Result<Vec<Socket>, BuildError> {
        let listen = |place: &Place| {
            let Place { export, socket, iothreads } = place;
            let socket = Socket::listen(socket)
                .map_err(|source| BuildError::Socket { export: export.clone(), source })?;
            let path = socket.path().display();
            tracing::info!("export {export}: listening on {path}, served by {iothreads}");
            Ok(socket)
        };
        self.places.iter().map(listen).collect()
    }

    /// Begins to serve on the sockets of [`Built::listen`].
    pub(crate) fn open(&mut self, sockets: Vec<Socket>) {
        for (export, socket) in self.exports.iter_mut().zip(sockets) {
            export.open(socket);
        }
    }

    /// Stops all exports, together. Iothreads and claims stay until this is dropped.
    pub(crate) fn stop_exports(&mut self) {
        for export in &self.exports {
            export.begin_stop();
        }
        self.exports.clear();
    }

    fn spawn(&mut self, id: &str, settings: PollSettings) -> Result<Arc<Iothread>, SpawnError> {
        let host = Host {
            files: Arc::clone(&self.files),
            clock: Arc::clone(&self.clock),
            polling: Arc::clone(&self.polling),
            reactors: Reactors::Any,
            confine: self.sandbox.clone().map(|sandbox| sandbox as Arc<dyn Confine>),
        };
        let iothread = Iothread::spawn(id, host, settings).map(Arc::new)?;
        self.iothreads.insert(id.to_owned(), Arc::clone(&iothread));
        Ok(iothread)
    }

    fn export(
        &mut self,
        options: &ExportOptions,
        patience: &mut Patience<'_>,
    ) -> Result<(), BuildError> {
        let node = Arc::clone(self.graph.node(&options.node_name)?);
        let config = config(options, &*node)?;
        let iothreads = self.iothreads_of(options)?;
        let names: Vec<&str> = iothreads.iter().map(|iothread| iothread.name()).collect();
        let id = options.id.clone();
        let rights = Rights::of_user(config.access);
        let holding = match self.graph.activity(&options.node_name) {
            Activity::Active => {
                self.claims.push(claim(&id, &*node, rights, &*self.clock, patience)?);
                Holding::Always
            }
            Activity::Inactive => {
                Holding::WhileServed(Box::new(OnDemand::new(rights, Arc::clone(&self.clock))))
            }
        };
        let socket = options.socket.clone();
        let place = Place { export: id.clone(), socket, iothreads: names.join(", ") };
        let cache = Mutex::new(config.cache);
        let offer = Offer { id: id.clone(), node, holding, config, cache, iothreads };
        let clock = Arc::clone(&self.clock);
        let start = || Export::start(offer, clock);
        let export = match &self.sandbox {
            Some(sandbox) => sandbox
                .inside(start)
                .map_err(|source| BuildError::Confine { export: id, source })?,
            None => start(),
        };
        self.exports.push(export?);
        self.places.push(place);
        Ok(())
    }

    fn iothreads_of(&mut self, options: &ExportOptions) -> Result<Vec<Arc<Iothread>>, BuildError> {
        if options.iothreads.is_empty() {
            return Ok(vec![match self.iothreads.get(MAIN) {
                Some(main) => Arc::clone(main),
                None => self.spawn(MAIN, PollSettings::OFF)?,
            }]);
        }
        let find = |name: &String| {
            let missing = || {
                let (export, iothread) = (options.id.clone(), name.clone());
                BuildError::NoIothread { export, iothread }
            };
            self.iothreads.get(name).cloned().ok_or_else(missing)
        };
        options.iothreads.iter().map(find).collect()
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
    let access = match (options.writable, node.access()) {
        (true, Access::ReadOnly) => {
            return Err(BuildError::ReadOnly { export, node: name });
        }
        (true, Access::ReadWrite) => Access::ReadWrite,
        (false, _) => Access::ReadOnly,
    };
    let changes = access == Access::ReadWrite;
    Ok(BlkConfig {
        size: node.size(),
        logical_block: block,
        physical_block: node.limits().physical_block.get().max(block),
        queues: options.num_queues.unwrap_or(QUEUES_MAX),
        access,
        discard: changes,
        write_zeroes: changes,
        cache: if options.writethrough { CacheMode::WriteThrough } else { CacheMode::WriteBack },
    })
}
