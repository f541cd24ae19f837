//! Waiting and I/O: one reactor per iothread (io_uring, or epoll), engines, files, and everything the kernel may still touch.
//!
//! Where it stands in the life of a request: `request_path` hands a [`Kernel`] operations on
//! [`block::Segment`]s or on a [`BounceBuffer`]; it parks what they need until the
//! completion, which comes back as an [`Event`].
//!
//! Not here: what a request is made of (`request_path`), which bytes live where (`disk`).

#![deny(unsafe_code)]

mod alarm;
mod bounce;
mod budget;
mod calls;
mod cpu;
mod epoll;
mod exchange;
mod extent;
mod file;
mod files;
mod image_lock;
mod inline;
mod judgement;
mod kernel;
mod native;
mod notifier;
mod parked;
mod queue_limits;
mod reactor;
mod ringer;
mod space;
mod uring;
mod workers;

pub use alarm::Alarm;
/// The words of an operation, which are the same for storage that is no file.
pub use block::{Interest, IoFailure, Tag};
pub use bounce::{BOUNCE_BYTES, BounceBuffer, BouncePool};
pub use budget::{Budget, FairQueue};
pub use cpu::{Cpus, ThreadStat, ThreadTimes, process_cpu_time, thread_cpu_time};
pub use extent::FileExtent;
pub use file::{
    Aio, Caching, FileKind, Flushes, Identity, InheritError, OpenError, OpenFile, OpenOptions,
    Residence,
};
pub use files::{FileTable, HandOver, Succession};
pub use image_lock::{ImageLocks, LockError, LockOptions, Locking, Sharing};
pub use inline::{InlineBudget, InlineShare};
pub use kernel::{Event, Kernel, KernelError};
pub use notifier::Notifier;
pub use reactor::{Reactors, Wait, WaitsWith};
pub use space::Allocation;
