//! Takes the place of a running daemon, without a lost or failed request.
//!
//! Where it stands: beside a normal start. The new process prepares everything that can fail, finds
//! the old one (`find`) and asks it for its exports (`take`). The old one stops its rings, hands
//! over listening sockets and sessions (`give`), and leaves when the new one has said that it goes
//! on. `docs/takeover.md` tells it in order, with what happens on every error.
//!
//! Invariants: at every moment exactly one of the two may serve rings. The old one may until it has
//! given its locks back; the new one from the moment it has said [`wire::Message::Taking`]. The old
//! one serves again only if it knows that this was not said.
//! Threads: the first one of both processes.

mod find;
mod give;
mod state;
mod take;
mod wire;

use std::time::Duration;

pub(crate) use give::{Answer, Doorbell, answer};
pub use take::TakeoverError;
pub(crate) use take::{Predecessor, Taken, take_over};

/// The version of what two processes say to each other.
const VERSION: u32 = 1;

/// How long the requests in flight of the old process may take when it is asked to stop its rings.
const DRAIN_LIMIT: Duration = Duration::from_secs(10);

/// How long a peer may take to say what it can say at once.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);

/// Since when a front end waits.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Resumption {
    /// When its queues were to be stopped, on the clock of [`monotonic`].
    pub(crate) since: Duration,
    /// By which process.
    pub(crate) process: u32,
}

impl Resumption {
    /// Says how long it has waited.
    pub(crate) fn tell(&self, export: &str) {
        let Self { since, process } = self;
        let ms = monotonic().saturating_sub(*since).as_secs_f64() * 1e3;
        tracing::info!("export {export}: served again {ms:.1} ms after process {process} stopped");
    }
}

/// The time of a clock that all processes share.
pub(crate) fn monotonic() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Duration::try_from(now).expect("the time since the start of the host is not negative")
}
