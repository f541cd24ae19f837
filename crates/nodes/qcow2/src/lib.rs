//! The qcow2 image format, for many iothreads at once.
//!
//! Where it stands in the life of a request: a lane finds the place of a cluster in the tables that are
//! in memory and answers at once, without a lock, as raw would. Whatever needs I/O (a table to load, a
//! cluster to allocate, copy on write) is a task: the request is held, and the task's I/O are errands
//! on the lanes below.
//!
//! Invariants: one image has one metadata instance, shared by all lanes. What a request that is over
//! needs to be found again was handed to the kernel before. After a power loss at any time refcounts
//! are not too low, and every sector is as it was flushed or written later.
//! Not here: I/O (`kernel_io`), and which files an image may name (`daemon`).

#![forbid(unsafe_code)]

mod bitmaps;
mod compressed;
mod core;
mod epoch;
mod handover;
mod header;
mod image;
mod lane;
mod node;
mod open;
mod overlap;
mod refcount;
mod repair;
mod room;
mod said;
mod seen;
mod serve;
mod shape;
mod slice;
mod snapshots;
mod space;
mod tables;
mod work;

pub use handover::{ForeignState, ImageState, StateError};
pub use header::{Features, Header, HeaderError};
pub use node::{Children, Qcow2Node, Settings};
pub use open::{OpenError, make_writable, read_header};
pub use overlap::OverlapCheck;
pub use space::Discards;
pub use tables::Damage;
