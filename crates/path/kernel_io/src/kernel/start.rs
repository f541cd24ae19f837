//! Kernel interfaces for threads that serve rings, and for those that do not.

use std::sync::Arc;

use super::Kernel;
use super::io_engine::BlockingCallPolicy;
use crate::reactor::Reactor;
use crate::{FileTable, KernelError, ReactorChoice, SpareRings};

impl Kernel {
    /// Makes the calling thread's reactor. Call it on the thread that will use it.
    pub fn new(table: Arc<FileTable>, allowed: ReactorChoice) -> Result<Self, KernelError> {
        Self::with_spare_rings(table, allowed, &SpareRings::default())
    }

    /// The same; a spare ring is taken if there is one.
    pub fn with_spare_rings(
        table: Arc<FileTable>,
        allowed: ReactorChoice,
        spares: &SpareRings,
    ) -> Result<Self, KernelError> {
        let reactor = Reactor::new(allowed, spares)?;
        Self::with(table, reactor, BlockingCallPolicy::OnWorkers)
    }

    /// The same for a thread that owns no ring: it carries out each operation in the call that begins it, and waits
    /// with epoll for what others do. Cheap to make.
    pub fn blocking(table: Arc<FileTable>) -> Result<Self, KernelError> {
        let reactor = Reactor::new(ReactorChoice::EpollOnly, &SpareRings::default())?;
        Self::with(table, reactor, BlockingCallPolicy::OnThisThread)
    }
}
