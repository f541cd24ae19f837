//! The hot loop: from a ring through a lane to the kernel and back to the used ring.
//!
//! Where it stands in the life of a request: all of it. A [`RingSource`] pops and decodes, the
//! [`Engine`] of its iothread maps, submits and finishes, and the outcome goes back to whoever
//! owns the ring by then: directly, or through the ring's [`Mailbox`].
//!
//! Not here: when a ring gets its turn, and on which thread (`iothread`).

#![forbid(unsafe_code)]

mod called;
mod capacity;
mod engine;
mod holds;
mod job;
mod lanes;
mod mailbox;
mod noted;
mod report;
mod ring;
mod seats;
mod source;
mod staged;
mod submit;
mod sync;
mod tempo;

pub use capacity::Capacity;
pub use engine::{Engine, Signal};
pub use lanes::LaneIndex;
pub use mailbox::{Mailbox, Wake};
pub use ring::{RingSource, RingSourceSetup};
pub use seats::Seat;
pub use source::{
    Appetite, Counters, Ending, Fault, Others, Rest, Share, Source, SourceKey, Step, Turn,
};
/// What a source is given to mark its writes in; made by whoever sets it up.
pub use virtio::{RingBase, RingLog};
