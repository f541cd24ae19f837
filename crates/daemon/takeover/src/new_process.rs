//! The new process: finds the old one, lets it hand over, and goes on.
//!
//! Invariants: everything that can fail is done while the old process can still go on: sessions and memory are built,
//! images loaded and claimed, without a change on any of them, before it hears that this process is ready. Only then,
//! and only when it says so, this process owns the images and serves. Sockets that nobody serves are made first, unless
//! they use what is being served: that comes last, with the locks that changed hands; then one old process is replaced,
//! or told to end if it cannot hand over, and front ends connect again. Here only clients that were handed over are
//! served; all others wait to be accepted until the process is behind its fences. What fails after the old process has
//! ended its service is said, and no reason to leave those that can be served. Limits: [`TRIES`],
//! [`FIRST_ANSWER_LIMIT`], [`COMMIT_LIMIT`], [`END_LIMIT`]. Threads: the first one. A signal ends each wait.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use control::{Configuration, DaemonState, ListeningExport, PreparedExport};
use exports::{
    AdoptedSession, Export, ExportSocket, SocketIdentity, TakeoverPauseStart, VhostUserBlkDisk,
    WaitPolicy, WaitResult, monotonic,
};
use graph::NodeDescription;
use host::{Pidfile, chain_of};
use rustix::process::{Signal, pidfd_send_signal};
use vhost_user::SessionError;
use virtio::Features;

use super::bitmaps;
use super::error::{END_LIMIT, TakeoverError};
use super::hand_over::{self, ExportHandOver, HandOverState};
use super::limits::{ANSWER_LIMIT, Deadline, VERSION};
use super::protocol::{
    Message, OfferedExport, TakeoverConnection, TakeoverOfferResult, WireError, listener_at,
};
use super::server::{OccupiedSocket, check_program, open_pidfd, server_at, server_of};

/// How often an old process may be gone, or replaced by another one, before it could hand over.
const TRIES: u32 = 10;

/// The rest between two tries.
const REST: Duration = Duration::from_millis(50);

/// How long the old process may take to answer: it may be handing over to another one just now.
const FIRST_ANSWER_LIMIT: Duration = Duration::from_secs(30);

/// How long the old process may take to say that this one goes on. It says so at once, or not at all.
const COMMIT_LIMIT: Duration = Duration::from_secs(10);

/// The process that was taken over: its id and its pidfd.
#[derive(Debug)]
pub struct PredecessorProcess {
    process: u32,
    pidfd: OwnedFd,
}

/// How an old process replies: hands over, cannot, or is gone.
enum TakeoverReply {
    /// Its exports.
    Given(TakeoverConnection, HandOverState),
    /// It cannot hand over in this way.
    Unable,
    /// It has ended, or is about to.
    Gone,
}

/// An export, and the socket of it that another process serves.
type TakeoverCandidate = (PreparedExport, OccupiedSocket);

/// Why an export with a socket of its own is one of vhost-user-blk.
const HAS_A_SOCKET: &str = "only exports of vhost-user-blk have sockets that somebody serves";

/// The device of an export whose socket is served.
fn device(prepared: &PreparedExport) -> &Arc<VhostUserBlkDisk> {
    prepared.vhost_user_blk().expect(HAS_A_SOCKET)
}

/// What a takeover came to: exports to be started, and the predecessor.
#[derive(Debug)]
pub struct TakeoverOutcome {
    /// Exports whose clients are to be accepted.
    pub listening: Vec<ListeningExport>,
    /// Whose place was taken, if anybody's.
    pub predecessor: Option<PredecessorProcess>,
}

/// Carries a plan that was prepared out in the place of the process that serves its sockets; plainly
/// if there is none. There are sockets before this returns, so a signal must not end the process at
/// once any more. Blocks.
pub fn take_over(
    prepared: Vec<PreparedExport>,
    pidfile: Option<&Path>,
    built: &mut DaemonState,
    policy: &mut WaitPolicy<'_>,
) -> Result<TakeoverOutcome, TakeoverError> {
    let (mut rest, mut listening) = (prepared, Vec::new());
    let mut last = 0;
    for _ in 0..TRIES {
        let (served, beside) = listen_fresh(built, rest, &mut listening, policy)?;
        let Some(process) = only_server(&served)? else {
            return Ok(TakeoverOutcome { listening, predecessor: None });
        };
        last = process;
        let predecessor = PredecessorProcess { process, pidfd: open_pidfd(process)? };
        // The id may have become another's before it was held: it has not if it still listens.
        let first = &served[0].1;
        if server_of(&first.path)?.as_ref() == Some(first) {
            if let Some(path) = pidfile {
                Pidfile::check(path, process)?;
            }
            match ask(process, built, &served, policy)? {
                TakeoverReply::Given(wire, transfer) => {
                    listening.extend(go_on(process, built, served, &wire, transfer, policy)?);
                    listening.extend(listen_beside(built, beside, policy));
                    return Ok(TakeoverOutcome { listening, predecessor: Some(predecessor) });
                }
                TakeoverReply::Unable => {
                    check_program(process)?;
                    let since = predecessor.end(policy)?;
                    let resumption = TakeoverPauseStart { since, process };
                    listening.extend(listen_all(resumption, built, served, policy)?);
                    listening.extend(listen_beside(built, beside, policy));
                    return Ok(TakeoverOutcome { listening, predecessor: Some(predecessor) });
                }
                TakeoverReply::Gone => {}
            }
        }
        if policy.wait.pause(REST) == WaitResult::Stop {
            return Err(TakeoverError::Stopped);
        }
        policy.wait.done();
        rest = served.into_iter().map(|(prepared, _)| prepared).chain(beside).collect();
    }
    Err(TakeoverError::Restless(last))
}

/// What commands have made of what the process serves with that serves the first of these sockets; `None` if there is no
/// such process, no command has changed anything, or it cannot say. Paths are absolute. Blocks.
pub fn configuration_of(sockets: &[&Path]) -> Result<Option<Configuration>, TakeoverError> {
    let Some(process) = listener_at(sockets) else { return Ok(None) };
    let broken = |source| TakeoverError::Broken { process, source };
    let Some(wire) = connect(process)? else { return Ok(None) };
    let asked = Message::AskConfiguration { version: VERSION };
    let said = wire.send(&asked, &[], Deadline::within(ANSWER_LIMIT));
    let text = match said.and_then(|()| wire.receive_configuration()) {
        Ok(text) if text.is_empty() => return Ok(None),
        Ok(text) => text,
        // One that is older, or is about to end, is asked in its own way next.
        Err(WireError::Ended | WireError::Silent) => return Ok(None),
        Err(error) => return Err(broken(error)),
    };
    let read = serde_json::from_str(&text).map_err(WireError::Form).map_err(broken)?;
    Ok(Some(read))
}

/// Claims and listens on what nobody serves yet; gives back the rest: what is served, and what is not, or not by a socket of
/// its own, but may stand on the same files.
fn listen_fresh(
    built: &mut DaemonState,
    exports: Vec<PreparedExport>,
    listening: &mut Vec<ListeningExport>,
    policy: &mut WaitPolicy<'_>,
) -> Result<(Vec<TakeoverCandidate>, Vec<PreparedExport>), TakeoverError> {
    let mut served = Vec::new();
    let mut fresh = Vec::new();
    for prepared in exports {
        let own = prepared.options.vhost_user_blk();
        match own.map(|own| server_at(&own.socket)).transpose()?.flatten() {
            Some(found) => served.push((prepared, found)),
            None => fresh.push(prepared),
        }
    }
    only_server(&served)?;
    let stands_beside = |prepared: &PreparedExport| {
        // Of one without a socket nobody can say who serves it: that is asked first.
        let is_unknown = prepared.vhost_user_blk().is_none() && !served.is_empty();
        let shares =
            |(served, _): &TakeoverCandidate| built.share_files(&served.disk, &prepared.disk);
        is_unknown || served.iter().any(shares)
    };
    let (beside, alone): (Vec<_>, Vec<_>) = fresh.into_iter().partition(stands_beside);
    // Before any wait for a lock: somebody may serve its image on a socket that has lost its name.
    if served.is_empty() {
        tracing::info!("no process serves these sockets: nothing to take over");
    } else {
        for PreparedExport { options, .. } in &alone {
            let Some(own) = options.vhost_user_blk() else { continue };
            let path = own.socket.path.display();
            tracing::info!("export {}: no process serves {path}", options.id);
        }
    }
    for prepared in alone {
        listening.push(listen(built, prepared, policy)?);
    }
    Ok((served, beside))
}

/// Claims and listens on what uses the files of exports that were taken over. Those are served now, which counts more
/// than what fails here.
fn listen_beside(
    built: &mut DaemonState,
    beside: Vec<PreparedExport>,
    policy: &mut WaitPolicy<'_>,
) -> Vec<ListeningExport> {
    let mut listening = Vec::new();
    for prepared in beside {
        match listen(built, prepared, policy) {
            Ok(ready) => listening.push(ready),
            Err(error) => tracing::error!("{}; serving the others", chain_of(&error)),
        }
    }
    listening
}

/// Claims what an export needs, and makes its socket.
fn listen(
    built: &mut DaemonState,
    prepared: PreparedExport,
    policy: &mut WaitPolicy<'_>,
) -> Result<ListeningExport, TakeoverError> {
    built.claim(&prepared, policy)?;
    Ok(DaemonState::listen(prepared)?)
}

/// The one process that serves all these, if any does.
fn only_server(served: &[TakeoverCandidate]) -> Result<Option<u32>, TakeoverError> {
    let Some((_, first)) = served.first() else { return Ok(None) };
    match served.iter().find(|(_, found)| found.process != first.process) {
        None => Ok(Some(first.process)),
        Some((_, other)) => Err(TakeoverError::Several {
            path: first.path.clone(),
            process: first.process,
            other_path: other.path.clone(),
            other: other.process,
        }),
    }
}

/// Asks the old process for its exports. It stops its rings only when all is well.
fn ask(
    process: u32,
    built: &DaemonState,
    served: &[TakeoverCandidate],
    policy: &mut WaitPolicy<'_>,
) -> Result<TakeoverReply, TakeoverError> {
    let broken = |source| TakeoverError::Broken { process, source };
    let Some(wire) = connect(process)? else { return Ok(TakeoverReply::Unable) };
    let sockets = served.iter().map(|(_, found)| found.file).collect();
    let until = Deadline::within(ANSWER_LIMIT);
    let said = wire.send(&Message::Hello { version: VERSION, sockets }, &[], until);
    if said.is_ok() {
        await_answer(&wire, FIRST_ANSWER_LIMIT, policy)?;
    }
    let exports = match said.and_then(|()| wire.receive_offers()) {
        Ok(TakeoverOfferResult::All(exports)) => exports,
        Ok(TakeoverOfferResult::Refused(reason)) => {
            return Err(TakeoverError::Refused { process, reason });
        }
        Ok(TakeoverOfferResult::OtherVersion(version)) => {
            tracing::info!("process {process} hands over by version {version}, not {VERSION}");
            return Ok(TakeoverReply::Unable);
        }
        Err(WireError::Ended) => return Ok(TakeoverReply::Gone),
        Err(error) => return Err(broken(error)),
    };
    for (prepared, found) in served {
        let offered = exports.iter().find(|it| it.socket == found.file);
        check(built, prepared, offered, process)?;
    }
    wire.send(&Message::Proceed, &[], Deadline::within(ANSWER_LIMIT)).map_err(broken)?;
    await_answer(&wire, hand_over::FIRST_LIMIT, policy)?;
    match hand_over::receive(&wire, served.len()).map_err(broken)? {
        Ok(transfer) => Ok(TakeoverReply::Given(wire, transfer)),
        Err(reason) => Err(TakeoverError::Refused { process, reason }),
    }
}

/// A connection to the old process, if it can be asked and this one's user may.
fn connect(process: u32) -> Result<Option<TakeoverConnection>, TakeoverError> {
    let broken = |source| TakeoverError::Broken { process, source };
    let Some(wire) = TakeoverConnection::connect(process).map_err(broken)? else {
        return Ok(None);
    };
    let user = wire.peer().map_err(broken)?.user;
    if ![0, user].contains(&rustix::process::geteuid().as_raw()) {
        return Err(TakeoverError::OtherUser { process, user });
    }
    Ok(Some(wire))
}

/// Waits until the other process has said something, for a bounded time; whoever listens finds out
/// whether it has.
fn await_answer(
    wire: &TakeoverConnection,
    limit: Duration,
    policy: &mut WaitPolicy<'_>,
) -> Result<(), TakeoverError> {
    let until = Deadline::within(limit);
    while !wire.has_message(REST) && !until.left().is_zero() {
        if policy.wait.pause(Duration::ZERO) == WaitResult::Stop {
            return Err(TakeoverError::Stopped);
        }
    }
    policy.wait.done();
    Ok(())
}

/// A guest that runs must find the disk that it has. It may grow, and so may the number of queues.
fn check(
    built: &DaemonState,
    prepared: &PreparedExport,
    offered: Option<&OfferedExport>,
    process: u32,
) -> Result<(), TakeoverError> {
    let (disk, config) = (&prepared.disk, &device(prepared).config);
    let other = |what: &str| {
        let (export, what) = (disk.id.clone(), what.to_owned());
        Err(TakeoverError::OtherDisk { export, what, process })
    };
    let Some(offered) = offered else { return other("socket") };
    if offered.id != disk.id {
        let theirs = &offered.id;
        return other(&format!("id (not {theirs}), which is the disk's serial number,"));
    }
    if let Some(what) = difference(&built.describe(&disk.id), &offered.nodes, process) {
        return other(&what);
    }
    let bytes = disk.size.capacity().get().0.0;
    let (ours, theirs) = (config.features(), Features(offered.features));
    let is_writable = |features: Features| !features.contains(Features::BLK_RO);
    match () {
        () if bytes < offered.bytes => other(&both("size in bytes", bytes, offered.bytes)),
        () if config.logical_block != offered.logical_block => {
            other(&both("logical block size", config.logical_block, offered.logical_block))
        }
        () if config.queues < offered.queues => {
            other(&both("number of queues", config.queues, offered.queues))
        }
        () if is_writable(ours) != is_writable(theirs) => {
            let word = |features| if is_writable(features) { "on" } else { "off" };
            other(&both("writable", word(ours), word(theirs)))
        }
        () if !ours.contains(theirs) => other(&both("set of features", ours, theirs)),
        () => Ok(()),
    }
}

/// What differs, as both processes have it.
fn both(what: &str, ours: impl Display, theirs: impl Display) -> String {
    format!("{what} ({ours} here, {theirs} there)")
}

/// The first thing that two descriptions of nodes do not agree on; the other one is that of this process.
fn difference(ours: &NodeDescription, theirs: &NodeDescription, process: u32) -> Option<String> {
    let keys: BTreeSet<&String> = ours.keys().chain(theirs.keys()).collect();
    // What a node is comes before what it is told.
    let is_image = |key: &str| key.rsplit('.').next() == Some("image");
    let rank = |key: &str| u8::from(!(key.ends_with("driver") || is_image(key)));
    let mut different: Vec<&String> =
        keys.into_iter().filter(|key| ours.get(*key) != theirs.get(*key)).collect();
    different.sort_by_key(|key| rank(key));
    let key = different.first()?;
    let value = |description: &NodeDescription, process| match description.get(*key) {
        None => "nothing".to_owned(),
        Some(file) if is_image(key) => file_of(process, file),
        Some(value) => value.clone(),
    };
    Some(both(key, value(ours, std::process::id()), value(theirs, process)))
}

/// How a file that a process has open is called now, if it can be found out; else its numbers, which were given.
fn file_of(process: u32, numbers: &str) -> String {
    let is_it = |link: &PathBuf| {
        std::fs::metadata(link).is_ok_and(|it| format!("{}:{}", it.dev(), it.ino()) == numbers)
    };
    let links = std::fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten().flatten();
    let name = links.map(|entry| entry.path()).find(is_it).map(std::fs::read_link);
    match name {
        Some(Ok(name)) => name.display().to_string(),
        _ => format!("file {numbers}"),
    }
}

/// Builds the sessions, loads and claims the images, says so, and when the old process says that this one goes on,
/// owns and serves all of it. Gives back the exports without a client.
fn go_on(
    process: u32,
    built: &mut DaemonState,
    served: Vec<TakeoverCandidate>,
    wire: &TakeoverConnection,
    transfer: HandOverState,
    policy: &mut WaitPolicy<'_>,
) -> Result<Vec<ListeningExport>, TakeoverError> {
    let broken = |source| TakeoverError::Broken { process, source };
    let ready = build_all(process, built, served, transfer, policy)?;
    wire.send(&Message::Ready, &[], Deadline::within(ANSWER_LIMIT)).map_err(broken)?;
    await_commit(wire, policy).map_err(|error| match error {
        CommitWaitError::Stopped => TakeoverError::Stopped,
        CommitWaitError::Wire(error) => broken(error),
    })?;
    built.own();
    let (mut listening, mut lost) = (Vec::new(), Vec::new());
    for ReadyExport { prepared, file, listener, next, client } in ready {
        let own = prepared.options.vhost_user_blk().expect(HAS_A_SOCKET);
        let socket = Some(ExportSocket::adopt(listener, next, file, &own.socket));
        let disk = Arc::clone(&prepared.disk);
        let ready = ListeningExport { prepared, socket };
        match client {
            ExportClient::Absent => listening.push(ready),
            ExportClient::Lost(error) => {
                // The old process closes the connection when it leaves.
                tracing::warn!("export {}: session ended: {}", disk.id, chain_of(&error));
                lost.push(disk);
                listening.push(ready);
            }
            ExportClient::Here(adopted) => {
                if let Err(error) = built.start(ready, Some(*adopted)) {
                    tracing::error!("{}", chain_of(&error));
                }
            }
        }
    }
    tracing::info!("process {process} has handed over");
    for disk in lost {
        // What it held only for its client.
        if let Err(error) = disk.claim.end() {
            tracing::error!("export {}: {}", disk.id, chain_of(&error));
        }
    }
    Ok(listening)
}

/// Why the new process stopped waiting for the old one's Commit: a signal, or the connection failed.
enum CommitWaitError {
    Stopped,
    Wire(WireError),
}

/// Waits for the word of the old process. Whoever gives up here first sees to it that it cannot come any more.
fn await_commit(
    wire: &TakeoverConnection,
    policy: &mut WaitPolicy<'_>,
) -> Result<(), CommitWaitError> {
    let waited = await_answer(wire, COMMIT_LIMIT, policy);
    let said = match wire.receive(Deadline::within(Duration::ZERO)) {
        Err(WireError::Silent) => wire
            .shut_down_receive()
            .and_then(|()| wire.receive(Deadline::within(Duration::ZERO)))
            .map_err(|error| if let WireError::Ended = error { WireError::Silent } else { error }),
        said => said,
    };
    match (said, waited) {
        (Ok(Message::Commit), _) => Ok(()),
        (_, Err(_signal)) => Err(CommitWaitError::Stopped),
        (Ok(other), Ok(())) => Err(CommitWaitError::Wire(other.unexpected())),
        (Err(error), Ok(())) => Err(CommitWaitError::Wire(error)),
    }
}

/// An export that only waits for the commit.
struct ReadyExport {
    prepared: PreparedExport,
    /// That of its socket, and whether whoever started the old process has made it.
    file: (SocketIdentity, bool),
    listener: OwnedFd,
    /// The next client, if it was accepted.
    next: Option<OwnedFd>,
    client: ExportClient,
}

/// The client of an export that is taken over: none, lost, or its session.
enum ExportClient {
    Absent,
    /// What it has shared cannot be had any more, so nobody can go on with it: that is nobody else's loss.
    Lost(SessionError),
    Here(Box<AdoptedSession>),
}

fn build_all(
    process: u32,
    built: &mut DaemonState,
    served: Vec<TakeoverCandidate>,
    transfer: HandOverState,
    policy: &mut WaitPolicy<'_>,
) -> Result<Vec<ReadyExport>, TakeoverError> {
    let HandOverState { mut exports, files, images, bitmaps: inherited } = transfer;
    let (mut ready, mut held) = (Vec::new(), Vec::new());
    for (prepared, found) in served {
        let place = exports.iter().position(|handed_over| handed_over.socket == found.file);
        let missing = || {
            let what = format!("nothing of export {}", prepared.disk.id);
            TakeoverError::Broken { process, source: WireError::Unexpected(what) }
        };
        let given = exports.swap_remove(place.ok_or_else(missing)?);
        let ExportHandOver { cache, stopped, listener, next, session, is_given, .. } = given;
        let is_held = given.held;
        *device(&prepared).cache.lock().expect("no holder of this lock panics") = cache;
        let resumption = TakeoverPauseStart { since: stopped, process };
        let client = match session {
            None => ExportClient::Absent,
            Some((connection, state)) => {
                match Export::adopt(device(&prepared), connection, state, resumption) {
                    Ok(adopted) => ExportClient::Here(Box::new(adopted)),
                    Err(source) if source.is_own() => {
                        let export = prepared.disk.id.clone();
                        return Err(TakeoverError::Session { export, process, source });
                    }
                    Err(error) => ExportClient::Lost(error),
                }
            }
        };
        let file = (found.file, is_given);
        ready.push(ReadyExport { prepared, file, listener, next, client });
        held.push(is_held);
    }
    let failed = |(export, source)| TakeoverError::Image { export, process, source };
    built.inherit(files, images).map_err(failed)?;
    for ReadyExport { prepared, .. } in &ready {
        let id = &prepared.disk.id;
        built.check_inherited(id).map_err(|source| failed((id.clone(), source)))?;
    }
    let loaded = bitmaps::load(inherited, process, built)?;
    for (ReadyExport { prepared, .. }, _) in ready.iter().zip(held).filter(|(_, is_held)| *is_held)
    {
        built.claim_inherited(prepared, policy)?;
    }
    bitmaps::adopt(loaded, process, built)?;
    #[cfg(feature = "fault-points")]
    super::fault_point::write_too_early(built);
    Ok(ready)
}

/// Listens on the sockets of a process that has ended; its front ends come back by themselves.
fn listen_all(
    resumption: TakeoverPauseStart,
    built: &mut DaemonState,
    served: Vec<TakeoverCandidate>,
    policy: &mut WaitPolicy<'_>,
) -> Result<Vec<ListeningExport>, TakeoverError> {
    let mut listening = Vec::new();
    for (prepared, _) in served {
        let slot = &device(&prepared).resumption;
        *slot.lock().expect("no holder of this lock panics") = Some(resumption);
        listening.push(listen(built, prepared, policy)?);
    }
    let process = resumption.process;
    tracing::info!("process {process} has ended; front ends that reconnect go on here");
    Ok(listening)
}

impl PredecessorProcess {
    /// Tells it to end, and waits for that. Gives the moment at which it was told.
    fn end(&self, policy: &mut WaitPolicy<'_>) -> Result<Duration, TakeoverError> {
        let process = self.process;
        tracing::info!("process {process} cannot hand over its clients: told to end (SIGTERM)");
        let began = monotonic();
        pidfd_send_signal(&self.pidfd, Signal::TERM)
            .map_err(|errno| TakeoverError::Signal { process, source: errno.into() })?;
        let until = Deadline::within(END_LIMIT);
        while !until.left().is_zero() {
            if self.has_ended(REST) {
                policy.wait.done();
                return Ok(began);
            }
            let told = policy.wait.pause(Duration::ZERO);
            if told == WaitResult::Stop {
                return Err(TakeoverError::Stopped);
            }
        }
        policy.wait.done();
        Err(TakeoverError::Stuck { process })
    }

    /// Waits until it has left its pidfile, for a bounded time.
    pub fn wait_for_end(&self) {
        if !self.has_ended(ANSWER_LIMIT) {
            let seconds = ANSWER_LIMIT.as_secs();
            tracing::warn!("process {} still runs {seconds} s after it left", self.process);
        }
    }

    /// Whether it has ended, or does within that time.
    fn has_ended(&self, limit: Duration) -> bool {
        host::has_ended(&self.pidfd, limit).expect("the kernel polls one descriptor of our own")
    }
}
