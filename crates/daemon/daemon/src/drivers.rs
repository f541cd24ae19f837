//! The drivers of `--blockdev`, one file each: keys, rules for children, files and objects, help, and how a node is made.
//!
//! Where it stands: below the graph, which asks drivers by the contract in `driver`, and the options, which read nodes by
//! it. A new driver is a file here and a line in [`ALL`].
//!
//! Not here: names, permissions and what stands on what (the graph).

mod base;
mod blockdev_reader;
mod copy_on_read;
mod delay;
mod driver;
mod file;
mod file_check;
mod node;
mod null;
mod qcow2;
mod raw;
mod stripe;
mod table;
#[cfg(test)]
pub(crate) mod tests;
mod throttle;

pub(crate) use base::{AutoReadOnly, BASE_HELP, BaseOptions};
pub(crate) use blockdev_reader::parse;
pub(crate) use driver::{Driver, MadeNode, NamedFile, NodeContext, NodeError, ThrottleGroups};
pub(crate) use file_check::{check_files, directory, file_kind, open_fault};
pub(crate) use node::{Blockdev, BlockdevRef, KeyedChild};
pub(crate) use table::{ALL, format, formats};
