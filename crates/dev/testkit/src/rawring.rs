//! A front end written by hand, which can say anything: for clients that no driver would be.
//!
//! Where it stands: `FrontEnd` speaks vhost-user messages byte by byte, `RawRing` lays a split ring out in shared
//! memory, `RawDevice` joins them to a disk that takes single requests. Any value can be put anywhere.
//! `Survivor` is the exception: a well-behaved client that goes on when its server was killed.
//!
//! Invariants: every wait ends at a deadline or when the server ends the session, and says which.

pub(crate) mod device;
mod inflight;
mod log;
pub(crate) mod message;
mod packed;
mod packed_driver;
pub(crate) mod ring;
mod survivor;

pub use device::{BlockRequest, Form, Outcome, RawDevice, RawShape, kind};
pub use log::{DirtyLog, LOG_PAGE_BYTES};
pub use message::{Ack, FrontEnd, Region, SessionEnded, feature, protocol_feature, request};
pub use packed::RawPackedRing;
pub use packed_driver::PackedDriver;
pub use ring::{Bells, Descriptor, Piece, RawRing, Used, flag};
pub use survivor::{Collected, SLOTS, Span, Survivor};
