//! The qcow2 image format, for many iothreads at once.
//!
//! Where it stands in the life of a request: lanes answer it in one of two ways.
//!
//! - **At once** (`lane`): the lane finds the place of a cluster in the tables that are in memory, as fast as raw
//!   would. The tables are cached in slices of 4 KiB, made of atomic words (`slice`); a slice that the lane has looked
//!   at before is found without a lock (`lane_slices`). The reads, writes in place and flushes of a batch become one
//!   question to the lane below.
//! - **By a task** (`serve`, crate `tasks`): tables that are not in memory are loaded, and clusters that have no place
//!   get one. The request is held; its task, a future of the lane, waits for internal I/Os (I/O on the lanes below),
//!   for tasks of other lanes, and for its request to be carried out. To give a cluster a place, a task locks the
//!   cluster (`block::RangeLock`), takes a place from a run (`cluster_allocator`), copies there what the write leaves
//!   as it is, has the request carried out there, and writes the table entry (entries that wait are written together,
//!   `slice`); only then other lanes see it.
//!
//! A cluster that leaves the tables may be used again when that is durable and all requests that were mapped before are over
//! (`epoch`, `cluster_allocator`).
//!
//! All I/O, also that of opening and closing an image, is internal I/O; a thread that owns no ring makes an engine for
//! them (`tasks::ControlExecutor`). So a test can cut the power after any of them (`testkit::qcow2rig`).
//!
//! A control thread makes new images, too (`create`), and gives them other sizes and makes and deletes internal snapshots while
//! no lane is open (`node::resize`, `node::snapshots`).
//!
//! Invariants: one image has one metadata instance, shared by all lanes, while its node is claimed (`node`). What a request
//! that is over needs to be found again was handed to the kernel before. After a power loss at any time refcounts
//! are not too low, and every sector is as it was flushed or written later. What may reach the disk in which order:
//! docs/decisions/0005-when-a-table-may-name-a-cluster.md.
//! Not here: I/O (`kernel_io`), and which files an image may name (`daemon`).

#![forbid(unsafe_code)]

mod background_tasks;
mod bitmaps;
mod cluster_allocator;
mod compressed;
mod corruption;
mod create;
mod epoch;
mod geometry;
mod handover;
mod header;
mod header_writer;
mod image;
mod image_log;
mod lane;
mod lane_core;
mod lane_slices;
mod node;
mod open;
mod overlap;
mod refcount;
mod repair;
mod serve;
mod slice;
mod snapshot_change;
mod snapshots;
mod table_reader;
mod task_limits;

pub use cluster_allocator::FreedClusterDiscards;
pub use compressed::CompressionMethod;
pub use corruption::{Corruption, CorruptionReports};
pub use create::{CreateError, CreateOptions, ImagePreallocation, ImageVersion, create};
pub use handover::{ImageHandOverError, ImageState, InvalidImageState};
pub use header::{Features, Header, HeaderError};
pub use image::backing_name::{BackingNameError, ChangeBackingError};
pub use node::snapshots::SnapshotError;
pub use node::{Children, Qcow2Node, Qcow2Settings};
pub use open::{OpenError, make_writable, read_header};
pub use overlap::OverlapCheck;
pub use table_reader::MetadataError;
