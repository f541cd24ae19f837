//! The old process: hands its exports over to a new one that asks for them.
//!
//! Invariants: nothing is served from the moment all exports are frozen until it is known who goes on, and that is
//! decided here, by one message: if [`Message::Commit`] has been sent, the new process, and this one submits nothing
//! any more; if not, this one, which first ends a new process that hangs. Images and locks are not touched meanwhile.
//! Threads: the first one. Whoever asks is checked before anything is read.
//! Limits: [`DRAIN_LIMIT`] for requests in flight, and [`QUICK_LIMIT`] for exports that have none any more;
//! [`READY_LIMIT`] for the new process, and [`END_LIMIT`] for its end.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use block::{Clock, LogRateLimit};
use control::DaemonState;
use control::RunningExport;
use exports::{Export, FreezeRequest, FrozenExport, monotonic};
use graph::{GraphPath, NODE};
use host::chain_of;
use qcow2::{ImageHandOverError, ImageState};
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};
use rustix::process::{Signal, pidfd_send_signal};

use super::bitmaps;
use super::hand_over::{self, ExportHandOver};
use super::limits::{ANSWER_LIMIT, DRAIN_LIMIT, Deadline, READY_LIMIT, VERSION};
use super::protocol::{self, Message, OfferedExport, TakeoverConnection, WireError};

/// How long exports that have nothing in flight any more wait for the others: then they go on until those have
/// finished, and are asked again.
const QUICK_LIMIT: Duration = Duration::from_millis(200);

/// How often exports are asked, if each time another one takes long.
const ROUNDS: u32 = 4;

/// How long a new process that was killed may take to be gone. One that hangs in the kernel changes nothing any more.
const END_LIMIT: Duration = Duration::from_secs(2);

/// How long all images may take to free clusters that they have begun to free: they do so side by side.
const WORK_LIMIT: Duration = Duration::from_secs(1);

/// The socket on which a new process asks for a takeover.
#[derive(Debug)]
pub struct TakeoverListener {
    listener: OwnedFd,
}

/// Whether this process was taken over, and by which.
#[derive(Debug)]
pub enum TakeoverResult {
    /// This process goes on.
    Refused,
    /// The other one goes on; its id.
    HandedOver(u32),
}

/// The process that wants to take over.
#[derive(Debug)]
struct Successor {
    wire: TakeoverConnection,
    process: u32,
    /// To end it.
    hold: io::Result<OwnedFd>,
}

impl TakeoverListener {
    /// A bell that new processes find by this one's id. Without one, they can only end it.
    pub fn open() -> Option<Self> {
        match protocol::listen() {
            Ok(listener) => Some(Self { listener }),
            Err(error) => {
                tracing::warn!("no new process can take over in place: {error}");
                None
            }
        }
    }

    /// The process that has rung.
    fn visitor(&self) -> Result<Successor, Rejection> {
        let fd = accept_with(&self.listener, SocketFlags::CLOEXEC).map_err(WireError::from)?;
        let wire = TakeoverConnection::of(fd);
        let peer = wire.peer()?;
        if peer.user != 0 && peer.user != rustix::process::geteuid().as_raw() {
            return Err(Rejection::User { user: peer.user });
        }
        let hold = wire.peer_process();
        Ok(Successor { wire, process: peer.process.unwrap_or(0), hold })
    }
}

impl AsFd for TakeoverListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

/// Why this process keeps its exports.
#[derive(Debug, thiserror::Error)]
enum Rejection {
    #[error("user {user} may not take over")]
    User { user: u32 },
    #[error(transparent)]
    Wire(#[from] WireError),
    #[error("the new process speaks version {version} and this one version {VERSION}")]
    Version { version: u32 },
    #[error("export {export} is not on the new command line, and nobody would serve it")]
    Missing { export: String },
    #[error("export {export} is served over NBD, and its clients cannot be handed over")]
    Nbd { export: String },
    #[error("node {node} has the lock of an image of a Ceph cluster, which cannot be handed over")]
    Cluster { node: String },
    #[error("node {node} keeps a disk as it was, which a new process would not know")]
    Snapshot { node: String },
    #[error("block job '{job}' runs, and cannot be handed over; wait for its end, or cancel it")]
    Job { job: String },
    #[error(transparent)]
    Server(#[from] graph::RemoteFlushError),
    #[error("disk {path}: an earlier flush failed, which a new process would not know")]
    FailedFlush { path: String },
    #[error("export {export}: its requests were not finished within {} s", DRAIN_LIMIT.as_secs())]
    Busy { export: String },
    #[error("export {export}: its guest is being migrated")]
    Migrating { export: String },
    #[error("export {export}: its session ended meanwhile")]
    SessionEnded { export: String },
    #[error("export {export}: image {place}: {source}")]
    Image {
        export: String,
        place: String,
        #[source]
        source: ImageHandOverError,
    },
    #[error("export {export}: cannot copy its descriptors")]
    Copy {
        export: String,
        #[source]
        source: io::Error,
    },
}

/// Somebody has rung: hands everything over, or goes on. `rate` is that of what strangers cause. Blocks.
pub fn answer(
    takeover_listener: &TakeoverListener,
    built: &DaemonState,
    clock: &dyn Clock,
    rate: &mut LogRateLimit,
) -> TakeoverResult {
    let successor = match takeover_listener.visitor() {
        Ok(successor) => successor,
        Err(error) => {
            if rate.admit(clock.now()).is_some() {
                tracing::warn!("takeover: {}", chain_of(&error));
            }
            return TakeoverResult::Refused;
        }
    };
    let (wire, process) = (&successor.wire, successor.process);
    let until = Deadline::within(ANSWER_LIMIT);
    let result = wire.receive(until).map_err(Rejection::from);
    if let Ok(Message::AskConfiguration { version: VERSION }) = result {
        let told = wire.tell_configuration(&configuration_text(built), until);
        if let Err(error) = told.map_err(Rejection::from) {
            tracing::debug!("process {process} asks what is served with: {}", chain_of(&error));
        }
        return TakeoverResult::Refused;
    }
    let result = result
        .and_then(|hello| agree(wire, built, hello, until))
        // Almost all of it while guests run.
        .and_then(|()| flush_servers(built))
        .and_then(|()| freeze_all(built))
        .and_then(|held| flush_servers(built).map(|()| held))
        .and_then(|held| Ok((images(built)?, held)));
    let rejection = match result {
        Ok((images, held)) => return hand_over(&successor, built, held, &images),
        Err(rejection) => rejection,
    };
    tracing::warn!("process {process} does not take over: {}", chain_of(&rejection));
    let told = if let Rejection::Version { .. } = rejection {
        Message::OtherVersion { version: VERSION }
    } else {
        Message::Refused { reason: chain_of(&rejection).to_string() }
    };
    // It may be gone.
    drop(wire.send(&told, &[], Deadline::within(ANSWER_LIMIT)));
    TakeoverResult::Refused
}

/// Finds out whether the new process would go on with everything. Nothing is touched.
#[expect(clippy::wildcard_enum_match_arm, reason = "whatever else is said is not due here")]
fn agree(
    wire: &TakeoverConnection,
    built: &DaemonState,
    hello: Message,
    until: Deadline,
) -> Result<(), Rejection> {
    let sockets = match hello {
        Message::Hello { version: VERSION, sockets } => sockets,
        Message::Hello { version, .. } | Message::AskConfiguration { version } => {
            return Err(Rejection::Version { version });
        }
        other => return Err(other.unexpected().into()),
    };
    let exports = devices(built)?;
    let asked = |export: &&&Export| sockets.contains(&export.socket());
    if let Some(export) = exports.iter().find(|export| !asked(export)) {
        return Err(Rejection::Missing { export: export.disk().id.clone() });
    }
    if let Some(job) = built.graph().model().jobs().next() {
        return Err(Rejection::Job { job: job.to_owned() });
    }
    if let Some(node) = built.graph().client_of_cluster() {
        return Err(Rejection::Cluster { node: node.to_owned() });
    }
    check_flushes(built)?;
    check_snapshots(built)?;
    for export in exports {
        wire.offer(offered(built, export), until)?;
    }
    wire.send(&Message::OfferEnd, &[], until)?;
    match wire.receive(until)? {
        Message::Proceed => Ok(()),
        other => Err(other.unexpected().into()),
    }
}

/// All exports, if they can be handed over.
fn devices(built: &DaemonState) -> Result<Vec<&Export>, Rejection> {
    let nbd = |export: &RunningExport| Rejection::Nbd { export: export.disk().id.clone() };
    let exports = built.exports().iter();
    exports.map(|export| export.vhost_user_blk().ok_or_else(|| nbd(export))).collect()
}

/// What is served with, if commands have changed it.
fn configuration_text(built: &DaemonState) -> String {
    let text = |configuration| serde_json::to_string(&configuration).expect("it is JSON");
    match built.configuration() {
        Ok(configuration) if built.is_changed() => text(configuration),
        // A new process that goes by its line finds what does not fit.
        Ok(_) | Err(_) => String::new(),
    }
}

/// Makes durable what was written to disks of NBD servers: a flush on a connection of the new process need not cover what was
/// written on one of this process.
fn flush_servers(built: &DaemonState) -> Result<(), Rejection> {
    built.graph().flush_remotes().into_iter().next().map_or(Ok(()), |error| Err(error.into()))
}

fn check_flushes(built: &DaemonState) -> Result<(), Rejection> {
    match built.files().all().iter().find(|file| file.medium().has_failed_sync()) {
        Some(file) => Err(Rejection::FailedFlush { path: file.path().display().to_string() }),
        None => Ok(()),
    }
}

fn check_snapshots(built: &DaemonState) -> Result<(), Rejection> {
    let graph = built.graph();
    let keeps = |name: &&str| graph.node(name).is_ok_and(|node| node.snapshot().is_some());
    match graph.model().names(NODE).into_iter().find(keeps) {
        Some(node) => Err(Rejection::Snapshot { node: node.to_owned() }),
        None => Ok(()),
    }
}

fn offered(built: &DaemonState, export: &Export) -> OfferedExport {
    let (disk, config) = (export.disk(), &export.offer().config);
    OfferedExport {
        socket: export.socket(),
        id: disk.id.clone(),
        bytes: disk.size.capacity().get().0.0,
        logical_block: config.logical_block,
        queues: config.queues,
        features: config.features().0,
        nodes: built.describe(&disk.id),
    }
}

/// An export whose rings are stopped for a takeover, with what will be sent.
struct StoppedExport {
    freeze: FreezeRequest,
    handed_over: ExportHandOver,
}

/// Stops the rings of all exports. After an error they go on. Those that take long are waited for first, while the
/// others are served, so that these stand still for as long as all together need.
fn freeze_all(built: &DaemonState) -> Result<Vec<StoppedExport>, Rejection> {
    let until = Deadline::within(DRAIN_LIMIT);
    let exports = devices(built)?;
    let mut held: Vec<Option<StoppedExport>> = exports.iter().map(|_| None).collect();
    for _ in 0..ROUNDS {
        let missing = held.iter().enumerate().filter(|(_, held)| held.is_none());
        let missing: Vec<usize> = missing.map(|(place, _)| place).collect();
        let asked: Vec<FreezeRequest> =
            missing.iter().map(|place| exports[*place].freeze()).collect();
        let (began, quick) = (monotonic(), Deadline::within(QUICK_LIMIT));
        let mut late = Vec::new();
        for (place, freeze) in missing.into_iter().zip(asked) {
            match finish(exports[place], freeze, began, quick)? {
                Ok(done) => held[place] = Some(done),
                Err(freeze) => late.push((place, freeze)),
            }
        }
        if late.is_empty() {
            // What was in flight may have failed.
            check_flushes(built)?;
            return Ok(held.into_iter().flatten().collect());
        }
        // Dropped, the others go on.
        held.iter_mut().for_each(|held| *held = None);
        for (place, freeze) in late {
            match finish(exports[place], freeze, began, until)? {
                Ok(done) => held[place] = Some(done),
                Err(_) => {
                    return Err(Rejection::Busy { export: exports[place].disk().id.clone() });
                }
            }
        }
    }
    let export = held.iter().position(Option::is_none).unwrap_or(0);
    Err(Rejection::Busy { export: exports[export].disk().id.clone() })
}

/// Waits until an export serves nothing any more; if it takes longer, its question is given back.
fn finish(
    export: &Export,
    freeze: FreezeRequest,
    stopped: Duration,
    until: Deadline,
) -> Result<Result<StoppedExport, FreezeRequest>, Rejection> {
    let id = || export.disk().id.clone();
    let FrozenExport { listener, next, session } = match freeze.frozen.recv_timeout(until.left()) {
        Ok(frozen) => frozen.map_err(|source| Rejection::Copy { export: id(), source })?,
        Err(RecvTimeoutError::Timeout) => return Ok(Err(freeze)),
        Err(RecvTimeoutError::Disconnected) => {
            return Err(Rejection::SessionEnded { export: id() });
        }
    };
    if session.as_ref().is_some_and(|(_, state)| state.is_logging) {
        return Err(Rejection::Migrating { export: id() });
    }
    let cache = *export.offer().cache.lock().expect("no holder of this lock panics");
    let (socket, is_given) = (export.socket(), export.is_socket_given());
    let held = export.disk().claim.is_held();
    let handed_over =
        ExportHandOver { socket, is_given, cache, stopped, listener, next, session, held };
    Ok(Ok(StoppedExport { freeze, handed_over }))
}

/// What images in use have in memory alone, each once.
fn images(built: &DaemonState) -> Result<Vec<(GraphPath, ImageState)>, Rejection> {
    let (mut states, until) = (Vec::new(), Deadline::within(WORK_LIMIT));
    for (at, image) in built.images() {
        let failed = |source| {
            let (export, place) = at.clone();
            Rejection::Image { export, place, source }
        };
        if let Some(state) = image.state(until.left()).map_err(failed)? {
            states.push((at, state));
        }
    }
    Ok(states)
}

/// Gives everything to the new process, and goes on itself if that is not ready in time.
fn hand_over(
    successor: &Successor,
    built: &DaemonState,
    held: Vec<StoppedExport>,
    images: &[(GraphPath, ImageState)],
) -> TakeoverResult {
    let process = successor.process;
    match send_all(&successor.wire, built, &held, images) {
        Ok(()) => {
            built.leave();
            for (export, StoppedExport { freeze, handed_over: _ }) in
                built.exports().iter().filter_map(RunningExport::vhost_user_blk).zip(held)
            {
                export.give_away(&freeze);
            }
            TakeoverResult::HandedOver(process)
        }
        Err(error) => {
            tracing::warn!("process {process} has not taken over: {}", chain_of(&error));
            match error {
                // It has closed the connection, on which alone it could be told to go on.
                WireError::Ended => {}
                WireError::Silent
                | WireError::TooLong(..)
                | WireError::Kernel(_)
                | WireError::Form(_)
                | WireError::Unexpected(..) => successor.end(),
            }
            // Dropped, what is held goes on.
            drop(held);
            TakeoverResult::Refused
        }
    }
}

/// Sends everything and, when the new process is ready, that it goes on. After an error it has not been told so, and
/// never will be.
#[expect(clippy::wildcard_enum_match_arm, reason = "whatever else is said is not due here")]
fn send_all(
    wire: &TakeoverConnection,
    built: &DaemonState,
    held: &[StoppedExport],
    images: &[(GraphPath, ImageState)],
) -> Result<(), WireError> {
    let until = Deadline::within(READY_LIMIT);
    for StoppedExport { handed_over, .. } in held {
        hand_over::send(wire, handed_over, until)?;
    }
    for ((export, place), file) in built.files_below() {
        let message = Message::File { export, place, locks: file.locks().bits() };
        wire.send(&message, &[file.as_fd()], until)?;
    }
    for (place, state) in images {
        hand_over::send_image(wire, place, state, until)?;
    }
    bitmaps::send(wire, built, until)?;
    wire.send(&Message::End, &[], until)?;
    match wire.receive(until)? {
        Message::Ready => wire.send(&Message::Commit, &[], until),
        other => Err(other.unexpected()),
    }
}

impl Successor {
    /// Ends a process that was not told to go on. It has changed nothing, and cannot any more when this returns: once
    /// it was killed it runs no instruction of its own, even if it hangs in the kernel.
    fn end(&self) {
        let process = self.process;
        let complain = |why: &dyn std::fmt::Display| {
            tracing::warn!("process {process} cannot be ended, and is not told to go on: {why}");
        };
        let hold = match &self.hold {
            Ok(hold) => hold,
            Err(error) => return complain(error),
        };
        match pidfd_send_signal(hold, Signal::KILL) {
            Ok(()) | Err(Errno::SRCH) => {}
            Err(errno) => return complain(&errno),
        }
        match host::has_ended(hold, END_LIMIT) {
            Ok(true) => tracing::info!("process {process} was ended"),
            Ok(false) => {
                let seconds = END_LIMIT.as_secs();
                tracing::warn!(
                    "process {process} was killed and is not gone after {seconds} s: it hangs in the kernel"
                );
            }
            Err(error) => tracing::warn!("the end of process {process} is not seen: {error}"),
        }
    }
}
