//! A claim under which the image may be changed: it has the exclusive lock.
//!
//! Threads: any but iothreads. Limits: those of the calls of the library; [`FORGOTTEN_SURELY`].

use std::io;
use std::sync::Arc;
use std::time::Duration;

use block::{ClaimGuard, RetryHint};

use crate::disk::{Disk, LockError};

/// How much later than it should a cluster may forget a client that is gone: an OSD counts anew when it takes the place of
/// one that went down with that client, and clients ask some times in a second.
const FORGOTTEN_SURELY: Duration = Duration::from_secs(15);

/// The right to change an image.
#[derive(Debug)]
pub(super) struct WriteClaim(Arc<Disk>);

impl WriteClaim {
    /// Takes the lock, if this is the first one. Blocks.
    pub(super) fn new(disk: &Arc<Disk>) -> Result<Self, LockError> {
        disk.add_writer()?;
        Ok(Self(Arc::clone(disk)))
    }
}

impl ClaimGuard for WriteClaim {
    fn flush(&self) -> io::Result<()> {
        self.0.flush()
    }

    /// Without the lock others could have changed its size.
    fn refresh(&self) -> io::Result<()> {
        self.0.measure()
    }
}

impl Drop for WriteClaim {
    fn drop(&mut self) {
        self.0.remove_writer();
    }
}

impl LockError {
    /// Whether the lock may be had later.
    pub(super) fn outlook(&self) -> RetryHint {
        match self {
            Self::Held { forgotten_after, .. } => {
                RetryHint::TransientFor(*forgotten_after + FORGOTTEN_SURELY)
            }
            Self::Taken { .. } => RetryHint::Transient,
            Self::Call { .. } | Self::Late { .. } => RetryHint::Permanent,
        }
    }
}
