//! Changes that are asked for while guests are served: each is kept for the next start, or is not made.
//!
//! Invariants: what fails leaves everything as it was. A change that guests could notice is durable in the state file before
//! they do; one that only adds what nobody uses yet, or takes something away, is kept before it is answered.
//! Threads: the first one.

use std::time::Duration;

use block::{Access, LogRateLimit};
use exports::{
    ExportKind, ExportOptions, GuestMemoryOptions, InterruptibleWait, WaitPolicy, WaitResult,
};
use graph::{
    Blockdev, DelayError, EdgeChange, Graph, ModelError, NodeReopening, ObjectKind, ObjectOptions,
    PoolOptions, ServerAddress,
};

use iothread::MoveError;
use nbd_server::ListenAddress;
use qcow2::ChangeBackingError;
use syntax::OptionFields;

use super::{ActivityError, BuildError, DaemonState, GraphChangeError, settings};
use crate::fault_point::{CommandStep, reached};
use crate::state_file::{StateFile, StateFileError};

/// Whether a change below an export has to be there after a restart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StatePolicy {
    /// It has: without a state file it is refused.
    Kept,
    /// It is enough if this process knows of it (`ringloom-volatile=true`).
    Volatile,
}

/// Something that was asked for while guests are served could not be done: all is as it was.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// It could not be made.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// It could not be changed or removed.
    #[error(transparent)]
    Change(#[from] GraphChangeError),
    /// It does not fit what there is.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// It cannot be kept for the next start.
    #[error(transparent)]
    State(#[from] StateFileError),
    /// A node could not be made active or inactive.
    #[error(transparent)]
    Activity(#[from] ActivityError),
    /// A delay could not be changed.
    #[error(transparent)]
    Delay(#[from] DelayError),
    /// The header of an image could not be changed.
    #[error(transparent)]
    Backing(#[from] ChangeBackingError),
    /// A queue could not be moved.
    #[error(transparent)]
    Move(#[from] MoveError),
    /// A queue of a pool is where the pool has it.
    #[error("export '{export}' is served by pool '{pool}', which places its queues")]
    Pooled {
        /// The export.
        export: String,
        /// The pool.
        pool: String,
    },
    /// A queue that has no pool in which it could stay.
    #[error(
        "export '{0}' is served by no pool of iothreads: its queues stay where they are anyway"
    )]
    NoPool(String),
    /// An iothread that a pool does not have, or a queue that an export does not have.
    #[error("there is no {what} {number}; there are {count}, the first is 0")]
    NoNumber {
        /// What it should be.
        what: String,
        /// The number.
        number: u16,
        /// How many there are.
        count: usize,
    },
    /// There is an NBD server, and there is only one.
    #[error("NBD server already running")]
    NbdServerRuns,
    /// There is no NBD server.
    #[error("NBD server not running")]
    NoNbdServer,
    /// The fences have no way there.
    #[error(
        "NBD server: commands may listen on {address} only with --allow-listen HOST:PORT, with the host as a number"
    )]
    MayNotListen {
        /// Where it should listen.
        address: ListenAddress,
    },
    /// The fences have no way to the server of a node.
    #[error(
        "NBD server {address}: commands may connect to it only with --allow-connect HOST:PORT, written in the same way; \
         to a UNIX socket if it is below a directory of --allow-below and there is --allow-connect, too"
    )]
    MayNotConnect {
        /// The server.
        address: ServerAddress,
    },
    /// A client of a cluster can only be made before the fences are up.
    #[error(
        "a node of driver=rbd is for the command line: behind the fences its library cannot be loaded and its \
         configuration not be read; --sandbox off lets commands make one"
    )]
    ClusterAtRunTime,
    /// There is no descriptor that a command could name.
    #[error("server.type=fd is for the command line: a monitor passes no descriptors")]
    DescriptorAtRunTime,
    /// There is no such queue now.
    #[error("export '{export}' has no queue {queue} that is served now")]
    NotRunning {
        /// The export.
        export: String,
        /// The queue.
        queue: u16,
    },
}

/// What is not there at once is not waited for: whoever asks can ask again.
#[derive(Debug)]
pub struct NoWait;

impl InterruptibleWait for NoWait {
    fn pause(&mut self, _: Duration) -> WaitResult {
        WaitResult::Stop
    }

    fn done(&mut self) {}
}

impl DaemonState {
    /// From now on, what is served with is kept in that file: first what there is now.
    pub fn keep_state(&mut self, mut file: StateFile) -> Result<(), ControlError> {
        file.write(&self.configuration()?)?;
        self.state_file = Some(file);
        Ok(())
    }

    /// Whether what is served with is not what the command line made.
    pub fn is_changed(&self) -> bool {
        self.is_changed
    }

    /// What is served with was made by commands, in this process or in one before it.
    pub fn set_changed(&mut self) {
        self.is_changed = true;
    }

    /// The file in which it is kept.
    pub fn state_file(&self) -> Option<&StateFile> {
        self.state_file.as_ref()
    }

    /// Keeps what there is now, if it is kept at all.
    pub(super) fn keep(&mut self) -> Result<(), ControlError> {
        self.is_changed = true;
        let Some(mut file) = self.state_file.take() else { return Ok(()) };
        let kept = self.configuration().map_err(ControlError::from);
        reached(CommandStep::Keeping);
        let kept = kept.and_then(|now| Ok(file.write(&now)?));
        reached(CommandStep::Kept);
        self.state_file = Some(file);
        kept
    }

    /// The graph below the exports.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// The objects, by id.
    pub fn objects(&self) -> impl Iterator<Item = &ObjectOptions> {
        self.objects.values()
    }

    /// Gives an iothread or a throttle group other settings, kept.
    pub fn change_object(&mut self, object: &ObjectOptions) -> Result<(), ControlError> {
        let missing = || ModelError::NoObject(object.id.clone());
        let before = self.objects.get(&object.id).cloned().ok_or_else(missing)?;
        let is_fixed = match &object.kind {
            ObjectKind::Iothread(_) | ObjectKind::ThrottleGroup(_) => false,
            ObjectKind::IothreadPool(pool) => {
                let is_changeable = |before: &PoolOptions| pool.is_but_for_mode(before);
                !before.pool().is_some_and(is_changeable)
            }
            ObjectKind::Secret(_)
            | ObjectKind::MainLoop
            | ObjectKind::TlsCredsX509(_)
            | ObjectKind::Authorization(_) => true,
        };
        if before.name() != object.name() || is_fixed {
            return Err(ModelError::FixedObject(object.id.clone()).into());
        }
        self.set_object(object);
        self.keep().inspect_err(|_| self.set_object(&before))
    }

    fn set_object(&mut self, object: &ObjectOptions) {
        match &object.kind {
            ObjectKind::Iothread(polling) => {
                self.iothreads[&object.id].set_polling(settings(*polling));
            }
            ObjectKind::ThrottleGroup(limits) => self.graph.set_limits(&object.id, *limits),
            ObjectKind::IothreadPool(options) => self.set_pool_mode(&object.id, options.mode),
            ObjectKind::Secret(_)
            | ObjectKind::MainLoop
            | ObjectKind::TlsCredsX509(_)
            | ObjectKind::Authorization(_) => {}
        }
        self.objects.insert(object.id.clone(), object.clone());
    }

    /// Gives a delay other settings, kept. What waits by then waits as it was to.
    pub fn set_delay(&mut self, fields: OptionFields) -> Result<(), ControlError> {
        let before = self.graph.set_delay(fields)?;
        self.keep().inspect_err(|_| self.graph.restore_delay(before))
    }

    /// [`DaemonState::add_object`], kept.
    pub fn add_object_at_run_time(&mut self, object: &ObjectOptions) -> Result<(), ControlError> {
        self.add_object(object)?;
        if self.state_file.is_some() && object.kept().is_none() {
            tracing::warn!("secret {}: is not kept for a restart; one in a file is", object.id);
        }
        self.keep()
            .inspect_err(|_| self.forget(|it| it.remove_object(&object.id).map_err(Into::into)))
    }

    /// [`DaemonState::remove_object`], kept.
    pub fn remove_object_at_run_time(&mut self, id: &str) -> Result<(), ControlError> {
        let before = self.objects.get(id).cloned();
        if before.as_ref().is_some_and(|object| object.kind == ObjectKind::MainLoop) {
            // The first thread stays.
            return Err(ModelError::ObjectInUse(id.to_owned()).into());
        }
        self.remove_object(id)?;
        self.keep().inspect_err(|_| {
            if let Some(object) = &before {
                self.forget(|it| it.add_object(object).map_err(Into::into));
            }
        })
    }

    /// [`DaemonState::add_node`], kept; a volatile one is kept as long as an export or a node that is kept stands on it.
    pub fn add_node_at_run_time(
        &mut self,
        blockdev: &Blockdev,
        policy: StatePolicy,
    ) -> Result<(), ControlError> {
        self.check_may_connect(blockdev)?;
        self.add_node(blockdev)?;
        let name = blockdev.name_below("", "");
        if policy == StatePolicy::Volatile {
            self.graph.set_volatile(&name);
        }
        self.keep().inspect_err(|_| self.forget(|it| it.remove_node(&name).map_err(Into::into)))
    }

    /// [`DaemonState::remove_node`], kept. After an error of the state file the node is gone until a restart.
    pub fn remove_node_at_run_time(&mut self, name: &str) -> Result<(), ControlError> {
        self.remove_node(name)?;
        self.keep()
    }

    /// Makes an export and serves it. A lock that another process has is not waited for. Blocks.
    pub fn add_export_at_run_time(
        &mut self,
        options: &ExportOptions,
        memory: &GuestMemoryOptions,
    ) -> Result<(), ControlError> {
        if let (ExportKind::Nbd(_), None) = (&options.kind, &self.nbd_server) {
            return Err(ControlError::NoNbdServer);
        }
        if options.access() == Access::ReadWrite {
            self.check_no_job_written(&options.node_name)?;
        }
        let mut options = options.clone();
        if let Some(own) = options.vhost_user_blk_mut() {
            (own.socket.mode, own.socket.group) = self.socket_rights.clone();
        }
        let options = &options;
        let bytes_max = memory.session_bytes_max(self.exports.len() + 1);
        let prepared = self.prepare_export(options, bytes_max)?;
        let id = options.id.clone();
        let devices = self.exports.iter().filter_map(|it| Some(it.vhost_user_blk()?.offer()));
        let disks: Vec<_> = devices.chain(prepared.vhost_user_blk().map(|it| &**it)).collect();
        exports::share_descriptors(&disks);
        let rate = &mut LogRateLimit::default();
        let policy = &mut WaitPolicy { limit: Duration::ZERO, wait: &mut NoWait, rate };
        let started = self.claim(&prepared, policy).map_err(ControlError::from).and_then(|()| {
            let listening = Self::listen(prepared)?;
            reached(CommandStep::Listening);
            self.keep()?;
            Ok(self.start(listening, None)?)
        });
        // What was kept is kept without it then.
        started.inspect_err(|_| {
            self.forget(|it| it.take_back_export(&id).and_then(|()| it.keep()));
        })
    }

    /// [`DaemonState::remove_export`], kept; also if what was written could not be made durable.
    pub fn remove_export_at_run_time(&mut self, id: &str) -> Result<(), ControlError> {
        let exports = self.exports.len();
        let removed = self.remove_export(id);
        if self.exports.len() < exports {
            reached(CommandStep::Removed);
            self.keep()?;
        }
        Ok(removed?)
    }

    /// The changes that put an image on a node: all who stand on the node stand on the image then, and the node is its
    /// backing file.
    pub fn snapshot(&self, node: &str, overlay: &str) -> Result<Vec<EdgeChange>, ControlError> {
        Ok(self.graph.snapshot(node, overlay)?)
    }

    /// The changes that put a filter between a node and all who use it.
    pub fn insert_filter(&self, node: &str, filter: &str) -> Result<Vec<EdgeChange>, ControlError> {
        Ok(self.graph.insert_filter(node, filter)?)
    }

    /// The changes that have all who use a filter use its node instead.
    pub fn remove_filter(&self, filter: &str) -> Result<Vec<EdgeChange>, ControlError> {
        Ok(self.graph.remove_filter(filter)?)
    }

    /// The changes that make a node that is there as it is described anew.
    pub fn reopen(&self, blockdev: &Blockdev) -> Result<NodeReopening, ControlError> {
        self.check_may_connect(blockdev)?;
        Ok(self.graph.reopen(blockdev)?)
    }

    /// Lets go of an export that has not begun to serve.
    fn take_back_export(&mut self, id: &str) -> Result<(), ControlError> {
        self.graph.remove_export(id)?;
        self.export_options.remove(id);
        self.pools.values().for_each(|pool| pool.remove(id));
        self.claimed.retain(|claimed| claimed.id != id);
        Ok(())
    }

    /// Takes back what was done, which nobody uses yet.
    fn forget(&mut self, undo: impl FnOnce(&mut Self) -> Result<(), ControlError>) {
        if let Err(error) = undo(self) {
            tracing::error!("what failed could not be taken back: {}", host::chain_of(&error));
        }
    }
}
