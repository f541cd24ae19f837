//! The new process: finds the old one, lets it hand over, and goes on.
//!
//! Invariants: everything that can fail is done while the old process can still go on: sessions and memory are
//! built, images loaded and claimed, without a change on any of them, before it hears that this process is ready.
//! Only then, and only when it says so, this process owns the images and serves. Sockets that
//! nobody serves are made first, unless they use what is being served: that comes last, with the locks that changed
//! hands; then one old process is replaced, or told to end if it cannot hand over, and front ends connect again. Here only clients that were handed over are served; all
//! others wait to be accepted until the process is behind its fences. What fails after the old process
//! has ended its service is said, and no reason to leave those that can be served.
//! Limits: [`TRIES`], [`FIRST_ANSWER_LIMIT`], [`COMMIT_LIMIT`], [`END_LIMIT`]. Threads: the first one. A signal ends
//! each wait.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Signal, pidfd_send_signal};
use virtio::Features;

use super::error::{END_LIMIT, TakeoverError};
use super::find::{Served, check_program, hold, server_of};
use super::give::socket_file;
use super::state::{self, Parcel, Transfer};
use super::wire::{self, Message, Offered, SocketFile, Wire, WireError};
use super::{ANSWER_LIMIT, Deadline, VERSION};
use crate::build::{Built, Prepared};
use crate::chain::chain_of;
use crate::claim::{Patience, Told};
use crate::export::{Adopted, Export};
use crate::graph::Description;
use crate::pidfile::Pidfile;
use crate::resumption::{Resumption, monotonic};
use crate::socket::{Identity, Socket};

/// How often an old process may be gone, or replaced by another one, before it could hand over.
const TRIES: u32 = 10;

/// How many exports an old process can have.
pub(super) const EXPORTS_MAX: usize = wire::SOCKETS_MAX;

/// How many options the nodes below all of them can have.
const OPTIONS_MAX: usize = 1 << 20;

/// The rest between two tries.
const REST: Duration = Duration::from_millis(50);

/// How long the old process may take to answer: it may be handing over to another one just now.
const FIRST_ANSWER_LIMIT: Duration = Duration::from_secs(30);

/// How long the old process may take to say that this one goes on. It says so at once, or not at all.
const COMMIT_LIMIT: Duration = Duration::from_secs(10);

/// The process whose place was taken.
#[derive(Debug)]
pub(crate) struct Predecessor {
    process: u32,
    pidfd: OwnedFd,
}

/// What an old process answers.
enum Asked {
    /// Its exports.
    Given(Wire, Transfer),
    /// It cannot hand over in this way.
    Unable,
    /// It has ended, or is about to.
    Gone,
}

/// An export and who serves it.
type Pair = (Prepared, Served);

/// An export that was claimed, with its socket: clients can connect, and wait.
type Listening = (Prepared, Socket);

/// What a takeover came to.
#[derive(Debug)]
pub(crate) struct Taken {
    /// Exports whose clients are to be accepted.
    pub(crate) listening: Vec<Listening>,
    /// Whose place was taken, if anybody's.
    pub(crate) predecessor: Option<Predecessor>,
}

/// Carries a plan that was prepared out in the place of the process that serves its sockets; plainly
/// if there is none. There are sockets before this returns, so a signal must not end the process at
/// once any more. Blocks.
pub(crate) fn take_over(
    prepared: Vec<Prepared>,
    pidfile: Option<&Path>,
    built: &mut Built,
    patience: &mut Patience<'_>,
) -> Result<Taken, TakeoverError> {
    let (mut rest, mut listening) = (prepared, Vec::new());
    let mut last = 0;
    for _ in 0..TRIES {
        let (served, beside) = listen_fresh(built, rest, &mut listening, patience)?;
        let Some(process) = only_server(&served)? else {
            return Ok(Taken { listening, predecessor: None });
        };
        last = process;
        let predecessor = Predecessor { process, pidfd: hold(process)? };
        // The id may have become another's before it was held: it has not if it still listens.
        let first = &served[0].1;
        if server_of(&first.path)?.as_ref() == Some(first) {
            if let Some(path) = pidfile {
                Pidfile::check(path, process)?;
            }
            match ask(process, built, &served, patience)? {
                Asked::Given(wire, transfer) => {
                    listening.extend(go_on(process, built, served, &wire, transfer, patience)?);
                    listening.extend(listen_beside(built, beside, patience));
                    return Ok(Taken { listening, predecessor: Some(predecessor) });
                }
                Asked::Unable => {
                    check_program(process)?;
                    let since = predecessor.end(patience)?;
                    let resumption = Resumption { since, process };
                    listening.extend(listen_all(resumption, built, served, patience)?);
                    listening.extend(listen_beside(built, beside, patience));
                    return Ok(Taken { listening, predecessor: Some(predecessor) });
                }
                Asked::Gone => {}
            }
        }
        if patience.wait.pause(REST) == Told::Stop {
            return Err(TakeoverError::Stopped);
        }
        patience.wait.done();
        rest = served.into_iter().map(|(prepared, _)| prepared).chain(beside).collect();
    }
    Err(TakeoverError::Restless { process: last })
}

/// Claims and listens on what nobody serves yet; gives back the rest: what is served, and what is not but stands on
/// the same files.
fn listen_fresh(
    built: &mut Built,
    exports: Vec<Prepared>,
    listening: &mut Vec<Listening>,
    patience: &mut Patience<'_>,
) -> Result<(Vec<Pair>, Vec<Prepared>), TakeoverError> {
    let mut served = Vec::new();
    let mut fresh = Vec::new();
    for prepared in exports {
        match server_of(&prepared.options.socket.path)? {
            Some(found) => served.push((prepared, found)),
            None => fresh.push(prepared),
        }
    }
    only_server(&served)?;
    let stands_beside = |prepared: &Prepared| {
        served.iter().any(|(served, _)| built.share_files(&served.offer, &prepared.offer))
    };
    let (beside, alone): (Vec<_>, Vec<_>) = fresh.into_iter().partition(stands_beside);
    // Before any wait for a lock: somebody may serve its image on a socket that has lost its name.
    if served.is_empty() {
        tracing::info!("no process serves these sockets: nothing to take over");
    } else {
        for Prepared { options, .. } in &alone {
            let path = options.socket.path.display();
            tracing::info!("export {}: no process serves {path}", options.id);
        }
    }
    for prepared in alone {
        listening.push(listen(built, prepared, patience)?);
    }
    Ok((served, beside))
}

/// Claims and listens on what uses the files of exports that were taken over. Those are served now, which counts more
/// than what fails here.
fn listen_beside(
    built: &mut Built,
    beside: Vec<Prepared>,
    patience: &mut Patience<'_>,
) -> Vec<Listening> {
    let mut listening = Vec::new();
    for prepared in beside {
        match listen(built, prepared, patience) {
            Ok(ready) => listening.push(ready),
            Err(error) => tracing::error!("{}; serving the others", chain_of(&error)),
        }
    }
    listening
}

/// Claims what an export needs, and makes its socket.
fn listen(
    built: &mut Built,
    prepared: Prepared,
    patience: &mut Patience<'_>,
) -> Result<Listening, TakeoverError> {
    built.claim(&prepared, patience)?;
    let socket = Built::listen(&prepared)?;
    Ok((prepared, socket))
}

/// The one process that serves all these, if any does.
fn only_server(served: &[Pair]) -> Result<Option<u32>, TakeoverError> {
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
    built: &Built,
    served: &[Pair],
    patience: &mut Patience<'_>,
) -> Result<Asked, TakeoverError> {
    let broken = |source: WireError| TakeoverError::Broken { process, source: source.into() };
    let Some(wire) = Wire::connect(process).map_err(broken)? else {
        return Ok(Asked::Unable);
    };
    let user = wire.peer().map_err(broken)?.user;
    if ![0, user].contains(&rustix::process::geteuid().as_raw()) {
        return Err(TakeoverError::OtherUser { process, user });
    }
    let sockets = served.iter().map(|(_, found)| socket_file(found.file)).collect();
    let until = Deadline::within(ANSWER_LIMIT);
    let said = wire.send(&Message::Hello { version: VERSION, sockets }, &[], until);
    if said.is_ok() {
        await_answer(&wire, FIRST_ANSWER_LIMIT, patience)?;
    }
    let exports = match said.and_then(|()| offers(&wire)) {
        Ok(Offers::All(exports)) => exports,
        Ok(Offers::Refused(reason)) => return Err(TakeoverError::Refused { process, reason }),
        Ok(Offers::OtherVersion(version)) => {
            tracing::info!("process {process} hands over by version {version}, not {VERSION}");
            return Ok(Asked::Unable);
        }
        Err(WireError::Ended) => return Ok(Asked::Gone),
        Err(error) => return Err(broken(error)),
    };
    for (prepared, found) in served {
        let offered = exports.iter().find(|it| it.socket == socket_file(found.file));
        check(built, prepared, offered, process)?;
    }
    wire.send(&Message::Proceed, &[], Deadline::within(ANSWER_LIMIT)).map_err(broken)?;
    await_answer(&wire, state::FIRST_LIMIT, patience)?;
    match state::receive(&wire, served.len()).map_err(broken)? {
        Ok(transfer) => Ok(Asked::Given(wire, transfer)),
        Err(reason) => Err(TakeoverError::Refused { process, reason }),
    }
}

/// What an old process answers to the first question.
pub(super) enum Offers {
    All(Vec<Offered>),
    Refused(String),
    OtherVersion(u32),
}

/// What the old process would hand over, of which the first packet has been waited for.
#[expect(clippy::wildcard_enum_match_arm, reason = "whatever else is said is not due here")]
pub(super) fn offers(wire: &Wire) -> Result<Offers, WireError> {
    let (mut exports, mut options) = (Vec::<Offered>::new(), 0);
    let until = Deadline::within(ANSWER_LIMIT);
    loop {
        match wire.receive(until)? {
            Message::Offer { export } if exports.len() < EXPORTS_MAX => exports.push(export),
            Message::OfferNodes { nodes } if options + nodes.len() <= OPTIONS_MAX => {
                options += nodes.len();
                match exports.last_mut() {
                    Some(export) => export.nodes.extend(nodes),
                    None => return Err(Message::OfferNodes { nodes }.unexpected()),
                }
            }
            Message::OfferEnd => return Ok(Offers::All(exports)),
            Message::Refused { reason } => return Ok(Offers::Refused(reason)),
            Message::OtherVersion { version } => return Ok(Offers::OtherVersion(version)),
            other => return Err(other.unexpected()),
        }
    }
}

/// Waits until the other process has said something, for a bounded time; whoever listens finds out
/// whether it has.
fn await_answer(
    wire: &Wire,
    limit: Duration,
    patience: &mut Patience<'_>,
) -> Result<(), TakeoverError> {
    let until = Deadline::within(limit);
    while !wire.has_said(REST) && !until.left().is_zero() {
        if patience.wait.pause(Duration::ZERO) == Told::Stop {
            return Err(TakeoverError::Stopped);
        }
    }
    patience.wait.done();
    Ok(())
}

/// A guest that runs must find the disk that it has. It may grow, and so may the number of queues.
fn check(
    built: &Built,
    prepared: &Prepared,
    offered: Option<&Offered>,
    process: u32,
) -> Result<(), TakeoverError> {
    let offer = &prepared.offer;
    let other = |what: &str| {
        let (export, what) = (offer.id.clone(), what.to_owned());
        Err(TakeoverError::OtherDisk { export, what, process })
    };
    let Some(offered) = offered else { return other("socket") };
    let config = &offer.config;
    if offered.id != offer.id {
        let theirs = &offered.id;
        return other(&format!("id (not {theirs}), which is the disk's serial number,"));
    }
    if let Some(what) = difference(&built.describe(&offer.id), &offered.nodes, process) {
        return other(&what);
    }
    let bytes = offer.size.capacity().get().0.0;
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
fn difference(ours: &Description, theirs: &Description, process: u32) -> Option<String> {
    let keys: BTreeSet<&String> = ours.keys().chain(theirs.keys()).collect();
    // What a node is comes before what it is told.
    let is_image = |key: &str| key.rsplit('.').next() == Some("image");
    let rank = |key: &str| u8::from(!(key.ends_with("driver") || is_image(key)));
    let mut different: Vec<&String> =
        keys.into_iter().filter(|key| ours.get(*key) != theirs.get(*key)).collect();
    different.sort_by_key(|key| rank(key));
    let key = different.first()?;
    let value = |description: &Description, process| match description.get(*key) {
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
    built: &mut Built,
    served: Vec<Pair>,
    wire: &Wire,
    transfer: Transfer,
    patience: &mut Patience<'_>,
) -> Result<Vec<Listening>, TakeoverError> {
    let broken = |source: WireError| TakeoverError::Broken { process, source: source.into() };
    let ready = build_all(process, built, served, transfer, patience)?;
    wire.send(&Message::Ready, &[], Deadline::within(ANSWER_LIMIT)).map_err(broken)?;
    await_commit(wire, patience).map_err(|error| match error {
        NoCommit::Stopped => TakeoverError::Stopped,
        NoCommit::Wire(error) => broken(error),
    })?;
    built.own();
    let (mut listening, mut lost) = (Vec::new(), Vec::new());
    for Ready { prepared, file, listener, next, client } in ready {
        let socket = Socket::adopt(listener, next, file, &prepared.options.socket);
        match client {
            Client::Absent => listening.push((prepared, socket)),
            Client::Lost(error) => {
                // The old process closes the connection when it leaves.
                tracing::warn!("export {}: session ended: {}", prepared.offer.id, chain_of(&error));
                lost.push(Arc::clone(&prepared.offer));
                listening.push((prepared, socket));
            }
            Client::Here(adopted) => {
                if let Err(error) = built.start(prepared, socket, Some(*adopted)) {
                    tracing::error!("{}", chain_of(&error));
                }
            }
        }
    }
    tracing::info!("process {process} has handed over");
    for offer in lost {
        // What it held only for its client.
        if let Err(error) = offer.holding.end(&offer.id, &*offer.node) {
            tracing::error!("export {}: {}", offer.id, chain_of(&error));
        }
    }
    Ok(listening)
}

/// The old process goes on, as far as is known here.
enum NoCommit {
    Stopped,
    Wire(WireError),
}

/// Waits for the word of the old process. Whoever gives up here first sees to it that it cannot come any more.
fn await_commit(wire: &Wire, patience: &mut Patience<'_>) -> Result<(), NoCommit> {
    let waited = await_answer(wire, COMMIT_LIMIT, patience);
    let said = match wire.receive(Deadline::within(Duration::ZERO)) {
        Err(WireError::Silent) => wire
            .close_ears()
            .and_then(|()| wire.receive(Deadline::within(Duration::ZERO)))
            .map_err(|error| if let WireError::Ended = error { WireError::Silent } else { error }),
        said => said,
    };
    match (said, waited) {
        (Ok(Message::Commit), _) => Ok(()),
        (_, Err(_signal)) => Err(NoCommit::Stopped),
        (Ok(other), Ok(())) => Err(NoCommit::Wire(other.unexpected())),
        (Err(error), Ok(())) => Err(NoCommit::Wire(error)),
    }
}

/// An export that only waits for the word.
struct Ready {
    prepared: Prepared,
    file: Identity,
    listener: OwnedFd,
    /// The next client, if it was accepted.
    next: Option<OwnedFd>,
    client: Client,
}

/// The client that an export has.
enum Client {
    Absent,
    /// What it has shared cannot be had any more, so nobody can go on with it: that is nobody else's loss.
    Lost(vhost_user::SessionError),
    Here(Box<Adopted>),
}

fn build_all(
    process: u32,
    built: &mut Built,
    served: Vec<Pair>,
    transfer: Transfer,
    patience: &mut Patience<'_>,
) -> Result<Vec<Ready>, TakeoverError> {
    let Transfer { mut exports, files, images } = transfer;
    let (mut ready, mut held) = (Vec::new(), Vec::new());
    for (prepared, found) in served {
        let file: SocketFile = socket_file(found.file);
        let place = exports.iter().position(|parcel| parcel.socket == file);
        let missing = || {
            let what = format!("nothing of export {}", prepared.offer.id);
            TakeoverError::Broken { process, source: WireError::Unexpected { what }.into() }
        };
        let Parcel { cache, stopped, listener, next, session, socket: _, held: is_held } =
            exports.swap_remove(place.ok_or_else(missing)?);
        *prepared.offer.cache.lock().expect("no holder of this lock panics") = cache;
        let resumption = Resumption { since: stopped, process };
        let client = match session {
            None => Client::Absent,
            Some((connection, state)) => {
                match Export::adopt(&prepared.offer, connection, state, resumption) {
                    Ok(adopted) => Client::Here(Box::new(adopted)),
                    Err(source) if source.is_own() => {
                        let export = prepared.offer.id.clone();
                        return Err(TakeoverError::Session { export, process, source });
                    }
                    Err(error) => Client::Lost(error),
                }
            }
        };
        ready.push(Ready { prepared, file: found.file, listener, next, client });
        held.push(is_held);
    }
    let failed = |(export, source)| TakeoverError::Image { export, process, source };
    built.inherit(files, images).map_err(failed)?;
    for Ready { prepared, .. } in &ready {
        let id = &prepared.offer.id;
        built.check_inherited(id).map_err(|source| failed((id.clone(), source)))?;
    }
    for (Ready { prepared, .. }, _) in ready.iter().zip(held).filter(|(_, is_held)| *is_held) {
        built.claim_inherited(prepared, patience)?;
    }
    #[cfg(feature = "fault-points")]
    write_too_early(built);
    Ok(ready)
}

/// What must never happen: with `RINGLOOM_FAULT=WrittenTooEarly:1` this process changes the images that another one
/// owns, and ends. A test must find that.
#[cfg(feature = "fault-points")]
fn write_too_early(built: &Built) {
    if std::env::var("RINGLOOM_FAULT").is_ok_and(|fault| fault == "WrittenTooEarly:1") {
        // Direct I/O wants its memory aligned.
        let room = vec![0xcd_u8; 8192];
        let start = room.as_ptr().align_offset(4096);
        for file in built.files().all() {
            for place in (0..file.bytes()).step_by(4096) {
                rustix::io::pwrite(&*file, &room[start..start + 4096], place)
                    .expect("a test's image can be written");
            }
        }
        panic!("as it was asked to");
    }
}

/// Listens on the sockets of a process that has ended; its front ends come back by themselves.
fn listen_all(
    resumption: Resumption,
    built: &mut Built,
    served: Vec<Pair>,
    patience: &mut Patience<'_>,
) -> Result<Vec<Listening>, TakeoverError> {
    let mut listening = Vec::new();
    for (prepared, _) in served {
        let slot = &prepared.offer.resumption;
        *slot.lock().expect("no holder of this lock panics") = Some(resumption);
        listening.push(listen(built, prepared, patience)?);
    }
    let process = resumption.process;
    tracing::info!("process {process} has ended; front ends that reconnect go on here");
    Ok(listening)
}

impl Predecessor {
    /// Tells it to end, and waits for that. Gives the moment at which it was told.
    fn end(&self, patience: &mut Patience<'_>) -> Result<Duration, TakeoverError> {
        let process = self.process;
        tracing::info!("process {process} cannot hand over its clients: told to end (SIGTERM)");
        let began = monotonic();
        pidfd_send_signal(&self.pidfd, Signal::TERM)
            .map_err(|errno| TakeoverError::Signal { process, source: errno.into() })?;
        let until = Deadline::within(END_LIMIT);
        while !until.left().is_zero() {
            if self.has_ended(REST) {
                patience.wait.done();
                return Ok(began);
            }
            let told = patience.wait.pause(Duration::ZERO);
            if told == Told::Stop {
                return Err(TakeoverError::Stopped);
            }
        }
        patience.wait.done();
        Err(TakeoverError::Stuck { process })
    }

    /// Waits until it has left its pidfile, for a bounded time.
    pub(crate) fn wait_for_end(&self) {
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
