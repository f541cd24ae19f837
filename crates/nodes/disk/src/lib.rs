//! The plain nodes of the block graph: file, host_device, null-co and raw.
//!
//! Where it stands in the life of a request: lanes of these nodes answer where bytes live; the
//! two file nodes own the open file that they live in.
//!
//! Not here: what a node is (`block`), and which nodes a command line asks for (`daemon`).

#![forbid(unsafe_code)]

mod file;
mod null;
mod raw;

pub use file::{ExceededThreshold, FileNode, WriteThreshold};
pub use null::{NullNode, ReadContent};
pub use raw::{RawNode, RawWindow, RawWindowError};
