//! The drivers of `--blockdev`, one file each: keys, rules for children, files and objects, help, and how a node is made.
//!
//! Where it stands: below the graph, which asks drivers by the contract in `driver`, and the options, which read nodes by
//! it. A new driver is a file here and a line in [`DRIVERS`].
//!
//! Not here: names, permissions and what stands on what (the graph).

mod base;
mod blockdev_reader;
mod copy_before_write;
mod copy_on_read;
mod delay;
mod driver;
mod file;
mod file_check;
mod nbd;
mod node;
mod null;
mod qcow2;
mod raw;
mod rbd;
mod snapshot_access;
mod stripe;
mod table;
#[cfg(test)]
mod tests;
mod throttle;

pub(crate) use base::{ACTIVE, on_off, pair};
pub use base::{AutoReadOnly, BASE_HELP, BASE_KEYS, BaseOptions};
pub use blockdev_reader::check_node_name;
pub use delay::DELAY_SET;
pub(crate) use delay::{describe_settings as delay_description, read_settings as delay_settings};
pub use driver::Driver;
pub(crate) use driver::{
    ImageFileReference, MadeNode, NodeContext, NodeError, Options, Secrets, ThrottleGroups,
    TlsCredentials,
};
pub use file_check::{FileCheckError, file_kind, open_fault, real_directory};
pub use node::{Blockdev, BlockdevRef, KeyedChild};
pub(crate) use qcow2::BACKING;
pub use table::{DRIVERS, image_format, image_formats};
