//! An export that is served, of whatever protocol.
//!
//! Threads: the first one; clients are served by threads of the export.

use std::sync::Arc;

use exports::{Export, ExportedDisk};
use nbd_server::NbdExport;

/// A running export. Dropped, it is stopped.
#[derive(Debug)]
pub enum RunningExport {
    /// A device of virtio.
    VhostUserBlk(Export),
    /// A name on the NBD server.
    Nbd(NbdExport),
}

impl RunningExport {
    /// The disk that it offers.
    pub fn disk(&self) -> &Arc<ExportedDisk> {
        match self {
            Self::VhostUserBlk(export) => export.disk(),
            Self::Nbd(export) => export.disk(),
        }
    }

    /// As `type=` names it.
    pub fn type_name(&self) -> &'static str {
        match self {
            Self::VhostUserBlk(_) => "vhost-user-blk",
            Self::Nbd(_) => "nbd",
        }
    }

    /// Whether a client is connected.
    pub fn has_client(&self) -> bool {
        match self {
            Self::VhostUserBlk(export) => export.has_client(),
            Self::Nbd(export) => export.has_client(),
        }
    }

    /// How many clients are connected.
    pub fn clients(&self) -> usize {
        match self {
            Self::VhostUserBlk(export) => usize::from(export.has_client()),
            Self::Nbd(export) => export.clients(),
        }
    }

    /// Makes the export stop, without waiting for it: no new client, those that are there are hung up on when their
    /// requests are over.
    pub fn begin_stop(&self) {
        match self {
            Self::VhostUserBlk(export) => export.begin_stop(),
            Self::Nbd(export) => export.begin_stop(),
        }
    }

    /// The export of vhost-user-blk, if it is one.
    pub fn vhost_user_blk(&self) -> Option<&Export> {
        match self {
            Self::VhostUserBlk(export) => Some(export),
            Self::Nbd(_) => None,
        }
    }
}
