//! Nodes that change requests on their way.
//!
//! Where it stands in the life of a request: lanes of these nodes ask the lanes of their children, and
//! say how long a request is held, or which parts of it go where.
//!
//! Not here: what a node is (`block`), where bytes live (`disk`), and which nodes a command line asks for
//! (`daemon`).

#![forbid(unsafe_code)]

mod child_node;
mod compress;
mod copy_before_write;
mod copy_on_read;
mod delay;
mod in_flight_changes;
mod mirror;
mod recorder;
mod served;
mod stripe;
mod sync;
mod throttle;

pub use compress::CompressNode;
pub use copy_before_write::{
    CbwErrorPolicy, CopyBeforeWriteError, CopyBeforeWriteNode, CopyBeforeWriteSettings, NoSnapshot,
    SnapshotAccessNode, SnapshotNews, SnapshotState,
};
pub use copy_on_read::{CopyOnReadNode, CopySource};
pub use delay::{
    DelayNode, DelayOrder, DelaySettings, Distribution, Histogram, HistogramError, Latency,
    LatencyTooLong, UniformLatency,
};
pub use mirror::{MirrorMode, MirrorNode};
pub use recorder::RecorderNode;
pub use stripe::{ChunkSize, MEMBERS_MAX, MEMBERS_MIN, StripeDiscards, StripeError, StripeNode};
pub use throttle::{
    Limit, LimitKind, LimitsError, THROTTLE_RATE_MAX, ThrottleGroup, ThrottleLimits, ThrottleNode,
    ThrottleSettings,
};
