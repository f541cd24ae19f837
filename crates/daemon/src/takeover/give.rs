//! The old process: hands its exports over to a new one that asks for them.
//!
//! Invariants: nothing is served from the moment all exports are frozen until it is known that the
//! new process does not go on. It does from the moment it has said `Taking`; so when it is silent
//! for too long, it is first kept from saying anything, and only then what it has said is looked at.
//! Threads: the first one. Whoever asks is checked before anything is read.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use block::Clock;
use rustix::net::{SocketFlags, accept_with};

use super::state::{self, Parcel};
use super::wire::{self, Message, Offered, SocketFile, Wire, WireError};
use super::{ANSWER_LIMIT, DRAIN_LIMIT, VERSION, monotonic};
use crate::build::Built;
use crate::chain::chain_of;
use crate::claim::{ClaimFailure, LOCK_PATIENCE, Patience};
use crate::export::{Export, Freeze, Frozen};
use crate::socket::Identity;

/// How long the new process may take to get the locks and to build the sessions.
const TAKING_LIMIT: Duration = LOCK_PATIENCE.saturating_mul(2);

/// Where a new process asks.
#[derive(Debug)]
pub(crate) struct Doorbell {
    listener: OwnedFd,
}

/// What came of a question.
#[derive(Debug)]
pub(crate) enum Answer {
    /// This process goes on.
    Kept,
    /// The other one goes on; its id.
    Given(u32),
    /// Neither does: the image could not be had again.
    Lost(ClaimFailure),
}

impl Doorbell {
    /// A bell that new processes find by this one's id. Without one, they can only end it.
    pub(crate) fn open() -> Option<Self> {
        match wire::listen() {
            Ok(listener) => Some(Self { listener }),
            Err(error) => {
                tracing::warn!("no new process can take over in place: {error}");
                None
            }
        }
    }

    /// The process that has rung.
    fn visitor(&self) -> Result<(Wire, u32), Rejection> {
        let fd = accept_with(&self.listener, SocketFlags::CLOEXEC).map_err(WireError::from)?;
        let wire = Wire::of(fd)?;
        let peer = wire.peer()?;
        if peer.user != 0 && peer.user != rustix::process::geteuid().as_raw() {
            return Err(Rejection::User { user: peer.user });
        }
        Ok((wire, peer.process.unwrap_or(0)))
    }
}

impl AsFd for Doorbell {
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
    #[error("disk {path}: an earlier flush failed, which a new process would not know")]
    FailedFlush { path: String },
    #[error("export {export}: its requests were not finished within {} s", DRAIN_LIMIT.as_secs())]
    Busy { export: String },
    #[error("export {export}: its guest is being migrated")]
    Migrating { export: String },
    #[error("export {export}: its session ended meanwhile")]
    SessionEnded { export: String },
    #[error("export {export}: cannot copy its descriptors")]
    Copy {
        export: String,
        #[source]
        source: io::Error,
    },
}

/// Somebody has rung: hands everything over, or goes on. Blocks.
pub(crate) fn answer(
    doorbell: &Doorbell,
    built: &mut Built,
    clock: &dyn Clock,
    patience: &mut Patience<'_>,
) -> Answer {
    let (wire, process) = match doorbell.visitor() {
        Ok(visitor) => visitor,
        Err(error) => {
            if patience.rate.admit(clock.now()).is_some() {
                tracing::warn!("takeover: {}", chain_of(&error));
            }
            return Answer::Kept;
        }
    };
    let result = agree(&wire, built).and_then(|()| freeze_all(built));
    let rejection = match result {
        Ok(frozen) => return hand_over(&wire, process, built, frozen, patience),
        Err(rejection) => rejection,
    };
    tracing::warn!("process {process} does not take over: {}", chain_of(&rejection));
    let told = if let Rejection::Version { .. } = rejection {
        Message::OtherVersion { version: VERSION }
    } else {
        Message::Refused { reason: chain_of(&rejection).to_string() }
    };
    // It may be gone.
    drop(wire.send(&told, &[]));
    Answer::Kept
}

/// Finds out whether the new process would go on with everything. Nothing is touched.
fn agree(wire: &Wire, built: &Built) -> Result<(), Rejection> {
    let sockets = match wire.receive(ANSWER_LIMIT)? {
        (Message::Hello { version: VERSION, sockets }, _) => sockets,
        (Message::Hello { version, .. }, _) => return Err(Rejection::Version { version }),
        (other, _) => return Err(other.unexpected().into()),
    };
    let asked = |export: &&Export| sockets.contains(&socket_file(export.socket()));
    if let Some(export) = built.exports().iter().find(|export| !asked(export)) {
        return Err(Rejection::Missing { export: export.offer().id.clone() });
    }
    check_flushes(built)?;
    let exports = built.exports().iter().map(|export| offered(built, export)).collect();
    wire.send(&Message::Offer { exports }, &[])?;
    match wire.receive(ANSWER_LIMIT)? {
        (Message::Proceed, _) => Ok(()),
        (other, _) => Err(other.unexpected().into()),
    }
}

fn check_flushes(built: &Built) -> Result<(), Rejection> {
    match built.files().all().iter().find(|file| file.has_failed_sync()) {
        Some(file) => Err(Rejection::FailedFlush { path: file.path().display().to_string() }),
        None => Ok(()),
    }
}

fn offered(built: &Built, export: &Export) -> Offered {
    let offer = export.offer();
    Offered {
        socket: socket_file(export.socket()),
        id: offer.id.clone(),
        bytes: offer.size.capacity().get().0.0,
        logical_block: offer.config.logical_block,
        queues: offer.config.queues,
        features: offer.config.features().0,
        storage: built.storage(&offer.id),
    }
}

pub(super) fn socket_file(identity: Identity) -> SocketFile {
    SocketFile { device: identity.device, inode: identity.inode }
}

/// An export that serves nothing any more.
struct Held {
    freeze: Freeze,
    parcel: Parcel,
}

/// Stops the rings of all exports. After an error they go on.
fn freeze_all(built: &Built) -> Result<Vec<Held>, Rejection> {
    let began = monotonic();
    let freezes: Vec<Freeze> = built.exports().iter().map(Export::freeze).collect();
    let held = built.exports().iter().zip(freezes).map(|(export, freeze)| {
        let id = || export.offer().id.clone();
        let left = DRAIN_LIMIT.saturating_sub(monotonic().saturating_sub(began));
        let Frozen { listener, session } = match freeze.frozen.recv_timeout(left) {
            Ok(frozen) => frozen.map_err(|source| Rejection::Copy { export: id(), source })?,
            Err(RecvTimeoutError::Timeout) => return Err(Rejection::Busy { export: id() }),
            Err(RecvTimeoutError::Disconnected) => {
                return Err(Rejection::SessionEnded { export: id() });
            }
        };
        if session.as_ref().is_some_and(|(_, state)| state.is_logging) {
            return Err(Rejection::Migrating { export: id() });
        }
        let cache = *export.offer().cache.lock().expect("no holder of this lock panics");
        let socket = socket_file(export.socket());
        let parcel = Parcel { socket, cache, stopped: began, listener, session };
        Ok(Held { freeze, parcel })
    });
    let held = held.collect::<Result<Vec<_>, _>>()?;
    // What was in flight may have failed.
    check_flushes(built)?;
    Ok(held)
}

/// Gives everything to the new process, and goes on itself if that does not.
fn hand_over(
    wire: &Wire,
    process: u32,
    built: &mut Built,
    held: Vec<Held>,
    patience: &mut Patience<'_>,
) -> Answer {
    built.release_claims();
    match part_with(wire, &held) {
        Ok(()) => {
            for (export, Held { freeze, parcel: _ }) in built.exports().iter().zip(held) {
                export.give_away(&freeze);
            }
            Answer::Given(process)
        }
        Err(error) => {
            tracing::warn!("process {process} has not taken over: {}", chain_of(&error));
            match built.claim_again(patience) {
                // Dropped, what is held goes on.
                Ok(()) => {
                    drop(held);
                    Answer::Kept
                }
                Err(error) => {
                    // Without the image nothing may be served: stopped before it can go on.
                    built.begin_stop();
                    Answer::Lost(error)
                }
            }
        }
    }
}

/// Sends everything. Without an error the new process goes on; after one it certainly does not.
fn part_with(wire: &Wire, held: &[Held]) -> Result<(), WireError> {
    for Held { parcel, .. } in held {
        state::send(wire, parcel)?;
    }
    wire.send(&Message::End, &[])?;
    let said = match wire.receive(TAKING_LIMIT) {
        Err(WireError::Silent) => {
            wire.close_ears()?;
            wire.receive(Duration::ZERO)
        }
        said => said,
    };
    match said? {
        (Message::Taking, _) => Ok(()),
        (other, _) => Err(other.unexpected()),
    }
}
