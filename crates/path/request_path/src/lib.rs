//! The hot loop: from a front end through a lane to the kernel and back to the front end.
//!
//! Where it stands in the life of a request: all of it. A [`FrontEnd`] takes and decodes, [`FrontEndSource`] has its
//! requests carried out by the [`Engine`] of its iothread, which maps, submits and finishes, and the outcome goes back
//! to whoever serves the front end by then: directly, or through its [`OutcomeMailbox`].
//!
//! Not here: any protocol (`virtio_blk`); when a source gets its turn, and on which thread (`iothread`).

#![forbid(unsafe_code)]

mod bounce_transfer;
mod buffer_queues;
mod channels;
mod completion_routes;
mod engine;
mod failure_reporter;
mod front_end;
mod front_end_context;
mod front_end_source;
mod gauges;
mod io_request;
mod lane_wakeups;
mod lanes;
mod mailbox;
mod open_requests;
mod open_transfers;
mod range_locks;
mod requests;
mod source;
mod source_totals;
mod storage_backends;
mod submit;
mod sync;

pub(crate) use completion_routes::RouteIndex;
pub use engine::{ControlEngineFactory, Engine, EventLoopEvent};
pub use front_end::{FrontEnd, LogicalUnitIndex, NewRequest, RefusedRequestText, RequestAction};
pub use front_end_context::FrontEndContext;
pub use front_end_source::FrontEndSource;
pub use gauges::{LatencyHistogram, LatencyHistograms, Sampler, SourceGauges};
/// What the kick of a front end is watched for.
pub use kernel_io::Interest;
/// Transfers on the socket of a front end.
pub use kernel_io::{StreamDirection, StreamEnd, StreamGoal, StreamTransfer};
pub use lanes::LaneIndex;
pub use mailbox::{OutcomeMailbox, Wake};
pub use open_requests::RequestKind;
pub use requests::SourcelessRequests;
pub use source::{
    BatchLimit, Counters, FairTurnBudget, OtherSources, SleepDecision, Source, SourceFault,
    SourceKey, TurnBudget, TurnResult,
};
pub use source_totals::{LatencyTotals, SourceTotals};
