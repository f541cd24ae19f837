//! Takes the place of a running daemon, without a lost or failed request.
//!
//! Where it stands: beside a normal start. The new process prepares everything that can fail, finds
//! the old one (`server`) and asks it for its exports (`new_process`). The old one stops its rings, hands
//! over listening sockets, sessions, and images with their locks (`old_process`), and leaves when it has said that the new
//! one goes on. `docs/takeover.md` tells it in order, with what happens on every error. A session is handed over as what
//! its front end has said and how far each ring was served, with nothing in flight ([`vhost_user::SavedSession`]); a file
//! as its open description with the locks on it (`kernel_io::OpenFile::inherit`); of a qcow2 image also what only its
//! memory has ([`qcow2::ImageState`]).
//!
//! Invariants: at every moment exactly one of the two owns the images and may serve rings: the old one until it
//! has said [`protocol::Message::Commit`], the new one when it has heard that. Before, the new one changes nothing on
//! any image and gives no lock back; afterwards the old one does not. Locks never lapse: both have the same
//! descriptions.
//! Threads: the first one of both processes.

mod error;
mod hand_over;
mod new_process;
mod old_process;
mod protocol;
mod server;

use std::os::fd::OwnedFd;
use std::time::Duration;

use crate::takeover_pause::monotonic;

pub use error::TakeoverError;
pub(crate) use new_process::{Predecessor, TakeoverOutcome, take_over};
pub(crate) use old_process::{TakeoverListener, TakeoverResult, answer};

/// The version of what two processes say to each other.
const VERSION: u32 = 2;

/// How long the requests in flight of the old process may take when it is asked to stop its rings.
const DRAIN_LIMIT: Duration = Duration::from_secs(10);

/// How long a peer may take to say what it can say at once.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);

/// How long the old process lets its guests wait for the new one to be ready, once nothing is in flight: after that
/// it ends the new process and goes on.
const READY_LIMIT: Duration = Duration::from_secs(5);

/// A point in time, on the clock of all processes, by which something has to be done.
#[derive(Debug, Clone, Copy)]
struct Deadline(Duration);

impl Deadline {
    /// So long from now on.
    fn within(limit: Duration) -> Self {
        Self(monotonic().saturating_add(limit))
    }

    /// How long that still is.
    fn left(self) -> Duration {
        self.0.saturating_sub(monotonic())
    }
}

/// What an old process says on this connection up to its end: its offers, then everything that changes hands, each up
/// to where it says that this was all. Gives the sessions, none of which has been looked at. For those who try what a
/// hostile one could say; blocks for as long as it may take to say it.
pub fn read_hand_over(connection: OwnedFd) -> Result<Vec<vhost_user::SavedSession>, String> {
    let wire = protocol::TakeoverConnection::of(connection);
    let said = |error: protocol::WireError| crate::error_chain::chain_of(&error).to_string();
    new_process::offers(&wire).map_err(said)?;
    let transfer = hand_over::receive(&wire, new_process::EXPORTS_MAX).map_err(said)??;
    Ok(transfer.exports.into_iter().filter_map(|export| export.session).map(|it| it.1).collect())
}
