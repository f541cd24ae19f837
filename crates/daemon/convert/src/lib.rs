//! `ringloom convert` and `ringloom map`: disks copied, compared and mapped by the copy engine; chains of backups flattened.
//!
//! Where it stands: beside the daemon. It makes nodes and iothreads of its own, as a daemon does, and has workers of the copy
//! engine (`copy`) served there.
//!
//! Not here: the copying itself (`copy`), jobs of a running daemon.

#![forbid(unsafe_code)]

mod arguments;
mod convert;
mod disks;
mod flatten;
mod map;
mod nbd_uri;
mod progress;
mod run;

pub use arguments::{ConvertArgs, MapArgs};
pub use convert::convert;
pub use flatten::{Flattened, Flattening, HeldDisk, flatten, hold_unused};
pub use map::map;
pub use nbd_uri::node_of_uri;
