//! Waiting and I/O: one reactor per iothread (io_uring, or epoll), engines, files, and everything the kernel may still touch.
//!
//! Where it stands in the life of a request: `request_path` hands a [`Kernel`] operations on
//! [`block::Segment`]s or on a [`BounceBuffer`]; it parks what they need until the
//! completion, which comes back as an [`Event`].
//!
//! Not here: what a request is made of (`request_path`), which bytes live where (`disk`).

#![deny(unsafe_code)]

mod alarm;
mod allocation;
mod blocking_calls;
mod bounce;
mod completion_kind;
mod cpu;
mod cpu_list;
mod engine_kernel;
mod epoll;
mod exchange;
mod extent;
mod fair_share;
mod file;
mod files;
mod guest_notifier;
mod image_lock;
mod in_flight;
mod inline;
mod kernel;
mod known_data;
mod linux_aio;
mod notifier;
mod queue_limits;
mod reactor;
mod spare_rings;
mod stream;
mod thread_clock;
mod uring;
mod workers;

pub use alarm::Alarm;
pub use allocation::DiscardOrZeroGoal;
/// The words of an operation, which are the same for storage that is no file.
pub use block::{Interest, IoFailure, Tag};
pub use bounce::{BOUNCE_BYTES, BounceBuffer, BouncePool, BounceSize};
pub use completion_kind::is_withdrawn;
pub use cpu::{ProcessCpus, SchedstatFile, ThreadSchedulerTimes, thread_cpu_time};
pub use cpu_list::{CpuList, NumaTopology};
pub use engine_kernel::EngineKernel;
pub use extent::FileExtent;
pub use fair_share::{FairShareLimit, PartyQueues};
pub use file::{
    Aio, Caching, DescriptorInheritError, FileIdentity, FileKind, FilePlace, OpenError, OpenFile,
    OpenOptions, StorageBlockingKind,
};
pub use files::{FileReplacement, FileReplacementGuard, FileTable};
pub use image_lock::{ImageLocks, LockError, LockOptions, Locking, Sharing};
pub use inline::{InlineBudget, SHORT_BYTES_MAX, ServedRings};
pub use kernel::{Event, Kernel, KernelError};
pub use notifier::Notifier;
pub use reactor::{ReactorChoice, ReactorKind, WaitMode};
pub use spare_rings::SpareRings;
pub use stream::{StreamDirection, StreamEnd, StreamGoal, StreamTransfer};
pub use thread_clock::ThreadClock;
