//! How many descriptors the process holds because of a session.
//!
//! Where it stands: looked at after every message that brings a ring's descriptor or memory, before it is answered; a
//! session that has gone beyond its share ends.
//!
//! Invariants: what is counted is what is held, and what the session may need besides for a moment: a copy of
//! all that goes to a successor, a call descriptor that is on its way to the iothread. A message
//! brings [`DESCRIPTORS_PER_MESSAGE`] at most, which are counted when it is over.

use virtio::REGIONS_MAX;

use super::{Session, SessionRing};
use crate::{Device, MessageRefusal};

/// The connection (read, looked at, hung up on, handed over), its edges, the bell of a ring that is being placed; the
/// log, the in-flight region, the front end's channel and their copies; the answer of who looks at descriptors.
pub const DESCRIPTORS_PER_SESSION: usize = 6 + 2 + 2 + 2 + 1;

/// A file, and a copy.
pub const DESCRIPTORS_PER_REGION: usize = 2;

/// Kick, call and error and a copy of each; and a call that takes the place of another one.
pub const DESCRIPTORS_PER_QUEUE: usize = 7;

/// What comes with a message before anybody has looked at it.
pub const DESCRIPTORS_PER_MESSAGE: usize = 32;

/// What a session takes at most that has so many queues.
pub fn descriptors_wanted(queues: u16) -> usize {
    DESCRIPTORS_PER_SESSION
        + DESCRIPTORS_PER_MESSAGE
        + REGIONS_MAX * DESCRIPTORS_PER_REGION
        + usize::from(queues) * DESCRIPTORS_PER_QUEUE
}

impl<D: Device> Session<D> {
    /// Whether the session has kept to its share.
    pub(crate) fn check_descriptors(&self) -> Result<(), MessageRefusal> {
        let rings: usize = self.rings.iter().map(SessionRing::descriptors_count).sum();
        let regions = self.memory.regions_count() * DESCRIPTORS_PER_REGION;
        let held = DESCRIPTORS_PER_SESSION + regions + rings;
        let max = self.device.descriptors_max();
        if held <= max { Ok(()) } else { Err(MessageRefusal::Descriptors { held, max }) }
    }
}

impl SessionRing {
    fn descriptors_count(&self) -> usize {
        let Self { kick, call, error, .. } = self;
        usize::from(kick.is_some()) * 2
            + usize::from(call.is_some()) * 3
            + usize::from(error.is_some()) * 2
    }
}
