//! A claim on the node. The protocol has no locks: a claim only sees to it that what was written under it is durable.
//!
//! Invariants: when the last claim ends under which the export could be changed, it was flushed, or the log says that it
//! could not be; QEMU flushes when it closes. Threads: any but iothreads. Limits: the time of a flush without a ring.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use block::{ClaimGuard, FlushPolicy};

use super::{FLUSH_MAX, flush};
use crate::remote::Remote;

/// A claim under which the export may be changed.
#[derive(Debug)]
pub(super) struct WriteClaim {
    remote: Arc<Remote>,
    flushes: FlushPolicy,
}

impl WriteClaim {
    pub(super) fn new(remote: &Arc<Remote>, flushes: FlushPolicy) -> Self {
        remote.writers.fetch_add(1, Ordering::AcqRel);
        Self { remote: Arc::clone(remote), flushes }
    }
}

impl ClaimGuard for WriteClaim {
    /// Also without flushes (`cache.no-flush`): whoever uses the export next finds what was written.
    fn flush(&self) -> io::Result<()> {
        flush::flush(&self.remote, FLUSH_MAX)
    }

    /// Nothing is known of it that others could change.
    fn refresh(&self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for WriteClaim {
    fn drop(&mut self) {
        let is_last = self.remote.writers.fetch_sub(1, Ordering::AcqRel) == 1;
        let medium = &self.remote.medium;
        // A failed one was told of, and no later one succeeds.
        if !is_last || self.flushes == FlushPolicy::Ignored || medium.has_failed_sync() {
            return;
        }
        if let Err(error) = flush::flush(&self.remote, FLUSH_MAX) {
            tracing::error!("disk {}: the last flush failed: {error}", medium.name());
        }
    }
}
