//! Tools for lanes that cannot answer everything at once: tasks, and what they wait for.
//!
//! Where it stands in the life of a request: a format holds a request and has a task serve it ([`TaskExecutor`]). The
//! task asks the children ([`AsyncChild`], [`ChildMapBatch`]), has its own I/O carried out, and collects what its request is to
//! be carried out on ([`RequestParts`]). Tasks take turns ([`AsyncMutex`], [`Semaphore`], [`YieldQueue`]). A thread
//! that owns no ring does the same with [`ControlExecutor`]. What takes long is computed by other threads ([`ComputePool`]).
//!
//! Not here: what a format does with it (`qcow2`), I/O (`kernel_io`).

#![forbid(unsafe_code)]

mod child_io;
mod compute_threads;
mod control_executor;
mod executor;
mod map_batch;
mod request_parts;
mod semaphore;

pub use child_io::{
    AsyncChild, ChildMapAnswer, ChildMapReply, CompletionNotice, HeldChildOperation, NoticeReply,
    extent,
};
pub use compute_threads::{ComputeFirst, ComputePool};
pub use control_executor::ControlExecutor;
pub use executor::{AsyncMutex, AsyncMutexGuard, TaskExecutor, block_on};
pub use map_batch::{ChildMapBatch, is_over};
pub use request_parts::RequestParts;
pub use semaphore::{Semaphore, SemaphorePermit, YieldQueue};
