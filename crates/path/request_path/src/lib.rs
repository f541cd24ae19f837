//! The hot loop: from a front end through a lane to the kernel and back to the front end.
//!
//! Where it stands in the life of a request: all of it. A [`FrontEnd`] takes and decodes, [`Served`] has its requests
//! carried out by the [`Engine`] of its iothread, which maps, submits and finishes, and the outcome goes back to
//! whoever serves the front end by then: directly, or through its [`Mailbox`].
//!
//! Not here: any protocol (`virtio_blk`); when a source gets its turn, and on which thread (`iothread`).

#![forbid(unsafe_code)]

mod called;
mod channels;
mod engine;
mod engine_kernel;
mod front_end;
mod gauges;
mod holds;
mod job;
mod lanes;
mod mailbox;
mod open_requests;
mod port;
mod report;
mod requests;
mod seats;
mod served;
mod source;
mod staged;
mod storages;
mod submit;
mod sync;

pub use engine::{ControlEngines, Engine, Signal};
pub use engine_kernel::EngineKernel;
pub use front_end::{FrontEnd, NewRequest, UnitIndex, Words, Work};
pub use gauges::{Latency, Sampler, SourceGauges};
/// What the kick of a front end is watched for.
pub use kernel_io::Interest;
pub use lanes::LaneIndex;
pub use mailbox::{Mailbox, Wake};
pub use port::Port;
pub use requests::Requests;
pub(crate) use seats::Seat;
pub use served::Served;
pub use source::{Appetite, Counters, Fault, Others, Rest, Share, Source, SourceKey, Step, Turn};
